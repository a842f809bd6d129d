//! Reads the CPU time that child processes have used so far.
//!
//! The difference of two readings is the CPU time of the work in between. On a shared machine, it
//! varies less than the elapsed time. Source: getrusage(2).

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// Returns the CPU time of all child processes that have ended and been waited for, with their
/// children. The resolution is one microsecond.
pub fn of_ended_children() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) else {
        return Duration::ZERO;
    };
    let times = [usage.user_time(), usage.system_time()];
    let micros = times.iter().map(TimeValLike::num_microseconds);
    Duration::from_micros(micros.sum::<i64>().unsigned_abs())
}
