//! The program `becket-load`: parses the command line, runs the load, probe or server, and prints the result.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use becket_load::cli::{Cli, Instead};
use becket_load::{Error, probe, run, serve, text};
use clap::Parser;

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
    let stop = stop_on_signals()?;
    if let Some(Instead::Probe(options)) = &cli.instead {
        let all_answered = probe::run(options, &stop)?;
        return Ok(if stop.load(Ordering::Relaxed) {
            INTERRUPTED
        } else if all_answered {
            0
        } else {
            NOTHING_SUCCEEDED
        });
    }
    if cli.responder.serve.is_some() {
        serve::run(&cli, &stop)?;
        return Ok(0);
    }
    let plan = cli.plan(std::env::args().collect())?;
    let report = run::run(plan, &stop)?;
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
        _ if report.interrupted => INTERRUPTED,
        0u64 => NOTHING_SUCCEEDED,
        _ => 0,
    })
}

/// Installs signal handlers: the first signal ends the run early, the second exits at once.
fn stop_on_signals() -> Result<Arc<AtomicBool>, Error> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        let armed = signal_hook::flag::register_conditional_shutdown(
            signal,
            INTERRUPTED.into(),
            Arc::clone(&stop),
        )
        .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)));
        armed.map_err(|e| Error::os("cannot install signal handlers", e))?;
    }
    Ok(stop)
}

/// Exit code that shells use for a program that SIGINT terminated.
const INTERRUPTED: u8 = 130;
const NOTHING_SUCCEEDED: u8 = 1;
