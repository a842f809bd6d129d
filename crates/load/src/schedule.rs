//! When transactions are meant to start: the schedule of an open loop.
//!
//! Starts do not depend on the server. Each thread has a share of the rate; thread `i` of `n` starts
//! `i/n` of an interval later, so that together they are evenly spaced. Arrivals are constant, or a
//! Poisson process (exponential gaps) from a seed that the report names.
//!
//! Pure: times are offsets from the start of the run.

use std::time::Duration;

use fastrand::Rng;

/// How starts are spaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Arrivals {
    /// Evenly.
    Constant,
    /// As independent events: bursts and gaps at the same mean rate.
    Poisson,
}

/// A stretch of constant rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stretch {
    /// Transactions per second of all threads together.
    pub rate: f64,
    /// How long it lasts.
    pub length: Duration,
}

/// The intended starts of one thread.
#[derive(Clone, Debug)]
pub struct Schedule {
    stretches: Vec<Stretch>,
    arrivals: Arrivals,
    threads: f64,
    /// This thread's fraction of an interval.
    offset: f64,
    random: Rng,
    current: usize,
    /// When the current stretch began.
    began: Duration,
    /// Starts made in the current stretch (constant arrivals).
    made: u64,
    next: Option<Duration>,
}

impl Schedule {
    /// Makes the schedule of thread `thread` of `threads`.
    pub fn new(
        stretches: Vec<Stretch>,
        arrivals: Arrivals,
        thread: usize,
        threads: usize,
        seed: u64,
    ) -> Self {
        let mut schedule = Self {
            stretches,
            arrivals,
            threads: threads as f64,
            offset: thread as f64 / threads as f64,
            random: Rng::with_seed(seed ^ (thread as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            current: 0,
            began: Duration::ZERO,
            made: 0,
            next: None,
        };
        schedule.step_from(Duration::ZERO);
        schedule
    }

    /// Returns the next intended start, as an offset from the start of the run; none at the end.
    pub fn peek(&self) -> Option<Duration> {
        self.next
    }

    /// Goes on to the start after the next.
    pub fn advance(&mut self) {
        if let Some(last) = self.next {
            self.step_from(last);
        }
    }

    fn step_from(&mut self, last: Duration) {
        let mut from = last;
        while let Some(stretch) = self.stretches.get(self.current) {
            let rate = stretch.rate / self.threads;
            let at = match self.arrivals {
                Arrivals::Constant => {
                    self.began + Duration::from_secs_f64((self.made as f64 + self.offset) / rate)
                }
                Arrivals::Poisson => {
                    // An exponentially distributed number of mean 1.
                    let gap = -(1.0 - self.random.f64()).ln();
                    from + Duration::from_secs_f64(gap / rate)
                }
            };
            if at < self.began + stretch.length {
                self.made += 1;
                self.next = Some(at);
                return;
            }
            self.began += stretch.length;
            from = self.began;
            self.current += 1;
            self.made = 0;
        }
        self.next = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(schedule: &mut Schedule) -> Vec<Duration> {
        let mut starts = Vec::new();
        while let Some(at) = schedule.peek() {
            starts.push(at);
            schedule.advance();
        }
        starts
    }

    fn stretch(rate: f64, seconds: u64) -> Stretch {
        Stretch {
            rate,
            length: Duration::from_secs(seconds),
        }
    }

    #[test]
    fn threads_together_start_evenly_and_exactly_as_many_as_asked() {
        let mut all: Vec<Duration> = (0..3)
            .flat_map(|t| {
                starts(&mut Schedule::new(
                    vec![stretch(300.0, 2)],
                    Arrivals::Constant,
                    t,
                    3,
                    0,
                ))
            })
            .collect();
        all.sort();
        assert_eq!(all.len(), 600);
        let gaps = all.windows(2).map(|two| two[1] - two[0]);
        assert!(
            gaps.into_iter()
                .all(|gap| gap.as_secs_f64() > 0.0033 && gap.as_secs_f64() < 0.0034)
        );
    }

    #[test]
    fn a_ramp_changes_its_rate_at_the_step() {
        let mut schedule = Schedule::new(
            vec![stretch(10.0, 1), stretch(100.0, 1)],
            Arrivals::Constant,
            0,
            1,
            0,
        );
        let starts = starts(&mut schedule);
        let early = starts
            .iter()
            .filter(|at| **at < Duration::from_secs(1))
            .count();
        assert_eq!((early, starts.len()), (10, 110));
    }

    #[test]
    fn poisson_arrivals_have_the_rate_and_the_spread_of_their_kind() {
        let mut schedule = Schedule::new(vec![stretch(1000.0, 20)], Arrivals::Poisson, 0, 1, 42);
        let starts = starts(&mut schedule);
        assert!((19_500..20_500).contains(&starts.len()), "{}", starts.len());
        let gaps: Vec<f64> = starts
            .windows(2)
            .map(|two| (two[1] - two[0]).as_secs_f64())
            .collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!(
            (variance.sqrt() / mean - 1.0).abs() < 0.05,
            "an exponential's deviation is its mean"
        );
    }
}
