//! What workers and control share, listed once, and how they are brought up.
//!
//! | signal | what it does |
//! |---|---|
//! | SIGHUP | reload: prepare, then commit or discard |
//! | SIGUSR1 | reopen log files |
//! | SIGTERM | drain: take no new clients, finish, exit 0, or 3 at `timeouts.drain` |
//! | SIGINT | stop now, exit 0 |
//! | SIGUSR2 | unused, ignored |

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use becket_proto::session_table::SessionTable;

use crate::clock::Clock;
use crate::metrics::Counters;

/// Everything that more than one thread touches. Nothing else is shared, beside the mailboxes
/// and the bounded channels of the access log, which have one reader and one writer each.
#[derive(Debug)]
pub struct Shared {
    /// How many workers there are.
    pub workers: usize,
    /// The origin of all monotonic times.
    pub clock: Clock,
    /// TLS 1.2 sessions by ID: sharded, each shard with a lock of its own.
    pub table: Arc<SessionTable>,
    /// One per worker, written by it alone.
    pub counters: Vec<Arc<Counters>>,
    /// Connections in all, for `limits.connections`.
    connections: AtomicUsize,
}

impl Shared {
    /// Nothing has happened yet.
    pub fn new(workers: usize, clock: Clock, table: Arc<SessionTable>) -> Self {
        Self {
            workers,
            clock,
            table,
            counters: (0..workers).map(|_| Arc::default()).collect(),
            connections: AtomicUsize::new(0),
        }
    }

    /// Takes one of the connections that `limit` allows; false when there is none.
    pub fn claim_connection(&self, limit: usize) -> bool {
        let before = self.connections.fetch_add(1, Relaxed);
        if before >= limit {
            self.release_connection();
            return false;
        }
        true
    }

    /// Gives back what [`Self::claim_connection`] took.
    pub fn release_connection(&self) {
        self.connections.fetch_sub(1, Relaxed);
    }
}
