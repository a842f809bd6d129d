//! What all workers and control know of one server.
//!
//! One [`ServerState`] per server and process, found by the names of its backend and of its own
//! (`registry.rs`), so that counts, health and addresses outlive a reload. Everything that the data
//! path reads is atomic. Addresses change rarely: they are behind a lock with a generation beside it,
//! and a worker takes the lock only when the generation is not the one that it knows.
//!
//! Who writes: workers count connections and failures; a reload sets weight and limits; health checks
//! set health, the share of the weight while a server starts slowly, and addresses.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};

use becket_cluster::replica::ServerTag;
use becket_proto::balance;

use super::backend_state::BackendState;
use super::health::Watched;
use crate::config::{Server, ServerAddress};

/// One server, seen by all threads.
#[derive(Debug)]
pub struct ServerState {
    name: Arc<str>,
    key: u64,
    backend: Arc<BackendState>,
    /// Slots that are claimed.
    in_use: AtomicU32,
    failures_in_a_row: AtomicU32,
    connections: AtomicU64,
    failures: AtomicU64,
    weight: AtomicU32,
    weight_percent: AtomicU32,
    maxconn: AtomicU32,
    minconn: AtomicU32,
    /// A health check is to have the next slot.
    reserved: AtomicBool,
    /// It does not answer: it gets no new connections.
    failing: AtomicBool,
    disabled: AtomicBool,
    backup: AtomicBool,
    generation: AtomicU32,
    addresses: Mutex<Arc<[ServerAddress]>>,
    /// Its name did not resolve when it was last looked up.
    lost_its_name: AtomicBool,
    watched: Mutex<Watched>,
}

impl ServerState {
    /// A server without connections, as configured; healthy until somebody says otherwise.
    pub(super) fn new(config: &Server, backend: Arc<BackendState>) -> Self {
        let state = Self {
            name: Arc::clone(&config.name),
            key: balance::name_key(&config.name),
            backend,
            in_use: AtomicU32::new(0),
            failures_in_a_row: AtomicU32::new(0),
            connections: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            weight: AtomicU32::new(0),
            weight_percent: AtomicU32::new(100),
            maxconn: AtomicU32::new(UNLIMITED),
            minconn: AtomicU32::new(UNLIMITED),
            reserved: AtomicBool::new(false),
            failing: AtomicBool::new(false),
            disabled: AtomicBool::new(false),
            backup: AtomicBool::new(false),
            generation: AtomicU32::new(0),
            addresses: Mutex::new(Arc::new([])),
            lost_its_name: AtomicBool::new(false),
            watched: Mutex::default(),
        };
        state.configure(config);
        state
    }

    /// Takes over what the configuration says. Counts and health stay.
    pub(super) fn configure(&self, config: &Server) {
        self.weight.store(config.keys.weight, Relaxed);
        self.maxconn
            .store(config.keys.maxconn.unwrap_or(UNLIMITED), SeqCst);
        self.minconn
            .store(config.keys.minconn.unwrap_or(UNLIMITED), SeqCst);
        self.disabled.store(config.keys.disabled, Relaxed);
        self.backup.store(config.keys.backup, Relaxed);
        self.set_addresses(&config.addresses);
    }

    /// The server's configured name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The name as a number, the same in every process.
    pub fn key(&self) -> u64 {
        self.key
    }

    /// Its short name for the nodes of a cluster.
    pub(crate) fn tag(&self) -> ServerTag {
        let backend = balance::name_key(self.backend.name());
        ServerTag(balance::mix(backend ^ balance::mix(self.key)))
    }

    /// Its backend.
    pub fn backend(&self) -> &Arc<BackendState> {
        &self.backend
    }

    /// Connections that it has, connects under way included.
    pub fn in_use(&self) -> u32 {
        self.in_use.load(Relaxed)
    }

    /// Connects that succeeded, ever.
    pub fn connections(&self) -> u64 {
        self.connections.load(Relaxed)
    }

    /// Connects that failed, ever.
    pub fn failures(&self) -> u64 {
        self.failures.load(Relaxed)
    }

    /// Connects that failed since the last one that succeeded.
    pub fn failures_in_a_row(&self) -> u32 {
        self.failures_in_a_row.load(Relaxed)
    }

    /// Whether it is known not to answer.
    pub(crate) fn is_failing(&self) -> bool {
        self.failing.load(Relaxed)
    }

    /// Whether the configuration takes it out of service.
    pub(crate) fn is_disabled(&self) -> bool {
        self.disabled.load(Relaxed)
    }

    /// Whether it serves only when no other server can.
    pub(crate) fn is_backup(&self) -> bool {
        self.backup.load(Relaxed)
    }

    /// Whether it was ever known where it is: a name may not have resolved yet.
    pub(crate) fn has_address(&self) -> bool {
        self.generation() > 0
    }

    /// Whether its name is being looked up for the first time: it may serve in a moment.
    pub(super) fn is_awaited(&self) -> bool {
        !self.is_failing()
            && !self.is_disabled()
            && self.weight.load(Relaxed) > 0
            && !self.has_address()
            && !self.lost_its_name()
    }

    /// Whether it may have connections at all.
    pub(crate) fn is_in_service(&self) -> bool {
        !self.is_failing() && !self.is_disabled() && self.has_address()
    }

    /// Whether it may be given new clients.
    pub(crate) fn is_usable(&self) -> bool {
        self.is_in_service() && self.weight.load(Relaxed) > 0
    }

    /// Its share of new clients, in hundredths of the configured weight: at least 1 unless that is 0.
    pub fn weight(&self) -> u32 {
        self.weight.load(Relaxed) * self.weight_percent.load(Relaxed)
    }

    /// The configured limit; `None` is none.
    pub fn maxconn(&self) -> Option<u32> {
        Some(self.maxconn.load(Relaxed)).filter(|limit| *limit != UNLIMITED)
    }

    /// How many connections of clients it may have now: one less while a health check waits for a slot.
    ///
    /// Without `minconn` that is `maxconn`. With it, the limit grows with the queue, from `minconn` when
    /// nobody waits to `maxconn` when the queue is full:
    /// `minconn + (maxconn - minconn) * waiting / queue-length`, rounded down.
    pub fn limit(&self) -> u32 {
        match self.maxconn.load(SeqCst) {
            UNLIMITED => UNLIMITED,
            most => self.limit_of(most.saturating_sub(self.reserved.load(SeqCst).into())),
        }
    }

    fn limit_of(&self, most: u32) -> u32 {
        let least = self.minconn.load(SeqCst);
        if least >= most {
            return most;
        }
        let (waiting, room) = self.backend.fill();
        if waiting >= room {
            return most;
        }
        // Below `most`, since `waiting` is below `room`.
        least + (u64::from(most - least) * waiting as u64 / room as u64) as u32
    }

    /// Whether a slot could be claimed now.
    pub(crate) fn has_room(&self) -> bool {
        self.in_use.load(SeqCst) < self.limit()
    }

    /// A connect succeeded.
    pub(crate) fn note_connect(&self) {
        self.connections.fetch_add(1, Relaxed);
        // Not to dirty the line for each connection.
        if self.failures_in_a_row() > 0 {
            self.failures_in_a_row.store(0, Relaxed);
        }
    }

    /// A connect failed or timed out. Returns how many have in a row.
    pub(crate) fn note_failure(&self) -> u32 {
        self.failures.fetch_add(1, Relaxed);
        self.failures_in_a_row
            .fetch_add(1, Relaxed)
            .saturating_add(1)
    }

    /// Says that it does not answer, or does again. Those who wait are given its slots, or another server's; where
    /// `on-down` is `close` and it no longer answers, workers are told to end its connections. Call it
    /// from control. Returns whether that is news.
    pub fn set_failing(self: &Arc<Self>, failing: bool) -> bool {
        if self.failing.swap(failing, SeqCst) == failing {
            return false;
        }
        if failing {
            self.backend.tell_of_failure(self);
        }
        self.backend.settle();
        true
    }

    /// What control has found out about it.
    pub(crate) fn watched(&self) -> Watched {
        self.watched
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Takes down what control has found out.
    pub(super) fn note(&self, note: impl FnOnce(&mut Watched)) {
        note(&mut self.watched.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Whether its name did not resolve when it was last looked up.
    pub(crate) fn lost_its_name(&self) -> bool {
        self.lost_its_name.load(Relaxed)
    }

    /// Its name was looked up. Returns whether the outcome is another one than before.
    pub(super) fn note_lookup(&self, found: bool) -> bool {
        self.lost_its_name.swap(!found, Relaxed) == found
    }

    /// Sets the share of the configured weight that counts now, 1 to 100: a server that has just come
    /// back starts slowly.
    pub(crate) fn set_weight_percent(&self, percent: u32) {
        self.weight_percent.store(percent.clamp(1, 100), Relaxed);
    }

    /// Replaces its addresses, which are tried in order. Connections keep those that they have. Does
    /// nothing when they are the same, or when there are none.
    pub(crate) fn set_addresses(&self, addresses: &[ServerAddress]) {
        let mut held = self
            .addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if addresses.is_empty() || **held == *addresses {
            return;
        }
        *held = addresses.into();
        self.generation.fetch_add(1, Release);
    }

    /// Its addresses. Takes a lock: the data path asks [`Self::generation`] first.
    pub fn addresses(&self) -> Arc<[ServerAddress]> {
        let held = self
            .addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&held)
    }

    /// Another number whenever the addresses are others; 0 until there are any.
    pub(crate) fn generation(&self) -> u32 {
        self.generation.load(Acquire)
    }

    /// Counts one connection more, if the limit allows.
    pub(super) fn take_slot(&self) -> bool {
        let limit = self.limit();
        if limit == UNLIMITED {
            self.in_use.fetch_add(1, SeqCst);
            return true;
        }
        let more = |in_use| (in_use < limit).then_some(in_use + 1);
        self.in_use.fetch_update(SeqCst, SeqCst, more).is_ok()
    }

    /// Says whether a health check is to have the next slot, before any client.
    pub(super) fn reserve_slot(&self, reserved: bool) {
        self.reserved.store(reserved, SeqCst);
        if !reserved {
            self.backend.settle();
        }
    }

    /// Counts a health check as one connection more, unless it has its `maxconn`.
    pub(super) fn take_reserved_slot(&self) -> bool {
        let most = self.maxconn.load(SeqCst);
        let more = |in_use| (in_use < most).then_some(in_use + 1);
        self.in_use.fetch_update(SeqCst, SeqCst, more).is_ok()
    }

    /// Counts one connection less, and looks whether somebody waits for it.
    pub(super) fn give_back_slot(&self) {
        self.in_use.fetch_sub(1, SeqCst);
        self.backend.settle();
    }
}

/// No limit: more than a process has descriptors.
const UNLIMITED: u32 = u32::MAX;
