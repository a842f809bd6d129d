//! What all workers and control know of one server.
//!
//! One [`ServerState`] per server and process, found by the names of its backend and of its own
//! (`registry.rs`), so that counts, health and addresses outlive a reload. Everything that the data
//! path reads is atomic. Addresses change rarely: they are behind a lock with a generation beside it,
//! and a worker takes the lock only when the generation is not the one that it knows.
//!
//! Who writes: workers count connections and failures; a reload sets weight and limits, and so does an operator; health
//! checks set health, the share of the weight while a server starts slowly, and addresses.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use becket_cluster::replica::ServerTag;
use becket_config::backend;
use becket_config::choices::ServerMode;
use becket_proto::balance;
use becket_proto::health::Condition;
use becket_proto::limits::SharedCount;

use super::backend_state::BackendState;
use becket_tls::config::overrides::Overrides;
use becket_tls::config::{Server, ServerAddress};

/// One server, seen by all threads.
#[derive(Debug)]
pub struct ServerState {
    name: Arc<str>,
    key: u64,
    backend: Arc<BackendState>,
    /// Slots of this process, and those that are claimed.
    slots: SharedCount,
    limits: SlotLimits,
    connects: Connects,
    /// Configured weight.
    weight: AtomicU32,
    weight_percent: AtomicU32,
    /// The server does not answer: it gets no new connections.
    failing: AtomicBool,
    disabled: AtomicBool,
    backup: AtomicBool,
    addresses: AddressState,
    settings: Mutex<ServerSettings>,
    watched: Mutex<Watched>,
}

#[derive(Debug)]
struct SlotLimits {
    maxconn: AtomicU32,
    /// The next slot is for a health check.
    reserved: AtomicBool,
}

#[derive(Debug, Default)]
struct Connects {
    succeeded: AtomicU64,
    failed: AtomicU64,
    failed_in_a_row: AtomicU32,
}

#[derive(Debug, Default)]
struct AddressState {
    held: Mutex<Addresses>,
    generation: AtomicU32,
    /// The name did not resolve at the last lookup.
    dns_stale: AtomicBool,
}

/// What health checks have found out about a server, for the admin pages. The consequences for new clients are in [`ServerState`].
#[derive(Clone, Debug, Default)]
pub struct Watched {
    pub condition: Condition,
    /// Time of the last change since 1970, and its reason.
    pub change: Option<(Duration, Arc<str>)>,
    pub checks: u64,
    pub check_failures: u64,
    /// How often the server went out of service.
    pub outages: u64,
}

/// Where a server is.
#[derive(Debug, Default)]
struct Addresses {
    /// By the file, or by its name.
    found: Arc<[ServerAddress]>,
    /// By an operator's word, which counts more.
    set: Option<Arc<[ServerAddress]>>,
}

impl Addresses {
    fn used(&self) -> &Arc<[ServerAddress]> {
        self.set.as_ref().unwrap_or(&self.found)
    }
}

/// What weight and limits follow from.
#[derive(Clone, Debug, Default)]
pub struct ServerSettings {
    /// As the file has it.
    pub file: backend::ServerSection,
    /// What was changed since.
    pub overrides: Overrides,
}

impl ServerSettings {
    /// What the server is there for.
    pub fn mode(&self) -> ServerMode {
        self.overrides.mode.unwrap_or(self.mode_in_file())
    }

    /// The same without what was changed.
    pub fn mode_in_file(&self) -> ServerMode {
        if self.file.disabled {
            ServerMode::Maintenance
        } else {
            ServerMode::Ready
        }
    }

    /// Its weight while it is ready.
    pub fn weight(&self) -> u32 {
        self.overrides.weight.unwrap_or(self.file.weight)
    }

    fn maxconn(&self) -> Option<u32> {
        match self.overrides.maxconn {
            None => self.file.maxconn,
            Some(most) => Some(most).filter(|most| *most > 0),
        }
    }
}

impl ServerState {
    /// A server without connections, as configured; healthy until somebody says otherwise.
    pub(super) fn new(config: &Server, backend: Arc<BackendState>) -> Self {
        let state = Self {
            name: Arc::clone(&config.name),
            key: balance::name_key(&config.name),
            backend,
            slots: SharedCount::default(),
            limits: SlotLimits {
                maxconn: AtomicU32::new(UNLIMITED),
                reserved: AtomicBool::new(false),
            },
            connects: Connects::default(),
            weight: AtomicU32::new(0),
            weight_percent: AtomicU32::new(100),
            failing: AtomicBool::new(false),
            disabled: AtomicBool::new(false),
            backup: AtomicBool::new(false),
            addresses: AddressState::default(),
            settings: Mutex::default(),
            watched: Mutex::default(),
        };
        state.configure(config);
        state
    }

    /// Takes over what the configuration says. What an operator changed stays, and so do counts and health.
    pub(super) fn configure(&self, config: &Server) {
        self.set_addresses(&config.addresses);
        let mut settings = self.lock_settings();
        settings.file = config.keys.clone();
        self.apply(&settings);
    }

    /// Takes over what an operator changed. Connections that wait are given slots that there are more of now.
    pub fn set_overrides(&self, overrides: Overrides) {
        let mut settings = self.lock_settings();
        settings.overrides = overrides;
        self.apply(&settings);
        drop(settings);
        self.backend.settle();
    }

    /// What the file says of it and what was changed since.
    pub fn settings(&self) -> ServerSettings {
        self.lock_settings().clone()
    }

    fn lock_settings(&self) -> MutexGuard<'_, ServerSettings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn apply(&self, settings: &ServerSettings) {
        let mode = settings.mode();
        let weight = match mode {
            ServerMode::Drain => 0,
            ServerMode::Ready | ServerMode::Maintenance => settings.weight(),
        };
        self.weight.store(weight, Relaxed);
        self.limits
            .maxconn
            .store(settings.maxconn().unwrap_or(UNLIMITED), SeqCst);
        self.disabled
            .store(mode == ServerMode::Maintenance, Relaxed);
        self.backup.store(settings.file.backup, Relaxed);
        let set = settings.overrides.addresses.as_deref();
        self.change_addresses(|addresses| addresses.set = set.map(Arc::from));
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
    pub fn tag(&self) -> ServerTag {
        let backend = balance::name_key(self.backend.name());
        ServerTag(balance::mix(backend ^ balance::mix(self.key)))
    }

    /// Its backend.
    pub fn backend(&self) -> &Arc<BackendState> {
        &self.backend
    }

    /// Connections that it has, connects under way included.
    pub fn in_use(&self) -> u32 {
        self.slots.count()
    }

    /// Connects that succeeded, ever.
    pub fn connections(&self) -> u64 {
        self.connects.succeeded.load(Relaxed)
    }

    /// Connects that failed, ever.
    pub fn failures(&self) -> u64 {
        self.connects.failed.load(Relaxed)
    }

    /// Connects that failed since the last one that succeeded.
    pub fn failures_in_a_row(&self) -> u32 {
        self.connects.failed_in_a_row.load(Relaxed)
    }

    /// Whether it is known not to answer.
    pub fn is_failing(&self) -> bool {
        self.failing.load(Relaxed)
    }

    /// Whether the configuration takes it out of service.
    pub fn is_disabled(&self) -> bool {
        self.disabled.load(Relaxed)
    }

    /// Whether it serves only when no other server can.
    pub fn is_backup(&self) -> bool {
        self.backup.load(Relaxed)
    }

    /// Whether it was ever known where it is: a name may not have resolved yet.
    pub fn has_address(&self) -> bool {
        self.generation() > 0
    }

    /// Whether its name is being looked up for the first time: it may serve in a moment.
    pub(super) fn is_awaited(&self) -> bool {
        !self.is_failing()
            && !self.is_disabled()
            && self.weight.load(Relaxed) > 0
            && !self.has_address()
            && !self.dns_stale()
    }

    /// Whether it may have connections at all.
    pub fn is_in_service(&self) -> bool {
        !self.is_failing() && !self.is_disabled() && self.has_address()
    }

    /// Whether it may be given new clients.
    pub fn is_usable(&self) -> bool {
        self.is_in_service() && self.weight.load(Relaxed) > 0
    }

    /// Its share of new clients, in hundredths of the configured weight: at least 1 unless that is 0.
    pub fn weight(&self) -> u32 {
        self.weight.load(Relaxed) * self.weight_percent.load(Relaxed)
    }

    /// The configured limit; `None` is none.
    pub fn maxconn(&self) -> Option<u32> {
        Some(self.limits.maxconn.load(Relaxed)).filter(|limit| *limit != UNLIMITED)
    }

    /// How many connections of clients it may have now: one less while a health check waits for a slot.
    pub fn limit(&self) -> u32 {
        match self.limits.maxconn.load(SeqCst) {
            UNLIMITED => UNLIMITED,
            most => most.saturating_sub(self.limits.reserved.load(SeqCst).into()),
        }
    }

    /// Whether a slot could be claimed now.
    pub fn has_room(&self) -> bool {
        self.slots.has_room(self.limit())
    }

    /// A connect succeeded.
    pub fn note_connect(&self) {
        self.connects.succeeded.fetch_add(1, Relaxed);
        // Not to dirty the line for each connection.
        if self.failures_in_a_row() > 0 {
            self.connects.failed_in_a_row.store(0, Relaxed);
        }
    }

    /// A connect failed or timed out. Returns how many have in a row.
    pub fn note_failure(&self) -> u32 {
        self.connects.failed.fetch_add(1, Relaxed);
        self.connects
            .failed_in_a_row
            .fetch_add(1, Relaxed)
            .saturating_add(1)
    }

    /// So many connects have failed in a row in another process, with which this one goes on.
    pub fn set_failures_in_a_row(&self, failures: u32) {
        self.connects.failed_in_a_row.store(failures, Relaxed);
    }

    /// Says that it does not answer, or does again. Those who wait are given its slots, or another server's; where
    /// `connections-on-failure` is `close` and it no longer answers, workers are told to end its connections. Call it
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
    pub fn watched(&self) -> Watched {
        self.watched
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Takes down what control has found out.
    pub fn note(&self, note: impl FnOnce(&mut Watched)) {
        note(&mut self.watched.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Whether its name did not resolve when it was last looked up.
    pub fn dns_stale(&self) -> bool {
        self.addresses.dns_stale.load(Relaxed)
    }

    /// Its name was looked up. Returns whether the outcome is another one than before.
    pub fn note_lookup(&self, found: bool) -> bool {
        self.addresses.dns_stale.swap(!found, Relaxed) == found
    }

    /// Sets the share of the configured weight that counts now, 1 to 100: a server that has just come
    /// back starts slowly.
    pub fn set_weight_percent(&self, percent: u32) {
        self.weight_percent.store(percent.clamp(1, 100), Relaxed);
    }

    /// Replaces its addresses, which are tried in order, unless an operator has set others. Connections keep those that they
    /// have. Does nothing when they are the same, or when there are none.
    pub fn set_addresses(&self, addresses: &[ServerAddress]) {
        if !addresses.is_empty() {
            self.change_addresses(|held| held.found = addresses.into());
        }
    }

    /// The addresses that it has by the file, or by its name.
    pub fn found_addresses(&self) -> Arc<[ServerAddress]> {
        Arc::clone(&self.lock_addresses().found)
    }

    fn change_addresses(&self, change: impl FnOnce(&mut Addresses)) {
        let mut held = self.lock_addresses();
        let before = Arc::clone(held.used());
        change(&mut held);
        if *before != **held.used() {
            self.addresses.generation.fetch_add(1, Release);
        }
    }

    /// Its addresses. Takes a lock: the data path asks [`Self::generation`] first.
    pub fn addresses(&self) -> Arc<[ServerAddress]> {
        Arc::clone(self.lock_addresses().used())
    }

    fn lock_addresses(&self) -> MutexGuard<'_, Addresses> {
        self.addresses
            .held
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Another number whenever the addresses are others; 0 until there are any.
    pub fn generation(&self) -> u32 {
        self.addresses.generation.load(Acquire)
    }

    /// What of its slots is this process', and how many are claimed.
    pub fn slots(&self) -> &SharedCount {
        &self.slots
    }

    /// Counts one connection more, if the limit allows.
    pub(super) fn take_slot(&self) -> bool {
        let limit = self.limit();
        if limit == UNLIMITED {
            self.slots.add();
            return true;
        }
        self.slots.take(limit)
    }

    /// Says whether a health check is to have the next slot, before any client.
    pub(super) fn reserve_slot(&self, reserved: bool) {
        self.limits.reserved.store(reserved, SeqCst);
        if !reserved {
            self.backend.settle();
        }
    }

    /// Counts a health check as one connection more, unless it has its `maxconn`.
    pub(super) fn take_reserved_slot(&self) -> bool {
        self.slots.take(self.limits.maxconn.load(SeqCst))
    }

    /// Counts one connection less, and looks whether somebody waits for it.
    pub(super) fn give_back_slot(&self) {
        self.slots.give_back();
        self.backend.settle();
    }
}

/// No limit: more than a process has descriptors.
const UNLIMITED: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::registry::lone_state;
    use becket_tls::config::Backend;

    fn server(change: impl FnOnce(&mut backend::ServerSection)) -> Server {
        let mut server = Server::plain("a", vec![ServerAddress::Unix("/a".into())]);
        change(&mut server.keys);
        server
    }

    fn running(server: Server) -> Arc<ServerState> {
        let backend = lone_state(&Backend::plain("app", vec![server]), Vec::new());
        Arc::clone(&backend.servers()[0])
    }

    #[test]
    fn what_an_operator_changed_counts_until_a_reload() {
        let state = running(server(|keys| (keys.weight, keys.maxconn) = (3, Some(9))));
        let changed = Overrides {
            weight: Some(5),
            maxconn: Some(0),
            addresses: Some(vec![ServerAddress::Unix("/b".into())]),
            ..Overrides::default()
        };
        state.set_overrides(changed);
        let shown = |state: &ServerState| {
            let address = state.addresses()[0].to_string();
            (state.weight(), state.maxconn(), address)
        };
        assert_eq!(shown(&state), (500, None, "/b".to_owned()));
        // A lookup meanwhile is remembered and not used.
        state.set_addresses(&[ServerAddress::Unix("/c".into())]);
        assert_eq!(shown(&state).2, "/b");
        let config = server(|keys| keys.weight = 4);
        state.configure(&config);
        assert_eq!(
            shown(&state).0,
            500,
            "a change of a running server is no reload"
        );
        state.set_overrides(Overrides::default());
        assert_eq!(shown(&state), (400, None, "/a".to_owned()));
    }

    #[test]
    fn modes_are_weight_0_and_disabled_and_ready_goes_before_the_file() {
        let state = running(server(|keys| keys.disabled = true));
        let in_mode = |mode| {
            let overrides = Overrides {
                mode,
                ..Overrides::default()
            };
            state.set_overrides(overrides);
            (state.is_in_service(), state.is_usable())
        };
        assert_eq!(in_mode(None), (false, false));
        assert_eq!(in_mode(Some(ServerMode::Ready)), (true, true));
        assert_eq!(in_mode(Some(ServerMode::Drain)), (true, false));
        assert_eq!(in_mode(Some(ServerMode::Maintenance)), (false, false));
    }

    #[test]
    fn another_address_is_another_generation_and_the_same_is_not() {
        let state = running(server(|_| ()));
        let before = state.generation();
        let set = |path: &str| {
            let overrides = Overrides {
                addresses: Some(vec![ServerAddress::Unix(path.into())]),
                ..Overrides::default()
            };
            state.set_overrides(overrides);
            state.generation() - before
        };
        assert_eq!((set("/a"), set("/b"), set("/b")), (0, 1, 1));
    }
}
