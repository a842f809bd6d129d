//! A guaranteed share of one thread's time for work that otherwise comes last.
//!
//! Two kinds of work want a thread: the *first* goes first, the *second* when none of the first is
//! left. Where the first never ends, the second would never go; so it has a part of the time all
//! the same. It is paid for that by the time that the first takes while it leaves work behind, and
//! it spends what it has been paid. A single step may be longer than what it has: then it owes the
//! rest, and goes again once that is paid off. So in the long run it has its part, neither less nor
//! more, whatever its steps cost.
//!
//! Owns one number and reads no clock. In which order to use it: [`TimeShare::pay`] when the first kind
//! has had its time; the second kind if that said so; [`TimeShare::spend`] with what it took.

use std::time::Duration;

/// What the second kind of work may still take.
#[derive(Clone, Copy, Debug)]
pub struct TimeShare {
    /// Nanoseconds; below zero where a step took more than there was.
    credit: i64,
    /// The second kind is paid this part of the time that the first kind takes.
    part: i64,
    /// Most that is saved.
    most: i64,
}

impl TimeShare {
    /// Pays one nanosecond for `part` of the first kind's, and saves at most `most`: as much goes
    /// at once after a rest.
    pub const fn one_of(part: i64, most: Duration) -> Self {
        let most = most.as_nanos() as i64;
        Self {
            credit: most,
            part,
            most,
        }
    }

    /// The first kind has taken so much time, and `waits` says whether it wants more. Returns
    /// whether the second kind goes now.
    pub fn pay(&mut self, took: Duration, waits: bool) -> bool {
        let paid = nanos(took) / self.part;
        self.credit = self.credit.saturating_add(paid).min(self.most);
        if !waits {
            // Nobody is kept waiting, so nothing is owed.
            self.credit = self.credit.max(1);
        }
        self.credit > 0
    }

    /// The second kind has taken so much time.
    pub fn spend(&mut self, took: Duration) {
        let credit = self.credit.saturating_sub(nanos(took));
        self.credit = credit.max(-nanos(MOST_OWED));
    }
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// Longer than any step: what is beyond it was a process that stood still, or a clock that jumped.
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
    fn where_nobody_waits_the_second_goes_every_time_whatever_it_cost() {
        let mut share = TimeShare::one_of(4, MOST);
        for _ in 0..3 {
            assert!(share.pay(us(0), false));
            share.spend(Duration::from_secs(1));
        }
        assert!(!share.pay(us(800), true), "now somebody does");
    }

    #[test]
    fn a_clock_that_jumps_neither_overflows_nor_is_it_owed_or_saved_for_long() {
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
        /// Both kinds always have work. The first goes for a slice of four times the second's, or a
        /// step longer; the second for its slice and one expensive step.
        #[test]
        fn whatever_steps_cost_the_second_has_its_part_and_the_first_waits_for_one_slice_and_step(
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
                // At any time, not only in the end.
                let due = first / 4;
                prop_assert!(second <= due + MOST + longest, "{second:?} of {due:?}");
                prop_assert!(second + MOST + longest >= due, "{second:?} of {due:?}");
            }
        }
    }
}
