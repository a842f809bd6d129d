//! State of a peer and of its pairs.
//!
//! A *peer* is a process of another node. A *pair* is the state of one join with a peer: keys, sequence numbers and
//! replay window. A peer has several pairs after both nodes joined at the same time or after a secret was rotated. Each
//! node sends under the newest confirmed pair, and receives under all pairs.

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
    /// Sequence number of the last datagram sent under these keys. Never reused, because the nonce
    /// is made from it.
    pub(super) sequence: u64,
    pub(super) window: Window,
    pub(super) made: Duration,
    pub(super) heard: Duration,
    pub(super) sent: Duration,
    /// `true` if a datagram must be sent to confirm the peer's echo.
    pub(super) reply_due: bool,
    /// `true` if the pair's secret is no longer the first in the list, so that a new join must
    /// replace the pair.
    pub(super) stale: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PairStage {
    /// This node has answered a HELLO with a WELCOME. The HELLO may be a replay, so no peer exists
    /// until the WELCOME is echoed.
    Candidate {
        /// X25519 public key of this node, for repeated WELCOMEs.
        share: [u8; SHARE_LEN],
        /// `true` if a WELCOME must be sent, for the first time or because the HELLO was repeated.
        due: bool,
    },
    /// A WELCOME has answered this node's HELLO, but the peer has not confirmed the echo. Every datagram begins with
    /// the echo.
    Echoing,
    /// Both nodes have proved that they have the keys.
    Confirmed,
}

/// A process of another node that has echoed a nonce of this node.
pub(super) struct ReplicaPeer {
    pub(super) name: PeerName,
    pub(super) address: SocketAddr,
    /// Addresses from the list at which the peer answered, newest last.
    pub(super) reached_by: Vec<SocketAddr>,
    /// Pairs with the peer, newest last.
    pub(super) pairs: Vec<PairId>,
    pub(super) since: Duration,
    pub(super) heard: Duration,
    /// Reason why this node no longer sends to the peer.
    pub(super) retired: Option<Retired>,
    pub(super) outbox: SendQueue,
    /// Number of sessions in the peer's table, as last reported by the peer.
    pub(super) held: Option<u32>,
    pub(super) dump: Option<Dump>,
    pub(super) traffic: PeerTraffic,
}

/// Reason why this node no longer sends to a peer. Datagrams from the peer are still accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retired {
    /// Another process of the same node replaced the peer at this time.
    Replaced(Duration),
    /// The peer sent a goodbye.
    Left,
}

/// Progress of sending this node's sessions and sticks (assignments of clients to servers) to a
/// peer.
#[derive(Clone, Copy)]
pub(super) struct Dump {
    pub(super) at: DumpWalk,
    pub(super) youngest: Duration,
}

/// Position of a dump. Sticks are sent before sessions, because a client that resumes without its stick reaches the
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

    /// Returns whether a new join must replace the pair, because its secret is no longer the first
    /// or its keys are too old.
    pub(super) fn is_to_be_replaced(&self, limits: &ReplicaLimits, now: Duration) -> bool {
        self.stale || now >= self.made.saturating_add(limits.rejoin_after)
    }

    /// Returns when the pair must send an echo, a WELCOME or the confirmation of an echo, or `None`
    /// if none is needed.
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

    /// Records the arrival time of an authenticated datagram. Ignores a peer that has sent a
    /// goodbye, so that the peer expires.
    pub(super) fn hear(&mut self, now: Duration) {
        if !self.has_left() {
            self.heard = now;
        }
    }

    /// Returns whether the peer sent a goodbye.
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

    /// Stops sending to this peer. Discards its queue and its dump.
    pub(super) fn retire(&mut self, why: Retired) {
        self.retired = Some(why);
        self.outbox = SendQueue::new(0);
        self.dump = None;
    }

    /// Returns whether a datagram that is received now proves that the replaced peer is still
    /// running.
    pub(super) fn outlived_its_replacement(&self, now: Duration) -> bool {
        matches!(self.retired, Some(Retired::Replaced(since)) if now >= since + REPLACED_GRACE)
    }

    /// Resumes sending to a retired peer, in addition to the process that replaced it.
    pub(super) fn revive(&mut self, limits: &ReplicaLimits) {
        if self.retired.take().is_some() {
            self.outbox = SendQueue::new(limits.queue_bytes);
        }
    }

    /// Returns the pair to send under: the newest confirmed pair, or the newest pair if none is confirmed.
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

/// Maximum number of listed addresses stored for one peer. A host name rarely has more.
const MAX_ADDRESSES_OF_PEER: usize = 8;

/// Time during which late datagrams of a replaced process are expected. A later datagram proves that the process is
/// still running.
const REPLACED_GRACE: Duration = Duration::from_secs(5);

/// Interval at which an unconfirmed echo is repeated.
const ECHO_AGAIN: Duration = Duration::from_millis(500);

/// Maximum number of processes per node from which datagrams are accepted. A correctly configured
/// node has at most two, during a restart.
pub(super) const MAX_BOOTS_OF_NODE: usize = 4;
