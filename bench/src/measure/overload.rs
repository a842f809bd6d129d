//! Measures floods of several times the capacity: the goodput, the latency of served clients, and the time to recover.
//!
//! Clients give up after [`PATIENCE`], and a flood lasts longer, so a response after a long wait is useless.
//!
//! A closed loop runs just before and just after each flood. The rate of the flood is a percentage of the rate of the
//! first loop. The goodput and the server CPU per served client are relative to the mean of both loops, because the
//! speed of a machine changes within seconds. Both loops together last as long as the flood, so that both sides of the
//! ratio are equally precise.
//!
//! A flood has no figures if the client did not reach the intended rate.

use std::time::Duration;

use becket_load::plan::Load;
use becket_load::report::LoadStep;

use super::stage::Stage;
use super::{capacity, rounds};
use crate::kernel::Kernel;
use crate::result::{Column, Sample};
use crate::{Error, figures, load};

pub(super) fn run(stage: &mut Stage<'_>) -> Result<Vec<Column>, Error> {
    rounds::each(stage, stage.columns(), past)
}

fn past(
    stage: &mut Stage<'_>,
    index: usize,
    column: &mut Column,
    sample: &mut Sample,
) -> Result<(), Error> {
    let found = capacity::of(stage, index)?;
    column.negotiated.clone_from(&found.negotiated);
    if found.rate < 1.0 {
        column.note("no rate met the criteria");
        return Ok(());
    }
    if column.samples.is_empty() {
        // The capacity is measured once and recorded in the first round only.
        sample.put(figures::CAPACITY, found.rate);
        sample.put(figures::CAPACITY_BOUND, f64::from(u8::from(found.bound)));
    }
    let first = saturated(stage, index)?;
    let (mut loops, mut before, mut curve) = (vec![first.rate], first, found.curve);
    for (percent, _) in figures::FLOODS {
        stage.check_signal()?;
        let step = flood(stage, index, (before.rate, percent), sample, column)?;
        let after = saturated(stage, index)?;
        if let Some(step) = step {
            let kept = step.rate_succeeded_per_s / f64::midpoint(before.rate, after.rate);
            sample.put(&figures::at(figures::KEPT, percent), kept);
            let cost = Saturated::of(&step).cpu_us / f64::midpoint(before.cpu_us, after.cpu_us);
            sample.put(&figures::at(figures::COST, percent), cost);
            curve.push(capacity::point(&step));
        }
        loops.push(after.rate);
        before = after;
    }
    sample.put(figures::AFTER, before.rate / first.rate);
    sample.put(
        figures::LOOP,
        loops.iter().sum::<f64>() / loops.len() as f64,
    );
    curve.sort_by(|a, b| a.asked_per_s.total_cmp(&b.asked_per_s));
    column.curve = curve;
    Ok(())
}

/// Rate of a saturated server, and its CPU time per transaction.
#[derive(Clone, Copy, Debug)]
struct Saturated {
    rate: f64,
    cpu_us: f64,
}

impl Saturated {
    fn of(step: &LoadStep) -> Self {
        let cpu_us = step.server.as_ref().and_then(|s| s.cpu_us_per_transaction);
        Self {
            rate: step.rate_succeeded_per_s,
            cpu_us: cpu_us.unwrap_or(f64::NAN),
        }
    }
}

/// Measures a server in a closed loop.
fn saturated(stage: &Stage<'_>, index: usize) -> Result<Saturated, Error> {
    let server = &stage.servers[index];
    let time = stage.effort.time;
    let step = stage
        .ask(server.address, Some(server.process.pid()))
        .with("-c", stage.settings.connections)
        .with("--warm-up", format!("{}ms", (time / 5).as_millis()))
        .one(Load::ClosedFor(time * LENGTH / 2), stage.stop)?;
    Ok(Saturated::of(&step))
}

/// Floods a server and then measures its recovery. Returns `None` if the client did not reach the rate of the flood.
fn flood(
    stage: &Stage<'_>,
    index: usize,
    (capacity, percent): (f64, &'static str),
    sample: &mut Sample,
    column: &mut Column,
) -> Result<Option<LoadStep>, Error> {
    let server = &stage.servers[index];
    let rate = capacity::rate(percent, capacity, 0.0);
    let patience = PATIENCE.min(stage.effort.time * 3);
    let at_once = rate * patience.as_secs_f64() * 1.2 + 100.0;
    let ask = || {
        let ask = stage.ask(server.address, Some(server.process.pid()));
        match stage.effort.agents {
            None => ask.with("--source", SOURCES),
            Some(_) => ask,
        }
    };
    let crowd = ask()
        .with("-c", (at_once as usize).min(stage.effort.most_clients()))
        .with("--time-out", format!("{}ms", patience.as_millis()))
        .flag("--since-queued");
    let kernel = Kernel::read();
    let step = capacity::open(crowd, stage, &[rate], stage.effort.time * LENGTH)?;
    let kernel = Kernel::read().since(&kernel);
    let quarters = vec![capacity * 0.8; QUARTERS];
    let after = capacity::climb(ask(), stage, &quarters, QUARTER.min(stage.effort.time))?;
    let step = load::only_step(step)?;
    if step.rate_attempted_per_s() < rate * MISSED {
        column.note(format!(
            "no figures at {percent} %: the client started {:.0} of {rate:.0} transactions per second",
            step.rate_attempted_per_s()
        ));
        return Ok(None);
    }
    // These clients never reached the server. Agents have one address each, and may run out of ports.
    if let Some(failure) = step
        .failures
        .keys()
        .find(|it| it.starts_with("client: no "))
    {
        column.note(format!("no figures at {percent} %: {failure}"));
        return Ok(None);
    }
    let mut put = |name: &str, value: f64| sample.put(&figures::at(name, percent), value);
    let resumed = step.handshakes.resumed();
    if resumed > 0 {
        put(
            figures::RESUMED,
            load::share(resumed, step.handshakes.full + resumed),
        );
    }
    let whole = step.latency.from_intended();
    if whole.count > 0 {
        if let Some(queued) = &step.latency.since_queued {
            put(figures::QUEUED_P99, queued.p99_us);
        }
        put(figures::P99, whole.p99_us);
    }
    put(
        figures::CPUS_USED,
        step.server.as_ref().map_or(f64::NAN, |s| s.cpus_used),
    );
    put(figures::SOFTIRQ, kernel.softirq_share());
    put(figures::DROPS, kernel.drops as f64);
    match after.steps.iter().position(capacity::holds) {
        // Agents start half a second after the end of the flood.
        _ if stage.effort.agents.is_some() => {}
        Some(quarter) => put(figures::RECOVERY, quarter as f64 * 0.25),
        None => column.note(format!(
            "did not recover from {percent} % within the measured time"
        )),
    }
    Ok(Some(step))
}

/// Time after which clients give up.
const PATIENCE: Duration = Duration::from_secs(5);
/// Duration of a flood, as a multiple of the usual duration of a measurement. In a full run, a flood lasts twice as
/// long as the clients wait.
const LENGTH: u32 = 5;
/// Minimum share of the intended rate that the client must reach. Otherwise the flood has no figures.
const MISSED: f64 = 0.97;
/// Number of intervals in which the recovery is measured.
const QUARTERS: usize = 8;
/// Duration of an interval in which the recovery is measured.
const QUARTER: Duration = Duration::from_millis(250);
/// Source addresses, because one address has too few ports for a flood.
const SOURCES: &str = "127.0.0.2-127.0.0.50";
