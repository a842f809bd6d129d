//! Lines of the log on their way to the thread that writes them.
//!
//! Whoever logs must not wait for a disk, or for a pipe that nobody reads: a worker would stop, and its clients with it. So a
//! line is put into a buffer of bounded size, and one thread writes what is there. A line for which there is no room, or that the
//! system does not take, is dropped and counted, and said when lines flow again. Until the thread is started (nothing serves yet,
//! and privileges are not given up) the thread that logs writes its line, if the system takes it at once.
//!
//! The lock is held for a copy of one line, or for the exchange of two buffers, and never while something is written.
//!
//! Invariants: lines are whole and in order; what was pushed before [`Backlog::reopen`] goes to the old file, what comes later to the new one.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use becket_sys::process::without_signals;
use tracing_subscriber::fmt::MakeWriter;

use super::output::Output;

/// Every clone pushes to the same thread.
#[derive(Clone, Debug)]
pub(super) struct Backlog(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    held: Mutex<Held>,
    changed: Condvar,
    dropped: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Held {
    block: Block,
    writer: Writer,
    /// The file is to be reopened once this many bytes of the block are written.
    reopen: Option<usize>,
    /// The thread has lines that are not written yet.
    is_writing: bool,
}

/// Whole lines.
#[derive(Debug, Default)]
struct Block {
    text: Vec<u8>,
    lines: u64,
}

#[derive(Debug)]
enum Writer {
    /// Whoever logs, for the time of the start.
    Caller(Output),
    Thread,
    /// The thread is to write what is there, and to end.
    Ending,
    Ended,
}

impl Backlog {
    /// Lines are written at once until [`Self::start`] is called.
    pub(super) fn new(output: Output) -> Self {
        Self(Arc::new(Inner {
            held: Mutex::new(Held {
                block: Block::default(),
                writer: Writer::Caller(output),
                reopen: None,
                is_writing: false,
            }),
            changed: Condvar::new(),
            dropped: Arc::default(),
        }))
    }

    /// Starts the thread that writes from now on: after privileges were given up.
    ///
    /// # Errors
    /// When there can be no more threads; lines are lost then.
    pub(super) fn start(&self) -> io::Result<()> {
        let mut held = self.0.lock();
        let Writer::Caller(output) = std::mem::replace(&mut held.writer, Writer::Thread) else {
            return Ok(());
        };
        drop(held);
        let inner = Arc::clone(&self.0);
        let thread = thread::Builder::new().name("becket-log".into());
        // A signal that this thread took would be lost when the process becomes another program.
        without_signals(|| thread.spawn(move || inner.write(output)))?.map(drop)
    }

    /// Has the file reopened, behind all lines that are there. A second call before the first is served asks for nothing more:
    /// the path leads to the newest file by then.
    pub(super) fn reopen(&self) {
        let mut held = self.0.lock();
        let written = held.block.text.len();
        held.reopen.get_or_insert(written);
        drop(held);
        self.0.changed.notify_all();
    }

    /// Waits until the thread has written what is there, but not for longer than this.
    pub(super) fn flush(&self, patience: Duration) {
        let held = self.0.lock();
        let waits = |held: &mut Held| {
            matches!(held.writer, Writer::Thread) && (held.is_writing || held.block.lines > 0)
        };
        // Lines that are not taken in time are lost if this process becomes another program.
        drop(self.0.changed.wait_timeout_while(held, patience, waits));
    }

    /// Has the thread write what is there and end, and waits for it, but not for longer than this.
    pub(super) fn end(&self, patience: Duration) {
        let mut held = self.0.lock();
        if let Writer::Thread = held.writer {
            held.writer = Writer::Ending;
            self.0.changed.notify_all();
            let writes = |held: &mut Held| matches!(held.writer, Writer::Ending);
            let waited = self.0.changed.wait_timeout_while(held, patience, writes);
            // Who does not take the last lines in time does not get them.
            drop(waited);
        }
    }

    /// Lines that were dropped so far.
    pub(super) fn dropped(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.0.dropped)
    }

    pub(super) fn push(&self, line: &[u8]) {
        let mut held = self.0.lock();
        if let Writer::Caller(output) = &mut held.writer {
            if output.write_if_ready(line).is_err() {
                self.0.dropped.fetch_add(1, Relaxed);
            }
        } else if held.block.text.len() + line.len() > MOST_BYTES {
            self.0.dropped.fetch_add(1, Relaxed);
        } else {
            held.block.text.extend_from_slice(line);
            held.block.lines += 1;
            self.0.changed.notify_all();
        }
    }
}

impl Inner {
    /// A thread that panicked while it held the lock leaves whole lines behind.
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread.
    fn write(&self, mut output: Output) {
        let mut block = Block::default();
        let mut said = 0;
        let mut fails = false;
        while let Some(reopen) = self.take(&mut block) {
            let (before, behind) = block.text.split_at(reopen.unwrap_or(0));
            let mut written = output.write_all(before);
            if reopen.is_some()
                && let Err(error) = output.reopen()
            {
                tracing::error!(path = %output, %error, "log file not reopened, keeping the old one");
            }
            written = written.and(output.write_all(behind));
            if let Err(error) = written {
                self.dropped.fetch_add(block.lines, Relaxed);
                // Once: what is said may be lost on the same way.
                if !std::mem::replace(&mut fails, true) {
                    tracing::warn!(path = %output, %error, "log not written, lines are dropped");
                }
            } else if block.lines > 0 {
                let dropped = self.dropped.load(Relaxed);
                if dropped > said {
                    tracing::warn!(
                        lines = dropped - said,
                        "lines of the log were dropped: they could not be written in time"
                    );
                }
                said = dropped;
                fails = false;
            }
        }
    }

    /// Waits for something to do and takes all lines, leaving an empty block behind. Behind how many bytes the file is to be
    /// reopened, if it is; nothing when it is over.
    fn take(&self, block: &mut Block) -> Option<Option<usize>> {
        block.text.clear();
        block.lines = 0;
        let idle = |held: &mut Held| {
            held.block.lines == 0 && held.reopen.is_none() && matches!(held.writer, Writer::Thread)
        };
        let mut held = self.lock();
        held.is_writing = false;
        self.changed.notify_all();
        let waited = self.changed.wait_while(held, idle);
        let mut held = waited.unwrap_or_else(PoisonError::into_inner);
        held.is_writing = true;
        if held.block.lines == 0 && held.reopen.is_none() {
            held.writer = Writer::Ended;
            self.changed.notify_all();
            return None;
        }
        std::mem::swap(&mut held.block, block);
        Some(std::mem::take(&mut held.reopen))
    }
}

impl Write for Backlog {
    /// Each call is a line; none fails, as nobody who logs could do anything about it.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Backlog {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Lines that wait, in bytes: some thousands, as a reload with many faults has; there are two such buffers.
const MOST_BYTES: usize = 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use becket_keys::files::Files;
    use std::fs::{self, File};
    use std::io::Read;
    use std::path::Path;

    /// More than any test waits for what must come.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn open(path: &Path) -> Backlog {
        Backlog::new(Output::open(Some(path), &Files::default()).unwrap())
    }

    fn dropped(backlog: &Backlog) -> u64 {
        backlog.dropped().load(Relaxed)
    }

    #[test]
    fn lines_of_the_start_are_there_at_once_and_later_ones_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let backlog = open(&path);
        backlog.push(b"one\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\n");
        backlog.start().unwrap();
        backlog.push(b"two\n");
        backlog.end(PATIENCE);
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\ntwo\n");
    }

    #[test]
    fn a_reopen_parts_the_lines_before_it_from_those_behind_it() {
        let dir = tempfile::tempdir().unwrap();
        let (path, moved) = (dir.path().join("log"), dir.path().join("log.1"));
        let backlog = open(&path);
        fs::rename(&path, &moved).unwrap();
        backlog.start().unwrap();
        // All three at once, so that the thread takes them together.
        let mut held = backlog.0.lock();
        held.block.text.extend_from_slice(b"one\ntwo\n");
        held.block.lines = 2;
        held.reopen = Some(4);
        drop(held);
        backlog.0.changed.notify_all();
        backlog.end(PATIENCE);
        assert_eq!(fs::read_to_string(&moved).unwrap(), "one\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "two\n");
    }

    #[test]
    fn a_pipe_that_nobody_reads_costs_lines_and_no_time() {
        let (mut reader, writer) = io::pipe().unwrap();
        let pipe = File::from(std::os::fd::OwnedFd::from(writer));
        let backlog = Backlog::new(Output::File(Path::new("pipe").into(), pipe));
        backlog.start().unwrap();
        let line = [&[b'x'; 1023][..], b"\n"].concat();
        // Two buffers and the pipe hold less than this.
        for _ in 0..4096 {
            backlog.push(&line);
        }
        let lost = dropped(&backlog);
        assert!(lost >= 4096 - 2 * 1024 - 64, "{lost}");
        let reading = thread::spawn(move || {
            let mut read = Vec::new();
            reader.read_to_end(&mut read).map(|_| read)
        });
        backlog.end(PATIENCE);
        let read = reading.join().unwrap().unwrap();
        let lines = read.chunks(1024).filter(|chunk| *chunk == line).count();
        assert_eq!(lines as u64 + lost, 4096);
    }

    #[test]
    fn lines_that_the_system_does_not_take_are_counted() {
        let backlog = open(Path::new("/dev/full"));
        backlog.push(b"one\n");
        backlog.start().unwrap();
        backlog.push(b"two\n");
        backlog.end(PATIENCE);
        assert_eq!(dropped(&backlog), 2);
    }
}
