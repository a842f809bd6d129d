//! What replication has counted and whom it knows: for `/status`, metrics and the log.
//!
//! All counters only grow. Whatever is dropped is counted under exactly one [`DropCause`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use becket_proto::labelled;
use becket_proto::ticket::{NodeId, SecretId};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use super::names::Boot;

labelled! {
/// Why a datagram, or a record in it, was dropped.
pub enum DropCause {
    /// A datagram that does not begin as ours do, or is too short to be one.
    Garbage = "garbage",
    /// A datagram longer than any of ours.
    Oversized = "oversized",
    /// A datagram of a version that is not spoken here.
    UnknownVersion = "unknown-version",
    /// A datagram for a pair or a join that is not, or no longer, known: dropped without cryptography.
    UnknownKey = "unknown-key",
    /// A datagram that came before, or a HELLO that its pair was already made of.
    Replayed = "replayed",
    /// A datagram so far behind that it cannot be said whether it came before.
    TooOld = "too-old",
    /// A datagram of a pair that does not open: damaged or forged.
    BadSeal = "bad-seal",
    /// A join under a secret that is not accepted here.
    UnknownSecret = "unknown-secret",
    /// A join that does not open: damaged, forged, or under another secret of the same number.
    BadJoin = "bad-join",
    /// A HELLO beyond the rate of its source or of all.
    HelloLimited = "hello-limited",
    /// A join that came back to the process that sent it.
    Own = "own",
    /// A WELCOME that echoes another nonce than ours.
    WrongNonce = "wrong-nonce",
    /// The first datagram of a pair did not echo our nonce.
    NotEchoed = "not-echoed",
    /// A join, or a peer, beyond the limit of peers.
    TooManyPeers = "too-many-peers",
    /// An opened datagram whose text is not as this version writes it.
    Malformed = "malformed",
    /// A record of a kind that is not known here; skipped.
    UnknownKind = "unknown-kind",
    /// A session of a policy that is not known here.
    UnknownPolicy = "unknown-policy",
    /// A record that the receiver of records had no use for.
    Unwanted = "unwanted",
    /// An offered record that does not fit into a datagram.
    TooLarge = "too-large",
    /// An offered record for which a peer's queue had no room.
    QueueFull = "queue-full",
    /// A sealed datagram that the socket did not take.
    Unsent = "unsent",
    /// The vault failed to make or seal something.
    VaultFailed = "vault-failed",
    /// An address beyond the limit of addresses.
    TooManyAddresses = "too-many-addresses",
}
}

/// How often each [`DropCause`] was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drops([u64; DropCause::ALL.len()]);

/// What one peer, or all together, sent and were sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerTraffic {
    /// Datagrams sent, joins included in the totals.
    pub sent: u64,
    /// Bytes of these.
    pub sent_bytes: u64,
    /// Records sent.
    pub sent_records: u64,
    /// Genuine datagrams received, each once.
    pub received: u64,
    /// Bytes of these.
    pub received_bytes: u64,
    /// Records that were put to use.
    pub received_records: u64,
    /// Datagrams that had not come when a later one came.
    pub missed: u64,
    /// Of these, how many came all the same. What is lost is `missed - late`.
    pub late: u64,
    /// What was dropped.
    pub drops: Drops,
}

/// Everything at one moment, as [`Replica::status`](super::Replica::status) shows it. Its serialized form is a part of
/// `/status`: fields are added to it, never renamed.
#[derive(Clone, Debug, Serialize)]
pub struct ReplicaStatus {
    /// Our number among the nodes.
    #[serde(serialize_with = "node")]
    pub node: NodeId,
    /// This process.
    #[serde(serialize_with = "boot")]
    pub boot: Boot,
    /// How far this node has come in getting what the others hold.
    pub warm_up: WarmUp,
    /// Who is, or was until just now, a peer. Sorted by node.
    pub peers: Vec<PeerStatus>,
    /// Addresses of the list at which nobody has answered yet.
    pub unanswered: Vec<UnansweredAddress>,
    /// Nodes of which two or more processes are alive: a mistake in the configuration. Our own node is among them if
    /// someone else uses its number.
    #[serde(serialize_with = "nodes")]
    pub collisions: Vec<NodeId>,
    /// Who tried to join in vain: addresses of the list, then a bounded number of others, the latest last.
    pub refused: Vec<RefusedJoin>,
    /// How often an address that is not in the list was forgotten to make room for another.
    pub refused_left_out: u64,
    /// Of all peers together, those that are gone included, and of datagrams that belong to none.
    pub total: PeerTraffic,
}

/// One peer.
#[derive(Clone, Debug, Serialize)]
pub struct PeerStatus {
    /// What the configuration calls it; the caller knows.
    pub name: Option<Arc<str>>,
    /// Where we send to.
    pub address: SocketAddr,
    /// What it is to us.
    #[serde(serialize_with = "state")]
    pub state: PeerState,
    /// Its node.
    #[serde(serialize_with = "node")]
    pub node: NodeId,
    /// Its process.
    #[serde(serialize_with = "boot")]
    pub boot: Boot,
    /// The secret that the pair was made under.
    #[serde(serialize_with = "secret")]
    pub secret: SecretId,
    /// How long it has been a peer.
    #[serde(rename = "peer_for_seconds", serialize_with = "seconds")]
    pub peer_for: Duration,
    /// The time since the last genuine datagram.
    #[serde(rename = "heard_seconds_ago", serialize_with = "seconds")]
    pub heard_ago: Duration,
    /// How many sessions it said it holds.
    pub sessions_held: u32,
    /// Bytes of records that wait to be sent.
    pub queued_bytes: usize,
    /// Whether a dump of our sessions to it is under way.
    pub dumping: bool,
    /// What was exchanged with it.
    #[serde(flatten)]
    pub traffic: PeerTraffic,
}

labelled! {
/// What a peer is to us.
pub enum PeerState {
    /// Records are sent to it and taken from it.
    Live = "live",
    /// Another process of the same node has taken its place; it is only listened to, for as long as it may live.
    Replaced = "replaced",
    /// It said goodbye; shown for as long as a silent peer would be.
    Left = "left",
}
}

/// An address of the list of peers at which nobody has answered.
#[derive(Clone, Debug, Serialize)]
pub struct UnansweredAddress {
    /// The address.
    pub address: SocketAddr,
    /// What the configuration calls it; the caller knows.
    pub name: Option<Arc<str>>,
    /// It is our own: what we sent there came back to us.
    pub own: bool,
    /// HELLOs sent there since somebody last answered.
    pub hellos: u32,
}

/// Joins from one address that were refused.
#[derive(Clone, Debug, Serialize)]
pub struct RefusedJoin {
    /// Where they came from. Anyone can write any address there.
    pub address: SocketAddr,
    /// What the configuration calls it; the caller knows.
    pub name: Option<Arc<str>>,
    /// Why the last one was refused: [`DropCause::UnknownSecret`] or [`DropCause::BadJoin`].
    #[serde(serialize_with = "cause")]
    pub cause: DropCause,
    /// The secret that the last one named.
    #[serde(serialize_with = "secret")]
    pub secret: SecretId,
    /// The time since the last one came.
    #[serde(rename = "seconds_ago", serialize_with = "seconds")]
    pub ago: Duration,
    /// When the last one came.
    #[serde(skip)]
    pub last: Duration,
    /// How many came.
    pub count: u64,
}

/// How far a node has come in getting what the others hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WarmUp {
    /// No peer has been live yet, or it became so just now.
    #[default]
    Waiting,
    /// A peer was asked for its sessions and sends them.
    Receiving {
        /// The peer's node.
        from: NodeId,
        /// Sessions received so far.
        records: u64,
    },
    /// Nothing more is to be had.
    Done,
}

impl Serialize for WarmUp {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(match self {
            Self::Waiting => "waiting",
            Self::Receiving { .. } => "receiving",
            Self::Done => "done",
        })
    }
}

/// As what an operator wants to know: what was lost and dropped, and why, without causes that were not met.
impl Serialize for PeerTraffic {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut to = to.serialize_struct("PeerTraffic", 10)?;
        to.serialize_field("sent", &self.sent)?;
        to.serialize_field("sent_bytes", &self.sent_bytes)?;
        to.serialize_field("sent_records", &self.sent_records)?;
        to.serialize_field("received", &self.received)?;
        to.serialize_field("received_bytes", &self.received_bytes)?;
        to.serialize_field("received_records", &self.received_records)?;
        to.serialize_field("lost", &self.lost())?;
        to.serialize_field("replayed", &self.drops.of(DropCause::Replayed))?;
        to.serialize_field("dropped", &self.drops.sum())?;
        to.serialize_field("causes", &self.drops)?;
        to.end()
    }
}

impl Serialize for Drops {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let met = self.iter().filter(|(_, count)| *count > 0);
        to.collect_map(met.map(|(cause, count)| (cause.label(), count)))
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

fn node<S: Serializer>(node: &NodeId, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u16(node.0)
}

fn nodes<S: Serializer>(nodes: &[NodeId], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(nodes.iter().map(|node| node.0))
}

fn boot<S: Serializer>(boot: &Boot, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{:016x}", boot.0))
}

fn secret<S: Serializer>(secret: &SecretId, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{:08x}", secret.0))
}

impl Drops {
    /// How often a cause was met.
    pub fn of(&self, cause: DropCause) -> u64 {
        self.0.get(cause as usize).copied().unwrap_or(0)
    }

    /// Every cause and how often it was met.
    pub fn iter(&self) -> impl Iterator<Item = (DropCause, u64)> + '_ {
        DropCause::ALL.into_iter().zip(self.0)
    }

    /// The sum over all causes.
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

impl PeerTraffic {
    /// Datagrams that were sent and never came.
    pub fn lost(&self) -> u64 {
        self.missed.saturating_sub(self.late)
    }
}
