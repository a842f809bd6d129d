//! The clocks, read once per turn of a loop. Everything below the loop takes [`Now`] as an argument, so that time is a value
//! in tests.
//!
//! The monotonic clock is the one that goes on in suspend: keys and sessions must not live longer because the machine slept,
//! and nobody at the other end waited for it either. A loop leaves the time in which it did not run out of [`Now::running`].
//!
//! Source: clock_gettime(2), CLOCK_BOOTTIME. Like CLOCK_MONOTONIC, which `std` reads, it is never set and costs a call into the
//! vDSO; unlike that one it does not stand still in suspend. libc makes the call: rustix asks the vDSO for getcpu(2) at the same
//! time, and panics where there is none, as in user-mode Linux 7.

use std::time::{Duration, Instant, SystemTime};

/// Reads clocks against the start of the process.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Duration,
    start: Instant,
}

impl Clock {
    /// Takes the origin of all monotonic times.
    #[expect(clippy::disallowed_methods, reason = "the one origin")]
    pub fn start() -> Self {
        Self {
            origin: since_boot(),
            start: Instant::now(),
        }
    }

    /// The monotonic clock alone, to see how long a part of a turn has taken: one call into the vDSO.
    pub fn mono(&self) -> Duration {
        since_boot().saturating_sub(self.origin)
    }

    /// Reads both clocks: two calls into the vDSO.
    #[expect(clippy::disallowed_methods, reason = "the one reading per turn")]
    pub fn now(&self) -> Now {
        let mono = self.mono();
        let unix = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Now {
            mono,
            running: mono,
            instant: self.start + mono,
            unix,
        }
    }
}

/// Measures across turns and threads, where the time of a turn is too coarse. Each reading is a call into
/// the vDSO: for what happens seldom.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts now.
    #[expect(clippy::disallowed_methods, reason = "a turn's time stands still")]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// How long ago it was started.
    pub fn elapsed(&self) -> Duration {
        Self::start().0.saturating_duration_since(self.0)
    }
}

/// The two clocks of a loop turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Monotonic, since the process started, the time in suspend included.
    pub mono: Duration,
    /// `mono` without the time in which the loop's thread did not run, where the loop leaves that out. Waiting times and
    /// deadlines are in it.
    pub running: Duration,
    /// The same, as an instant: for what compares instants, among themselves only.
    pub instant: Instant,
    /// Wall clock, since 1970.
    pub unix: Duration,
}

/// Reads the time since the machine was started, in which it may have slept.
#[must_use]
pub fn since_boot() -> Duration {
    read(libc::CLOCK_BOOTTIME)
}

/// Reads a clock that there is in every Linux.
pub(crate) fn read(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer describes `time`, which is all that the call writes to.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    assert_eq!(result, 0, "clock {clock} is there");
    duration(time)
}

/// A time as the kernel writes it; nothing where it is negative.
pub(crate) fn duration(time: libc::timespec) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanoseconds)
}
