//! Requests for the sessions of other nodes: which node to ask for a dump, and for which part.
//!
//! A process that has just started requests everything from one peer: the peer with the most
//! sessions. From a peer that was lost for a while, with both processes alive, it requests the
//! sessions created during that time. From a process that replaces another one, it requests the
//! recent sessions, since that process sent nothing here before it became a peer. Only one dump is
//! requested at a time, so that the traffic stays within the rate of one peer. A dump without an
//! end is requested again a few times; a dump of everything is then requested from another peer, if
//! there is one. Records that are lost during a dump are not requested again.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::names::PeerName;
use super::peer::ReplicaPeer;
use super::record::Frame;
use super::status::WarmUp;

/// Dumps that this node still requests.
pub(super) struct Warming {
    wanted: VecDeque<WantedDump>,
    asked: Option<AskedDump>,
    /// Time when the first peer became live.
    first_live: Option<Duration>,
    /// Peers that went silent, and when they were last heard.
    departed: VecDeque<(PeerName, Duration)>,
}

#[derive(Clone)]
struct WantedDump {
    /// The peer to ask; `None` for everything, from any peer.
    peer: Option<PeerName>,
    /// Sessions created within this many seconds.
    youngest: u32,
    /// Peers that were asked, but did not send the whole dump.
    tried: Vec<PeerName>,
}

struct AskedDump {
    peer: PeerName,
    wanted: WantedDump,
    /// Time of the request, or of the last record.
    last: Duration,
    records: u64,
}

impl Warming {
    pub(super) fn new() -> Self {
        Self {
            wanted: VecDeque::from([EVERYTHING]),
            asked: None,
            first_live: None,
            departed: VecDeque::new(),
        }
    }

    /// Records a peer that became live. If another process of its node was last heard at `before`,
    /// or the peer was silent, queues the request for a dump.
    pub(super) fn joined(&mut self, peer: PeerName, before: Option<Duration>, now: Duration) {
        self.first_live.get_or_insert(now);
        let departed = self.departed.iter().position(|(name, _)| *name == peer);
        let departed = departed.and_then(|at| self.departed.remove(at));
        if let Some(heard) = departed.map(|(_, heard)| heard).or(before) {
            self.missed(peer, heard, now);
        }
    }

    /// Queues the request for a dump of a peer that could not be heard, or could not hear this
    /// node, since `heard`: sessions created after that may be missing here.
    pub(super) fn missed(&mut self, peer: PeerName, heard: Duration, now: Duration) {
        self.wanted.retain(|wanted| wanted.peer != Some(peer));
        if self.wanted.len() < MAX_REMEMBERED {
            let since = now.saturating_sub(heard).saturating_add(MARGIN).as_secs();
            self.wanted.push_back(WantedDump {
                peer: Some(peer),
                youngest: u32::try_from(since).unwrap_or(u32::MAX - 1),
                tried: Vec::new(),
            });
        }
    }

    /// Records a peer that went silent.
    pub(super) fn left(&mut self, peer: PeerName, heard: Duration) {
        if self.departed.len() >= MAX_REMEMBERED {
            self.departed.pop_front();
        }
        self.departed.push_back((peer, heard));
    }

    /// Counts a record of the requested dump.
    pub(super) fn received(&mut self, from: PeerName, now: Duration) {
        if let Some(asked) = self.asked.as_mut().filter(|asked| asked.peer == from) {
            asked.records += 1;
            asked.last = now;
        }
    }

    /// Records that a peer has sent the whole requested dump.
    pub(super) fn ended(&mut self, from: PeerName) {
        self.asked.take_if(|asked| asked.peer == from);
    }

    /// Requests the next dump if it is due.
    pub(super) fn advance(&mut self, peers: &mut BTreeMap<PeerName, ReplicaPeer>, now: Duration) {
        let is_over = |asked: &mut AskedDump| asked.is_over(peers, now);
        if let Some(again) = self.asked.take_if(is_over).and_then(AskedDump::again) {
            self.wanted.push_front(again);
        }
        if self.when(peers).is_none_or(|when| when > now) || self.asked.is_some() {
            return;
        }
        if let Some(wanted) = self.wanted.pop_front() {
            self.ask(wanted, peers, now);
        }
    }

    /// Returns when [`advance`](Self::advance) has work.
    pub(super) fn when(&self, peers: &BTreeMap<PeerName, ReplicaPeer>) -> Option<Duration> {
        if let Some(asked) = &self.asked {
            let here = peers.contains_key(&asked.peer);
            return Some(if here {
                asked.last + QUIET
            } else {
                Duration::ZERO
            });
        }
        match self.wanted.front()?.peer {
            None => self.when_to_choose(peers),
            Some(_) => Some(Duration::ZERO),
        }
    }

    pub(super) fn status(&self) -> WarmUp {
        match &self.asked {
            Some(asked) => WarmUp::Receiving {
                from: asked.peer.node,
                records: asked.records,
            },
            None if self.wanted.iter().any(|wanted| wanted.peer.is_none()) => WarmUp::Waiting,
            None => WarmUp::Done,
        }
    }

    /// Returns the time at which a peer is chosen for a dump of everything: soon after the first
    /// peer became live, since other peers may hold more sessions; later if some have not reported
    /// their number of sessions.
    fn when_to_choose(&self, peers: &BTreeMap<PeerName, ReplicaPeer>) -> Option<Duration> {
        let mut live = peers.values().filter(|peer| peer.is_live()).peekable();
        live.peek()?;
        let all_said = live.all(|peer| peer.held.is_some());
        Some(self.first_live? + if all_said { GRACE } else { QUIET })
    }

    fn ask(
        &mut self,
        wanted: WantedDump,
        peers: &mut BTreeMap<PeerName, ReplicaPeer>,
        now: Duration,
    ) {
        let live = peers.values_mut().filter(|peer| peer.is_live());
        let peer = match wanted.peer {
            Some(name) => live.into_iter().find(|peer| peer.name == name),
            None => live.into_iter().max_by_key(|peer| {
                let times = wanted.tried.iter().filter(|tried| **tried == peer.name);
                (Reverse(times.count()), peer.held)
            }),
        };
        // If the peer was lost meanwhile, it is in `departed`, and a dump is requested when it
        // returns.
        let Some(peer) = peer else { return };
        let mut frame = [0; 16];
        let youngest = wanted.youngest;
        let len = Frame::Ask { youngest }.encode(&mut frame).unwrap_or(0);
        // If the queue is full, the missing answer leads to another request.
        peer.outbox.push(frame.get(..len).unwrap_or_default());
        self.asked = Some(AskedDump {
            peer: peer.name,
            wanted,
            last: now,
            records: 0,
        });
    }
}

impl AskedDump {
    /// Returns whether nothing more will arrive: the peer has left, or is silent.
    fn is_over(&self, peers: &BTreeMap<PeerName, ReplicaPeer>, now: Duration) -> bool {
        let here = peers.get(&self.peer).is_some_and(ReplicaPeer::is_live);
        !here || now >= self.last + QUIET
    }

    /// Returns the dump for another request, since its end did not arrive.
    fn again(self) -> Option<WantedDump> {
        let mut again = self.wanted;
        again.tried.push(self.peer);
        (again.tried.len() < MAX_TIMES).then_some(again)
    }
}

const EVERYTHING: WantedDump = WantedDump {
    peer: None,
    youngest: u32::MAX,
    tried: Vec::new(),
};

/// Time for other peers to become live after the first one.
const GRACE: Duration = Duration::from_secs(1);

/// Silence after which a dump is over. Longer than the default interval of keep-alives, which report the
/// number of sessions.
const QUIET: Duration = Duration::from_secs(6);

/// Extra time for sessions that were on their way when a peer was last heard.
const MARGIN: Duration = Duration::from_secs(6);

const MAX_TIMES: usize = 4;

/// Maximum number of peers whose sessions may be missing here.
const MAX_REMEMBERED: usize = 128;
