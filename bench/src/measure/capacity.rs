//! The capacity: the highest rate with at most 1 failure in 1000 and p99 under 100 ms, confirmed.
//!
//! A closed loop says about where it lies; an open loop climbs in steps around it; the highest step
//! before the first that fails is run once more, for longer, and lowered until it holds.

use std::collections::BTreeMap;
use std::time::Duration;

use becket_load::plan::Load;
use becket_load::schedule::{Arrivals, Stretch};
use becket_stats::report::{Negotiated, Report, Step};

use super::Stage;
use crate::Error;
use crate::load::{self, Ask};
use crate::peer::{Kind, Server};
use crate::result::{Point, rounded};

#[derive(Clone, Debug, Default)]
pub struct Capacity {
    pub rate: f64,
    /// Whether the client was what was slow: then `rate` is a lower bound.
    pub bound: bool,
    pub curve: Vec<Point>,
    /// What the handshakes agreed on.
    pub negotiated: Option<Negotiated>,
}

/// Capacities by server and settings: several scenarios need the same one.
#[derive(Clone, Debug, Default)]
pub struct Capacities(BTreeMap<(String, BTreeMap<String, String>), Capacity>);

impl Capacities {
    /// Returns the capacity of a server in a case, measured once per run.
    pub fn of(stage: &mut Stage<'_>, index: usize) -> Result<Capacity, Error> {
        let Some(server) = stage.servers.get(index) else {
            return Ok(Capacity::default());
        };
        if let Some(known) = Self::known(stage, index) {
            return Ok(known);
        }
        let key = key(server, stage);
        let found = find(stage, server)?;
        stage.capacities.0.insert(key, found.clone());
        Ok(found)
    }

    /// Returns the rate that is the same for all servers: [`SHARE`] of the least capacity. stunnel does not
    /// count, whose threads would make it a load for nobody else.
    pub fn same_for_all(stage: &mut Stage<'_>) -> Result<f64, Error> {
        // A limit on admission is none of the server's own: what it can do was measured without.
        let measured = if stage.settings.full_handshakes > 0 {
            0
        } else {
            stage.servers.len()
        };
        for index in 0..measured {
            Self::of(stage, index)?;
        }
        Ok(stage.capacities.least(&stage.settings.text) * SHARE)
    }

    /// Returns the least of the capacities that were found with these settings, however a server signs and whom it admits:
    /// where only becket has such a setting, the others are known from the case without.
    fn least(&self, settings: &BTreeMap<String, String>) -> f64 {
        let alike = |other: &BTreeMap<String, String>| {
            let own = |(name, _): &(&String, &String)| !OWN.contains(&name.as_str());
            other.iter().filter(own).eq(settings.iter().filter(own))
        };
        let found = self.0.iter().filter(|((_, other), _)| alike(other));
        let found = found.map(|((server, _), found)| (server, found.rate));
        let found: Vec<(&String, f64)> = found.filter(|(_, rate)| *rate >= 1.0).collect();
        let slow = |server: &str| server.starts_with(Kind::Stunnel.name());
        let rates = found
            .iter()
            .filter(|(server, _)| found.len() == 1 || !slow(server));
        rates.map(|(_, rate)| *rate).reduce(f64::min).unwrap_or(0.0)
    }

    /// Returns the capacity of a server if this run has measured it, with whatever limit on admission.
    pub fn known(stage: &Stage<'_>, index: usize) -> Option<Capacity> {
        let server = stage.servers.get(index)?;
        stage.capacities.0.get(&key(server, stage)).cloned()
    }
}

/// What a capacity is kept by. A limit on admission is none of the server's own.
fn key(server: &Server, stage: &Stage<'_>) -> (String, BTreeMap<String, String>) {
    let mut settings = stage.settings.text.clone();
    settings.remove("full-handshakes");
    (server.name.clone(), settings)
}

pub(super) fn find(stage: &Stage<'_>, server: &Server) -> Result<Capacity, Error> {
    let time = stage.effort.time;
    let ask = || stage.ask(server.address, Some(server.process.pid()));
    let about = ask()
        .with("-c", stage.settings.connections)
        .with("--time-out", "2s")
        .run(load::closed(time), stage.stop)?;
    let about = about
        .steps
        .first()
        .map_or(0.0, |step| step.rate_succeeded_per_s);
    if about < 1.0 {
        return Ok(Capacity::default());
    }
    let rates: Vec<f64> = STEPS.iter().map(|share| about * share).collect();
    let report = climb(ask(), stage, &rates, time)?;
    let mut capacity = Capacity {
        curve: report.steps.iter().map(point).collect(),
        negotiated: report.negotiated.clone(),
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
        let report = climb(ask(), stage, &[capacity.rate], time * 2)?;
        let Some(step) = report.steps.first() else {
            break;
        };
        if holds(step) {
            return Ok(capacity);
        }
        capacity.bound |= step.generator.bound;
        capacity.rate *= LOWER;
    }
    Ok(capacity)
}

/// Returns the rate of a load: so many per cent of the own capacity, or what is the same for all.
pub(super) fn rate(load: &str, capacity: f64, same: f64) -> f64 {
    match load.parse::<f64>() {
        Ok(percent) => capacity * percent / 100.0,
        Err(_) => same,
    }
}

/// Runs one open loop through these rates, with clients who give up after two seconds.
pub(super) fn climb(
    ask: Ask,
    stage: &Stage<'_>,
    rates: &[f64],
    length: Duration,
) -> Result<Report, Error> {
    let ask = ask.with("-c", MOST_AT_ONCE).with("--time-out", "2s");
    open(ask, stage, rates, length)
}

/// Runs one open loop through these rates.
pub(super) fn open(
    ask: Ask,
    stage: &Stage<'_>,
    rates: &[f64],
    length: Duration,
) -> Result<Report, Error> {
    let stretches = rates.iter().map(|rate| Stretch {
        rate: rate.max(1.0),
        length,
    });
    let load = Load::Open {
        stretches: stretches.collect(),
        arrivals: Arrivals::Constant,
        seed: 1,
    };
    ask.with("--warm-up", "100ms").run(load, stage.stop)
}

/// Returns whether a step is within the criteria.
pub(super) fn holds(step: &Step) -> bool {
    let late = step
        .latency
        .whole_corrected
        .as_ref()
        .unwrap_or(&step.latency.whole);
    let lost = step.failed + step.unfinished;
    let kept_up = step
        .rate_asked_per_s
        .is_none_or(|asked| step.rate_succeeded_per_s >= asked * 0.97);
    step.completed > 0 && lost * 1000 <= step.attempted && late.p99_us < 100_000.0 && kept_up
}

/// Returns a step as a point of a curve.
pub(super) fn point(step: &Step) -> Point {
    let late = step
        .latency
        .whole_corrected
        .as_ref()
        .unwrap_or(&step.latency.whole);
    let per_s = |count: u64| rounded(count as f64 / step.seconds.max(1e-9));
    Point {
        asked_per_s: rounded(step.rate_asked_per_s.unwrap_or_default()),
        attempted_per_s: rounded(step.rate_attempted_per_s),
        succeeded_per_s: rounded(step.rate_succeeded_per_s),
        failed_per_s: per_s(step.failed),
        p50_us: rounded(late.p50_us),
        p99_us: rounded(late.p99_us),
    }
}

/// Settings that only some servers have, and that make no other flood.
const OWN: &[&str] = &["crypto-threads", "full-handshakes"];
/// What of the least capacity is asked of all.
const SHARE: f64 = 0.8;
/// Shares of the closed loop's rate.
const STEPS: &[f64] = &[0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1];
const CONFIRMATIONS: u32 = 4;
const LOWER: f64 = 0.95;
/// Connections that an open loop may have at once: 2 s at a rate that no core reaches.
const MOST_AT_ONCE: usize = 4000;

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(key: &str, threads: &str) -> BTreeMap<String, String> {
        let all = [("key", key), ("crypto-threads", threads)];
        all.map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into()
    }

    #[test]
    fn the_flood_that_is_the_same_for_all_is_that_of_all_who_were_measured_with_that_key() {
        let mut capacities = Capacities::default();
        for (server, key, threads, rate) in [
            ("becket", "rsa2048", "auto", 1500.0),
            ("nginx", "rsa2048", "auto", 900.0),
            ("stunnel", "rsa2048", "auto", 300.0),
            ("becket", "rsa2048", "0", 1400.0),
            ("becket", "rsa4096", "0", 200.0),
        ] {
            let found = Capacity {
                rate,
                ..Capacity::default()
            };
            let of = (server.to_owned(), settings(key, threads));
            capacities.0.insert(of, found);
        }
        assert_eq!(capacities.least(&settings("rsa2048", "0")), 900.0);
        assert_eq!(capacities.least(&settings("rsa4096", "0")), 200.0);
        assert_eq!(capacities.least(&settings("p256", "0")), 0.0);
    }
}
