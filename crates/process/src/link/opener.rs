//! Sends events to the supervisor, and requests files from it.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Receiver;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use becket_sys::clock::Stopwatch;
use becket_sys::fd_messages::{self, Outgoing};

use crate::protocol::{Command, Event, LONGEST_COMMAND, MOST_OPENED, OpenResult};

pub type Delivered = (Command, Vec<OwnedFd>);

/// Answer to a request for files: number of the listing, index of the first file, results, and
/// descriptors.
pub(super) type OpenAnswer = (u32, u32, Vec<OpenResult>, Vec<OwnedFd>);

/// Requests the files of a listing from the supervisor, several at a time.
#[derive(Debug)]
pub struct Opener {
    stream: UnixStream,
    outgoing: Mutex<Outgoing>,
    asking: Mutex<Asking>,
    reported: Mutex<Option<Stopwatch>>,
}

/// Files in the order of a listing; `Ok(None)` if this process must open the file by path.
type OpenedAhead = VecDeque<io::Result<Option<File>>>;

#[derive(Debug, Default)]
struct Asking {
    /// Files that the supervisor opened ahead of use, by listing number. The value is the index of
    /// the first file, and the results from that index on.
    ahead: BTreeMap<u32, (u32, OpenedAhead)>,
    /// Answers from the thread that receives commands; `None` before that thread starts.
    answers: Option<Receiver<OpenAnswer>>,
    /// Commands that arrived before the receiving thread started.
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

    pub(super) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Closes the files that were opened ahead of use.
    pub(super) fn close_files(&self) {
        lock(&self.asking).ahead.clear();
    }

    /// Receives further answers through `answers`, because a thread now reads the socket. Returns
    /// the commands that were received before.
    pub(super) fn answered_by(&self, answers: Receiver<OpenAnswer>) -> Vec<Command> {
        let mut asking = lock(&self.asking);
        asking.answers = Some(answers);
        std::mem::take(&mut asking.early)
    }

    /// Sends the part of an event that fits into the socket, and queues the remaining bytes.
    ///
    /// # Errors
    /// Fails if the supervisor has exited.
    pub fn send(&self, event: &Event) -> io::Result<()> {
        let mut outgoing = lock(&self.outgoing);
        // These events are periodic, so they are skipped while older events are unread.
        let comes_again = matches!(event, Event::Alive | Event::Loading | Event::Wanted(_));
        if outgoing.is_empty() || !comes_again {
            outgoing.push(&serde_json::to_vec(event)?, Vec::new())?;
        }
        outgoing.flush(&self.stream).map(drop)
    }

    /// Reports that this process is loading, at most four times a second.
    pub fn report_progress(&self) {
        let mut reported = lock(&self.reported);
        let is_due = reported
            .as_ref()
            .is_none_or(|at| at.elapsed() >= BETWEEN_REPORTS);
        if is_due {
            *reported = Some(Stopwatch::start());
            // The receiving thread notices the exit of the supervisor.
            let _ended = self.send(&Event::Loading);
        }
    }

    /// Opens a file by its index in a listing. Returns `None` if this process must open it by path.
    ///
    /// # Errors
    /// Returns the error of the supervisor, or `TimedOut` without an answer.
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
        // Closes the files before `number`, which the caller skipped.
        files.drain(..(number - first) as usize);
        let opened = files.pop_front().ok_or(io::ErrorKind::InvalidData)?;
        asking.ahead.insert(listing, (number + 1, files));
        opened
    }

    /// Requests [`MOST_OPENED`] files of a listing, starting with index `first`.
    fn ask(&self, listing: u32, first: u32, asking: &mut Asking) -> io::Result<OpenedAhead> {
        let count = MOST_OPENED;
        self.send(&Event::Open {
            listing,
            first,
            count,
        })?;
        let (found, fds) = loop {
            let (of, from, found, fds) = self.answer(asking)?;
            // Ignores a late answer to an earlier request.
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

    fn answer(&self, asking: &mut Asking) -> io::Result<OpenAnswer> {
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
                // No descriptors are lost: a command with descriptors is sent only after this
                // process has loaded.
                (command, _) => asking.early.push(command),
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn receive(stream: &UnixStream) -> io::Result<Option<Delivered>> {
    let Some((text, fds)) = fd_messages::receive(stream, LONGEST_COMMAND, MOST_FDS)? else {
        return Ok(None);
    };
    Ok(Some((serde_json::from_slice(&text)?, fds)))
}

/// Maximum number of descriptors in a command. One command may carry the sockets of all addresses.
const MOST_FDS: usize = 1024 * 1024;
/// Time limit for the supervisor to open a batch of files.
const PATIENCE: Duration = Duration::from_secs(60);
const BETWEEN_REPORTS: Duration = Duration::from_millis(250);
