//! One worker's view of a backend: which server a connection gets.
//!
//! The wheel, the dice and the addresses are the worker's own; what is shared is in [`ServerState`]s and
//! read as atomics, so a choice takes no lock, no system call and no allocation. A client that is known
//! again takes one shard's lock of the backend's memory.
//!
//! A server that is full is passed over, also by hashes and by those who stick: becket keeps no client
//! waiting for one server while another is free. When all are full, the connection waits for the first
//! slot of any ([`Pick::Full`]).

use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use becket_proto::balance::{self, Candidate, Wheel};
use becket_proto::queue::Arrival;
use becket_proto::ticket::{Lineage, NodeId};

use super::inbox::Inbox;
use super::line::{BackendState, QueueFull, Wait, Waiter};
use super::registry::{PeerStick, lone_state, stick_key};
use super::slot::Slot;
use super::state::ServerState;
use crate::cluster::outbox::{Note, Outbox};
use crate::config::{Backend, Balance, ProxyTlvs, ProxyVersion, ServerAddress, StickBy};
use crate::tls::onward::ServerTls;

/// One worker's view of a backend.
#[derive(Debug)]
pub struct Pool {
    backend: Arc<Backend>,
    tls: Option<ServerTls>,
    /// Where peers of a cluster are told of clients that stick.
    outbox: Option<Outbox>,
    state: Arc<BackendState>,
    inbox: Arc<dyn Inbox>,
    servers: Vec<Known>,
    wheel: RefCell<Wheel>,
    /// Filled for each choice; here so that nothing is allocated for it.
    candidates: RefCell<Vec<Candidate>>,
    /// Counts choices.
    choices: Cell<u64>,
    /// Counts connects that came from a source address.
    departures: Cell<usize>,
    /// What dice are thrown with.
    seed: RandomState,
}

/// A server, and the addresses that this worker has seen of it.
#[derive(Debug)]
struct Known {
    state: Arc<ServerState>,
    generation: Cell<u32>,
    addresses: RefCell<Rc<[ServerAddress]>>,
}

/// By what a client may be known again, or always be given the same server.
#[derive(Clone, Copy, Debug)]
pub struct Guest<'a> {
    /// Its address.
    pub source: IpAddr,
    /// The server name of its hello.
    pub name: Option<&'a str>,
    /// The session that it resumes or has just made.
    pub lineage: Option<Lineage>,
}

/// What becomes of a connection that asks for a server.
#[derive(Debug)]
pub enum Pick {
    /// It may connect.
    Slot(Slot),
    /// It has to wait.
    Full,
    /// No server is in service that was not tried.
    Nobody,
}

impl Pool {
    /// A view for the worker that `inbox` belongs to. `start` sets its wheel apart from other workers'.
    pub fn new(
        backend: Arc<Backend>,
        state: Arc<BackendState>,
        inbox: Arc<dyn Inbox>,
        start: usize,
    ) -> Self {
        let known = |state: &Arc<ServerState>| Known {
            state: Arc::clone(state),
            generation: Cell::new(state.generation()),
            addresses: RefCell::new(Rc::from(&*state.addresses())),
        };
        let servers: Vec<Known> = state.servers().iter().map(known).collect();
        let pool = Self {
            wheel: RefCell::new(Wheel::new(servers.len())),
            candidates: RefCell::new(Vec::with_capacity(servers.len())),
            tls: ServerTls::new(&backend),
            outbox: None,
            backend,
            state,
            inbox,
            servers,
            choices: Cell::new(start as u64),
            departures: Cell::new(start),
            seed: RandomState::new(),
        };
        pool.survey(&[]);
        for _ in 0..start.checked_rem(pool.servers.len()).unwrap_or(0) {
            pool.wheel.borrow_mut().turn(&pool.candidates.borrow());
        }
        pool
    }

    /// Tells the peers of a cluster of clients that stick.
    #[must_use]
    pub fn telling(mut self, outbox: Option<Outbox>) -> Self {
        self.outbox = outbox;
        self
    }

    /// A view of a backend that no other worker has, for checks, tests and benches.
    pub fn lone(backend: Arc<Backend>, inbox: Arc<dyn Inbox>) -> Self {
        let state = lone_state(&backend, vec![Arc::clone(&inbox)]);
        Self::new(backend, state, inbox, 0)
    }

    /// The same as if its servers spoke plain TCP, for rehearsals: they have no servers to shake hands with.
    #[must_use]
    pub fn in_clear(mut self) -> Self {
        self.tls = None;
        self
    }

    /// The backend as configured.
    pub fn backend(&self) -> &Arc<Backend> {
        &self.backend
    }

    /// What all workers know of the backend.
    pub fn state(&self) -> &Arc<BackendState> {
        &self.state
    }

    /// The backend's configuration name.
    pub fn name(&self) -> &str {
        &self.backend.name
    }

    /// What it takes to open TLS to the servers; `None` when they speak plain TCP.
    pub fn tls(&self) -> Option<&ServerTls> {
        self.tls.as_ref()
    }

    /// The PROXY header that servers expect.
    pub fn proxy_header(&self) -> Option<ProxyVersion> {
        self.backend.proxy_header
    }

    /// What it says only if asked to.
    pub fn proxy_tlvs(&self) -> ProxyTlvs {
        self.backend.proxy_tlvs
    }

    /// Chooses a server for a newcomer and claims a slot there, unless others wait for it already. `had`
    /// is the server that [`Self::recall`] found, `tried` are those that failed it.
    pub fn pick(&self, guest: &Guest<'_>, had: Option<u64>, tried: &[u64]) -> Pick {
        let unwanted = self.state.unwanted();
        let is_wanted = |server: u64| {
            let unwanted = unwanted.as_ref();
            unwanted.is_some_and(|unwanted| !unwanted.contains(&server))
        };
        let had = had.filter(|server| !is_wanted(*server));
        if let Some(slot) = had.and_then(|server| self.claim_again(server, tried)) {
            return Pick::Slot(slot);
        }
        if unwanted.as_ref().is_some_and(Vec::is_empty) {
            return self.shortage(tried);
        }
        self.survey(tried);
        let mut candidates = self.candidates.borrow_mut();
        for candidate in candidates.iter_mut() {
            candidate.open &= !is_wanted(candidate.key);
        }
        while let Some(index) = self.choose(&candidates, guest) {
            let known = self.servers.get(index);
            if let Some(slot) = known.and_then(|known| Slot::claim(&known.state)) {
                return Pick::Slot(slot);
            }
            // Another worker was faster with the last slot.
            if let Some(candidate) = candidates.get_mut(index) {
                candidate.open = false;
            }
        }
        self.shortage(tried)
    }

    /// Joins the queue, for the connection that lives at `place` in this worker: see [`BackendState::wait`].
    ///
    /// # Errors
    ///
    /// When the queue is full.
    pub fn wait(
        &self,
        place: usize,
        tried: &[u64],
        before: Option<Arrival>,
    ) -> Result<Wait, QueueFull> {
        let inbox = Arc::clone(&self.inbox);
        self.state.wait(Waiter { inbox, place }, tried, before)
    }

    /// By what this client is remembered; nothing where clients do not stick, or it has no session.
    fn stick_key(&self, guest: &Guest<'_>) -> Option<u64> {
        match self.backend.stick {
            StickBy::None => None,
            StickBy::Source => Some(balance::address_key(guest.source)),
            StickBy::TlsSession => guest.lineage.map(stick_key),
        }
    }

    /// The server that a client had, if it is remembered.
    pub fn recall(&self, guest: &Guest<'_>, now: Duration) -> Option<u64> {
        self.state.recall(self.stick_key(guest)?, now)
    }

    /// From now on a client has this server. The peers of a cluster are told, if it is news and the
    /// client is known by its session.
    pub fn learn(&self, guest: &Guest<'_>, server: &ServerState, now: Duration) {
        let Some(client) = self.stick_key(guest) else {
            return;
        };
        let life = self.backend.stick_lifetime;
        let news = self.state.learn(client, server, now, life);
        if news
            && self.backend.stick == StickBy::TlsSession
            && let (Some(outbox), Some(lineage)) = (&self.outbox, guest.lineage)
        {
            outbox.leave(Note::Stuck(PeerStick {
                lineage,
                server: server.tag(),
                life,
            }));
        }
    }

    /// The server that is a becket with this node, by its [`ServerState::key`].
    pub fn at_node(&self, node: NodeId) -> Option<u64> {
        let mut servers = self.backend.servers.iter();
        let server = servers.find(|server| server.node == Some(node.0))?;
        Some(balance::name_key(&server.name))
    }

    /// The addresses of a server, in the order in which they are tried.
    pub fn addresses(&self, server: &Arc<ServerState>) -> Rc<[ServerAddress]> {
        let mut known = self.servers.iter();
        let Some(known) = known.find(|known| Arc::ptr_eq(&known.state, server)) else {
            // A reload brought it while this view's last connections are under way.
            return Rc::from(&*server.addresses());
        };
        let generation = server.generation();
        if known.generation.replace(generation) != generation {
            known.addresses.replace(Rc::from(&*server.addresses()));
        }
        Rc::clone(&known.addresses.borrow())
    }

    /// The address to connect from, each in turn; nothing where the kernel chooses.
    pub fn source(&self, to: &ServerAddress) -> Option<IpAddr> {
        let (ServerAddress::Tcp(to), [_, ..]) = (to, &*self.backend.source) else {
            return None;
        };
        let departure = self.departures.get();
        self.departures.set(departure.wrapping_add(1));
        let sources = self.backend.source.iter();
        let fitting = sources.filter(|source| source.is_ipv4() == to.is_ipv4());
        let turn = departure.checked_rem(fitting.clone().count())?;
        fitting.clone().nth(turn).copied()
    }

    /// Reads what the choice depends on.
    fn survey(&self, tried: &[u64]) {
        let backups = self.serves_by_backups();
        let mut candidates = self.candidates.borrow_mut();
        candidates.clear();
        candidates.extend(self.servers.iter().map(|Known { state, .. }| Candidate {
            key: state.key(),
            weight: state.weight(),
            in_use: state.in_use(),
            open: state.is_usable()
                && state.is_backup() == backups
                && state.has_room()
                && !tried.contains(&state.key()),
        }));
    }

    fn choose(&self, candidates: &[Candidate], guest: &Guest<'_>) -> Option<usize> {
        let choice = self.choices.get();
        self.choices.set(choice.wrapping_add(1));
        match self.backend.balance {
            Balance::RoundRobin => self.wheel.borrow_mut().turn(candidates),
            Balance::LeastConnections => balance::least_connections(candidates, choice as usize),
            Balance::TwoRandomChoices => {
                balance::two_choices(candidates, self.seed.hash_one(choice))
            }
            Balance::First => balance::first(candidates),
            Balance::SourceHash => {
                balance::rendezvous(candidates, balance::address_key(guest.source))
            }
            Balance::SniHash => balance::rendezvous(
                candidates,
                balance::name_key(guest.name.unwrap_or_default()),
            ),
        }
    }

    /// The server that a client had, if it is in service and has room. Its weight may be 0: such a
    /// server is being emptied, and keeps those whom it has.
    fn claim_again(&self, server: u64, tried: &[u64]) -> Option<Slot> {
        let had = self
            .servers
            .iter()
            .find(|known| known.state.key() == server)?;
        if !had.state.is_in_service() || tried.contains(&server) {
            return None;
        }
        Slot::claim(&had.state)
    }

    fn serves_by_backups(&self) -> bool {
        let mut servers = self.servers.iter();
        !servers.any(|known| known.state.is_usable() && !known.state.is_backup())
    }

    /// Whether waiting makes sense.
    fn shortage(&self, tried: &[u64]) -> Pick {
        let backups = self.serves_by_backups();
        let serves = |Known { state, .. }: &Known| {
            state.is_usable() && state.is_backup() == backups && !tried.contains(&state.key())
        };
        match self.servers.iter().any(serves) {
            true => Pick::Full,
            false => Pick::Nobody,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::inbox::{Grant, Notice, Tray};
    use crate::backend::state::Health;
    use crate::config::Server;

    struct Fixture {
        pool: Pool,
        servers: Arc<[Arc<ServerState>]>,
        tray: Arc<Tray>,
    }

    /// Unix sockets that are named in turn.
    fn servers(count: usize) -> Vec<Server> {
        let server = |index| {
            let name = format!("/s{index}");
            Server::plain(&name, vec![ServerAddress::Unix(name.clone().into())])
        };
        (0..count).map(server).collect()
    }

    fn fixture(backend: Backend) -> Fixture {
        let tray = Arc::new(Tray::default());
        let pool = Pool::lone(Arc::new(backend), Arc::clone(&tray) as Arc<dyn Inbox>);
        Fixture {
            servers: pool.state.servers(),
            pool,
            tray,
        }
    }

    fn guest() -> Guest<'static> {
        Guest {
            source: IpAddr::from([192, 0, 2, 1]),
            name: Some("a.test"),
            lineage: Some(Lineage(7)),
        }
    }

    impl Fixture {
        fn try_pick(&self) -> Option<Slot> {
            match self.pool.pick(&guest(), None, &[]) {
                Pick::Slot(slot) => Some(slot),
                Pick::Full | Pick::Nobody => None,
            }
        }

        fn pick(&self) -> Slot {
            self.try_pick().expect("a slot")
        }

        /// The server of a slot, by its place.
        fn place(&self, slot: &Slot) -> usize {
            let mut servers = self.servers.iter();
            let place = servers.position(|server| Arc::ptr_eq(server, slot.server()));
            place.expect("one of ours")
        }

        fn picks(&self, count: usize) -> Vec<usize> {
            (0..count).map(|_| self.place(&self.pick())).collect()
        }

        fn in_use(&self) -> Vec<u32> {
            self.servers.iter().map(|server| server.in_use()).collect()
        }

        fn granted(&self) -> Vec<Grant> {
            let notices = self.tray.take().into_iter();
            let grant = |notice| match notice {
                Notice::Granted(grant) => Some(grant),
                Notice::Failed(_) => None,
            };
            notices.filter_map(grant).collect()
        }
    }

    #[test]
    fn every_way_to_balance_finds_the_free_server_and_counts_it() {
        use Balance::{First, LeastConnections, RoundRobin, SniHash, SourceHash, TwoRandomChoices};
        for balance in [
            RoundRobin,
            LeastConnections,
            TwoRandomChoices,
            First,
            SourceHash,
            SniHash,
        ] {
            let mut backend = Backend::plain("app", servers(3));
            backend.balance = balance;
            backend
                .servers
                .iter_mut()
                .for_each(|server| server.maxconn = Some(2));
            let fixture = fixture(backend);
            let slots: Vec<Slot> = (0..6).map(|_| fixture.pick()).collect();
            assert_eq!(fixture.in_use(), [2, 2, 2], "{balance:?}");
            assert!(matches!(fixture.pool.pick(&guest(), None, &[]), Pick::Full));
            drop(slots);
            assert_eq!(fixture.in_use(), [0, 0, 0]);
        }
    }

    #[test]
    fn round_robin_honours_weights_and_workers_begin_apart() {
        let mut backend = Backend::plain("app", servers(3));
        backend.servers[0].weight = 2;
        let picks = fixture(backend).picks(400);
        let share = |server| picks.iter().filter(|pick| **pick == server).count();
        assert_eq!([share(0), share(1), share(2)], [200, 100, 100]);

        let backend = Arc::new(Backend::plain("app", servers(3)));
        let state = lone_state(&backend, Vec::new());
        let begins = |start| {
            let tray = Arc::new(Tray::default());
            let pool = Pool::new(Arc::clone(&backend), Arc::clone(&state), tray, start);
            let Pick::Slot(slot) = pool.pick(&guest(), None, &[]) else {
                panic!("a slot");
            };
            slot.server().name().to_string()
        };
        assert_eq!([begins(0), begins(1), begins(2)], ["/s0", "/s1", "/s2"]);
    }

    #[test]
    fn servers_that_are_out_of_service_get_nobody() {
        let mut backend = Backend::plain("app", servers(4));
        backend.servers[0].disabled = true;
        backend.servers[1].weight = 0;
        let fixture = fixture(backend);
        fixture.servers[2].set_health(Health::Failing);
        assert_eq!(fixture.picks(5), [3; 5]);
        fixture.servers[3].set_health(Health::Failing);
        assert!(matches!(
            fixture.pool.pick(&guest(), None, &[]),
            Pick::Nobody
        ));
        fixture.servers[2].set_health(Health::Passing);
        assert_eq!(fixture.picks(5), [2; 5]);
    }

    #[test]
    fn backups_serve_when_nobody_else_can_and_not_because_the_others_are_full() {
        let mut backend = Backend::plain("app", servers(3));
        backend.servers[0].maxconn = Some(1);
        backend.servers[1].backup = true;
        backend.servers[2].backup = true;
        let fixture = fixture(backend);
        let held = fixture.pick();
        assert_eq!(fixture.place(&held), 0);
        assert!(matches!(fixture.pool.pick(&guest(), None, &[]), Pick::Full));
        drop(held);
        fixture.servers[0].set_health(Health::Failing);
        assert_eq!(fixture.picks(4), [1, 2, 1, 2]);
    }

    #[test]
    fn a_server_that_failed_is_not_chosen_again() {
        let fixture = fixture(Backend::plain("app", servers(2)));
        let tried = [fixture.servers[0].key()];
        let Pick::Slot(slot) = fixture.pool.pick(&guest(), None, &tried) else {
            panic!("a slot");
        };
        assert_eq!(fixture.place(&slot), 1);
        let both = [fixture.servers[0].key(), fixture.servers[1].key()];
        assert!(matches!(
            fixture.pool.pick(&guest(), None, &both),
            Pick::Nobody
        ));
    }

    #[test]
    fn a_free_slot_goes_to_the_longest_waiter_and_newcomers_go_behind() {
        let mut backend = Backend::plain("app", servers(1));
        backend.servers[0].maxconn = Some(1);
        backend.queue_length = 2;
        let fixture = fixture(backend);
        let held = fixture.pick();
        let first = fixture.pool.wait(10, &[], None).unwrap();
        let second = fixture.pool.wait(11, &[], None).unwrap();
        assert!(
            fixture.pool.wait(12, &[], None).is_err(),
            "the queue is full"
        );
        assert!(fixture.granted().is_empty());
        drop(held);
        assert_eq!(fixture.in_use(), [1], "handed over");
        assert!(matches!(fixture.pool.pick(&guest(), None, &[]), Pick::Full));
        let grant = fixture.granted().remove(0);
        assert!(first.is_over_by(&grant) && !second.is_over_by(&grant));
        assert_eq!(grant.place, 10);
        drop(first);
        // Nobody took it: it goes on.
        drop(grant);
        assert!(second.is_over_by(&fixture.granted()[0]));
        assert_eq!(fixture.in_use(), [0]);
        assert_eq!(fixture.pool.state.hand_overs(), 2);
    }

    /// Two servers with a slot each, and a queue for one.
    fn narrow() -> (Fixture, [u64; 2]) {
        let mut backend = Backend::plain("app", servers(2));
        backend.queue_length = 1;
        for server in &mut backend.servers {
            server.maxconn = Some(1);
        }
        let fixture = fixture(backend);
        let keys = [fixture.servers[0].key(), fixture.servers[1].key()];
        (fixture, keys)
    }

    #[test]
    fn who_is_sent_on_keeps_its_place_and_is_not_refused() {
        for waits_first in [false, true] {
            let (fixture, keys) = narrow();
            let mut ours = fixture.pick();
            let other = fixture.pick();
            if waits_first {
                let wait = fixture.pool.wait(10, &[], None).unwrap();
                drop(ours);
                ours = fixture.granted().remove(0).slot.unwrap();
                wait.end();
            }
            let tried = [keys[fixture.place(&ours)]];
            let newer = fixture.pool.wait(11, &tried, None).unwrap();
            assert!(fixture.pool.wait(12, &[], None).is_err(), "it is full");
            let arrival = ours.arrival();
            drop(ours);
            let sent_on = fixture.pool.wait(10, &tried, Some(arrival)).unwrap();
            drop(other);
            let grants = fixture.granted();
            assert!(sent_on.is_over_by(&grants[0]), "it came first");
            assert!(!newer.is_over_by(&grants[0]) && grants.len() == 1);
        }
    }

    #[test]
    fn a_newcomer_may_have_what_all_who_wait_cannot_use() {
        let (fixture, keys) = narrow();
        let (first, _second) = (fixture.pick(), fixture.pick());
        let tried = [keys[fixture.place(&first)]];
        let picky = fixture.pool.wait(10, &tried, None).unwrap();
        drop(first);
        assert!(fixture.granted().is_empty(), "free, and of no use");
        let newcomer = fixture.pool.wait(11, &[], None).unwrap();
        let grants = fixture.granted();
        assert!(newcomer.is_over_by(&grants[0]) && grants[0].slot.is_some());
        assert!(fixture.pool.wait(12, &[], None).is_err(), "full as before");
        assert_eq!(fixture.pool.state.waiting(), 1);
        drop(picky);
    }

    #[test]
    fn who_leaves_the_queue_is_passed_over() {
        let mut backend = Backend::plain("app", servers(1));
        backend.servers[0].maxconn = Some(1);
        let fixture = fixture(backend);
        let held = fixture.pick();
        let first = fixture.pool.wait(10, &[], None).unwrap();
        let second = fixture.pool.wait(11, &[], None).unwrap();
        drop(first);
        assert_eq!(fixture.pool.state.waiting(), 1);
        drop(held);
        assert!(second.is_over_by(&fixture.granted()[0]));
    }

    #[test]
    fn who_waits_is_told_when_no_server_is_left_and_served_when_one_is_back() {
        let mut backend = Backend::plain("app", servers(2));
        backend
            .servers
            .iter_mut()
            .for_each(|server| server.maxconn = Some(1));
        let fixture = fixture(backend);
        let held = [fixture.pick(), fixture.pick()];
        let first = fixture.pool.wait(10, &[], None).unwrap();
        let tried = [fixture.servers[0].key()];
        let second = fixture.pool.wait(11, &tried, None).unwrap();
        fixture.servers[1].set_health(Health::Failing);
        let grants = fixture.granted();
        assert!(second.is_over_by(&grants[0]) && grants[0].slot.is_none());
        assert_eq!(grants.len(), 1, "the first still waits");
        drop(held);
        let grants = fixture.granted();
        assert!(first.is_over_by(&grants[0]) && grants[0].slot.is_some());
        drop(grants);

        let held = fixture.pick();
        let third = fixture.pool.wait(12, &[], None).unwrap();
        fixture.servers[0].set_health(Health::Failing);
        let grants = fixture.granted();
        assert!(third.is_over_by(&grants[0]) && grants[0].slot.is_none());
        drop(held);
        assert_eq!(fixture.in_use(), [0, 0]);
    }

    #[test]
    fn the_limit_grows_with_the_queue() {
        let mut backend = Backend::plain("app", servers(1));
        backend.servers[0].minconn = Some(2);
        backend.servers[0].maxconn = Some(10);
        backend.queue_length = 4;
        let fixture = fixture(backend);
        let server = &fixture.servers[0];
        assert_eq!(server.limit(), 2);
        let mut held = vec![fixture.pick(), fixture.pick()];
        let mut waits = Vec::new();
        // One waits: 2 + 8 * 1 / 4 = 4, so it is served at once, and so is the next.
        for in_use in [3, 4] {
            waits.push(fixture.pool.wait(0, &[], None).unwrap());
            held.extend(fixture.granted().remove(0).slot);
            assert_eq!((server.in_use(), server.limit()), (in_use, 2));
        }
        waits.push(fixture.pool.wait(0, &[], None).unwrap());
        assert_eq!((server.limit(), fixture.granted().len()), (4, 0));
        waits.push(fixture.pool.wait(0, &[], None).unwrap());
        // Two wait: the limit is 6 for the first of them, and then 4 again.
        assert_eq!((server.limit(), server.in_use()), (4, 5));
    }

    #[test]
    fn a_client_that_sticks_has_its_server_again_while_that_has_room() {
        let mut backend = Backend::plain("app", servers(8));
        backend.stick = StickBy::TlsSession;
        backend.stick_entries = 100;
        backend.servers[5].maxconn = Some(1);
        let fixture = fixture(backend);
        let now = Duration::from_secs(1);
        assert_eq!(fixture.pool.recall(&guest(), now), None);
        fixture.pool.learn(&guest(), &fixture.servers[5], now);
        let had = fixture.pool.recall(&guest(), now);
        let Pick::Slot(slot) = fixture.pool.pick(&guest(), had, &[]) else {
            panic!("a slot");
        };
        assert_eq!(fixture.place(&slot), 5);
        let Pick::Slot(other) = fixture.pool.pick(&guest(), had, &[]) else {
            panic!("a slot");
        };
        assert_ne!(fixture.place(&other), 5, "full: balanced as usual");
        drop(slot);
        fixture.servers[5].set_health(Health::Failing);
        let Pick::Slot(other) = fixture.pool.pick(&guest(), had, &[]) else {
            panic!("a slot");
        };
        assert_ne!(
            fixture.place(&other),
            5,
            "out of service: balanced as usual"
        );
    }

    #[test]
    fn while_others_wait_for_one_server_the_rest_are_balanced_and_stuck_to_as_ever() {
        let mut backend = Backend::plain("app", servers(3));
        backend.balance = Balance::SourceHash;
        backend.servers[2].maxconn = Some(1);
        let fixture = fixture(backend);
        let keys: Vec<u64> = fixture.servers.iter().map(|one| one.key()).collect();
        let held = Slot::claim(&fixture.servers[2]).unwrap();
        let hashed = fixture.picks(1);
        let waits = fixture.pool.wait(10, &keys[..2], None).unwrap();
        for index in [0, 1] {
            let _others = [(); 3].map(|()| Slot::claim(&fixture.servers[index]).unwrap());
            assert_eq!(fixture.picks(1), hashed);
            let Pick::Slot(slot) = fixture.pool.pick(&guest(), Some(keys[index]), &[]) else {
                panic!("it is free");
            };
            assert_eq!(fixture.place(&slot), index);
        }
        let only_that = fixture.pool.pick(&guest(), Some(keys[2]), &keys[..2]);
        assert!(matches!(only_that, Pick::Full), "behind who waits");
        drop(held);
        assert!(waits.is_over_by(&fixture.granted()[0]));
    }

    #[test]
    fn sources_take_turns_within_their_family() {
        let sources = ["192.0.2.1", "::1", "192.0.2.2"].map(|one| one.parse().unwrap());
        let backend = Backend {
            source: sources.to_vec(),
            ..Backend::plain("app", servers(1))
        };
        let pool = fixture(backend).pool;
        let from = |to: &str| {
            let to = ServerAddress::Tcp(to.parse().unwrap());
            pool.source(&to).unwrap().to_string()
        };
        let turns = [(); 3].map(|()| from("127.0.0.1:80"));
        assert_eq!(turns, ["192.0.2.1", "192.0.2.2", "192.0.2.1"]);
        assert_eq!(from("[::2]:80"), "::1");
        assert_eq!(pool.source(&ServerAddress::Unix("/app".into())), None);
        let plain = fixture(Backend::plain("app", servers(1))).pool;
        let to = ServerAddress::Tcp("127.0.0.1:80".parse().unwrap());
        assert_eq!(plain.source(&to), None);
    }

    #[test]
    fn addresses_that_change_are_seen_at_the_next_look() {
        let fixture = fixture(Backend::plain("app", servers(1)));
        let server = &fixture.servers[0];
        let before = fixture.pool.addresses(server);
        assert!(Rc::ptr_eq(&before, &fixture.pool.addresses(server)));
        server.set_addresses(&[ServerAddress::Unix("/other".into())]);
        assert_eq!(
            *fixture.pool.addresses(server),
            [ServerAddress::Unix("/other".into())]
        );
        server.set_addresses(&[]);
        assert_eq!(fixture.pool.addresses(server).len(), 1, "none is no answer");
    }
}
