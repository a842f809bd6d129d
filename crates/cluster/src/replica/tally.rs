//! How many sessions of one peer may be in our table, without looking into the table.
//!
//! Each session that was taken is counted in a bucket by when it ends, and the bucket is forgotten when its time has
//! come. A session that left the table earlier stays counted, so the count is never too low, and too high by one bucket's
//! width in time at most besides.

use std::time::Duration;

pub(super) struct Tally {
    /// A ring: bucket `n % BUCKETS` counts what ends in the `n`-th width of time.
    buckets: [u32; BUCKETS as usize],
    /// Seconds per bucket.
    width: u64,
    /// The bucket of the present.
    at: u64,
    sum: usize,
}

impl Tally {
    /// Starts empty, for sessions that live up to `max_ttl`.
    pub(super) fn new(max_ttl: Duration) -> Self {
        Self {
            buckets: [0; BUCKETS as usize],
            width: max_ttl.as_secs() / (BUCKETS - 2) + 1,
            at: 0,
            sum: 0,
        }
    }

    /// How many sessions may be there.
    pub(super) fn sum(&mut self, now: Duration) -> usize {
        let at = now.as_secs() / self.width;
        for past in self.at..at.min(self.at.saturating_add(BUCKETS)) {
            let bucket = &mut self.buckets[(past % BUCKETS) as usize];
            self.sum -= std::mem::take(bucket) as usize;
        }
        self.at = self.at.max(at);
        self.sum
    }

    /// Counts a session. One that lives beyond the longest time is counted until then.
    pub(super) fn add(&mut self, now: Duration, ttl: Duration) {
        self.sum(now);
        let ends = now.saturating_add(ttl).as_secs() / self.width;
        let bucket = ends.clamp(self.at, self.at.saturating_add(BUCKETS - 1)) % BUCKETS;
        let count = &mut self.buckets[bucket as usize];
        if let Some(more) = count.checked_add(1) {
            *count = more;
            self.sum += 1;
        }
    }
}

const BUCKETS: u64 = 64;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn the_count_is_never_too_low_and_forgets_in_time(
            max_ttl in 1_u64..2000, steps in proptest::collection::vec((0_u64..50, 0_u64..2000), 1..200),
        ) {
            let mut tally = Tally::new(Duration::from_secs(max_ttl));
            let (mut now, mut ends) = (1000, Vec::new());
            let slack = max_ttl / 62 + 1;
            for (pass, ttl) in steps {
                now += pass;
                let ttl = ttl % max_ttl;
                tally.add(Duration::from_secs(now), Duration::from_secs(ttl));
                ends.push(now + ttl);
                let sum = tally.sum(Duration::from_secs(now));
                let alive = ends.iter().filter(|end| **end > now).count();
                let fading = ends.iter().filter(|end| **end + slack > now).count();
                prop_assert!(alive <= sum && sum <= fading, "{alive} <= {sum} <= {fading}");
            }
            prop_assert_eq!(tally.sum(Duration::from_secs(now + max_ttl + slack)), 0);
        }
    }
}
