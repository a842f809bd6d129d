//! Sends events to the supervisor, and requests files that it opens.

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

/// A command, with the descriptors that came with it.
pub type Delivered = (Command, Vec<OwnedFd>);

/// Listing, first file, what came of each, and descriptors.
pub(super) type OpenAnswer = (u32, u32, Vec<OpenResult>, Vec<OwnedFd>);

/// Requests the files of a listing from the supervisor, some ahead of the one that is needed.
#[derive(Debug)]
pub struct Opener {
    stream: UnixStream,
    outgoing: Mutex<Outgoing>,
    asking: Mutex<Asking>,
    /// Time of the last `Loading`.
    reported: Mutex<Option<Stopwatch>>,
}

/// Files in the order of a listing; absent where this process is to open one by its path.
type OpenedAhead = VecDeque<io::Result<Option<File>>>;

#[derive(Debug, Default)]
struct Asking {
    /// Files that were opened ahead, by their listing: the first one's number, and what came of each.
    ahead: BTreeMap<u32, (u32, OpenedAhead)>,
    /// Answers of the thread that receives commands, once it runs.
    answers: Option<Receiver<OpenAnswer>>,
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

    pub(super) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Closes the files that were opened ahead.
    pub(super) fn close_files(&self) {
        lock(&self.asking).ahead.clear();
    }

    /// Takes answers from a thread from now on. Returns the commands that came before.
    pub(super) fn answered_by(&self, answers: Receiver<OpenAnswer>) -> Vec<Command> {
        let mut asking = lock(&self.asking);
        asking.answers = Some(answers);
        std::mem::take(&mut asking.early)
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
    fn ask(&self, listing: u32, first: u32, asking: &mut Asking) -> io::Result<OpenedAhead> {
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
                // No command with descriptors is sent before this process is loaded.
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

/// Sockets of all addresses.
const MOST_FDS: usize = 1024 * 1024;
/// Time that the supervisor has to open a batch of files.
const PATIENCE: Duration = Duration::from_secs(60);
const BETWEEN_REPORTS: Duration = Duration::from_millis(250);
