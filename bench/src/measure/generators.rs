//! Does the tool lie? The same case by `becket-load` and by a second generator.
//!
//! `wrk` for plain HTTP over kept connections, straight to the backend; `openssl s_time` for one new
//! TLS connection after the other. Columns are generators here, not servers.

use std::process::{Command, Stdio};

use becket_load::clock;
use becket_load::plan::Load;

use super::rounds;
use super::stage::Stage;
use crate::result::Column;
use crate::{Error, figures, load, place};

pub(super) fn run(stage: &mut Stage<'_>) -> Result<Vec<Column>, Error> {
    let one_by_one = stage.settings.connections == 1;
    let second = if one_by_one { "openssl s_time" } else { "wrk" };
    let mut columns = ["becket-load", second].map(Column::new);
    rounds::each(stage, &mut columns, |stage, index, column, sample| {
        if index == 0 {
            let ask = if one_by_one {
                stage.ask(stage.servers[0].address, None)
            } else {
                stage
                    .ask_plain(stage.backend)
                    .with("--keepalive", 1_000_000_000)
            };
            let ask = ask.with("-c", stage.settings.connections);
            let step = ask.one(Load::ClosedFor(stage.effort.time), stage.stop)?;
            *sample = load::sample(sample.round, &step, stage.settings.body);
            return Ok(());
        }
        match if one_by_one {
            s_time(stage)?
        } else {
            wrk(stage)?
        } {
            Some(rate) => sample.put(figures::RATE, rate),
            None => column.not_available = Some(format!("{second} is not on this machine")),
        }
        Ok(())
    })?;
    Ok(columns.into())
}

fn wrk(stage: &Stage<'_>) -> Result<Option<f64>, Error> {
    let url = format!("http://{}{}", stage.backend, stage.path());
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

fn s_time(stage: &Stage<'_>) -> Result<Option<f64>, Error> {
    let address = stage.servers[0].address.to_string();
    let seconds = stage.effort.time.as_secs().max(1).to_string();
    let path = stage.path();
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
