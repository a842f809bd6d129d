//! What the admin pages see of the running server, and what a reload replaces in it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use becket_cluster::Node;
use becket_cluster::stud::Watch;
use serde_json::{Value, json};

use super::certificates::{Certificate, certificates};
use super::history::History;
use super::process::ProcessUsage;
use super::refusals::{Refusal, Refusals};
use super::rotation::{Rotation, Standing};
use super::snapshot::{
    AdmissionCounts, Handshakes, Occupancy, Reload, Reloads, RunningBackend, Snapshot, TicketKeys,
    WatchStatus, listener,
};
use super::temporary::{LogLevel, temporary};
use super::totals::Totals;
use crate::sandbox::Sandbox;
use becket_keys::signing::batches::Batches;
use becket_log::Timestamp;
use becket_process::protocol::Restarts;
use becket_proxy::shared::Shared;
use becket_tls::config::Config;

/// The server as control knows it.
#[derive(Debug)]
pub struct State {
    shared: Arc<Shared>,
    sandbox: Sandbox,
    stud: Option<Arc<Watch>>,
    main: MainProcess,
    started: Timestamp,
    draining: AtomicBool,
    refusals: Refusals,
    history: Mutex<History>,
    current: Mutex<Current>,
}

/// The process to signal: the supervisor, or the serving process where there is none.
#[derive(Clone, Copy, Debug)]
pub struct MainProcess {
    /// Its number.
    pub pid: u32,
    /// What was before the one that serves.
    pub restarts: Restarts,
}

/// Where sessions come from beside our own handshakes, at the start.
#[derive(Debug, Default)]
pub struct Replication {
    /// Peers; absent without them.
    pub node: Option<Arc<Node>>,
    /// Terminators of another make; absent where they are not heard.
    pub stud: Option<Arc<Watch>>,
}

/// What a reload or a rotation replaces.
#[derive(Clone, Debug)]
struct Current {
    config: Arc<Config>,
    certificates: Arc<[Certificate]>,
    node: Option<Arc<Node>>,
    reload: Option<Reload>,
    reloads: Reloads,
    /// When the last reload was done.
    handshakes: Handshakes,
    upgrade: Option<Reload>,
    upgrades: Reloads,
    rotation: Standing,
    watch: WatchStatus,
    /// What an operator set; absent where the log has the level of the file.
    log_level: Option<LogLevel>,
}

impl Current {
    fn log_status(&self) -> Value {
        let in_file = &self.config.file.log.level;
        match &self.log_level {
            None => json!({"level": in_file}),
            Some(set) => json!({"level": set.level, "in_file": in_file, "kept": set.keep}),
        }
    }

    fn backends(&self, shared: &Shared) -> Vec<RunningBackend> {
        let backends = self.config.backends.iter().filter_map(|backend| {
            Some(RunningBackend {
                config: Arc::clone(backend),
                state: shared.backends.by_name(&backend.keys.name)?,
            })
        });
        backends.collect()
    }

    fn temporary(&self, backends: &[RunningBackend]) -> Vec<String> {
        temporary(backends, &self.certificates, self.log_level.as_ref())
    }
}

impl State {
    /// The state at the start.
    pub fn new(
        main: MainProcess,
        shared: Arc<Shared>,
        config: Arc<Config>,
        rotation: &Rotation,
        replication: Replication,
    ) -> Self {
        let started = Timestamp::from_unix(shared.clock.now().unix);
        Self {
            shared,
            sandbox: Sandbox::default(),
            stud: replication.stud,
            main,
            started,
            draining: AtomicBool::new(false),
            refusals: Refusals::default(),
            history: Mutex::default(),
            current: Mutex::new(Current {
                certificates: certificates(&config),
                log_level: LogLevel::kept(&config),
                config,
                node: replication.node,
                reload: None,
                reloads: Reloads::default(),
                handshakes: Handshakes::default(),
                upgrade: None,
                upgrades: Reloads {
                    done: main.restarts.upgrades,
                    ..Reloads::default()
                },
                rotation: rotation.standing(),
                watch: WatchStatus::default(),
            }),
        }
    }

    /// The same, of a process that is confined.
    pub fn sandboxed(self, sandbox: &Sandbox) -> Self {
        let sandbox = sandbox.clone();
        Self { sandbox, ..self }
    }

    /// What is shared with the workers.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Takes note of the time that passes, for the pages.
    pub fn tick(&self, now: Duration) {
        self.history().tick(&self.shared.counters, now);
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No new clients are taken.
    pub fn set_draining(&self) {
        self.draining.store(true, Relaxed);
    }

    /// Another configuration is in use.
    pub fn set_config(&self, config: Arc<Config>) {
        let certificates = certificates(&config);
        self.change(|current| {
            current.config = config;
            current.certificates = certificates;
        });
    }

    /// This becket is another node of a cluster now, or none.
    pub fn set_node(&self, node: Option<Arc<Node>>) {
        self.change(|current| current.node = node);
    }

    /// A reload has begun.
    pub fn begin_reload(&self) {
        self.change(|current| current.reloads.running = true);
    }

    /// A reload was tried, and perhaps another has begun.
    pub fn set_reload(&self, reload: Reload, running: bool) {
        let handshakes = Handshakes::of(&Totals::of(&self.shared.counters));
        self.change(|current| {
            let reloads = &mut current.reloads;
            if reload.errors.is_empty() {
                reloads.done += 1;
                current.handshakes = handshakes;
            } else {
                reloads.refused += 1;
            }
            reloads.running = running;
            current.reload = Some(reload);
        });
    }

    /// How it goes with files that change.
    pub fn watch(&self) -> WatchStatus {
        self.current().watch
    }

    /// Files were looked at.
    pub fn set_watch(&self, watch: WatchStatus) {
        self.change(|current| current.watch = watch);
    }

    /// Another process is to replace this one.
    pub fn begin_upgrade(&self) {
        self.change(|current| current.upgrades.running = true);
    }

    /// No other process replaces this one.
    pub fn refuse_upgrade(&self, refused: Reload) {
        self.change(|current| {
            current.upgrades.refused += 1;
            current.upgrades.running = false;
            current.upgrade = Some(refused);
        });
    }

    /// Ticket keys were rotated, or come from other secrets.
    pub fn set_rotation(&self, rotation: Standing) {
        self.change(|current| current.rotation = rotation);
    }

    /// The log has another level than the file says, or has that again.
    pub fn set_log_level(&self, level: Option<LogLevel>) {
        self.change(|current| current.log_level = level);
    }

    /// The log has the level of the configuration again.
    pub fn reset_log_level(&self) {
        self.change(|current| current.log_level = LogLevel::kept(&current.config));
    }

    /// What the next reload, upgrade or restart ends, as text.
    pub fn temporary(&self) -> Vec<String> {
        let current = self.current();
        current.temporary(&current.backends(&self.shared))
    }

    /// The level of the log, and what the file says where that is another.
    pub fn log_status(&self) -> Value {
        self.current().log_status()
    }

    fn change(&self, change: impl FnOnce(&mut Current)) {
        change(&mut self.current.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn current(&self) -> Current {
        self.current
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Reads everything that pages show. Waits for no worker.
    pub fn snapshot(&self) -> Snapshot {
        let (shared, current) = (&self.shared, self.current());
        let (config, now) = (&current.config, shared.clock.now());
        let backends = current.backends(shared);
        let listeners = config.listeners.iter();
        let totals = Totals::of(&shared.counters);
        let history = self.history().moments();
        Snapshot {
            recent: history.last().copied(),
            history,
            version: env!("CARGO_PKG_VERSION"),
            state: if self.is_draining() {
                "draining"
            } else {
                "serving"
            },
            now: Timestamp::from_unix(now.unix),
            pid: self.main.pid,
            restarts: self.main.restarts.deaths,
            started: self.started,
            log: current.log_status(),
            edits: json!({
                "file": config.file.edits.path,
                "kept": config.file.edits.lines(),
                "temporary": current.temporary(&backends),
            }),
            uptime_seconds: now.mono.as_secs(),
            workers: shared.workers,
            crypto_threads: shared.signatures.serving(),
            rsa_batches: shared.signatures.batches().map(Batches::counts),
            since_reload: Handshakes::of(&totals).since(current.handshakes),
            totals,
            listeners: listeners.map(|one| listener(config, one)).collect(),
            backends,
            certificates: current.certificates,
            reload: current.reload,
            reloads: current.reloads,
            upgrade: current.upgrade,
            upgrades: current.upgrades,
            watch: current.watch,
            sessions: Occupancy {
                entries: shared.table.len(),
                capacity: config.file.sessions.table_entries,
            },
            early_sessions: shared.early.len(),
            tickets: TicketKeys {
                next_rotation_seconds: current.rotation.due.after(now).as_secs(),
                standing: current.rotation,
            },
            cluster: current.node.as_ref().map(|node| node.status(now)),
            stud: self.stud.as_ref().map(|stud| stud.status()),
            tokens: config.tokens.status(),
            admission: AdmissionCounts::of(&shared.admission),
            memory: shared.memory.status(),
            sandbox: self.sandbox.clone(),
            refused_calls: Sandbox::refused(),
            kernel_tls: config.kernel_tls(),
            log_lines_dropped: shared.log_lines_dropped.load(Relaxed),
            syslog_lines_dropped: shared.syslog_lines_dropped.load(Relaxed),
            access_lines_dropped: shared.access_lines_dropped.load(Relaxed),
            cancels: shared.cancels.counts(),
            admin_refused: Refusal::ALL.map(|refusal| self.refusals.of(refusal).value()),
            trials: config.trials(),
            process: ProcessUsage::read(),
            counters: shared.counters.clone(),
        }
    }

    /// The configuration in use.
    pub fn config(&self) -> Arc<Config> {
        self.current().config
    }

    /// Whether it stopped accepting and finishes what it has. Takes no lock.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }

    /// Connections to the admin pages that were not served; the pages count them here.
    pub fn refusals(&self) -> &Refusals {
        &self.refusals
    }
}
