//! A look at every connection of a worker.

use std::sync::Arc;
use std::time::Duration;

use super::listing::Killing;
use crate::backend::server_state::ServerState;

/// Each turn does a part of it.
#[derive(Debug)]
pub(super) struct Sweep {
    pub(super) cause: SweepCause,
    /// The next place.
    pub(super) at: usize,
}

#[derive(Debug)]
pub(super) enum SweepCause {
    /// A server went out of service, and its connections end.
    ServerFailed(Arc<ServerState>),
    /// The process drains, and connections at rest get less time.
    Drain,
    /// Memory is short: `left` connections end that have been at rest for this time.
    EndIdle { rest: Duration, left: usize },
    /// A new configuration, with which connections at rest may end for waiting clients.
    FindRests,
    /// An operator ends connections.
    Killed(Killing),
}
