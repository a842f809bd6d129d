//! `becket-bench`: reads the command line, runs, reports.
#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use becket_bench::cli::{self, Cli, Command};
use becket_bench::{Error, catalog, plan, plot, readme, report, runner, store};
use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match program() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(writeln!(io::stderr(), "becket-bench: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}

fn program() -> Result<(), Error> {
    match Cli::parse().command {
        Command::List => {
            for scenario in catalog::find(&["all".to_owned()])? {
                say(&format!("{:<16} {}\n", scenario.id, scenario.question));
            }
            Ok(())
        }
        Command::Run(args) => {
            let order = args.order(std::env::args().map(cli::without_folder).collect())?;
            if args.plan {
                say(&plan::show(&order)?);
                return Ok(());
            }
            let out = order.out.clone();
            let stop = stop_on_signals()?;
            let run = runner::run(order, &stop)?;
            write_pages(&out, &run)?;
            say(&report::markdown(&run));
            say(&format!(
                "\nThe report is {}.\n",
                out.join("report.md").display()
            ));
            Ok(())
        }
        Command::Report {
            directory,
            readme: None,
        } => write_pages(&directory, &store::read(&directory)?),
        Command::Report {
            directory,
            readme: Some(file),
        } => readme::write(&file, &directory),
        Command::Part(part) => part.run(),
    }
}

/// Prints; whoever reads it may have gone.
fn say(text: &str) {
    drop(io::stdout().write_all(text.as_bytes()));
}

fn write_pages(directory: &std::path::Path, run: &becket_bench::result::Run) -> Result<(), Error> {
    for outcome in &run.scenarios {
        for plot in plot::of_outcome(outcome) {
            store::write(&directory.join(&plot.file), &plot.svg()?)?;
        }
    }
    store::write(&directory.join("report.md"), &report::markdown(run))
}

/// The first signal asks for the end: the peers are stopped. The second ends the program, and the
/// guard stops them.
fn stop_on_signals() -> Result<Arc<AtomicBool>, Error> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGHUP,
    ] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .map_err(|e| Error::os("signals", e))?;
    }
    Ok(stop)
}
