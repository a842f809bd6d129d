//! A process's end of the socket pair to its supervisor: commands arrive, events leave, listed files are opened.
//!
//! The socket is the process's standard input. Until [`Link::listen`] starts a thread, nothing reads commands but [`Opener`], which keeps those
//! that it meets. A process that has not served dies with its supervisor (PR_SET_PDEATHSIG); one that serves takes the end of the socket
//! for [`Command::Drain`].

pub mod given;

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use becket_sys::fd_messages::{self, Outgoing};
use becket_sys::log_file::append;
use becket_sys::process::die_with_parent;
use becket_sys::{affinity, privileges, root_only};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use self::given::Given;
use crate::protocol::{
    Command, Event, LONGEST_COMMAND, MOST_OPENED, OpenResult, ProcessStart, Restarts, RunAs,
};

/// A command, with the descriptors that came with it.
pub(crate) type Delivered = (Command, Vec<OwnedFd>);

/// The way to the supervisor.
#[derive(Debug)]
pub struct Link {
    pub(crate) restarts: Restarts,
    /// Where the process that this one replaces sends its state.
    pub(crate) replaced: Option<UnixStream>,
    pub(crate) opener: Arc<Opener>,
}

/// Reads the start command, and becomes the user that this process is to be, without any right of root's. Call it before threads are
/// started.
///
/// # Errors
/// When the supervisor has ended, or a right could not be given up.
pub(crate) fn begin() -> io::Result<(Link, Given)> {
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (command, mut fds) = receive(&stream)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let Command::Start(start) = command else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    call_by_name();
    let logs = become_user(&start)?;
    // After the change of user, which resets it.
    die_with_parent(start.supervisor)?;
    let replaced = match start.replaces {
        true => Some(fds.pop().ok_or(io::ErrorKind::InvalidData)?.into()),
        false => None,
    };
    let opener = Arc::new(Opener::new(stream));
    let mut given = Given::new(start.listing, fds, &opener)?;
    given.files = given.files.with_logs(logs);
    given.sockets.listen_later = start.replaces;
    let link = Link {
        restarts: start.restarts,
        replaced,
        opener,
    };
    Ok((link, given))
}

/// Logs by their paths, or why they could not be opened.
type Logs = BTreeMap<PathBuf, io::Result<File>>;

/// Enters the file system and becomes the user of a start command. Returns the logs that the user cannot reach afterwards.
fn become_user(start: &ProcessStart) -> io::Result<Logs> {
    let logs = start.user.as_ref().map(open_logs).transpose()?;
    if let Some(user) = &start.user
        && let Some(folder) = &user.chroot
    {
        // While there is a /proc that knows of quotas.
        let _count = affinity::worker_count();
        privileges::enter_root(folder).map_err(|error| {
            let text = format!("process.chroot = {:?}: {error}", folder.display());
            io::Error::new(error.kind(), text)
        })?;
    }
    privileges::forbid_new_privileges()?;
    if let Some(user) = &start.user {
        privileges::drop_to(&user.identity())?;
    }
    Ok(logs.unwrap_or_default())
}

/// Opens the logs that a user cannot reach later: in folders of root's that the user may not enter, and outside of its chroot.
fn open_logs(user: &RunAs) -> io::Result<Logs> {
    let identity = user.identity();
    let mut logs = Logs::new();
    for log in &user.logs {
        let is_outside = user.chroot.as_ref().is_some_and(|at| !log.starts_with(at));
        let file = match root_only::open_log(log, &identity) {
            Ok(Some(file)) => Ok(file),
            _ if is_outside => privileges::with_rights_of(&identity, || append(log))?,
            _ => continue,
        };
        logs.insert(log.clone(), file);
    }
    Ok(logs)
}

/// Names this process for its program, since the kernel names it for the link that was executed: `pgrep` looks for it.
fn call_by_name() {
    let program = std::env::args_os().next().unwrap_or_default();
    if let Some(name) = Path::new(&program).file_name()
        && let Err(error) = std::fs::write("/proc/self/comm", name.as_encoded_bytes())
    {
        tracing::debug!(%error, "cannot set the name of the process");
    }
}

impl Link {
    /// Reports an event, without waiting. The end of the supervisor is noticed where commands arrive.
    pub(crate) fn report(&self, event: &Event) {
        if matches!(
            event,
            Event::Ready | Event::Reloaded | Event::Refused | Event::Renewed
        ) {
            lock(&self.opener.asking).ahead.clear();
        }
        if let Err(error) = self.opener.send(event) {
            tracing::debug!(%error, "cannot report to the supervisor");
        }
    }

    /// Starts the thread that receives commands.
    ///
    /// # Errors
    /// When there can be no more threads.
    pub(crate) fn listen(&self) -> io::Result<UnboundedReceiver<Delivered>> {
        let (sender, receiver) = unbounded_channel();
        let (opened, answers) = channel();
        let opener = Arc::clone(&self.opener);
        let mut asking = lock(&opener.asking);
        for command in asking.early.drain(..) {
            // Its receiver is returned below.
            let _received = sender.send((command, Vec::new()));
        }
        asking.answers = Some(answers);
        drop(asking);
        let thread = thread::Builder::new().name("becket-command".into());
        thread.spawn(move || receive_all(&opener.stream, &sender, &opened))?;
        Ok(receiver)
    }
}

fn receive_all(
    stream: &UnixStream,
    commands: &UnboundedSender<Delivered>,
    opened: &Sender<(Vec<OpenResult>, Vec<OwnedFd>)>,
) {
    let mut drains = false;
    loop {
        let received = receive(stream).and_then(|it| it.ok_or(io::ErrorKind::UnexpectedEof.into()));
        let is_last = received.is_err();
        let received = received.unwrap_or_else(|error| {
            tracing::error!(%error, "the supervisor has ended");
            (Command::Drain, Vec::new())
        });
        let sent = match received {
            (Command::Opened(found), fds) => opened.send((found, fds)).is_ok(),
            // A second command to drain would cut connections off.
            _ if is_last && drains => return,
            received => {
                drains |= matches!(received.0, Command::Drain | Command::Leave);
                commands.send(received).is_ok()
            }
        };
        // Without a receiver this process is on its way out.
        if !sent || is_last {
            return;
        }
    }
}

/// Has the supervisor open the files of a listing, some ahead of the one that is asked for.
#[derive(Debug)]
pub(crate) struct Opener {
    stream: UnixStream,
    outgoing: Mutex<Outgoing>,
    asking: Mutex<Asking>,
}

#[derive(Debug, Default)]
struct Asking {
    /// Files that were opened ahead, with their listing.
    ahead: VecDeque<(u32, u32, io::Result<Option<File>>)>,
    /// Answers, once a thread receives commands.
    answers: Option<Receiver<(Vec<OpenResult>, Vec<OwnedFd>)>>,
    /// Commands that came before that.
    early: Vec<Command>,
}

impl Opener {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            outgoing: Mutex::default(),
            asking: Mutex::default(),
        }
    }

    /// Sends an event, or as much of it as the socket takes now.
    ///
    /// # Errors
    /// When the supervisor has ended.
    pub(crate) fn send(&self, event: &Event) -> io::Result<()> {
        let mut outgoing = lock(&self.outgoing);
        // A supervisor that does not read has enough of signs of life.
        if outgoing.is_empty() || *event != Event::Alive {
            outgoing.push(&serde_json::to_vec(event)?, Vec::new())?;
        }
        outgoing.flush(&self.stream).map(drop)
    }

    /// Opens a file by its number in a listing. Absent where this process is to open it by its path.
    ///
    /// # Errors
    /// What the system said to the supervisor; `TimedOut` when that does not answer.
    pub(crate) fn open(&self, listing: u32, number: u32) -> io::Result<Option<File>> {
        let mut asking = lock(&self.asking);
        let is_it = |ahead: &(u32, u32, _)| (ahead.0, ahead.1) == (listing, number);
        if let Some(at) = asking.ahead.iter().position(is_it) {
            // Files before it were passed over.
            asking.ahead.drain(..at);
        } else {
            let numbers: Vec<u32> = (number..).take(MOST_OPENED).collect();
            self.send(&Event::Open {
                listing,
                files: numbers.clone(),
            })?;
            let (found, fds) = self.answer(&mut asking)?;
            let mut fds = fds.into_iter();
            let opened = numbers.into_iter().zip(found).map(|(number, found)| {
                let file = match found {
                    OpenResult::Open => fds
                        .next()
                        .map(|fd| Some(fd.into()))
                        .ok_or(io::ErrorKind::InvalidData.into()),
                    OpenResult::Own => Ok(None),
                    OpenResult::Error(error) => Err(io::Error::from_raw_os_error(error)),
                };
                (listing, number, file)
            });
            asking.ahead = opened.collect();
        }
        let opened = asking.ahead.pop_front().ok_or(io::ErrorKind::InvalidData)?;
        opened.2
    }

    fn answer(&self, asking: &mut Asking) -> io::Result<(Vec<OpenResult>, Vec<OwnedFd>)> {
        if let Some(answers) = &asking.answers {
            return answers
                .recv_timeout(PATIENCE)
                .map_err(|_| io::ErrorKind::TimedOut.into());
        }
        loop {
            match receive(&self.stream)?.ok_or(io::ErrorKind::UnexpectedEof)? {
                (Command::Opened(found), fds) => return Ok((found, fds)),
                // None with descriptors comes before this process is loaded.
                (command, _) => asking.early.push(command),
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn receive(stream: &UnixStream) -> io::Result<Option<Delivered>> {
    let Some((text, fds)) = fd_messages::receive(stream, LONGEST_COMMAND, MOST_FDS)? else {
        return Ok(None);
    };
    Ok(Some((serde_json::from_slice(&text)?, fds)))
}

/// Sockets of all addresses.
const MOST_FDS: usize = 1024 * 1024;
/// How long the supervisor may take to open some files.
const PATIENCE: Duration = Duration::from_secs(60);
