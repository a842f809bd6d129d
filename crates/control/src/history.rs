//! The last hour in a ring buffer: data of the status page's plots, and of the rates in `/status`.
//!
//! Control adds a [`Moment`] every ten seconds, with the numbers of these ten seconds. 360 moments
//! take about 25 KiB.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::totals::Totals;
use becket_proxy::metrics::{AtomicHistogram, BUCKETS, Counters, quantile};

/// Numbers of one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Moment {
    /// Length of the interval.
    pub seconds: f64,
    /// Open connections at the end of the interval.
    pub connections: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Full handshakes.
    pub handshakes_full: u64,
    /// Resumed handshakes.
    pub handshakes_resumed: u64,
    /// Handshakes that failed because of the client.
    pub handshakes_failed: u64,
    /// Median handshake time; `None` without a handshake.
    pub handshake_p50_us: Option<u64>,
    /// 99th percentile of the handshake time.
    pub handshake_p99_us: Option<u64>,
}

/// The last hour.
#[derive(Debug)]
pub struct History {
    moments: VecDeque<Moment>,
    /// Time of the last moment.
    taken: Duration,
    totals: Totals,
    times: [u64; BUCKETS],
}

impl Default for History {
    fn default() -> Self {
        Self {
            moments: VecDeque::new(),
            taken: Duration::ZERO,
            totals: Totals::default(),
            times: [0; BUCKETS],
        }
    }
}

impl History {
    /// Adds a moment, if the interval has passed.
    pub fn tick(&mut self, counters: &[Arc<Counters>], now: Duration) {
        let passed = now.saturating_sub(self.taken);
        if passed < INTERVAL {
            return;
        }
        let totals = Totals::of(counters);
        let histograms = counters.iter();
        let histograms = histograms.flat_map(|it| [&it.handshake_full, &it.handshake_resumed]);
        let times = AtomicHistogram::gather(histograms).counts;
        let more = |of: fn(&Totals) -> u64| of(&totals).saturating_sub(of(&self.totals));
        let moment = Moment {
            seconds: passed.as_secs_f64(),
            connections: totals.connections,
            accepted: more(|totals| totals.accepted),
            handshakes_full: more(|totals| totals.handshakes_full),
            handshakes_resumed: more(|totals| totals.handshakes_resumed),
            handshakes_failed: more(|totals| totals.handshakes_failed),
            handshake_p50_us: quantile(&self.times, &times, 0.5),
            handshake_p99_us: quantile(&self.times, &times, 0.99),
        };
        if self.moments.len() == MOMENTS {
            self.moments.pop_front();
        }
        self.moments.push_back(moment);
        (self.taken, self.totals, self.times) = (now, totals, times);
    }

    /// Returns all moments, oldest first.
    pub fn moments(&self) -> Vec<Moment> {
        self.moments.iter().copied().collect()
    }
}

const INTERVAL: Duration = Duration::from_secs(10);
/// One hour.
const MOMENTS: usize = 360;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_what_came_since_the_one_before_and_an_hour_is_kept() {
        let counters: Vec<Arc<Counters>> = vec![Arc::default(), Arc::default()];
        let mut history = History::default();
        let at = Duration::from_secs;
        for second in 1..=20 {
            counters[0].accepted.add(1);
            counters[1].handshakes[0].add(1);
            counters[1].handshake_full.record(Duration::from_millis(1));
            history.tick(&counters, at(second));
        }
        let [first, second] = history.moments()[..] else {
            panic!("{:?}", history.moments());
        };
        assert_eq!((first.accepted, first.handshakes_full), (10, 10));
        assert_eq!((second.accepted, second.connections), (10, 20));
        assert!(second.handshake_p50_us.unwrap().abs_diff(1000) < 130);
        // Control was delayed, and nothing arrived.
        history.tick(&counters, at(45));
        let late = history.moments()[2];
        assert_eq!(
            (late.seconds, late.accepted, late.handshake_p99_us),
            (25.0, 0, None)
        );
        for number in 0..1000 {
            history.tick(&counters, at(60 + 10 * number));
        }
        assert_eq!(history.moments().len(), MOMENTS);
    }
}
