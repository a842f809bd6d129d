//! From counts and marks to the report.

use std::time::Duration;

use becket_stats::report::{Conditions, LoadReport, LoadStep, Negotiated};

use super::workers::Mark;
use crate::clock;
use crate::cpu::Spent;
use crate::negotiated;
use crate::plan::Plan;
use crate::sample::Samples;
use crate::summary::{self, Around};
use crate::worker::Harvest;

/// Puts together what the threads counted and what was read at the boundaries.
pub(super) fn assemble(
    plan: &Plan,
    marks: &[Mark],
    harvests: Vec<Harvest>,
    conditions: Conditions,
) -> LoadReport {
    let mut negotiated: Option<Negotiated> = None;
    let mut merged: Vec<Samples> = Vec::new();
    for harvest in harvests {
        negotiated = negotiated.or(harvest.negotiated);
        merged.resize_with(merged.len().max(harvest.samples.len()), Samples::default);
        merged
            .iter_mut()
            .zip(&harvest.samples)
            .for_each(|(into, from)| into.merge(from));
    }
    if let Some(negotiated) = negotiated
        .as_mut()
        .filter(|n| n.version == negotiated::TLS13)
    {
        let each = |tickets: u64, handshakes: u64| {
            (handshakes > 0).then(|| tickets as f64 / handshakes as f64)
        };
        let sum = |of: fn(&Samples) -> u64| merged.iter().map(of).sum::<u64>();
        negotiated.tickets_per_full = each(sum(|s| s.tickets_full), sum(|s| s.handshakes.full));
        negotiated.tickets_per_resumed =
            each(sum(|s| s.tickets_resumed), sum(|s| s.handshakes.resumed()));
    }
    let steps: Vec<LoadStep> = marks
        .windows(2)
        .zip(&merged)
        .enumerate()
        .map(|(index, (pair, samples))| summary::step(plan, index, samples, &around(plan, pair)))
        .collect();
    summary::report(plan, steps, negotiated, conditions)
}

/// What was spent between two boundaries. Rates go by where the boundaries lie; CPU times, which were
/// read a little later, are scaled to that.
fn around(plan: &Plan, pair: &[Mark]) -> Around {
    let [from, to] = pair else {
        return Around::default();
    };
    let seconds = to.at.saturating_duration_since(from.at).as_secs_f64();
    let read = to
        .read
        .saturating_duration_since(from.read)
        .as_secs_f64()
        .max(1e-9);
    let scale = |time: Duration| time.mul_f64(seconds / read);
    let spans = from.threads.iter().zip(&to.threads);
    let spans: Vec<(Duration, Duration)> = spans
        .map(|(from, to)| (to.0.saturating_sub(from.0), to.1.saturating_sub(from.1)))
        .collect();
    let busy = spans
        .iter()
        .map(|(ran, waited)| (*ran + *waited).as_secs_f64() / read);
    let server = to.server.since(from.server);
    Around {
        seconds,
        client: scale(spans.iter().map(|(ran, _)| *ran).sum()),
        busiest: busy.fold(0.0, f64::max).min(1.0),
        server: (!plan.options.measuring.pid.is_empty()).then(|| Spent {
            user: scale(server.user),
            system: scale(server.system),
        }),
    }
}

/// On what the run was made.
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
