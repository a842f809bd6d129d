//! Parts of a worker's time that are reserved for new clients.

use std::time::Duration;

use becket_proto::share::TimeShare;

#[derive(Debug)]
pub(super) struct Shares {
    /// Share of time for new clients while established connections have work: a fifth.
    pub(super) newcomers: TimeShare,
    /// Share of time for accepting and rejecting clients while signatures are pending: a tenth.
    pub(super) arrivals: TimeShare,
}

impl Shares {
    pub(super) const fn new() -> Self {
        Self {
            newcomers: TimeShare::one_of(4, SLICE.saturating_mul(2)),
            arrivals: TimeShare::one_of(9, SLICE.saturating_mul(5)),
        }
    }
}

/// Interval at which the worker checks the accept queues under overload.
pub(super) const GATHER: Duration = Duration::from_millis(2);
/// Maximum time for new clients between two polls of the sockets.
pub(super) const SLICE: Duration = Duration::from_micros(200);
