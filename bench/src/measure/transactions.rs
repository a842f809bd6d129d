//! Closed loops: CPU per transaction, the figure that repeats.

use super::{Stage, order, time_out};
use crate::figure::ROUND_TRIP;
use crate::floors::Floors;
use crate::load::{self, Ask};
use crate::order::LARGE;
use crate::result::{Column, figures};
use crate::scenario::{Files, Front, Settings};
use crate::{Error, peer::Server};

pub(super) fn run(stage: &mut Stage<'_>) -> Result<Vec<Column>, Error> {
    let mut columns = stage.columns();
    columns.extend(stage.floors.iter().flat_map(Floors::columns));
    let mut rounds = stage.rounds();
    while let Some(round) = rounds.next(stage, &columns)? {
        for index in order(columns.len(), round) {
            stage.check_signal()?;
            if let Some(column) = columns.get_mut(index) {
                one(stage, index, round, column)?;
            }
        }
    }
    Ok(columns)
}

/// Returns the server of a column, and whether it is a floor.
fn server<'a>(stage: &'a Stage<'_>, index: usize) -> Option<(&'a Server, bool)> {
    if let Some(server) = stage.servers.get(index) {
        return Some((server, false));
    }
    let relays = &stage.floors.as_ref()?.relays;
    Some((relays.get(index - stage.servers.len())?, true))
}

/// Returns what is asked of a server, or of a floor.
fn ask(stage: &Stage<'_>, server: &Server, is_floor: bool) -> Ask {
    let pid = Some(server.process.pid());
    if !is_floor || stage.settings.front != Front::Terminate {
        let ask = stage.ask(server.address, pid);
        return match &server.companion {
            // Files cost what all cost who serve them.
            Some(behind) if stage.settings.files == Files::Peer => {
                ask.with("--pid", behind.process.pid())
            }
            _ => ask,
        };
    }
    let ask = stage.ask_plain(server.address, pid);
    let preface = stage.floors.as_ref().and_then(|f| f.preface.as_ref());
    match preface.filter(|_| server.name == ROUND_TRIP) {
        Some(preface) => ask
            .with("--preface", preface)
            .with("--resume", &stage.settings.resume),
        None => ask,
    }
}

fn one(stage: &Stage<'_>, index: usize, round: u32, column: &mut Column) -> Result<(), Error> {
    let time = stage.effort.time;
    let Some((server, is_floor)) = server(stage, index) else {
        let floors = stage.floors.as_ref();
        let sample = floors.map(|floors| floors.measure_library(round, time / 4));
        column.samples.extend(sample.transpose()?.flatten());
        return Ok(());
    };
    let ask = ask(stage, server, is_floor)
        .with("-c", connections(stage.settings))
        .with("--warm-up", format!("{}ms", (time / 5).as_millis()))
        .with(
            "--time-out",
            format!("{}s", time_out(stage.settings).as_secs()),
        );
    let report = ask.run(stage.effort.closed(stage.settings.body), stage.stop)?;
    let Some(step) = report.steps.first() else {
        return Ok(());
    };
    let mut sample = load::sample(round, step, stage.settings.body);
    let weight = server.process.weight();
    sample
        .figures
        .insert(figures::PSS.to_owned(), weight.pss_bytes as f64);
    sample
        .figures
        .insert(figures::THREADS.to_owned(), weight.threads as f64);
    column.samples.push(sample);
    column.negotiated = report.negotiated.or(column.negotiated.take());
    column.histogram.clone_from(&step.latency.whole.buckets);
    remark(column, step);
    Ok(())
}

/// One large body at a time keeps a core busy; more of them only finish later.
fn connections(settings: &Settings) -> usize {
    match settings.body {
        0..LARGE => settings.connections,
        _ => 1,
    }
}

/// Notes what makes a round doubtful, once per kind.
pub(super) fn remark(column: &mut Column, step: &becket_stats::report::Step) {
    let mut notes: Vec<String> = step.findings.clone();
    if step.completed == 0 {
        notes.push("no transaction was completed in a round".to_owned());
    }
    let kinds: Vec<&str> = step.failures.keys().map(String::as_str).collect();
    if step.failed * 1000 > step.attempted {
        notes.push(format!("failures above 1 in 1000: {}", kinds.join(", ")));
    }
    for note in notes {
        if !column.notes.contains(&note) {
            column.notes.push(note);
        }
    }
}
