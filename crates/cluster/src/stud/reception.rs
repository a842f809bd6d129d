//! The socket for datagrams of stud and hitch, and the task that receives them.
//!
//! Runs on the control thread. In one turn it receives at most [`DATAGRAMS_PER_TURN`], then yields the thread.
//! Nothing is ever sent, so no sender learns the outcome of a datagram. Outcomes are not logged, only counted
//! ([`StudCounts`]).
//!
//! A reload changes key and policy, and can end the reception: the socket is closed until the next start.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket as StdSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use becket_proto::session_table::SessionTable;
use becket_sys::clock::Clock;
use serde::{Serialize, Serializer};
use tokio::net::UdpSocket;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::yield_now;

use super::counts::{StudCounts, StudOutcome};
use super::datagram::MAX_DATAGRAM;
use super::intake::{Intake, Terms};
use crate::replica::DATAGRAMS_PER_TURN;
use crate::socket::{NotBound, bind_datagrams};

/// Binds the socket from the terms, or adopts the inherited socket `given`.
///
/// # Errors
/// Fails if the socket cannot be bound.
pub fn bind(terms: &Terms, given: Option<io::Result<StdSocket>>) -> Result<StdSocket, NotBound> {
    let socket = bind_datagrams("cluster.stud-listen", terms.listen, BUFFER, given)?;
    let policy = &terms.policy_name;
    tracing::info!(name: "stud-listening", address = %terms.listen, policy, "listening for TLS sessions from stud and hitch peers");
    Ok(socket)
}

/// Receives the sessions that stud and hitch announce. Created at launch; the control thread starts
/// it later.
#[derive(Debug)]
pub struct Reception {
    watch: Arc<ReceptionStatus>,
    reloads: UnboundedSender<Option<Terms>>,
    /// `None` after the start.
    task: Option<ReceptionTask>,
}

/// State of a [`Reception`], read by status pages.
#[derive(Debug)]
pub struct ReceptionStatus {
    listen: SocketAddr,
    ended: AtomicBool,
    counts: Arc<StudCounts>,
}

#[derive(Clone, Debug, Serialize)]
pub struct StudStatus {
    pub listen: SocketAddr,
    /// `true` until the reception has ended.
    pub receiving: bool,
    /// Number of datagrams by outcome.
    #[serde(serialize_with = "as_map")]
    pub datagrams: Vec<(&'static str, u64)>,
}

fn as_map<S: Serializer>(pairs: &[(&'static str, u64)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(pairs.iter().copied())
}

#[derive(Debug)]
struct ReceptionTask {
    socket: StdSocket,
    intake: Intake,
    reloads: UnboundedReceiver<Option<Terms>>,
    clock: Clock,
}

impl Reception {
    pub fn new(socket: StdSocket, terms: Terms, table: Arc<SessionTable>, clock: Clock) -> Self {
        let counts: Arc<StudCounts> = Arc::default();
        let (reloads, received) = unbounded_channel();
        Self {
            watch: Arc::new(ReceptionStatus {
                listen: terms.listen,
                ended: AtomicBool::new(false),
                counts: Arc::clone(&counts),
            }),
            reloads,
            task: Some(ReceptionTask {
                socket,
                intake: Intake::new(table, counts, terms),
                reloads: received,
                clock,
            }),
        }
    }

    /// Returns the shared state for status pages.
    pub fn watch(&self) -> Arc<ReceptionStatus> {
        Arc::clone(&self.watch)
    }

    /// Starts to receive, as a task of the current runtime. The task ends when the [`Reception`] is
    /// dropped.
    pub fn start(&mut self) {
        let Some(task) = self.task.take() else {
            return;
        };
        let watch = self.watch();
        tokio::spawn(async move {
            match task.run().await {
                Ok(()) => {
                    tracing::info!(name: "stud-stopped", "stopped receiving TLS sessions from stud and hitch peers")
                }
                Err(error) => {
                    tracing::error!(name: "stud-failed", %error, "cannot receive TLS sessions from stud and hitch peers");
                }
            }
            watch.ended.store(true, Relaxed);
        });
    }

    /// Applies the terms of a reloaded configuration. `None` ends the reception.
    pub fn reload(&self, terms: Option<Terms>) {
        // Sending fails only if the task has ended. The task has already logged that.
        let _ended = self.reloads.send(terms);
    }
}

impl ReceptionStatus {
    pub fn status(&self) -> StudStatus {
        let count = |outcome: StudOutcome| (outcome.label(), self.counts.of(outcome));
        StudStatus {
            listen: self.listen,
            receiving: !self.ended.load(Relaxed),
            datagrams: StudOutcome::ALL.map(count).to_vec(),
        }
    }
}

impl ReceptionTask {
    async fn run(mut self) -> io::Result<()> {
        let socket = UdpSocket::from_std(self.socket)?;
        loop {
            tokio::select! {
                readable = socket.readable() => readable?,
                terms = self.reloads.recv() => match terms.flatten() {
                    Some(terms) => self.intake.reload(terms),
                    None => return Ok(()),
                },
            }
            if receive(&socket, &self.intake, self.clock) {
                // More datagrams may be queued, but other tasks of this thread run first.
                yield_now().await;
            }
        }
    }
}

/// Receives queued datagrams, up to the limit of a turn. Returns `true` if the limit was reached.
fn receive(socket: &UdpSocket, intake: &Intake, clock: Clock) -> bool {
    let now = clock.now();
    // One byte more than the maximum, to detect datagrams that are too long.
    let mut buffer = [0; MAX_DATAGRAM + 1];
    for _ in 0..DATAGRAMS_PER_TURN {
        match socket.try_recv(&mut buffer) {
            Ok(len) => intake.take(buffer.get(..len).unwrap_or_default(), now),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            // Ignores the error, because the next attempt may succeed.
            Err(_) => {}
        }
    }
    true
}

/// Requested size of the kernel's buffer: a few thousand sessions.
const BUFFER: usize = 1024 * 1024;
