//! A backend in one worker: chooses the server of a connection.
//!
//! The worker owns the round-robin wheel, the random seed and the cached addresses. Shared state is
//! in atomics of [`ServerState`]s, so a choice needs no lock, no system call and no allocation. A
//! lookup in the stick table takes the lock of one shard.
//!
//! A full server is skipped, even by hash balancing and stickiness, so that no client waits for one
//! server while another is free. If all servers are full, the connection waits for the first free
//! slot of any server ([`Pick::Full`]).

use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use becket_cluster::{Outbox, PeerStick, SessionEvent, StoreLookups};
use becket_config::choices::{Balance, StickBy};
use becket_proto::balance::{self, Candidate, Wheel};
use becket_proto::close_reason::CloseReason;
use becket_proto::queue::Arrival;
use becket_proto::session::SessionName;
use becket_proto::ticket::{NodeId, OriginId};

use super::awaited::{Answering, Awaited};
use super::backend_state::{BackendState, Eligible, Pick, QueueFull, Wait, Waiter};
use super::cancel::{Cancel, CancelTargets};
use super::file_service::FileService;
use super::inbox::Inbox;
use super::registry::lone_state;
use super::server_state::ServerState;
use super::slot::ServerSlot;
use becket_http::docroot::readers::Readers;
use becket_tls::config::{Backend, ServerAddress};
use becket_tls::to_servers::ServerTls;

#[derive(Debug)]
pub struct Pool {
    backend: Arc<Backend>,
    tls: Option<ServerTls>,
    /// Sends new stick entries to the peers of a cluster.
    outbox: Option<Outbox>,
    state: Arc<BackendState>,
    inbox: Arc<dyn Inbox>,
    /// File service; `None` if the backend consists of servers.
    files: Option<FileService>,
    servers: Arc<[Arc<ServerState>]>,
    /// Copies of what a connect needs of each server.
    copies: Vec<ServerCopy>,
    wheel: RefCell<Wheel>,
    /// Reused for each choice, to avoid allocations.
    candidates: RefCell<Vec<Candidate>>,
    choices: Cell<u64>,
    /// Round-robin position in the configured source addresses, incremented for each connect.
    departures: Cell<usize>,
    seed: RandomState,
}

/// A worker's copy of what a connect needs of a server, so that workers do not write to the same
/// reference counts.
#[derive(Debug)]
struct ServerCopy {
    name: Arc<str>,
    /// Addresses, with their [`ServerState::generation`].
    addresses: RefCell<(u32, Rc<[ServerAddress]>)>,
}

/// Properties of a client for stickiness and hash balancing.
#[derive(Clone, Copy, Debug)]
pub struct PickHint<'a> {
    pub source: IpAddr,
    /// Server name in the ClientHello.
    pub name: Option<&'a str>,
    /// Origin of the session that the client resumes or has just created.
    pub origin: Option<OriginId>,
}

impl Pool {
    /// Creates a worker's pool. `start` differs between workers, so that their round-robin wheels
    /// do not all begin at the first server.
    pub fn new(
        backend: Arc<Backend>,
        state: Arc<BackendState>,
        inbox: Arc<dyn Inbox>,
        start: usize,
    ) -> Self {
        let servers = state.servers();
        let copy = |server: &Arc<ServerState>| {
            let generation = server.generation();
            ServerCopy {
                name: Arc::from(&**server.name()),
                addresses: RefCell::new((generation, Rc::from(&*server.addresses()))),
            }
        };
        let pool = Self {
            wheel: RefCell::new(Wheel::new(servers.len())),
            candidates: RefCell::new(Vec::with_capacity(servers.len())),
            tls: ServerTls::new(&backend),
            outbox: None,
            files: None,
            backend,
            state,
            inbox,
            copies: servers.iter().map(copy).collect(),
            servers,
            choices: Cell::new(start as u64),
            departures: Cell::new(start),
            seed: RandomState::new(),
        };
        pool.survey(&Eligible::new(&pool.servers, &[]));
        for _ in 0..start.checked_rem(pool.servers.len()).unwrap_or(0) {
            pool.wheel.borrow_mut().turn(&pool.candidates.borrow());
        }
        pool
    }

    /// Sets the outbox that sends new stick entries to the peers of a cluster.
    #[must_use]
    pub fn telling(mut self, outbox: Option<Outbox>) -> Self {
        self.outbox = outbox;
        self
    }

    /// Sets the threads for disk access, if the backend serves files.
    #[must_use]
    pub fn reading(mut self, readers: &Arc<Readers>) -> Self {
        let docroot = self.backend.docroot.as_ref();
        self.files = docroot.map(|docroot| FileService::new(docroot, readers, &self.inbox));
        self
    }

    pub fn files(&self) -> Option<&FileService> {
        self.files.as_ref()
    }

    /// Creates a pool outside a worker, for checks, tests and benchmarks.
    pub fn lone(backend: Arc<Backend>, inbox: Arc<dyn Inbox>) -> Self {
        let state = lone_state(&backend, vec![Arc::clone(&inbox)]);
        Self::new(backend, state, inbox, 0).reading(&Arc::default())
    }

    pub fn backend(&self) -> &Arc<Backend> {
        &self.backend
    }

    pub fn state(&self) -> &Arc<BackendState> {
        &self.state
    }

    /// Returns the eligible servers without a free slot.
    pub fn full_servers(&self) -> impl Iterator<Item = &Arc<ServerState>> {
        let eligible = Eligible::new(&self.servers, &[]);
        let servers = self.servers.iter();
        servers.filter(move |server| eligible.contains(server) && !server.has_room())
    }

    /// Returns the TLS configurations for the servers; `None` for plain TCP.
    pub fn tls(&self) -> Option<&ServerTls> {
        self.tls.as_ref()
    }

    /// Chooses a server for a new connection and claims a slot, unless earlier connections are
    /// queued. `had` is the result of [`Self::recall`]. `tried` contains the keys of servers to
    /// which this connection could not connect.
    pub fn pick(&self, hint: &PickHint<'_>, had: Option<u64>, tried: &[u64]) -> Pick {
        let eligible = Eligible::new(&self.servers, tried);
        if self.state.wants_any() {
            return eligible.shortage();
        }
        if let Some(slot) = had.and_then(|server| self.claim_again(server, tried)) {
            return Pick::Slot(slot);
        }
        self.survey(&eligible);
        let mut candidates = self.candidates.borrow_mut();
        while let Some(index) = self.choose(&candidates, hint) {
            if let Some(slot) = self.servers.get(index).and_then(ServerSlot::claim) {
                return Pick::Slot(slot);
            }
            // Another worker has claimed the last slot of this server, so the next choice excludes
            // it.
            if let Some(candidate) = candidates.get_mut(index) {
                candidate.open = false;
            }
        }
        eligible.shortage()
    }

    /// Creates a cancel request, and a handle with which the connection at index `place` reads its
    /// outcome.
    pub fn cancel(
        &self,
        place: usize,
        request: &[u8],
        backends: &CancelTargets,
    ) -> (Cancel, Awaited<CloseReason>) {
        let inbox = Arc::clone(&self.inbox);
        let (completion, outcome) = Answering::new(Waiter { inbox, place });
        let cancel = Cancel {
            request: request.into(),
            backends: Arc::clone(backends),
            completion,
        };
        (cancel, outcome)
    }

    /// Requests a session from the store for the connection at index `place`, which is advanced when the request is
    /// answered. Returns `None` if no request was made.
    pub fn look_up(
        &self,
        place: usize,
        name: SessionName,
        lookups: &StoreLookups,
    ) -> Option<Awaited<()>> {
        let mut awaited = None;
        lookups.ask(name, || {
            let inbox = Arc::clone(&self.inbox);
            let (answering, answer) = Answering::new(Waiter { inbox, place });
            awaited = Some(answer);
            answering
        });
        awaited
    }

    /// Queues the connection at index `place` of this worker: see [`BackendState::wait`].
    ///
    /// # Errors
    ///
    /// Fails if the queue is full.
    pub fn wait(
        &self,
        place: usize,
        tried: &[u64],
        before: Option<Arrival>,
    ) -> Result<Wait, QueueFull> {
        let inbox = Arc::clone(&self.inbox);
        self.state.wait(Waiter { inbox, place }, tried, before)
    }

    /// Returns the stick table key of a client; `None` if clients do not stick or the client has no
    /// session.
    fn stick_key(&self, hint: &PickHint<'_>) -> Option<u64> {
        match self.backend.keys.stick {
            StickBy::None => None,
            StickBy::Source => Some(balance::address_key(hint.source)),
            StickBy::TlsSession => hint.origin.map(|origin| origin.0),
        }
    }

    /// Looks up a client in the stick table. Returns the [`ServerState::key`] of its server.
    pub fn recall(&self, hint: &PickHint<'_>, now: Duration) -> Option<u64> {
        self.state.recall(self.stick_key(hint)?, now)
    }

    /// Stores the server of a client in the stick table. A new entry for a TLS session is also sent
    /// to the peers of a cluster.
    pub fn learn(&self, hint: &PickHint<'_>, server: &ServerState, now: Duration) {
        let Some(client) = self.stick_key(hint) else {
            return;
        };
        let life = self.backend.keys.stick_lifetime;
        let news = self.state.learn(client, server.key(), now, life);
        if news
            && self.backend.keys.stick == StickBy::TlsSession
            && let (Some(outbox), Some(origin)) = (&self.outbox, hint.origin)
        {
            outbox.leave(SessionEvent::Stuck(PeerStick {
                origin,
                server: server.tag(),
                life,
            }));
        }
    }

    /// Returns the [`ServerState::key`] of the server that is cluster node `node`, if it is
    /// eligible. The node number comes from the client, so it must not select a backup or a
    /// draining server.
    pub fn at_node(&self, node: NodeId) -> Option<u64> {
        let mut servers = self.backend.servers.iter();
        let server = servers.find(|server| server.keys.node == Some(node.0))?;
        let key = balance::name_key(&server.name);
        let eligible = Eligible::new(&self.servers, &[]);
        let mut servers = self.servers.iter();
        servers
            .any(|server| server.key() == key && eligible.contains(server))
            .then_some(key)
    }

    /// Returns the addresses of a server in the order of connection attempts.
    pub fn addresses(&self, server: &Arc<ServerState>) -> Rc<[ServerAddress]> {
        self.name_and_addresses(server).1
    }

    pub fn name_and_addresses(&self, server: &Arc<ServerState>) -> (Arc<str>, Rc<[ServerAddress]>) {
        let mut all = self.servers.iter().zip(&self.copies);
        let Some((_, copy)) = all.find(|(one, _)| Arc::ptr_eq(one, server)) else {
            // A reload added the server after this pool was created, so it has no copy.
            return (Arc::clone(server.name()), Rc::from(&*server.addresses()));
        };
        let generation = server.generation();
        let mut seen = copy.addresses.borrow_mut();
        if seen.0 != generation {
            *seen = (generation, Rc::from(&*server.addresses()));
        }
        (Arc::clone(&copy.name), Rc::clone(&seen.1))
    }

    /// Returns the next configured source address; `None` if the kernel chooses.
    pub fn source(&self, to: &ServerAddress) -> Option<IpAddr> {
        let (ServerAddress::Tcp(to), [_, ..]) = (to, &*self.backend.keys.source) else {
            return None;
        };
        let departure = self.departures.get();
        self.departures.set(departure.wrapping_add(1));
        let sources = self.backend.keys.source.iter();
        let fitting = sources.filter(|source| source.is_ipv4() == to.is_ipv4());
        let turn = departure.checked_rem(fitting.clone().count())?;
        fitting.clone().nth(turn).copied()
    }

    fn survey(&self, eligible: &Eligible<'_>) {
        let mut candidates = self.candidates.borrow_mut();
        candidates.clear();
        candidates.extend(self.servers.iter().map(|server| Candidate {
            key: server.key(),
            weight: server.weight(),
            in_use: server.in_use(),
            open: eligible.contains(server) && server.has_room(),
        }));
    }

    fn choose(&self, candidates: &[Candidate], hint: &PickHint<'_>) -> Option<usize> {
        let choice = self.choices.get();
        self.choices.set(choice.wrapping_add(1));
        match self.backend.keys.balance {
            Balance::RoundRobin => self.wheel.borrow_mut().turn(candidates),
            Balance::LeastConnections => balance::least_connections(candidates, choice as usize),
            Balance::TwoRandomChoices => {
                balance::two_choices(candidates, self.seed.hash_one(choice))
            }
            Balance::First => balance::first(candidates),
            Balance::SourceHash => {
                balance::rendezvous(candidates, balance::address_key(hint.source))
            }
            Balance::SniHash => {
                balance::rendezvous(candidates, balance::name_key(hint.name.unwrap_or_default()))
            }
        }
    }

    /// Claims a slot at the client's previous server, if that server is in service and has a free
    /// slot. Its weight may be 0, because a draining server still serves its known clients.
    fn claim_again(&self, server: u64, tried: &[u64]) -> Option<ServerSlot> {
        let had = self.servers.iter().find(|one| one.key() == server)?;
        if !had.is_in_service() || tried.contains(&server) {
            return None;
        }
        ServerSlot::claim(had)
    }
}

#[cfg(test)]
mod tests;
