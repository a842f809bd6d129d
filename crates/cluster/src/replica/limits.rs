//! Limits on the cost of replication, which a peer, a flood or a large table could otherwise raise.

use std::time::Duration;

/// Limits of a [`Replica`](super::Replica). Each has a counter for the drops that it causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaLimits {
    /// Maximum number of addresses in the list of peers. Additional addresses are ignored and
    /// counted.
    pub addresses: usize,
    /// Maximum number of live peers. Each peer has its own queue.
    pub peers: usize,
    /// Maximum number of datagrams that one [`poll`](super::Replica::poll) sends. The caller should receive no more
    /// than this number between two polls.
    pub datagrams_per_turn: usize,
    /// Bytes of datagrams sent per second to all peers together. The excess waits in the queues. Joins and
    /// keep-alives are charged but never wait.
    pub bytes_per_second: u64,
    /// Bytes of dumps sent per second to joining nodes, included in `bytes_per_second`.
    pub sync_bytes_per_second: u64,
    /// Maximum bytes of records that wait for one peer. Further records are dropped and counted.
    pub queue_bytes: usize,
    /// HELLOs decrypted per second from all unlisted addresses together.
    pub hellos_per_second: u32,
    /// HELLOs decrypted per second from one address (IPv6: one /64), listed or not.
    pub hellos_per_source: u32,
    /// Time without a sent datagram after which a peer receives a keep-alive.
    pub keep_alive: Duration,
    /// Silence after which a peer is considered dead.
    pub dead_after: Duration,
    /// Age at which a new join replaces a pair and its keys are erased. An attacker that reads this
    /// node's memory can decrypt only the traffic recorded within this time. The default is many
    /// times [`dead_after`](Self::dead_after).
    pub rejoin_after: Duration,
}

impl Default for ReplicaLimits {
    /// Returns limits for a cluster of up to 64 nodes, each with a few thousand new sessions per
    /// second.
    fn default() -> Self {
        Self {
            addresses: 256,
            peers: 64,
            datagrams_per_turn: DATAGRAMS_PER_TURN,
            bytes_per_second: 32 * 1024 * 1024,
            // A quarter of `bytes_per_second`: new sessions have priority over dumps.
            sync_bytes_per_second: 8 * 1024 * 1024,
            queue_bytes: 256 * 1024,
            hellos_per_second: 32,
            hellos_per_source: 10,
            keep_alive: Duration::from_secs(5),
            dead_after: Duration::from_secs(16),
            rejoin_after: Duration::from_secs(3600),
        }
    }
}

/// Maximum number of datagrams to receive or send before other work runs. At a few microseconds each, a flood delays
/// that work by a millisecond.
pub const DATAGRAMS_PER_TURN: usize = 256;
