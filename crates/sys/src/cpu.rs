//! Reads the CPU time that processes have used so far.
//!
//! The difference of two readings is the CPU time of the work in between. On a shared machine, it
//! varies less than the elapsed time. `/proc` counts in ticks of 10 ms. Source: proc(5).

use std::fs;
use std::io;
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use rustix::param::clock_ticks_per_second;

/// Returns the CPU time of another process in steps of 10 ms: user and system time of all threads,
/// without children.
///
/// # Errors
/// `NotFound` if there is no such process; `InvalidData` if the kernel's line cannot be parsed.
pub fn time_of(pid: u32) -> io::Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse_stat(&stat, clock_ticks_per_second()).ok_or(io::ErrorKind::InvalidData.into())
}

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

/// Adds up fields 14 and 15 (utime, stime) of a line of `/proc/PID/stat`, in ticks.
fn parse_stat(stat: &str, ticks_per_second: u64) -> Option<Duration> {
    // Field 2 is the name in parentheses, which may itself contain spaces and parentheses.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut ticks = fields.split(' ').skip(11).map(str::parse::<u64>);
    let ticks = ticks.next()?.ok()?.checked_add(ticks.next()?.ok()?)?;
    let seconds = ticks.checked_div(ticks_per_second)?;
    // The remainder is less than a second, so the product fits.
    let nanoseconds = (ticks % ticks_per_second).checked_mul(1_000_000_000)? / ticks_per_second;
    Some(Duration::from_secs(seconds) + Duration::from_nanos(nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_system_ticks_add_up() {
        let stat =
            "42 (nginx: (w) 1) S 1 42 42 0 -1 4194624 100 0 0 0 1234 66 7 8 20 0 1 0 500 1000 20";
        assert_eq!(parse_stat(stat, 100), Some(Duration::from_secs(13)));
        assert_eq!(parse_stat(stat, 1000), Some(Duration::from_millis(1300)));
        assert_eq!(
            parse_stat("42 (x) S 1 42 42 0 -1 4 0 0 0 0 a 66", 100),
            None
        );
    }
}
