//! The new process' end: a thread that takes over what it is told.
//!
//! Whatever ends the stream, the new process serves then with what it has: a predecessor that died has nothing more to tell, and one that
//! speaks another version has nothing that would be understood.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use becket_cluster::{Outbox, SessionEvent};
use becket_proto::session_table::Lives;
use becket_proto::succession::{
    FRAME, HEAD, OperatorChange, Record, Secrets, Server, StickEntry, Unreadable, frame,
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use zeroize::Zeroizing;

use crate::shared::Shared;
use crate::trial::Trial;

/// What control is to know of what was heard. That there is no more of it is known by the end of the channel.
#[derive(Debug)]
pub(crate) enum Heard {
    /// The predecessor accepts nobody any more.
    Cut(TakenOver),
    /// It has left the addresses of the cluster.
    Left,
}

/// What was told until the cut, beside sessions, where clients stick and what trials remember.
#[derive(Debug, Default)]
pub(crate) struct TakenOver {
    pub(crate) secrets: Option<Secrets>,
    pub(crate) servers: Vec<Server>,
    pub(crate) changes: Vec<OperatorChange>,
}

/// Begins to take over. What its last handshakes make is told to the cluster by `outbox`, since the predecessor has left it by then.
///
/// # Errors
/// No thread.
pub(crate) fn listen(
    stream: UnixStream,
    shared: &Arc<Shared>,
    trials: BTreeMap<String, Arc<Trial>>,
    outbox: Option<Outbox>,
) -> io::Result<UnboundedReceiver<Heard>> {
    let (heard, told) = unbounded_channel();
    let heir = Heir {
        shared: Arc::clone(shared),
        trials,
        outbox,
        is_cut: false,
        sessions: 0,
        sticks: 0,
        taken: TakenOver::default(),
        kept: 0,
    };
    let thread = thread::Builder::new().name("becket-heir".into());
    thread.spawn(move || {
        if let Err(error) = take_over(&stream, heir, &heard) {
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
    mut heir: Heir,
    heard: &UnboundedSender<Heard>,
) -> io::Result<()> {
    let mut head = [0; HEAD.len()];
    stream.read_exact(&mut head)?;
    if head != HEAD {
        return Err(invalid("it is of another version"));
    }
    let mut unknown = BTreeSet::new();
    while let Some((length, record)) = next_record(stream, &mut unknown)? {
        if let Some(news) = heir.take(length, record)?
            && heard.send(news).is_err()
        {
            break;
        }
    }
    Ok(())
}

/// Whoever takes over.
struct Heir {
    shared: Arc<Shared>,
    /// By policy.
    trials: BTreeMap<String, Arc<Trial>>,
    /// To the peers of a cluster.
    outbox: Option<Outbox>,
    is_cut: bool,
    sessions: u64,
    sticks: usize,
    taken: TakenOver,
    /// Bytes of the records in it.
    kept: usize,
}

impl Heir {
    /// Takes what one record tells. Returns what control is to know of it.
    fn take(&mut self, length: usize, record: Record) -> io::Result<Option<Heard>> {
        match record {
            Record::Session {
                is_early,
                name,
                session,
                remaining,
            } => {
                let table = if is_early {
                    &self.shared.early
                } else {
                    &self.shared.table
                };
                let lives = Lives {
                    now: self.shared.clock.mono(),
                    ttl: remaining,
                };
                table.insert(name.policy(), name.id(), session, lives);
                self.sessions += 1;
                if !is_early {
                    self.tell_cluster(SessionEvent::Made(name));
                }
            }
            Record::Forgotten(name) => {
                self.shared.table.remove(name.policy(), name.id());
                self.tell_cluster(SessionEvent::Ended(name));
            }
            Record::Sticks { backend, sticks } => self.learn(&backend, &sticks),
            // What is told behind the cut would take the place of what is counted here by then.
            Record::TrialHour(hour) if !self.is_cut => {
                if let Some(trial) = self.trials.get(&hour.policy) {
                    trial.take_over(&hour, self.shared.clock.mono());
                }
            }
            Record::TrialHour(_) => return Err(invalid("a trial behind the cut")),
            Record::Secrets(told) => self.taken.secrets = Some(told),
            Record::Server(server) => {
                self.keep(length)?;
                self.taken.servers.push(server);
            }
            Record::Change(change) => {
                self.keep(length)?;
                self.taken.changes.push(change);
            }
            Record::Cut => return Ok(Some(self.cut())),
            Record::Left => return Ok(Some(Heard::Left)),
            Record::Failed(_) => return Err(invalid("a record of a successor")),
        }
        Ok(None)
    }

    /// Tells the cluster what the predecessor's last connections make: until the cut it does that itself.
    fn tell_cluster(&self, event: SessionEvent) {
        if let Some(outbox) = self.outbox.as_ref().filter(|_| self.is_cut) {
            outbox.leave(event);
        }
    }

    /// Remembers where clients stick, of a backend that is configured here too. Its servers need not be known yet.
    fn learn(&mut self, backend: &str, sticks: &[StickEntry]) {
        let Some(backend) = self.shared.backends.by_name(backend) else {
            return;
        };
        let now = self.shared.clock.mono();
        for stick in sticks {
            backend.learn_key(stick.client, stick.server, now, stick.remaining);
        }
        self.sticks += sticks.len();
    }

    fn keep(&mut self, length: usize) -> io::Result<()> {
        self.kept += length;
        if self.kept > MOST_KEPT {
            return Err(invalid("too much is told of servers and changes"));
        }
        Ok(())
    }

    fn cut(&mut self) -> Heard {
        self.is_cut = true;
        let (sessions, taken) = (self.sessions, std::mem::take(&mut self.taken));
        let (servers, changes) = (taken.servers.len(), taken.changes.len());
        tracing::info!(
            sessions,
            sticks = self.sticks,
            servers,
            changes,
            "taken over from the process before"
        );
        Heard::Cut(taken)
    }
}

/// The next record of a kind that is known, and its length; nothing at the end.
fn next_record(
    mut stream: &UnixStream,
    unknown: &mut BTreeSet<u8>,
) -> io::Result<Option<(usize, Record)>> {
    loop {
        let mut head = [0; FRAME];
        match stream.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let (length, sum) = frame(head).ok_or_else(|| invalid("a record is too long"))?;
        let mut record = Zeroizing::new(vec![0; length]);
        stream.read_exact(&mut record)?;
        match Record::read(&record, sum) {
            Ok(record) => return Ok(Some((length, record))),
            Err(Unreadable::Damaged) => return Err(invalid("a record is damaged")),
            Err(Unreadable::Unknown(kind)) if unknown.insert(kind) => {
                tracing::warn!(kind, "records of an unknown kind are passed over");
            }
            Err(Unreadable::Unknown(_)) => {}
        }
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Bytes of records that are kept until the cut: a thousand changes of 64 KiB, and as much for servers.
const MOST_KEPT: usize = 128 * 1024 * 1024;
/// How long the predecessor may take to read a reason.
const PATIENCE: Duration = Duration::from_secs(1);
