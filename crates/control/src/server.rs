//! The control loop: signals, reloads, periodic work, and shutdown.
//!
//! | signal | what it does |
//! |---|---|
//! | SIGHUP | reload: prepare, then commit or discard |
//! | SIGUSR1 | reopen log files |
//! | SIGUSR2 | upgrade, by the supervisor ([`upgrade`]) |
//! | SIGTERM | drain: accept no new clients, finish, exit 0, or 3 at `timeouts.drain` |
//! | SIGINT | stop now, exit 0 |
//!
//! The loop runs on the main thread. Workers never wait for it.

mod changes;
mod commands;
mod companion;
pub mod companion_state;
mod edits;
pub mod outcomes;
mod renewal;
pub mod retired;
pub mod shared_limits;
mod upgrade;
pub mod upgrade_state;
pub mod watching;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use becket_config::error::Problem;
use becket_sys::clock::Now;
use becket_sys::priority;
use becket_sys::socket;
use becket_sys::socket_file::SocketFile;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use self::companion_state::CompanionState;
use self::outcomes::PendingOutcomes;
use self::retired::RetiredMaps;
use self::upgrade_state::Handover;
use self::watching::Watching;
use crate::admin::{self, AdminSockets, Pages};
use crate::answers::Responder;
use crate::api::ChangeRequest;
use crate::cluster::{self, SessionSharing};
use crate::health::{cancel, prober::Prober};
use crate::memory::MemoryWatch;
use crate::reload::{self, ReloadRequest, Reloaded, Reloading};
use crate::rotation::Rotation;
use crate::sandbox::Sandbox;
use crate::sockets;
use crate::state::AdminState;
use crate::status::ReloadOutcome;
use crate::temporary::log_ended;
use becket_cluster::Membership;
use becket_keys::signing::token::Tokens;
use becket_log::access_log::AccessThread;
use becket_log::{Logging, Timestamp};
use becket_prepare::Prepared;
use becket_prepare::descriptors;
use becket_prepare::source::ConfigSource;
use becket_process::link::resources::{BoundSockets, ProcessResources};
use becket_process::link::{Delivered, SupervisorLink};
use becket_process::protocol::Event;
use becket_process::signals::Signals;
use becket_proxy::backend::registry::{Adopted, Backends};
use becket_proxy::metrics::Counters;
use becket_proxy::worker::bound::BoundListener;
use becket_proxy::worker::workers::{WorkerEnded, Workers};
use becket_store::Store;
use becket_tls::config::Config;

/// Reason why the process stopped serving. The discriminant is its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// An operator requested a drain or a stop, which is complete.
    Done = 0,
    /// A worker failed.
    Failed = 1,
    /// Connections that were still open after `timeouts.drain` were closed.
    DrainDeadline = 3,
}

#[derive(Debug)]
pub struct Terminator {
    pub runtime: Runtime,
    pub control: Control,
}

impl Terminator {
    pub fn counters(&self) -> Vec<Arc<Counters>> {
        self.control.state.shared().counters.clone()
    }

    /// Serves clients until an operator stops becket or a worker fails.
    pub fn run(self) -> Outcome {
        let outcome = self.runtime.block_on(self.control.run());
        // The runtime must not wait for a reload thread that is blocked on a failed disk.
        self.runtime.shutdown_background();
        outcome
    }
}

#[derive(Debug)]
pub struct Control {
    pub state: Arc<AdminState>,
    pub workers: Workers,
    /// Receives the result of each worker when it exits.
    pub ended: UnboundedReceiver<WorkerEnded>,
    pub prober: Prober,
    pub rotation: Rotation,
    pub config: ConfigTasks,
    pub cluster: SessionSharing,
    pub companion: CompanionState,
    pub logs: LogThreads,
    pub admin: AdminThreads,
    pub handover: Handover,
    pub memory: MemoryWatch,
    pub supervision: Supervision,
    pub sandbox: Sandbox,
    /// Time at which `timeouts.drain` expires; `None` unless this process is draining.
    pub drain_until: Option<Instant>,
}

#[derive(Debug)]
pub struct ConfigTasks {
    pub source: ConfigSource,
    pub reloading: Reloading,
    pub watching: Watching,
    pub retired: RetiredMaps,
    pub waiting: PendingOutcomes,
}

#[derive(Debug)]
pub struct LogThreads {
    pub logging: Logging,
    pub access: Option<AccessThread>,
}

#[derive(Debug)]
pub struct AdminThreads {
    pub sockets: AdminSockets,
    /// Threads of the admin pages; `None` until this process accepts clients.
    pub pages: Option<Pages>,
    /// Channel for the changes that operators request over the admin pages.
    pub changes: (Sender<ChangeRequest>, Receiver<ChangeRequest>),
}

/// Sources of operator requests: the supervisor's commands, or signals if there is no supervisor.
#[derive(Debug)]
pub struct Supervision {
    pub signals: Signals,
    pub link: Option<SupervisorLink>,
    /// Commands from the supervisor. The channel is closed if there is no supervisor.
    pub commands: UnboundedReceiver<Delivered>,
}

impl Control {
    async fn run(mut self) -> Outcome {
        // Lower the priority of this thread only; the workers already run.
        if let Err(error) = priority::give_way(NICENESS) {
            tracing::debug!(%error, "cannot lower the priority of the control thread");
        }
        tokio::spawn(cancel::send_all(Arc::clone(&self.state.shared().cancels)));
        self.begin();
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut left = self.workers.count();
        let mut outcome = Outcome::Done;
        let mut settled = Instant::now();
        while left > 0 {
            let settle_at = self.handover.limits.is_shared();
            let settle_at = settle_at.then(|| settled + shared_limits::BETWEEN);
            tokio::select! {
                _ = tick.tick() => self.tick(),
                ended = self.prober.ended() => self.prober.take(ended, self.state.shared().clock.now()),
                Some(delivered) = self.supervision.commands.recv() => self.obey(delivered).await,
                // Ignore signals under a supervisor, which forwards them as commands. A service
                // manager may signal all processes of a service, and each request would be executed
                // twice.
                request = self.supervision.signals.next(), if self.supervision.link.is_none() => self.carry_out(request).await,
                Some(asked) = self.admin.changes.1.recv() => self.change(asked).await,
                step = self.handover.next() => self.advance(step),
                () = at(settle_at) => {
                    settled = Instant::now();
                    self.settle_limits();
                }
                reloaded = self.config.reloading.prepared() => self.finish_reload(reloaded),
                seen = self.config.watching.next() => self.handle_seen(seen),
                event = self.companion.next() => self.handle_companion(event),
                ended = self.ended.recv() => {
                    left -= 1;
                    if let Err(error) = ended.map_or_else(gone, |ended| ended.result) {
                        tracing::error!(name: "worker-failed", %error, "worker thread failed; the process exits");
                        outcome = Outcome::Failed;
                        self.workers.stop();
                    }
                }
                () = at(self.drain_until), if outcome == Outcome::Done => {
                    tracing::warn!(name: "drain-timeout", "timeouts.drain expired; closing the remaining connections");
                    outcome = Outcome::DrainDeadline;
                    self.workers.stop();
                }
            }
        }
        self.end(outcome).await
    }

    /// Shuts the process down after all workers have exited.
    async fn end(mut self, outcome: Outcome) -> Outcome {
        // Dropping these channels returns an error to each client that waits for a result.
        drop((self.admin.changes, self.config.waiting));
        if let Some(peers) = self.cluster.peers {
            peers.leave().await;
        }
        if let Some(pages) = self.admin.pages {
            pages.finish(admin::LAST_MOMENT).await;
        }
        drop(self.logs.access);
        self.sandbox.tell();
        tracing::info!(name: "process-ended", exit_code = outcome as u8, "serving process exits");
        outcome
    }

    fn start_admin(&mut self) {
        let (state, changes) = (Arc::clone(&self.state), self.admin.changes.0.clone());
        let workers = self.workers.mailboxes().to_vec();
        let answers = Responder::new(state, AdminState::snapshot, changes, workers);
        match admin::start(&self.admin.sockets, answers) {
            Ok(pages) => self.admin.pages = Some(pages),
            Err(error) => {
                tracing::error!(name: "admin-pages-failed", %error, "cannot serve the admin pages")
            }
        }
    }

    fn tick(&mut self) {
        let shared = Arc::clone(self.state.shared());
        let now = shared.clock.now();
        shared.table.sweep(now.mono, SWEEP);
        shared.early.sweep(now.mono, SWEEP);
        self.rotate(now);
        self.state.tick(now);
        self.sandbox.tell();
        let config = self.state.config();
        self.prober.tick(&config, &shared.backends, now);
        self.watch_memory(now.mono);
        for index in config.tokens.lost() {
            self.report(&Event::Token(index));
        }
        self.report(&Event::Alive);
        self.config.retired.drop_unused();
    }

    fn watch_memory(&mut self, now: Duration) {
        let shared = self.state.shared();
        let limit = self.state.config().file.limits.memory;
        if let Some(idle) = self.memory.check(limit, shared, now) {
            self.workers.end_idle(idle);
        }
    }

    fn rotate(&mut self, now: Now) {
        if !self.handover.keeps_secrets() {
            return;
        }
        let period = self.state.config().file.ticket_rotation();
        match self.rotation.tick(period, now) {
            Ok(false) => {}
            Ok(true) => {
                self.use_secrets();
                tracing::info!(name: "ticket-keys-rotated", "ticket keys rotated");
            }
            Err(error) => {
                tracing::error!(name: "ticket-key-rotation-failed", %error, "cannot rotate the ticket keys")
            }
        }
    }

    /// Sends the current ticket secrets to the workers, and their status to the admin pages.
    fn use_secrets(&self) {
        self.workers.rotate(self.rotation.secrets());
        self.show_rotation();
    }

    fn show_rotation(&self) {
        let rotation = self.rotation.standing();
        self.state.change(|it| it.rotation = rotation);
    }

    fn begin_reload(&mut self, given: ProcessResources) {
        if self.state.is_draining() {
            tracing::warn!(name: "reload-skipped", "reload skipped because becket is draining");
            return;
        }
        self.state.change(|it| it.changes.reloads.running = true);
        let files = given.files.within(self.sandbox.reach.as_ref());
        let tokens = Tokens::adopt(given.tokens, &self.state.config().tokens);
        self.config.reloading.begin(ReloadRequest {
            source: self.config.source.with(files, tokens),
            sockets: given.sockets,
            running: self.state.config(),
            secrets: Arc::clone(self.rotation.secrets()),
            unix: self.state.shared().clock.now().unix,
            asked: given.asked,
        });
    }

    fn finish_reload(&mut self, reloaded: Reloaded) {
        let temporary = self.state.temporary();
        let (prepared, sockets) = (reloaded.prepared, reloaded.sockets);
        let committed = prepared.and_then(|loaded| {
            self.bind_and_commit(loaded.prepared, sockets)?;
            self.config.watching.replace(loaded.own);
            Ok(())
        });
        let errors = committed.err().unwrap_or_default();
        for error in &errors {
            tracing::error!(name: "reload-failed", "reload refused, nothing changed: {error}");
        }
        let event = if errors.is_empty() {
            log_ended(&temporary);
            tracing::info!(
                name: "reloaded",
                origin = self.config.source.origin(),
                "configuration reloaded"
            );
            self.look_first();
            log_kernel_tls(&self.state.config());
            Event::Reloaded
        } else {
            Event::Refused
        };
        // The client that waits for the answer may read the status at once.
        let time = Timestamp::from_unix(self.state.shared().clock.now().unix);
        let running = self.config.reloading.is_running();
        let outcome = ReloadOutcome {
            time,
            errors: errors.clone(),
        };
        self.state.set_reload(outcome, running);
        self.config
            .waiting
            .reloaded(reloaded.asked, &errors, &temporary);
        self.report(&event);
    }

    fn bind_and_commit(
        &mut self,
        prepared: Prepared,
        mut sockets: BoundSockets,
    ) -> Result<(), Vec<String>> {
        let config = Arc::new(prepared.config);
        let now = self.state.shared().clock.now();
        let rotation = self.rotation.reloaded(&config, now);
        let rotation = rotation.map_err(|error| vec![format!("cluster.secret: {error}")])?;
        let old = self.state.config();
        descriptors::raise(&config, self.workers.count())
            .map_err(|error| vec![error.to_string()])?;
        let held = self.workers.addresses();
        let added = sockets::bind(&config, held, self.workers.count(), &mut sockets);
        let added =
            added.map_err(|faults| faults.iter().map(Problem::to_string).collect::<Vec<_>>())?;
        let threads = self.workers.prepare_for(&config);
        threads.map_err(|error| vec![format!("process.crypto-threads: {error}")])?;
        let moves = old.peers_arrive_at() != config.peers_arrive_at();
        let membership = moves.then(|| self.membership(&config, &mut sockets));
        let membership = membership.transpose()?;
        let served = config.tokens.serve();
        served.map_err(|error| vec![format!("cannot start the threads of tokens: {error}")])?;
        // Nothing after this step fails, because it takes the running store.
        let had_store = self.cluster.store.is_some();
        let sharing = self.companion.sharing();
        let store = self
            .cluster
            .store_for(&config, self.state.shared(), &sharing);
        let store = store.map_err(|error| vec![format!("cluster.store: {error}")])?;
        log_warnings(&prepared.warnings);
        for key in reload::waiting_for_restart(&old, &config) {
            tracing::warn!(name: "restart-required", key, "setting changed; the change takes effect at the next start");
        }
        // A store with the same settings was taken out.
        let is_same = had_store && self.cluster.store.is_none();
        let is_other = !is_same && (had_store || store.is_some());
        self.show_store(store);
        if is_other {
            self.share_again();
        }
        match (membership, &self.cluster.peers, cluster::settings(&config)) {
            (Some(membership), ..) => self.join(membership),
            (None, Some(same), Some(settings)) => same.reload(settings),
            (None, ..) => {}
        }
        self.commit(config, added);
        spawn_blocking(move || reload::save_checked(prepared.checked));
        if let Some(rotation) = rotation {
            let before = std::mem::replace(&mut self.rotation, rotation);
            if Arc::ptr_eq(before.secrets(), self.rotation.secrets()) {
                self.show_rotation();
            } else {
                self.use_secrets();
            }
        }
        Ok(())
    }

    /// Binds the cluster socket and creates the membership, or returns `None` if replication is not
    /// configured.
    fn membership(
        &self,
        config: &Config,
        sockets: &mut BoundSockets,
    ) -> Result<Option<Membership>, Vec<String>> {
        let given = config.peers_arrive_at();
        let given = given.and_then(|address| sockets.take_datagrams(address));
        let bound = cluster::bind(config, given).map_err(|problem| vec![problem.to_string()])?;
        let sharing = self.companion.sharing();
        let membership = cluster::membership(bound, config, self.state.shared(), sharing);
        membership.map_err(|error| vec![format!("cluster.listen: {error}")])
    }

    /// Replaces this node's membership in the cluster. The old membership sends a goodbye to its
    /// peers when it is dropped.
    fn join(&mut self, mut membership: Option<Membership>) {
        if let Some(cluster) = &mut membership {
            cluster.start();
        } else {
            tracing::info!(name: "replication-ended", "replication of TLS sessions stopped");
        }
        let node = membership.as_ref().map(Membership::node);
        self.state.change(|it| it.node = node);
        self.cluster.peers = membership;
        self.share_again();
    }

    /// Replaces the store. The thread of another one ends when it is dropped.
    fn show_store(&mut self, store: Option<Store>) {
        let view = store.as_ref().map(Store::view);
        self.state.change(|it| it.store = view);
        self.cluster.store = store;
    }

    /// Makes a prepared configuration the current one, and applies its table sizes and its log
    /// level.
    fn commit(&mut self, config: Arc<Config>, added: Vec<Vec<BoundListener>>) {
        let adopted = self.state.shared().backends.adopt(&config);
        self.exchange(Arc::clone(&config), &adopted, added);
        self.state.shared().backends.restore(&adopted);
        let (shared, sessions) = (self.state.shared(), &config.file.sessions);
        for table in [&shared.table, &shared.early] {
            table.set_limits(sessions.table_entries, sessions.table_size);
        }
        self.state.change(|it| it.log_level = None);
        if let Err(error) = self.logs.logging.set_level(&config.log.level) {
            tracing::error!(name: "log-level-failed", %error, "cannot change the log level");
        }
    }

    /// Passes the configuration to the control loop and the workers. `added` contains the new
    /// sockets of each worker; it may be empty.
    fn exchange(&mut self, config: Arc<Config>, adopted: &Adopted, added: Vec<Vec<BoundListener>>) {
        self.config.retired.add(&self.state.config(), &config);
        self.state.set_config(config);
        // Set the limits of new servers before a worker connects to them.
        self.settle_limits();
        self.workers
            .reload(adopted, added, &self.cluster.outboxes());
    }

    /// Commits a configuration that an operator's change or a certificate renewal derived from the
    /// running one. The listening sockets stay the same.
    fn exchange_edited(
        &mut self,
        config: Config,
        adopt: fn(&Backends, &Arc<Config>) -> Adopted,
    ) -> io::Result<()> {
        let config = Arc::new(config);
        descriptors::raise(&config, self.workers.count())?;
        self.workers.prepare_for(&config)?;
        let adopted = adopt(&self.state.shared().backends, &config);
        self.exchange(config, &adopted, Vec::new());
        Ok(())
    }

    fn reopen(&self) {
        self.logs.logging.reopen();
        if let Some(access) = &self.logs.access {
            access.reopen();
        }
        tracing::info!(name: "log-files-reopened", "log files reopened");
    }

    /// Stops accepting. `passed_on` lists the addresses whose sockets were passed to the next
    /// process.
    async fn drain(&mut self, passed_on: &[SocketAddr]) {
        tracing::info!(name: "draining", "draining: no new connections are accepted");
        if self.config.reloading.give_up() {
            tracing::warn!(name: "reload-skipped", "reload skipped because becket is draining");
        }
        let temporary = self.state.temporary();
        log_ended(&temporary);
        self.state.set_draining();
        self.config.waiting.drains(&temporary);
        self.workers.drain(passed_on);
        // Closes the sockets over which cluster nodes share sessions, because the next process
        // binds their addresses. A draining process creates few new sessions, so these need not be
        // shared.
        self.state.change(|it| it.node = None);
        if let Some(peers) = self.cluster.peers.take() {
            peers.leave().await;
        }
        // Permits a new becket process to take over the admin address. Until it does, this process
        // serves the pages, which show the progress of the drain.
        let tcp = self.admin.sockets.tcp.as_ref();
        let tcp = tcp.filter(|_| !self.handover.is_followed());
        if let Some(Err(error)) = tcp.map(socket::give_way) {
            tracing::warn!(name: "admin-address-not-released", %error, "cannot close the admin listener; its address stays in use until this process exits");
        }
        if let Some(Err(error)) = self.admin.sockets.unix.as_ref().map(SocketFile::give_way) {
            tracing::warn!(name: "admin-socket-not-released", %error, "cannot close the admin socket; it stays in use until this process exits");
        }
        self.drain_until = Some(Instant::now() + self.state.config().file.timeouts.drain);
    }
}

fn log_kernel_tls(config: &Config) {
    if let Some(support) = config.kernel_tls() {
        tracing::info!(name: "kernel-tls", "kernel TLS: {support}");
    }
}

pub fn log_warnings(warnings: &[Problem]) {
    for warning in warnings {
        tracing::warn!(name: "configuration-warning", "{warning}");
    }
}

fn gone() -> io::Result<()> {
    Err(io::Error::other("worker thread exited unexpectedly"))
}

/// Sleeps until `instant`, or forever if it is `None`.
async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// Niceness of the control thread. If the control thread shares a core with a worker, it receives
/// about a quarter of the CPU time. This is enough for health checks and key rotation, and a flood
/// of datagrams to the control thread does not starve the worker.
const NICENESS: i32 = 5;
/// Interval of the periodic work, such as session expiry, key rotation and health checks.
const TICK: Duration = Duration::from_millis(100);
/// Maximum number of changes from the admin pages that wait for the control thread. The control
/// thread applies a change within microseconds.
pub const WAITING_CHANGES: usize = 16;
/// Maximum number of sessions checked for expiry per shard and tick.
const SWEEP: usize = 64;
