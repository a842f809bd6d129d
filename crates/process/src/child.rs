//! A process that the supervisor started: its handle (pidfd), the socket for its commands, and its
//! file listings.
//!
//! No call here blocks. Commands that the process does not read stay queued for [`PATIENCE`].
//! Events are read at a bounded rate, so a process that floods costs almost nothing. The handle
//! reports the exit of the process; the socket does not, because it stays open while any process
//! has a copy of the other end.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::pin::Pin;
use std::process::{Command as Program, ExitStatus, Stdio};
use std::task::{Context, Poll};
use std::time::Duration;

use becket_sys::fd_messages::{Incoming, Outgoing};
use becket_sys::process::ChildProcess;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, Sleep, sleep_until};

use super::listing::ListedFiles;
use super::supervisor::ProcessEnd;
use crate::protocol::{Command, Event, IS_CONTINUED, IS_STARTED, LONGEST_EVENT, VERSION};

#[derive(Debug)]
pub(super) struct Child {
    pub(super) id: u32,
    process: ChildProcess,
    handle: AsyncFd<OwnedFd>,
    stream: AsyncFd<UnixStream>,
    incoming: Incoming,
    outgoing: Outgoing,
    /// Time when the oldest unread command was sent.
    unread_since: Option<Instant>,
    /// Bytes of events that may be read now.
    credit: usize,
    /// Bytes of events that may be read after the exit.
    final_credit: usize,
    /// Timer for the next credit and for the read deadline of commands.
    timer: Pin<Box<Sleep>>,
    credited: Instant,
    is_at_end: bool,
    /// The listing of the configuration that the process loads, and the listing of the files that
    /// it checks for changes.
    pub(super) listings: [ListedFiles; 2],
}

#[derive(Debug)]
pub(super) enum ChildEvent {
    Event(Event),
    Exited(ProcessEnd),
    Broken(&'static str),
    /// The process has read all commands.
    Flushed,
}

impl Child {
    /// Starts a program with the `argv[0]` of this process, and with a socket as standard input.
    pub(super) fn start(id: u32, program: &Path) -> io::Result<Self> {
        let (process, stream) = spawn(program)?;
        Self::of(id, process, stream, Vec::new())
    }

    /// Adopts a process that the previous program started. `read` contains event bytes that the
    /// previous program received.
    pub(super) fn adopt(id: u32, pid: u32, stream: OwnedFd, read: Vec<u8>) -> io::Result<Self> {
        Self::of(id, ChildProcess::of(pid)?, stream.into(), read)
    }

    #[expect(
        deprecated,
        reason = "the descriptors are owned, and stay open as long as they are registered"
    )]
    pub(super) fn of(
        id: u32,
        process: ChildProcess,
        stream: UnixStream,
        read: Vec<u8>,
    ) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let handle = process.as_fd().try_clone_to_owned()?;
        let now = Instant::now();
        Ok(Self {
            id,
            handle: AsyncFd::with_interest(handle, Interest::READABLE)?,
            process,
            stream: AsyncFd::new(stream)?,
            incoming: Incoming::of(read),
            outgoing: Outgoing::default(),
            unread_since: None,
            credit: LONGEST_EVENT,
            final_credit: LONGEST_EVENT,
            timer: Box::pin(sleep_until(now)),
            credited: now,
            is_at_end: false,
            listings: Default::default(),
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns the socket and the bytes read from it, for the program that replaces this one.
    pub(super) fn carry(&self) -> io::Result<(OwnedFd, Vec<u8>)> {
        let stream = self.stream.get_ref().try_clone()?;
        Ok((stream.into(), self.incoming.bytes().to_vec()))
    }

    pub(super) fn is_flushed(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// Sends the part of a command that fits into the socket, and queues the remaining bytes.
    pub(super) fn send(&mut self, command: &Command, fds: Vec<OwnedFd>) {
        let pushed = serde_json::to_vec(command).map_err(io::Error::from);
        let pushed = pushed.and_then(|text| self.outgoing.push(&text, fds));
        if let Err(error) = pushed {
            tracing::error!(name: "command-send-failed", process = self.id, %error, "cannot send a command to the serving process");
        }
        self.flush();
    }

    fn flush(&mut self) {
        match self.outgoing.flush(self.stream.get_ref()) {
            Ok(true) => self.unread_since = None,
            Ok(false) => {
                self.unread_since.get_or_insert_with(Instant::now);
            }
            // The process has exited. Its pidfd reports the exit, so the queued commands are only
            // dropped here.
            Err(_) => (self.outgoing, self.unread_since) = (Outgoing::default(), None),
        }
    }

    pub(super) fn kill(&self) {
        if let Err(error) = self.process.kill() {
            tracing::error!(name: "kill-failed", pid = self.pid(), %error, "cannot kill a process");
        }
    }

    pub(super) fn charge(&mut self, bytes: usize) {
        self.credit = self.credit.saturating_sub(bytes);
    }

    /// Returns `true` if more than [`MOST_COMMANDS`] commands are queued, which a correct process
    /// cannot cause.
    pub(super) fn has_too_many_commands(&self) -> bool {
        self.outgoing.len() > MOST_COMMANDS
    }

    /// Stops reading events and reports a protocol violation.
    fn broken(&mut self, fault: &'static str) -> ChildEvent {
        (self.incoming, self.is_at_end) = (Incoming::default(), true);
        ChildEvent::Broken(fault)
    }

    /// Polls for the next event of the process. Cancel-safe: a dropped caller loses no event.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ChildEvent> {
        if !self.outgoing.is_empty() {
            while let Poll::Ready(Ok(mut guard)) = self.stream.poll_write_ready(cx) {
                match self.outgoing.flush(self.stream.get_ref()) {
                    Ok(false) => guard.clear_ready(),
                    Ok(true) | Err(_) => {
                        drop(guard);
                        self.flush();
                        return Poll::Ready(ChildEvent::Flushed);
                    }
                }
            }
        }
        let has_ended = self.handle.poll_read_ready(cx).is_ready();
        // Reads no event while a command is unread: unread answers keep their descriptors open in
        // this process, and further requests for files would open more.
        if (has_ended || self.is_flushed())
            && let Poll::Ready(happened) = self.poll_event(has_ended, cx)
        {
            return Poll::Ready(happened);
        }
        if has_ended {
            return Poll::Ready(ChildEvent::Exited(match self.process.try_wait() {
                Ok(Some(status)) => ended(status),
                Ok(None) => return Poll::Pending,
                Err(error) => error.into(),
            }));
        }
        if self
            .unread_since
            .is_some_and(|since| since.elapsed() >= PATIENCE)
        {
            self.unread_since = None;
            return Poll::Ready(self.broken("commands not read in time"));
        }
        self.wake_later(cx);
        Poll::Pending
    }

    /// Reads until an event is complete. After the exit, remaining events are read without rate
    /// limit, up to a maximum; requests for files and agents are ignored.
    fn poll_event(&mut self, has_ended: bool, cx: &mut Context<'_>) -> Poll<ChildEvent> {
        loop {
            match self.incoming.take(LONGEST_EVENT) {
                Ok(Some(text)) => match serde_json::from_slice(&text) {
                    Ok(Event::Open { .. } | Event::Token(_)) if has_ended => continue,
                    Ok(event) => return Poll::Ready(ChildEvent::Event(event)),
                    Err(_) => return Poll::Ready(self.broken("unknown event")),
                },
                Err(_) => return Poll::Ready(self.broken("event too long")),
                Ok(None) if self.is_at_end => return Poll::Pending,
                Ok(None) => {}
            }
            self.renew_credit();
            let left = if has_ended {
                self.final_credit
            } else {
                self.credit
            };
            let most = left.min(READ);
            if most == 0 {
                self.is_at_end |= has_ended;
                return Poll::Pending;
            }
            let mut guard = None;
            if !has_ended {
                let Poll::Ready(Ok(ready)) = self.stream.poll_read_ready(cx) else {
                    return Poll::Pending;
                };
                guard = Some(ready);
            }
            match self.incoming.read(self.stream.get_ref(), most) {
                Ok(0) => self.is_at_end = true,
                Ok(count) if has_ended => {
                    self.final_credit = self.final_credit.saturating_sub(count)
                }
                Ok(count) => self.credit = self.credit.saturating_sub(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match &mut guard {
                    Some(guard) => guard.clear_ready(),
                    None => return Poll::Pending,
                },
                Err(_) => self.is_at_end = true,
            }
        }
    }

    fn renew_credit(&mut self) {
        let periods = self.credited.elapsed().as_millis() / PERIOD.as_millis();
        if periods > 0 {
            let more = usize::try_from(periods)
                .unwrap_or(usize::MAX)
                .saturating_mul(PER_PERIOD);
            self.credit = self.credit.saturating_add(more).min(LONGEST_EVENT);
            self.credited = Instant::now();
        }
    }

    fn wake_later(&mut self, cx: &mut Context<'_>) {
        let credit_at = (self.credit == 0).then(|| self.credited + PERIOD);
        let late_at = self.unread_since.map(|since| since + PATIENCE);
        if let Some(at) = credit_at.into_iter().chain(late_at).min() {
            self.timer.as_mut().reset(at);
            if self.timer.as_mut().poll(cx).is_ready() {
                cx.waker().wake_by_ref();
            }
        }
    }
}

pub(super) fn ended(status: ExitStatus) -> ProcessEnd {
    ProcessEnd {
        code: status.code().and_then(|code| u8::try_from(code).ok()),
        text: status.to_string(),
    }
}

pub(super) fn spawn(program: &Path) -> io::Result<(ChildProcess, UnixStream)> {
    let mut words = std::env::args_os();
    let mut command = Program::new(program);
    command
        .arg0(words.next().unwrap_or_else(|| NAME.into()))
        .args(words);
    begin(command)
}

/// Starts the ACME companion, without arguments.
pub(super) fn spawn_companion(program: &Path) -> io::Result<(ChildProcess, UnixStream)> {
    begin(Program::new(program))
}

fn begin(mut command: Program) -> io::Result<(ChildProcess, UnixStream)> {
    let (here, there) = UnixStream::pair()?;
    command
        .env(IS_STARTED, VERSION)
        .env(PURGE_DELAY.0, PURGE_DELAY.1)
        .env_remove(IS_CONTINUED)
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::from(OwnedFd::from(there)));
    Ok((ChildProcess::start(&mut command)?, here))
}

/// Option of mimalloc: minimum age in milliseconds of freed pages before they return to the system,
/// when a thread next frees a page. The default is 1000.
const PURGE_DELAY: (&str, &str) = ("MIMALLOC_PURGE_DELAY", "100");
/// Fallback for an empty `argv[0]`.
const NAME: &str = "becket";
/// Time limit for a process to read a command.
const PATIENCE: Duration = Duration::from_secs(30);
const READ: usize = 64 * 1024;
/// Bytes of event credit per [`PERIOD`]. A correct process sends less.
const PER_PERIOD: usize = 4 * 1024;
/// Maximum number of queued command frames. A correct process waits for each answer before it
/// requests more files.
const MOST_COMMANDS: usize = 1024;
const PERIOD: Duration = Duration::from_millis(25);

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::Read;

    use super::*;
    use crate::protocol::{MOST_OPENED, OpenResult};

    #[tokio::test]
    async fn events_are_delayed_until_pending_commands_are_read() {
        // The process exits with this test.
        let (_end, input) = UnixStream::pair().unwrap();
        let mut program = Program::new("cat");
        program
            .stdin(Stdio::from(OwnedFd::from(input)))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let process = ChildProcess::start(&mut program).unwrap();
        let (here, mut there) = UnixStream::pair().unwrap();
        there.set_nonblocking(true).unwrap();
        let mut child = Child::of(1, process, here, Vec::new()).unwrap();
        while child.is_flushed() {
            let answer = Command::Opened(1, 0, vec![OpenResult::Own; MOST_OPENED as usize]);
            child.send(&answer, Vec::new());
        }
        let mut sent: Outgoing = Outgoing::default();
        let event = serde_json::to_vec(&Event::Alive).unwrap();
        sent.push(&event, Vec::new()).unwrap();
        assert!(sent.flush(&there).unwrap());
        poll_fn(|cx| child.stream.poll_read_ready(cx).map(drop)).await;
        let early = poll_fn(|cx| Poll::Ready(child.poll(cx))).await;
        assert!(early.is_pending(), "{early:?}");
        while there.read(&mut [0; READ]).is_ok() {}
        let flushed = poll_fn(|cx| child.poll(cx)).await;
        assert!(matches!(flushed, ChildEvent::Flushed), "{flushed:?}");
        let event = poll_fn(|cx| child.poll(cx)).await;
        assert!(
            matches!(event, ChildEvent::Event(Event::Alive)),
            "{event:?}"
        );
    }
}
