//! Keeps an eye on servers, from the control thread: checks them, counts their connects, resolves their names anew.
//!
//! A [`Prober`] has a [`ServerWatch`] for each server of the configuration. [`Prober::tick`] does what is due and never waits:
//! checks and lookups run beside it, bounded in number, and come back through [`Prober::ended`] and [`Prober::take`].
//! What is thought of a server is [`becket_proto::health`]'s; what follows from it is written into the server's state,
//! which the data path reads. Each change of condition is logged once, with its reason.
//!
//! Names are looked up when a configuration is taken over, and then again and again, by the [`Resolver`] that all share.
//! A name that does not resolve, or to nothing, keeps the addresses that it had: DNS that fails must not take away
//! servers that work. It is said once, and once more when it is over. A server that never had an address is neither
//! used nor checked, and is looked up more often; while it is looked up for the first time, clients that find no other
//! server wait for it in the queue.

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
use crate::backend::registry::Backends;
use crate::backend::server_state::ServerState;
use crate::backend::slot::Reservation;
use becket_prepare::resolver::{Found, Resolver};
use becket_tls::config::{Backend, Config, MOST_ADDRESSES, Server, ServerAddress};

/// All servers that are looked after.
#[derive(Debug)]
pub struct Prober {
    resolver: Resolver,
    /// What the watches were made for.
    config: Option<Arc<Config>>,
    watches: Vec<ServerWatch>,
    running: JoinSet<Ended>,
    checks_running: usize,
    lookups_running: usize,
}

/// One server.
#[derive(Debug)]
struct ServerWatch {
    backend: Arc<Backend>,
    server: Arc<ServerState>,
    rules: Rules,
    /// Its addresses are those of the last check.
    check: Option<Check>,
    health: health::Health,
    work: Work,
    /// A check that is due waits for a slot.
    reservation: Option<Reservation>,
    name: Option<Name>,
    /// What the data path was told.
    weight_percent: u8,
}

/// A server's name, where it is one that is resolved again and again.
#[derive(Debug)]
struct Name {
    host: String,
    port: u16,
    /// Between two lookups; without, there are none once there is an address.
    interval: Option<Duration>,
    lookup: Work,
}

/// Something that is done again and again.
#[derive(Clone, Copy, Debug)]
struct Work {
    due: Duration,
    running: bool,
}

/// What ran beside the loop.
#[derive(Debug)]
pub enum Ended {
    /// A check of a server, by index.
    Check(usize, Result<(), Failure>),
    /// A lookup of a server's name, by index.
    Lookup(usize, Found),
    /// Something that will not come back, by a fault of ours.
    Lost,
}

impl Prober {
    /// Looks after nothing yet.
    pub fn new(resolver: Resolver) -> Self {
        Self {
            resolver,
            config: None,
            watches: Vec::new(),
            running: JoinSet::new(),
            checks_running: 0,
            lookups_running: 0,
        }
    }

    /// Does what is due, after taking over the configuration if it is another one.
    pub fn tick(&mut self, config: &Arc<Config>, backends: &Backends, now: Now) {
        let same = |known: &Arc<Config>| Arc::ptr_eq(known, config);
        if !self.config.as_ref().is_some_and(same) {
            self.adopt(&config.backends, backends, now.mono);
            self.config = Some(Arc::clone(config));
        }
        self.advance(now);
    }

    /// What is known of servers, for another process.
    pub fn known(&self, now: Now) -> Vec<handover::Server> {
        let known = self.watches.iter().map(|watch| watch.known(now));
        let is_worth_it = |known: &handover::Server| {
            known.known.condition != Condition::Unchecked || !known.addresses.is_empty()
        };
        known.filter(is_worth_it).collect()
    }

    /// Goes on with what another process knew of servers that are watched here.
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

    /// Looks at the servers anew at the next tick: one of them may be watched no more, or again.
    pub fn look_again(&mut self) {
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

    /// Waits for something that runs, for ever if nothing does. Nothing is lost when the future is dropped.
    pub async fn ended(&mut self) -> Ended {
        match self.running.join_next().await {
            Some(Ok(ended)) => ended,
            Some(Err(error)) => {
                tracing::error!(%error, "a health check was lost");
                Ended::Lost
            }
            None => std::future::pending().await,
        }
    }

    /// Draws the conclusions.
    pub fn take(&mut self, ended: Ended, now: Now) {
        match ended {
            Ended::Check(index, outcome) => {
                self.checks_running = self.checks_running.saturating_sub(1);
                // Nobody needs to guess it, it only has to differ: any 32 bits of a hash are as good as any other.
                let random = RandomState::new().hash_one(index) as u32;
                if let Some(watch) = self.watches.get_mut(index) {
                    watch.handle_check(outcome, random, now);
                }
            }
            Ended::Lookup(index, found) => {
                self.lookups_running = self.lookups_running.saturating_sub(1);
                let watch = self.watches.get_mut(index);
                if let Some((name, server)) = watch.and_then(ServerWatch::named) {
                    name.handle_lookup(found, server, now.mono);
                }
            }
            // Nobody knows which it was: everything begins anew.
            Ended::Lost => self.config = None,
        }
    }

    /// Makes the watches of a configuration. What was known of servers that stay is kept.
    fn adopt(&mut self, configured: &[Arc<Backend>], backends: &Backends, now: Duration) {
        // What still runs was for other indices.
        self.running = JoinSet::new();
        (self.checks_running, self.lookups_running) = (0, 0);
        let mut before = std::mem::take(&mut self.watches);
        for backend in configured {
            // Control has adopted it just now.
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
        // Those that nobody watches any more are used as they are.
        for watch in before {
            watch.server.set_failing(false);
            watch.server.set_weight_percent(100);
            let unchecked = Condition::Unchecked;
            watch.server.note(|found| found.condition = unchecked);
        }
    }

    fn start_check(&mut self, index: usize, now: Duration) {
        let Some(watch) = self.watches.get_mut(index) else {
            return;
        };
        let is_due = watch.work.is_due(now) && watch.server.has_address();
        let Some(check) = watch.check.as_mut().filter(|_| is_due) else {
            return;
        };
        if self.checks_running >= MOST_CHECKS {
            return;
        }
        // Where connections are limited, a check is one of them. One that has waited for as long as an answer may take is made
        // all the same: clients that hang on a dead server would keep it in service.
        let server = &watch.server;
        let waits = now < watch.work.due + check.timeout;
        let slot = match server.maxconn() {
            None => None,
            Some(_) => {
                let reservation = watch.reservation.take();
                let reservation = reservation.unwrap_or_else(|| Reservation::new(server));
                let slot = reservation.claim();
                if slot.is_none() && waits {
                    watch.reservation = Some(reservation);
                    return;
                }
                slot
            }
        };
        self.checks_running += 1;
        watch.work.running = true;
        check.addresses = reachable(&watch.server, &watch.backend);
        let check = check.clone();
        self.running.spawn(async move {
            let outcome = check.run().await;
            drop(slot);
            Ended::Check(index, outcome)
        });
    }

    fn start_lookup(&mut self, index: usize, now: Duration) {
        let name = self
            .watches
            .get_mut(index)
            .and_then(|watch| watch.name.as_mut());
        let Some(name) = name.filter(|name| name.lookup.is_due(now)) else {
            return;
        };
        if self.lookups_running >= MOST_LOOKUPS {
            return;
        }
        self.lookups_running += 1;
        name.lookup.running = true;
        let found = self.resolver.look_up(&name.host);
        self.running
            .spawn(async move { Ended::Lookup(index, found.await) });
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
            work: Work::at(now),
            reservation: None,
            name: Name::of(backend, config, now),
            weight_percent: 100,
            backend: Arc::clone(backend),
            server,
            rules,
        }
    }

    /// The same with what an earlier watch knew, where it watched in the same way.
    fn remembering(mut self, before: Option<Self>) -> Self {
        let alike = |before: &Self| {
            before.rules.checks.is_some() == self.rules.checks.is_some()
                && before.rules.passive.is_some() == self.rules.passive.is_some()
        };
        match before {
            Some(before) if alike(&before) => {
                self.health = before.health;
                self.weight_percent = before.weight_percent;
            }
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
        // DNS may fail just now.
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

    fn named(&mut self) -> Option<(&mut Name, &Arc<ServerState>)> {
        Some((self.name.as_mut()?, &self.server))
    }

    fn look_at_connects(&mut self, now: Now) {
        let failures = self.server.failures_in_a_row();
        if let Some(change) = self.health.handle_connects(failures, &self.rules, now.mono) {
            // A check that is due is better than one that comes some time.
            self.work.due = now.mono;
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
        self.work.running = false;
        let good = outcome.is_ok();
        self.server.note(|found| {
            found.checks += 1;
            found.check_failures += u64::from(!good);
        });
        let change = self.health.handle_check(good, &self.rules, now.mono);
        if let Some(checks) = &self.rules.checks {
            self.work.due = now.mono + self.health.until_next_check(checks, random);
        }
        match (change, outcome) {
            (Some(change), Ok(())) => self.note(change, &"checks pass", now),
            (Some(change), Err(failure)) => self.note(change, &failure, now),
            (None, Ok(())) => {}
            (None, Err(failure)) => tracing::debug!(
                backend = &*self.backend.keys.name,
                server = %self.server.name(),
                %failure,
                "check failed"
            ),
        }
    }

    /// Tells everybody.
    fn note(&mut self, change: Change, reason: &dyn Display, now: Now) {
        let failing = !change.to.is_usable();
        let (backend, server) = (&*self.backend.keys.name, self.server.name());
        let (from, to) = (change.from.label(), change.to.label());
        if failing {
            tracing::warn!(backend, %server, from, to, %reason, "server out of service");
        } else {
            tracing::info!(backend, %server, from, to, %reason, "server in service");
        }
        self.server.note(|found| {
            found.condition = change.to;
            found.change = Some((now.unix, reason.to_string().into()));
            found.outages += u64::from(failing);
        });
        // Before anybody is sent there.
        self.set_weight(now.mono);
        self.server.set_failing(failing);
    }

    fn set_weight(&mut self, now: Duration) {
        let percent = self.health.weight_percent(&self.rules, now);
        if percent != self.weight_percent {
            self.weight_percent = percent;
            self.server.set_weight_percent(percent.into());
        }
    }
}

impl Name {
    /// What is to be resolved of a server, if anything is.
    fn of(backend: &Backend, config: &Server, now: Duration) -> Option<Self> {
        let (host, port) = config.host()?;
        Some(Self {
            host,
            port,
            interval: backend.keys.resolve_interval,
            lookup: Work::at(now),
        })
    }

    fn handle_lookup(&mut self, found: Found, server: &Arc<ServerState>, now: Duration) {
        let is_news = server.note_lookup(found.is_ok());
        let name = server.name();
        match found {
            Ok(found) => {
                if is_news {
                    tracing::info!(server = %name, "name resolves");
                }
                replace_addresses(server, &found, self.port);
            }
            Err(reason) if is_news && server.has_address() => {
                tracing::warn!(server = %name, reason, "name does not resolve, its last addresses stay");
            }
            Err(reason) if is_news => {
                tracing::warn!(server = %name, reason, "name does not resolve yet");
                // Who waited for it may have nobody left to wait for.
                server.backend().settle();
            }
            Err(_) => {}
        }
        let pause = again(self.interval, server.has_address());
        self.lookup = Work::at(pause.map_or(Duration::MAX, |pause| now + pause));
    }
}

/// The addresses that a client tries before it has no connect left: where only a later one answers, no client
/// gets to it, and the server is not well.
fn reachable(server: &ServerState, backend: &Backend) -> Arc<[ServerAddress]> {
    let addresses = server.addresses();
    let tried = (backend.keys.retries as usize).saturating_add(1);
    match addresses.get(..tried) {
        Some(first) if first.len() < addresses.len() => first.into(),
        _ => addresses,
    }
}

/// Gives a server its new addresses, unless they are the old ones in another order.
fn replace_addresses(server: &Arc<ServerState>, found: &[IpAddr], port: u16) {
    let found = found.iter().take(MOST_ADDRESSES);
    let found: Vec<SocketAddr> = found.map(|ip| SocketAddr::new(*ip, port)).collect();
    let new: Vec<ServerAddress> = found.iter().copied().map(ServerAddress::Tcp).collect();
    let old = server.addresses();
    if old.len() == new.len() && new.iter().all(|address| old.contains(address)) {
        return;
    }
    tracing::info!(server = %server.name(), addresses = ?found, "name has other addresses");
    server.set_addresses(&new);
    // Who waits for another server may go to one that has come.
    server.backend().settle();
}

/// When a name is looked up again: every `interval`, and soon where nothing is known of it.
pub fn again(interval: Option<Duration>, is_known: bool) -> Option<Duration> {
    if is_known {
        return interval;
    }
    Some(interval.map_or(SOON, |interval| interval.min(SOON)))
}

impl Work {
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

/// Checks at a time: a descriptor each, and a burst that no machine notices.
const MOST_CHECKS: usize = 64;
/// Lookups at a time: more than the resolver makes at a time.
const MOST_LOOKUPS: usize = 64;
/// How soon a name is looked up again that never resolved: its server is missing.
const SOON: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
