//! The thread of the store: connects, writes new sessions, and answers lookups.
//!
//! Three tasks run on the thread. The first connects whenever the breaker is open and an attempt is due. The second
//! writes what the workers left in their outboxes, one batch at a time; meanwhile the bounded queues fill. The third
//! starts a short task for each lookup. A session that is found enters the session table before the request is
//! answered, so the handshake of the worker finds it there.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use becket_cluster::{
    BATCH, LookupRequest, Outbox, OutboxReader, Secret, SessionEvent, StoreLookups,
};
use becket_proto::session::SessionName;
use becket_proto::session_table::{Lives, SessionTable};
use becket_sys::clock::Clock;
use redis::{RedisError, RedisResult};
use tokio::runtime::Builder;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{Notify, oneshot};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::error::Elapsed;
use tokio::time::{sleep, timeout};

use crate::breaker::Breaker;
use crate::connection::{StoreConnection, StoreServer, Write};
use crate::status::StoreStatus;
use crate::vault::{Lifetimes, Live, StoreVault};

/// All settings. A change starts another [`Store`].
#[derive(Clone, PartialEq)]
pub struct StoreSettings {
    pub server: StoreServer,
    /// Maximum time for which a handshake waits.
    pub timeout: Duration,
    /// Secrets of the cluster. The first one seals.
    pub secrets: Vec<Secret>,
    pub lifetimes: Lifetimes,
}

/// Resources of this host that the store uses.
#[derive(Debug)]
pub struct StoreHost {
    /// Session table that all workers share.
    pub table: Arc<SessionTable>,
    pub clock: Clock,
    /// Number of workers that send events.
    pub workers: usize,
}

/// The running thread, which ends when this is dropped.
pub struct Store {
    settings: StoreSettings,
    outboxes: Vec<Outbox>,
    view: StoreView,
    _stop: oneshot::Sender<()>,
}

/// Status of a store for other threads, also after it has ended.
#[derive(Clone, Debug)]
pub struct StoreView {
    status: Arc<Mutex<StoreStatus>>,
    lookups: StoreLookups,
}

impl StoreView {
    pub fn status(&self) -> StoreStatus {
        let mut status = lock(&self.status).clone();
        status.counts.skipped += self.lookups.skipped();
        status
    }
}

impl Store {
    /// Starts the thread, which connects in the background.
    ///
    /// # Errors
    /// Fails if the thread cannot be started or no key can be derived.
    pub fn start(settings: StoreSettings, host: StoreHost) -> io::Result<Self> {
        let vault = StoreVault::new(&settings.secrets);
        let vault = vault.ok_or_else(|| io::Error::other("cannot derive the keys of the store"))?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (events, outboxes) = OutboxReader::of_workers(host.workers, QUEUED_EVENTS);
        let (lookups, requests) = StoreLookups::new(MOST_LOOKUPS);
        let with_lookups = |outbox: Outbox| outbox.with_lookups(lookups.clone());
        let outboxes = outboxes.into_iter().map(with_lookups).collect();
        let status = Arc::new(Mutex::new(StoreStatus {
            address: settings.server.address.text.clone(),
            ..StoreStatus::default()
        }));
        let (stop, stopped) = oneshot::channel();
        let view = StoreView {
            status: Arc::clone(&status),
            lookups: lookups.clone(),
        };
        let of_thread = settings.clone();
        let thread = thread::Builder::new().name("becket-store".into());
        thread.spawn(move || {
            let service = Service {
                breaker: RefCell::new(Breaker::new(host.clock.mono())),
                connection: RefCell::default(),
                opened: Notify::new(),
                refused_until: Cell::default(),
                settings: of_thread,
                vault,
                host,
                events,
                lookups,
                status,
            };
            let tasks = LocalSet::new();
            runtime.block_on(tasks.run_until(Rc::new(service).run(requests, stopped)));
        })?;
        Ok(Self {
            settings,
            outboxes,
            view,
            _stop: stop,
        })
    }

    pub fn settings(&self) -> &StoreSettings {
        &self.settings
    }

    /// Returns the outboxes of the workers.
    pub fn outboxes(&self) -> Vec<Outbox> {
        self.outboxes.clone()
    }

    pub fn view(&self) -> StoreView {
        self.view.clone()
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Store").finish_non_exhaustive()
    }
}

struct Service {
    settings: StoreSettings,
    vault: StoreVault,
    host: StoreHost,
    events: OutboxReader,
    lookups: StoreLookups,
    breaker: RefCell<Breaker>,
    /// `None` while the breaker is open.
    connection: RefCell<Option<StoreConnection>>,
    /// Wakes the task that connects.
    opened: Notify,
    /// Time until which refused writes are not logged again.
    refused_until: Cell<Duration>,
    status: Arc<Mutex<StoreStatus>>,
}

/// Result of a lookup.
enum Fetched {
    Found(Live),
    Missing,
    Rejected,
}

impl Service {
    async fn run(
        self: Rc<Self>,
        mut requests: UnboundedReceiver<LookupRequest>,
        stopped: oneshot::Receiver<()>,
    ) {
        let looks_up = async {
            while let Some(request) = requests.recv().await {
                let service = Rc::clone(&self);
                spawn_local(async move { service.look_up(request).await });
            }
        };
        tokio::select! {
            () = self.keep_connected() => {}
            () = self.write_behind() => {}
            () = looks_up => {}
            _ = stopped => {}
        }
    }

    async fn keep_connected(&self) {
        loop {
            let attempt = self.breaker.borrow().next_attempt();
            let Some(at) = attempt else {
                // A connection that is not used does not notice that it has ended.
                if timeout(IDLE, self.opened.notified()).await.is_err() {
                    self.ping().await;
                }
                continue;
            };
            sleep(at.saturating_sub(self.host.clock.mono())).await;
            let connected = timeout(CONNECT, self.settings.server.connect()).await;
            let failure = match connected {
                Ok(Ok(connection)) => {
                    self.handle_connected(connection);
                    continue;
                }
                Ok(Err(error)) => explained(&error),
                Err(_) => late(CONNECT),
            };
            self.breaker.borrow_mut().open(self.host.clock.mono());
            self.note_unavailable(failure);
        }
    }

    async fn ping(&self) {
        let connection = self.connection.borrow().clone();
        if let Some(mut connection) = connection {
            self.settle(timeout(WRITE, connection.ping()).await, WRITE);
        }
    }

    /// Counts a use of the store. Returns its result if it succeeded within the limit.
    fn settle<T>(&self, used: Result<RedisResult<T>, Elapsed>, limit: Duration) -> Option<T> {
        match used {
            Ok(Ok(result)) => {
                self.breaker.borrow_mut().handle_success();
                return Some(result);
            }
            Ok(Err(error)) => self.handle_failure(explained(&error), is_lost(&error)),
            Err(_) => self.handle_failure(late(limit), false),
        }
        None
    }

    fn handle_connected(&self, connection: StoreConnection) {
        self.connection.replace(Some(connection));
        let now = self.host.clock.mono();
        self.breaker.borrow_mut().handle_connected(now);
        self.lookups.set_available(true);
        let mut status = self.status();
        status.available = true;
        status.error = None;
        tracing::info!(name: "store-connected", store = status.address, "connected to the store");
    }

    /// Counts a failed use. Ends the connection after several failures, or at once if it `is_lost`.
    fn handle_failure(&self, error: String, is_lost: bool) {
        let now = self.host.clock.mono();
        let mut breaker = self.breaker.borrow_mut();
        let opens = if is_lost && breaker.is_closed() {
            breaker.open(now);
            true
        } else {
            breaker.handle_failure(now)
        };
        drop(breaker);
        if opens {
            self.lookups.set_available(false);
            self.connection.replace(None);
            self.opened.notify_one();
            self.note_unavailable(error);
        }
    }

    /// Logs the first failure of an outage.
    fn note_unavailable(&self, error: String) {
        let mut status = self.status();
        if status.available || status.error.is_none() {
            status.counts.outages += 1;
            tracing::warn!(name: "store-unavailable", store = status.address, error, "store not available; clients of other hosts make full handshakes");
        }
        status.available = false;
        status.error = Some(error);
    }

    async fn look_up(&self, request: LookupRequest) {
        let connection = self.connection.borrow().clone();
        let Some(connection) = connection else {
            self.status().counts.skipped += 1;
            return;
        };
        let most = self.settings.timeout;
        let fetched = timeout(most, self.fetch(connection, &request.name)).await;
        match self.settle(fetched, most) {
            Some(fetched) => self.keep(&request.name, fetched),
            None => self.status().counts.failed += 1,
        }
    }

    async fn fetch(
        &self,
        mut connection: StoreConnection,
        name: &SessionName,
    ) -> RedisResult<Fetched> {
        for secret in 0..self.vault.secrets() {
            let Some(key) = self.vault.key(secret, name) else {
                continue;
            };
            let value = match connection.get(&key).await {
                Ok(None) => continue,
                Ok(Some(value)) => value,
                // Another writer has put a list or a set there.
                Err(error) if error.code() == Some("WRONGTYPE") => return Ok(Fetched::Rejected),
                Err(error) => return Err(error),
            };
            let now = self.host.clock.now().unix.into();
            let opened = self
                .vault
                .open(secret, name, value, (now, self.settings.lifetimes));
            return Ok(opened.map_or(Fetched::Rejected, Fetched::Found));
        }
        Ok(Fetched::Missing)
    }

    fn keep(&self, name: &SessionName, fetched: Fetched) {
        let mut status = self.status();
        let counts = &mut status.counts;
        match fetched {
            Fetched::Missing => counts.missing += 1,
            Fetched::Rejected => counts.rejected += 1,
            Fetched::Found(live) => {
                counts.found += 1;
                let lives = Lives {
                    now: self.host.clock.mono(),
                    ttl: live.ttl,
                };
                let table = &self.host.table;
                table.insert(name.policy(), name.id(), live.session, lives);
            }
        }
    }

    async fn write_behind(&self) {
        loop {
            let mut events = Vec::new();
            if self.events.drain(|event| events.push(event)) == 0 {
                self.events.wakeup().await;
                continue;
            }
            for batch in events.chunks(MOST_WRITES) {
                self.write(batch).await;
            }
            self.status().counts.overflowed = self.events.untold();
            sleep(BATCH).await;
        }
    }

    async fn write(&self, events: &[SessionEvent]) {
        let connection = self.connection.borrow().clone();
        let Some(mut connection) = connection else {
            self.status().counts.dropped += events.len() as u64;
            return;
        };
        let mut writes = Vec::with_capacity(events.len());
        for event in events {
            match event {
                SessionEvent::Made(name) => writes.extend(self.set(name)),
                SessionEvent::Ended(name) => {
                    let keys = (0..self.vault.secrets()).filter_map(|it| self.vault.key(it, name));
                    writes.extend(keys.map(Write::Delete));
                }
                SessionEvent::Stuck(_) => {}
            }
        }
        let count = writes.len() as u64;
        if count == 0 {
            return;
        }
        let written = timeout(WRITE, connection.write(writes)).await;
        let Some(answers) = self.settle(written, WRITE) else {
            self.status().counts.dropped += count;
            return;
        };
        for answer in answers {
            match answer {
                Ok(()) => self.status().counts.written += 1,
                Err(error) if is_refusal(&error) => {
                    self.status().counts.refused += 1;
                    self.note_refused(&error);
                }
                Err(error) => {
                    self.status().counts.dropped += 1;
                    self.handle_failure(explained(&error), is_lost(&error));
                }
            }
        }
    }

    /// Returns the command that stores a session; `None` if the table no longer has it.
    fn set(&self, name: &SessionName) -> Option<Write> {
        let now = self.host.clock.now();
        let (session, ttl) = self.host.table.copy(name, now.mono)?;
        let live = Live { session, ttl };
        Some(Write::Set {
            key: self.vault.key(0, name)?,
            value: self.vault.seal(name, &live, now.unix.into())?,
            millis: u64::try_from(ttl.as_millis()).ok()?,
        })
    }

    fn note_refused(&self, error: &RedisError) {
        let now = self.host.clock.mono();
        if now >= self.refused_until.get() {
            self.refused_until.set(now + BETWEEN_LINES);
            let error = explained(error);
            tracing::warn!(name: "store-refused", error, "store refused new sessions");
        }
    }

    fn status(&self) -> MutexGuard<'_, StoreStatus> {
        lock(&self.status)
    }
}

fn lock(status: &Mutex<StoreStatus>) -> MutexGuard<'_, StoreStatus> {
    // The status stays valid if another lock holder panics.
    status.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns `true` if the connection cannot be used any more: it ended, or the server became a replica.
fn is_lost(error: &RedisError) -> bool {
    error.is_io_error() || error.code() == Some("READONLY")
}

/// Returns `true` if the server works, but does not accept this write.
fn is_refusal(error: &RedisError) -> bool {
    matches!(error.code(), Some("OOM" | "NOPERM" | "MISCONF"))
}

/// Describes an error, in a bounded length because a server may have written it.
fn explained(error: &RedisError) -> String {
    error.to_string().chars().take(LONGEST_ERROR).collect()
}

fn late(limit: Duration) -> String {
    format!("no answer within {limit:?}")
}

/// Maximum number of queued events per worker, each about 60 bytes: 0.8 s at 20 000 new sessions per second.
const QUEUED_EVENTS: usize = 16_384;
/// Maximum number of unanswered lookups. At 10 ms each, they bound what a flood of unknown IDs costs the store.
const MOST_LOOKUPS: usize = 256;
/// Maximum number of commands in a batch. A lookup waits for at most one batch on the connection.
const MOST_WRITES: usize = 256;
/// Time to connect, with DNS, TLS and the question to the sentinels.
const CONNECT: Duration = Duration::from_secs(2);
/// Time for a batch. No client waits for it.
const WRITE: Duration = Duration::from_secs(1);
/// Time after which the connection is checked.
const IDLE: Duration = Duration::from_secs(5);
/// Time between two log lines about refused writes.
const BETWEEN_LINES: Duration = Duration::from_secs(60);
/// Maximum length of an error in characters.
const LONGEST_ERROR: usize = 200;
