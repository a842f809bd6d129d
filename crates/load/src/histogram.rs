//! A histogram of durations.
//!
//! A thin wrapper around `hdrhistogram`: values are nanoseconds with three significant digits, and the
//! range grows on demand up to one hour. Recording never fails, since values beyond the range are clamped.
//! Each thread owns a histogram; they are merged at the end of the run.
//!
//! A [`Summary`] is the form in a report: percentiles in microseconds, and the distribution as buckets of
//! growing width, never only a mean.

use std::ops::AddAssign;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::report::{HistogramBucket, Summary};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "Vec<(u64, u64)>", from = "Vec<(u64, u64)>")]
pub struct Histogram {
    inner: hdrhistogram::Histogram<u64>,
}

impl Default for Histogram {
    /// Creates an empty histogram of about 16 KiB. It grows with the largest recorded value.
    fn default() -> Self {
        let Ok(mut inner) = hdrhistogram::Histogram::new(SIGNIFICANT_DIGITS) else {
            unreachable!("three digits are within what hdrhistogram accepts")
        };
        inner.auto(true);
        Self { inner }
    }
}

impl Histogram {
    /// Records one duration. Takes a few nanoseconds; allocates only when the range grows.
    pub fn record(&mut self, value: Duration) {
        let recorded = self.inner.record(nanos(value));
        debug_assert!(
            recorded.is_ok(),
            "clamped values fit an auto-resizing histogram"
        );
    }

    pub fn count(&self) -> u64 {
        self.inner.len()
    }

    /// Returns the number of values from `low` to `high`, both inclusive.
    pub fn count_between(&self, low: Duration, high: Duration) -> u64 {
        self.inner.count_between(nanos(low), nanos(high))
    }

    pub fn summary(&self) -> Summary {
        let us = |nanos: u64| nanos as f64 / 1_000.0;
        let at = |quantile: f64| us(self.inner.value_at_quantile(quantile));
        if self.count() == 0 {
            return Summary::default();
        }
        Summary {
            count: self.count(),
            min_us: us(self.inner.min()),
            mean_us: self.inner.mean() / 1_000.0,
            p50_us: at(0.50),
            p90_us: at(0.90),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: us(self.inner.max()),
            buckets: self.buckets(),
        }
    }

    fn buckets(&self) -> Vec<HistogramBucket> {
        self.inner
            .iter_log(BUCKET_START_NANOS, BUCKET_GROWTH)
            .filter(|step| step.count_since_last_iteration() > 0)
            .map(|step| HistogramBucket {
                up_to_us: step.value_iterated_to() as f64 / 1_000.0,
                count: step.count_since_last_iteration(),
            })
            .collect()
    }
}

impl From<Histogram> for Vec<(u64, u64)> {
    /// Returns each recorded value in nanoseconds, as precise as the histogram, with its count.
    fn from(histogram: Histogram) -> Self {
        let recorded = histogram.inner.iter_recorded();
        recorded
            .map(|step| (step.value_iterated_to(), step.count_at_value()))
            .collect()
    }
}

impl From<Vec<(u64, u64)>> for Histogram {
    fn from(values: Vec<(u64, u64)>) -> Self {
        let mut histogram = Self::default();
        for (value, count) in values.into_iter().filter(|(_, count)| *count > 0) {
            let recorded = histogram
                .inner
                .record_n(value.clamp(1, LARGEST_NANOS), count);
            debug_assert!(recorded.is_ok(), "clamped values fit");
        }
        histogram
    }
}

impl AddAssign for Histogram {
    fn add_assign(&mut self, other: Self) {
        let added = self.inner.add(&other.inner);
        debug_assert!(added.is_ok(), "both resize");
    }
}

/// Returns a duration in nanoseconds, clamped to the range of a histogram.
fn nanos(duration: Duration) -> u64 {
    let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    nanos.clamp(1, LARGEST_NANOS)
}

const SIGNIFICANT_DIGITS: u8 = 3;
/// One hour, longer than any timeout of the load tool.
const LARGEST_NANOS: u64 = 3_600_000_000_000;
/// Buckets of a report begin at one microsecond. Each is a quarter wider than the previous one: about ten per decade.
const BUCKET_START_NANOS: u64 = 1_000;
const BUCKET_GROWTH: f64 = 1.25;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_keep_three_digits() {
        let mut histogram = Histogram::default();
        for n in 1..=10_000u64 {
            histogram.record(Duration::from_micros(n));
        }
        let summary = histogram.summary();
        assert!((summary.p50_us - 5_000.0).abs() < 10.0, "{summary:?}");
        assert!((summary.p999_us - 9_990.0).abs() < 20.0, "{summary:?}");
        assert_eq!(summary.count, 10_000);
        assert_eq!(summary.buckets.iter().map(|b| b.count).sum::<u64>(), 10_000);
    }

    #[test]
    fn an_absurd_value_is_clamped_and_counted() {
        let mut histogram = Histogram::default();
        histogram.record(Duration::from_secs(1 << 40));
        histogram.record(Duration::ZERO);
        assert_eq!(histogram.count(), 2);
    }
}
