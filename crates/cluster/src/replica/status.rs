//! Counters and state of replication, for `/status`, metrics and the log.
//!
//! Counters never decrease. Each drop is counted under exactly one [`DropCause`].

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use becket_proto::labelled;
use becket_proto::ticket::{NodeId, SecretId};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use super::names::Boot;

labelled! {
/// Reason for dropping a datagram, or a record in it.
pub enum DropCause {
    /// A datagram that is too short or does not begin with the protocol's signature.
    Garbage = "garbage",
    Oversized = "oversized",
    /// A datagram of an unsupported version.
    UnknownVersion = "unknown-version",
    /// A datagram for an unknown or former pair or join, dropped without decryption.
    UnknownKey = "unknown-key",
    /// A datagram received before, or a HELLO whose pair already exists.
    Replayed = "replayed",
    /// A datagram older than the replay window, which may be a duplicate.
    TooOld = "too-old",
    /// A datagram of a known pair that fails to decrypt: damaged or forged.
    BadSeal = "bad-seal",
    /// A join under a secret that this node does not accept.
    UnknownSecret = "unknown-secret",
    /// A join that fails to decrypt: damaged, forged, or sealed under another secret with the same
    /// ID.
    BadJoin = "bad-join",
    /// A HELLO over the rate limit of its source or of all sources.
    HelloLimited = "hello-limited",
    /// A join datagram that this node sent itself.
    Own = "own",
    /// A WELCOME that does not echo the nonce of this node's HELLO.
    WrongNonce = "wrong-nonce",
    /// A first datagram of a pair that does not echo the nonce of this node's WELCOME.
    NotEchoed = "not-echoed",
    /// A join or peer rejected because the peer limit was reached.
    TooManyPeers = "too-many-peers",
    /// A datagram that was decrypted, but whose content is invalid.
    Malformed = "malformed",
    /// A skipped record of an unknown kind.
    UnknownKind = "unknown-kind",
    UnknownPolicy = "unknown-policy",
    /// A valid record that changed nothing, e.g. an expired session.
    Unwanted = "unwanted",
    /// A new record that does not fit into a datagram.
    TooLarge = "too-large",
    /// A new record that does not fit into the queue of a peer.
    QueueFull = "queue-full",
    /// A datagram that the socket did not accept.
    Unsent = "unsent",
    /// The vault failed to create a key or to seal a datagram.
    VaultFailed = "vault-failed",
    /// An address ignored because the limit on addresses was reached.
    TooManyAddresses = "too-many-addresses",
}
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drops([u64; DropCause::ALL.len()]);

/// Traffic of one peer, or of all peers together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PeerTraffic {
    /// Number of datagrams sent. Includes joins only in the totals over all peers.
    pub sent: u64,
    pub sent_bytes: u64,
    pub sent_records: u64,
    /// Number of authenticated datagrams received, without duplicates.
    pub received: u64,
    pub received_bytes: u64,
    /// Received records that were applied.
    pub received_records: u64,
    /// Datagrams that never arrived.
    pub lost: u64,
    #[serde(flatten)]
    pub drops: Drops,
}

/// Current state of replication. Serialized in `/status`: fields may be added but not renamed.
#[derive(Clone, Debug, Serialize)]
pub struct ReplicaStatus {
    pub node: NodeId,
    #[serde(serialize_with = "boot")]
    pub boot: Boot,
    pub warm_up: WarmUp,
    /// Current and recent peers, sorted by node.
    pub peers: Vec<PeerStatus>,
    /// Listed addresses that have not answered yet.
    pub unanswered: Vec<UnansweredAddress>,
    /// Nodes that run two or more live processes, which is a misconfiguration. Includes this node if another process
    /// uses its number.
    pub collisions: Vec<NodeId>,
    /// Sources of refused joins: listed addresses first, then a limited number of unlisted
    /// addresses, latest last.
    pub refused: Vec<RefusedJoin>,
    /// Number of unlisted addresses removed from `refused` because of its size limit.
    pub refused_left_out: u64,
    /// Traffic of all current and former peers, including datagrams from unknown senders.
    pub total: PeerTraffic,
}

#[derive(Clone, Debug, Serialize)]
pub struct PeerStatus {
    /// Configured name of the peer; set by the caller of `Replica::status`.
    pub name: Option<Arc<str>>,
    pub address: SocketAddr,
    #[serde(serialize_with = "state")]
    pub state: PeerState,
    pub node: NodeId,
    #[serde(serialize_with = "boot")]
    pub boot: Boot,
    /// ID of the secret that the newest join with the peer used.
    #[serde(serialize_with = "secret")]
    pub secret: SecretId,
    /// Time since the process became a peer.
    #[serde(rename = "peer_for_seconds", serialize_with = "seconds")]
    pub peer_for: Duration,
    #[serde(rename = "heard_seconds_ago", serialize_with = "seconds")]
    pub heard_ago: Duration,
    /// Number of sessions that the peer reported.
    pub sessions_held: u32,
    pub queued_bytes: usize,
    /// `true` while this node sends its sessions to the peer in a dump.
    pub dumping: bool,
    #[serde(flatten)]
    pub traffic: PeerTraffic,
}

labelled! {
pub enum PeerState {
    /// Records are sent to the peer and accepted from it.
    Live = "live",
    /// Another process of the same node has replaced this peer. Its datagrams are still accepted,
    /// but nothing is sent to it.
    Replaced = "replaced",
    /// The peer sent a goodbye. It remains in the status until the timeout for silent peers.
    Left = "left",
}
}

#[derive(Clone, Debug, Serialize)]
pub struct UnansweredAddress {
    pub address: SocketAddr,
    /// Configured name of the peer at this address; set by the caller of `Replica::status`.
    pub name: Option<Arc<str>>,
    /// `true` if the address belongs to this node, because a HELLO sent to it came back.
    pub own: bool,
    /// Number of HELLOs sent to the address since its last answer.
    pub hellos: u32,
}

#[derive(Clone, Debug, Serialize)]
pub struct RefusedJoin {
    /// Source address, which can be forged.
    pub address: SocketAddr,
    /// Configured name of the peer at this address; set by the caller of `Replica::status`.
    pub name: Option<Arc<str>>,
    /// Cause of the last refusal: [`DropCause::UnknownSecret`] or [`DropCause::BadJoin`].
    #[serde(serialize_with = "cause")]
    pub cause: DropCause,
    #[serde(serialize_with = "secret")]
    pub secret: SecretId,
    /// Time since the last refused join.
    #[serde(rename = "seconds_ago", serialize_with = "seconds")]
    pub ago: Duration,
    #[serde(skip)]
    pub last: Duration,
    pub count: u64,
}

/// Progress of requesting the sessions of the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WarmUp {
    /// The dump of all sessions has not been requested, because no peer is live or the first peer
    /// has only just become live.
    #[default]
    Waiting,
    /// A peer sends the requested sessions.
    Receiving,
    /// The dump of all sessions has ended, and no other dump is running.
    Done,
}

/// Omits causes whose count is zero.
impl Serialize for Drops {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let met = self.iter().filter(|(_, count)| *count > 0);
        let causes: BTreeMap<_, _> = met.map(|(cause, count)| (cause.label(), count)).collect();
        let mut to = to.serialize_struct("Drops", 3)?;
        to.serialize_field("replayed", &self.of(DropCause::Replayed))?;
        to.serialize_field("dropped", &self.sum())?;
        to.serialize_field("causes", &causes)?;
        to.end()
    }
}

fn state<S: Serializer>(state: &PeerState, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(state.label())
}

fn cause<S: Serializer>(cause: &DropCause, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(cause.label())
}

fn seconds<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(time.as_secs_f64())
}

fn boot<S: Serializer>(boot: &Boot, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{:016x}", boot.0))
}

fn secret<S: Serializer>(secret: &SecretId, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{:08x}", secret.0))
}

impl Drops {
    pub fn of(&self, cause: DropCause) -> u64 {
        self.0.get(cause as usize).copied().unwrap_or(0)
    }

    pub fn iter(&self) -> impl Iterator<Item = (DropCause, u64)> + '_ {
        DropCause::ALL.into_iter().zip(self.0)
    }

    pub fn sum(&self) -> u64 {
        self.0.iter().sum()
    }

    pub(super) fn note(&mut self, cause: DropCause) {
        if let Some(count) = self.0.get_mut(cause as usize) {
            *count += 1;
        }
    }
}

impl Default for Drops {
    fn default() -> Self {
        Self([0; DropCause::ALL.len()])
    }
}
