//! The starter: this program, executed once more to start agents and to end them.
//!
//! It is started before the terminator gives up what an agent needs: with `process.chroot` the file system of the host, with
//! `process.sandbox` that there are other processes at all. It is the same user, without any right of root's, hears requests on its
//! standard input ([`becket_proto::token`]), and ends with the terminator, which ends its agents. It never waits for an agent.
//!
//! The terminator may be in another's hands, once it meets peers. Before that it seals the starter: from then on agents get
//! modules that one was started with before, and no other file.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use becket_proto::token::{Answer, LONGEST, Request};
use becket_sys::identity::Identity;
use becket_sys::seqpacket::{Packet, Seqpacket};
use becket_sys::{privileges, rlimit};

use super::agent;
use super::link::Agent;

/// The name under which the program is the starter.
const NAME: &str = "becket-tokens";

/// Whether this process was started as the starter.
pub fn is_starter() -> bool {
    std::env::args_os().next().is_some_and(|name| name == NAME)
}

/// Starts agents until the terminator is gone.
pub fn run() -> ExitCode {
    match secure().and_then(|()| serve()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{NAME}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Becomes the user whose numbers are the arguments, if there are any, and nothing more.
fn secure() -> io::Result<()> {
    let numbers = std::env::args().skip(1).map(|number| number.parse());
    let numbers: Result<Vec<u32>, _> = numbers.collect();
    if let [uid, gid, groups @ ..] = &numbers.map_err(io::Error::other)?[..] {
        let (uid, gid, groups) = (*uid, *gid, groups.to_vec());
        privileges::drop_to(&Identity { uid, gid, groups })?;
    }
    // As for an agent.
    std::fs::write("/proc/self/comm", NAME).ok();
    rlimit::forbid_core_dumps()?;
    privileges::forbid_new_privileges()
}

fn serve() -> io::Result<()> {
    let socket = Seqpacket::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (mut agents, mut ending) = (HashMap::new(), Vec::new());
    let (mut modules, mut is_sealed) = (BTreeSet::new(), false);
    let mut room = [0; LONGEST];
    loop {
        while !ending.is_empty() && !socket.wait(LOOK)? {
            ending.retain_mut(is_there);
        }
        let Packet::Message(length, fd) = socket.receive(&mut room)? else {
            return Ok(());
        };
        let request = Request::read(room.get(..length).unwrap_or_default());
        match (request, fd) {
            (Some((number, Request::Start { module })), Some(stdin)) => {
                let started = if is_sealed && !modules.contains(module) {
                    Err(io::Error::other(UNKNOWN))
                } else {
                    modules.insert(module.to_owned());
                    start(module, stdin)
                };
                let fault = started.as_ref().err().map(ToString::to_string);
                let answer = match &fault {
                    None => Answer::Opened,
                    Some(why) => Answer::Failed(why),
                };
                socket.send(&answer.write(number), None)?;
                agents.extend(started.ok().map(|agent| (number, agent)));
            }
            (Some((number, Request::End)), None) => {
                if let Some(mut agent) = agents.remove(&number) {
                    let _gone: io::Result<()> = Child::kill(&mut agent);
                    ending.push(agent);
                }
            }
            (Some((_, Request::Seal)), None) => is_sealed = true,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

fn is_there(agent: &mut Child) -> bool {
    matches!(agent.try_wait(), Ok(None))
}

/// Executes this program as an agent, with a socket for its standard input.
fn start(module: &str, stdin: OwnedFd) -> io::Result<Child> {
    Command::new("/proc/self/exe")
        .arg0(agent::NAME)
        // For whoever looks at a list of processes; it is told what to load.
        .arg(module)
        .arg(std::process::id().to_string())
        .stdin(stdin)
        .stdout(Stdio::null())
        .spawn()
}

/// The way to the starter, which is started when it is first needed.
#[derive(Debug, Default)]
pub(super) struct Starter(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    process: Option<StarterProcess>,
    /// No two agents have the same number.
    last: u64,
    is_sealed: bool,
}

/// A starter that runs, until this is dropped.
#[derive(Debug)]
pub struct StarterProcess {
    socket: Seqpacket,
    process: Child,
    is_sealed: bool,
}

/// An agent that was started.
#[derive(Debug)]
pub(super) struct Started {
    number: u64,
    by: Arc<Starter>,
}

impl StarterProcess {
    /// Executes this program as the starter, for a process that is to become this user.
    ///
    /// # Errors
    /// What the system says.
    pub fn spawn(user: Option<&Identity>) -> io::Result<Self> {
        let (socket, there) = Seqpacket::pair()?;
        let ids = |user: &Identity| [&[user.uid, user.gid][..], &user.groups].concat();
        let ids = user.map(ids).unwrap_or_default();
        let process = Command::new("/proc/self/exe")
            .arg0(NAME)
            .args(ids.iter().map(ToString::to_string))
            .env_remove("NOTIFY_SOCKET")
            .env_remove("SSLKEYLOGFILE")
            .stdin(Stdio::from(OwnedFd::from(there)))
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self {
            socket,
            process,
            is_sealed: false,
        })
    }

    /// Has it start an agent with this number. The outer error: it is of no use any more; the inner one: there is no agent.
    fn start(&self, number: u64, module: &Path) -> io::Result<io::Result<Seqpacket>> {
        let (here, there) = Seqpacket::pair()?;
        let there = OwnedFd::from(there);
        let module = module.to_str().ok_or(io::ErrorKind::InvalidInput)?;
        let request = Request::Start { module };
        self.socket
            .send(&request.write(number), Some(there.as_fd()))?;
        if !self.socket.wait(PATIENCE)? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut room = [0; LONGEST];
        let Packet::Message(length, None) = self.socket.receive(&mut room)? else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        match Answer::read(room.get(..length).unwrap_or_default()) {
            Some((of, Answer::Opened)) if of == number => Ok(Ok(here)),
            Some((of, Answer::Failed(why))) if of == number => Ok(Err(io::Error::other(why))),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

impl Drop for StarterProcess {
    fn drop(&mut self) {
        if self.is_sealed {
            // A process that is confined ends no other: this one ends with its socket.
            return;
        }
        if let Err(error) = self.process.kill().and_then(|()| self.process.wait()) {
            tracing::error!(%error, "the process that starts those of tokens is not ended");
        }
    }
}

impl Starter {
    /// Has one that was started already start agents.
    pub(super) fn adopt(&self, process: StarterProcess) {
        self.lock().process = Some(process);
    }

    /// Has no agent get a module that none was started with before, and no other starter follow this one.
    pub(super) fn seal(&self) {
        let mut state = self.lock();
        state.is_sealed = true;
        let Some(process) = &mut state.process else {
            return;
        };
        process.is_sealed = true;
        if let Err(error) = process.socket.send(&Request::Seal.write(0), None) {
            tracing::error!(%error, "no process of a token is started any more");
            state.process = None;
        }
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.lock().is_sealed
    }

    /// Has one run, which a thread of a token that is sandboxed could not start.
    pub(super) fn make_ready(&self) -> io::Result<()> {
        self.lock().process().map(drop)
    }

    /// Starts an agent. Waits.
    pub(super) fn start(self: &Arc<Self>, module: &Path) -> io::Result<Agent> {
        let mut state = self.lock();
        state.last += 1;
        let number = state.last;
        let started = match state.process()?.start(number, module) {
            Ok(started) => started,
            Err(error) => {
                // One that is of no use is followed by another, if that may be.
                state.process = None;
                return Err(match state.is_sealed {
                    true => io::Error::other(TOO_LATE),
                    false => error,
                });
            }
        };
        drop(state);
        let socket = Arc::new(started?);
        let by = Arc::clone(self);
        let process = Some(Started { number, by });
        Ok(Agent { socket, process })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The one that runs, or is started.
    fn process(&mut self) -> io::Result<&StarterProcess> {
        match &mut self.process {
            Some(process) => Ok(process),
            _ if self.is_sealed => Err(io::Error::other(TOO_LATE)),
            none => Ok(none.insert(StarterProcess::spawn(None)?)),
        }
    }
}

impl Started {
    /// Ends it. Does not wait.
    pub(super) fn end(&self) {
        let state = self.by.lock();
        let Some(process) = &state.process else {
            // Its agents have ended with it.
            return;
        };
        let end = Request::End.write(self.number);
        if let Err(error) = process.socket.send(&end, None) {
            tracing::error!(%error, "the process of a token is not ended");
        }
    }
}

/// To start a process. It is busy with nothing else.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks whether an agent that was killed has ended.
const LOOK: Duration = Duration::from_millis(50);
const UNKNOWN: &str = "no key needed its module when becket was started: restart or upgrade becket";
const TOO_LATE: &str = "a process that is confined starts none for it: restart or upgrade becket";
