//! Converts samples to the report.

use serde::{Deserialize, Serialize};

use crate::report::{
    Conditions, Generator, Latencies, LoadReport, LoadStep, Negotiated, SCHEMA_VERSION, ServerCpu,
};
use becket_stats::units::{show_count, show_rate, show_us};

use crate::cpu::Spent;
use crate::findings;
use crate::plan::{Load, Plan};
use crate::sample::Samples;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Around {
    /// Wall-clock duration of the step in seconds.
    pub seconds: f64,
    /// CPU time of all client threads in seconds.
    pub client_s: f64,
    /// Portion of wall time in which the busiest thread ran or waited for a CPU.
    pub busiest: f64,
    /// CPU time of the server, if its process ID is known.
    #[serde(skip)]
    pub server: Option<Spent>,
}

pub fn step(plan: &Plan, index: usize, samples: &Samples, around: &Around) -> LoadStep {
    let seconds = around.seconds.max(1e-9);
    let asked = match &plan.load {
        Load::Open(stretches) => stretches.get(index).map(|stretch| stretch.rate),
        _ => None,
    };
    let each = |cpu_s: f64| (samples.completed > 0).then(|| cpu_s * 1e6 / samples.completed as f64);
    let failed = samples.failed();
    let mut generator = Generator {
        cpu_s: around.client_s,
        cpu_us_per_transaction: each(around.client_s),
        busiest_thread: around.busiest,
        late_start_p99_us: asked.map(|_| samples.latency.late.summary().p99_us),
        bound: false,
    };
    generator.bound = is_bound(&generator);
    let server = around.server.map(|spent| ServerCpu {
        pids: plan.options.measuring.pid.clone(),
        cpu_s: spent.total().as_secs_f64(),
        user_s: spent.user.as_secs_f64(),
        cpus_used: spent.total().as_secs_f64() / seconds,
        cpu_us_per_transaction: each(spent.total().as_secs_f64()),
    });
    let server_is_busy = server
        .as_ref()
        .is_some_and(|it| it.cpus_used >= BUSY_SERVER);
    let busy = generator.bound || server_is_busy;
    LoadStep {
        rate_asked_per_s: asked,
        seconds: around.seconds,
        attempted: samples.attempted,
        succeeded: samples.succeeded,
        failed,
        unfinished: (samples.attempted)
            .saturating_sub(samples.succeeded)
            .saturating_sub(failed),
        rate_succeeded_per_s: samples.completed as f64 / seconds,
        completed: samples.completed,
        traffic: samples.traffic.clone(),
        handshakes: samples.handshakes.clone(),
        failures: samples
            .failures
            .iter()
            .map(|(kind, count)| (kind.to_string(), *count))
            .collect(),
        latency: latencies(plan, samples, asked.is_some()),
        generator,
        server,
        findings: findings::of(samples, busy),
    }
}

pub fn report(
    plan: &Plan,
    steps: Vec<LoadStep>,
    negotiated: Option<Negotiated>,
    conditions: Conditions,
) -> LoadReport {
    LoadReport {
        schema: SCHEMA_VERSION,
        tool: concat!("becket-load ", env!("CARGO_PKG_VERSION")).to_owned(),
        target: plan.target.to_string(),
        plan: plan.describe(),
        conditions,
        negotiated,
        verdict: verdict(&steps),
        steps,
        interrupted: false,
        agents: Vec::new(),
    }
}

fn latencies(plan: &Plan, samples: &Samples, open: bool) -> Latencies {
    Latencies {
        connect: samples.latency.connect.summary(),
        handshake_full: samples.latency.handshake_full.summary(),
        handshake_resumed: samples.latency.handshake_resumed.summary(),
        first_byte: samples.latency.first_byte.summary(),
        answered: samples.latency.answered.summary(),
        since_queued: plan
            .options
            .connection
            .since_queued
            .then(|| samples.latency.since_queued.summary()),
        whole: samples.latency.whole.summary(),
        whole_corrected: open.then(|| samples.latency.corrected.summary()),
    }
}

/// Returns `true` if the client was the bottleneck: a thread was never idle, or transactions started late on a busy
/// thread.
fn is_bound(generator: &Generator) -> bool {
    let late = generator
        .late_start_p99_us
        .is_some_and(|us| us > LATE_START_US);
    generator.busiest_thread >= BUSY || (late && generator.busiest_thread >= BUSY_AND_LATE)
}

pub fn verdict(steps: &[LoadStep]) -> String {
    if steps.len() > 1 && steps.iter().any(|step| step.completed > 0) {
        return ramp_verdict(steps);
    }
    let best = steps
        .iter()
        .max_by(|a, b| a.rate_succeeded_per_s.total_cmp(&b.rate_succeeded_per_s));
    let Some(best) = best else {
        return "nothing was measured".to_owned();
    };
    if best.completed == 0 {
        let kinds = match best.failure_kinds() {
            kinds if kinds.is_empty() => "none ended in time".to_owned(),
            kinds => kinds,
        };
        return format!("no transaction succeeded ({kinds})");
    }
    let rate = show_rate(best.rate_succeeded_per_s);
    if best.generator.bound {
        return format!(
            "generator-bound, at least {rate}: the client was the bottleneck; give it more threads (-t) or other CPUs (--cpus)"
        );
    }
    let whole = best.latency.from_intended();
    let failed = match best.failed {
        0 => "none failed".to_owned(),
        n => format!("{} of {} failed", show_count(n), show_count(best.attempted)),
    };
    format!(
        "{rate}; median latency {}, 99th percentile {}; {failed}",
        show_us(whole.p50_us),
        show_us(whole.p99_us)
    )
}

/// Returns the verdict of a run with rising rates: the highest rate that the server sustained.
fn ramp_verdict(steps: &[LoadStep]) -> String {
    let asked = |step: &LoadStep| show_rate(step.rate_asked_per_s.unwrap_or_default());
    let held = steps
        .iter()
        .take_while(|step| shortfall(step).is_none())
        .count();
    let highest = held.checked_sub(1).and_then(|last| steps.get(last));
    match (highest, steps.get(held)) {
        (Some(highest), None) => format!("holds at least {}, the last rate of the ramp", asked(highest)),
        (None, Some(next)) if next.generator.bound => {
            "generator-bound from the first step: give the client more threads (-t) or other CPUs (--cpus)".to_owned()
        }
        (Some(highest), Some(next)) if next.generator.bound => {
            format!("generator-bound, at least {}: at {} the client was the bottleneck", asked(highest), asked(next))
        }
        (Some(highest), Some(next)) => {
            let why = shortfall(next).unwrap_or_default();
            format!("holds {} (at most 1 failure in 1000, 99th percentile within 100 ms); at {} {why}", asked(highest), asked(next))
        }
        (None, Some(first)) => {
            format!("does not hold the first rate, {}: {}", asked(first), shortfall(first).unwrap_or_default())
        }
        (None, None) => "nothing was measured".to_owned(),
    }
}

/// Returns the reason why a step did not sustain its requested rate; `None` if it did.
pub fn shortfall(step: &LoadStep) -> Option<String> {
    let lost = step.failed.saturating_add(step.unfinished);
    let whole = step.latency.from_intended();
    if lost.saturating_mul(1000) > step.attempted {
        return Some(format!(
            "{} of {} failed",
            show_count(lost),
            show_count(step.attempted)
        ));
    }
    if whole.p99_us >= HELD_P99_US {
        return Some(format!("the 99th percentile was {}", show_us(whole.p99_us)));
    }
    let asked = step.rate_asked_per_s.unwrap_or_default();
    let slow = step.rate_succeeded_per_s < asked * HELD_SHARE;
    slow.then(|| format!("only {} succeeded", show_rate(step.rate_succeeded_per_s)))
}

/// Latency limit of a sustained rate: the 99th percentile in microseconds must be below it.
const HELD_P99_US: f64 = 100_000.0;
/// Minimum fraction of the requested rate that must succeed. It is below 1, because some transactions end after their
/// step.
const HELD_SHARE: f64 = 0.97;
/// A thread is overloaded if it spends more than this fraction of wall time running or waiting for a CPU.
const BUSY: f64 = 0.95;
/// Number of CPUs in use above which a server counts as busy. A server that only stalls uses less.
const BUSY_SERVER: f64 = 0.7;
/// Fraction of wall time, running or waiting for a CPU, above which a thread with late starts is
/// the bottleneck.
const BUSY_AND_LATE: f64 = 0.80;
/// Limit for the 99th percentile of start delays in microseconds. Above it, transactions count as
/// started late.
const LATE_START_US: f64 = 10_000.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn done(busiest: f64) -> LoadStep {
        let mut step = LoadStep {
            completed: 100,
            attempted: 100,
            rate_succeeded_per_s: 100.0,
            ..LoadStep::default()
        };
        step.generator.busiest_thread = busiest;
        step.generator.bound = is_bound(&step.generator);
        step
    }

    #[test]
    fn a_busy_client_with_late_starts_is_the_bottleneck() {
        let mut generator = Generator {
            busiest_thread: 0.85,
            late_start_p99_us: Some(20_000.0),
            ..Generator::default()
        };
        assert!(is_bound(&generator));
        generator.busiest_thread = 0.10;
        assert!(
            !is_bound(&generator),
            "an idle client starts late only because all connections are busy, which is the server's fault"
        );
    }

    #[test]
    fn the_verdict_of_a_ramp_is_the_highest_sustained_rate() {
        let step = |rate: f64, failed: u64, busiest: f64| {
            let mut step = done(busiest);
            (step.rate_asked_per_s, step.rate_succeeded_per_s) = (Some(rate), rate);
            (step.attempted, step.failed) = (1_000, failed);
            step
        };
        let broken = verdict(&[
            step(500.0, 0, 0.5),
            step(600.0, 1, 0.5),
            step(700.0, 2, 0.5),
        ]);
        assert!(
            broken.starts_with("holds 600/s") && broken.contains("at 700/s 2 of 1 000 failed"),
            "{broken}"
        );
        let bound = verdict(&[step(500.0, 0, 0.5), step(600.0, 9, 0.99)]);
        assert!(
            bound.starts_with("generator-bound, at least 500/s"),
            "{bound}"
        );
        let kept = verdict(&[step(500.0, 0, 0.5), step(600.0, 0, 0.5)]);
        assert!(kept.starts_with("holds at least 600/s"), "{kept}");
    }
}
