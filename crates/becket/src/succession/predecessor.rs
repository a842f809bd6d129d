//! The new process' end: a thread that takes over what it is told.
//!
//! Whatever ends the stream, the new process serves then with what it has: a predecessor that died has nothing more to tell, and one that
//! speaks another version has nothing that would be understood.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use becket_proto::session_table::Lives;
use becket_proto::succession::{FRAME, HEAD, Record, Secrets, frame};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use zeroize::Zeroizing;

use crate::shared::Shared;

/// What control is to know of what was heard. That there is no more of it is known by the end of the channel.
#[derive(Debug)]
pub(crate) enum Heard {
    /// The predecessor accepts nobody any more, and these are its secrets.
    Cut(Option<Secrets>),
    /// It has left the addresses of the cluster.
    Left,
}

/// Begins to take over.
///
/// # Errors
/// No thread.
pub(crate) fn listen(
    stream: UnixStream,
    shared: &Arc<Shared>,
) -> io::Result<UnboundedReceiver<Heard>> {
    let (heard, told) = unbounded_channel();
    let shared = Arc::clone(shared);
    let thread = thread::Builder::new().name("becket-heir".into());
    thread.spawn(move || {
        if let Err(error) = take_over(&stream, &shared, &heard) {
            tracing::warn!(%error, "no more is taken over from the process before");
        }
    })?;
    Ok(told)
}

/// Says to the predecessor why this process does not start.
pub(crate) fn say_failed(mut stream: &UnixStream, reason: String) {
    let mut frame = Vec::new();
    Record::Failed(reason).write(&mut frame);
    let told = stream.set_write_timeout(Some(PATIENCE));
    if let Err(error) = told.and_then(|()| stream.write_all(&frame)) {
        tracing::debug!(%error, "the process before was not told");
    }
}

fn take_over(
    mut stream: &UnixStream,
    shared: &Shared,
    heard: &UnboundedSender<Heard>,
) -> io::Result<()> {
    let mut head = [0; HEAD.len()];
    stream.read_exact(&mut head)?;
    if head != HEAD {
        return Err(invalid("it is of another version"));
    }
    let (mut sessions, mut secrets) = (0_u64, None);
    loop {
        let mut head = [0; FRAME];
        match stream.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        let (length, sum) = frame(head).ok_or_else(|| invalid("a record is too long"))?;
        let mut record = Zeroizing::new(vec![0; length]);
        stream.read_exact(&mut record)?;
        let record = Record::read(&record, sum).ok_or_else(|| invalid("a record is damaged"))?;
        let told = match record {
            Record::Session {
                is_early,
                name,
                session,
                remaining,
            } => {
                let table = if is_early {
                    &shared.early
                } else {
                    &shared.table
                };
                let lives = Lives {
                    now: shared.clock.mono(),
                    ttl: remaining,
                };
                table.insert(name.policy(), name.id(), session, lives);
                sessions += 1;
                continue;
            }
            Record::Forgotten(name) => {
                shared.table.remove(name.policy(), name.id());
                continue;
            }
            Record::Secrets(told) => {
                secrets = Some(told);
                continue;
            }
            Record::Cut => {
                tracing::info!(sessions, "taken over from the process before");
                Heard::Cut(secrets.take())
            }
            Record::Left => Heard::Left,
            Record::Failed(_) => return Err(invalid("a record of a successor")),
        };
        if heard.send(told).is_err() {
            return Ok(());
        }
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// How long the predecessor may take to read a reason.
const PATIENCE: Duration = Duration::from_secs(1);
