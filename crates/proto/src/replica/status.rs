//! What replication has counted and whom it knows: for `/status`, metrics and the log.
//!
//! All counters only grow. Whatever is dropped is counted under exactly one [`Cause`].

use std::net::SocketAddr;
use std::time::Duration;

use super::Boot;
use crate::ticket::{NodeId, SecretId};

/// Why a datagram, or a record in it, was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// A datagram that does not begin as ours do, or is too short to be one.
    Garbage,
    /// A datagram longer than any of ours.
    Oversized,
    /// A datagram of a version that is not spoken here.
    UnknownVersion,
    /// A datagram for a pair or a join that is not, or no longer, known: dropped without cryptography.
    UnknownKey,
    /// A datagram that came before, or a HELLO that its pair was already made of.
    Replayed,
    /// A datagram so far behind that it cannot be said whether it came before.
    TooOld,
    /// A datagram of a pair that does not open: damaged or forged.
    BadSeal,
    /// A join under a secret that is not accepted here.
    UnknownSecret,
    /// A join that does not open: damaged, forged, or under another secret of the same number.
    BadJoin,
    /// A HELLO beyond the rate of its source or of all.
    HelloLimited,
    /// A join that came back to the process that sent it.
    Own,
    /// A WELCOME that echoes another nonce than ours.
    WrongNonce,
    /// The first datagram of a pair did not echo our nonce.
    NotEchoed,
    /// A join, or a peer, beyond the limit of peers.
    TooManyPeers,
    /// An opened datagram whose text is not as this version writes it.
    Malformed,
    /// A record of a kind that is not known here; skipped.
    UnknownKind,
    /// A session of a policy that is not known here.
    UnknownPolicy,
    /// A session, or a client that sticks, beyond what one peer may have us keep.
    TooManyEntries,
    /// A record that the receiver of records had no use for.
    Unwanted,
    /// An offered record that does not fit into a datagram.
    TooLarge,
    /// An offered record for which a peer's queue had no room.
    QueueFull,
    /// A sealed datagram that the socket did not take.
    Unsent,
    /// The vault failed to make or seal something.
    VaultFailed,
    /// An address beyond the limit of addresses.
    TooManyAddresses,
}

/// How often each [`Cause`] was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drops([u64; Cause::ALL.len()]);

/// What one peer, or all together, sent and were sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Datagrams sent, joins included in the totals.
    pub datagrams_out: u64,
    /// Bytes of these.
    pub bytes_out: u64,
    /// Records sent.
    pub records_out: u64,
    /// Genuine datagrams received, each once.
    pub datagrams_in: u64,
    /// Bytes of these.
    pub bytes_in: u64,
    /// Records that the receiver of records took.
    pub records_in: u64,
    /// Datagrams that had not come when a later one came.
    pub missed: u64,
    /// Of these, how many came all the same. What is lost is `missed - late`.
    pub late: u64,
    /// What was dropped.
    pub drops: Drops,
}

/// Everything at one moment, as [`Replica::status`](super::Replica::status) shows it.
#[derive(Clone, Debug)]
pub struct Status {
    /// Our node.
    pub node: NodeId,
    /// This process.
    pub boot: Boot,
    /// Who is, or was until just now, a peer. Sorted by node.
    pub peers: Vec<PeerStatus>,
    /// Addresses of the list at which nobody has answered yet.
    pub unanswered: Vec<Unanswered>,
    /// Nodes of which two or more processes are alive: a mistake in the configuration. Our own node is among them if
    /// someone else uses its number.
    pub collisions: Vec<NodeId>,
    /// Who tried to join in vain: addresses of the list, then a bounded number of others, the latest last.
    pub refused: Vec<RefusedJoin>,
    /// How often an address that is not in the list was forgotten to make room for another.
    pub refused_left_out: u64,
    /// How far this node has come in getting what the others hold.
    pub warm_up: WarmUp,
    /// Of all peers together, those that are gone included, and of datagrams that belong to none.
    pub total: Traffic,
}

/// One peer.
#[derive(Clone, Debug)]
pub struct PeerStatus {
    /// Its node.
    pub node: NodeId,
    /// Its process.
    pub boot: Boot,
    /// Where we send to.
    pub address: SocketAddr,
    /// What it is to us.
    pub state: PeerState,
    /// The secret that the pair was made under.
    pub secret: SecretId,
    /// When it became a peer, on the caller's clock.
    pub since: Duration,
    /// When the last genuine datagram came.
    pub last_heard: Duration,
    /// How many sessions it said it holds.
    pub sessions_held: u32,
    /// Sessions counted against [`Limits::entries_per_peer`](super::Limits::entries_per_peer).
    pub entries: usize,
    /// Clients counted against [`Limits::sticks_per_peer`](super::Limits::sticks_per_peer).
    pub sticks: usize,
    /// Bytes of records that wait to be sent.
    pub queued_bytes: usize,
    /// Whether a dump of our sessions to it is under way.
    pub dumping: bool,
    /// What was exchanged with it.
    pub traffic: Traffic,
}

/// What a peer is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// Records are sent to it and taken from it.
    Live,
    /// Another process of the same node has taken its place; it is only listened to, for as long as it may live.
    Replaced,
    /// It said goodbye; shown for as long as a silent peer would be.
    Left,
}

/// An address of the list of peers at which nobody has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unanswered {
    /// The address.
    pub address: SocketAddr,
    /// It is our own: what we sent there came back to us.
    pub own: bool,
    /// HELLOs sent there since somebody last answered.
    pub hellos: u32,
}

/// Joins from one address that were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedJoin {
    /// Where they came from. Anyone can write any address there.
    pub address: SocketAddr,
    /// Why the last one was refused: [`Cause::UnknownSecret`] or [`Cause::BadJoin`].
    pub cause: Cause,
    /// The secret that the last one named.
    pub secret: SecretId,
    /// When the last one came.
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

impl Cause {
    /// Every cause, in order of declaration.
    pub const ALL: [Self; 24] = [
        Self::Garbage,
        Self::Oversized,
        Self::UnknownVersion,
        Self::UnknownKey,
        Self::Replayed,
        Self::TooOld,
        Self::BadSeal,
        Self::UnknownSecret,
        Self::BadJoin,
        Self::HelloLimited,
        Self::Own,
        Self::WrongNonce,
        Self::NotEchoed,
        Self::TooManyPeers,
        Self::Malformed,
        Self::UnknownKind,
        Self::UnknownPolicy,
        Self::TooManyEntries,
        Self::Unwanted,
        Self::TooLarge,
        Self::QueueFull,
        Self::Unsent,
        Self::VaultFailed,
        Self::TooManyAddresses,
    ];

    /// The name of the cause in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Garbage => "garbage",
            Self::Oversized => "oversized",
            Self::UnknownVersion => "unknown-version",
            Self::UnknownKey => "unknown-key",
            Self::Replayed => "replayed",
            Self::TooOld => "too-old",
            Self::BadSeal => "bad-seal",
            Self::UnknownSecret => "unknown-secret",
            Self::BadJoin => "bad-join",
            Self::HelloLimited => "hello-limited",
            Self::Own => "own",
            Self::WrongNonce => "wrong-nonce",
            Self::NotEchoed => "not-echoed",
            Self::TooManyPeers => "too-many-peers",
            Self::Malformed => "malformed",
            Self::UnknownKind => "unknown-kind",
            Self::UnknownPolicy => "unknown-policy",
            Self::TooManyEntries => "too-many-entries",
            Self::Unwanted => "unwanted",
            Self::TooLarge => "too-large",
            Self::QueueFull => "queue-full",
            Self::Unsent => "unsent",
            Self::VaultFailed => "vault-failed",
            Self::TooManyAddresses => "too-many-addresses",
        }
    }
}

impl Drops {
    /// How often a cause was met.
    pub fn of(&self, cause: Cause) -> u64 {
        self.0.get(cause as usize).copied().unwrap_or(0)
    }

    /// Every cause and how often it was met.
    pub fn iter(&self) -> impl Iterator<Item = (Cause, u64)> + '_ {
        Cause::ALL.into_iter().zip(self.0)
    }

    /// The sum over all causes.
    pub fn sum(&self) -> u64 {
        self.0.iter().sum()
    }

    pub(super) fn note(&mut self, cause: Cause) {
        if let Some(count) = self.0.get_mut(cause as usize) {
            *count += 1;
        }
    }
}

impl Default for Drops {
    fn default() -> Self {
        Self([0; Cause::ALL.len()])
    }
}

impl Traffic {
    /// Datagrams that were sent and never came.
    pub fn lost(&self) -> u64 {
        self.missed.saturating_sub(self.late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_is_listed_once_at_its_own_place() {
        for (place, cause) in Cause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, place);
        }
        let mut names = Cause::ALL.map(Cause::name);
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn a_drop_is_counted_under_its_cause_alone() {
        let mut drops = Drops::default();
        drops.note(Cause::TooManyAddresses);
        drops.note(Cause::Garbage);
        drops.note(Cause::Garbage);
        assert_eq!(drops.of(Cause::Garbage), 2);
        assert_eq!(drops.of(Cause::TooManyAddresses), 1);
        assert_eq!(drops.sum(), 3);
        assert_eq!(drops.iter().filter(|(_, count)| *count > 0).count(), 2);
    }
}
