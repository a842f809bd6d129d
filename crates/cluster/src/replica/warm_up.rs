//! Requests dumps from peers: transfers of the sessions that this node does not have.
//!
//! * A node that has just started requests all sessions from the live peer that holds the most.
//! * If a peer was silent for a while, the dump covers the sessions created during that time.
//! * If a new process replaces a peer, the dump covers the time since the previous process was last
//!   heard.
//!
//! Only one dump runs at a time, which limits the traffic. An incomplete dump is requested again a
//! few times; a dump of all sessions is requested from another peer if possible. Single records
//! lost during a dump are not requested again.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::names::PeerName;
use super::peer::ReplicaPeer;
use super::record::Frame;
use super::status::WarmUp;

/// Dump requests of this node: queued, running and to be queued when a peer returns.
pub(super) struct Warming {
    wanted: VecDeque<WantedDump>,
    asked: Option<AskedDump>,
    /// Time at which the first peer became live.
    first_live: Option<Duration>,
    /// Removed peers, each with the time at which it was last heard.
    departed: VecDeque<(PeerName, Duration)>,
}

#[derive(Clone)]
struct WantedDump {
    /// Peer that must send the dump. `None` means any peer.
    peer: Option<PeerName>,
    /// Requests only sessions that are at most this old, in seconds.
    youngest: u32,
    /// Peers that did not complete a requested dump.
    tried: Vec<PeerName>,
}

struct AskedDump {
    peer: PeerName,
    wanted: WantedDump,
    /// Time of the request, or of the last record received since then.
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

    /// Handles a peer that became live. Queues a dump request if the peer was silent for a while,
    /// or if its node's previous process was last heard at `before`.
    pub(super) fn joined(&mut self, peer: PeerName, before: Option<Duration>, now: Duration) {
        self.first_live.get_or_insert(now);
        let departed = self.departed.iter().position(|(name, _)| *name == peer);
        let departed = departed.and_then(|at| self.departed.remove(at));
        if let Some(heard) = departed.map(|(_, heard)| heard).or(before) {
            self.missed(peer, heard, now);
        }
    }

    /// Queues a request for the sessions that the peer has created since `heard`, the time of its
    /// last datagram.
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

    /// Returns the time at which the caller must call [`advance`](Self::advance), or `None` if no
    /// dump is queued or running.
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

    /// Returns the time at which to choose the peer for a dump of all sessions. Until then, more
    /// peers can join and report their numbers of sessions.
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
        // If the peer is not live, the dump is requested when the peer returns.
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
    /// Returns whether the dump has failed, because the peer has left or sends no more records.
    fn is_over(&self, peers: &BTreeMap<PeerName, ReplicaPeer>, now: Duration) -> bool {
        let here = peers.get(&self.peer).is_some_and(ReplicaPeer::is_live);
        !here || now >= self.last + QUIET
    }

    /// Returns the request to repeat after a failed dump, or `None` after too many attempts.
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

/// Time to wait for further peers after the first peer has become live.
const GRACE: Duration = Duration::from_secs(1);

/// Time without a record after which a dump counts as failed. Longer than the default keep-alive
/// interval.
const QUIET: Duration = Duration::from_secs(6);

/// Added to the maximum age of the requested sessions, to include sessions in flight when the peer
/// was last heard.
const MARGIN: Duration = Duration::from_secs(6);

const MAX_TIMES: usize = 4;

/// Maximum length of `wanted` and of `departed`.
const MAX_REMEMBERED: usize = 128;
