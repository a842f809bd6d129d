//! What the admin pages see of the running server, and what a reload replaces in it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use super::certificates::{Certificate, certificates};
use super::rotation::{Rotation, Standing};
use super::view::{Admitted, Condition, Occupancy, Reload, TicketKeys, View};
use super::visits::Refusals;
use crate::backend::backend_state::BackendState;
use crate::cluster::node::Node;
use crate::cluster::stud::reception::Watch;
use crate::config::{Backend, Config};
use crate::log::Timestamp;
use crate::metrics::Counters;
use crate::shared::Shared;

/// The server as control knows it.
#[derive(Debug)]
pub struct State {
    shared: Arc<Shared>,
    stud: Option<Arc<Watch>>,
    started: Timestamp,
    draining: AtomicBool,
    refusals: Refusals,
    current: Mutex<Current>,
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
    rotation: Standing,
}

impl State {
    /// The state at the start.
    pub fn new(
        shared: Arc<Shared>,
        config: Arc<Config>,
        rotation: &Rotation,
        replication: Replication,
    ) -> Self {
        let started = Timestamp::from_unix(shared.clock.now().unix);
        Self {
            shared,
            stud: replication.stud,
            started,
            draining: AtomicBool::new(false),
            refusals: Refusals::default(),
            current: Mutex::new(Current {
                certificates: certificates(&config),
                config,
                node: replication.node,
                reload: None,
                rotation: rotation.standing(),
            }),
        }
    }

    /// What is shared with the workers.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
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

    /// A reload was tried.
    pub fn set_reload(&self, reload: Reload) {
        self.change(|current| current.reload = Some(reload));
    }

    /// Ticket keys were rotated, or come from other secrets.
    pub fn set_rotation(&self, rotation: Standing) {
        self.change(|current| current.rotation = rotation);
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
}

impl View for State {
    fn config(&self) -> Arc<Config> {
        self.current().config
    }

    fn counters(&self) -> Vec<Arc<Counters>> {
        self.shared.counters.clone()
    }

    fn backends(&self) -> Vec<Arc<BackendState>> {
        let config = self.current().config;
        let state = |backend: &Arc<Backend>| self.shared.backends.by_name(&backend.name);
        config.backends.iter().filter_map(state).collect()
    }

    fn condition(&self) -> Condition {
        let now = self.shared.clock.now();
        let current = self.current();
        Condition {
            now: Timestamp::from_unix(now.unix),
            started: self.started,
            uptime: now.mono,
            draining: self.is_draining(),
            reload: current.reload,
            log_lines_dropped: self.shared.log_lines_dropped.load(Relaxed),
            access_lines_dropped: self.shared.access_lines_dropped.load(Relaxed),
            sessions: Occupancy {
                entries: self.shared.table.len(),
                capacity: current.config.sessions.table_entries,
            },
            early_sessions: self.shared.early.len(),
            tickets: TicketKeys {
                next_rotation: current.rotation.due.after(now),
                standing: current.rotation,
            },
            admission: Admitted {
                full_handshakes_in_flight: self.shared.admission.in_flight(),
                sources: self.shared.admission.sources(),
                untracked: self.shared.admission.untracked(),
            },
            cancels: self.shared.cancels.counts(),
            cluster: current.node.as_ref().map(|node| node.status(now)),
            stud: self.stud.as_ref().map(|stud| stud.status()),
            certificates: current.certificates,
        }
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }

    fn refusals(&self) -> &Refusals {
        &self.refusals
    }
}
