//! Finds the highest rates of a ramp that meet the criteria of published articles: a low mean latency, or few losses.

use becket_load::report::LoadStep;

use super::capacity;
use super::stage::Stage;
use crate::result::Column;
use crate::{Error, figures};

/// Runs a ramp around the closed-loop rate. Adds the highest rate that meets each criterion to the sample of the first
/// round.
pub(super) fn put(stage: &Stage<'_>, index: usize, column: &mut Column) -> Result<(), Error> {
    let Some(about) = column.median(figures::RATE) else {
        return Ok(());
    };
    let rates: Vec<f64> = STEPS.iter().map(|share| about * share).collect();
    let ask = stage.ask(stage.servers[index].address, None);
    let report = capacity::climb(ask, stage, &rates, stage.effort.time)?;
    column.curve = report.steps.iter().map(capacity::point).collect();
    if report.steps.iter().all(|step| step.generator.bound) {
        column.note("the client was the bottleneck in the ramp: the marks are lower bounds");
    }
    if let Some(sample) = column.samples.first_mut() {
        marks(&report.steps, |name, rate| sample.put(name, rate));
    }
    Ok(())
}

fn marks(steps: &[LoadStep], mut put: impl FnMut(&str, f64)) {
    let mean_ms = |step: &LoadStep| step.latency.from_intended().mean_us / 1e3;
    let mut mark = |name, holds: &dyn Fn(&LoadStep) -> bool| {
        let held = steps
            .iter()
            .filter(|step| step.completed > 0 && holds(step));
        let rates = held.map(|step| step.rate_succeeded_per_s);
        if let Some(rate) = rates.reduce(f64::max) {
            put(name, rate);
        }
    };
    mark(figures::MARK_MOST, &|_| true);
    mark(figures::MARK_100, &|step| {
        mean_ms(step) < 100.0 && step.failed * 1000 <= step.attempted
    });
    mark(figures::MARK_500, &|step| mean_ms(step) < 500.0);
    mark(figures::MARK_LOST, &|step| {
        step.failed * 10_000 < step.attempted
    });
}

/// Rates of the ramp, as shares of the closed loops' rate.
const STEPS: &[f64] = &[0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.3];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mark_is_the_highest_rate_within_its_limit() {
        let step = |rate: f64, mean_us: f64, failed| {
            let mut step = LoadStep {
                rate_succeeded_per_s: rate,
                completed: 1,
                attempted: 10_000,
                failed,
                ..LoadStep::default()
            };
            step.latency.whole.mean_us = mean_us;
            step
        };
        // The marks of stud in the article are 766, 776, 783 and 788.
        let steps = [
            step(766.0, 90e3, 10),
            step(767.0, 90e3, 11),
            step(776.0, 400e3, 11),
            step(783.0, 600e3, 0),
            step(788.0, 900e3, 100),
            step(700.0, 1500e3, 3000),
        ];
        let mut found = Vec::new();
        marks(&steps, |_, rate| found.push(rate));
        assert_eq!(found, [788.0, 766.0, 776.0, 783.0]);
        marks(&[], |name, _| panic!("{name} without a step"));
    }
}
