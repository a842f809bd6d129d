//! The thread of the store: connects, writes new sessions, and answers lookups.
//!
//! Four tasks run on the thread. The first connects whenever the breaker is open and an attempt is due. The second
//! writes what the workers left in their outboxes, one batch at a time; meanwhile the bounded queues fill. The third
//! starts a short task for each lookup. A session that is found enters the session table before the request is
//! answered, so the handshake of the worker finds it there. The fourth shares what the ACME companions need.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use becket_cluster::sharing::{SharedCertificate, SharingInput, SharingOutput};
use becket_cluster::{
    BATCH, LookupRequest, Outbox, OutboxReader, Secret, SessionEvent, StoreLookups,
};
use becket_proto::session::SessionName;
use becket_proto::session_table::{Lives, SessionTable};
use becket_sys::clock::Clock;
use redis::{RedisError, RedisResult};
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, oneshot};
use tokio::task::{JoinSet, LocalSet, spawn_local};
use tokio::time::error::Elapsed;
use tokio::time::{sleep, timeout};

use crate::breaker::Breaker;
use crate::connection::{StoreConnection, StoreServer, Write, explained, is_lost, is_refusal};
use crate::exchange::{
    CertificateExchange, Change, Opened, OpenedValues, SharedValue, TOKEN, TURN,
};
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
    /// Certificates that the ACME companion orders, if they are shared.
    pub certificates: Vec<SharedCertificate>,
    /// `true` if the companion orders others on demand and shares them.
    pub has_on_demand: bool,
}

/// Resources of this host that the store uses.
#[derive(Debug)]
pub struct StoreHost {
    /// Session table that all workers share.
    pub table: Arc<SessionTable>,
    pub clock: Clock,
    /// Number of workers that send events.
    pub workers: usize,
    /// Receives requests to the companion and the workers.
    pub sharing: UnboundedSender<SharingOutput>,
}

/// The running thread, which ends when this is dropped.
pub struct Store {
    settings: StoreSettings,
    outboxes: Vec<Outbox>,
    sharing: UnboundedSender<SharingInput>,
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
        let (sharing, inputs) = unbounded_channel();
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
            runtime.block_on(tasks.run_until(Rc::new(service).run(requests, inputs, stopped)));
        })?;
        Ok(Self {
            settings,
            outboxes,
            sharing,
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

    /// Passes on an event of this host's companion or workers.
    pub fn share(&self, input: SharingInput) {
        // Fails only if the thread has panicked.
        self.sharing.send(input).ok();
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
        inputs: UnboundedReceiver<SharingInput>,
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
            () = self.share_certificates(inputs) => {}
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

    async fn share_certificates(&self, mut inputs: UnboundedReceiver<SharingInput>) {
        let mut token = [0; TOKEN];
        aws_lc_rs::rand::fill(&mut token).unwrap_or_default();
        let settings = &self.settings;
        let certificates = (settings.certificates.clone(), settings.has_on_demand);
        let mut exchange = CertificateExchange::new(token, certificates, self.host.sharing.clone());
        let mut next = self.host.clock.mono();
        loop {
            let wait = next.saturating_sub(self.host.clock.mono());
            match timeout(wait, inputs.recv()).await {
                Ok(Some(input)) => {
                    exchange.input(input, self.host.clock.mono());
                    continue;
                }
                Ok(None) => return,
                Err(_) => {}
            }
            let connection = self.connection.borrow().clone();
            if let Some(connection) = connection
                && exchange.is_needed()
            {
                let turn = self.exchange(&mut exchange, connection);
                self.settle(timeout(WRITE, turn).await, WRITE);
            }
            let now = self.host.clock.mono();
            exchange.report_served(now);
            next = now + TURN;
        }
    }

    /// Reads from the store what the companions of other hosts have put there, and puts what this one has.
    async fn exchange(
        &self,
        exchange: &mut CertificateExchange,
        mut connection: StoreConnection,
    ) -> RedisResult<()> {
        let (values, indices) = exchange.wants();
        let read = self.read(&connection, &values).await?;
        let now = self.host.clock.mono();
        let changes = exchange.take(&read, &indices, now);
        self.change(&mut connection, changes).await?;
        let wanted = exchange.wanted_bundles(now);
        let read = self.read(&connection, &wanted).await?;
        let changes = exchange.take_bundles(&wanted, read, now);
        self.change(&mut connection, changes).await
    }

    async fn change(
        &self,
        connection: &mut StoreConnection,
        changes: Vec<Change>,
    ) -> RedisResult<()> {
        let now = self.host.clock.now().unix.as_secs();
        let writes = changes.into_iter();
        let writes: Vec<_> = writes.flat_map(|it| self.write_of(it, now)).collect();
        if writes.is_empty() {
            return Ok(());
        }
        for answer in connection.write(writes).await? {
            match answer {
                Err(error) if is_refusal(&error) => self.note_refused(&error),
                answer => answer?,
            }
        }
        Ok(())
    }

    /// Reads values under all secrets of the cluster.
    async fn read(
        &self,
        connection: &StoreConnection,
        values: &[SharedValue],
    ) -> RedisResult<OpenedValues> {
        let mut answers = JoinSet::new();
        for &value in values {
            for secret in 0..self.vault.secrets() {
                let Some(key) = self.vault.key_of(secret, &value.context()) else {
                    continue;
                };
                let mut connection = connection.clone();
                answers.spawn_local(async move { (value, secret, connection.get(&key).await) });
            }
        }
        let mut opened = OpenedValues::new();
        while let Some(answer) = answers.join_next().await {
            let Ok((value, secret, answer)) = answer else {
                continue;
            };
            let found = match answer {
                Err(error) if error.code() == Some("WRONGTYPE") => None,
                answer => answer?,
            };
            let now = self.host.clock.now().unix.into();
            let text =
                found.and_then(|it| self.vault.open_value(secret, &value.context(), it, now));
            if let Some((text, left)) = text
                && (secret == 0 || !opened.contains_key(&value))
            {
                opened.insert(value, Opened { text, left });
            }
        }
        Ok(opened)
    }

    fn write_of(&self, change: Change, now: u64) -> Vec<Write> {
        match change {
            Change::Put {
                value,
                text,
                life,
                is_new,
            } => {
                let context = value.context();
                let expires = now.saturating_add(life.as_secs());
                let sealed = self.vault.seal_value(&context, &[&text], expires);
                let put = self.vault.key_of(0, &context).zip(sealed);
                let put = put.map(|(key, value)| Write::Set {
                    key,
                    value,
                    millis: life.as_millis() as u64,
                    is_new,
                });
                put.into_iter().collect()
            }
            Change::Remove(value) => {
                let keys = (0..self.vault.secrets())
                    .filter_map(|secret| self.vault.key_of(secret, &value.context()));
                keys.map(Write::Delete).collect()
            }
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
            let made = events
                .iter()
                .filter(|it| matches!(it, SessionEvent::Made(_)));
            self.status().counts.dropped += made.count() as u64;
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
        if writes.is_empty() {
            return;
        }
        let sessions = writes.iter().map(Write::sessions).collect::<Vec<_>>();
        let written = timeout(WRITE, connection.write(writes)).await;
        let Some(answers) = self.settle(written, WRITE) else {
            self.status().counts.dropped += sessions.iter().sum::<u64>();
            return;
        };
        for (answer, sessions) in answers.into_iter().zip(sessions) {
            match answer {
                Ok(()) => self.status().counts.written += sessions,
                Err(error) if is_refusal(&error) => {
                    self.status().counts.refused += sessions;
                    self.note_refused(&error);
                }
                Err(error) => {
                    self.status().counts.dropped += sessions;
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
            is_new: false,
        })
    }

    fn note_refused(&self, error: &RedisError) {
        let now = self.host.clock.mono();
        if now >= self.refused_until.get() {
            self.refused_until.set(now + BETWEEN_LINES);
            let error = explained(error);
            tracing::warn!(name: "store-refused", error, "store refused a write");
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
