//! Nodes in one process, over UDP on loopback.

#![expect(
    clippy::unwrap_used,
    reason = "a test, in which the lint sees no test functions"
)]

use std::collections::{HashMap, HashSet};
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use becket_cluster::replica::{Boot, DropCause, PeerState, ServerTag, StickCursor, WarmUp};
use becket_cluster::{
    ClusterStatus, Host as Parts, Membership, NameLookup, Outbox, Peer, PeerStick, Resolve, Secret,
    SessionEvent, Settings, StickMemory, bind,
};
use becket_proto::session::{PolicyTag, Session, SessionName};
use becket_proto::session_table::{Limits, Lives, Lookup, SessionTable};
use becket_proto::ticket::{NodeId, Origin, OriginId, SecretId, UnixSeconds};
use becket_sys::clock::Clock;
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::{sleep, timeout};

/// Policy of the routes.
const KNOWN: PolicyTag = PolicyTag(0xabab_abab_abab_abab);
const UNKNOWN: PolicyTag = PolicyTag(1);

/// A node without known peers.
struct Site {
    bound: UdpSocket,
    settings: Settings,
}

/// A running node.
struct Host {
    address: SocketAddr,
    clock: Clock,
    table: Arc<SessionTable>,
    sticks: Arc<Sticks>,
    membership: Membership,
    outbox: Outbox,
    settings: Settings,
}

/// Remembers everything permanently.
#[derive(Debug, Default)]
struct Sticks(Mutex<HashMap<OriginId, ServerTag>>);

impl StickMemory for Sticks {
    fn learn_from_peer(&self, stick: &PeerStick, _: bool, _: Duration) -> bool {
        let before = self.0.lock().unwrap().insert(stick.origin, stick.server);
        before != Some(stick.server)
    }

    fn visit_sticks(
        &self,
        from: StickCursor,
        _: Duration,
        at_most: usize,
        show: &mut dyn FnMut(&PeerStick, Duration),
    ) -> Option<StickCursor> {
        let sticks = self.0.lock().unwrap();
        for (origin, server) in sticks.iter().skip(from.backend).take(at_most) {
            show(&stick(origin.0, server.0), Duration::ZERO);
        }
        let next = StickCursor {
            backend: from.backend + at_most,
            ..from
        };
        (next.backend < sticks.len()).then_some(next)
    }
}

#[derive(Debug)]
struct NoNames;

impl Resolve for NoNames {
    fn look_up(&self, _: &str) -> Pin<Box<dyn Future<Output = NameLookup> + Send>> {
        Box::pin(async { Err("no names here".to_owned()) })
    }

    fn again(&self, _: Option<Duration>, _: bool) -> Option<Duration> {
        None
    }
}

fn secret(byte: u8) -> Secret {
    Secret {
        id: SecretId(byte.into()),
        key: [byte; 32].into(),
    }
}

fn stick(origin: u64, server: u64) -> PeerStick {
    PeerStick {
        origin: OriginId(origin),
        server: ServerTag(server),
        life: Duration::from_secs(300),
    }
}

impl Site {
    fn new(node: u16, byte: u8) -> Self {
        let mut settings = Settings {
            node: NodeId(node),
            secrets: vec![secret(byte)],
            listen: ([127, 0, 0, 1], 0).into(),
            peers: Vec::new(),
            resolve_interval: None,
            policies: HashSet::from([KNOWN]),
            id_lifetime: Duration::from_secs(300),
            max_age: Duration::from_secs(3600),
            stick_lifetime: Duration::from_secs(300),
            certificates: Vec::new(),
            has_on_demand: false,
        };
        let bound = bind(&settings, None).unwrap();
        settings.listen = bound.local_addr().unwrap();
        Self { bound, settings }
    }

    fn address(&self) -> SocketAddr {
        self.settings.listen
    }

    fn start(mut self, peers: &[SocketAddr]) -> Host {
        let address = self.address();
        self.settings.peers = peers.iter().map(peer).collect();
        let (clock, sticks) = (Clock::start(), Arc::<Sticks>::default());
        let table = Arc::new(SessionTable::new(Limits::default(), Default::default()));
        let parts = Parts {
            table: Arc::clone(&table),
            sticks: Arc::<Sticks>::clone(&sticks),
            resolver: Arc::new(NoNames),
            clock,
            workers: 1,
            sharing: unbounded_channel().0,
        };
        let membership = Membership::new(self.bound, self.settings.clone(), parts);
        let mut membership = membership.unwrap();
        membership.start();
        Host {
            address,
            clock,
            table,
            sticks,
            outbox: membership.outboxes().remove(0),
            membership,
            settings: self.settings,
        }
    }
}

fn peer(address: &SocketAddr) -> Peer {
    Peer {
        name: address.to_string().into(),
        lookup: None,
        addresses: vec![*address],
    }
}

impl Host {
    fn keep(&self, policy: PolicyTag, id: &[u8]) -> SessionName {
        let now = self.clock.now();
        let born = UnixSeconds(now.unix.as_secs() - 100);
        let session = Session::new(
            b"state".to_vec(),
            Origin {
                id: OriginId(9),
                at: born,
            },
        );
        let lives = Lives {
            now: now.mono,
            ttl: Duration::from_secs(300),
        };
        assert!(self.table.insert(policy, id, session, lives));
        SessionName::new(policy, id).unwrap()
    }

    fn make(&self, policy: PolicyTag, id: &[u8]) {
        self.outbox.leave(SessionEvent::Made(self.keep(policy, id)));
    }

    fn end(&self, policy: PolicyTag, id: &[u8]) {
        self.table.remove(policy, id);
        let name = SessionName::new(policy, id).unwrap();
        self.outbox.leave(SessionEvent::Ended(name));
    }

    /// Simulates a worker that sends a client with this origin to this server.
    fn send(&self, origin: u64, server: u64) {
        let stick = stick(origin, server);
        self.sticks.learn_from_peer(&stick, false, Duration::ZERO);
        self.outbox.leave(SessionEvent::Stuck(stick));
    }

    fn server_of(&self, origin: u64) -> Option<u64> {
        let sticks = self.sticks.0.lock().unwrap();
        sticks.get(&OriginId(origin)).map(|server| server.0)
    }

    fn holds(&self, id: &[u8]) -> Option<Session> {
        let now = self.clock.now().mono;
        match self.table.get(KNOWN, id, now) {
            Lookup::Hit(session) => Some(session),
            _ => None,
        }
    }

    fn status(&self) -> ClusterStatus {
        self.membership.node().status(self.clock.now())
    }

    fn is_live(&self) -> bool {
        self.status()
            .replica
            .peers
            .iter()
            .any(|peer| peer.state == PeerState::Live)
    }

    fn reload(&mut self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.settings);
        self.membership.reload(self.settings.clone());
    }
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let wait = async {
        while !is_so() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    let done = timeout(Duration::from_secs(30), wait).await;
    assert!(done.is_ok(), "waited in vain: {what}");
}

async fn two() -> (Host, Host) {
    let (a, b) = (Site::new(1, 7), Site::new(2, 7));
    let addresses = [a.address(), b.address()];
    let (a, b) = (a.start(&addresses), b.start(&addresses));
    until("both are peers", || a.is_live() && b.is_live()).await;
    (a, b)
}

#[tokio::test]
async fn a_session_is_replicated_unchanged_and_removed_when_it_ends() {
    let (a, b) = two().await;
    a.make(KNOWN, b"one");
    until("it is there", || b.holds(b"one").is_some()).await;
    let (here, there) = (a.holds(b"one").unwrap(), b.holds(b"one").unwrap());
    assert_eq!(
        (&*here.state, here.origin.id),
        (&*there.state, there.origin.id)
    );
    assert!(
        here.origin.at.0.abs_diff(there.origin.at.0) <= 2,
        "no younger by travelling"
    );
    b.make(KNOWN, b"two");
    until("the other way", || a.holds(b"two").is_some()).await;
    a.end(KNOWN, b"one");
    until("it is gone", || b.holds(b"one").is_none()).await;
    assert_eq!(b.status().sessions.ended, 1);
    assert_eq!(a.status().faults, [""; 0]);
}

#[tokio::test]
async fn a_stick_entry_is_replicated_to_another_node() {
    let (a, b) = two().await;
    a.send(77, 5);
    until("it is known there", || b.server_of(77) == Some(5)).await;
    assert_eq!(a.status().sessions.sticks_told, 1);
    assert_eq!(b.status().sessions.sticks, 1);
}

#[tokio::test]
async fn a_late_node_receives_existing_sessions() {
    let (a, b) = (Site::new(1, 7), Site::new(2, 7));
    let addresses = [a.address(), b.address()];
    let a = a.start(&addresses);
    for id in 0..500_u32 {
        a.keep(KNOWN, &id.to_be_bytes());
    }
    let b = b.start(&addresses);
    until("it has all of them", || b.table.entries() == 500).await;
    until("and knows it", || {
        b.status().replica.warm_up == WarmUp::Done
    })
    .await;
}

#[tokio::test]
async fn a_node_with_a_wrong_secret_receives_nothing_and_is_reported() {
    let (a, stranger) = (Site::new(1, 7), Site::new(2, 8));
    let addresses = [a.address(), stranger.address()];
    let (a, stranger) = (a.start(&addresses), stranger.start(&addresses));
    a.make(KNOWN, b"one");
    until("it is named", || !a.status().replica.refused.is_empty()).await;
    let status = a.status();
    assert_eq!(status.replica.refused[0].address, stranger.address);
    assert_eq!(status.replica.refused[0].cause, DropCause::UnknownSecret);
    assert_eq!(status.replica.refused[0].secret, secret(8).id);
    let fault = format!("{}: joins with secret", stranger.address);
    assert!(status.faults[0].starts_with(&fault), "{:?}", status.faults);
    assert!(!a.is_live() && stranger.table.entries() == 0);
}

#[tokio::test]
async fn a_session_of_an_unknown_policy_is_rejected_and_its_node_reported() {
    let (a, b) = two().await;
    a.make(UNKNOWN, b"one");
    a.make(KNOWN, b"two");
    until("what comes after it is there", || b.holds(b"two").is_some()).await;
    assert_eq!(b.table.entries(), 1);
    let status = b.status();
    assert_eq!(status.unknown_policies[0].node, 1);
    assert_eq!(status.unknown_policies[0].policy, "0000000000000001");
    assert_eq!(status.replica.total.drops.of(DropCause::UnknownPolicy), 1);
}

#[tokio::test]
async fn a_garbage_flood_is_counted_and_does_not_disrupt_peers() {
    let (a, b) = two().await;
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut sent = 0;
    for round in 0..200_u8 {
        for len in [0, 1, 15, 16, 60, 1400, 1401, 4000] {
            let mut garbage = vec![round; len];
            // Half of them begin with our signature; the kernel drops all others.
            let ours = round % 2 == 0 && len > 16;
            if ours {
                garbage[..4].copy_from_slice(b"BKT3");
            }
            let is_sent = stranger.send_to(&garbage, a.address).is_ok();
            sent += u64::from(ours && is_sent);
        }
        a.make(KNOWN, &[round, 1]);
        b.make(KNOWN, &[round, 2]);
        // Time to receive: a datagram that does not fit into the socket's buffer is neither counted nor kept.
        sleep(Duration::from_millis(1)).await;
    }
    until("all of it is counted", || {
        a.status().replica.total.drops.sum() >= sent
    })
    .await;
    assert!(a.status().replica.total.drops.of(DropCause::Garbage) == 0);
    for round in 0..200 {
        until("b has it", || b.holds(&[round, 1]).is_some()).await;
        until("a has it", || a.holds(&[round, 2]).is_some()).await;
    }
}

#[tokio::test]
async fn reloads_rotate_the_secret_without_losing_the_pair() {
    let (mut a, mut b) = two().await;
    let boots = |host: &Host| -> Vec<Boot> {
        let peers = host.status().replica.peers;
        peers.into_iter().map(|peer| peer.boot).collect()
    };
    let before = (boots(&a), boots(&b));
    // Both nodes accept both secrets; then joins use the new one; then the old one is removed.
    let steps: [&[u8]; 3] = [&[7, 8], &[8, 7], &[8]];
    for (step, secrets) in steps.into_iter().enumerate() {
        let secrets: Vec<Secret> = secrets.iter().map(|byte| secret(*byte)).collect();
        a.reload(|settings| settings.secrets.clone_from(&secrets));
        let id = [b'a', step as u8];
        a.make(KNOWN, &id);
        until("between the reloads", || b.holds(&id).is_some()).await;
        b.reload(|settings| settings.secrets.clone_from(&secrets));
        let first = secrets[0].id;
        let joined = |host: &Host| {
            host.status()
                .replica
                .peers
                .iter()
                .any(|peer| peer.secret == first)
        };
        until("the first secret is used", || joined(&a) && joined(&b)).await;
        let id = [b'b', step as u8];
        b.make(KNOWN, &id);
        until("after both", || a.holds(&id).is_some()).await;
    }
    assert_eq!(
        (boots(&a), boots(&b)),
        before,
        "the same peers all the time"
    );
}

#[tokio::test]
async fn a_reload_adds_peers_and_does_not_change_the_node_number() {
    let (a, b) = (Site::new(1, 7), Site::new(2, 7));
    let addresses = [a.address(), b.address()];
    let (mut a, mut b) = (a.start(&[]), b.start(&[]));
    a.reload(|settings| settings.peers = vec![peer(&addresses[1])]);
    until("one side's list is enough", || a.is_live() && b.is_live()).await;
    b.reload(|settings| settings.node = NodeId(9));
    b.make(KNOWN, b"one");
    until("what cannot change has not", || a.holds(b"one").is_some()).await;
    assert_eq!(b.status().replica.node, NodeId(2));
}

#[tokio::test]
async fn a_leaving_node_is_shown_as_left_at_once_and_frees_its_socket() {
    let (a, b) = two().await;
    let Host {
        membership,
        outbox,
        address,
        ..
    } = b;
    membership.leave().await;
    // After a silent end it would vanish from the list, and not be shown as left.
    until("it has left", || {
        a.status().replica.peers[0].state == PeerState::Left
    })
    .await;
    let status = a.status();
    assert!(
        !status
            .replica
            .peers
            .iter()
            .any(|peer| peer.state == PeerState::Live)
    );
    assert!(UdpSocket::bind(address).is_ok(), "the socket is closed");
    // A worker that does not know of it yet.
    outbox.leave(SessionEvent::Made(SessionName::new(KNOWN, b"one").unwrap()));
}

#[tokio::test]
async fn a_late_node_receives_existing_stick_entries() {
    let (a, b) = (Site::new(1, 7), Site::new(2, 7));
    let addresses = [a.address(), b.address()];
    let a = a.start(&addresses);
    (0..50).for_each(|origin| a.send(origin, 5));
    let b = b.start(&addresses);
    let all = || (0..50).all(|origin| b.server_of(origin) == Some(5));
    until("all of them are known", all).await;
    until("and it knows that", || {
        b.status().replica.warm_up == WarmUp::Done
    })
    .await;
}

#[tokio::test]
async fn processes_with_a_duplicate_node_number_are_reported() {
    let sites = [Site::new(1, 7), Site::new(2, 7), Site::new(2, 7)];
    let addresses = sites.each_ref().map(Site::address);
    let [a, _b, _c] = sites.map(|site| site.start(&addresses));
    until("the number is named", || {
        a.status().replica.collisions == [NodeId(2)]
    })
    .await;
    let status = a.status();
    assert!(
        status.faults[0].starts_with("node 2: two processes"),
        "{:?}",
        status.faults
    );
}
