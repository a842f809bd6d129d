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
//! A request that finds no room is not passed on, and counted. Nobody keeps out the cancels of other sources: they wait
//! in a [`FairQueue`].
//!
//! Source: PostgreSQL, "Frontend/Backend Protocol", section "Canceling Requests in Progress".

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use becket_proto::admission::Source;
use becket_proto::fair_queue::FairQueue;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::backend_state::{BackendState, Waiter};
use super::health::check::{Check, Failure};
use super::inbox::BackendEvent;
use super::server_state::ServerState;
use becket_proto::close_reason::CloseReason;
use becket_tls::config::Backend;

/// Where workers leave cancels, and what became of them.
#[derive(Debug)]
pub struct Cancels {
    waiting: Mutex<FairQueue<Source, Cancel>>,
    came: Notify,
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
    /// Dropped when they have been, or will not be.
    pub telling: Telling,
}

/// Tells the client's connection when all is done, however that ends: by being dropped.
#[derive(Debug)]
pub struct Telling {
    outcome: Arc<OnceLock<CloseReason>>,
    waiter: Waiter,
}

/// The connection's end of an [`Telling`].
#[derive(Debug)]
pub struct CancelOutcome(Arc<OnceLock<CloseReason>>);

impl Telling {
    /// Begins one for the connection that waits.
    pub fn begin(waiter: Waiter) -> (Self, CancelOutcome) {
        let outcome = Arc::<OnceLock<_>>::default();
        let told = CancelOutcome(Arc::clone(&outcome));
        (Self { outcome, waiter }, told)
    }

    /// There was no room: the servers will not be told.
    fn refuse(self) {
        self.outcome.get_or_init(|| CloseReason::CancelLimit);
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        self.outcome.get_or_init(|| CloseReason::Cancel);
        let look = BackendEvent::Look(self.waiter.place);
        self.waiter.inbox.deliver(look);
    }
}

impl CancelOutcome {
    /// What to close the connection with, once that is known.
    pub fn outcome(&self) -> Option<CloseReason> {
        self.0.get().copied()
    }
}

impl Default for Cancels {
    fn default() -> Self {
        Self {
            waiting: Mutex::new(FairQueue::new(MOST_WAITING)),
            came: Notify::new(),
            passed: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }
}

impl Cancels {
    /// Leaves a cancel of a client. Where there is no room, this one is refused, or one of a source that has more.
    pub fn leave(&self, source: Source, cancel: Cancel) {
        let refused = self.waiting().push(source, cancel);
        if let Some(cancel) = refused {
            cancel.telling.refuse();
        }
        self.came.notify_one();
    }

    fn waiting(&self) -> MutexGuard<'_, FairQueue<Source, Cancel>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests that a server took, and those that could not be brought to one; ever, over all servers.
    pub fn counts(&self) -> (u64, u64) {
        (self.passed.load(Relaxed), self.failed.load(Relaxed))
    }

    /// Passes on what is left, for ever. To be called once.
    pub async fn run(self: Arc<Self>) {
        let mut running = JoinSet::new();
        loop {
            let next = self.waiting().pop();
            let Some(cancel) = next else {
                self.came.notified().await;
                continue;
            };
            while running.try_join_next().is_some() {}
            let own = Arc::clone(&self);
            running.spawn(async move { own.pass_on(cancel).await });
            if running.len() >= MOST_AT_ONCE {
                running.join_next().await;
            }
            sleep(PACE).await;
        }
    }

    async fn pass_on(&self, cancel: Cancel) {
        let servers = cancel.state.known_servers();
        let servers = servers.into_iter().filter(|server| server.has_address());
        let mut telling = JoinSet::new();
        for server in servers.take(MOST_SERVERS) {
            let check = Check::tell(&cancel.backend, &server, &cancel.request, PATIENCE);
            telling.spawn(async move {
                let late = |_| Err(Failure::TimedOut(PATIENCE));
                let told = timeout(PATIENCE, check.run()).await.unwrap_or_else(late);
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
            .field("backend", &self.backend.keys.name)
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
