//! The socket on which datagrams of stud and hitch arrive, and the task that takes them.
//!
//! Runs on the control thread. In one turn it receives at most `cluster.limits.datagrams-per-turn`, then lets others have
//! the thread. Nothing is ever sent, so nobody learns what became of a datagram; nothing is logged of one either, only
//! counted ([`StudCounts`]).
//!
//! A reload changes key and policy, and can end it: the socket is closed and stays so until the next start.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket as StdSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use becket_proto::stud::MAX_DATAGRAM;
use becket_sys::socket::datagrams;
use serde::{Serialize, Serializer};
use tokio::net::UdpSocket;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::yield_now;

use super::counts::{StudCounts, StudOutcome};
use super::intake::Intake;
use crate::clock::Clock;
use crate::cluster::socket::accepted;
use crate::config::Config;
use crate::config::error::Problem;
use crate::shared::Shared;

/// Binds the socket; nothing when such sessions are not received.
///
/// # Errors
/// What cannot be bound, by its key: one problem.
pub fn bind(config: &Config) -> Result<Option<StdSocket>, Vec<Problem>> {
    let Some(stud) = config.stud() else {
        return Ok(None);
    };
    let listen = stud.listen;
    let socket = datagrams(listen, BUFFER).map_err(|error| {
        let problem = Problem::new("cluster.stud-listen", error.to_string());
        let problem = problem.value(listen.to_string());
        vec![problem.accepted(accepted(&error))]
    })?;
    tracing::info!(address = %listen, policy = stud.policy_name, "listening for sessions of stud and hitch");
    Ok(Some(socket))
}

/// What is received of stud and hitch: built by launch, started by control.
#[derive(Debug)]
pub struct Reception {
    watch: Arc<Watch>,
    reloads: UnboundedSender<Arc<Config>>,
    /// Until it was started.
    task: Option<Task>,
}

/// What pages look at.
#[derive(Debug)]
pub struct Watch {
    listen: SocketAddr,
    ended: AtomicBool,
    counts: Arc<StudCounts>,
}

/// How it stands.
#[derive(Clone, Debug, Serialize)]
pub struct StudStatus {
    /// Where datagrams arrive.
    pub listen: SocketAddr,
    /// Not switched off since the start.
    pub receiving: bool,
    /// What became of datagrams, by outcome.
    #[serde(serialize_with = "as_map")]
    pub datagrams: Vec<(&'static str, u64)>,
}

fn as_map<S: Serializer>(pairs: &[(&'static str, u64)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(pairs.iter().copied())
}

#[derive(Debug)]
struct Task {
    socket: StdSocket,
    intake: Intake,
    datagrams_per_turn: usize,
    reloads: UnboundedReceiver<Arc<Config>>,
    clock: Clock,
}

impl Reception {
    /// Makes everything that it needs; nothing without a socket.
    pub fn new(socket: Option<StdSocket>, config: &Config, shared: &Shared) -> Option<Self> {
        let counts: Arc<StudCounts> = Arc::default();
        let intake = Intake::new(Arc::clone(&shared.table), Arc::clone(&counts), config)?;
        let (reloads, received) = unbounded_channel();
        Some(Self {
            watch: Arc::new(Watch {
                listen: config.stud()?.listen,
                ended: AtomicBool::new(false),
                counts,
            }),
            reloads,
            task: Some(Task {
                socket: socket?,
                intake,
                datagrams_per_turn: per_turn(config),
                reloads: received,
                clock: shared.clock,
            }),
        })
    }

    /// What pages look at.
    pub fn watch(&self) -> Arc<Watch> {
        Arc::clone(&self.watch)
    }

    /// Starts to receive, as a task of the runtime in which this is called. Ends when this is dropped.
    pub fn start(&mut self) {
        let Some(task) = self.task.take() else {
            return;
        };
        let watch = self.watch();
        tokio::spawn(async move {
            match task.run().await {
                Ok(()) => tracing::info!("sessions of stud and hitch are not received any more"),
                Err(error) => {
                    tracing::error!(%error, "sessions of stud and hitch are not received any more");
                }
            }
            watch.ended.store(true, Relaxed);
        });
    }

    /// Takes over a reloaded configuration.
    pub fn reload(&self, config: &Arc<Config>) {
        // A task that ended has said so.
        let _ended = self.reloads.send(Arc::clone(config));
    }
}

impl Watch {
    /// How it stands.
    pub fn status(&self) -> StudStatus {
        let count = |outcome: StudOutcome| (outcome.name(), self.counts.of(outcome));
        StudStatus {
            listen: self.listen,
            receiving: !self.ended.load(Relaxed),
            datagrams: StudOutcome::ALL.map(count).to_vec(),
        }
    }
}

impl StudStatus {
    /// One for the tests of pages.
    #[cfg(test)]
    pub(crate) fn sample() -> Self {
        Self {
            listen: ([10, 0, 0, 1], 8890).into(),
            receiving: true,
            datagrams: vec![("stored", 5), ("bad-seal", 2)],
        }
    }
}

impl Task {
    async fn run(mut self) -> io::Result<()> {
        let socket = UdpSocket::from_std(self.socket)?;
        loop {
            tokio::select! {
                readable = socket.readable() => readable?,
                config = self.reloads.recv() => {
                    let Some(config) = config else {
                        return Ok(());
                    };
                    let Some(intake) = self.intake.reloaded(&config) else {
                        return Ok(());
                    };
                    self.intake = intake;
                    self.datagrams_per_turn = per_turn(&config);
                }
            }
            if receive(&socket, &self.intake, self.datagrams_per_turn, self.clock) {
                // More may wait: first whoever else has something to do on this thread.
                yield_now().await;
            }
        }
    }
}

/// Takes what waits, up to the limit of a turn. Returns whether the limit was met.
fn receive(socket: &UdpSocket, intake: &Intake, at_most: usize, clock: Clock) -> bool {
    let now = clock.now();
    // One byte more than there can be: what fills it was longer.
    let mut buffer = [0; MAX_DATAGRAM + 1];
    for _ in 0..at_most {
        match socket.try_recv(&mut buffer) {
            Ok(len) => intake.take(buffer.get(..len).unwrap_or_default(), now),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            // It says nothing about the next attempt.
            Err(_) => {}
        }
    }
    true
}

fn per_turn(config: &Config) -> usize {
    let cluster = config.cluster.as_ref();
    cluster.map_or(1, |cluster| cluster.limits.datagrams_per_turn)
}

/// What the kernel is asked to hold: some thousand sessions.
const BUFFER: usize = 1024 * 1024;
