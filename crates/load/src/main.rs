//! `becket-load`: reads the command line, runs, prints.
#![forbid(unsafe_code)]

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use becket_load::cli::Cli;
use becket_load::{Error, run, serve};
use becket_stats::report::LoadReport;
use becket_stats::text;
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
    if let Some(address) = &cli.responder.serve {
        serve::run(&cli.responder(address)?, &stop)?;
        return Ok(0);
    }
    let plan = cli.plan(std::env::args().collect())?;
    let report = run::run(plan, &stop)?;
    let page = text::page(&report);
    match cli.measuring.json.as_deref() {
        Some(path) if path == Path::new("-") => {
            eprint!("{page}");
            print!("{}", json_of(&report, path)?);
        }
        path => {
            print!("{page}");
            path.map_or(Ok(()), |path| store(&report, path))?;
        }
    }
    Ok(match report.steps.iter().map(|step| step.completed).sum() {
        _ if report.interrupted => INTERRUPTED,
        0u64 => NOTHING_SUCCEEDED,
        _ => 0,
    })
}

/// The first signal asks for the end, the second one ends the program.
fn stop_on_signals() -> Result<Arc<AtomicBool>, Error> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        let armed = signal_hook::flag::register_conditional_shutdown(
            signal,
            INTERRUPTED.into(),
            Arc::clone(&stop),
        )
        .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)));
        armed.map_err(|e| Error::os("signals", e))?;
    }
    debug_assert!(!stop.load(Ordering::Relaxed));
    Ok(stop)
}

fn json_of(report: &LoadReport, path: &Path) -> Result<String, Error> {
    let json = report.to_json();
    json.map_err(|e| Error::os(format!("storing {}", path.display()), e.into()))
}

/// Writes the report beside its place and moves it there: a full disk leaves no half of one. What is
/// not a regular file (a terminal, a pipe) is written to as it is.
fn store(report: &LoadReport, path: &Path) -> Result<(), Error> {
    let failed = |e| Error::os(format!("storing {}", path.display()), e);
    let json = json_of(report, path)?;
    if std::fs::metadata(path).is_ok_and(|known| !known.is_file()) {
        let opened = std::fs::OpenOptions::new().write(true).open(path);
        return opened
            .and_then(|mut file| file.write_all(json.as_bytes()))
            .map_err(failed);
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    let written = std::fs::write(&beside, json).and_then(|()| std::fs::rename(&beside, path));
    written.map_err(|e| {
        drop(std::fs::remove_file(&beside));
        failed(e)
    })
}

/// As shells count a program that SIGINT ended.
const INTERRUPTED: u8 = 130;
const NOTHING_SUCCEEDED: u8 = 1;
