//! Nodes with their own clocks, on a network that loses, repeats, reorders, delays and replays.
//!
//! The seed determines everything: the same seed gives the same run, datagram by datagram. Each node has a real
//! session table. Each accepted record is compared with the offered ones: never twice, changed or from a stranger.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use becket_cluster::replica::{
    Boot, DropCause, DumpSource, PeerName, PeerRecord, PeerState, PeerStick, Replica,
    ReplicaLimits, ReplicaStatus, ServerTag, SessionRecord, Sink, StickCursor,
};
use becket_proto::bounded_table::Cursor;
use becket_proto::session::{PolicyTag, Session};
use becket_proto::session_table::{Limits as TableLimits, Lives, Lookup, SessionTable};
use becket_proto::ticket::{NodeId, Origin, OriginId, UnixSeconds};

use crate::toy_vault::{Audit, Random, ToyVault};

/// Default secret of all nodes: a name and a value.
pub(crate) const SECRET: (u32, u64) = (7, 0x1234_5678);
/// Replacement of the default secret.
pub(crate) const OTHER: (u32, u64) = (8, 0x8765_4321);
pub(crate) const POLICY: PolicyTag = PolicyTag(0xabcd);
pub(crate) const TTL: Duration = Duration::from_secs(3000);

type Table = SessionTable<BuildHasherDefault<DefaultHasher>>;

pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    pub(crate) network: Network,
    pub(crate) audit: Rc<RefCell<Audit>>,
    pub(crate) random: Random,
    offered: u64,
}

pub(crate) struct Node {
    pub(crate) replica: Replica<ToyVault>,
    pub(crate) vault: ToyVault,
    pub(crate) address: SocketAddr,
    pub(crate) name: PeerName,
    pub(crate) running: bool,
    pub(crate) limits: ReplicaLimits,
    secrets: Vec<(u32, u64)>,
    list: Vec<SocketAddr>,
    clock: Clock,
    pub(crate) sink: TestSink,
    /// The current wake-up; others are outdated.
    wake: Duration,
}

/// Records that a node holds, and how often each arrived.
pub(crate) struct TestSink {
    table: Table,
    now: Duration,
    news: HashMap<Vec<u8>, u32>,
    /// Clients by origin, and the server that each was sent to.
    pub(crate) sticks: BTreeMap<u64, ServerTag>,
    pub(crate) taken: u64,
    pub(crate) answer: Result<(), DropCause>,
    /// The last record that is not a session.
    pub(crate) last: Option<String>,
    /// Minimum number of sessions that it reports.
    pub(crate) claims: u32,
}

/// A clock with an arbitrary origin and a slightly wrong rate.
#[derive(Clone, Copy)]
struct Clock {
    origin: Duration,
    /// Rate in thousandths of true time.
    rate: u32,
}

pub(crate) struct Network {
    pub(crate) now: Duration,
    pub(crate) loss_percent: u64,
    pub(crate) repeat_percent: u64,
    pub(crate) damage_percent: u64,
    /// Datagrams that are recorded and sent again later, from any address.
    pub(crate) replay_percent: u64,
    pub(crate) delay_at_most: Duration,
    /// Numbers of the nodes on one side of a partition.
    pub(crate) island: Vec<usize>,
    /// Records all datagrams without sending them again.
    pub(crate) tap: bool,
    pub(crate) recorded: Vec<(SocketAddr, SocketAddr, Vec<u8>)>,
    pub(crate) lost: u64,
    pub(crate) repeated: u64,
    random: Random,
    events: BinaryHeap<Reverse<Event>>,
    serial: u64,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at: Duration,
    serial: u64,
    what: What,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Wake(usize),
    Arrive {
        from: SocketAddr,
        to: SocketAddr,
        bytes: Vec<u8>,
    },
}

impl Cluster {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        Self {
            nodes: Vec::new(),
            network: Network::new(random.next()),
            audit: Rc::default(),
            random,
            offered: 0,
        }
    }

    /// A cluster of `count` nodes that all list each other, on a good network.
    pub(crate) fn full(seed: u64, count: usize) -> Self {
        let mut cluster = Self::new(seed);
        for _ in 0..count {
            cluster.add(&[SECRET]);
        }
        let all: Vec<usize> = (0..count).collect();
        for node in 0..count {
            cluster.list(node, &all);
        }
        cluster
    }

    /// Adds a node with an empty list; returns its number.
    pub(crate) fn add(&mut self, secrets: &[(u32, u64)]) -> usize {
        let number = self.nodes.len();
        let name = PeerName {
            node: NodeId(number as u16 + 1),
            boot: Boot(self.random.next()),
        };
        let vault = ToyVault::new(self.random.next(), secrets, &self.audit);
        let limits = ReplicaLimits {
            queue_bytes: 64 * 1024,
            ..ReplicaLimits::default()
        };
        let clock = Clock {
            origin: Duration::from_secs(self.random.below(1_000_000)),
            rate: 900 + self.random.below(201) as u32,
        };
        self.nodes.push(Node {
            replica: Replica::new(name.node, name.boot, limits, vault.clone()),
            vault,
            address: SocketAddr::from(([10, 0, 0, number as u8 + 1], 7000)),
            name,
            running: true,
            limits,
            secrets: secrets.to_vec(),
            list: Vec::new(),
            clock,
            sink: TestSink::new(),
            wake: Duration::MAX,
        });
        self.settle(number);
        number
    }

    /// Sets the list of a node to others, by number.
    pub(crate) fn list(&mut self, node: usize, others: &[usize]) {
        let list: Vec<SocketAddr> = others.iter().map(|n| self.nodes[*n].address).collect();
        self.list_addresses(node, list);
    }

    pub(crate) fn list_addresses(&mut self, node: usize, list: Vec<SocketAddr>) {
        self.nodes[node].replica.set_peers(&list);
        self.nodes[node].list = list;
        self.settle(node);
    }

    pub(crate) fn set_secrets(&mut self, node: usize, secrets: &[(u32, u64)]) {
        let seed = self.random.next();
        let at = &mut self.nodes[node];
        at.secrets = secrets.to_vec();
        at.vault = ToyVault::new(seed, secrets, &self.audit);
        at.replica.set_vault(at.vault.clone());
        self.settle(node);
    }

    /// Restarts a node with other limits.
    pub(crate) fn set_limits(&mut self, node: usize, change: impl FnOnce(&mut ReplicaLimits)) {
        change(&mut self.nodes[node].limits);
        self.restart(node);
    }

    /// Ends a node's process without a goodbye.
    pub(crate) fn kill(&mut self, node: usize) {
        self.nodes[node].running = false;
    }

    /// Ends a node's process with a goodbye.
    pub(crate) fn leave(&mut self, node: usize) {
        let now = self.local(node);
        let at = &mut self.nodes[node];
        let (network, from) = (&mut self.network, at.address);
        at.replica.leave(now, &mut |to, bytes| {
            network.send(from, to, bytes);
            true
        });
        at.running = false;
    }

    /// Restarts a node's process: it knows nothing, and its clock has another origin.
    pub(crate) fn restart(&mut self, node: usize) {
        let (boot, seed) = (Boot(self.random.next()), self.random.next());
        let origin = Duration::from_secs(self.random.below(1_000_000));
        let at = &mut self.nodes[node];
        at.name.boot = boot;
        at.vault = ToyVault::new(seed, &at.secrets, &self.audit);
        at.replica = Replica::new(at.name.node, boot, at.limits, at.vault.clone());
        at.replica.set_peers(&at.list);
        at.sink = TestSink::new();
        at.clock.origin = origin;
        at.running = true;
        self.settle(node);
    }

    /// Creates a session on a node: in its table, and offered to its peers. Returns its id.
    pub(crate) fn offer(&mut self, node: usize) -> Vec<u8> {
        let id = self.offer_later(node);
        self.settle(node);
        id
    }

    /// Like [`Self::offer`], but the record is sent at the next poll.
    pub(crate) fn offer_later(&mut self, node: usize) -> Vec<u8> {
        self.offered += 1;
        let id = self.offered.to_be_bytes().to_vec();
        let now = self.local(node);
        let at = &mut self.nodes[node];
        let session = SessionRecord {
            policy: POLICY,
            id: &id,
            ttl: TTL,
            age: Duration::ZERO,
            origin: OriginId(self.offered),
            state: &state_of(self.offered),
        };
        at.sink.put(&session, now);
        at.replica.offer(&PeerRecord::New(session));
        id
    }

    /// Delivers a datagram to a node, as if it came from this address.
    pub(crate) fn deliver(&mut self, node: usize, from: SocketAddr, bytes: &[u8]) {
        let now = self.local(node);
        let at = &mut self.nodes[node];
        let opens = self.audit.borrow().opens;
        at.sink.now = now;
        at.replica
            .receive(from, &mut bytes.to_vec(), now, &mut at.sink);
        assert!(
            self.audit.borrow().opens <= opens + 1,
            "more than one open for one datagram"
        );
        self.settle(node);
    }

    /// Lets `time` of true time pass.
    pub(crate) fn run(&mut self, time: Duration) {
        let end = self.network.now + time;
        while let Some(event) = self.network.next_before(end) {
            match event {
                What::Wake(node) => {
                    if self.nodes[node].running && self.nodes[node].wake <= self.network.now {
                        self.settle(node);
                    }
                }
                What::Arrive { from, to, bytes } => self.arrive(from, to, &bytes),
            }
        }
        self.network.now = end;
    }

    fn arrive(&mut self, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        for node in 0..self.nodes.len() {
            let addressed = self.nodes[node].address == to;
            let sender = self.nodes.iter().position(|node| node.address == from);
            let apart = sender.is_some_and(|sender| {
                self.network.island.contains(&sender) != self.network.island.contains(&node)
            });
            if addressed && self.nodes[node].running && !apart {
                self.deliver(node, from, bytes);
            }
        }
    }

    /// Polls a node until it has nothing to do now, and sets its alarm.
    pub(crate) fn settle(&mut self, node: usize) {
        let now = self.local(node);
        let at = &mut self.nodes[node];
        if !at.running {
            return;
        }
        at.sink.now = now;
        let (network, from) = (&mut self.network, at.address);
        let mut send = |to: SocketAddr, bytes: &[u8]| {
            assert!(bytes.len() <= 1400);
            network.send(from, to, bytes);
            true
        };
        let mut turns = 0;
        let deadline = loop {
            at.replica.poll(now, &mut at.sink, &mut send);
            let deadline = at.replica.next_deadline();
            if deadline.is_none_or(|deadline| deadline > now) {
                break deadline;
            }
            turns += 1;
            assert!(turns < 1000, "something is always due and never done");
        };
        if cfg!(debug_assertions) {
            at.replica.check_invariants();
        }
        if let Some(deadline) = deadline {
            let wait = at.clock.to_true(deadline - now);
            at.wake = self.network.now + wait;
            self.network.push(at.wake, What::Wake(node));
        }
    }

    pub(crate) fn local(&self, node: usize) -> Duration {
        self.nodes[node].clock.at(self.network.now)
    }

    pub(crate) fn status(&self, node: usize) -> ReplicaStatus {
        let now = self.local(node);
        self.nodes[node].replica.status(now)
    }

    /// Returns the processes that a node considers live.
    pub(crate) fn live(&self, node: usize) -> Vec<PeerName> {
        let peers = self.status(node).peers.into_iter();
        let live = peers.filter(|peer| peer.state == PeerState::Live);
        live.map(|peer| PeerName {
            node: peer.node,
            boot: peer.boot,
        })
        .collect()
    }

    /// Returns whether a node holds a session.
    pub(crate) fn holds(&self, node: usize, id: &[u8]) -> bool {
        let now = self.local(node);
        let sink = &self.nodes[node].sink;
        matches!(sink.table.get(POLICY, id, now), Lookup::Hit(_))
    }

    /// Returns by how many thousandths of true time the rates of the clocks differ.
    pub(crate) fn skew(&self) -> u32 {
        let rates = || self.nodes.iter().map(|node| node.clock.rate);
        rates().max().unwrap_or(0) - rates().min().unwrap_or(0)
    }

    /// Returns how often a session arrived at a node as a new one.
    pub(crate) fn came(&self, node: usize, id: &[u8]) -> u32 {
        let sink = &self.nodes[node].sink;
        sink.news.get(id).copied().unwrap_or(0)
    }
}

impl Network {
    fn new(seed: u64) -> Self {
        Self {
            now: Duration::from_secs(1),
            loss_percent: 0,
            repeat_percent: 0,
            damage_percent: 0,
            replay_percent: 0,
            delay_at_most: Duration::from_millis(2),
            island: Vec::new(),
            tap: false,
            recorded: Vec::new(),
            lost: 0,
            repeated: 0,
            random: Random(seed),
            events: BinaryHeap::new(),
            serial: 0,
        }
    }

    fn send(&mut self, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        if self.tap || self.random.percent(self.replay_percent) && self.recorded.len() < 1000 {
            self.recorded.push((from, to, bytes.to_vec()));
        }
        if let Some(pick) = (!self.recorded.is_empty() && self.random.percent(self.replay_percent))
            .then(|| self.random.below(self.recorded.len() as u64))
        {
            let (mut from, to, bytes) = self.recorded[pick as usize].clone();
            if self.random.percent(50) {
                from = SocketAddr::from(([192, 0, 2, 1], 9));
            }
            self.carry(from, to, bytes);
        }
        if self.random.percent(self.loss_percent) {
            self.lost += 1;
            return;
        }
        if self.random.percent(self.repeat_percent) {
            self.repeated += 1;
            self.carry(from, to, bytes.to_vec());
        }
        let mut bytes = bytes.to_vec();
        if self.random.percent(self.damage_percent) {
            let at = self.random.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << self.random.below(8);
        }
        self.carry(from, to, bytes);
    }

    fn carry(&mut self, from: SocketAddr, to: SocketAddr, bytes: Vec<u8>) {
        let delay = self.random.below(self.delay_at_most.as_nanos() as u64);
        let at = self.now + Duration::from_nanos(delay);
        self.push(at, What::Arrive { from, to, bytes });
    }

    fn push(&mut self, at: Duration, what: What) {
        self.serial += 1;
        let serial = self.serial;
        self.events.push(Reverse(Event { at, serial, what }));
    }

    fn next_before(&mut self, end: Duration) -> Option<What> {
        if self.events.peek()?.0.at > end {
            return None;
        }
        let event = self.events.pop()?.0;
        self.now = self.now.max(event.at);
        Some(event.what)
    }
}

impl Clock {
    fn at(self, truth: Duration) -> Duration {
        self.origin + truth * self.rate / 1000
    }

    /// Rounded so that the alarm never rings early.
    fn to_true(self, local: Duration) -> Duration {
        local * 1000 / self.rate + Duration::from_nanos(2)
    }
}

impl TestSink {
    fn new() -> Self {
        let limits = TableLimits {
            entries: 100_000,
            shards: 4,
            ..TableLimits::default()
        };
        Self {
            table: SessionTable::new(limits, BuildHasherDefault::default()),
            now: Duration::ZERO,
            news: HashMap::new(),
            sticks: BTreeMap::new(),
            taken: 0,
            answer: Ok(()),
            last: None,
            claims: 0,
        }
    }

    fn put(&self, session: &SessionRecord<'_>, now: Duration) {
        let stored = Session::new(
            session.state.to_vec(),
            Origin {
                id: session.origin,
                at: UnixSeconds(0),
            },
        );
        let ttl = session.ttl;
        self.table
            .insert(session.policy, session.id, stored, Lives { now, ttl });
    }

    pub(crate) fn len(&self) -> usize {
        self.table.entries()
    }
}

impl Sink for TestSink {
    fn take(&mut self, _: PeerName, record: PeerRecord<'_>) -> Result<(), DropCause> {
        self.taken += 1;
        let session = match record {
            PeerRecord::New(session) => {
                let times = self.news.entry(session.id.to_vec()).or_default();
                *times += 1;
                assert_eq!(*times, 1, "a record was taken twice");
                session
            }
            PeerRecord::Sync(session) => session,
            PeerRecord::Del { policy, id } => {
                self.table.remove(policy, id);
                return self.answer;
            }
            PeerRecord::Stick(stick) | PeerRecord::Stuck(stick) => {
                self.last = Some(format!("{record:?}"));
                self.sticks.entry(stick.origin.0).or_insert(stick.server);
                return self.answer;
            }
            PeerRecord::Acme(_) => panic!("no node shares certificates"),
        };
        assert_eq!(session.policy, POLICY);
        assert_eq!(
            session.state,
            state_of(session.origin.0),
            "a record was changed"
        );
        assert_eq!(session.id, session.origin.0.to_be_bytes());
        self.put(&session, self.now);
        self.answer
    }
}

impl DumpSource for TestSink {
    fn visit(
        &mut self,
        from: Cursor,
        _: Duration,
        at_most: usize,
        show: &mut dyn FnMut(SessionRecord<'_>),
    ) -> Option<Cursor> {
        self.table.visit(from, self.now, at_most, |visited| {
            show(SessionRecord {
                policy: visited.policy,
                id: visited.id,
                ttl: visited.remaining,
                age: Duration::from_secs(1),
                origin: visited.session.origin.id,
                state: &visited.session.state,
            });
        })
    }

    fn visit_sticks(
        &mut self,
        from: StickCursor,
        _: Duration,
        at_most: usize,
        show: &mut dyn FnMut(PeerStick),
    ) -> Option<StickCursor> {
        let shown = self.sticks.iter().skip(from.backend).take(at_most);
        for (origin, server) in shown {
            show(PeerStick {
                origin: OriginId(*origin),
                server: *server,
                life: TTL,
            });
        }
        let backend = from.backend + at_most;
        (backend < self.sticks.len()).then_some(StickCursor { backend, ..from })
    }

    fn held(&self) -> u32 {
        self.claims.max(self.table.entries() as u32)
    }
}

/// Returns a state that differs from every other.
fn state_of(serial: u64) -> Vec<u8> {
    let mut random = Random(serial);
    let len = 80 + random.below(120);
    (0..len).map(|_| random.next() as u8).collect()
}

/// Counters of events, which show that a simulation covers all cases.
#[derive(Default)]
pub(crate) struct Census(pub(crate) BTreeMap<&'static str, u64>);

impl Census {
    pub(crate) fn note(&mut self, what: &'static str, count: u64) {
        *self.0.entry(what).or_default() += count;
    }
}
