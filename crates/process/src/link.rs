//! A process's end of the socket pair to its supervisor: receives commands, sends events, requests
//! files.
//!
//! The socket is standard input of the process. Before [`SupervisorLink::listen`] starts a thread,
//! only [`Opener`] reads commands, and it queues all commands except [`Command::Opened`]. A process
//! that has not served yet dies with its supervisor (PR_SET_PDEATHSIG). When the supervisor exits,
//! a serving process acts as after [`Command::Leave`].

mod opener;
pub mod resources;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use becket_sys::process::die_with_parent;
use becket_sys::{privileges, root_only};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

pub use self::opener::{Delivered, Opener};
use self::opener::{OpenAnswer, receive};
use self::resources::ProcessResources;
use crate::protocol::{Command, Event, Restarts, RunAs};

#[derive(Debug)]
pub struct SupervisorLink {
    pub restarts: Restarts,
    /// `true` if this process restarts the service after the previous serving process died; `false`
    /// in an upgrade.
    pub follows_a_death: bool,
    /// Socket on which the replaced process sends its state; `None` if this process replaces no
    /// process.
    pub replaced: Option<UnixStream>,
    pub opener: Arc<Opener>,
}

/// Reads the start command, changes to the user that it names, and drops all privileges. Call it
/// before threads are started.
///
/// # Errors
/// Fails if the supervisor has exited or if a privilege cannot be dropped.
pub fn begin() -> io::Result<(SupervisorLink, ProcessResources)> {
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (command, mut fds) = receive(&stream)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let Command::Start(start) = command else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    call_by_name();
    let logs = become_user(start.user.as_ref())?;
    // Must follow the change of user, which resets this setting.
    die_with_parent(start.supervisor)?;
    let replaced = if start.replaces {
        Some(fds.pop().ok_or(io::ErrorKind::InvalidData)?.into())
    } else {
        None
    };
    let opener = Arc::new(Opener::new(stream));
    let mut given = ProcessResources::new(start.listing, fds, &opener)?;
    given.files = given.files.with_logs(logs);
    given.sockets.listen_later = start.replaces;
    let link = SupervisorLink {
        restarts: start.restarts,
        follows_a_death: !start.replaces && start.restarts.deaths > 0,
        replaced,
        opener,
    };
    Ok((link, given))
}

/// Changes to the user of a start command. Returns log files that were opened before, because they
/// may be in root-owned folders that the user cannot access.
fn become_user(user: Option<&RunAs>) -> io::Result<BTreeMap<PathBuf, File>> {
    privileges::forbid_new_privileges()?;
    let Some(user) = user else {
        return Ok(BTreeMap::new());
    };
    let opened = |log: &PathBuf| {
        let file = root_only::open_log(log, &user.identity).ok()??;
        Some((log.clone(), file))
    };
    let logs = user.logs.iter().filter_map(opened).collect();
    privileges::drop_to(&user.identity)?;
    Ok(logs)
}

/// Sets the process name to the name of the program, for `pgrep`. The kernel has set it to the name
/// of the executed link, such as `exe`.
fn call_by_name() {
    let program = std::env::args_os().next().unwrap_or_default();
    if let Some(name) = Path::new(&program).file_name()
        && let Err(error) = std::fs::write("/proc/self/comm", name.as_encoded_bytes())
    {
        tracing::debug!(%error, "cannot set the name of the process");
    }
}

impl SupervisorLink {
    /// Sends an event without waiting. An error is only logged, because the receiving thread
    /// notices the exit of the supervisor.
    pub fn report(&self, event: &Event) {
        if matches!(
            event,
            Event::Ready | Event::Reloaded | Event::Refused | Event::Renewed(_)
        ) {
            self.opener.close_files();
        }
        if let Err(error) = self.opener.send(event) {
            tracing::debug!(%error, "cannot report to the supervisor");
        }
    }

    /// Starts the thread that receives commands.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub fn listen(&self) -> io::Result<UnboundedReceiver<Delivered>> {
        let (sender, receiver) = unbounded_channel();
        let (opened, answers) = channel();
        let opener = Arc::clone(&self.opener);
        for command in opener.answered_by(answers) {
            // Cannot fail, because the receiver is returned below.
            let _received = sender.send((command, Vec::new()));
        }
        let thread = thread::Builder::new().name("becket-command".into());
        thread.spawn(move || receive_all(opener.stream(), &sender, &opened))?;
        Ok(receiver)
    }
}

fn receive_all(
    stream: &UnixStream,
    commands: &UnboundedSender<Delivered>,
    opened: &Sender<OpenAnswer>,
) {
    let mut drains = false;
    loop {
        let received = receive(stream).and_then(|it| it.ok_or(io::ErrorKind::UnexpectedEof.into()));
        let is_last = received.is_err();
        let received = received.unwrap_or_else(|error| {
            tracing::error!(name: "supervisor-exited", %error, "the supervisor exited; draining");
            // In contrast to `Drain`, `Leave` also closes the admin pages, whose address the next
            // becket needs.
            (Command::Leave, Vec::new())
        });
        let sent = match received {
            (Command::Opened(listing, first, found), fds) => {
                opened.send((listing, first, found, fds)).is_ok()
            }
            // A second drain command would close connections.
            _ if is_last && drains => return,
            received => {
                drains |= matches!(received.0, Command::Drain | Command::Leave);
                commands.send(received).is_ok()
            }
        };
        // Sending fails when this process exits, because it drops the receivers.
        if !sent || is_last {
            return;
        }
    }
}
