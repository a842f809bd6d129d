//! Rates with bursts: a token bucket as one number.

use std::num::NonZeroU32;
use std::time::Duration;

/// Token rate per second, with a maximum burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Nanoseconds per token.
    interval: u64,
    /// A bucket holds a token if it will be full within this many nanoseconds.
    tolerance: u64,
}

impl Rate {
    /// Creates a rate; `burst` is the number of tokens in a full bucket.
    ///
    /// The interval is rounded down to whole nanoseconds per token: at 100 000 per second the error is
    /// at most 0.01 %. More than 1 000 000 000 per second means no limit.
    pub fn new(per_second: NonZeroU32, burst: NonZeroU32) -> Self {
        let interval = SECOND / u64::from(per_second.get());
        Self {
            interval,
            tolerance: interval.saturating_mul(u64::from(burst.get()) - 1),
        }
    }

    pub fn per_second(self) -> u64 {
        SECOND.checked_div(self.interval).unwrap_or(u64::MAX)
    }

    /// Tokens in a full bucket.
    pub fn burst(self) -> u64 {
        let more = self.tolerance.checked_div(self.interval);
        more.map_or(u64::MAX, |more| more.saturating_add(1))
    }

    /// Takes a token. Returns the changed bucket, or `None` if `bucket` holds no token.
    pub fn take(self, bucket: Bucket, now: Duration) -> Option<Bucket> {
        let now = nanos(now);
        let full_at = bucket.0.max(now);
        let has_one = full_at - now <= self.tolerance;
        has_one.then(|| Bucket(full_at.saturating_add(self.interval)))
    }

    pub fn has_one(self, bucket: Bucket, now: Duration) -> bool {
        self.take(bucket, now).is_some()
    }
}

/// A bucket: the time, in nanoseconds, at which it is full again. The default bucket is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket(pub u64);

impl Bucket {
    pub fn is_full(self, now: Duration) -> bool {
        self.0 <= nanos(now)
    }
}

/// Converts to nanoseconds; saturates after 584 years.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

const SECOND: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rate(per_second: u32, burst: u32) -> Rate {
        Rate::new(
            NonZeroU32::new(per_second).unwrap(),
            NonZeroU32::new(burst).unwrap(),
        )
    }

    #[test]
    fn extreme_times_do_not_overflow() {
        let rate = rate(1, u32::MAX);
        let bucket = rate.take(Bucket(u64::MAX), Duration::MAX).unwrap();
        assert_eq!(bucket, Bucket(u64::MAX));
        assert!(rate.take(Bucket(u64::MAX), Duration::ZERO).is_none());
    }

    proptest! {
        /// Model: a credit that grows with the clock up to a maximum.
        #[test]
        fn tokens_match_a_bucket_filled_by_the_clock(
            per_second in 1_u32..2000,
            burst in 1_u32..20,
            waits in proptest::collection::vec(0_u64..2_000_000_000, 1..200),
        ) {
            let rate = rate(per_second, burst);
            let (interval, most) = (SECOND / u64::from(per_second), u64::from(burst));
            let (mut bucket, mut now) = (Bucket::default(), 0_u64);
            let mut credit = interval * most;
            for wait in waits {
                // Often no wait at all, so that bursts run out.
                let wait = if wait % 3 == 0 { 0 } else { wait / u64::from(per_second) };
                now += wait;
                credit = (credit + wait).min(interval * most);
                let given = rate.take(bucket, Duration::from_nanos(now));
                prop_assert_eq!(given.is_some(), credit >= interval);
                if let Some(next) = given {
                    bucket = next;
                    credit -= interval;
                }
                prop_assert_eq!(bucket.is_full(Duration::from_nanos(now)), credit == interval * most);
            }
        }
    }
}
