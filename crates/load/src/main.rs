//! The program `becket-load`: parses the command line, runs the load, probe or server, and prints the result.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::atomic::Ordering;

use becket_load::cli::{Cli, Instead};
use becket_load::fleet::{agent, coordinator};
use becket_load::{Error, probe, run, serve, text};
use clap::Parser;
use signal_hook::consts::{SIGINT, SIGTERM};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match program() {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("becket-load: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn program() -> Result<u8, Error> {
    let cli = Cli::parse();
    let stop = run::stop_on(&[SIGINT, SIGTERM])?;
    if let Some(Instead::Probe(options)) = &cli.instead {
        let all_answered = probe::run(options, &stop)?;
        return Ok(if stop.load(Ordering::Relaxed) {
            run::INTERRUPTED
        } else if all_answered {
            0
        } else {
            NOTHING_SUCCEEDED
        });
    }
    if let Some(Instead::Agent(options)) = &cli.instead {
        agent::serve(options, &stop)?;
        return Ok(0);
    }
    if cli.responder.serve.is_some() {
        serve::run(&cli, &stop)?;
        return Ok(0);
    }
    let plan = cli.plan(std::env::args().collect())?;
    let report = if cli.fleet.agents.is_empty() {
        run::run(plan, &stop)?
    } else {
        coordinator::run(&plan, &cli.fleet, &stop)?
    };
    let page = text::page(&report);
    if cli.measuring.json {
        eprint!("{page}");
        let json = report.to_json();
        print!(
            "{}",
            json.map_err(|e| Error::os("cannot format the report as JSON", e.into()))?
        );
    } else {
        print!("{page}");
    }
    Ok(match report.steps.iter().map(|step| step.completed).sum() {
        _ if report.interrupted => run::INTERRUPTED,
        0u64 => NOTHING_SUCCEEDED,
        _ => 0,
    })
}

const NOTHING_SUCCEEDED: u8 = 1;
