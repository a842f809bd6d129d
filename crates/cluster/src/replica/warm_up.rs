//! How a node comes to hold what the others hold: whom it asks for a dump, and for how much.
//!
//! A process that just started asks one peer for everything: that which holds most. A peer that was lost for a while, with
//! both processes alive, is asked for what was made meanwhile, and so is a process that takes the place of another: before it
//! was a peer it told nobody. One dump is asked for at a time, so that what arrives stays within what one peer may send. A dump
//! that does not come to its end is asked for a few times: everything of another peer each time, where there is another. What a
//! dump loses on the way is not asked for again.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::names::PeerName;
use super::peer::ReplicaPeer;
use super::record::Frame;
use super::status::WarmUp;

/// The dumps that we wait for.
pub(super) struct Warming {
    wanted: VecDeque<WantedDump>,
    asked: Option<AskedDump>,
    /// When the first peer became live.
    first_live: Option<Duration>,
    /// Peers that went silent, and when they were last heard.
    departed: VecDeque<(PeerName, Duration)>,
}

#[derive(Clone)]
struct WantedDump {
    /// Who is to be asked; nobody in particular for everything.
    peer: Option<PeerName>,
    /// Sessions made within so many seconds.
    youngest: u32,
    /// Who was asked for it, in vain.
    tried: Vec<PeerName>,
}

struct AskedDump {
    peer: PeerName,
    wanted: WantedDump,
    /// When it was asked, or last sent something.
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

    /// A peer became live. Another process of its node was heard until `before`.
    pub(super) fn joined(&mut self, peer: PeerName, before: Option<Duration>, now: Duration) {
        self.first_live.get_or_insert(now);
        let departed = self.departed.iter().position(|(name, _)| *name == peer);
        let departed = departed.and_then(|at| self.departed.remove(at));
        if let Some(heard) = departed.map(|(_, heard)| heard).or(before) {
            self.missed(peer, heard, now);
        }
    }

    /// A peer could not be heard, or could not hear us, since then: what was made meanwhile may be missing here.
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

    /// A peer went silent.
    pub(super) fn left(&mut self, peer: PeerName, heard: Duration) {
        if self.departed.len() >= MAX_REMEMBERED {
            self.departed.pop_front();
        }
        self.departed.push_back((peer, heard));
    }

    /// A session of a dump came.
    pub(super) fn received(&mut self, from: PeerName, now: Duration) {
        if let Some(asked) = self.asked.as_mut().filter(|asked| asked.peer == from) {
            asked.records += 1;
            asked.last = now;
        }
    }

    /// A dump is over.
    pub(super) fn ended(&mut self, from: PeerName) {
        self.asked.take_if(|asked| asked.peer == from);
    }

    /// Asks whoever is to be asked now.
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

    /// When [`advance`](Self::advance) has something to do.
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

    /// Soon after the first peer became live, for others may hold more; later if some have not said what they hold.
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
        // One that went away meanwhile is remembered as departed.
        let Some(peer) = peer else { return };
        let mut frame = [0; 16];
        let youngest = wanted.youngest;
        let len = Frame::Ask { youngest }.encode(&mut frame).unwrap_or(0);
        // Without room in the queue, silence will have it repeated.
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
    /// Nothing more will come: the peer is gone, or silent.
    fn is_over(&self, peers: &BTreeMap<PeerName, ReplicaPeer>, now: Duration) -> bool {
        let here = peers.get(&self.peer).is_some_and(ReplicaPeer::is_live);
        !here || now >= self.last + QUIET
    }

    /// The same once more, since the end of it did not come.
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

/// For others than the first peer to become live.
const GRACE: Duration = Duration::from_secs(1);

/// A dump from which nothing came for so long is over. Longer than a keep-alive by default, which tells what is held.
const QUIET: Duration = Duration::from_secs(6);

/// What may have been under way when a peer was last heard.
const MARGIN: Duration = Duration::from_secs(6);

const MAX_TIMES: usize = 4;

/// Peers remembered because something of theirs may be missing here.
const MAX_REMEMBERED: usize = 128;
