//! State that survives execve(2): the supervisor passes [`Carried`] and descriptors to its next
//! program over a socket on standard input.
//!
//! The kernel keeps the process ID, children, descriptors and signal mask. No error in the state
//! ends the service. A part that cannot be read is logged and skipped. Without any state, the new
//! program starts as if the serving process had died.

use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use becket_sys::fd_messages;
use becket_sys::identity::UnixIdentity;
use becket_sys::process::become_program;
use becket_sys::socket_file::SocketFile;
use serde::{Deserialize, Serialize};

use crate::signals::Signals;
use becket_log::PATIENCE;

use super::child::Child;
use super::run::Runner;
use super::supervisor::{Action, Input, Supervisor, SupervisorState};
use crate::protocol::{IS_CONTINUED, OperatorRequest, SocketKind, VERSION};

/// The state as JSON, in a memory file. Descriptors follow in this order: one per process, the
/// sockets, the admin socket.
#[derive(Debug, Serialize, Deserialize)]
struct CarriedState {
    supervisor: SupervisorState,
    /// User of the serving processes. The next program does not read the user from the
    /// configuration file, because the file may be half written.
    user: Option<UnixIdentity>,
    processes: Vec<CarriedProcess>,
    workers: usize,
    asked: u64,
    sockets: Vec<(SocketKind, SocketAddr, usize)>,
    admin_socket: Option<PathBuf>,
    /// Running token agents, including agents that are being stopped.
    #[serde(default)]
    agents: serde_json::Value,
}

#[derive(Debug, Serialize, Deserialize)]
struct CarriedProcess {
    id: u32,
    pid: u32,
    /// Received bytes of an incomplete event.
    read: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Carried {
    state: CarriedState,
    fds: Vec<OwnedFd>,
}

impl Carried {
    pub(super) fn of(runner: &Runner, supervisor: SupervisorState) -> io::Result<Self> {
        let setup = &runner.setup;
        let mut fds = Vec::new();
        let mut processes = Vec::new();
        for child in &runner.children {
            let (stream, read) = child.carry()?;
            fds.push(stream);
            processes.push(CarriedProcess {
                id: child.id,
                pid: child.pid(),
                read,
            });
        }
        let sockets = &runner.held.current.sockets;
        for socket in sockets.values().flatten() {
            fds.push(socket.try_clone()?);
        }
        let admin = runner.admin_socket.as_ref();
        let admin = admin.and_then(|socket| Some((socket.path()?.to_owned(), socket)));
        if let Some((_, socket)) = &admin {
            fds.push(socket.listener().try_clone()?.into());
        }
        let state = CarriedState {
            supervisor,
            user: setup.identity.clone(),
            processes,
            workers: runner.held.current.workers,
            asked: runner.asked,
            sockets: sockets
                .iter()
                .map(|((kind, address), all)| (*kind, *address, all.len()))
                .collect(),
            admin_socket: admin.map(|(path, _)| path),
            agents: serde_json::to_value((
                &runner.held.current.agents,
                &runner.held.unused_agents,
            ))?,
        };
        Ok(Self { state, fds })
    }

    pub(super) fn receive() -> io::Result<Self> {
        let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let received = fd_messages::receive(&stream, 0, MOST_FDS)?;
        let (_, mut fds) = received.ok_or(io::ErrorKind::UnexpectedEof)?;
        if fds.is_empty() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let text = io::read_to_string(File::from(fds.remove(0)))?;
        Ok(Self {
            state: serde_json::from_str(&text)?,
            fds,
        })
    }

    pub(super) fn user(&self) -> Option<&UnixIdentity> {
        self.state.user.as_ref()
    }

    /// Restores the state into `runner`. Returns the first actions.
    pub(super) fn resume(self, runner: &mut Runner) -> Vec<Action> {
        let Self { state, fds } = self;
        let mut fds = fds.into_iter();
        let mut lost = Vec::new();
        for CarriedProcess { id, pid, read } in state.processes {
            let stream = fds.next().ok_or(io::ErrorKind::NotFound.into());
            match stream.and_then(|stream| Child::adopt(id, pid, stream, read)) {
                Ok(child) => runner.children.push(child),
                Err(error) => lost.push((id, error.into())),
            }
        }
        for (kind, address, count) in state.sockets {
            runner
                .held
                .current
                .sockets
                .insert((kind, address), fds.by_ref().take(count).collect());
        }
        if let (Some(path), Some(socket)) = (state.admin_socket, fds.next()) {
            runner.admin_socket = match SocketFile::adopt(socket, path) {
                Ok(socket) => Some(socket),
                Err(error) => {
                    tracing::error!(name: "admin-socket-lost", %error, "cannot take over the admin socket after the upgrade");
                    None
                }
            };
        }
        if let Ok(agents) = serde_json::from_value(state.agents) {
            (runner.held.current.agents, runner.held.unused_agents) = agents;
        }
        (runner.held.current.workers, runner.asked) = (state.workers, state.asked);
        runner.adopt_configuration();
        let now = runner.now();
        let (mut supervisor, mut outputs) = Supervisor::resume(state.supervisor, now);
        for (process, ended) in lost {
            outputs.extend(supervisor.handle(now, Input::Exited(process, ended)));
        }
        outputs.extend(supervisor.handle(now, Input::Tick));
        runner.supervisor = supervisor;
        outputs
    }
}

impl Runner {
    /// Executes the program of the serving process in place, after all requests have ended. Returns
    /// an input for the supervisor if the exec fails.
    pub(super) async fn become_program(&mut self, signals: &mut Signals) -> Option<Input> {
        if !self.is_replaced || !self.children.iter().all(Child::is_flushed) {
            return None;
        }
        self.is_replaced = false;
        let mut state = self.supervisor.state(self.now())?;
        let held = match signals.hold().await {
            Ok(held) => held,
            Err(error) => return Some(Input::NotReplaced(error.to_string())),
        };
        if held
            .iter()
            .all(|request| *request == OperatorRequest::Reload)
        {
            // The next program carries out the reload. Waiting here until no reload is requested
            // could take forever.
            state.reload |= !held.is_empty();
        } else {
            self.is_replaced = true;
            self.queued = held.into();
            let released = signals.release().err();
            return released.map(|error| Input::NotReplaced(error.to_string()));
        }
        self.logging.flush(PATIENCE);
        let carried = Carried::of(self, state);
        let replaced = carried.and_then(|carried| replace(&self.setup.program, &carried));
        if let Err(error) = signals.release() {
            tracing::error!(name: "signals-failed", %error, "cannot install the signal handlers");
        }
        replaced
            .err()
            .map(|error| Input::NotReplaced(error.to_string()))
    }
}

/// Executes `program`, which then reads the state from a socket. The socket buffer must hold the
/// whole state, because nothing reads it before the exec. Returns only on failure.
fn replace(program: &Path, carried: &Carried) -> io::Result<Infallible> {
    let text = fd_messages::text_file(&serde_json::to_vec(&carried.state)?)?;
    let fds = carried.fds.iter().map(AsFd::as_fd);
    let fds: Vec<_> = [text.as_fd()].into_iter().chain(fds).collect();
    let (here, there) = UnixStream::pair()?;
    fd_messages::send(&here, &[], &fds, TO_WRITE)?;
    Err(become_program(program, (IS_CONTINUED, VERSION), there))
}

const TO_WRITE: Duration = Duration::from_secs(1);
const MOST_FDS: usize = 1024 * 1024;
