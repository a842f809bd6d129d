//! The only module of the load tool that reads the clocks.
//!
//! Latencies of tens of microseconds require a clock reading per event, not one per loop turn. A reading is a vDSO call
//! of about 25 ns.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

#[expect(
    clippy::disallowed_methods,
    reason = "the only reading of the monotonic clock"
)]
pub fn now() -> Instant {
    Instant::now()
}

#[expect(
    clippy::disallowed_methods,
    reason = "the only reading of the wall clock"
)]
pub fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
