//! State that the workers and the control thread share.
//!
//! [`SharedState`] contains the part that does not depend on the configuration and stays when a
//! reload replaces it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use becket_proto::limits::SharedCount;
use becket_proto::own_line::OwnLine;
use becket_proto::session_table::SessionTable;
use becket_sys::clock::Clock;

use crate::backend::cancel::Cancels;
use crate::backend::registry::Backends;
use crate::memory::MemoryState;
use crate::metrics::Counters;
use becket_http::docroot::readers::Readers;
use becket_keys::key_cache::KeyCache;
use becket_keys::signing::queue::SigningQueue;
use becket_tls::admission::SharedAdmission;
use becket_tls::challenges::Challenges;

/// State that every worker and the control thread can access, independent of the configuration.
/// Access log channels and outboxes are not included, because each has one writer and one reader.
#[derive(Debug)]
pub struct SharedState {
    pub workers: usize,
    /// Clock from which all monotonic times of the process are read.
    pub clock: Clock,
    /// TLS 1.2 sessions by ID, in shards with one lock each.
    pub table: Arc<SessionTable>,
    /// TLS 1.3 sessions that allow early data, in shards with one lock each. They are not sent to
    /// peers.
    pub early: Arc<SessionTable>,
    pub backends: Arc<Backends>,
    /// Queue of cancel requests from PostgreSQL clients.
    pub cancels: Arc<Cancels>,
    /// Answers to ACME authorities, locked only for clients that only authorities resemble; and names
    /// for which certificates may be ordered.
    pub challenges: Arc<Challenges>,
    /// One set of counters per worker. Only that worker writes it.
    pub counters: Vec<Arc<Counters>>,
    /// Limits on full handshakes and connections per source address.
    pub admission: Arc<SharedAdmission>,
    /// Signature requests for the crypto threads. Its lock is held only to push or pop a request.
    pub signatures: Arc<SigningQueue>,
    /// Chains with parsed keys of the certificates in use. Its lock is held only while a chain is
    /// added.
    pub keys: Arc<KeyCache>,
    /// Threads that read served files from disk. The lock of their queue is held only to push or
    /// pop a job.
    pub readers: Arc<Readers>,
    pub lost_lines: LostLines,
    /// Current memory pressure, set by the control thread. Workers read it when they accept a
    /// client.
    pub memory: MemoryState,
    /// Number of open connections, limited by `limits.connections`.
    pub connections: OwnLine<SharedCount>,
}

/// Numbers of log lines that could not be written.
#[derive(Debug, Default)]
pub struct LostLines {
    pub log: Arc<AtomicU64>,
    /// Number of lines that the syslog daemon did not accept.
    pub syslog: Arc<AtomicU64>,
    pub access: Arc<AtomicU64>,
}

impl SharedState {
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
            challenges: Arc::default(),
            counters: (0..workers).map(|_| Arc::default()).collect(),
            admission: Arc::new(SharedAdmission::new(workers)),
            signatures: Arc::new(SigningQueue::new(0, None)),
            keys: Arc::default(),
            readers: Arc::default(),
            lost_lines: LostLines::default(),
            memory: MemoryState::default(),
            connections: OwnLine::default(),
        }
    }

    pub fn connections(&self) -> usize {
        self.connections.count() as usize
    }

    /// Counts a new connection, or returns `false` if `limit` connections are open.
    pub fn claim_connection(&self, limit: usize) -> bool {
        self.connections
            .take(u32::try_from(limit).unwrap_or(u32::MAX))
    }

    pub fn release_connection(&self) {
        self.connections.give_back();
    }
}
