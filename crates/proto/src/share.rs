//! A guaranteed share of a thread's time for work of lower priority.
//!
//! A thread has two kinds of work: the *first* has priority, and the *second* runs when no first
//! work is left. If the first work never ended, the second would never run, so the second has a
//! guaranteed part of the time. The second kind earns credit while the first kind runs and leaves
//! work waiting, and spends this credit. A single step may take longer than the credit; the second
//! kind then pays off its debt before it runs again. In the long run it gets its part, neither less
//! nor more, whatever its steps cost.
//!
//! Owns one number and reads no clock. Order of use: call [`TimeShare::pay`] after the first kind has
//! run; run the second kind if that returned `true`; call [`TimeShare::spend`] with its time.

use std::time::Duration;

/// Time credit that guarantees lower-priority work a part of a thread's time.
#[derive(Clone, Copy, Debug)]
pub struct TimeShare {
    /// Credit in nanoseconds; negative after a step that took longer than the credit.
    credit: i64,
    /// Divisor: work without priority earns the running time of priority work divided by this
    /// number.
    part: i64,
    most: i64,
}

impl TimeShare {
    /// Creates a credit of `most`, which is also its maximum. Work of the second kind (without
    /// priority) earns the running time of the first kind divided by `part`.
    pub const fn one_of(part: i64, most: Duration) -> Self {
        let most = most.as_nanos() as i64;
        Self {
            credit: most,
            part,
            most,
        }
    }

    /// Records that work of the first kind (with priority) took `took`; `waits` is `true` if more
    /// of it waits. Returns whether work of the second kind may run now.
    pub fn pay(&mut self, took: Duration, waits: bool) -> bool {
        let paid = nanos(took) / self.part;
        self.credit = self.credit.saturating_add(paid).min(self.most);
        if !waits {
            // No priority work waits, so any debt is cancelled.
            self.credit = self.credit.max(1);
        }
        self.credit > 0
    }

    /// Records that work of the second kind (without priority) took `took`.
    pub fn spend(&mut self, took: Duration) {
        let credit = self.credit.saturating_sub(nanos(took));
        self.credit = credit.max(-nanos(MOST_OWED));
    }
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// Maximum debt, longer than any step: a longer time means a stopped process or a clock that jumped.
const MOST_OWED: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MOST: Duration = Duration::from_micros(200);

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    #[test]
    fn the_second_kind_of_work_always_runs_if_the_first_is_idle() {
        let mut share = TimeShare::one_of(4, MOST);
        for _ in 0..3 {
            assert!(share.pay(us(0), false));
            share.spend(Duration::from_secs(1));
        }
        assert!(!share.pay(us(800), true), "now somebody does");
    }

    #[test]
    fn clock_jumps_neither_overflow_nor_leave_a_large_balance() {
        let mut share = TimeShare::one_of(4, MOST);
        assert!(share.pay(Duration::MAX, true));
        share.spend(Duration::MAX);
        share.spend(Duration::MAX);
        assert!(!share.pay(us(800), true));
        assert!(share.pay(4 * MOST_OWED, true));
        assert!(share.pay(Duration::MAX, true));
        share.spend(MOST);
        assert!(!share.pay(us(0), true));
    }

    proptest! {
        /// Both kinds always have work. The first kind runs for a slice of four times the second's, or one
        /// step longer; the second kind runs for its slice and one expensive step.
        #[test]
        fn the_second_task_receives_its_share_within_one_slice_and_step(
            steps in prop::collection::vec((0..50_u64, 0..5_000_u64), 200..400),
        ) {
            let mut share = TimeShare::one_of(4, MOST);
            let (mut first, mut second) = (Duration::ZERO, Duration::ZERO);
            let longest = MOST + us(5_000);
            for (over, expensive) in steps {
                let took = 4 * MOST + us(over);
                first += took;
                if share.pay(took, true) {
                    let took = MOST + us(expensive);
                    prop_assert!(took <= longest);
                    second += took;
                    share.spend(took);
                }
                // At any time, not only at the end.
                let due = first / 4;
                prop_assert!(second <= due + MOST + longest, "{second:?} of {due:?}");
                prop_assert!(second + MOST + longest >= due, "{second:?} of {due:?}");
            }
        }
    }
}
