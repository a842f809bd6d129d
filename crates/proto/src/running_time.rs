//! Running time of a loop: a monotonic clock that excludes stalls of the loop's thread.
//!
//! A stall is time in which the thread could not run, for example because the process was stopped, the virtual machine
//! had no CPU or the container was throttled. Measured with an ordinary clock, every client would exceed its timeout
//! after a stall.
//!
//! A loop knows how long it intended to sleep, and a step of its work takes at most [`LONGEST_STEP`]. Any time above
//! the sum of the two counts as a stall, as in HAProxy (`clock_update_local_date`). A stall during a long sleep cannot
//! be distinguished from the sleep. So the waiting time of a client that arrives during a sleep is measured from the
//! end of that sleep ([`RunningTime::since`]).
//!
//! Reads no clock. The loop calls [`RunningTime::advance`] whenever it reads its clock.

use std::time::Duration;

/// A clock that advances only while its loop runs or sleeps.
#[derive(Debug)]
pub struct RunningTime {
    read: Duration,
    now: Duration,
    since: Duration,
}

impl RunningTime {
    pub fn new(now: Duration) -> Self {
        Self {
            read: now,
            now,
            since: now,
        }
    }

    /// Advances the clock after a step of work and a sleep of at most `sleep`, and returns the running time. `read` is
    /// the current reading of the monotonic clock.
    pub fn advance(&mut self, read: Duration, sleep: Duration) -> Duration {
        let passed = read.saturating_sub(self.read);
        let counted = passed.min(sleep.saturating_add(LONGEST_STEP));
        self.read = self.read.max(read);
        self.now += counted;
        if counted < passed || !sleep.is_zero() {
            self.since = self.now;
        }
        self.now
    }

    /// Returns the time at which the latest sleep or stall of the loop ended.
    pub fn since(&self) -> Duration {
        self.since
    }
}

/// Maximum running time of a step. A longer step, for example building a large configuration, counts as this much.
const LONGEST_STEP: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    proptest! {
        /// The model separates the time into work, sleep and stalls.
        #[test]
        fn running_time_includes_work_and_sleep_and_at_most_one_step_per_stall(
            turns in prop::collection::vec((0..50_u64, 0..1000_u64, prop_oneof![3 => Just(0), 1 => 0..5000_u64]), 1..100),
        ) {
            let mut clock = RunningTime::new(ms(7));
            let (mut read, mut ran, mut stalls) = (ms(7), ms(7), 0);
            for (work, sleep, stall) in turns {
                read += ms(work);
                ran += ms(work);
                clock.advance(read, Duration::ZERO);
                read += ms(sleep + stall);
                ran += ms(sleep);
                stalls += u32::from(stall > 0);
                let now = clock.advance(read, ms(sleep));
                prop_assert!(now >= ran && now <= ran + LONGEST_STEP * stalls, "{now:?} of {ran:?}");
                prop_assert!(now <= read && (stalls > 0 || now == read));
                prop_assert!(ms(stall) <= LONGEST_STEP || clock.since() == now);
            }
        }
    }

    #[test]
    fn a_stall_within_a_turn_is_capped_to_one_step() {
        let mut clock = RunningTime::new(ms(1000));
        assert_eq!(clock.advance(ms(1010), ms(100)), ms(1010));
        assert_eq!(clock.advance(ms(1030), Duration::ZERO), ms(1030));
        assert_eq!(clock.since(), ms(1010));
        assert_eq!(clock.advance(ms(2530), Duration::ZERO), ms(1080));
        assert_eq!(clock.since(), ms(1080));
    }

    #[test]
    fn clock_jumps_advance_running_time_by_at_most_one_step() {
        let mut clock = RunningTime::new(ms(1000));
        assert_eq!(clock.advance(ms(10), Duration::ZERO), ms(1000));
        assert_eq!(clock.advance(ms(1000), Duration::ZERO), ms(1000));
        let late = clock.advance(Duration::MAX, Duration::ZERO);
        assert_eq!(late, ms(1050));
        assert_eq!(clock.advance(Duration::MAX, Duration::MAX), late);
    }
}
