//! Watches the servers: health checks, failed connects, and DNS lookups of their names.
//!
//! A [`Prober`] has a [`ServerWatch`] for each configured server. [`Prober::tick`] starts checks
//! and lookups that are due, as a limited number of tasks, and never waits. Results return through
//! [`Prober::ended`] and [`Prober::take`]. [`becket_proto::health`] derives the condition of a
//! server from them. The condition is stored in the server's state, which the workers read. Each
//! change of condition is logged with its reason.
//!
//! One [`HostResolver`] resolves all names. If a lookup fails or finds nothing, the server keeps
//! its addresses, because a DNS failure must not remove working servers. The beginning and the end
//! of such a failure are logged once. A server without an address is neither used nor checked, and
//! its name is resolved more often. During its first lookup, clients wait in the queue if no other
//! server is available.

use std::collections::HashMap;
use std::fmt::Display;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use becket_proto::handover;
use becket_proto::health::{self, Change, Condition, Rules};
use becket_sys::clock::Now;
use tokio::task::JoinSet;

use super::check::{Check, Failure};
use becket_prepare::resolver::{HostAddresses, HostResolver};
use becket_proxy::backend::registry::Backends;
use becket_proxy::backend::server_state::ServerState;
use becket_proxy::backend::slot::{Reservation, ServerSlot};
use becket_tls::config::{Backend, Config, MOST_ADDRESSES, Server, ServerAddress};

/// Runs checks and DNS lookups for the servers of the current configuration.
#[derive(Debug)]
pub struct Prober {
    resolver: HostResolver,
    /// Configuration to which `watches` belongs.
    config: Option<Arc<Config>>,
    watches: Vec<ServerWatch>,
    /// Running checks. Each result contains the index of its server in `watches`.
    checks: JoinSet<(usize, Result<(), Failure>)>,
    lookups: JoinSet<(usize, HostAddresses)>,
}

#[derive(Debug)]
struct ServerWatch {
    backend: Arc<Backend>,
    server: Arc<ServerState>,
    rules: Rules,
    check: Option<Check>,
    health: health::Health,
    check_schedule: Schedule,
    /// Reservation of the server's next free slot for a check that waits for a slot.
    reservation: Option<Reservation>,
    name: Option<Name>,
}

/// Host name of a server, which is resolved repeatedly.
#[derive(Debug)]
struct Name {
    host: String,
    port: u16,
    /// Interval between lookups. With `None`, lookups stop when the name has an address.
    interval: Option<Duration>,
    schedule: Schedule,
}

#[derive(Clone, Copy, Debug)]
struct Schedule {
    due: Duration,
    running: bool,
}

/// The result of a task, with the index of its server.
#[derive(Debug)]
pub enum Ended {
    Check(usize, Result<(), Failure>),
    Lookup(usize, HostAddresses),
}

impl Prober {
    /// Creates a prober without servers; [`Self::tick`] adds them.
    pub fn new(resolver: HostResolver) -> Self {
        Self {
            resolver,
            config: None,
            watches: Vec::new(),
            checks: JoinSet::new(),
            lookups: JoinSet::new(),
        }
    }

    /// Adopts the configuration if it has changed, and starts the tasks that are due.
    pub fn tick(&mut self, config: &Arc<Config>, backends: &Backends, now: Now) {
        let same = |known: &Arc<Config>| Arc::ptr_eq(known, config);
        if !self.config.as_ref().is_some_and(same) {
            self.adopt(&config.backends, backends, now.mono);
            self.config = Some(Arc::clone(config));
        }
        self.advance(now);
    }

    /// Returns the health of the servers, to pass to the new process in an upgrade.
    pub fn known(&self, now: Now) -> Vec<handover::Server> {
        let known = self.watches.iter().map(|watch| watch.known(now));
        let is_worth_it = |known: &handover::Server| {
            known.known.condition != Condition::Unchecked || !known.addresses.is_empty()
        };
        known.filter(is_worth_it).collect()
    }

    /// Adopts the health of servers that the old process passed in an upgrade. Ignores servers that
    /// are not configured.
    pub fn take_over(&mut self, told: &[handover::Server], now: Now) {
        let told: HashMap<_, _> = told
            .iter()
            .map(|server| ((&*server.backend, &*server.name), server))
            .collect();
        for watch in &mut self.watches {
            let names = (&*watch.backend.keys.name.0, &**watch.server.name());
            if let Some(told) = told.get(&names) {
                watch.take_over(told, now);
            }
        }
    }

    /// Makes the next tick adopt the configuration again, after an operator has disabled or enabled
    /// a server.
    pub fn readopt(&mut self) {
        self.config = None;
    }

    fn advance(&mut self, now: Now) {
        for index in 0..self.watches.len() {
            if let Some(watch) = self.watches.get_mut(index) {
                watch.look_at_connects(now);
                watch.set_weight(now.mono);
            }
            self.start_check(index, now.mono);
            self.start_lookup(index, now.mono);
        }
    }

    /// Waits for the result of a task. Never returns if no task runs. Cancel safe.
    pub async fn ended(&mut self) -> Ended {
        tokio::select! {
            Some(Ok((index, outcome))) = self.checks.join_next() => Ended::Check(index, outcome),
            Some(Ok((index, found))) = self.lookups.join_next() => Ended::Lookup(index, found),
            else => std::future::pending().await,
        }
    }

    pub fn take(&mut self, ended: Ended, now: Now) {
        match ended {
            Ended::Check(index, outcome) => {
                // Spread the checks of the servers over the interval. Any 32 bits of the hash are
                // random enough.
                let random = RandomState::new().hash_one(index) as u32;
                if let Some(watch) = self.watches.get_mut(index) {
                    watch.handle_check(outcome, random, now);
                }
            }
            Ended::Lookup(index, found) => {
                if let Some(watch) = self.watches.get_mut(index)
                    && let Some(name) = &mut watch.name
                {
                    name.handle_lookup(found, &watch.server, now.mono);
                }
            }
        }
    }

    /// Creates the watches for a configuration. Servers that are still configured keep their
    /// health.
    fn adopt(&mut self, configured: &[Arc<Backend>], backends: &Backends, now: Duration) {
        // Cancel the tasks of the previous configuration, because their indices refer to its
        // servers.
        self.checks = JoinSet::new();
        self.lookups = JoinSet::new();
        let mut before = std::mem::take(&mut self.watches);
        for backend in configured {
            // Always found, because the control loop has added all configured backends.
            let Some(state) = backends.by_name(&backend.keys.name) else {
                continue;
            };
            let states = state.servers();
            for server in &backend.servers {
                let same = |state: &&Arc<ServerState>| *state.name() == server.name;
                let Some(state) = states
                    .iter()
                    .find(same)
                    .filter(|state| !state.is_disabled())
                else {
                    continue;
                };
                let known = before
                    .iter()
                    .position(|watch| Arc::ptr_eq(&watch.server, state));
                let known = known.map(|index| before.swap_remove(index));
                let watch = ServerWatch::new(backend, server, Arc::clone(state), now);
                self.watches.push(watch.remembering(known));
            }
        }
        // Mark servers up that are no longer watched.
        for watch in before {
            watch.server.set_failing(false);
            watch.server.set_weight_percent(100);
            let unchecked = Condition::Unchecked;
            watch.server.note(|found| {
                found.condition = unchecked;
                found.check_error = None;
            });
        }
    }

    fn start_check(&mut self, index: usize, now: Duration) {
        let Some(watch) = self.watches.get_mut(index) else {
            return;
        };
        if self.checks.len() >= MOST_CHECKS {
            return;
        }
        if let Some((check, slot)) = watch.begin_check(now) {
            self.checks.spawn(async move {
                let outcome = check.run().await;
                drop(slot);
                (index, outcome)
            });
        }
    }

    fn start_lookup(&mut self, index: usize, now: Duration) {
        let watch = self.watches.get_mut(index);
        let name = watch.and_then(|watch| watch.name.as_mut());
        let Some(name) = name.filter(|name| name.schedule.is_due(now)) else {
            return;
        };
        if self.lookups.len() >= MOST_LOOKUPS {
            return;
        }
        name.schedule.running = true;
        let found = self.resolver.look_up(&name.host);
        self.lookups.spawn(async move { (index, found.await) });
    }
}

impl ServerWatch {
    fn new(
        backend: &Arc<Backend>,
        config: &Server,
        server: Arc<ServerState>,
        now: Duration,
    ) -> Self {
        let rules = backend.keys.health.rules();
        Self {
            check: Check::of(backend, config),
            health: health::Health::new(&rules),
            check_schedule: Schedule::at(now),
            reservation: None,
            name: Name::of(backend, config, now),
            backend: Arc::clone(backend),
            server,
            rules,
        }
    }

    /// Adopts the health from the previous watch of the server, if the kinds of checks are
    /// unchanged.
    fn remembering(mut self, before: Option<Self>) -> Self {
        let alike = |before: &Self| {
            before.rules.checks.is_some() == self.rules.checks.is_some()
                && before.rules.passive.is_some() == self.rules.passive.is_some()
        };
        match before {
            Some(before) if alike(&before) => self.health = before.health,
            _ => {
                self.server.set_failing(false);
                self.server.set_weight_percent(100);
                let condition = self.health.condition();
                self.server.note(|found| found.condition = condition);
            }
        }
        self
    }

    fn known(&self, now: Now) -> handover::Server {
        let (since, reason) = self.server.watched().change.unwrap_or_default();
        let addresses = self.name.as_ref().map(|_| self.server.found_addresses());
        let addresses = addresses.iter().flat_map(|found| found.iter());
        handover::Server {
            backend: self.backend.keys.name.to_string(),
            name: self.server.name().to_string(),
            known: self.health.known(now.mono),
            failures: self.server.failures_in_a_row(),
            since,
            reason: reason.to_string(),
            addresses: addresses.map(ToString::to_string).collect(),
        }
    }

    fn take_over(&mut self, told: &handover::Server, now: Now) {
        // Use the addresses from the old process, because a DNS lookup may fail now.
        if self.name.is_some() && !self.server.has_address() {
            let found = told.addresses.iter().take(MOST_ADDRESSES);
            let found = found.filter_map(|text| text.parse().ok());
            let found: Vec<_> = found.map(ServerAddress::Tcp).collect();
            self.server.set_addresses(&found);
        }
        let Some(health) = health::Health::of(told.known, &self.rules, now.mono) else {
            return;
        };
        self.health = health;
        let condition = told.known.condition;
        self.server.note(|found| {
            found.condition = condition;
            let change = (told.since, told.reason.as_str().into());
            found.change = Some(change).filter(|_| !told.since.is_zero());
        });
        self.server.set_failures_in_a_row(told.failures);
        self.set_weight(now.mono);
        self.server.set_failing(!condition.is_usable());
    }

    /// Returns the check if it is due and may run. If the server has a connection limit, the check
    /// uses a slot.
    ///
    /// A check that has waited for a slot for the duration of its timeout runs without a slot.
    /// Otherwise a dead server whose slots are used by hanging connections would stay in service.
    fn begin_check(&mut self, now: Duration) -> Option<(Check, Option<ServerSlot>)> {
        let check = self.check.as_ref()?;
        if !self.check_schedule.is_due(now) || !self.server.has_address() {
            return None;
        }
        let mut slot = None;
        if self.server.maxconn().is_some() {
            let reservation = self.reservation.take();
            let reservation = reservation.unwrap_or_else(|| Reservation::new(&self.server));
            slot = reservation.claim();
            if slot.is_none() && now < self.check_schedule.due + check.timeout {
                self.reservation = Some(reservation);
                return None;
            }
        }
        self.check_schedule.running = true;
        let mut check = check.clone();
        check.addresses = reachable(&self.server, &self.backend);
        Some((check, slot))
    }

    fn look_at_connects(&mut self, now: Now) {
        let failures = self.server.failures_in_a_row();
        if let Some(change) = self.health.handle_connects(failures, &self.rules, now.mono) {
            // Check again immediately, to confirm the change.
            self.check_schedule.due = now.mono;
            match change.to {
                Condition::OutOfService => self.note(change, &"connects fail", now),
                _ => self.note(change, &"a connect succeeded", now),
            }
        }
        if let Some(change) = self.health.handle_time(failures, now.mono) {
            self.note(change, &"the pause is over", now);
        }
    }

    fn handle_check(&mut self, outcome: Result<(), Failure>, random: u32, now: Now) {
        self.check_schedule.running = false;
        let good = outcome.is_ok();
        self.server.note(|found| {
            found.checks += 1;
            found.check_failures += u64::from(!good);
            found.check_error = outcome.as_ref().err().map(|it| it.to_string().into());
        });
        let change = self.health.handle_check(good, &self.rules, now.mono);
        if let Some(checks) = &self.rules.checks {
            self.check_schedule.due = now.mono + self.health.until_next_check(checks, random);
        }
        match (change, outcome) {
            (Some(change), Ok(())) => self.note(change, &"checks pass", now),
            (Some(change), Err(failure)) => self.note(change, &failure, now),
            (None, Ok(())) => {}
            (None, Err(failure)) => tracing::debug!(
                backend = &*self.backend.keys.name,
                server = %self.server.name(),
                error = %failure,
                "check failed"
            ),
        }
    }

    fn note(&self, change: Change, reason: &dyn Display, now: Now) {
        let failing = !change.to.is_usable();
        let (backend, server) = (&*self.backend.keys.name, self.server.name());
        let (from, to) = (change.from.label(), change.to.label());
        if failing {
            tracing::warn!(name: "server-down", backend, %server, from, to, %reason, "server out of service");
        } else {
            tracing::info!(name: "server-up", backend, %server, from, to, %reason, "server in service");
        }
        self.server.note(|found| {
            found.condition = change.to;
            found.change = Some((now.unix, reason.to_string().into()));
            found.outages += u64::from(failing);
        });
        // Set the weight before the first client is sent to the server.
        self.set_weight(now.mono);
        self.server.set_failing(failing);
    }

    fn set_weight(&self, now: Duration) {
        let percent = self.health.weight_percent(&self.rules, now);
        self.server.set_weight_percent(percent.into());
    }
}

impl Name {
    /// Returns `None` if the server's address is not a host name.
    fn of(backend: &Backend, config: &Server, now: Duration) -> Option<Self> {
        let (host, port) = config.host()?;
        Some(Self {
            host,
            port,
            interval: backend.keys.resolve_interval,
            schedule: Schedule::at(now),
        })
    }

    fn handle_lookup(&mut self, found: HostAddresses, server: &Arc<ServerState>, now: Duration) {
        let is_news = server.note_lookup(found.is_ok());
        let name = server.name();
        match found {
            Ok(found) => {
                if is_news {
                    tracing::info!(name: "server-resolved", server = %name, "server name resolves");
                }
                replace_addresses(server, &found, self.port);
            }
            Err(reason) if is_news && server.has_address() => {
                tracing::warn!(name: "server-lookup-failed", server = %name, error = reason, "DNS lookup failed; keeping the last addresses");
            }
            Err(reason) if is_news => {
                tracing::warn!(name: "server-unresolved", server = %name, error = reason, "server name does not resolve; the server receives no connections");
                // Clients in the queue may have no other server, so the queue must be checked
                // again.
                server.backend().settle();
            }
            Err(_) => {}
        }
        let pause = again(self.interval, server.has_address());
        self.schedule = Schedule::at(pause.map_or(Duration::MAX, |pause| now + pause));
    }
}

/// Returns the addresses that a client's connection tries within `retries`. A server that answers
/// only at later addresses is not usable.
fn reachable(server: &ServerState, backend: &Backend) -> Arc<[ServerAddress]> {
    let addresses = server.addresses();
    let tried = (backend.keys.retries as usize).saturating_add(1);
    match addresses.get(..tried) {
        Some(first) if first.len() < addresses.len() => first.into(),
        _ => addresses,
    }
}

/// Sets the addresses of a server. Does nothing if only their order has changed.
fn replace_addresses(server: &Arc<ServerState>, found: &[IpAddr], port: u16) {
    let found = found.iter().take(MOST_ADDRESSES);
    let found: Vec<SocketAddr> = found.map(|ip| SocketAddr::new(*ip, port)).collect();
    let new: Vec<ServerAddress> = found.iter().copied().map(ServerAddress::Tcp).collect();
    let old = server.addresses();
    if old.len() == new.len() && new.iter().all(|address| old.contains(address)) {
        return;
    }
    tracing::info!(name: "server-addresses-changed", server = %server.name(), addresses = ?found, "server name resolves to other addresses");
    server.set_addresses(&new);
    // Clients in the queue may now be sent to the new address.
    server.backend().settle();
}

/// Returns the time until the next lookup: [`SOON`] if the name has no address, otherwise
/// `interval`.
pub fn again(interval: Option<Duration>, is_known: bool) -> Option<Duration> {
    if is_known {
        return interval;
    }
    Some(interval.map_or(SOON, |interval| interval.min(SOON)))
}

impl Schedule {
    fn at(due: Duration) -> Self {
        Self {
            due,
            running: false,
        }
    }

    fn is_due(self, now: Duration) -> bool {
        !self.running && now >= self.due
    }
}

/// Maximum number of concurrent checks, each of which uses a file descriptor.
const MOST_CHECKS: usize = 64;
/// Maximum number of concurrent lookups. The resolver may have a lower limit.
const MOST_LOOKUPS: usize = 64;
/// Time until the next lookup of a name without addresses.
const SOON: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
