//! Measures closed loops in turns, which are short measurements of all servers in rotation. The main figure is CPU time
//! per transaction, because it is reproducible.

use std::time::Duration;

use becket_load::plan::Load;
use becket_load::report::LoadStep;

use super::marks;
use super::rounds::{Rounds, order};
use super::stage::Stage;
use crate::figures;
use crate::figures::ROUND_TRIP;
use crate::floors::Floors;
use crate::load::{self, Ask};
use crate::order::LARGE;
use crate::result::{Column, Sample};
use crate::scenario::{Files, Front, Settings};
use crate::{Error, kernel, peer::Server, turns};

pub(super) fn run(stage: &mut Stage<'_>) -> Result<Vec<Column>, Error> {
    let mut columns = stage.columns();
    columns.extend(stage.floors.iter().flat_map(Floors::columns));
    let count = turns_of_round(stage, &mut columns)?;
    let mut rounds = Rounds::of(stage);
    while let Some(round) = rounds.next(stage, &columns)? {
        let mut measured = vec![Vec::new(); columns.len()];
        for turn in 0..count {
            let time = stage.effort.time / count;
            stage.control.turn(time, stage.stop)?;
            for index in order(columns.len(), round * count + turn) {
                stage.check_signal()?;
                measured[index].extend(one(stage, (index, time), &mut columns[index])?);
            }
        }
        stage.control.end_round();
        for (column, turns) in columns.iter_mut().zip(measured) {
            column.samples.extend(turns::join(round, &turns));
        }
    }
    if stage.settings.bytes {
        for (index, column) in columns.iter_mut().enumerate() {
            stage.check_signal()?;
            count_bytes(stage, index, column)?;
        }
    }
    if stage.settings.marks {
        for (index, column) in columns.iter_mut().take(stage.servers.len()).enumerate() {
            stage.check_signal()?;
            marks::put(stage, index, column)?;
        }
    }
    Ok(columns)
}

/// Returns the number of turns per round. Measures each server briefly to find the slowest one and discards these
/// measurements.
fn turns_of_round(stage: &Stage<'_>, columns: &mut [Column]) -> Result<u32, Error> {
    let time = stage.effort.time;
    let most = turns::of_round(time, f64::INFINITY, 1);
    // The start of agents takes longer than a turn.
    if most == 1 || stage.effort.agents.is_some() || stage.settings.body >= LARGE {
        return Ok(1);
    }
    let mut slowest = f64::INFINITY;
    for (index, column) in columns.iter_mut().enumerate() {
        stage.check_signal()?;
        let sample = one(stage, (index, time / most), column)?;
        let rate = sample.and_then(|sample| sample.get(figures::RATE));
        slowest = slowest.min(rate.unwrap_or(f64::INFINITY));
    }
    Ok(turns::of_round(time, slowest, connections(stage.settings)))
}

/// Returns the server of a column, and `true` if it is a floor.
fn server<'a>(stage: &'a Stage<'_>, index: usize) -> Option<(&'a Server, bool)> {
    if let Some(server) = stage.servers.get(index) {
        return Some((server, false));
    }
    let relays = &stage.floors.as_ref()?.relays;
    Some((relays.get(index - stage.servers.len())?, true))
}

fn ask(stage: &Stage<'_>, server: &Server, is_floor: bool) -> Ask {
    let pid = Some(server.process.pid());
    if !is_floor || stage.settings.front != Front::Terminate {
        let ask = stage.ask(server.address, pid);
        return match &server.companion {
            // The CPU time of the separate file server counts as well.
            Some(behind) if stage.settings.files == Files::Peer => {
                ask.with("--pid", behind.process.pid())
            }
            _ => ask,
        };
    }
    let ask = stage
        .ask_plain(server.address)
        .with("--pid", server.process.pid());
    let preface = stage.floors.as_ref().and_then(|f| f.preface.as_ref());
    match preface.filter(|_| server.name == ROUND_TRIP) {
        Some(preface) => ask.preface(preface.clone(), &stage.settings.resume),
        None => ask,
    }
}

fn one(
    stage: &Stage<'_>,
    (index, time): (usize, Duration),
    column: &mut Column,
) -> Result<Option<Sample>, Error> {
    let Some((server, is_floor)) = server(stage, index) else {
        let floors = stage.floors.as_ref();
        let sample = floors.map(|floors| floors.measure_library(time / 4));
        return Ok(sample.transpose()?.flatten());
    };
    let ask = ask(stage, server, is_floor)
        .with(
            "-c",
            connections(stage.settings).max(stage.effort.agent_count()),
        )
        .with("--warm-up", format!("{}ms", (time / 5).as_millis()))
        .with("--time-out", format!("{}s", stage.time_out().as_secs()));
    let before = kernel::taken_over();
    let report = ask.run(stage.effort.closed(stage.settings.body, time), stage.stop)?;
    if stage.settings.ktls && !is_floor && kernel::taken_over() == before {
        column.not_available = Some("the kernel took over the TLS of no connection".to_owned());
        return Ok(None);
    }
    column.negotiated = report.negotiated.clone().or(column.negotiated.take());
    let step = load::only_step(report)?;
    let mut sample = load::sample(0, &step, stage.settings.body);
    let weight = server.process.weight();
    sample.put(figures::PSS, weight.pss_bytes as f64);
    sample.put(figures::THREADS, weight.threads as f64);
    remark(column, &step);
    Ok(Some(sample))
}

/// Counts the bytes of a fixed number of transactions. A transaction cut off at the end of a round would distort the
/// TLS overhead.
fn count_bytes(stage: &Stage<'_>, index: usize, column: &mut Column) -> Result<(), Error> {
    let (server, sample) = (server(stage, index), column.samples.first_mut());
    let (Some((server, is_floor)), Some(sample)) = (server, sample) else {
        return Ok(());
    };
    let clients = stage.client.len().max(1);
    let each = match stage.settings.body {
        0..LARGE => (stage.effort.time.as_millis() / 10).max(1) as u64,
        _ => 1,
    };
    let clients = clients.max(stage.effort.agent_count());
    let ask = ask(stage, server, is_floor).with("-c", clients);
    let step = ask.one(Load::ClosedCount(each * clients as u64), stage.stop)?;
    let bytes = (step.traffic.bytes_in + step.traffic.bytes_out) as f64 / step.completed as f64;
    sample.put(figures::WIRE, bytes);
    let body = stage.settings.body as f64;
    sample.put(figures::OVERHEAD, bytes / body - 1.0);
    Ok(())
}

/// Returns the number of connections. With large bodies, one connection is enough to keep a core busy.
fn connections(settings: &Settings) -> usize {
    match settings.body {
        0..LARGE => settings.connections,
        _ => 1,
    }
}

/// Adds the load tool's findings and the failures of a step to the column's remarks.
pub(super) fn remark(column: &mut Column, step: &LoadStep) {
    step.findings
        .iter()
        .for_each(|finding| column.note(finding));
    remark_failures(column, step);
}

pub(super) fn remark_failures(column: &mut Column, step: &LoadStep) {
    if step.completed == 0 {
        column.note("no transaction succeeded in a round");
    }
    if step.failed * 1000 > step.attempted {
        let kinds: Vec<&str> = step.failures.keys().map(String::as_str).collect();
        column.note(format!(
            "more than 1 in 1000 transactions failed: {}",
            kinds.join(", ")
        ));
    }
}
