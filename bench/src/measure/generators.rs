//! Does the tool lie? The same case by `becket-load` and by a second generator.
//!
//! `wrk` for plain HTTP over kept connections, straight to the backend; `openssl s_time` for one new
//! TLS connection after the other. Columns are generators here, not servers.

use std::process::{Command, Stdio};

use becket_load::clock;

use super::Stage;
use crate::load;
use crate::result::{Column, Sample, figures, rounded};
use crate::{Error, place};

pub(super) fn run(stage: &mut Stage<'_>) -> Result<Vec<Column>, Error> {
    let one_by_one = stage.settings.connections == 1;
    let second = if one_by_one { "openssl s_time" } else { "wrk" };
    let mut columns = [OURS, second].map(|name| Column {
        peer: name.to_owned(),
        ..Column::default()
    });
    let mut rounds = stage.rounds();
    while let Some(round) = rounds.next(stage, &columns)? {
        stage.check_signal()?;
        let [ours, other] = &mut columns;
        let (sample, rate) = if one_by_one {
            (handshakes(stage, round)?, s_time(stage)?)
        } else {
            (kept(stage, round)?, wrk(stage)?)
        };
        ours.samples.extend(sample);
        match rate {
            Some(rate) => other.samples.push(Sample {
                round,
                figures: [(figures::RATE.to_owned(), rounded(rate))].into(),
            }),
            None => other.not_available = Some(format!("{second} is not on this machine")),
        }
    }
    Ok(columns.into())
}

fn kept(stage: &Stage<'_>, round: u32) -> Result<Option<Sample>, Error> {
    let ask = stage
        .ask_plain(stage.backend, None)
        .with("--keepalive", 1_000_000_000)
        .with("-c", stage.settings.connections);
    let report = ask.run(load::closed(stage.effort.time), stage.stop)?;
    Ok(report
        .steps
        .first()
        .map(|step| load::sample(round, step, stage.settings.body)))
}

fn wrk(stage: &Stage<'_>) -> Result<Option<f64>, Error> {
    let url = format!("http://{}/bytes/{}", stage.backend, stage.settings.body);
    let connections = stage.settings.connections.to_string();
    let seconds = stage.effort.time.as_secs().max(1).to_string();
    let threads = stage.client.len().to_string();
    let args = ["-t", &threads, "-c", &connections, "-d", &seconds, &url];
    let Some((said, _)) = said(stage, "wrk", &args)? else {
        return Ok(None);
    };
    let rate = said
        .lines()
        .find_map(|line| line.trim().strip_prefix("Requests/sec:"));
    Ok(rate.and_then(|rate| rate.trim().parse().ok()))
}

fn handshakes(stage: &Stage<'_>, round: u32) -> Result<Option<Sample>, Error> {
    let Some(server) = stage.servers.first() else {
        return Ok(None);
    };
    let ask = stage.ask(server.address, None).with("-c", 1);
    let report = ask.run(load::closed(stage.effort.time), stage.stop)?;
    Ok(report
        .steps
        .first()
        .map(|step| load::sample(round, step, stage.settings.body)))
}

fn s_time(stage: &Stage<'_>) -> Result<Option<f64>, Error> {
    let Some(server) = stage.servers.first() else {
        return Ok(None);
    };
    let address = server.address.to_string();
    let seconds = stage.effort.time.as_secs().max(1).to_string();
    let path = format!("/bytes/{}", stage.settings.body);
    let args = [
        "s_time", "-new", "-tls1_2", "-connect", &address, "-time", &seconds, "-www", &path,
    ];
    let Some((said, took)) = said(stage, "openssl", &args)? else {
        return Ok(None);
    };
    // Its own seconds are whole ones; the wall clock around it is finer.
    let count = said.lines().find_map(|line| {
        line.split_once(" connections in ")?
            .0
            .trim()
            .parse::<f64>()
            .ok()
    });
    Ok(count.map(|count| count / took))
}

/// Runs another generator on the client's CPUs; returns what it says and how long it took.
fn said(stage: &Stage<'_>, program: &str, args: &[&str]) -> Result<Option<(String, f64)>, Error> {
    let begin = clock::now();
    let output = place::on(stage.client, || {
        let output = Command::new(program)
            .args(args)
            .stdin(Stdio::null())
            .output();
        Ok(output.ok())
    })?;
    let took = (clock::now() - begin).as_secs_f64();
    Ok(output.map(|output| (String::from_utf8_lossy(&output.stdout).into_owned(), took)))
}

const OURS: &str = "becket-load";
