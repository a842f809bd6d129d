//! The role of this process: it serves, checks, or supervises.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use becket_config::process::{Log, LogTarget};
use becket_sys::fd_messages;
use becket_sys::identity::UnixIdentity;
use becket_sys::notify::Notifier;
use becket_sys::{privileges, rlimit, root_only};

use super::carried::Carried;
use super::child;
use super::listing::{ListedFiles, open_listed};
use super::needs::Needs;
use super::resources::{FoundConfig, HeldSockets, ResourceOffer, passed};
use super::run::{Runner, RunnerSettings};
use crate::link::resources::ProcessResources;
use crate::link::{self, SupervisorLink};
use crate::protocol::{
    Command, Event, IS_CONTINUED, IS_STARTED, LONGEST_EVENT, ProcessStart, Restarts, RunAs, VERSION,
};
use crate::signals::Signals;
use becket_keys::files::Files;
use becket_keys::signing::token::agents::Agents;
use becket_keys::signing::token::wire::tokens;
use becket_keys::watch::WatchedPlaces;
use becket_prepare::source::ConfigSource;

#[derive(Debug)]
pub enum ProcessRole {
    /// The process serves or checks with these resources. The link is `None` without a supervisor.
    Serves(Box<ProcessResources>, Option<SupervisorLink>),
    /// The supervisor has ended; the process exits with this code.
    Ended(ExitCode),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartTask {
    Run,
    Check,
}

/// Starts this process in its role. In the supervisor, the call lasts until the supervisor ends; in
/// a serving or checking process, it returns. Call it before threads are started.
pub fn enter(source: &ConfigSource, task: StartTask) -> io::Result<ProcessRole> {
    if is(IS_STARTED)? {
        let (link, given) = link::begin()?;
        return Ok(ProcessRole::Serves(Box::new(given), Some(link)));
    }
    let is_continued = continues_supervisor();
    let passed = passed()?;
    let seen = FoundConfig::by(source, privileges::is_root());
    if task == StartTask::Run {
        return supervise(source, &seen, passed, is_continued).map(ProcessRole::Ended);
    }
    match identity(&seen) {
        Some(identity) => {
            raise_open_files();
            check(source, &seen, &identity).map(ProcessRole::Ended)
        }
        None => {
            let (_, tokens) = Agents::start(tokens(&seen.file), None, seen.is_roots, None)?;
            let given = ProcessResources {
                tokens,
                ..ProcessResources::passed(passed)
            };
            Ok(ProcessRole::Serves(Box::new(given), None))
        }
    }
}

/// Returns `true` if a supervisor started this process, or if this process was a supervisor that
/// executed this program.
pub fn continues() -> bool {
    std::env::var_os(IS_STARTED).is_some() || continues_supervisor()
}

fn continues_supervisor() -> bool {
    std::env::var_os(IS_CONTINUED).is_some()
}

/// Returns `true` if the environment variable `name` is [`VERSION`], `false` if it is unset.
/// Another version is an error.
fn is(name: &str) -> io::Result<bool> {
    match std::env::var_os(name) {
        None => Ok(false),
        Some(version) if version == VERSION => Ok(true),
        Some(_) => {
            let text = "this program cannot replace the running becket: the versions are incompatible; restart becket";
            Err(io::Error::new(io::ErrorKind::Unsupported, text))
        }
    }
}

/// Returns the user that the serving processes run as; `None` if they keep the user of the
/// supervisor. Ignores an unknown user, because the serving process reports it.
fn identity(seen: &FoundConfig) -> Option<UnixIdentity> {
    let process = &seen.file.process;
    let user = process.user.as_deref().filter(|_| privileges::is_root())?;
    let found = UnixIdentity::find(user, process.group.as_deref());
    found.ok().filter(|identity| identity.uid != 0)
}

/// Raises the limit of open files, because the sockets and files that this process passes to
/// another process count in both processes.
fn raise_open_files() {
    if let Err(error) = rlimit::raise_open_files(rlimit::most_open_files()) {
        becket_log::write_to_stderr(&format!("becket: {error}"));
    }
}

/// Runs a process that checks the configuration with the rights of a serving process.
fn check(
    source: &ConfigSource,
    seen: &FoundConfig,
    identity: &UnixIdentity,
) -> io::Result<ExitCode> {
    let needs = Needs::by(&seen.file, &source.folder());
    let gives =
        |path: &&PathBuf| seen.is_roots && root_only::gives(path, identity).unwrap_or(false);
    let logs = needs.logs.iter().filter(gives).cloned().collect();
    let places = WatchedPlaces::default();
    let mut offer = ResourceOffer::of_files(source, (seen, &needs), &places);
    offer.listing.logs = logs;
    offer.probe(&needs);
    offer.start_agents(seen, &needs, Some(identity), None);
    let listed = ListedFiles::of(&offer.listing);
    let (process, stream) = child::spawn(Path::new("/proc/self/exe"))?;
    let start = ProcessStart {
        supervisor: std::process::id(),
        user: Some(RunAs {
            identity: identity.clone(),
            logs: Vec::new(),
        }),
        restarts: Restarts::default(),
        replaces: false,
        listing: offer.listing,
    };
    send(&stream, &Command::Start(start), offer.fds)?;
    while let Some((text, _)) = fd_messages::receive(&stream, LONGEST_EVENT, 0)? {
        if let Event::Open {
            listing,
            first,
            count,
        } = serde_json::from_slice(&text)?
        {
            let opened = open_listed(&listed, (first, count));
            let answer = Command::Opened(listing, first, opened.results);
            send(&stream, &answer, opened.fds)?;
        }
    }
    let code = child::ended(process.wait()?).code;
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

fn send(stream: &UnixStream, command: &Command, fds: Vec<OwnedFd>) -> io::Result<()> {
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    fd_messages::send(stream, &serde_json::to_vec(command)?, &fds, PATIENCE)
}

/// Runs the supervisor. An error in the state of the previous program does not end the service.
fn supervise(
    source: &ConfigSource,
    seen: &FoundConfig,
    passed: HeldSockets,
    is_continued: bool,
) -> io::Result<ExitCode> {
    // A compromised serving process may run as the same user, and must not trace the supervisor.
    privileges::forbid_tracing()?;
    let logging = start_log(seen)?;
    let carried = is_continued.then(Carried::receive).transpose();
    let carried = carried.inspect_err(|error| {
        tracing::error!(name: "supervisor-state-lost", %error, "cannot read the state of the previous supervisor program; starting a new serving process");
    });
    let carried = carried.ok().flatten();
    let user = carried.as_ref().and_then(|carried| carried.user());
    let identity = user.cloned().or_else(|| identity(seen));
    raise_open_files();
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build()?;
    let ended = runtime.block_on(async {
        let setup = RunnerSettings {
            source: source.clone(),
            identity,
            program: program().unwrap_or_else(|_| PathBuf::from("/proc/self/exe")),
            notifier: Notifier::from_env().unwrap_or_else(|error| {
                tracing::error!(name: "notify-failed", %error, "cannot notify the service manager");
                None
            }),
        };
        let signals = Signals::listen()?;
        let mut runner = Runner::new(setup, logging);
        runner.held.current.sockets = passed;
        let first = match carried {
            Some(carried) => carried.resume(&mut runner),
            None if is_continued => runner.supervisor.recover(),
            None => runner.supervisor.begin(),
        };
        if is_continued {
            // Delivers signals that arrived during the exec.
            signals.release()?;
        }
        Ok(runner.run(first, signals).await)
    });
    // A check of watched files may block on a failed disk, so the exit does not wait for it.
    runtime.shutdown_background();
    ended
}

/// Starts the supervisor's log, which writes to stderr or syslog as configured. The serving process
/// reports an invalid level.
fn start_log(seen: &FoundConfig) -> io::Result<becket_log::Logging> {
    let mut log = Log {
        file: LogTarget::Stderr,
        access: LogTarget::Off,
        ..seen.file.log.clone()
    };
    if becket_log::check_level(&log.level).is_err() {
        log.level = Log::default().level;
    }
    let logging = becket_log::install(&log, &Files::default()).map_err(io::Error::other)?;
    logging.start().map_err(io::Error::other)?;
    Ok(logging)
}

/// Returns the path of the program that an upgrade starts: `argv[0]` if it is absolute, because it
/// may be a link to a newer program; otherwise the path of the running executable.
fn program() -> io::Result<PathBuf> {
    let called = std::env::args_os().next().unwrap_or_default();
    let called = Path::new(&called);
    if called.is_absolute() && std::fs::exists(called)? {
        return Ok(called.to_owned());
    }
    std::env::current_exe()
}

/// Time limit for a checking process to read a command.
const PATIENCE: Duration = Duration::from_secs(30);
