//! A process that serves, or did, or is about to, seen from the parent: its number, and the socket on which it takes orders.

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use becket_sys::fd_messages;
use becket_sys::process::ChildProcess;
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, sleep_until};

use super::rows::ChildRow;
use super::upgrade::IS_CONTINUED;
use crate::handover::Order;

/// One such process.
#[derive(Debug)]
pub(super) struct Serving {
    process: ChildProcess,
    stream: UnixStream,
    replies: tokio::net::UnixStream,
    /// Not before then is anything heard.
    hears_at: Instant,
    /// Dropped once the process has ended.
    row: Option<ChildRow>,
}

impl Serving {
    /// Starts a program, under the name by which this one was called, with a socket for its standard input. Its first order is
    /// to be sent.
    pub(super) fn start(program: &Path, row: Option<ChildRow>) -> io::Result<Self> {
        let (process, stream) = spawn(program)?;
        Self::of(process, stream, row)
    }

    /// One that the program before this one has started.
    pub(super) fn adopt(pid: u32, stream: OwnedFd, row: Option<ChildRow>) -> io::Result<Self> {
        Self::of(ChildProcess::of(pid)?, stream.into(), row)
    }

    fn of(process: ChildProcess, stream: UnixStream, row: Option<ChildRow>) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            process,
            replies: tokio::net::UnixStream::from_std(stream.try_clone()?)?,
            stream,
            hears_at: Instant::now(),
            row,
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Its row of the memory that children share.
    pub(super) fn row(&self) -> Option<usize> {
        self.row.as_ref().map(|row| row.index)
    }

    /// The socket, for a program that this one becomes.
    pub(super) fn stream(&self) -> io::Result<OwnedFd> {
        Ok(self.stream.try_clone()?.into())
    }

    /// Gives an order.
    pub(super) fn send(&self, order: &Order, fds: &[OwnedFd]) -> io::Result<()> {
        send(&self.stream, order, fds)
    }

    /// Waits for what it says, at a bounded rate. Nothing when it has ended. Nothing is lost when the future is dropped.
    pub(super) async fn hear(&mut self) -> Option<Vec<u8>> {
        sleep_until(self.hears_at).await;
        let mut bytes = [0; 4096];
        match self.replies.read(&mut bytes).await {
            Ok(0) | Err(_) => None,
            Ok(count) => {
                self.hears_at = Instant::now() + BETWEEN_READS;
                bytes.get(..count).map(<[u8]>::to_vec)
            }
        }
    }

    /// Whether it has ended. What it says is of no interest any more, and is not left lying: it would wait for a reader.
    pub(super) fn has_ended(&self) -> bool {
        let _unheard = (&self.stream).read(&mut [0; 4096]);
        !matches!(self.process.try_wait(), Ok(None))
    }

    /// Kills it unless it has ended.
    pub(super) fn end(self) -> io::Result<ExitStatus> {
        self.process.end()
    }
}

/// Starts a program as a child, which waits for its first order.
pub(super) fn spawn(program: &Path) -> io::Result<(ChildProcess, UnixStream)> {
    let (here, there) = UnixStream::pair()?;
    let mut words = std::env::args_os();
    let mut command = Command::new(program);
    command
        .arg0(words.next().unwrap_or_else(|| NAME.into()))
        .args(words)
        .env(IS_CHILD, VERSION)
        .env_remove(IS_CONTINUED)
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::from(OwnedFd::from(there)));
    Ok((ChildProcess::start(&mut command)?, here))
}

pub(super) fn send(stream: &UnixStream, order: &Order, fds: &[OwnedFd]) -> io::Result<()> {
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    fd_messages::send(stream, &serde_json::to_vec(order)?, &fds, PATIENCE)
}

/// Tells a process that it is the child of a parent that speaks this version.
pub(super) const IS_CHILD: &str = "BECKET_CHILD";
/// How a parent and a child speak with each other, and a parent with the program that it becomes. Raise it when that changes.
pub(super) const VERSION: &str = "2";
/// Where the program was called by no name.
const NAME: &str = "becket";
/// Between two looks at what the child has said, so that one that floods costs next to nothing. An honest one says ten bytes a
/// second.
const BETWEEN_READS: Duration = Duration::from_millis(25);
/// How long the child may take to read what it is sent.
const PATIENCE: Duration = Duration::from_secs(30);
