//! A sweep checks every connection of a worker, a part in each turn.

use std::sync::Arc;
use std::time::Duration;

use super::listing::Killing;
use crate::backend::server_state::ServerState;

/// A sweep over all connections of a worker.
#[derive(Debug)]
pub(super) struct Sweep {
    pub(super) cause: SweepCause,
    /// Index of the next connection.
    pub(super) at: usize,
}

#[derive(Debug)]
pub(super) enum SweepCause {
    /// A server went out of service: its connections are closed, or connect to another server.
    ServerFailed(Arc<ServerState>),
    /// The process drains: its idle connections get a shorter timeout.
    Drain,
    /// Memory pressure: `left` connections with at least this idle time are closed.
    EndIdle { rest: Duration, left: usize },
    /// A new configuration has backends with `idle-reclaim`: idle connections to them are
    /// registered.
    FindRests,
    /// An operator closes the connections that match a filter.
    Killed(Killing),
}
