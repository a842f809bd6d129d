//! A process's end of the socket pair to its supervisor: commands arrive, events leave, listed files are opened.
//!
//! The socket is the process's standard input. Until [`Link::listen`] starts a thread, nothing reads commands but [`Opener`], which keeps those
//! that it meets. A process that has not served dies with its supervisor (PR_SET_PDEATHSIG); one that serves takes the end of the socket
//! for [`Command::Leave`].

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

use becket_sys::clock::Stopwatch;
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
pub type Delivered = (Command, Vec<OwnedFd>);

/// The way to the supervisor.
#[derive(Debug)]
pub struct Link {
    pub restarts: Restarts,
    /// Another process served before, and died.
    pub follows_a_death: bool,
    /// Stream of state from the process that this one replaces.
    pub replaced: Option<UnixStream>,
    pub opener: Arc<Opener>,
}

/// Reads the start command, and becomes the user that this process is to be, without any right of root's. Call it before threads are
/// started.
///
/// # Errors
/// Fails if the supervisor has ended or a right could not be given up.
pub fn begin() -> io::Result<(Link, Given)> {
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (command, mut fds) = receive(&stream)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let Command::Start(start) = command else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    call_by_name();
    let logs = become_user(&start)?;
    // After the change of user, which resets it.
    die_with_parent(start.supervisor)?;
    let replaced = if start.replaces {
        Some(fds.pop().ok_or(io::ErrorKind::InvalidData)?.into())
    } else {
        None
    };
    let opener = Arc::new(Opener::new(stream));
    let mut given = Given::new(start.listing, fds, &opener)?;
    given.files = given.files.with_logs(logs);
    given.sockets.listen_later = start.replaces;
    let link = Link {
        restarts: start.restarts,
        follows_a_death: !start.replaces && start.restarts.deaths > 0,
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
    pub fn report(&self, event: &Event) {
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
    /// Fails if no more threads can be started.
    pub fn listen(&self) -> io::Result<UnboundedReceiver<Delivered>> {
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
    opened: &Sender<Answer>,
) {
    let mut drains = false;
    loop {
        let received = receive(stream).and_then(|it| it.ok_or(io::ErrorKind::UnexpectedEof.into()));
        let is_last = received.is_err();
        let received = received.unwrap_or_else(|error| {
            tracing::error!(%error, "the supervisor has ended; draining");
            // The next becket takes the addresses of clients and of the admin pages, as after an upgrade.
            (Command::Leave, Vec::new())
        });
        let sent = match received {
            (Command::Opened(listing, first, found), fds) => {
                opened.send((listing, first, found, fds)).is_ok()
            }
            // A second command to drain would cut connections off.
            _ if is_last && drains => return,
            received => {
                drains |= matches!(received.0, Command::Drain | Command::Leave);
                commands.send(received).is_ok()
            }
        };
        // There is no receiver once this process ends.
        if !sent || is_last {
            return;
        }
    }
}

/// Listing, first file, what came of each, and descriptors.
type Answer = (u32, u32, Vec<OpenResult>, Vec<OwnedFd>);

/// Asks the supervisor to open the files of a listing, some ahead of the one that is needed.
#[derive(Debug)]
pub struct Opener {
    stream: UnixStream,
    outgoing: Mutex<Outgoing>,
    asking: Mutex<Asking>,
    /// Time of the last `Loading`.
    reported: Mutex<Option<Stopwatch>>,
}

/// Files in the order of a listing; absent where this process is to open one by its path.
type Ahead = VecDeque<io::Result<Option<File>>>;

#[derive(Debug, Default)]
struct Asking {
    /// Files that were opened ahead, by their listing: the first one's number, and what came of each.
    ahead: BTreeMap<u32, (u32, Ahead)>,
    /// Answers, once a thread receives commands.
    answers: Option<Receiver<Answer>>,
    /// Commands that came before that.
    early: Vec<Command>,
}

impl Opener {
    pub fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            outgoing: Mutex::default(),
            asking: Mutex::default(),
            reported: Mutex::default(),
        }
    }

    /// Sends an event, or as much of it as the socket takes now.
    ///
    /// # Errors
    /// Fails if the supervisor has ended.
    pub fn send(&self, event: &Event) -> io::Result<()> {
        let mut outgoing = lock(&self.outgoing);
        // These come again: a supervisor that does not read has enough of them.
        let comes_again = matches!(event, Event::Alive | Event::Loading | Event::Wanted(_));
        if outgoing.is_empty() || !comes_again {
            outgoing.push(&serde_json::to_vec(event)?, Vec::new())?;
        }
        outgoing.flush(&self.stream).map(drop)
    }

    /// Reports that this process is loading, a few times a second at most.
    pub fn report_progress(&self) {
        let mut reported = lock(&self.reported);
        let is_due = reported
            .as_ref()
            .is_none_or(|at| at.elapsed() >= BETWEEN_REPORTS);
        if is_due {
            *reported = Some(Stopwatch::start());
            // The end of the supervisor is noticed where commands arrive.
            let _ended = self.send(&Event::Loading);
        }
    }

    /// Opens a file by its number in a listing. Absent where this process is to open it by its path.
    ///
    /// # Errors
    /// Returns the error that the supervisor got, or `TimedOut` if the supervisor does not answer.
    pub fn open(&self, listing: u32, number: u32) -> io::Result<Option<File>> {
        let mut asking = lock(&self.asking);
        let ahead = asking.ahead.remove(&listing);
        let has_it = |(first, files): &(u32, VecDeque<_>)| {
            number
                .checked_sub(*first)
                .is_some_and(|skipped| (skipped as usize) < files.len())
        };
        let (first, mut files) = match ahead.filter(has_it) {
            Some(ahead) => ahead,
            None => (number, self.ask(listing, number, &mut asking)?),
        };
        // Files before it were passed over.
        files.drain(..(number - first) as usize);
        let opened = files.pop_front().ok_or(io::ErrorKind::InvalidData)?;
        asking.ahead.insert(listing, (number + 1, files));
        opened
    }

    /// Requests files, from this one on.
    fn ask(&self, listing: u32, first: u32, asking: &mut Asking) -> io::Result<Ahead> {
        let files = (first..).take(MOST_OPENED).collect();
        self.send(&Event::Open { listing, files })?;
        let (found, fds) = loop {
            let (of, from, found, fds) = self.answer(asking)?;
            // A late answer is of another question.
            if (of, from) == (listing, first) {
                break (found, fds);
            }
        };
        let mut fds = fds.into_iter();
        let opened = found.into_iter().map(|found| match found {
            OpenResult::Open => fds
                .next()
                .map(|fd| Some(fd.into()))
                .ok_or_else(|| io::Error::other("too many open files")),
            OpenResult::Own => Ok(None),
            OpenResult::Error(error) => Err(io::Error::from_raw_os_error(error)),
        });
        Ok(opened.collect())
    }

    fn answer(&self, asking: &mut Asking) -> io::Result<Answer> {
        if let Some(answers) = &asking.answers {
            return answers
                .recv_timeout(PATIENCE)
                .map_err(|_| io::ErrorKind::TimedOut.into());
        }
        loop {
            match receive(&self.stream)?.ok_or(io::ErrorKind::UnexpectedEof)? {
                (Command::Opened(listing, first, found), fds) => {
                    return Ok((listing, first, found, fds));
                }
                // No command with descriptors is sent before this process is loaded.
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
/// Time that the supervisor has to open a batch of files.
const PATIENCE: Duration = Duration::from_secs(60);
const BETWEEN_REPORTS: Duration = Duration::from_millis(250);
