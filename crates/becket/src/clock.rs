//! The clocks, read once per turn of a worker's loop.
//!
//! Everything below the loop takes [`Now`] as an argument, so that time is a value in tests.

use std::time::{Duration, Instant, SystemTime};

use becket_proto::ticket::UnixSeconds;

/// Reads clocks against the start of the process.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// Takes the origin of all monotonic times.
    #[expect(clippy::disallowed_methods, reason = "the one origin")]
    pub fn start() -> Self {
        Self {
            origin: Instant::now(),
        }
    }

    /// The instant of a monotonic time of this process.
    pub fn instant(&self, mono: Duration) -> Instant {
        self.origin + mono
    }

    /// The monotonic clock alone, to see how long a part of a turn has taken: one call into the vDSO.
    pub fn mono(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Reads both clocks: two calls into the vDSO.
    #[expect(clippy::disallowed_methods, reason = "the one reading per turn")]
    pub fn now(&self) -> Now {
        let instant = Instant::now();
        let unix = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Now {
            mono: instant.saturating_duration_since(self.origin),
            instant,
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
    /// Monotonic, since the process started.
    pub mono: Duration,
    /// The same, as an instant.
    pub instant: Instant,
    /// Wall clock, since 1970.
    pub unix: Duration,
}

impl Now {
    /// The wall clock in whole seconds.
    pub fn unix_seconds(&self) -> UnixSeconds {
        UnixSeconds(self.unix.as_secs())
    }
}
