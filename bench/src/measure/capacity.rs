//! Measures the capacity: the highest confirmed rate with at most 1 failure in 1000 and a p99 below 100 ms.
//!
//! A closed loop estimates the rate. An open loop then increases its rate in steps around this estimate. The highest
//! step before the first failing one is confirmed by a longer measurement. If this measurement fails, it is repeated at
//! lower rates.

use std::time::Duration;

use becket_load::plan::Load;
use becket_load::report::{LoadReport, LoadStep};
use becket_load::schedule::Stretch;

use super::capacities::Capacity;
use super::stage::Stage;
use crate::Error;
use crate::load::{self, Ask};
use crate::peer::Server;
use crate::result::{Point, rounded};

/// Returns the capacity of a server in a case, and measures it if it is not known.
pub(super) fn of(stage: &mut Stage<'_>, index: usize) -> Result<Capacity, Error> {
    if let Some(known) = known(stage, index) {
        return Ok(known);
    }
    let server = &stage.servers[index];
    let found = find(stage, server)?;
    stage
        .capacities
        .insert(&server.name, &stage.settings.text, found.clone());
    Ok(found)
}

/// Returns the capacity of a server if this run has measured it, with or without a limit on full handshakes.
pub(super) fn known(stage: &Stage<'_>, index: usize) -> Option<Capacity> {
    stage
        .capacities
        .get(&stage.servers[index].name, &stage.settings.text)
}

/// Returns the rate common to all servers: [`SHARE`] of the lowest capacity.
pub(super) fn same_for_all(stage: &mut Stage<'_>) -> Result<f64, Error> {
    // The capacity cannot be measured with a limit on full handshakes. It is known from the case without a limit.
    if stage.settings.full_handshakes == 0 {
        for index in 0..stage.servers.len() {
            of(stage, index)?;
        }
    }
    Ok(stage.capacities.least(&stage.settings.text) * SHARE)
}

fn find(stage: &Stage<'_>, server: &Server) -> Result<Capacity, Error> {
    let time = stage.effort.time;
    let ask = || stage.ask(server.address, Some(server.process.pid()));
    let about = ask()
        .with("-c", stage.settings.connections)
        .with("--time-out", "2s")
        .one(Load::ClosedFor(time), stage.stop)?
        .rate_succeeded_per_s;
    if about < 1.0 {
        return Ok(Capacity::default());
    }
    let rates: Vec<f64> = STEPS.iter().map(|share| about * share).collect();
    let report = climb(ask(), stage, &rates, time)?;
    let mut capacity = Capacity {
        negotiated: report.negotiated.clone(),
        curve: report.steps.iter().map(point).collect(),
        ..Capacity::default()
    };
    let holding = report.steps.iter().take_while(|step| holds(step)).count();
    let failing = report.steps.get(holding);
    capacity.bound = failing.is_none_or(|step| step.generator.bound);
    let below = rates.first().map_or(0.0, |rate| rate * 0.8);
    capacity.rate = holding
        .checked_sub(1)
        .and_then(|n| rates.get(n))
        .map_or(below, |rate| *rate);
    for _ in 0..CONFIRMATIONS {
        stage.check_signal()?;
        let step = at_rate(ask(), stage, capacity.rate, time * 2)?;
        if holds(&step) {
            return Ok(capacity);
        }
        capacity.bound |= step.generator.bound;
        capacity.rate *= LOWER;
    }
    Ok(capacity)
}

/// Returns the request rate of a load: a percentage of `capacity`, or `same`.
pub(super) fn rate(load: &str, capacity: f64, same: f64) -> f64 {
    match load.parse::<f64>() {
        Ok(percent) => capacity * percent / 100.0,
        Err(_) => same,
    }
}

/// Runs an open loop at this rate. Clients time out after two seconds.
pub(super) fn at_rate(
    ask: Ask,
    stage: &Stage<'_>,
    rate: f64,
    length: Duration,
) -> Result<LoadStep, Error> {
    load::only_step(climb(ask, stage, &[rate], length)?)
}

/// Runs an open loop at each of these rates in turn. Clients time out after two seconds.
pub(super) fn climb(
    ask: Ask,
    stage: &Stage<'_>,
    rates: &[f64],
    length: Duration,
) -> Result<LoadReport, Error> {
    let ask = ask.with("-c", MOST_AT_ONCE).with("--time-out", "2s");
    open(ask, stage, rates, length)
}

pub(super) fn open(
    ask: Ask,
    stage: &Stage<'_>,
    rates: &[f64],
    length: Duration,
) -> Result<LoadReport, Error> {
    let stretches = rates.iter().map(|rate| Stretch {
        rate: rate.max(1.0),
        length,
    });
    let load = Load::Open(stretches.collect());
    ask.with("--warm-up", "100ms").run(load, stage.stop)
}

pub(super) fn point(step: &LoadStep) -> Point {
    let late = step.latency.from_intended();
    let per_s = |count: u64| rounded(count as f64 / step.seconds.max(1e-9));
    Point {
        asked_per_s: rounded(step.rate_asked_per_s.unwrap_or_default()),
        attempted_per_s: rounded(step.rate_attempted_per_s()),
        succeeded_per_s: rounded(step.rate_succeeded_per_s),
        failed_per_s: per_s(step.failed),
        p50_us: rounded(late.p50_us),
        p99_us: rounded(late.p99_us),
    }
}

/// Returns whether a step meets the capacity criteria.
pub(super) fn holds(step: &LoadStep) -> bool {
    step.completed > 0 && becket_load::summary::shortfall(step).is_none()
}

/// Common rate of all servers, as a share of the lowest capacity.
const SHARE: f64 = 0.8;
/// Rates of the ramp, as shares of the closed loop's rate.
const STEPS: &[f64] = &[0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1];
const CONFIRMATIONS: u32 = 4;
const LOWER: f64 = 0.95;
/// Maximum parallel connections of an open loop.
const MOST_AT_ONCE: usize = 4000;
