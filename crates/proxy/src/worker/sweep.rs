//! A sweep, which checks every connection of a worker in parts, one part per turn.

use std::sync::Arc;
use std::time::Duration;

use super::listing::Killing;
use crate::backend::server_state::ServerState;

#[derive(Debug)]
pub(super) struct Sweep {
    pub(super) cause: SweepCause,
    pub(super) at: usize,
}

#[derive(Debug)]
pub(super) enum SweepCause {
    /// A server went out of service: its connections are closed, or connect to another server.
    ServerFailed(Arc<ServerState>),
    /// The process drains, so its idle connections expire after a shorter timeout.
    Drain,
    /// Memory is short: close `left` connections that have been idle for at least `rest`.
    EndIdle {
        rest: Duration,
        left: usize,
    },
    /// A new configuration has backends with `idle-reclaim`: idle connections to them are
    /// registered.
    FindRests,
    Killed(Killing),
}
