//! Cancels of PostgreSQL clients, passed on to every server of their backend.
//!
//! A CancelRequest names a running session by a number and a secret that its server gave out, on a connection of its own
//! and, by most clients, in clear. Nobody here knows which server that was, so each one is told; one that does not know
//! the secret does nothing. It goes through a connection as for a health check: with TLS where the backend has it, with a
//! PROXY header (LOCAL) where that is expected, without a slot. A server closes it when it has acted, and only then the
//! client's connection is closed: a client that went on before could have its next query cancelled.
//!
//! The work is done on the control thread and bounded in all that a client could make of it: [`MOST_WAITING`] requests
//! wait, one begins each [`PACE`], [`MOST_AT_ONCE`] are under way, each for [`PATIENCE`] and to [`MOST_SERVERS`] servers.
//! A request that finds no room is not passed on, and counted.
//!
//! Source: PostgreSQL, "Frontend/Backend Protocol", section "Canceling Requests in Progress".

use std::fmt;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::check::Failure;
use super::inbox::Notice;
use super::line::{BackendState, Waiter};
use super::state::ServerState;
use crate::config::Backend;

/// Where workers leave cancels, and what became of them.
#[derive(Debug)]
pub struct Cancels {
    sender: mpsc::Sender<Cancel>,
    receiver: Mutex<Option<mpsc::Receiver<Cancel>>>,
    passed: AtomicU64,
    failed: AtomicU64,
}

/// A request on its way.
pub struct Cancel {
    /// As the client sent it.
    pub request: Arc<[u8]>,
    /// Whose servers are told.
    pub backend: Arc<Backend>,
    /// The same at work.
    pub state: Arc<BackendState>,
    /// Dropped when they have been.
    pub telling: Telling,
}

/// Tells the client's connection when all is done, however that ends: by being dropped.
#[derive(Debug)]
pub struct Telling {
    done: Arc<AtomicBool>,
    waiter: Waiter,
}

/// The connection's end of an [`Telling`].
#[derive(Debug)]
pub struct Told(Arc<AtomicBool>);

impl Telling {
    /// Begins one for the connection that waits.
    pub fn begin(waiter: Waiter) -> (Self, Told) {
        let done = Arc::<AtomicBool>::default();
        let told = Told(Arc::clone(&done));
        (Self { done, waiter }, told)
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        self.done.store(true, Release);
        let look = Notice::Look(self.waiter.place);
        self.waiter.inbox.deliver(look);
    }
}

impl Told {
    /// Whether it is done.
    pub fn is_done(&self) -> bool {
        self.0.load(Acquire)
    }
}

impl Default for Cancels {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(MOST_WAITING);
        Self {
            sender,
            receiver: Mutex::new(Some(receiver)),
            passed: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }
}

impl Cancels {
    /// Leaves a cancel. False when there is no room for it.
    pub fn leave(&self, cancel: Cancel) -> bool {
        self.sender.try_send(cancel).is_ok()
    }

    /// Requests that a server took, and those that could not be brought to one; ever, over all servers.
    pub fn counts(&self) -> (u64, u64) {
        (self.passed.load(Relaxed), self.failed.load(Relaxed))
    }

    /// Passes on what is left, for ever. Only the first call does.
    pub async fn run(self: Arc<Self>) {
        let Some(mut receiver) = self.take_receiver() else {
            return;
        };
        let mut running = JoinSet::new();
        while let Some(cancel) = receiver.recv().await {
            while running.try_join_next().is_some() {}
            if running.len() >= MOST_AT_ONCE {
                running.join_next().await;
            }
            let own = Arc::clone(&self);
            running.spawn(async move { own.pass_on(cancel).await });
            sleep(PACE).await;
        }
    }

    fn take_receiver(&self) -> Option<mpsc::Receiver<Cancel>> {
        let mut held = self.receiver.lock().unwrap_or_else(PoisonError::into_inner);
        held.take()
    }

    async fn pass_on(&self, cancel: Cancel) {
        let servers = cancel.state.known_servers();
        let servers = servers.into_iter().filter(|server| server.has_address());
        let mut telling = JoinSet::new();
        for server in servers.take(MOST_SERVERS) {
            let plan = cancel.backend.tell_plan(&server, &cancel.request, PATIENCE);
            telling.spawn(async move {
                let late = |_| Err(Failure::TimedOut(PATIENCE));
                let told = timeout(PATIENCE, plan.run()).await.unwrap_or_else(late);
                (server, told)
            });
        }
        while let Some(told) = telling.join_next().await {
            match told {
                Ok((_, Ok(()))) => {
                    self.passed.fetch_add(1, Relaxed);
                }
                Ok((server, Err(failure))) => self.note_failure(&server, &failure),
                Err(_) => {}
            }
        }
    }

    fn note_failure(&self, server: &ServerState, failure: &Failure) {
        self.failed.fetch_add(1, Relaxed);
        let backend = server.backend().name();
        tracing::debug!(backend, server = %server.name(), %failure, "a cancel was not passed on");
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the secret.
        out.debug_struct("Cancel")
            .field("backend", &self.backend.name)
            .finish_non_exhaustive()
    }
}

/// Requests that wait for control: a pool of clients whose queries all ran into a time-out.
const MOST_WAITING: usize = 64;
/// With [`MOST_SERVERS`], as many connects at a time as there are health checks.
const MOST_AT_ONCE: usize = 4;
const MOST_SERVERS: usize = 16;
/// Between two that begin: 50 a second, some milliseconds of control's time with TLS towards a few servers.
const PACE: Duration = Duration::from_millis(20);
/// Nobody who presses Ctrl-C waits for longer.
pub const PATIENCE: Duration = Duration::from_secs(3);
