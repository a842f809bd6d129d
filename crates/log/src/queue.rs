//! The queue of log lines, and the thread that writes them.
//!
//! A worker that waits for a disk or for the reader of a pipe would stall all its clients. So
//! callers append lines to a bounded buffer, and one thread writes the buffer. A line is dropped
//! and counted if the buffer is full or if the write fails. Before the thread starts (no client is
//! served yet, and privileges are not dropped yet), the caller writes its line itself, without
//! blocking.
//!
//! The lock is held to copy one line or to swap two buffers, and never during a write.
//!
//! `tracing-appender` has a similar queue, but it cannot reopen a file, flush without shutting
//! down, count failed writes, or start its thread later.
//!
//! Invariants: lines are whole and in order. Lines pushed before [`LineQueue::reopen`] go to the
//! old file, later lines to the new file.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use becket_sys::process::without_signals;
use tracing_subscriber::fmt::MakeWriter;

use super::output::{CountedOutput, Output};

/// Handle of the queue of log lines. All clones share the queue and its thread.
#[derive(Clone, Debug)]
pub(super) struct LineQueue(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    lines: Mutex<QueuedLines>,
    changed: Condvar,
    dropped: Arc<AtomicU64>,
}

#[derive(Debug)]
struct QueuedLines {
    text: Vec<u8>,
    /// Number of bytes of `text` to write before the reopen; `None` if no reopen is requested.
    reopen_at: Option<usize>,
    /// The output; `None` after the writer thread has taken it.
    output: Option<CountedOutput>,
    /// `true` while the thread writes lines that it took from `text`.
    is_writing: bool,
}

impl LineQueue {
    /// Creates a queue. Until [`Self::start`] is called, the caller's thread writes each line.
    pub(super) fn new(output: Output) -> Self {
        let output = CountedOutput::new(output);
        Self(Arc::new(Inner {
            dropped: output.dropped(),
            lines: Mutex::new(QueuedLines {
                text: Vec::new(),
                reopen_at: None,
                output: Some(output),
                is_writing: false,
            }),
            changed: Condvar::new(),
        }))
    }

    /// Starts the writer thread. Call it once, after privileges were dropped.
    ///
    /// # Errors
    /// Fails if no thread can be started; later lines are then lost.
    pub(super) fn start(&self) -> io::Result<()> {
        let Some(output) = self.0.lock().output.take() else {
            return Ok(());
        };
        let inner = Arc::clone(&self.0);
        let thread = thread::Builder::new().name("becket-log".into());
        // Block signals in this thread: a signal that it received would be lost when the process
        // executes another program.
        without_signals(|| thread.spawn(move || inner.write_all(output)))?.map(drop)
    }

    /// Requests a reopen of the file after all queued lines are written.
    pub(super) fn reopen(&self) {
        let mut lines = self.0.lock();
        let length = lines.text.len();
        lines.reopen_at.get_or_insert(length);
        self.0.changed.notify_all();
    }

    pub(super) fn flush(&self, patience: Duration) {
        let lines = self.0.lock();
        let waits = |lines: &mut QueuedLines| {
            lines.output.is_none() && (lines.is_writing || !lines.text.is_empty())
        };
        drop(self.0.changed.wait_timeout_while(lines, patience, waits));
    }

    pub(super) fn dropped(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.0.dropped)
    }

    pub(super) fn push(&self, line: &[u8]) {
        let lines = &mut *self.0.lock();
        let is_dropped = if let Some(output) = &mut lines.output {
            output.write_if_ready(line).is_err()
        } else {
            lines.text.len() + line.len() > MOST_BYTES
        };
        if is_dropped {
            self.0.dropped.fetch_add(1, Relaxed);
        } else if lines.output.is_none() {
            lines.text.extend_from_slice(line);
            self.0.changed.notify_all();
        }
    }
}

impl Inner {
    /// Ignores poisoning: a panic cannot leave half a line in the buffer.
    fn lock(&self) -> MutexGuard<'_, QueuedLines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_all(&self, mut output: CountedOutput) {
        let mut text = Vec::new();
        loop {
            let reopen_at = self.take(&mut text);
            let (before, after) = text.split_at(reopen_at.unwrap_or(text.len()));
            output.write(before);
            if reopen_at.is_some() {
                output.reopen();
                output.write(after);
            }
        }
    }

    /// Waits for work and moves all queued lines to `text`. Returns the number of bytes of `text`
    /// to write before a requested reopen; `None` without a request.
    fn take(&self, text: &mut Vec<u8>) -> Option<usize> {
        text.clear();
        let mut lines = self.lock();
        lines.is_writing = false;
        self.changed.notify_all();
        let is_idle = |lines: &mut QueuedLines| lines.text.is_empty() && lines.reopen_at.is_none();
        let waited = self.changed.wait_while(lines, is_idle);
        let mut lines = waited.unwrap_or_else(PoisonError::into_inner);
        lines.is_writing = true;
        std::mem::swap(&mut lines.text, text);
        lines.reopen_at.take()
    }
}

impl Write for LineQueue {
    /// Queues one line. Never fails, because no caller can handle a failure.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LineQueue {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Maximum size of the queued lines in bytes; two buffers of this size exist. Fits thousands of
/// lines, as logged by a reload with many errors.
const MOST_BYTES: usize = 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use becket_keys::files::Files;
    use std::fs::{self, File};
    use std::io::Read;
    use std::path::Path;

    /// Time limit for events that must happen.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn open(path: &Path) -> LineQueue {
        LineQueue::new(Output::open(Some(path), &Files::default()).unwrap())
    }

    fn dropped(queue: &LineQueue) -> u64 {
        queue.dropped().load(Relaxed)
    }

    #[test]
    fn startup_lines_are_written_at_once_and_later_lines_on_flush() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let queue = open(&path);
        queue.push(b"one\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\n");
        queue.start().unwrap();
        queue.push(b"two\n");
        queue.flush(PATIENCE);
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\ntwo\n");
    }

    #[test]
    fn a_reopen_separates_earlier_lines_from_later_lines() {
        let dir = tempfile::tempdir().unwrap();
        let (path, moved) = (dir.path().join("log"), dir.path().join("log.1"));
        let queue = open(&path);
        fs::rename(&path, &moved).unwrap();
        queue.start().unwrap();
        // Queues two lines and a reopen at once, so that the thread takes them together.
        let mut lines = queue.0.lock();
        lines.text.extend_from_slice(b"one\ntwo\n");
        lines.reopen_at = Some(4);
        drop(lines);
        queue.0.changed.notify_all();
        queue.flush(PATIENCE);
        assert_eq!(fs::read_to_string(&moved).unwrap(), "one\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "two\n");
    }

    #[test]
    fn an_unread_pipe_drops_lines_without_blocking() {
        let (mut reader, writer) = io::pipe().unwrap();
        let pipe = File::from(std::os::fd::OwnedFd::from(writer));
        let queue = LineQueue::new(Output::File {
            path: "pipe".into(),
            file: pipe,
        });
        queue.start().unwrap();
        let line = [&[b'x'; 1023][..], b"\n"].concat();
        // The two buffers and the pipe hold less than this loop writes.
        for _ in 0..4096 {
            queue.push(&line);
        }
        let lost = dropped(&queue);
        assert!(lost >= 4096 - 2 * 1024 - 64, "{lost}");
        let mut read = vec![0; (4096 - lost as usize) * 1024];
        reader.read_exact(&mut read).unwrap();
        assert!(read.chunks(1024).all(|chunk| chunk == line));
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let queue = open(Path::new("/dev/full"));
        queue.push(b"one\n");
        queue.start().unwrap();
        queue.push(b"two\n");
        queue.flush(PATIENCE);
        assert_eq!(dropped(&queue), 2);
    }
}
