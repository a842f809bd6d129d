//! Requests dumps of the other nodes' sessions, one at a time, so that the traffic stays within the
//! rate of one peer.
//!
//! * A node that has just started requests all sessions from the peer that holds the most.
//! * If a peer was lost for a while and both processes survived, its dump covers the sessions
//!   created during that time.
//! * If a peer's process is replaced, the new process sends a dump of its recent sessions, since it
//!   sent nothing to this node before it became a peer.
//!
//! An incomplete dump is requested again a few times; a dump of all sessions is requested from
//! another peer if possible. Single records lost during a dump are not requested again.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::names::PeerName;
use super::peer::ReplicaPeer;
use super::record::Frame;
use super::status::WarmUp;

/// Dumps that this node still has to request.
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
    /// Peer to request the dump from. `None` requests all sessions from any peer.
    peer: Option<PeerName>,
    /// Maximum age of the requested sessions in seconds.
    youngest: u32,
    /// Peers that did not complete a requested dump.
    tried: Vec<PeerName>,
}

struct AskedDump {
    peer: PeerName,
    wanted: WantedDump,
    /// Time of the request or of the last received record.
    last: Duration,
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

    /// Handles a peer that became live. Queues a dump request if another process of its node was
    /// last heard at `before`, or if the peer was silent for a while.
    pub(super) fn joined(&mut self, peer: PeerName, before: Option<Duration>, now: Duration) {
        self.first_live.get_or_insert(now);
        let departed = self.departed.iter().position(|(name, _)| *name == peer);
        let departed = departed.and_then(|at| self.departed.remove(at));
        if let Some(heard) = departed.map(|(_, heard)| heard).or(before) {
            self.missed(peer, heard, now);
        }
    }

    /// Queues a dump request to a peer that was unreachable, in either direction, since `heard`.
    /// Later sessions may be missing on this node.
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

    pub(super) fn left(&mut self, peer: PeerName, heard: Duration) {
        if self.departed.len() >= MAX_REMEMBERED {
            self.departed.pop_front();
        }
        self.departed.push_back((peer, heard));
    }

    pub(super) fn received(&mut self, from: PeerName, now: Duration) {
        if let Some(asked) = self.asked.as_mut().filter(|asked| asked.peer == from) {
            asked.last = now;
        }
    }

    pub(super) fn ended(&mut self, from: PeerName) {
        self.asked.take_if(|asked| asked.peer == from);
    }

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

    /// Returns the time of the next call of [`advance`](Self::advance), or `None` if no dump is
    /// pending.
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
            Some(_) => WarmUp::Receiving,
            None if self.wanted.iter().any(|wanted| wanted.peer.is_none()) => WarmUp::Waiting,
            None => WarmUp::Done,
        }
    }

    /// Returns the time at which to choose the peer for a dump of all sessions. The delay lets
    /// other peers, which may hold more sessions, become live and report their numbers.
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
        // A peer that is not live is in `departed`. The dump is requested when it returns.
        let Some(peer) = peer else { return };
        let mut frame = [0; 16];
        let youngest = wanted.youngest;
        let len = Frame::Ask { youngest }.encode(&mut frame).unwrap_or(0);
        // If the queue is full, the dump times out and is requested again.
        peer.outbox.push(frame.get(..len).unwrap_or_default());
        self.asked = Some(AskedDump {
            peer: peer.name,
            wanted,
            last: now,
        });
    }
}

impl AskedDump {
    /// Returns `true` if no more records are expected, because the peer has left or is silent.
    fn is_over(&self, peers: &BTreeMap<PeerName, ReplicaPeer>, now: Duration) -> bool {
        let here = peers.get(&self.peer).is_some_and(ReplicaPeer::is_live);
        !here || now >= self.last + QUIET
    }

    /// Returns the dump for another request after its end did not arrive, or `None` after too many
    /// attempts.
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

/// Time to wait for more peers after the first one becomes live.
const GRACE: Duration = Duration::from_secs(1);

/// Silence after which a dump counts as failed. Longer than the default keep-alive interval.
const QUIET: Duration = Duration::from_secs(6);

/// Added to the maximum age of the requested sessions, to include sessions that were in flight when
/// the peer was last heard.
const MARGIN: Duration = Duration::from_secs(6);

const MAX_TIMES: usize = 4;

/// Maximum length of `wanted` and of `departed`.
const MAX_REMEMBERED: usize = 128;
