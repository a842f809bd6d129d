//! Shares of a worker's time.

use std::time::Duration;

use becket_proto::share::TimeShare;

#[derive(Debug)]
pub(super) struct Shares {
    /// Share of new clients while established connections have work.
    pub(super) newcomers: TimeShare,
    /// Share of new clients that cannot be served at once, while signatures are pending.
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

/// Time between two checks of the backlog in overload. A resuming client waits at most this long.
pub(super) const GATHER: Duration = Duration::from_millis(2);
/// Time for new clients between two checks of the sockets. A check without events costs half a
/// microsecond. A request that arrives meanwhile waits for half of this time on average.
pub(super) const SLICE: Duration = Duration::from_micros(200);
