//! The `becket` program: parses the command line, runs a subcommand and returns its exit code.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | success |
//! | 1 | `check --strict` found warnings, or a system call failed |
//! | 2 | wrong arguments or configuration; nothing was started |
//! | 3 | connections were still open at the drain deadline; `status` found a problem; `ctl` was refused; `migrate` lost directives |
#![forbid(unsafe_code)]

use std::fmt::Display;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::Context;
use becket::admin::AdminAddress;
use becket::check::check;
use becket::cli::{
    AcmeArguments, CheckFlags, Cli, CtlFlags, DemoFlags, MigrateFlags, StatusFlags, Subcommand,
    TopFlags,
};
use becket::ctl::NotDone;
use becket::ctl::tasks::CtlTask;
use becket::demo::folder::{self, FilesFlags};
use becket::dropin::{self, DropInCall};
use becket::secret_command;
use becket::secret_command::{NotMade, SecretFlags};
use becket::status::page;
use becket::top::{self, NotShown};
use becket_control::launch::launch;
use becket_keys::signing::token::{Tokens, agent};
use becket_prepare::flags::Flags;
use becket_prepare::source::ConfigSource;
use becket_process::link::resources::ProcessResources;
use becket_process::{ProcessRole, StartTask, enter};
use clap::Parser;
use rustls_pki_types::UnixTime;

/// Decision 0009 explains the choice. AWS-LC allocates with it too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    if agent::is_agent() {
        agent::run();
    }
    if let Some(call) = DropInCall::of(std::env::args_os()) {
        return call.run().unwrap_or_else(|error| {
            eprintln!("becket: {error}");
            ExitCode::FAILURE
        });
    }
    let done = match Cli::parse().command {
        Subcommand::Run(flags) => run(*flags),
        Subcommand::Check(flags) => run_check(*flags),
        Subcommand::Status(flags) => status(flags),
        Subcommand::Top(flags) => run_top(flags),
        Subcommand::Reload(place) => ask_for(&CtlTask::Reload, &place),
        Subcommand::Upgrade(place) => ask_for(&CtlTask::Upgrade, &place),
        Subcommand::Ctl(flags) => ctl(*flags),
        Subcommand::Acme(arguments) => acme(&arguments),
        Subcommand::Secret(flags) => Ok(make_secret(&flags)),
        Subcommand::Migrate(flags) => migrate(&flags),
        Subcommand::Files(flags) => files(flags),
        Subcommand::Demo(flags) => demo(&flags),
    };
    done.unwrap_or_else(|error| {
        eprintln!("becket: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(flags: Flags) -> anyhow::Result<ExitCode> {
    let source = ConfigSource::new(flags).context("cannot find the current directory")?;
    let (given, link) = match enter(&source, StartTask::Run).context("cannot start")? {
        ProcessRole::Ended(code) => return Ok(code),
        ProcessRole::Serves(given, link) => (given, link),
    };
    match launch(source, *given, link) {
        Ok(server) => Ok(ExitCode::from(server.run() as u8)),
        Err(error) => {
            becket_log::write_to_stderr(&error.to_string());
            Ok(ExitCode::from(NOT_STARTED))
        }
    }
}

fn run_check(asked: CheckFlags) -> anyhow::Result<ExitCode> {
    let CheckFlags {
        flags,
        connect,
        strict,
        dump,
        json,
    } = asked;
    let source = ConfigSource::new(flags).context("cannot find the current directory")?;
    let mut given = match enter(&source, StartTask::Check).context("cannot start")? {
        ProcessRole::Ended(code) => return Ok(code),
        ProcessRole::Serves(given, _) => given,
    };
    let tokens = Tokens::adopt(std::mem::take(&mut given.tokens), &Tokens::default());
    let source = source.with(given.files.clone(), tokens);
    let findings = check(&source, &given, UnixTime::now(), connect);
    let code = ExitCode::from(findings.exit_code(strict));
    if json {
        say(serde_json::to_string_pretty(&findings)? + "\n")?;
    } else {
        say(findings.page(dump))?;
    }
    Ok(code)
}

/// Executes the companion's program, which is in the folder of this program.
fn acme(arguments: &AcmeArguments) -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let program = program.with_file_name("becket-acme");
    let failed = Command::new(&program).args(&arguments.arguments).exec();
    Err(failed).with_context(|| format!("cannot start {}", program.display()))
}

fn ask_for(task: &CtlTask, place: &AdminAddress) -> anyhow::Result<ExitCode> {
    say(becket::ctl::run(place, task, false)?)?;
    Ok(ExitCode::SUCCESS)
}

fn ctl(flags: CtlFlags) -> anyhow::Result<ExitCode> {
    match becket::ctl::run(&flags.place, &flags.task, flags.json) {
        Ok(text) => {
            say(text)?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error @ NotDone::Refused(_)) => {
            eprintln!("becket: {error}");
            Ok(ExitCode::from(REFUSED))
        }
        Err(error) => Err(error.into()),
    }
}

fn status(flags: StatusFlags) -> anyhow::Result<ExitCode> {
    let place = flags.place;
    let (before, text) = place.status_and_text()?;
    if flags.json {
        say(text + "\n")?;
        return Ok(health(&before.problems));
    }
    // Rates are measured over one second.
    std::thread::sleep(Duration::from_secs(1));
    let now = place.status()?;
    say(page(&now, Some(&before)))?;
    Ok(health(&now.problems))
}

fn run_top(flags: TopFlags) -> anyhow::Result<ExitCode> {
    let every = Duration::from_secs(flags.every);
    match top::run(&flags.place, every) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error @ NotShown::NoTerminal) => {
            eprintln!("becket: {error}");
            Ok(ExitCode::from(NOT_STARTED))
        }
        Err(error) => Err(error.into()),
    }
}

fn health(problems: &[String]) -> ExitCode {
    match problems {
        [] => ExitCode::SUCCESS,
        _ => ExitCode::from(HAS_PROBLEMS),
    }
}

/// Writes `text` to standard output. Ignores that the reader has closed the pipe, as head(1) does
/// after its last line.
fn say(text: impl Display) -> anyhow::Result<()> {
    match write!(io::stdout(), "{text}").and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}

fn make_secret(flags: &SecretFlags) -> ExitCode {
    match secret_command::make(flags) {
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

fn migrate(flags: &MigrateFlags) -> anyhow::Result<ExitCode> {
    let shown = flags.file.display();
    let migration =
        dropin::migration(flags.from, &flags.file).with_context(|| shown.to_string())?;
    let report = if flags.json {
        serde_json::to_string_pretty(&migration)? + "\n"
    } else {
        migration.page()
    };
    if let (Some(toml), Some(path)) = (&migration.toml, &flags.out) {
        let named = || path.display().to_string();
        let mut file = std::fs::File::create_new(path).with_context(named)?;
        file.write_all(toml.as_bytes()).with_context(named)?;
    }
    match (&migration.toml, &flags.out) {
        // Write the report to standard error, because standard output contains the converted file.
        (Some(toml), None) if !flags.json => {
            eprint!("{report}");
            say(toml)?;
        }
        _ => say(report)?,
    }
    let has_lost = migration.has_lost();
    for mut error in migration.errors {
        error.file.get_or_insert_with(|| shown.to_string().into());
        eprintln!("{}", error.labelled("error: "));
    }
    match migration.toml {
        Some(_) if has_lost => Ok(ExitCode::from(HAS_LOST)),
        Some(_) => Ok(ExitCode::SUCCESS),
        None => Ok(ExitCode::from(NOT_STARTED)),
    }
}

fn files(flags: FilesFlags) -> anyhow::Result<ExitCode> {
    let json = flags.json;
    #[expect(clippy::disallowed_methods, reason = "read once, before anything runs")]
    let site = folder::prepare(flags, std::time::SystemTime::now())?;
    let source = ConfigSource::new(site.flags()).context("cannot find the current directory")?;
    match launch(source, ProcessResources::default(), None) {
        Ok(server) => {
            if json {
                eprint!("{}", site.banner());
            } else {
                say(site.banner())?;
            }
            Ok(ExitCode::from(server.run() as u8))
        }
        Err(error) => {
            eprintln!("{error}");
            Ok(ExitCode::from(NOT_STARTED))
        }
    }
}

fn demo(flags: &DemoFlags) -> anyhow::Result<ExitCode> {
    #[expect(clippy::disallowed_methods, reason = "read once, before anything runs")]
    let demo = becket::demo::prepare(flags.port, std::time::SystemTime::now())?;
    let source = ConfigSource::new(demo.flags()).context("cannot find the current directory")?;
    let server = launch(source, ProcessResources::default(), None)?;
    let program = std::env::args_os().next();
    let program = program.map_or_else(|| PathBuf::from("becket"), PathBuf::from);
    say(demo.banner(&program) + "\n")?;
    let counters = server.counters();
    let (stop, stopped) = std::sync::mpsc::channel();
    let lines = std::thread::spawn(move || becket::demo::display(counters, stopped));
    let outcome = server.run();
    drop(stop);
    lines.join().ok();
    Ok(ExitCode::from(outcome as u8))
}

const HAS_PROBLEMS: u8 = 3;
const REFUSED: u8 = 3;
const HAS_LOST: u8 = 3;
const NOT_STARTED: u8 = 2;
