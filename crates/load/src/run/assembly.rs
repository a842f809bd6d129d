//! Builds the outcome from the samples of the threads and the readings at step boundaries.

use std::time::Duration;

use crate::report::{Conditions, Negotiated};

use super::workers::Mark;
use crate::clock;
use crate::outcome::{Outcome, StepOutcome};
use crate::plan::Plan;
use crate::sample::Samples;
use crate::summary::Around;
use crate::worker::Harvest;

/// Combines the samples of the threads with the readings at the step boundaries.
pub(super) fn assemble(
    plan: &Plan,
    marks: &[Mark],
    harvests: Vec<Harvest>,
    conditions: Conditions,
) -> Outcome {
    let mut negotiated: Option<Negotiated> = None;
    let mut merged: Vec<Samples> = Vec::new();
    let mut spent = Vec::new();
    for harvest in harvests {
        spent.push(harvest.spent);
        negotiated = negotiated.or(harvest.negotiated);
        merged.resize_with(merged.len().max(harvest.samples.len()), Samples::default);
        merged
            .iter_mut()
            .zip(harvest.samples)
            .for_each(|(into, from)| into.merge(from));
    }
    let steps = marks.windows(2).zip(merged).enumerate();
    let steps = steps.map(|(index, (pair, samples))| {
        let spent = spent
            .iter()
            .filter_map(|thread| thread.get(index..index + 2));
        let around = around(plan, pair, spent);
        StepOutcome { samples, around }
    });
    Outcome {
        steps: steps.collect(),
        negotiated,
        threads: plan.threads,
        conditions,
    }
}

/// Summarizes the period between two step boundaries. Rates use the exact time between the boundaries. The server's CPU
/// time is read slightly later and is scaled to this time.
fn around<'a>(
    plan: &Plan,
    pair: &[Mark],
    threads: impl Iterator<Item = &'a [(Duration, Duration)]>,
) -> Around {
    let [from, to] = pair else {
        return Around::default();
    };
    let seconds = (to.at - from.at).as_secs_f64();
    let read = (to.read - from.read).as_secs_f64().max(1e-9);
    let (mut client, mut busiest) = (Duration::ZERO, 0.0);
    for thread in threads {
        let [(ran, waited), (ran_then, waited_then)] = *thread else {
            continue;
        };
        let ran = ran_then.saturating_sub(ran);
        let waited = waited_then.saturating_sub(waited);
        client += ran;
        busiest = f64::max(busiest, (ran + waited).as_secs_f64() / seconds.max(1e-9));
    }
    let server = to.server.since(from.server);
    Around {
        seconds,
        client_s: client.as_secs_f64(),
        busiest: busiest.min(1.0),
        server: (!plan.options.measuring.pid.is_empty()).then(|| server.scaled(seconds / read)),
    }
}

pub(super) fn conditions(plan: &Plan) -> Conditions {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let model = read("/proc/cpuinfo");
    let model = model
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    Conditions {
        cpu: model.map_or("unknown", |(_, name)| name.trim()).to_owned(),
        cpus: becket_sys::affinity::allowed_cpus().map_or(0, |cpus| cpus.len()),
        pinned_to: (0..plan.threads)
            .filter_map(|thread| plan.cpu(thread))
            .collect(),
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        started_unix_s: clock::unix_seconds(),
    }
}
