//! Decides when to use the store, and when to try to connect to it. Has no clock: the time is an argument.
//!
//! The breaker is closed while the store works. [`MOST_FAILURES`] failures in succession open it. Then the store is not
//! used until an attempt succeeds: the first attempt is after [`FIRST_WAIT`], and each opening doubles the wait, up to
//! [`LONGEST_WAIT`]. The wait is short again after the breaker has been closed for [`CALM`]. So a store that works only
//! now and then costs few handshakes and few log lines.

use std::time::Duration;

#[derive(Debug)]
pub struct Breaker {
    state: BreakerState,
    wait: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BreakerState {
    Closed { since: Duration, failures: u32 },
    Open { until: Duration },
}

impl Breaker {
    /// Creates an open breaker whose first attempt is due at `now`.
    pub fn new(now: Duration) -> Self {
        Self {
            state: BreakerState::Open { until: now },
            wait: FIRST_WAIT,
        }
    }

    pub fn is_closed(&self) -> bool {
        matches!(self.state, BreakerState::Closed { .. })
    }

    /// Returns the time of the next attempt to connect; `None` while the breaker is closed.
    pub fn next_attempt(&self) -> Option<Duration> {
        match self.state {
            BreakerState::Closed { .. } => None,
            BreakerState::Open { until } => Some(until),
        }
    }

    /// Closes the breaker after a successful attempt.
    pub fn handle_connected(&mut self, now: Duration) {
        self.state = BreakerState::Closed {
            since: now,
            failures: 0,
        };
    }

    /// Counts a use of the store that succeeded. A late one is ignored while the breaker is open.
    pub fn handle_success(&mut self) {
        if let BreakerState::Closed { failures, .. } = &mut self.state {
            *failures = 0;
        }
    }

    /// Counts a failed use of the store. Returns `true` if this opens the breaker.
    pub fn handle_failure(&mut self, now: Duration) -> bool {
        let BreakerState::Closed { failures, .. } = &mut self.state else {
            return false;
        };
        *failures += 1;
        let opens = *failures >= MOST_FAILURES;
        if opens {
            self.open(now);
        }
        opens
    }

    /// Opens the breaker at once, because the connection cannot be used any more, or after a failed attempt.
    pub fn open(&mut self, now: Duration) {
        if let BreakerState::Closed { since, .. } = self.state
            && now.saturating_sub(since) >= CALM
        {
            self.wait = FIRST_WAIT;
        }
        self.state = BreakerState::Open {
            until: now.saturating_add(self.wait),
        };
        self.wait = (self.wait * 2).min(LONGEST_WAIT);
    }
}

/// Number of failures in succession after which the store is not used.
pub const MOST_FAILURES: u32 = 5;
/// Wait before the first attempt to connect again; a restarted server needs about this time.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// Time without an opening after which the wait is short again.
const CALM: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Wait(u16),
        Success,
        Failure,
        Attempt(bool),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            any::<u16>().prop_map(Step::Wait),
            Just(Step::Success),
            Just(Step::Failure),
            any::<bool>().prop_map(Step::Attempt),
        ];
        proptest::collection::vec(step, 0..400)
    }

    proptest! {
        /// The model counts failures in succession, and bounds the rate of openings.
        #[test]
        fn the_breaker_opens_after_failures_in_succession(steps in steps()) {
            let mut now = Duration::ZERO;
            let mut breaker = Breaker::new(now);
            let (mut row, mut closed) = (0, false);
            for step in steps {
                match step {
                    Step::Wait(millis) => now += Duration::from_millis(millis.into()),
                    Step::Success => {
                        breaker.handle_success();
                        row = 0;
                    }
                    Step::Failure => {
                        row += u32::from(closed);
                        let opens = closed && row == MOST_FAILURES;
                        prop_assert_eq!(breaker.handle_failure(now), opens);
                        closed &= !opens;
                    }
                    Step::Attempt(succeeds) => {
                        let Some(at) = breaker.next_attempt().filter(|at| *at <= now) else {
                            continue;
                        };
                        prop_assert!(at <= now);
                        if succeeds {
                            breaker.handle_connected(now);
                            (row, closed) = (0, true);
                        } else {
                            breaker.open(now);
                        }
                    }
                }
                prop_assert_eq!(breaker.is_closed(), closed);
                if let Some(at) = breaker.next_attempt() {
                    prop_assert!(at <= now + LONGEST_WAIT);
                }
            }
        }
    }

    #[test]
    fn waits_double_and_are_short_again_after_a_calm_time() {
        let mut breaker = Breaker::new(Duration::ZERO);
        let mut now = Duration::ZERO;
        let fail = |breaker: &mut Breaker, now: Duration| {
            breaker.handle_connected(now);
            let opened = (0..MOST_FAILURES).filter(|_| breaker.handle_failure(now));
            assert_eq!(opened.count(), 1);
            breaker.next_attempt().unwrap() - now
        };
        assert_eq!(fail(&mut breaker, now), FIRST_WAIT);
        assert_eq!(fail(&mut breaker, now), 2 * FIRST_WAIT);
        for _ in 0..10 {
            fail(&mut breaker, now);
        }
        assert_eq!(fail(&mut breaker, now), LONGEST_WAIT);
        breaker.handle_connected(now);
        now += CALM;
        for _ in 1..MOST_FAILURES {
            assert!(!breaker.handle_failure(now));
        }
        assert!(breaker.handle_failure(now));
        assert_eq!(breaker.next_attempt(), Some(now + FIRST_WAIT));
    }
}
