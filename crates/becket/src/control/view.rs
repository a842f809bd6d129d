//! What the admin pages may see of the running server.
//!
//! [`View`] is implemented by [`State`](super::state::State) and read by `admin`; the pages hold
//! nothing themselves. Every method is called on a thread of the pages, once per page, and must not
//! wait for a worker.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::certificates::Certificate;
use super::rotation::Standing;
use super::visits::Refusals;
use crate::backend::backend_state::BackendState;
use crate::cluster::status::ClusterStatus;
use crate::cluster::stud::reception::StudStatus;
use crate::config::Config;
use crate::log::Timestamp;
use crate::metrics::Counters;

/// The server as the admin pages see it.
pub trait View: Send + Sync + 'static {
    /// The configuration in use.
    fn config(&self) -> Arc<Config>;
    /// The counters of every worker, in the order of the workers.
    fn counters(&self) -> Vec<Arc<Counters>>;
    /// The states of the backends, in the order of the configuration.
    fn backends(&self) -> Vec<Arc<BackendState>>;
    /// What is neither configured nor counted.
    fn condition(&self) -> Condition;
    /// Whether it stopped accepting and finishes what it has. Takes no lock.
    fn is_draining(&self) -> bool;
    /// Visits of the pages that did not get what they were for; the pages count them here.
    fn refusals(&self) -> &Refusals;
}

/// What is neither configured nor counted.
#[derive(Clone, Debug)]
pub struct Condition {
    /// The time of this reading.
    pub now: Timestamp,
    /// When the process started.
    pub started: Timestamp,
    /// Since the process started, by the monotonic clock.
    pub uptime: Duration,
    /// Whether it stopped accepting and finishes what it has.
    pub draining: bool,
    /// The last reload; `None` before the first.
    pub reload: Option<Reload>,
    /// Lines of the log that were dropped.
    pub log_lines_dropped: u64,
    /// Lines of the access log that were dropped.
    pub access_lines_dropped: u64,
    /// The table of TLS 1.2 sessions.
    pub sessions: Occupancy,
    /// Sessions that admit early data.
    pub early_sessions: usize,
    /// The ticket keys.
    pub tickets: TicketKeys,
    /// Who is let in when more want to than can be served.
    pub admission: Admitted,
    /// Cancels of PostgreSQL clients that a server took, and those that could not be brought to one.
    pub cancels: (u64, u64),
    /// The cluster; `None` when sessions are not replicated.
    pub cluster: Option<ClusterStatus>,
    /// Sessions of stud and hitch; `None` where they are not received.
    pub stud: Option<StudStatus>,
    /// Every certificate in use; see [`certificates`](super::certificates::certificates).
    pub certificates: Arc<[Certificate]>,
}

/// How a reload went.
#[derive(Clone, Debug, Serialize)]
pub struct Reload {
    /// When it was tried.
    pub time: Timestamp,
    /// Why nothing was changed; empty if it succeeded.
    pub errors: Vec<String>,
}

/// How full a table is.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Occupancy {
    /// Entries in it.
    pub entries: usize,
    /// Entries it may hold; 0 is off.
    pub capacity: usize,
}

/// What admission counts, beside the reasons of connections that it ended.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Admitted {
    /// Full handshakes that have begun and not ended, where they are limited.
    pub full_handshakes_in_flight: u32,
    /// Sources that are tracked.
    pub sources: usize,
    /// Times that a client was not counted for its source, because the table was full.
    pub untracked: u64,
}

/// Where the rotation of ticket keys stands.
#[derive(Clone, Debug)]
pub struct TicketKeys {
    /// Epoch, node and secrets.
    pub standing: Standing,
    /// Until the next epoch.
    pub next_rotation: Duration,
}
