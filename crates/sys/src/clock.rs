//! The clock that goes on while the machine sleeps.
//!
//! Source: clock_gettime(2), CLOCK_BOOTTIME. Like CLOCK_MONOTONIC, which `std` reads, it is never set and costs a call into the
//! vDSO; unlike that one it does not stand still in suspend.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Reads the time since the machine was started, in which it may have slept.
#[must_use]
pub fn since_boot() -> Duration {
    let read = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(read.tv_sec).unwrap_or_default();
    let nanoseconds = u32::try_from(read.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanoseconds)
}
