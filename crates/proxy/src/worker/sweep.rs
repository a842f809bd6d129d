//! A check of every connection of a worker.

use std::sync::Arc;
use std::time::Duration;

use super::listing::Killing;
use crate::backend::server_state::ServerState;

/// A sweep over all connections. Each turn does a part of it.
#[derive(Debug)]
pub(super) struct Sweep {
    pub(super) cause: SweepCause,
    /// Index of the next connection.
    pub(super) at: usize,
}

#[derive(Debug)]
pub(super) enum SweepCause {
    /// A server went out of service: its connections are closed or moved.
    ServerFailed(Arc<ServerState>),
    /// The process drains: idle connections get less time.
    Drain,
    /// Memory pressure: `left` connections with at least this idle time are closed.
    EndIdle { rest: Duration, left: usize },
    /// A new configuration may close idle connections for waiting clients.
    FindRests,
    /// An operator closes connections.
    Killed(Killing),
}
