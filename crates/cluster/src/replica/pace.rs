//! Rate limiter with a burst: the generic cell rate algorithm in integers.
//!
//! A [`Pace`] stores the time until which its charges use up the rate. A charge may exceed the
//! burst; the next charge then waits longer.
//!
//! Source: ITU-T I.371, the virtual scheduling form.

use std::time::Duration;

/// Limits units, such as bytes, to `per_second`. A burst is limited to the units of the duration
/// `burst` at this rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    per_second: u64,
    burst: Duration,
    busy_until: Duration,
}

impl Pace {
    pub(super) fn new(per_second: u64, burst: Duration) -> Self {
        Self {
            per_second,
            burst,
            busy_until: Duration::ZERO,
        }
    }

    /// Returns whether units may pass now.
    pub(super) fn ready(&self, now: Duration) -> bool {
        self.when() <= now
    }

    /// Returns the time from which units may pass.
    pub(super) fn when(&self) -> Duration {
        self.busy_until.saturating_sub(self.burst)
    }

    pub(super) fn charge(&mut self, now: Duration, units: u64) {
        let nanos = units.saturating_mul(NANOS) / self.per_second.max(1);
        self.busy_until = self
            .busy_until
            .max(now)
            .saturating_add(Duration::from_nanos(nanos));
    }
}

const NANOS: u64 = 1_000_000_000;

/// Duration of a burst. Longer than the interval at which worker events are collected, so that a steady load is not
/// delayed.
pub(super) const BURST: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_immediately_and_the_rest_at_the_rate() {
        let mut pace = Pace::new(10, Duration::from_millis(900));
        let mut passed = 0;
        for tenth in 0..50 {
            let now = Duration::from_millis(tenth * 100);
            while pace.ready(now) {
                pace.charge(now, 1);
                passed += 1;
            }
        }
        assert_eq!(passed, 10 + 49);
    }

    #[test]
    fn a_charge_larger_than_the_burst_delays_the_next() {
        let mut pace = Pace::new(1000, Duration::from_millis(10));
        pace.charge(Duration::ZERO, 500);
        assert!(!pace.ready(Duration::from_millis(489)));
        assert_eq!(pace.when(), Duration::from_millis(490));
    }
}
