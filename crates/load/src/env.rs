//! State that all slots of one thread share: the plan, scratch buffers and samples. A slot makes one connection after
//! another.
//!
//! Each thread owns its `Env`. Only two parts are shared between threads: the plan, which is immutable, and [`Live`],
//! whose counters this thread writes and the main thread reads once a second.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use crate::report::Negotiated;
use mio::Registry;

use crate::plan::Plan;
use crate::sample::Samples;
use crate::tls::Tls;

#[derive(Debug)]
pub struct Env {
    pub plan: Arc<Plan>,
    /// TLS client; `None` for a plain HTTP target.
    pub tls: Option<Tls>,
    pub registry: Registry,
    pub timeline: Timeline,
    /// Samples by step of the run. The last entry collects samples outside all steps, which are
    /// discarded.
    pub samples: Vec<Samples>,
    pub live: Arc<Live>,
    pub input: Vec<u8>,
    /// Encoded requests: the second is sent as the last request of a connection, the first before
    /// it.
    pub requests: [Vec<u8>; 2],
    /// Number of opened connections, which selects the next source address.
    pub opened: usize,
    /// TLS parameters of the last full handshake.
    pub negotiated: Option<Negotiated>,
}

impl Env {
    /// Returns the samples of a step; `None` selects the discarded samples.
    pub fn samples(&mut self, step: Option<usize>) -> &mut Samples {
        let outside = self.samples.len() - 1;
        let index = step.unwrap_or(outside).min(outside);
        // The index is valid, because the vector holds one entry more than there are steps and
        // never shrinks.
        &mut self.samples[index]
    }

    /// Returns the next request of a connection. `left` is the number of requests that the
    /// connection still sends.
    pub fn request(&self, left: u64) -> &[u8] {
        let [keep, last] = &self.requests;
        if left <= 1 { last } else { keep }
    }
}

#[derive(Clone, Debug)]
pub struct Timeline {
    pub begin: Instant,
    /// End times of the steps. Empty if the run ends after a number of transactions instead.
    pub ends: Vec<Instant>,
}

impl Timeline {
    /// Creates consecutive steps of these lengths, starting at `begin`.
    pub fn new(begin: Instant, lengths: &[Duration]) -> Self {
        let mut end = begin;
        let ends = lengths.iter().map(|length| {
            end += *length;
            end
        });
        let ends = ends.collect();
        Self { begin, ends }
    }

    /// Returns the index of the step that contains `at`; `None` outside all steps.
    pub fn step_of(&self, at: Instant) -> Option<usize> {
        if at < self.begin {
            return None;
        }
        if self.ends.is_empty() {
            return Some(0);
        }
        self.ends.iter().position(|end| at < *end)
    }

    /// Returns the end of the last step; `None` if the run ends after a number of transactions
    /// instead.
    pub fn end(&self) -> Option<Instant> {
        self.ends.last().copied()
    }
}

#[derive(Debug, Default)]
pub struct Live {
    pub completed: AtomicU64,
    pub failed: AtomicU64,
    pub busy: AtomicU64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn an_instant_belongs_to_at_most_one_step() {
        let begin = clock::now();
        let second = Duration::from_secs(1);
        let timeline = Timeline::new(begin, &[second, second]);
        assert_eq!(timeline.step_of(begin - second), None);
        assert_eq!(timeline.step_of(begin), Some(0));
        assert_eq!(timeline.step_of(begin + second), Some(1));
        assert_eq!(timeline.step_of(begin + second * 2), None);
        assert_eq!(
            Timeline::new(begin, &[]).step_of(begin + second * 9),
            Some(0)
        );
    }
}
