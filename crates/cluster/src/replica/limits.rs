//! How much replication may cost: every bound that a peer, a flood or a large table could otherwise stretch.

use std::time::Duration;

/// Bounds of a [`Replica`](super::Replica). Each has a counter for what it turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaLimits {
    /// Addresses that are kept of a list of peers; the rest is ignored and counted.
    pub addresses: usize,
    /// Peers that can be live at the same time, and joins under way: 32. Each live peer owns a queue.
    pub peers: usize,
    /// Datagrams that one [`poll`](super::Replica::poll) sends at most. The caller should receive no more between two
    /// polls either.
    pub datagrams_per_turn: usize,
    /// Bytes of datagrams sent per second, to all peers together. What is over waits in the queues. Joins and
    /// keep-alives are charged but never wait.
    pub bytes_per_second: u64,
    /// Of these, what dumps to joining nodes may use; 0 dumps nothing.
    pub sync_bytes_per_second: u64,
    /// Bytes of records that wait for one peer. What does not fit is dropped and counted.
    pub queue_bytes: usize,
    /// HELLOs opened per second from addresses that are not in the list of peers, all together.
    pub hellos_per_second: u32,
    /// HELLOs opened per second from one address (IPv6: one /64), in the list or not.
    pub hellos_per_source: u32,
    /// A peer that was sent nothing for so long is sent a keep-alive.
    pub keep_alive: Duration,
    /// A peer that was not heard for so long is dead.
    pub dead_after: Duration,
    /// A pair that is older is joined anew and its keys are erased, so that whoever gets at this node's memory opens no
    /// more than so much of what was recorded. Many times [`dead_after`](Self::dead_after).
    pub rejoin_after: Duration,
}

impl Default for ReplicaLimits {
    /// For a cluster of up to 64 nodes of which each makes a few thousand sessions per second.
    fn default() -> Self {
        Self {
            addresses: 256,
            peers: 64,
            datagrams_per_turn: DATAGRAMS_PER_TURN,
            bytes_per_second: 32 * 1024 * 1024,
            // A quarter: what is new goes before what is old.
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

/// Datagrams that are received or sent before other work gets its turn: at a few microseconds each, a flood delays that work
/// by a millisecond.
pub const DATAGRAMS_PER_TURN: usize = 256;
