//! The program `becket-bench`: parses the command line, runs scenarios, and prints the report.
#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::process::ExitCode;

use becket_bench::cli::{self, Cli, Command, Peers};
use becket_bench::{Error, catalog, gate, plan, plot, readme, report, runner, store};
use clap::Parser;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

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
            // After a second signal, the guard stops the peers.
            let stop = becket_load::run::stop_on(&[SIGINT, SIGTERM, SIGHUP])?;
            let run = runner::run(order, &stop)?;
            write_pages(&out, &run)?;
            say(&report::markdown(&run));
            say(&format!(
                "\nThe report is stored in {}.\n",
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
        Command::Peers(Peers::Build(args)) => args.run(),
        Command::Gate(args) => {
            let stop = becket_load::run::stop_on(&[SIGINT, SIGTERM, SIGHUP])?;
            let (table, passes) = gate::run(&args, &stop)?;
            say(&table);
            passes.then_some(()).ok_or(Error::Counts)
        }
        Command::Simulate(args) => args.run(),
        Command::Part(part) => part.run(),
    }
}

/// Prints to standard output. Ignores errors, because the reader may have closed the pipe.
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
