//! Channels that carry access records from the workers to the thread that writes them.
//!
//! Each worker has an [`AccessSender`], the sending end of its own bounded channel. One thread owns
//! the [`AccessWriter`], which has all receiving ends. It drains them ten times a second and once
//! more before it exits. The control thread keeps an [`AccessThread`] to request a reopen. Only the
//! writer thread waits for the file: if a channel is full (slow disk, or a pipe without a reader),
//! the record is dropped and counted.
//!
//! Invariants: each write consists of whole lines, so lines on stderr do not mix. A drain takes at
//! most [`CAPACITY`] records from each worker, so it ends even while workers send.

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
use super::syslog::{INFO, MessageForm};
use becket_keys::files::Files;

#[derive(Clone, Debug)]
pub struct AccessSender {
    lines: SyncSender<AccessLine>,
    dropped: Arc<AtomicU64>,
}

impl AccessSender {
    /// Sends a line without waiting. Drops and counts it if the channel is full or closed.
    pub fn send(&self, line: AccessLine) {
        if self.lines.try_send(line).is_err() {
            self.dropped.fetch_add(1, Relaxed);
        }
    }
}

#[derive(Debug)]
pub struct AccessWriter {
    receivers: Vec<Receiver<AccessLine>>,
    output: CountedOutput,
    format: LogFormat,
    /// Syslog message format; `None` if the output is not a syslog daemon.
    syslog: Option<MessageForm>,
    /// Whole lines that are not written yet.
    lines: String,
}

/// The control thread's handle to the writer thread. Drop waits up to [`PATIENCE`] until the last
/// lines are written.
#[derive(Debug)]
pub struct AccessThread {
    /// Each message requests a reopen. The thread exits when the sender is dropped.
    reopen: Option<SyncSender<()>>,
    /// Disconnected when the thread has exited.
    ended: Receiver<Infallible>,
}

impl AccessThread {
    /// Requests a reopen of the file after the records that were already sent. A failure is logged,
    /// and the old file stays in use.
    pub fn reopen(&self) {
        if let Some(reopen) = &self.reopen {
            // A full channel already contains a request.
            reopen.try_send(()).ok();
        }
    }
}

impl Drop for AccessThread {
    fn drop(&mut self) {
        self.reopen = None;
        if let Err(RecvTimeoutError::Timeout) = self.ended.recv_timeout(PATIENCE) {
            tracing::warn!(name: "access-log-unfinished", "cannot write the last lines of the access log in time");
        }
    }
}

impl AccessWriter {
    /// Opens the file, or uses stderr or syslog. Returns `None` if the access log is off.
    ///
    /// # Errors
    /// Fails if the file cannot be opened for appending.
    pub fn open(log: &Log, files: &Files) -> io::Result<Option<Self>> {
        let daemon = MessageForm::of(log).filter(|_| log.access == LogTarget::Syslog);
        let (syslog, daemon) = daemon.unzip();
        // Validation rejects syslog without a daemon, so this case needs no error.
        if daemon.is_none() && matches!(log.access, LogTarget::Off | LogTarget::Syslog) {
            return Ok(None);
        }
        let output = daemon.map_or_else(|| Output::open(log.access.file(), files), Ok)?;
        Ok(Some(Self {
            receivers: Vec::new(),
            output: CountedOutput::new(output),
            format: log.format,
            syslog,
            lines: String::with_capacity(BLOCK_BYTES + 1024),
        }))
    }

    /// Adds a worker: creates its channel and returns the sending end.
    pub fn attach(&mut self) -> AccessSender {
        let (lines, receiver) = sync_channel(CAPACITY);
        self.receivers.push(receiver);
        AccessSender {
            lines,
            dropped: self.dropped(),
        }
    }

    pub fn dropped(&self) -> Arc<AtomicU64> {
        self.output.dropped()
    }

    /// Starts the writer thread.
    ///
    /// # Errors
    /// Fails if no thread can be started.
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

    /// Writes the records that the workers sent. Blocks while the output blocks.
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
        let begin = self.lines.len();
        record.write(self.format, &mut self.lines);
        if let Some(syslog) = &self.syslog {
            let message = syslog.message(INFO, &self.lines.as_bytes()[begin..]);
            self.lines
                .replace_range(begin.., &String::from_utf8_lossy(&message));
        }
        if self.lines.len() >= BLOCK_BYTES {
            self.write_out();
        }
    }

    fn write_out(&mut self) {
        self.output.write(self.lines.as_bytes());
        self.lines.clear();
    }
}

const TICK: Duration = Duration::from_millis(100);
/// Channel capacity per worker, in records: 0.1 s of output at 40 000 connections per second. A
/// record takes 16 bytes in the channel, so a channel takes 64 KiB.
pub const CAPACITY: usize = 4096;
/// Number of buffered bytes at which the lines are written to the output.
const BLOCK_BYTES: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::tests::{connection, record};
    use becket_config::address::SyslogAddress;
    use becket_config::choices::LogFormat;
    use becket_config::notation::Text as _;
    use std::fs;
    use std::os::unix::net::UnixDatagram;
    use std::path::Path;

    fn writer_to(access: LogTarget, syslog: Option<&Path>) -> AccessWriter {
        let syslog = syslog.map(|path| SyslogAddress::parse(path.to_str().unwrap()).unwrap());
        let log = Log {
            access,
            syslog,
            format: LogFormat::Json,
            ..Log::default()
        };
        let writer = AccessWriter::open(&log, &Files::default());
        writer.unwrap().unwrap()
    }

    fn writer(path: &Path) -> AccessWriter {
        writer_to(LogTarget::File(path.to_owned()), None)
    }

    fn line() -> AccessLine {
        connection(record())
    }

    fn lines(path: &Path) -> usize {
        let text = fs::read_to_string(path).unwrap();
        for line in text.lines() {
            let _: serde_json::Value = serde_json::from_str(line).unwrap();
        }
        text.lines().count()
    }

    #[test]
    fn records_of_all_workers_are_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access");
        let mut writer = writer(&path);
        let senders = [writer.attach(), writer.attach()];
        for sender in senders.iter().cycle().take(1000) {
            sender.send(line());
        }
        writer.drain();
        assert_eq!(lines(&path), 1000);
    }

    #[test]
    fn a_syslog_daemon_gets_one_message_for_each_record() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("syslog");
        let daemon = UnixDatagram::bind(&path).unwrap();
        let mut writer = writer_to(LogTarget::Syslog, Some(&path));
        let sender = writer.attach();
        sender.send(line());
        sender.send(line());
        writer.drain();
        for _ in 0..2 {
            let mut message = [0; 8192];
            let length = daemon.recv(&mut message).unwrap();
            let message = String::from_utf8_lossy(&message[..length]);
            let (head, line) = message.split_once("]: ").unwrap();
            assert_eq!(head, format!("<30>becket[{}", std::process::id()));
            let _: serde_json::Value = serde_json::from_str(line).unwrap();
        }
    }

    #[test]
    fn a_full_channel_drops_records_and_counts_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access");
        let mut writer = writer(&path);
        let sender = writer.attach();
        for _ in 0..CAPACITY + 5 {
            sender.send(line());
        }
        assert_eq!(writer.dropped().load(Relaxed), 5);
        writer.drain();
        assert_eq!(lines(&path), CAPACITY);
        sender.send(line());
    }

    #[test]
    fn records_sent_before_a_worker_exits_are_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access");
        let mut writer = writer(&path);
        let sender = writer.attach();
        sender.send(line());
        drop(sender);
        writer.drain();
        assert_eq!(lines(&path), 1);
        assert!(writer.receivers.is_empty());
    }
}
