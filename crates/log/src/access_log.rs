//! Channels of access records from the workers, and the thread that writes them.
//!
//! Each worker has an [`AccessSender`], the end of a bounded channel of its own. One thread has the [`AccessWriter`] with all other ends, drains them
//! ten times a second and at the end, and writes. Control keeps an [`AccessThread`], to have the file reopened. Only that thread waits for the
//! file: if a channel is full, since the disk is slow or a pipe is not read, the record is dropped and counted.
//!
//! Invariants: a write consists of whole lines, so that lines of stderr do not mix; one drain takes at most [`CAPACITY`] records of each worker, so
//! that it ends while workers continue.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, SyncSender, TryRecvError, channel, sync_channel,
};
use std::thread;
use std::time::Duration;

use becket_config::choices::LogFormat;
use becket_config::process::{Log, LogTarget};

use super::access::AccessLine;
use super::output::{CountedOutput, Output, PATIENCE};
use becket_keys::files::Files;

/// A worker's end, which sends records.
#[derive(Clone, Debug)]
pub struct AccessSender {
    lines: SyncSender<AccessLine>,
    dropped: Arc<AtomicU64>,
}

impl AccessSender {
    /// Sends a record without waiting. It is dropped, and counted, if the channel is full or closed.
    pub fn send(&self, record: impl Into<AccessLine>) {
        if self.lines.try_send(record.into()).is_err() {
            self.dropped.fetch_add(1, Relaxed);
        }
    }
}

/// The thread's end, which receives records and writes lines.
#[derive(Debug)]
pub struct AccessWriter {
    receivers: Vec<Receiver<AccessLine>>,
    output: CountedOutput,
    format: LogFormat,
    /// Whole lines that are not written yet.
    lines: String,
}

/// Control's end of a writer that has a thread. When dropped, it waits up to [`PATIENCE`] for the last lines to be written.
#[derive(Debug)]
pub struct AccessThread {
    /// Each message has the file reopened; without a sender the thread ends.
    reopen: Option<SyncSender<()>>,
    /// Closed when the thread has ended.
    ended: Receiver<Infallible>,
}

impl AccessThread {
    /// Has the file reopened after all lines that the workers have sent. A failure keeps the old file and is logged.
    pub fn reopen(&self) {
        if let Some(reopen) = &self.reopen {
            // A full channel means that a request waits already.
            reopen.try_send(()).ok();
        }
    }
}

impl Drop for AccessThread {
    fn drop(&mut self) {
        self.reopen = None;
        if let Err(RecvTimeoutError::Timeout) = self.ended.recv_timeout(PATIENCE) {
            tracing::warn!("cannot write the last lines of the access log in time");
        }
    }
}

impl AccessWriter {
    /// Opens the file, or stderr. Returns `None` if the log is off.
    ///
    /// # Errors
    /// Fails if the file cannot be opened for appending.
    pub fn open(log: &Log, files: &Files) -> io::Result<Option<Self>> {
        if log.access == LogTarget::Off {
            return Ok(None);
        }
        Ok(Some(Self {
            receivers: Vec::new(),
            output: CountedOutput::new(Output::open(log.access.file(), files)?),
            format: log.format,
            lines: String::with_capacity(BLOCK_BYTES + 1024),
        }))
    }

    /// Makes the channel of one more worker.
    pub fn attach(&mut self) -> AccessSender {
        let (lines, receiver) = sync_channel(CAPACITY);
        self.receivers.push(receiver);
        AccessSender {
            lines,
            dropped: self.dropped(),
        }
    }

    /// The counter of lines that were dropped.
    pub fn dropped(&self) -> Arc<AtomicU64> {
        self.output.dropped()
    }

    /// Starts the thread that writes from now on.
    ///
    /// # Errors
    /// Fails if no more threads can be started.
    pub fn start(self) -> io::Result<AccessThread> {
        let (reopen, received) = sync_channel(1);
        let (alive, ended) = channel();
        let thread = thread::Builder::new().name("becket-access".into());
        thread.spawn(move || {
            self.run(&received);
            drop(alive);
        })?;
        Ok(AccessThread {
            reopen: Some(reopen),
            ended,
        })
    }

    fn run(mut self, reopen: &Receiver<()>) {
        loop {
            let received = reopen.recv_timeout(TICK);
            self.drain();
            match received {
                Ok(()) => self.output.reopen(),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Writes the records that the workers sent. Waits as long as the file or stderr does.
    fn drain(&mut self) {
        let mut receivers = std::mem::take(&mut self.receivers);
        receivers.retain(|receiver| {
            for _ in 0..CAPACITY {
                match receiver.try_recv() {
                    Ok(record) => self.append(&record),
                    Err(TryRecvError::Empty) => return true,
                    Err(TryRecvError::Disconnected) => return false,
                }
            }
            true
        });
        self.receivers = receivers;
        self.write_out();
    }

    fn append(&mut self, record: &AccessLine) {
        record.write(self.format, &mut self.lines);
        if self.lines.len() >= BLOCK_BYTES {
            self.write_out();
        }
    }

    fn write_out(&mut self) {
        self.output.write(self.lines.as_bytes());
        self.lines.clear();
    }
}

/// Time between two drains.
const TICK: Duration = Duration::from_millis(100);
/// Records that a worker may be ahead of the writer: 0.1 s at 40 000 connections a second. A slot is
/// a pointer and its kind, 64 KiB per worker.
pub const CAPACITY: usize = 4096;
/// Lines are written in blocks of about this size.
const BLOCK_BYTES: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::tests::record;
    use becket_config::choices::LogFormat;
    use std::fs;
    use std::path::Path;

    fn writer(path: &Path) -> AccessWriter {
        let log = Log {
            access: LogTarget::File(path.to_owned()),
            format: LogFormat::Json,
            ..Log::default()
        };
        AccessWriter::open(&log, &Files::default())
            .unwrap()
            .unwrap()
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
            sender.send(record());
        }
        writer.drain();
        assert_eq!(lines(&path), 1000);
    }

    #[test]
    fn a_full_channel_drops_and_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access");
        let mut writer = writer(&path);
        let sender = writer.attach();
        for _ in 0..CAPACITY + 5 {
            sender.send(record());
        }
        assert_eq!(writer.dropped().load(Relaxed), 5);
        writer.drain();
        assert_eq!(lines(&path), CAPACITY);
        sender.send(record());
    }

    #[test]
    fn what_a_worker_sent_before_it_ended_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access");
        let mut writer = writer(&path);
        let sender = writer.attach();
        sender.send(record());
        drop(sender);
        writer.drain();
        assert_eq!(lines(&path), 1);
        assert!(writer.receivers.is_empty());
    }
}
