//! Limits the CPU time, memory and bandwidth that a peer, a flood or a large session table can
//! cost.

use std::time::Duration;

/// Limits of a [`Replica`](super::Replica). Drops caused by a limit are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaLimits {
    /// Maximum number of addresses in the list of peers. Additional addresses are ignored and
    /// counted.
    pub addresses: usize,
    /// Maximum number of live peers. Each peer has its own queue.
    pub peers: usize,
    /// Maximum number of datagrams that one [`poll`](super::Replica::poll) sends. The caller should receive at most
    /// this number of datagrams between two polls.
    pub datagrams_per_turn: usize,
    /// Maximum number of bytes sent per second to all peers together. Records wait in the queues until they fit. Joins
    /// and keep-alives count but never wait.
    pub bytes_per_second: u64,
    /// Bytes of dumps sent per second to joining nodes, included in `bytes_per_second`.
    pub sync_bytes_per_second: u64,
    /// Maximum number of bytes in the queue of one peer. Further records are dropped and counted.
    pub queue_bytes: usize,
    /// Maximum number of HELLOs decrypted per second from all unlisted addresses together.
    pub hellos_per_second: u32,
    /// Maximum number of HELLOs decrypted per second from one address (IPv6: one /64). Applies to listed and to
    /// unlisted addresses.
    pub hellos_per_source: u32,
    /// Time since the last datagram to a peer after which it receives a keep-alive.
    pub keep_alive: Duration,
    /// Time since the last datagram from a peer after which it counts as dead.
    pub dead_after: Duration,
    /// Age of a pair's keys at which a new join replaces and erases them. An attacker that reads
    /// this node's memory can decrypt only traffic recorded within this time. The default is many
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
            // This is a quarter of `bytes_per_second`, because new sessions have priority over
            // dumps.
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

/// Maximum number of datagrams that are received or sent in one turn, so that a flood delays other work by about a
/// millisecond.
pub const DATAGRAMS_PER_TURN: usize = 256;
