//! State that workers and control share.
//!
//! [`SharedState`] has the state of one process that outlives a configuration. Outside of it, threads share the configuration and what is built with it
//! (keys, tokens, trials, docroots), ticket secrets, mailboxes, channels of the access log and, in a cluster, outboxes of new sessions.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use becket_proto::limits::SharedCount;
use becket_proto::session_table::SessionTable;
use becket_sys::clock::Clock;

use crate::backend::cancel::Cancels;
use crate::backend::registry::Backends;
use crate::memory::MemoryState;
use crate::metrics::Counters;
use becket_http::docroot::readers::Readers;
use becket_keys::signing::queue::SigningQueue;
use becket_tls::admission::SharedAdmission;

/// State that every worker and control can reach, whatever the configuration. A channel of the access log and an outbox are not here: each has
/// one writer and one reader.
#[derive(Debug)]
pub struct SharedState {
    /// How many workers there are.
    pub workers: usize,
    /// The origin of all monotonic times.
    pub clock: Clock,
    /// TLS 1.2 sessions by ID: sharded, each shard with a lock of its own.
    pub table: Arc<SessionTable>,
    /// TLS 1.3 sessions that admit early data, likewise; they never leave this process.
    pub early: Arc<SessionTable>,
    /// Backends and servers by name: connections they have, who waits for one.
    pub backends: Arc<Backends>,
    /// Cancels of PostgreSQL clients: many writers, a few a day.
    pub cancels: Arc<Cancels>,
    /// One per worker, written by it alone.
    pub counters: Vec<Arc<Counters>>,
    /// Full handshakes and connections by source; each call takes an atomic number or one shard's
    /// lock, and there is none where nothing is limited.
    pub admission: Arc<SharedAdmission>,
    /// Signatures that wait for a crypto thread: its lock is held to push or to pop one.
    pub signatures: Arc<SigningQueue>,
    /// Threads that wait for disks where files are served: its lock is held to push or to pop what they are to do.
    pub readers: Arc<Readers>,
    /// Lines of the log that were dropped.
    pub log_lines_dropped: Arc<AtomicU64>,
    /// Lines that the syslog daemon did not take.
    pub syslog_lines_dropped: Arc<AtomicU64>,
    /// Lines of the access log that were dropped.
    pub access_lines_dropped: Arc<AtomicU64>,
    /// How short memory is: written by control, read where clients are accepted.
    pub memory: MemoryState,
    /// Connections in all, for `limits.connections`.
    pub connections: SharedCount,
}

impl SharedState {
    /// Nothing has happened yet.
    pub fn new(
        workers: usize,
        clock: Clock,
        table: Arc<SessionTable>,
        early: Arc<SessionTable>,
    ) -> Self {
        Self {
            workers,
            clock,
            table,
            early,
            backends: Arc::default(),
            cancels: Arc::default(),
            counters: (0..workers).map(|_| Arc::default()).collect(),
            admission: Arc::new(SharedAdmission::new(workers)),
            signatures: Arc::new(SigningQueue::new(0, None)),
            readers: Arc::default(),
            log_lines_dropped: Arc::default(),
            syslog_lines_dropped: Arc::default(),
            access_lines_dropped: Arc::default(),
            memory: MemoryState::default(),
            connections: SharedCount::default(),
        }
    }

    /// Connections that are open now.
    pub fn connections(&self) -> usize {
        self.connections.count() as usize
    }

    /// Takes one of the connections that `limit` allows; false when there is none.
    pub fn claim_connection(&self, limit: usize) -> bool {
        self.connections
            .take(u32::try_from(limit).unwrap_or(u32::MAX))
    }

    /// Gives back what [`Self::claim_connection`] took.
    pub fn release_connection(&self) {
        self.connections.give_back();
    }
}
