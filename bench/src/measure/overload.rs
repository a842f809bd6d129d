//! Past the maximum: what is still served under floods of several times the capacity, how long those wait who
//! are served, and how soon all is well again.
//!
//! Clients give up after [`PATIENCE`], and a flood is longer than that: what is served late is served in vain.
//! A flood is so many per cent of what a closed loop got just before it, and what is served in it is a share of what
//! the loop got just before and just after, on average: machines are not as fast in one second as in the next. Both loops
//! together are as long as the flood, so that neither side of the ratio is surer than the other. What a client who is served costs the
//! server, as a share of what it costs in the loops, stands beside it: that is also right where the loop left the server a rest. A flood of
//! which the client missed a part says nothing, and has no figures.

use std::time::Duration;

use becket_stats::report::Step;

use super::{Capacity, Stage, capacity, order};
use crate::kernel::Kernel;
use crate::load;
use crate::result::{Column, Sample, figures};
use crate::{Error, measure::Capacities};

pub(super) fn run(stage: &mut Stage<'_>) -> Result<Vec<Column>, Error> {
    let mut columns = stage.columns();
    let mut rounds = stage.rounds();
    while let Some(round) = rounds.next(stage, &columns)? {
        for index in order(columns.len(), round) {
            stage.check_signal()?;
            let found = Capacities::of(stage, index)?;
            if let Some(column) = columns.get_mut(index) {
                past(stage, index, round, &found, column)?;
            }
        }
    }
    Ok(columns)
}

fn past(
    stage: &Stage<'_>,
    index: usize,
    round: u32,
    found: &Capacity,
    column: &mut Column,
) -> Result<(), Error> {
    column.negotiated.clone_from(&found.negotiated);
    if found.rate < 1.0 {
        note(column, "no rate met the criteria");
        return Ok(());
    }
    let mut sample = Sample {
        round,
        ..Sample::default()
    };
    if column.samples.is_empty() {
        // Measured once: the rounds' time is for what they ask.
        sample.put(figures::CAPACITY, found.rate);
        sample.put(figures::CAPACITY_BOUND, f64::from(u8::from(found.bound)));
    }
    let first = saturated(stage, index)?;
    let (mut loops, mut before, mut steps) = (vec![first.rate], first, Vec::new());
    for (percent, _) in FLOODS {
        stage.check_signal()?;
        let step = flood(stage, index, (before.rate, percent), &mut sample, column)?;
        let after = saturated(stage, index)?;
        if let Some(step) = step {
            let kept = step.rate_succeeded_per_s / f64::midpoint(before.rate, after.rate);
            sample.put(&figures::at(figures::KEPT, percent), kept);
            let cost = Saturated::of(&step).cpu_us / f64::midpoint(before.cpu_us, after.cpu_us);
            sample.put(&figures::at(COST, percent), cost);
            steps.push(capacity::point(&step));
        }
        loops.push(after.rate);
        before = after;
    }
    sample.put(AFTER, before.rate / first.rate);
    sample.put(LOOP, loops.iter().sum::<f64>() / loops.len() as f64);
    column.samples.push(sample);
    column.curve = found.curve.iter().cloned().chain(steps).collect();
    column
        .curve
        .sort_by(|a, b| a.asked_per_s.total_cmp(&b.asked_per_s));
    Ok(())
}

/// What is served in a second, and what each who is served costs the server.
#[derive(Clone, Copy, Debug, Default)]
struct Saturated {
    rate: f64,
    cpu_us: f64,
}

impl Saturated {
    fn of(step: &Step) -> Self {
        let cpu_us = step.server.as_ref().and_then(|s| s.cpu_us_per_transaction);
        Self {
            rate: step.rate_succeeded_per_s,
            cpu_us: cpu_us.unwrap_or(f64::NAN),
        }
    }
}

/// Measures a server while some dozens of clients never rest.
fn saturated(stage: &Stage<'_>, index: usize) -> Result<Saturated, Error> {
    let Some(server) = stage.servers.get(index) else {
        return Ok(Saturated::default());
    };
    let time = stage.effort.time;
    let report = stage
        .ask(server.address, Some(server.process.pid()))
        .with("-c", stage.settings.connections)
        .with("--warm-up", format!("{}ms", (time / 5).as_millis()))
        .run(load::closed(time * LENGTH / 2), stage.stop)?;
    Ok(report.steps.first().map(Saturated::of).unwrap_or_default())
}

/// Floods a server and watches it recover; returns nothing when the client missed a part of its own plan.
fn flood(
    stage: &Stage<'_>,
    index: usize,
    (capacity, percent): (f64, &'static str),
    sample: &mut Sample,
    column: &mut Column,
) -> Result<Option<Step>, Error> {
    let Some(server) = stage.servers.get(index) else {
        return Ok(None);
    };
    let rate = capacity::rate(percent, capacity, 0.0);
    let patience = PATIENCE.min(stage.effort.time * 3);
    let at_once = rate * patience.as_secs_f64() * 1.2 + 100.0;
    let ask = || {
        stage
            .ask(server.address, Some(server.process.pid()))
            .with("--source", SOURCES)
    };
    let crowd = ask()
        .with("-c", (at_once as usize).min(stage.effort.most_clients()))
        .with("--time-out", format!("{}ms", patience.as_millis()))
        .flag("--since-queued");
    let kernel = Kernel::read();
    let over = capacity::open(crowd, stage, &[rate], stage.effort.time * LENGTH)?;
    let kernel = Kernel::read().since(&kernel);
    let quarters = vec![capacity * 0.8; QUARTERS];
    let after = capacity::climb(ask(), stage, &quarters, QUARTER.min(stage.effort.time))?;
    let Some(step) = over.steps.first() else {
        return Ok(None);
    };
    if step.rate_attempted_per_s < rate * MISSED {
        note(
            column,
            &format!(
                "no figures at {percent} %: the client began {:.0} of {rate:.0} a second",
                step.rate_attempted_per_s
            ),
        );
        return Ok(None);
    }
    let mut put = |name: &str, value: f64| sample.put(&figures::at(name, percent), value);
    let latency = &step.latency;
    let whole = latency.whole_corrected.as_ref().unwrap_or(&latency.whole);
    // Where nobody was served, nobody was served soon.
    if whole.count > 0 {
        if let Some(queued) = &latency.since_queued {
            put(QUEUED_P99, queued.p99_us);
        }
        put(figures::P99, whole.p99_us);
    }
    put(
        figures::CPUS_USED,
        step.server.as_ref().map_or(f64::NAN, |s| s.cpus_used),
    );
    put(SOFTIRQ, kernel.softirq_share());
    put(DROPS, kernel.drops as f64);
    match after.steps.iter().position(capacity::holds) {
        Some(quarter) => put(figures::RECOVERY, quarter as f64 * 0.25),
        None => note(
            column,
            &format!("it did not recover from {percent} % within the time that was watched"),
        ),
    }
    Ok(Some(step.clone()))
}

fn note(column: &mut Column, text: &str) {
    if !column.notes.iter().any(|known| known == text) {
        column.notes.push(text.to_owned());
    }
}

/// Per cent of the capacity, and the share of it that becket is to keep.
pub(crate) const FLOODS: &[(&str, f64)] = &[("150", 0.97), ("300", 0.95), ("1000", 0.85)];
/// Server CPU per client who is served in a flood, as a share of what it is in the closed loops before and after.
pub(crate) const COST: &str = "cpu_per_served_share";
/// What the closed loops got in a second, on average.
pub(crate) const LOOP: &str = "closed_loop_per_s";
/// Latency of those who were served, from when they came into the accept queue.
pub(crate) const QUEUED_P99: &str = "queued_p99_us";
/// Share of all CPUs' time in which the kernel worked on packets.
pub(crate) const SOFTIRQ: &str = "softirq_share";
/// Connections that the kernel refused because a queue was full.
pub(crate) const DROPS: &str = "listen_drops";
/// What is served after the floods, by what was served before.
pub(crate) const AFTER: &str = "capacity_after_share";
/// When clients give up.
const PATIENCE: Duration = Duration::from_secs(5);
/// A flood is so many measurements long: twice the clients' patience.
const LENGTH: u32 = 5;
/// A client that begins less than this share of its plan has flooded nobody.
const MISSED: f64 = 0.97;
const QUARTERS: usize = 8;
const QUARTER: Duration = Duration::from_millis(250);
/// One address has too few ports for all who come.
const SOURCES: &str = "127.0.0.2-127.0.0.50";
