//! State of the running server that the admin pages show, and the parts that a reload replaces.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use becket_cluster::{ClusterStatus, Node};

use super::certificates::LazyList;
use super::history::{History, Mark};
use super::page_refusals::PageRefusal;
use super::problems::problems;
use super::rotation::{Due, Rotation};
use super::snapshot::{self, Snapshot};
use super::status::{
    AdmissionCounts, ChangeStatus, DroppedLines, HandshakeCounts, LogStatus, Occupancy,
    ProcessStatus, ReloadOutcome, ServingState, SessionStatus, SigningStatus, Status, TicketKeys,
    TrafficStatus,
};
use super::temporary::{RunningBackend, temporary};
use super::totals::Totals;
use crate::sandbox::{Sandbox, SandboxStatus};
use becket_keys::signing::batches::Batches;
use becket_log::Timestamp;
use becket_process::protocol::Restarts;
use becket_proxy::metrics::Counter;
use becket_proxy::shared::SharedState;
use becket_store::StoreView;
use becket_sys::clock::Now;
use becket_sys::process;
use becket_tls::config::Config;

#[derive(Debug)]
pub struct AdminState {
    shared: Arc<SharedState>,
    sandbox: SandboxStatus,
    main: MainProcess,
    started: Timestamp,
    draining: AtomicBool,
    /// Rejected connections to the admin pages. Only the HTTP thread of the pages counts them.
    pub(crate) refusals: [Counter; PageRefusal::ALL.len()],
    history: Mutex<History>,
    current: Mutex<Current>,
}

/// The process that receives an operator's signals: the supervisor, or this process if there is no
/// supervisor.
#[derive(Clone, Copy, Debug)]
pub struct MainProcess {
    pub pid: u32,
    /// Numbers of crashes and upgrades under the supervisor before this process started.
    pub restarts: Restarts,
}

/// The parts that change while this process serves.
#[derive(Clone, Debug)]
pub(crate) struct Current {
    config: Arc<Config>,
    certificates: LazyList,
    pub(crate) node: Option<Arc<Node>>,
    pub(crate) store: Option<StoreView>,
    /// Status of reloads, upgrades and temporary changes. `since_reload` contains the handshake
    /// counts at the last successful reload; `/status` shows the handshakes since then.
    pub(crate) changes: ChangeStatus,
    pub(crate) rotation: (TicketKeys, Due),
    /// Log level set by an operator; `None` uses the configured level.
    pub(crate) log_level: Option<String>,
}

impl Current {
    fn log_status(&self) -> LogStatus {
        let in_file = self.config.file.log.level.clone();
        match &self.log_level {
            None => LogStatus {
                level: in_file,
                ..LogStatus::default()
            },
            Some(set) => LogStatus {
                level: set.clone(),
                in_file: Some(in_file),
            },
        }
    }

    fn backends(&self, shared: &SharedState) -> Vec<RunningBackend> {
        let backends = self.config.backends.iter().filter_map(|backend| {
            Some(RunningBackend {
                config: Arc::clone(backend),
                state: shared.backends.by_name(&backend.keys.name)?,
            })
        });
        backends.collect()
    }

    fn change_status(&self, backends: &[RunningBackend], totals: &Totals) -> ChangeStatus {
        ChangeStatus {
            log: self.log_status(),
            temporary: self.temporary(backends),
            since_reload: HandshakeCounts::of(totals).since(self.changes.since_reload),
            ..self.changes.clone()
        }
    }

    fn temporary(&self, backends: &[RunningBackend]) -> Vec<String> {
        temporary(backends, self.log_level.as_deref())
    }
}

impl AdminState {
    pub fn new(
        main: MainProcess,
        shared: Arc<SharedState>,
        config: Arc<Config>,
        rotation: &Rotation,
        node: Option<Arc<Node>>,
    ) -> Self {
        let started = Timestamp::from_unix(shared.clock.now().unix);
        let mut changes = ChangeStatus::default();
        changes.upgrades.done = main.restarts.upgrades;
        Self {
            shared,
            sandbox: SandboxStatus::default(),
            main,
            started,
            draining: AtomicBool::new(false),
            refusals: Default::default(),
            history: Mutex::default(),
            current: Mutex::new(Current {
                certificates: LazyList::default(),
                log_level: None,
                config,
                node,
                store: None,
                changes,
                rotation: rotation.standing(),
            }),
        }
    }

    pub fn sandboxed(self, sandbox: &Sandbox) -> Self {
        let sandbox = sandbox.status.clone();
        Self { sandbox, ..self }
    }

    pub fn shared(&self) -> &Arc<SharedState> {
        &self.shared
    }

    pub fn tick(&self, now: Now) {
        let mark = |totals: &Totals| {
            let current = self.current();
            let backends = current.backends(&self.shared);
            Mark::of(totals, &current.config, &backends, now.mono)
        };
        self.history().tick(&self.shared.counters, mark, now);
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_draining(&self) {
        self.draining.store(true, Relaxed);
    }

    pub fn set_config(&self, config: Arc<Config>) {
        self.change(|current| {
            current.config = config;
            current.certificates = LazyList::default();
        });
    }

    /// Records the result of a reload. `running` is `true` if another reload has begun.
    pub fn set_reload(&self, reload: ReloadOutcome, running: bool) {
        let handshakes = HandshakeCounts::of(&Totals::of(&self.shared.counters));
        self.change(|current| {
            let changes = &mut current.changes;
            if reload.errors.is_empty() {
                changes.reloads.done += 1;
                changes.since_reload = handshakes;
            } else {
                changes.reloads.refused += 1;
            }
            changes.reloads.running = running;
            changes.reload = Some(reload);
        });
    }

    pub fn is_reload_refused(&self) -> bool {
        let current = self.current();
        let last = current.changes.reload.as_ref();
        last.is_some_and(|reload| !reload.errors.is_empty())
    }

    pub fn refuse_upgrade(&self, refused: ReloadOutcome) {
        self.change(|current| {
            let changes = &mut current.changes;
            changes.upgrades.refused += 1;
            changes.upgrades.running = false;
            changes.upgrade = Some(refused);
        });
    }

    pub fn temporary(&self) -> Vec<String> {
        let current = self.current();
        current.temporary(&current.backends(&self.shared))
    }

    /// Returns the log level, and the configured level if it differs.
    pub fn log_status(&self) -> LogStatus {
        self.current().log_status()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Current)) {
        change(&mut self.current.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn current(&self) -> Current {
        self.current
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Reads the data of all pages. Does not wait for workers.
    pub fn snapshot(&self) -> Snapshot {
        let (shared, current) = (&self.shared, self.current());
        let (config, now) = (&current.config, shared.clock.now());
        let certificates = current.certificates.get(config);
        let backends = current.backends(shared);
        let (history, mark) = self.history().read();
        let cluster = current.node.as_ref().map(|node| node.status(now));
        let totals = Totals::of(&shared.counters);
        let listeners = config.listeners.iter();
        let trials = config.trials().into_iter();
        let mut status = Status {
            problems: Vec::new(),
            process: self.process_status(config, now),
            changes: current.change_status(&backends, &totals),
            traffic: TrafficStatus {
                minute: mark.minute(&Mark::of(&totals, config, &backends, now.mono)),
                totals,
                recent: history.last().copied(),
                trials: trials
                    .map(|(policy, counts)| {
                        let counts = counts.into_iter();
                        (
                            policy,
                            counts.map(|(why, count)| (why.into(), count)).collect(),
                        )
                    })
                    .collect(),
                admission: AdmissionCounts {
                    full_handshakes_in_flight: shared.admission.in_flight(),
                    sources: shared.admission.sources(),
                    untracked: shared.admission.untracked(),
                },
            },
            signing: SigningStatus {
                rsa_batches: shared.signatures.batches().map(Batches::counts),
                tokens: config.tokens.status(),
            },
            sessions: self.session_status(&current, cluster.as_ref(), now),
            dropped: DroppedLines {
                log: shared.lost_lines.log.load(Relaxed),
                syslog: shared.lost_lines.syslog.load(Relaxed),
                access: shared.lost_lines.access.load(Relaxed),
            },
            listeners: listeners
                .map(|one| snapshot::listener(config, one))
                .collect(),
            backends: backends
                .iter()
                .map(|it| snapshot::backend(it, &mark))
                .collect(),
            certificates: Arc::clone(&certificates.listed),
            certificates_omitted: certificates.omitted,
        };
        let found = problems(&status).into_iter();
        status.problems = found.map(|(_, text)| text).collect();
        Snapshot {
            status,
            cluster,
            kernel_tls: config.kernel_tls(),
            cancels: shared.cancels.counts(),
            admin_refused: self.refusals.each_ref().map(Counter::value),
            history,
            counters: shared.counters.clone(),
        }
    }

    fn process_status(&self, config: &Config, now: Now) -> ProcessStatus {
        let shared = &self.shared;
        ProcessStatus {
            version: env!("CARGO_PKG_VERSION").into(),
            host: process::host_name(),
            state: if self.is_draining() {
                ServingState::Draining
            } else {
                ServingState::Serving
            },
            now: Timestamp::from_unix(now.unix),
            pid: self.main.pid,
            restarts: self.main.restarts.deaths,
            started: self.started,
            uptime_seconds: now.mono.as_secs(),
            workers: shared.workers,
            crypto_threads: shared.signatures.serving(),
            memory: shared.memory.status(),
            sandbox: self.sandbox.clone(),
            refused_calls: Sandbox::refused(),
            kernel_tls: config.kernel_tls().map(ToString::to_string),
        }
    }

    fn session_status(
        &self,
        current: &Current,
        cluster: Option<&ClusterStatus>,
        now: Now,
    ) -> SessionStatus {
        let (tickets, due) = &current.rotation;
        SessionStatus {
            table: Occupancy {
                entries: self.shared.table.entries(),
                capacity: current.config.file.sessions.table_entries,
            },
            early_sessions: self.shared.early.entries(),
            tickets: TicketKeys {
                next_rotation_seconds: due.after(now).as_secs(),
                ..tickets.clone()
            },
            cluster: cluster.and_then(snapshot::cluster),
            store: current.store.as_ref().map(StoreView::status),
        }
    }

    pub fn config(&self) -> Arc<Config> {
        self.current().config
    }

    /// Returns `true` while the process drains. Takes no lock.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }
}
