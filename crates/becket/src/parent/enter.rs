//! Which of its parts a process of this program is to play: it serves, or is the parent of one that does.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use becket_config::process::Log;
use becket_sys::fd_passing::{InheritedListener, inherited_listeners};
use becket_sys::identity::Identity;
use becket_sys::notify::Notifier;
use becket_sys::process::receive_signals;
use becket_sys::{privileges, rlimit, root_only};
use tokio::time::Instant;

use super::child::{self, IS_CHILD, VERSION};
use super::holding::{Held, Parcel, Seen};
use super::needs::Needs;
use super::renewal::Renewable;
use super::rows::RowKeeper;
use super::upgrade::{IS_CONTINUED, Inheritance, program};
use super::{Parent, chroot, exit_code, run_as};
use crate::control::signals::Signals;
use crate::files::Files;
use crate::handover::link::{self, Link};
use crate::handover::{Begin, Handed, Order, Past};
use crate::log;
use crate::prepare::source::Source;
use crate::watch::Watch;

/// What this process is.
#[derive(Debug)]
pub enum Role {
    /// The one that serves, or checks: with what it was handed, and the way to a parent if it has one.
    Serves(Handed, Option<Link>),
    /// The parent of one that has ended.
    Ended(ExitCode),
}

/// What the child is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// To serve.
    Run,
    /// To check the configuration.
    Check,
}

/// Becomes what this process is to be: a parent until the end, or the process that does the work. Call it before threads are
/// started.
///
/// # Errors
/// What the system refuses.
pub fn enter(source: &Source, task: Task) -> io::Result<Role> {
    if is(IS_CHILD)? {
        let (link, handed, starter) = link::begin()?;
        if let Some(starter) = starter {
            source.tokens().adopt(starter);
        }
        return Ok(Role::Serves(handed, Some(link)));
    }
    let inheritance = match is(IS_CONTINUED)? {
        true => Some(Inheritance::receive()?),
        false => None,
    };
    let passed = inherited_listeners()?;
    let seen = Seen::by(source, privileges::is_root());
    let inherited = inheritance.as_ref().and_then(Inheritance::identity);
    let identity = inherited.or_else(|| identity(&seen));
    if identity.is_some() {
        // For the files that are handed over; the child needs it, too.
        if let Err(error) = rlimit::raise_open_files(rlimit::most_open_files()) {
            eprintln!("becket: {error}");
        }
    }
    let keeps_parent = identity.is_some() || seen.file.process.parent || inheritance.is_some();
    match (task, identity) {
        (Task::Check, Some(identity)) => check(source, seen, &identity).map(Role::Ended),
        (Task::Run, identity) if keeps_parent => {
            run(source, &seen, identity, passed, inheritance).map(Role::Ended)
        }
        _ => Ok(Role::Serves(Handed::passed(passed), None)),
    }
}

/// Whether this process goes on with what another has begun: a parent started it, or it was a parent before.
pub fn goes_on() -> bool {
    let is_set = |name| std::env::var_os(name).is_some();
    is_set(IS_CHILD) || is_set(IS_CONTINUED)
}

/// Whether the environment says so, in words that this version knows.
fn is(name: &str) -> io::Result<bool> {
    match std::env::var_os(name) {
        None => Ok(false),
        Some(version) if version == VERSION => Ok(true),
        Some(_) => {
            let text =
                "the running becket is of a version that this one cannot replace: restart it";
            Err(io::Error::new(io::ErrorKind::Unsupported, text))
        }
    }
}

/// The user that root is to become, where it is another. One that is not there is refused with all that is wrong.
fn identity(seen: &Seen) -> Option<Identity> {
    let process = &seen.file.process;
    let user = process.user.as_deref().filter(|_| privileges::is_root())?;
    let found = Identity::find(user, process.group.as_deref());
    found.ok().filter(|identity| identity.uid != 0)
}

/// Has a child check the configuration as one that runs would find it.
fn check(source: &Source, seen: Seen, identity: &Identity) -> io::Result<ExitCode> {
    let needs = Needs::by(&seen.file, &source.folder());
    let gives = |path: &&PathBuf| seen.is_roots && root_only::gives(path).unwrap_or(false);
    let logs = needs.logs.iter().filter(gives).cloned().collect();
    let chroot = chroot(&seen, source);
    let mut parcel = Parcel::of_files(source, seen, &needs);
    parcel.list.is_all = chroot.is_some();
    parcel.list.logs = logs;
    parcel.probe(&needs);
    let (child, stream) = child::spawn("/proc/self/exe".as_ref())?;
    let begin = Begin {
        user: Some(run_as(identity, chroot, &[])),
        past: Past::default(),
        row: None,
        replaces: false,
        list: parcel.list,
    };
    child::send(&stream, &Order::Begin(begin), &parcel.fds)?;
    Ok(exit_code(child.wait()?))
}

fn run(
    source: &Source,
    seen: &Seen,
    identity: Option<Identity>,
    passed: Vec<InheritedListener>,
    inheritance: Option<Inheritance>,
) -> io::Result<ExitCode> {
    // A child that was taken over may be of the same user.
    privileges::forbid_tracing()?;
    let (file, level) = (&seen.file.log, &seen.file.log.level);
    let log = Log {
        level: log::check_level(level).map_or_else(|_| "info".to_owned(), |()| level.clone()),
        format: file.format,
        syslog: file.syslog.clone(),
        syslog_facility: file.syslog_facility,
        syslog_tag: file.syslog_tag.clone(),
        ..Log::default()
    };
    let _logging = log::install(&log, &Files::default()).map_err(io::Error::other)?;
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build()?;
    runtime.block_on(async {
        let signals = Signals::listen()?;
        let mut parent = Parent {
            source: source.clone(),
            identity,
            program: program()?,
            passed,
            workers: 0,
            logs: Vec::new(),
            chroot: None,
            held: Held::new(),
            drain: Duration::ZERO,
            offered: None,
            again: false,
            renewable: Renewable::default(),
            watch: Watch::default(),
            is_looking: false,
            looks_next: false,
            upgrade: None,
            upgrades_next: false,
            is_outdated: false,
            leaving: Vec::new(),
            look_at: Instant::now(),
            is_ready: false,
            ends_by: None,
            restart_at: None,
            past: Past::default(),
            failures: 0,
            pid_file: None,
            admin_socket: None,
            rows: RowKeeper::create(),
            notifier: Notifier::from_env()?,
        };
        let child = match inheritance {
            Some(inheritance) => {
                let child = parent.inherit(inheritance)?;
                // Those that came while one program took the place of another.
                receive_signals()?;
                child
            }
            None => parent.start()?,
        };
        parent.run(child, signals).await
    })
}
