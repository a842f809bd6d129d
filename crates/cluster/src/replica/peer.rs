//! What is kept of a peer and of the pairs that lead to it.
//!
//! A *peer* is a process of another node. A *pair* is one join with it: keys, sequences and replay window. A peer can have
//! several pairs, when both nodes joined at the same moment or a secret was rotated; each side sends under the newest pair
//! that it knows the other to hold, and listens to all of them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::datagram::PairId;
use super::limits::ReplicaLimits;
use super::names::PeerName;
use super::outbox::SendQueue;
use super::sink::StickCursor;
use super::status::{PeerState, PeerStatus, PeerTraffic};
use super::vault::{NONCE_LEN, SHARE_LEN, Transcript};
use super::window::Window;
use becket_proto::bounded_table::Cursor;
use becket_proto::ticket::SecretId;

/// One join with a peer, from the moment on when keys exist.
pub(super) struct KeyedPair<K> {
    pub(super) peer: PeerName,
    pub(super) keys: K,
    /// The secret that it was joined under.
    pub(super) secret: SecretId,
    pub(super) stage: PairStage,
    /// How the other side calls the pair.
    pub(super) theirs: PairId,
    /// Where its datagrams go to.
    pub(super) address: SocketAddr,
    /// The nonce of the HELLO.
    pub(super) hello: [u8; NONCE_LEN],
    /// The nonce of the WELCOME: to be echoed by the side that said HELLO.
    pub(super) welcome: [u8; NONCE_LEN],
    /// The last sequence that was sealed. One is never used twice.
    pub(super) sequence: u64,
    pub(super) window: Window,
    pub(super) made: Duration,
    pub(super) heard: Duration,
    pub(super) sent: Duration,
    /// The other side waits for a sign that its echo came.
    pub(super) reply_due: bool,
    /// Made under a secret that was the first and no longer is: to be joined anew.
    pub(super) stale: bool,
}

/// How much of a join is proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PairStage {
    /// We answered a HELLO, which may be a recorded one. Only an echo makes a peer of it.
    Candidate {
        /// Our share, to say WELCOME again.
        share: [u8; SHARE_LEN],
        /// WELCOME is to be said, for the first time or because the HELLO was repeated.
        due: bool,
    },
    /// Our HELLO was answered; whether our echo came is not known. Every datagram begins with it.
    Echoing,
    /// Both sides know that the other has the keys.
    Confirmed,
}

/// A process of another node that has echoed our nonce.
pub(super) struct ReplicaPeer {
    pub(super) name: PeerName,
    pub(super) address: SocketAddr,
    /// Listed addresses that led to it, the latest last.
    pub(super) reached_by: Vec<SocketAddr>,
    /// Its pairs, the newest last.
    pub(super) pairs: Vec<PairId>,
    pub(super) since: Duration,
    pub(super) heard: Duration,
    /// Why nothing is sent to it any more.
    pub(super) retired: Option<Retired>,
    pub(super) outbox: SendQueue,
    /// How many sessions it says it holds.
    pub(super) held: Option<u32>,
    pub(super) dump: Option<Dump>,
    pub(super) traffic: PeerTraffic,
}

/// Why a peer is only listened to, for what of it may still be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retired {
    /// Another process of its node took its place then.
    Replaced(Duration),
    /// It said goodbye.
    Left,
}

/// A walk through what we hold for one peer.
#[derive(Clone, Copy)]
pub(super) struct Dump {
    pub(super) at: DumpWalk,
    pub(super) youngest: Duration,
    pub(super) records: u32,
}

/// Where a dump goes on: first who sticks, which is little and without which a session leads to the wrong server.
#[derive(Clone, Copy)]
pub(super) enum DumpWalk {
    Sticks(StickCursor),
    Sessions(Cursor),
}

/// Where a new pair leads, and how far it is proven.
pub(super) struct Ends {
    pub(super) peer: PeerName,
    pub(super) theirs: PairId,
    pub(super) address: SocketAddr,
    pub(super) stage: PairStage,
}

impl<K> KeyedPair<K> {
    pub(super) fn new(keys: K, transcript: &Transcript, ends: Ends, now: Duration) -> Self {
        Self {
            peer: ends.peer,
            keys,
            secret: transcript.secret,
            stage: ends.stage,
            theirs: ends.theirs,
            address: ends.address,
            hello: transcript.initiator.nonce,
            welcome: transcript.responder.nonce,
            sequence: 0,
            window: Window::new(),
            made: now,
            heard: now,
            sent: now,
            reply_due: false,
            stale: false,
        }
    }

    pub(super) fn is_candidate(&self) -> bool {
        matches!(self.stage, PairStage::Candidate { .. })
    }

    /// Its secret is no longer the first, or its keys are old: whoever steals them opens all that they sealed.
    pub(super) fn is_to_be_replaced(&self, limits: &ReplicaLimits, now: Duration) -> bool {
        self.stale || now >= self.made.saturating_add(limits.rejoin_after)
    }

    /// When something is to be said under this very pair: our echo, WELCOME, or that their echo came.
    pub(super) fn due(&self) -> Option<Duration> {
        match self.stage {
            PairStage::Candidate { due, .. } => due.then_some(Duration::ZERO),
            PairStage::Echoing if self.sequence > 0 => Some(self.sent + ECHO_AGAIN),
            PairStage::Echoing => Some(Duration::ZERO),
            PairStage::Confirmed => self.reply_due.then_some(Duration::ZERO),
        }
    }
}

impl ReplicaPeer {
    pub(super) fn new(
        name: PeerName,
        address: SocketAddr,
        limits: &ReplicaLimits,
        now: Duration,
    ) -> Self {
        Self {
            name,
            address,
            reached_by: Vec::new(),
            pairs: Vec::new(),
            since: now,
            heard: now,
            retired: None,
            outbox: SendQueue::new(limits.queue_bytes),
            held: None,
            dump: None,
            traffic: PeerTraffic::default(),
        }
    }

    pub(super) fn is_live(&self) -> bool {
        self.retired.is_none()
    }

    /// A genuine datagram of it came. One that has left stays no longer for what it still says.
    pub(super) fn hear(&mut self, now: Duration) {
        if !self.has_left() {
            self.heard = now;
        }
    }

    /// It said goodbye. It never comes back: who speaks for its node next is another process.
    pub(super) fn has_left(&self) -> bool {
        self.retired == Some(Retired::Left)
    }

    pub(super) fn answers_at(&self, address: SocketAddr) -> bool {
        self.address == address || self.reached_by.contains(&address)
    }

    pub(super) fn reached_by(&mut self, address: SocketAddr) {
        self.reached_by.retain(|known| *known != address);
        if self.reached_by.len() >= MAX_ADDRESSES_OF_PEER {
            self.reached_by.remove(0);
        }
        self.reached_by.push(address);
        self.address = address;
    }

    /// Another process of the node has taken the place, or this one has ended: nothing is sent to it any more.
    pub(super) fn retire(&mut self, why: Retired) {
        self.retired = Some(why);
        self.outbox = SendQueue::new(0);
        self.dump = None;
    }

    /// Whether it was heard long after another took its place.
    pub(super) fn outlived_its_replacement(&self, now: Duration) -> bool {
        matches!(self.retired, Some(Retired::Replaced(since)) if now >= since + REPLACED_GRACE)
    }

    /// It is alive after all, beside whatever took its place.
    pub(super) fn revive(&mut self, limits: &ReplicaLimits) {
        if self.retired.take().is_some() {
            self.outbox = SendQueue::new(limits.queue_bytes);
        }
    }

    /// The pair to send under: the newest that the other side is known to hold, else the newest.
    pub(super) fn sending<K>(&self, pairs: &BTreeMap<PairId, KeyedPair<K>>) -> Option<PairId> {
        let confirmed = |id: &&PairId| {
            pairs
                .get(id)
                .is_some_and(|pair| pair.stage == PairStage::Confirmed)
        };
        self.pairs
            .iter()
            .rev()
            .find(confirmed)
            .or(self.pairs.last())
            .copied()
    }

    pub(super) fn status(&self, secret: SecretId, now: Duration) -> PeerStatus {
        PeerStatus {
            name: None,
            node: self.name.node,
            boot: self.name.boot,
            address: self.address,
            state: match self.retired {
                None => PeerState::Live,
                Some(Retired::Replaced(_)) => PeerState::Replaced,
                Some(Retired::Left) => PeerState::Left,
            },
            secret,
            peer_for: now.saturating_sub(self.since),
            heard_ago: now.saturating_sub(self.heard),
            sessions_held: self.held.unwrap_or(0),
            queued_bytes: self.outbox.len(),
            dumping: self.dump.is_some(),
            traffic: self.traffic,
        }
    }
}

/// Listed addresses remembered for one peer: more than a host has in one name.
const MAX_ADDRESSES_OF_PEER: usize = 8;

/// What a process sent before another took its place may arrive for so long; later, it is alive.
const REPLACED_GRACE: Duration = Duration::from_secs(5);

/// The time after which an echo that nobody answered is said again.
const ECHO_AGAIN: Duration = Duration::from_millis(500);

/// Processes of one node that are listened to: each a mistake of someone's beyond the first two.
pub(super) const MAX_BOOTS_OF_NODE: usize = 4;
