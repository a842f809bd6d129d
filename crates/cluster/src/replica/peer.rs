//! State of a peer and of its pairs.
//!
//! A *peer* is a process of another node. A *pair* is one join with it: keys, sequences and replay window. A
//! peer can have several pairs, if both nodes joined at the same moment or a secret was rotated. Each side
//! sends under the newest pair that the other side is known to have, and receives under all of them.

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

/// Keys and state of one join with a peer.
pub(super) struct KeyedPair<K> {
    pub(super) peer: PeerName,
    pub(super) keys: K,
    pub(super) secret: SecretId,
    pub(super) stage: PairStage,
    /// ID that the peer assigned to the pair.
    pub(super) theirs: PairId,
    pub(super) address: SocketAddr,
    pub(super) hello: [u8; NONCE_LEN],
    /// Nonce of the WELCOME, which the sender of the HELLO must echo.
    pub(super) welcome: [u8; NONCE_LEN],
    /// Sequence number of the last sealed datagram. A number is never reused.
    pub(super) sequence: u64,
    pub(super) window: Window,
    pub(super) made: Duration,
    pub(super) heard: Duration,
    pub(super) sent: Duration,
    /// The peer waits for a confirmation of its echo.
    pub(super) reply_due: bool,
    /// The secret of the join is no longer the first, so the pair must be joined again.
    pub(super) stale: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PairStage {
    /// This node answered a HELLO, which may be a replay. Only an echo turns the candidate into a
    /// peer.
    Candidate {
        /// Our key share, for repeated WELCOMEs.
        share: [u8; SHARE_LEN],
        /// A WELCOME must be sent, for the first time or because the HELLO was repeated.
        due: bool,
    },
    /// Our HELLO was answered, but our echo is not confirmed yet. Every datagram begins with the echo.
    Echoing,
    /// Each side knows that the other side has the keys.
    Confirmed,
}

/// A process of another node that has echoed our nonce.
pub(super) struct ReplicaPeer {
    pub(super) name: PeerName,
    pub(super) address: SocketAddr,
    /// Listed addresses at which the peer was reached, newest last.
    pub(super) reached_by: Vec<SocketAddr>,
    /// Pairs with the peer, newest last.
    pub(super) pairs: Vec<PairId>,
    pub(super) since: Duration,
    pub(super) heard: Duration,
    /// Reason why this node no longer sends to the peer.
    pub(super) retired: Option<Retired>,
    pub(super) outbox: SendQueue,
    /// Number of sessions that the peer reported.
    pub(super) held: Option<u32>,
    pub(super) dump: Option<Dump>,
    pub(super) traffic: PeerTraffic,
}

/// Reason why this node no longer sends to a peer. Datagrams that still arrive from the peer are
/// accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retired {
    /// Another process of the node replaced the peer at this time.
    Replaced(Duration),
    /// The peer sent a goodbye.
    Left,
}

/// Transfer of our sessions and sticks to one peer.
#[derive(Clone, Copy)]
pub(super) struct Dump {
    pub(super) at: DumpWalk,
    pub(super) youngest: Duration,
}

/// Position of a dump. Sticks are sent first: they are few, and without them a client with a session would reach the
/// wrong server.
#[derive(Clone, Copy)]
pub(super) enum DumpWalk {
    Sticks(StickCursor),
    Sessions(Cursor),
}

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

    /// Returns whether the pair must be joined again: its secret is no longer the first, or its
    /// keys are old. New keys limit the traffic that stolen keys can decrypt.
    pub(super) fn is_to_be_replaced(&self, limits: &ReplicaLimits, now: Duration) -> bool {
        self.stale || now >= self.made.saturating_add(limits.rejoin_after)
    }

    /// Returns when a datagram of this pair is due: our echo, a WELCOME, or the confirmation of an
    /// echo.
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

    /// Records the arrival time of a genuine datagram. Ignores datagrams of a peer that has left,
    /// so that the peer expires.
    pub(super) fn hear(&mut self, now: Duration) {
        if !self.has_left() {
            self.heard = now;
        }
    }

    /// Returns whether the peer sent a goodbye. The node's next process is a different peer.
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

    /// Stops sending to this peer, because another process replaced it or because it has ended.
    pub(super) fn retire(&mut self, why: Retired) {
        self.retired = Some(why);
        self.outbox = SendQueue::new(0);
        self.dump = None;
    }

    /// Returns whether the peer was replaced so long ago that a datagram received now proves that
    /// it is still alive.
    pub(super) fn outlived_its_replacement(&self, now: Duration) -> bool {
        matches!(self.retired, Some(Retired::Replaced(since)) if now >= since + REPLACED_GRACE)
    }

    /// Makes the peer live again, alongside the process that replaced it.
    pub(super) fn revive(&mut self, limits: &ReplicaLimits) {
        if self.retired.take().is_some() {
            self.outbox = SendQueue::new(limits.queue_bytes);
        }
    }

    /// Returns the pair for sending: the newest one that the peer is known to have, otherwise the newest.
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

/// Maximum number of listed addresses stored for one peer: more than a host has under one name.
const MAX_ADDRESSES_OF_PEER: usize = 8;

/// Grace period for late datagrams of a replaced process. A datagram that arrives later proves that the process is
/// still alive.
const REPLACED_GRACE: Duration = Duration::from_secs(5);

/// Time after which an unconfirmed echo is repeated.
const ECHO_AGAIN: Duration = Duration::from_millis(500);

/// Maximum number of processes of one node from which datagrams are accepted. More than two mean a
/// misconfiguration.
pub(super) const MAX_BOOTS_OF_NODE: usize = 4;
