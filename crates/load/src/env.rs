//! What all slots of one thread share: the plan, the scratch buffers, and what is written down.
//!
//! A thread owns its `Env`; nothing in it is shared but the plan (immutable) and [`Live`] (counters
//! that this thread writes and the main thread reads once a second).

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use becket_stats::report::Negotiated;
use mio::Registry;

use crate::plan::Plan;
use crate::sample::Samples;
use crate::tls::Tls;

/// The state that the slots of a thread share.
#[derive(Debug)]
pub struct Env {
    /// What is to be done.
    pub plan: Arc<Plan>,
    /// The TLS client.
    pub tls: Option<Tls>,
    /// Where sockets are registered.
    pub registry: Registry,
    /// When the steps begin and end.
    pub timeline: Timeline,
    /// One per step, and the last one for what lies outside of all steps.
    pub samples: Vec<Samples>,
    /// Counters for the line a second.
    pub live: Arc<Live>,
    /// What is read from a socket lands here first.
    pub input: Vec<u8>,
    /// The request that keeps a connection open, and the last one of a connection.
    pub requests: [Vec<u8>; 2],
    /// Connections begun, for walking through the sources.
    pub opened: usize,
    /// What the last full handshake agreed on.
    pub negotiated: Option<Negotiated>,
}

impl Env {
    /// Returns the samples of a step, or those that are thrown away.
    pub fn samples(&mut self, step: Option<usize>) -> &mut Samples {
        let outside = self.samples.len() - 1;
        let index = step.unwrap_or(outside).min(outside);
        // The vector is made with one more entry than there are steps and never shrinks.
        &mut self.samples[index]
    }

    /// Returns the request of a connection that has so many left, with this one.
    pub fn request(&self, left: u64) -> &[u8] {
        let [keep, last] = &self.requests;
        if left <= 1 { last } else { keep }
    }
}

/// When the measured steps begin and end.
#[derive(Clone, Debug)]
pub struct Timeline {
    begin: Instant,
    /// Ends of the steps; none when the run ends with a count.
    ends: Vec<Instant>,
}

impl Timeline {
    /// Lays out steps of these lengths, one after the other.
    pub fn new(begin: Instant, lengths: &[Duration]) -> Self {
        let mut end = begin;
        let ends = lengths.iter().map(|length| {
            end += *length;
            end
        });
        let ends = ends.collect();
        Self { begin, ends }
    }

    /// Returns the step that `at` lies in.
    pub fn step_of(&self, at: Instant) -> Option<usize> {
        if at < self.begin {
            return None;
        }
        if self.ends.is_empty() {
            return Some(0);
        }
        self.ends.iter().position(|end| at < *end)
    }

    /// Returns the end of the last step, if it is known.
    pub fn end(&self) -> Option<Instant> {
        self.ends.last().copied()
    }

    /// Returns the beginning of the first step.
    pub fn begin(&self) -> Instant {
        self.begin
    }

    /// Returns the ends of all steps.
    pub fn ends(&self) -> &[Instant] {
        &self.ends
    }
}

/// Counters that a thread publishes while it runs.
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
    fn a_moment_lies_in_one_step_or_in_none() {
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
