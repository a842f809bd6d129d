//! The `becket` program: arguments to configuration to server to exit code.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done as told |
//! | 1 | `check --strict` found warnings, or the system failed us |
//! | 2 | wrong arguments or configuration; nothing was started |
//! | 3 | connections were still open at the drain deadline |
#![forbid(unsafe_code)]

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use becket::check::check;
use becket::cli::{CheckFlags, Cli, Command, DemoFlags, StatusFlags};
use becket::config::flags::Flags;
use becket::config::source::Source;
use becket::control::page::Page;
use becket::launch::launch;
use becket::secret;
use becket::secret::command::{NotMade, SecretFlags};
use becket::status::Place;
use becket_proto::ticket::UnixSeconds;
use clap::Parser;
use rustls_pki_types::UnixTime;

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run(flags) => run(*flags),
        Command::Check(flags) => run_check(*flags),
        Command::Status(flags) => status(flags),
        Command::Secret(flags) => Ok(make_secret(&flags)),
        Command::Demo(flags) => demo(&flags),
    };
    done.unwrap_or_else(|error| {
        eprintln!("becket: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(flags: Flags) -> anyhow::Result<ExitCode> {
    let source = Source::new(flags).context("the current folder")?;
    match launch(source) {
        Ok(server) => Ok(ExitCode::from(server.run() as u8)),
        Err(error) => {
            eprintln!("{error}");
            Ok(ExitCode::from(NOT_STARTED))
        }
    }
}

fn run_check(asked: CheckFlags) -> anyhow::Result<ExitCode> {
    let CheckFlags {
        flags,
        connect,
        strict,
        json,
    } = asked;
    let source = Source::new(flags).context("the current folder")?;
    let findings = check(&source, UnixTime::now(), connect);
    let code = ExitCode::from(findings.exit_code(strict));
    if json {
        say(serde_json::to_string_pretty(&findings)? + "\n")?;
    } else {
        say(&findings)?;
    }
    Ok(code)
}

fn status(flags: StatusFlags) -> anyhow::Result<ExitCode> {
    let (admin, config) = (flags.admin, flags.config);
    let status = Place { admin, config }.ask()?;
    if flags.json {
        say(serde_json::to_string_pretty(&status)? + "\n")?;
    } else {
        say(Page(&status))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints what was asked for. Whoever reads only the first lines, as head(1) does, is no fault.
fn say(text: impl Display) -> anyhow::Result<()> {
    match write!(io::stdout(), "{text}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("standard output")
        }
        _ => Ok(()),
    }
}

fn make_secret(flags: &SecretFlags) -> ExitCode {
    match secret::command::make(flags, UnixSeconds(UnixTime::now().as_secs())) {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("becket: {error}");
            match error {
                NotMade::Exists(_) => ExitCode::from(NOT_STARTED),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

fn demo(flags: &DemoFlags) -> anyhow::Result<ExitCode> {
    #[expect(clippy::disallowed_methods, reason = "read once, before anything runs")]
    let demo = becket::demo::prepare(flags.port, std::time::SystemTime::now())?;
    let server = launch(Source::new(demo.flags()).context("the current folder")?)?;
    println!("{}", demo.banner());
    let counters = server.control.state.shared().counters.clone();
    let (stop, stopped) = std::sync::mpsc::channel();
    let lines = std::thread::spawn(move || becket::demo::display(counters, stopped));
    let outcome = server.run();
    drop(stop);
    lines.join().ok();
    Ok(ExitCode::from(outcome as u8))
}

const NOT_STARTED: u8 = 2;
