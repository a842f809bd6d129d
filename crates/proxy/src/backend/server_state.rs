//! State of one server, shared by all workers and the control thread.
//!
//! There is one [`ServerState`] per server and process, found by the names of backend and server
//! (`registry.rs`). So counts, health and addresses survive a reload. Values that the data path
//! reads are atomic. Addresses change rarely, so they are behind a lock with a generation number. A
//! worker takes the lock only if the generation has changed.
//!
//! Workers count connections and failures. Reloads and operators change weight and limits. The
//! control thread's health checks and lookups set health, slow-start weight and addresses.

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
use becket_proto::own_line::OwnLine;

use super::backend_state::BackendState;
use becket_tls::config::overrides::Overrides;
use becket_tls::config::{Server, ServerAddress};

#[derive(Debug)]
pub struct ServerState {
    name: Arc<str>,
    key: u64,
    backend: Arc<BackendState>,
    /// Counts that every connection changes, apart from the values that it only reads.
    connects: OwnLine<Connects>,
    limits: SlotLimits,
    weight: AtomicU32,
    weight_percent: AtomicU32,
    /// `true` while the server is out of service and receives no new connections.
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
    /// `true` while one slot is reserved for a health check, so that clients may claim one fewer.
    reserved: AtomicBool,
}

#[derive(Debug, Default)]
struct Connects {
    /// Number of claimed slots, and the share of `maxconn` that this process may claim.
    slots: SharedCount,
    succeeded: AtomicU64,
    failed: AtomicU64,
    failed_in_a_row: AtomicU32,
}

#[derive(Debug, Default)]
struct AddressState {
    held: Mutex<Addresses>,
    generation: AtomicU32,
    /// `true` if the last DNS lookup of the host name failed.
    dns_stale: AtomicBool,
}

/// Results of health checks, for the admin pages only.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    pub condition: Condition,
    /// Unix time and reason of the last change of `condition`.
    pub change: Option<(Duration, Arc<str>)>,
    pub checks: u64,
    pub check_failures: u64,
    /// Reason why the last check failed; `None` if it passed.
    pub check_error: Option<Arc<str>>,
    /// Number of times that the server went out of service.
    pub outages: u64,
}

#[derive(Debug, Default)]
struct Addresses {
    /// Addresses from the configuration file or from DNS.
    found: Arc<[ServerAddress]>,
    /// Addresses set by an operator, which have precedence.
    set: Option<Arc<[ServerAddress]>>,
}

impl Addresses {
    fn used(&self) -> &Arc<[ServerAddress]> {
        self.set.as_ref().unwrap_or(&self.found)
    }
}

#[derive(Clone, Debug, Default)]
pub struct ServerSettings {
    pub file: backend::ServerSection,
    pub overrides: Overrides,
}

impl ServerSettings {
    pub fn mode(&self) -> ServerMode {
        self.overrides.mode.unwrap_or(self.mode_in_file())
    }

    /// Returns the mode from the configuration file, ignoring an operator's change.
    pub fn mode_in_file(&self) -> ServerMode {
        if self.file.disabled {
            ServerMode::Maintenance
        } else {
            ServerMode::Ready
        }
    }

    /// Returns the weight that the server has in mode `ready`.
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
    /// Creates the state of a healthy server without connections.
    pub(super) fn new(config: &Server, backend: Arc<BackendState>) -> Self {
        let state = Self {
            name: Arc::clone(&config.name),
            key: balance::name_key(&config.name),
            backend,
            limits: SlotLimits {
                maxconn: AtomicU32::new(UNLIMITED),
                reserved: AtomicBool::new(false),
            },
            connects: OwnLine::default(),
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

    /// Applies the configuration. An operator's changes, counts and health are unchanged.
    pub(super) fn configure(&self, config: &Server) {
        self.set_addresses(&config.addresses);
        let mut settings = self.lock_settings();
        settings.file = config.keys.clone();
        self.apply(&settings);
    }

    /// Applies an operator's changes, and grants freed slots to waiting connections.
    pub fn set_overrides(&self, overrides: Overrides) {
        let mut settings = self.lock_settings();
        settings.overrides = overrides;
        self.apply(&settings);
        drop(settings);
        self.backend.settle();
    }

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

    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns a hash of the name, equal in all processes.
    pub fn key(&self) -> u64 {
        self.key
    }

    /// Returns the number that identifies the server in messages between cluster nodes.
    pub fn tag(&self) -> ServerTag {
        let backend = balance::name_key(self.backend.name());
        ServerTag(balance::mix(backend ^ balance::mix(self.key)))
    }

    pub fn backend(&self) -> &Arc<BackendState> {
        &self.backend
    }

    /// Returns the number of claimed slots, including slots for connects in progress.
    pub fn in_use(&self) -> u32 {
        self.connects.slots.count()
    }

    pub fn connections(&self) -> u64 {
        self.connects.succeeded.load(Relaxed)
    }

    pub fn failures(&self) -> u64 {
        self.connects.failed.load(Relaxed)
    }

    pub fn failures_in_a_row(&self) -> u32 {
        self.connects.failed_in_a_row.load(Relaxed)
    }

    /// Returns `true` if health checks or failed connects took the server out of service.
    pub fn is_failing(&self) -> bool {
        self.failing.load(Relaxed)
    }

    /// Returns `true` if the server is in mode `maintenance`.
    pub fn is_disabled(&self) -> bool {
        self.disabled.load(Relaxed)
    }

    pub fn is_backup(&self) -> bool {
        self.backup.load(Relaxed)
    }

    /// Returns `true` if the server has an address. A server with a host name has none before the
    /// first successful lookup.
    pub fn has_address(&self) -> bool {
        self.generation() > 0
    }

    /// Returns `true` if the first DNS lookup of the host name is not complete, so that the server
    /// may become usable later.
    pub(super) fn is_awaited(&self) -> bool {
        !self.is_failing()
            && !self.is_disabled()
            && self.weight.load(Relaxed) > 0
            && !self.has_address()
            && !self.dns_stale()
    }

    /// Returns `true` if the server may receive connections. At weight 0, it receives connections
    /// only from clients that stick to it.
    pub fn is_in_service(&self) -> bool {
        !self.is_failing() && !self.is_disabled() && self.has_address()
    }

    /// Returns `true` if the server may receive new clients.
    pub fn is_usable(&self) -> bool {
        self.is_in_service() && self.weight.load(Relaxed) > 0
    }

    /// Returns the effective weight in hundredths, so that a slow start can scale it. It is 0 only
    /// if the configured weight is 0 or the server drains.
    pub fn weight(&self) -> u32 {
        self.weight.load(Relaxed) * self.weight_percent.load(Relaxed)
    }

    pub fn maxconn(&self) -> Option<u32> {
        Some(self.limits.maxconn.load(Relaxed)).filter(|limit| *limit != UNLIMITED)
    }

    /// Returns the limit on client connections: `maxconn`, minus one while a health check waits for
    /// a slot.
    pub fn limit(&self) -> u32 {
        match self.limits.maxconn.load(SeqCst) {
            UNLIMITED => UNLIMITED,
            most => most.saturating_sub(self.limits.reserved.load(SeqCst).into()),
        }
    }

    pub fn has_room(&self) -> bool {
        self.connects.slots.has_room(self.limit())
    }

    pub fn note_connect(&self) {
        self.connects.succeeded.fetch_add(1, Relaxed);
        // Without this check, each connection would write to a shared cache line.
        if self.failures_in_a_row() > 0 {
            self.connects.failed_in_a_row.store(0, Relaxed);
        }
    }

    /// Records a failed connect. Returns the number of consecutive failures.
    pub fn note_failure(&self) -> u32 {
        self.connects.failed.fetch_add(1, Relaxed);
        self.connects
            .failed_in_a_row
            .fetch_add(1, Relaxed)
            .saturating_add(1)
    }

    /// Sets the number of consecutive failures, as counted by the previous process.
    pub fn set_failures_in_a_row(&self, failures: u32) {
        self.connects.failed_in_a_row.store(failures, Relaxed);
    }

    /// Takes the server out of service or returns it to service, and grants free slots to waiters.
    /// If the server fails and `connections-on-failure` is `close`, workers close its connections.
    /// Called by the control thread. Returns `true` if the value has changed.
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

    pub fn watched(&self) -> Watched {
        self.watched
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub fn note(&self, note: impl FnOnce(&mut Watched)) {
        note(&mut self.watched.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns `true` if the last DNS lookup of the host name failed.
    pub fn dns_stale(&self) -> bool {
        self.addresses.dns_stale.load(Relaxed)
    }

    /// Records whether a lookup found addresses. Returns `true` if the result differs from the
    /// previous lookup.
    pub fn note_lookup(&self, found: bool) -> bool {
        self.addresses.dns_stale.swap(!found, Relaxed) == found
    }

    /// Sets the percentage of the configured weight that applies during a slow start, 1 to 100.
    pub fn set_weight_percent(&self, percent: u32) {
        self.weight_percent.store(percent.clamp(1, 100), Relaxed);
    }

    /// Replaces the addresses from the configuration file or from DNS, in the order of connection
    /// attempts. Addresses that an operator has set still take precedence. Existing connections are
    /// unaffected. Does nothing if `addresses` is empty or unchanged.
    pub fn set_addresses(&self, addresses: &[ServerAddress]) {
        if !addresses.is_empty() {
            self.change_addresses(|held| held.found = addresses.into());
        }
    }

    /// Returns the addresses from the configuration file or from DNS.
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

    /// Returns the addresses in use. Takes a lock; the data path checks [`Self::generation`] first.
    pub fn addresses(&self) -> Arc<[ServerAddress]> {
        Arc::clone(self.lock_addresses().used())
    }

    fn lock_addresses(&self) -> MutexGuard<'_, Addresses> {
        self.addresses
            .held
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of address changes so far; 0 if the server has no address yet.
    pub fn generation(&self) -> u32 {
        self.addresses.generation.load(Acquire)
    }

    /// Returns the number of claimed slots, with the share of `maxconn` that this process may
    /// claim.
    pub fn slots(&self) -> &SharedCount {
        &self.connects.slots
    }

    /// Claims a slot. Returns `false` if the limit for clients is reached.
    pub(super) fn take_slot(&self) -> bool {
        let limit = self.limit();
        if limit == UNLIMITED {
            self.connects.slots.add();
            return true;
        }
        self.connects.slots.take(limit)
    }

    /// Reserves one slot for a health check, or ends the reservation.
    pub(super) fn reserve_slot(&self, reserved: bool) {
        self.limits.reserved.store(reserved, SeqCst);
        if !reserved {
            self.backend.settle();
        }
    }

    /// Claims a slot for a health check. Returns `false` if `maxconn` is reached.
    pub(super) fn take_reserved_slot(&self) -> bool {
        self.connects.slots.take(self.limits.maxconn.load(SeqCst))
    }

    /// Releases a slot, and grants it to the longest-waiting connection, if any.
    pub(super) fn give_back_slot(&self) {
        self.connects.slots.give_back();
        self.backend.settle();
    }
}

/// Value for "no limit", larger than the number of descriptors of any process.
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
    fn operator_changes_last_until_a_reload() {
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
        // Stores the result of a lookup meanwhile, without using it.
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
    fn server_modes_override_the_configuration_file() {
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
    fn only_a_different_address_starts_a_new_generation() {
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
