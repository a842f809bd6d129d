//! The one place where the load tool reads the time.
//!
//! Latencies of some tens of microseconds need a reading per event, not per loop turn; the call is a
//! vDSO one of about 25 ns.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Reads the monotonic clock.
#[expect(
    clippy::disallowed_methods,
    reason = "the tool's one reading of the clock"
)]
pub fn now() -> Instant {
    Instant::now()
}

/// Reads the wall clock, as seconds since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "the tool's one reading of the wall clock"
)]
pub fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
