//! Intended start times of transactions in an open loop.
//!
//! Start times do not depend on the server. Each thread has an equal share of the rate. Thread `i` of `n` starts `i/n` of an
//! interval later, so that the starts of all threads together are evenly spaced.
//!
//! This module reads no clock: times are offsets from the start of the run.

use std::str::FromStr;
use std::time::Duration;

use becket_stats::units::{UnitError, parse_duration, parse_rate};
use serde::{Deserialize, Serialize};

/// Request rates that rise in equal steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ramp {
    from: f64,
    step: f64,
    /// Number of steps after the first one.
    more: u32,
    /// Duration of each step; `None` if the ramp argument contains none.
    pub length: Option<Duration>,
}

impl Ramp {
    pub fn rates(self) -> impl Iterator<Item = f64> {
        (0..=self.more).map(move |n| self.from + f64::from(n) * self.step)
    }

    fn read(text: &str) -> Option<Self> {
        let (rates, length) = match text.split_once(',') {
            Some((rates, length)) => (rates, Some(parse_duration(length).ok()?)),
            None => (text, None),
        };
        let (range, step) = rates.split_once('/')?;
        let (from, to) = range.split_once("..")?;
        let [from, to, step] = [from, to, step].map(|rate| parse_rate(rate).ok());
        let (from, step) = (from?, step?);
        // The small addition compensates for rounding, so that the last step is included.
        let more = (to? - from) / step + 1e-9;
        (0.0..MOST_STEPS as f64).contains(&more).then_some(Self {
            from,
            step,
            more: more as u32,
            length,
        })
    }
}

impl FromStr for Ramp {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let accepted = "a ramp (accepted: FROM..TO/STEP[,LENGTH], for example 1k..10k/500,5s; at most 200 steps)";
        Self::read(text).ok_or_else(|| UnitError::new(text, accepted))
    }
}

/// Maximum number of steps. It limits memory, because each thread stores histograms for each step.
pub const MOST_STEPS: usize = 200;

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stretch {
    /// Transactions per second, of all threads together.
    pub rate: f64,
    pub length: Duration,
}

/// One of `of` equal parts of a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Portion {
    /// From 0 to `of` - 1.
    pub index: usize,
    /// At least 1.
    pub of: usize,
}

impl Portion {
    pub const WHOLE: Self = Self { index: 0, of: 1 };

    /// Returns this part of a number. All parts together are the number.
    pub fn part(self, total: u64) -> u64 {
        let (index, of) = (self.index as u64, self.of as u64);
        total / of + u64::from(index < total % of)
    }
}

#[derive(Clone, Debug)]
pub struct Schedule {
    stretches: Vec<Stretch>,
    threads: f64,
    /// Delay of this thread's starts, as a fraction of the interval between them.
    offset: f64,
    began: Duration,
    /// Number of starts since the current rate began.
    made: u64,
}

impl Schedule {
    pub fn new(mut stretches: Vec<Stretch>, thread: usize, threads: usize) -> Self {
        stretches.reverse();
        let mut schedule = Self {
            stretches,
            threads: threads as f64,
            offset: thread as f64 / threads as f64,
            began: Duration::ZERO,
            made: 0,
        };
        schedule.skip_ended();
        schedule
    }

    /// Returns the next intended start as an offset from the start of the run; `None` after the last one.
    pub fn peek(&self) -> Option<Duration> {
        let rate = self.stretches.last()?.rate / self.threads;
        Some(self.began + Duration::from_secs_f64((self.made as f64 + self.offset) / rate))
    }

    pub fn advance(&mut self) {
        self.made += 1;
        self.skip_ended();
    }

    fn skip_ended(&mut self) {
        while let (Some(at), Some(stretch)) = (self.peek(), self.stretches.last())
            && at >= self.began + stretch.length
        {
            self.began += stretch.length;
            self.made = 0;
            self.stretches.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(rates: &[f64], thread: usize, threads: usize) -> Vec<Duration> {
        let length = Duration::from_secs(2);
        let stretches = rates.iter().map(|rate| Stretch {
            rate: *rate,
            length,
        });
        let mut schedule = Schedule::new(stretches.collect(), thread, threads);
        std::iter::from_fn(|| {
            let at = schedule.peek();
            schedule.advance();
            at
        })
        .collect()
    }

    #[test]
    fn the_starts_of_all_threads_are_evenly_spaced_at_the_requested_rate() {
        let mut all: Vec<Duration> = (0..3).flat_map(|t| starts(&[300.0], t, 3)).collect();
        all.sort();
        assert_eq!(all.len(), 600);
        for two in all.windows(2) {
            let gap = (two[1] - two[0]).as_secs_f64();
            assert!(gap > 0.0033 && gap < 0.0034);
        }
    }

    #[test]
    fn shares_are_a_whole() {
        for (total, of) in [(0, 1), (1, 3), (100, 7), (u64::MAX, 64)] {
            let parts = (0..of).map(|index| Portion { index, of }.part(total));
            let parts: Vec<u64> = parts.collect();
            assert_eq!(parts.iter().sum::<u64>(), total);
            let (most, least) = (parts.iter().max(), parts.iter().min());
            assert!(most.unwrap() - least.unwrap() <= 1);
        }
    }

    #[test]
    fn agents_with_different_numbers_of_threads_start_the_whole_rate() {
        for threads in [[1, 1, 1], [1, 2, 4]] {
            let of = threads.len();
            let all = threads.iter().enumerate().flat_map(|(index, threads)| {
                (0..*threads).flat_map(move |t| starts(&[300.0], t * of + index, threads * of))
            });
            let mut all: Vec<Duration> = all.collect();
            all.sort();
            assert_eq!(all.len(), 600, "{threads:?}");
            let one = starts(&[300.0], 0, 1);
            let same = all
                .iter()
                .zip(&one)
                .all(|(a, b)| a.abs_diff(*b) < Duration::from_nanos(9));
            assert!(same || threads == [1, 2, 4], "the same schedule");
        }
    }

    #[test]
    fn the_rate_changes_at_the_step() {
        let starts = starts(&[10.0, 100.0], 0, 1);
        let early = starts.iter().filter(|at| at.as_secs() < 2).count();
        assert_eq!((early, starts.len()), (20, 220));
    }
}
