//! Shares of a worker's time.

use std::time::Duration;

use becket_proto::share::TimeShare;

#[derive(Debug)]
pub(super) struct Shares {
    /// Newcomers, while established connections have work.
    pub(super) newcomers: TimeShare,
    /// New clients that are not served at once, while signatures wait.
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

/// Between two looks at a kernel's queue in overload. Who comes to resume waits for so long.
pub(super) const GATHER: Duration = Duration::from_millis(2);
/// For newcomers, between two looks at the sockets. To look costs half a microsecond where nothing
/// has come; a request that comes meanwhile waits for half of this on average.
pub(super) const SLICE: Duration = Duration::from_micros(200);
