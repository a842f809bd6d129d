//! Receives the state of the old process in a thread of the new process.
//!
//! If the stream ends early, the new process serves clients with the state received so far.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;

use becket_cluster::{Outbox, SessionEvent};
use becket_proto::handover::{HEAD, LENGTH, Record, Secrets, Server, StickEntry, length};
use becket_proto::session_table::Lives;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use zeroize::Zeroizing;

use becket_proxy::shared::SharedState;

/// A step of the old process on which the control loop of the new process must act. The channel
/// closes when the stream ends.
#[derive(Debug)]
pub enum Milestone {
    /// The old process has stopped accepting. Contains its last ticket secrets and the health of
    /// its servers.
    Cut(Option<Secrets>, Vec<Server>),
    /// The old process has closed its cluster socket.
    Left,
}

/// Starts the receiving thread. After the cut, the thread also sends the old process's session
/// events to the peers, through `outbox`.
///
/// # Errors
/// Fails if no thread can be started.
pub fn start(
    stream: UnixStream,
    shared: &Arc<SharedState>,
    outbox: Option<Outbox>,
) -> io::Result<UnboundedReceiver<Milestone>> {
    let (milestones, reached) = unbounded_channel();
    let reader = HandoverReader {
        shared: Arc::clone(shared),
        outbox,
        is_cut: false,
        sessions: 0,
        sticks: 0,
        secrets: None,
        servers: Vec::new(),
    };
    let thread = thread::Builder::new().name("becket-handover".into());
    thread.spawn(move || {
        if let Err(error) = receive(&stream, reader, &milestones) {
            tracing::warn!(name: "state-receive-failed", %error, "cannot receive the rest of the state from the old process");
        }
    })?;
    Ok(reached)
}

fn receive(
    mut stream: &UnixStream,
    mut reader: HandoverReader,
    milestones: &UnboundedSender<Milestone>,
) -> io::Result<()> {
    let mut head = [0; HEAD.len()];
    stream.read_exact(&mut head)?;
    if head != HEAD {
        return Err(invalid("the state has another version"));
    }
    while let Some(record) = next_record(stream)? {
        if let Some(milestone) = reader.take(record)?
            && milestones.send(milestone).is_err()
        {
            break;
        }
    }
    Ok(())
}

struct HandoverReader {
    shared: Arc<SharedState>,
    /// Queue of session events for the peers; `None` without a cluster.
    outbox: Option<Outbox>,
    is_cut: bool,
    sessions: u64,
    sticks: usize,
    secrets: Option<Secrets>,
    servers: Vec<Server>,
}

impl HandoverReader {
    /// Stores the contents of a record. Returns a milestone if the control loop must act on the
    /// record.
    fn take(&mut self, record: Record) -> io::Result<Option<Milestone>> {
        let may_follow_cut = matches!(
            record,
            Record::Session { .. } | Record::Forgotten(_) | Record::Left
        );
        if self.is_cut && !may_follow_cut {
            return Err(invalid("a record after the cut"));
        }
        match record {
            Record::Session {
                name,
                session,
                remaining,
            } => {
                let lives = Lives {
                    now: self.shared.clock.mono(),
                    ttl: remaining,
                };
                self.shared
                    .table
                    .insert(name.policy(), name.id(), session, lives);
                self.sessions += 1;
                self.pass_to_cluster(SessionEvent::Made(name));
            }
            Record::Forgotten(name) => {
                self.shared.table.remove(name.policy(), name.id());
                self.pass_to_cluster(SessionEvent::Ended(name));
            }
            Record::Sticks { backend, sticks } => self.learn(&backend, &sticks),
            Record::Secrets(secrets) => self.secrets = Some(secrets),
            Record::Server(server) => {
                if self.servers.len() >= MOST_SERVERS {
                    return Err(invalid("too many servers"));
                }
                self.servers.push(server);
            }
            Record::Cut => return Ok(Some(self.cut())),
            Record::Left => return Ok(Some(Milestone::Left)),
        }
        Ok(None)
    }

    /// Sends a session event of the old process to the peers, if the event follows the cut. The old
    /// process sends earlier events itself.
    fn pass_to_cluster(&self, event: SessionEvent) {
        if let Some(outbox) = self.outbox.as_ref().filter(|_| self.is_cut) {
            outbox.leave(event);
        }
    }

    /// Stores stick entries if their backend is configured. Their servers need not be configured
    /// yet.
    fn learn(&mut self, backend: &str, sticks: &[StickEntry]) {
        let Some(backend) = self.shared.backends.by_name(backend) else {
            return;
        };
        let now = self.shared.clock.mono();
        for stick in sticks {
            backend.learn(stick.client, stick.server, now, stick.remaining);
        }
        self.sticks += sticks.len();
    }

    fn cut(&mut self) -> Milestone {
        self.is_cut = true;
        let servers = std::mem::take(&mut self.servers);
        tracing::info!(
            name: "state-received",
            sessions = self.sessions,
            sticks = self.sticks,
            servers = servers.len(),
            "received the state of the old process"
        );
        Milestone::Cut(self.secrets.take(), servers)
    }
}

/// Returns the next record of a known kind, or `None` at the end of the stream.
fn next_record(mut stream: &UnixStream) -> io::Result<Option<Record>> {
    loop {
        let mut head = [0; LENGTH];
        match stream.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let length = length(head).ok_or_else(|| invalid("a record is too long"))?;
        let mut record = Zeroizing::new(vec![0; length]);
        stream.read_exact(&mut record)?;
        let read = Record::read(&record);
        if read.is_some() {
            return Ok(read);
        }
        tracing::debug!("skipping a record of another version");
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Maximum number of server records stored until the cut. Each uses at most a few KiB.
const MOST_SERVERS: usize = 100_000;
