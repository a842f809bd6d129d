//! The outcome of a run on one machine, before percentiles: counts and histograms, which can be merged with those of
//! other machines.

use serde::{Deserialize, Serialize};

use crate::negotiated;
use crate::plan::Plan;
use crate::report::{Conditions, LoadReport, Negotiated};
use crate::sample::Samples;
use crate::summary::{self, Around};

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    pub steps: Vec<StepOutcome>,
    /// Parameters negotiated by a full handshake.
    pub negotiated: Option<Negotiated>,
    pub threads: usize,
    /// Machine and time of the run; after a merge, of the first one.
    pub conditions: Conditions,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepOutcome {
    pub samples: Samples,
    pub around: Around,
}

impl Outcome {
    /// Adds the outcome of another machine. A step lasts as long as on the slowest machine, and its busiest thread is that
    /// of all machines.
    pub fn merge(&mut self, other: Self) {
        if self.threads == 0 {
            self.conditions = other.conditions;
        }
        self.threads += other.threads;
        self.negotiated = self.negotiated.take().or(other.negotiated);
        let count = self.steps.len().max(other.steps.len());
        self.steps.resize_with(count, StepOutcome::default);
        for (into, from) in self.steps.iter_mut().zip(other.steps) {
            into.samples.merge(from.samples);
            into.around.seconds = into.around.seconds.max(from.around.seconds);
            into.around.client_s += from.around.client_s;
            into.around.busiest = into.around.busiest.max(from.around.busiest);
        }
    }

    /// Computes the report.
    pub fn report(mut self, plan: &Plan) -> LoadReport {
        if let Some(negotiated) = &mut self.negotiated
            && negotiated.version == negotiated::TLS13
        {
            let samples = || self.steps.iter().map(|step| &step.samples);
            let each = |tickets: fn(&Samples) -> u64, handshakes: fn(&Samples) -> u64| {
                let (tickets, handshakes): (u64, u64) = (
                    samples().map(tickets).sum(),
                    samples().map(handshakes).sum(),
                );
                (handshakes > 0).then(|| tickets as f64 / handshakes as f64)
            };
            negotiated.tickets_per_full = each(|s| s.tickets_full, |s| s.handshakes.full);
            negotiated.tickets_per_resumed =
                each(|s| s.tickets_resumed, |s| s.handshakes.resumed());
        }
        let steps = self.steps.iter().enumerate();
        let steps = steps
            .map(|(index, step)| summary::step(plan, index, &step.samples, &step.around))
            .collect();
        let mut report = summary::report(plan, steps, self.negotiated, self.conditions);
        report.plan.threads = self.threads;
        report
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::failure::Failure;

    fn record(samples: &mut Samples, nanos: u64) {
        samples.attempted += 1;
        samples.traffic.bytes_in += nanos % 65_536;
        if nanos.is_multiple_of(7) {
            samples.fail(Failure::TimeOut("connect".into()));
        } else if nanos.is_multiple_of(5) {
            samples.fail(Failure::Status(503));
        } else {
            samples.succeeded += 1;
            samples.latency.whole.record(Duration::from_nanos(nanos));
            samples.latency.late.record(Duration::from_nanos(nanos / 3));
        }
    }

    #[test]
    fn merged_outcomes_of_agents_are_the_outcome_of_the_union() {
        for seed in 0..50 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut union = Outcome::default();
            union.steps.resize_with(3, StepOutcome::default);
            let mut parts = vec![union.clone(); random.usize(1..6)];
            for _ in 0..random.usize(0..3_000) {
                let (step, part) = (random.usize(0..3), random.usize(0..parts.len()));
                let bits = random.u32(1..45);
                let nanos = random.u64(0..1 << bits);
                record(&mut union.steps[step].samples, nanos);
                record(&mut parts[part].steps[step].samples, nanos);
            }
            let mut merged = Outcome::default();
            for part in parts {
                let sent = serde_json::to_string(&part).unwrap();
                let received: Outcome = serde_json::from_str(&sent).unwrap();
                merged.merge(received);
            }
            for (merged, union) in merged.steps.iter().zip(&union.steps) {
                assert_eq!(merged.samples, union.samples, "seed {seed}");
                let summaries = [merged, union].map(|it| it.samples.latency.whole.summary());
                assert_eq!(summaries[0], summaries[1], "seed {seed}");
            }
        }
    }
}
