//! The way of access records from the workers to their file.
//!
//! Each worker holds an [`AccessSender`], the end of a bounded channel of its own; the control thread
//! holds the [`AccessWriter`] with all the other ends and drains them on a tick and at the end. A
//! worker never waits: when its channel is full, because control is behind or the disk is, the
//! record is dropped and the worker counts it in `Counters::access_lines_dropped`.
//!
//! Invariants: a write consists of whole lines, so that lines of stderr do not mix; one drain takes
//! at most [`CAPACITY`] records of each worker, so that it ends while they go on.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::Instant;

use becket_sys::identity::Identity;

use crate::config::{AccessLog, LogFormat};
use crate::log::access::AccessRecord;
use crate::log::{Output, RateLimit};

/// A worker's end: gives records away.
#[derive(Clone, Debug)]
pub struct AccessSender(SyncSender<Box<AccessRecord>>);

impl AccessSender {
    /// Hands over one record without waiting. Allocates a box for it. `false` says that it was
    /// dropped because the channel is full or the writer is gone, and is to be counted.
    #[must_use = "a dropped record is to be counted"]
    pub fn send(&self, record: AccessRecord) -> bool {
        self.0.try_send(Box::new(record)).is_ok()
    }
}

/// The control thread's end: takes records and writes lines.
#[derive(Debug)]
pub struct AccessWriter {
    receivers: Vec<Receiver<Box<AccessRecord>>>,
    output: Output,
    format: LogFormat,
    /// Whole lines that are not written yet.
    lines: String,
    /// Number of lines in `lines`.
    held: u64,
    complaints: RateLimit,
}

impl AccessWriter {
    /// Opens the file, as `user` if it is given, or stderr.
    ///
    /// # Errors
    /// What the system says when the file cannot be opened for appending.
    pub fn open(log: &AccessLog, format: LogFormat, user: Option<&Identity>) -> io::Result<Self> {
        let path = match log {
            AccessLog::Stderr => None,
            AccessLog::File(path) => Some(path.as_path()),
        };
        Ok(Self {
            receivers: Vec::new(),
            output: Output::open(path, user)?,
            format,
            lines: String::with_capacity(BLOCK_BYTES + 1024),
            held: 0,
            complaints: RateLimit::per_second(1),
        })
    }

    /// Makes the channel of one more worker.
    pub fn attach(&mut self) -> AccessSender {
        let (sender, receiver) = sync_channel(CAPACITY);
        self.receivers.push(receiver);
        AccessSender(sender)
    }

    /// Writes what the workers sent and returns how many lines were written. Called on a tick, and
    /// once more when the workers have ended. Lines that the system does not take are lost and
    /// logged. Blocks as long as the file or stderr does.
    pub fn drain(&mut self, now: Instant) -> u64 {
        let mut written = 0;
        let mut receivers = std::mem::take(&mut self.receivers);
        receivers.retain(|receiver| {
            for _ in 0..CAPACITY {
                match receiver.try_recv() {
                    Ok(record) => written += self.append(&record, now),
                    Err(TryRecvError::Empty) => return true,
                    Err(TryRecvError::Disconnected) => return false,
                }
            }
            true
        });
        self.receivers = receivers;
        written + self.write_out(now)
    }

    /// Opens the file anew after it was rotated. A failure keeps the old file and is logged.
    pub fn reopen(&mut self, now: Instant) {
        self.write_out(now);
        if let Err(error) = self.output.reopen() {
            tracing::error!(path = %self.name(), %error, "access log not reopened, keeping the old one");
        }
    }

    fn append(&mut self, record: &AccessRecord, now: Instant) -> u64 {
        record.write(self.format, &mut self.lines);
        self.held += 1;
        if self.lines.len() < BLOCK_BYTES {
            return 0;
        }
        self.write_out(now)
    }

    /// Writes the lines that are held and returns their number, or 0 if they were lost.
    fn write_out(&mut self, now: Instant) -> u64 {
        let held = std::mem::take(&mut self.held);
        if held == 0 {
            return 0;
        }
        let result = self.output.write_all(self.lines.as_bytes());
        self.lines.clear();
        let Err(error) = result else {
            return held;
        };
        if let Some(suppressed) = self.complaints.admit(now) {
            tracing::error!(path = %self.name(), %error, lines = held, suppressed, "access log not written");
        }
        0
    }

    fn name(&self) -> std::path::Display<'_> {
        self.output.path().unwrap_or("stderr".as_ref()).display()
    }
}

/// Records that a worker may be ahead of the writer: 0.1 s at 40 000 connections a second. A slot is
/// a pointer, 32 KiB per worker.
pub const CAPACITY: usize = 4096;
/// Lines are written in blocks of about this size.
const BLOCK_BYTES: usize = 64 * 1024;

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any instant will do")]
mod tests {
    use super::*;
    use crate::log::access::tests::record;
    use std::fs;
    use std::path::Path;

    fn writer(path: &Path) -> AccessWriter {
        AccessWriter::open(&AccessLog::File(path.to_owned()), LogFormat::Json, None).unwrap()
    }

    fn lines(path: &Path) -> usize {
        let text = fs::read_to_string(path).unwrap();
        for line in text.lines() {
            let _: serde_json::Value = serde_json::from_str(line).unwrap();
        }
        text.lines().count()
    }

    #[test]
    fn records_of_all_workers_become_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access");
        let mut writer = writer(&path);
        let senders = [writer.attach(), writer.attach()];
        for sender in senders.iter().cycle().take(1000) {
            assert!(sender.send(record()));
        }
        assert_eq!(writer.drain(Instant::now()), 1000);
        assert_eq!(writer.drain(Instant::now()), 0);
        assert_eq!(lines(&path), 1000);
    }

    #[test]
    fn a_full_channel_drops_and_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access");
        let mut writer = writer(&path);
        let sender = writer.attach();
        let sent = (0..CAPACITY + 5).filter(|_| sender.send(record())).count();
        assert_eq!(sent, CAPACITY);
        writer.drain(Instant::now());
        assert_eq!(lines(&path), CAPACITY);
        assert!(sender.send(record()));
    }

    #[test]
    fn what_a_worker_sent_before_it_ended_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access");
        let mut writer = writer(&path);
        let sender = writer.attach();
        assert!(sender.send(record()));
        drop(sender);
        assert_eq!(writer.drain(Instant::now()), 1);
        assert!(writer.receivers.is_empty());
    }

    #[test]
    fn a_rotated_file_is_opened_anew() {
        let dir = tempfile::tempdir().unwrap();
        let (path, moved) = (dir.path().join("access"), dir.path().join("access.1"));
        let mut writer = writer(&path);
        let sender = writer.attach();
        assert!(sender.send(record()));
        writer.drain(Instant::now());
        fs::rename(&path, &moved).unwrap();
        writer.reopen(Instant::now());
        assert!(sender.send(record()));
        writer.drain(Instant::now());
        assert_eq!((lines(&moved), lines(&path)), (1, 1));
    }

    #[test]
    fn lines_that_cannot_be_written_are_lost_and_do_not_pile_up() {
        let mut writer = writer(Path::new("/dev/full"));
        let sender = writer.attach();
        assert!(sender.send(record()));
        assert_eq!(writer.drain(Instant::now()), 0);
        assert!(writer.lines.is_empty());
    }
}
