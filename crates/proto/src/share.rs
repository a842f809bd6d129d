//! Guarantees low-priority work a share of a thread's time.
//!
//! A thread has high-priority work, called *first*, and low-priority work, called *second*. The second kind runs when
//! no first work waits. It must also progress when first work always waits, so it earns credit while the first kind
//! runs, and may run while it has credit. A step of the second kind may take longer than the credit; the debt is then
//! paid off before the next step. In the long run, the second kind gets exactly its share, whatever the cost of its
//! steps.
//!
//! Reads no clock. Order of use: call [`TimeShare::pay`] after first work; run second work if the result is `true`;
//! call [`TimeShare::spend`] with the time that it took.

use std::time::Duration;

/// Time credit that guarantees lower-priority work a part of a thread's time.
#[derive(Clone, Copy, Debug)]
pub struct TimeShare {
    /// Credit in nanoseconds; negative after a step that took longer than the credit.
    credit: i64,
    /// Low-priority work earns 1 / `part` of the running time of high-priority work.
    part: i64,
    most: i64,
}

impl TimeShare {
    /// Creates a share of 1 / `part`: low-priority work earns the running time of high-priority
    /// work divided by `part`. The credit starts at `most`, its maximum.
    pub const fn one_of(part: i64, most: Duration) -> Self {
        let most = most.as_nanos() as i64;
        Self {
            credit: most,
            part,
            most,
        }
    }

    /// Records that high-priority work ran for `took`. `waits` is `true` if more of it waits.
    /// Returns `true` if low-priority work may run now.
    pub fn pay(&mut self, took: Duration, waits: bool) -> bool {
        let paid = nanos(took) / self.part;
        self.credit = self.credit.saturating_add(paid).min(self.most);
        if !waits {
            // No high-priority work waits, so low-priority work may run even if it has a debt.
            self.credit = self.credit.max(1);
        }
        self.credit > 0
    }

    /// Records that low-priority work ran for `took`.
    pub fn spend(&mut self, took: Duration) {
        let credit = self.credit.saturating_sub(nanos(took));
        self.credit = credit.max(-nanos(MOST_OWED));
    }
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// Maximum debt. It is longer than any real step: if more time was measured, the process was stopped or the clock
/// jumped.
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
