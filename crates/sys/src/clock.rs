//! Clocks that an event loop reads once per turn. Code that the loop calls receives the time as an argument ([`Now`]),
//! so tests can choose the time.
//!
//! The monotonic clock is CLOCK_BOOTTIME, which is never set. It also counts the time in which the machine is
//! suspended, so that keys and sessions do not live longer after a suspend. [`Now::running`] can exclude the time in
//! which the loop did not run, because peers did not wait during that time.
//!
//! A reading is a call into the vDSO. libc makes the call, because rustix also looks for getcpu(2) in the vDSO and
//! panics if it is missing, as in user-mode Linux 7. Source: clock_gettime(2).

use std::time::{Duration, Instant, SystemTime};

#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Duration,
    start: Instant,
}

impl Clock {
    /// Sets the origin of all monotonic times.
    #[expect(clippy::disallowed_methods, reason = "the one origin")]
    pub fn start() -> Self {
        Self {
            origin: since_boot(),
            start: Instant::now(),
        }
    }

    /// Reads only the monotonic clock. This needs one call into the vDSO instead of two.
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

/// Measures durations across turns and threads. Each reading is a call into the vDSO, so use it only for rare events.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "a turn's time stands still")]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    pub fn elapsed(&self) -> Duration {
        Self::start().0.saturating_duration_since(self.0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Monotonic time since the process started, including time in suspend.
    pub mono: Duration,
    /// Monotonic time for waits and deadlines. The loop may exclude periods in which its thread did not run.
    pub running: Duration,
    /// `mono` as an `Instant`, for libraries that use this type.
    pub instant: Instant,
    /// Wall-clock time since 1970.
    pub unix: Duration,
}

/// Returns the time since the machine booted, including time in suspend.
#[must_use]
pub fn since_boot() -> Duration {
    read(libc::CLOCK_BOOTTIME)
}

/// Returns the user and system time of all threads of this process.
#[must_use]
pub fn cpu_time() -> Duration {
    read(libc::CLOCK_PROCESS_CPUTIME_ID)
}

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

/// Converts a time of the kernel; negative parts become zero.
pub(crate) fn duration(time: libc::timespec) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanoseconds)
}
