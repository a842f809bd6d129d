//! Nodes in one process, over UDP on loopback.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use becket_proto::epoch::EpochLength;
use becket_proto::session_name::SessionName;
use becket_proto::session_table::{Limits, Lives, Lookup, PolicyTag, Session, SessionTable};
use becket_proto::ticket::{NodeId, Origin, OriginId, UnixSeconds};
use tokio::time::{sleep, timeout};
use zeroize::Zeroizing;

use super::membership::Membership;
use super::outbox::{Outbox, SessionEvent};
use super::socket::{self, Bound};
use super::status::ClusterStatus;
use crate::backend::inbox::TestInbox;
use crate::backend::pool::{Guest, Pool};
use crate::clock::Clock;
use crate::config::cluster::{Cluster, ClusterLimits, Peer};
use crate::config::{Backend, Config, Server, ServerAddress, StickBy, values::Address};
use crate::control::sample;
use crate::secret::{SecretBytes, SharedSecret};
use crate::shared::Shared;

/// The policy of the sample configuration's routes.
const KNOWN: PolicyTag = PolicyTag(0xabab_abab_abab_abab);
const UNKNOWN: PolicyTag = PolicyTag(1);

/// A node before it knows its peers.
struct Site {
    bound: Bound,
    config: Config,
}

/// A node that runs.
struct Host {
    address: SocketAddr,
    shared: Arc<Shared>,
    membership: Membership,
    outbox: Outbox,
    config: Config,
}

fn secret(byte: u8) -> SharedSecret {
    let bytes = SecretBytes::new(Zeroizing::new([byte; 32]));
    SharedSecret::of_root(bytes, Path::new("secret")).unwrap()
}

/// Two servers, and clients that stick to them by their sessions.
fn sticky() -> Backend {
    let server = |name: &str| Server::plain(name, vec![ServerAddress::Unix(name.into())]);
    let mut backend = Backend::plain("app", vec![server("/run/a"), server("/run/b")]);
    backend.stick = StickBy::TlsSession;
    backend.stick_entries = 10_000;
    backend
}

impl Site {
    fn new(node: u16, byte: u8) -> Self {
        let mut cluster = Cluster {
            node: NodeId(node),
            secrets: vec![secret(byte)],
            rotation: EpochLength::of(Duration::from_secs(60)).unwrap(),
            tls12_tickets: false,
            listen: Some(([127, 0, 0, 1], 0).into()),
            peers: Vec::new(),
            resolve_interval: None,
            multicast: None,
            stud: None,
            limits: ClusterLimits {
                datagrams_per_turn: 16,
                entries_per_peer: 1000,
                bytes_per_second: 1 << 20,
                queue: 1000,
                hellos_per_second: 100,
            },
        };
        let bound = socket::bind(Some(&cluster)).unwrap().unwrap();
        cluster.listen = Some(bound.address().unwrap());
        let mut config = sample::config();
        config.backends = vec![Arc::new(sticky())];
        config.cluster = Some(cluster);
        Self { bound, config }
    }

    fn address(&self) -> SocketAddr {
        self.bound.address().unwrap()
    }

    fn start(mut self, peers: &[SocketAddr]) -> Host {
        let address = self.address();
        self.config.cluster.as_mut().unwrap().peers = peers.iter().map(peer).collect();
        let table = || Arc::new(SessionTable::new(Limits::default(), Default::default()));
        let (table, early) = (table(), table());
        let shared = Arc::new(Shared::new(1, Clock::start(), table, early));
        shared.backends.adopt_all(&self.config.backends);
        let membership = Membership::new(Some(self.bound), &self.config, &shared);
        let mut membership = membership.unwrap().unwrap();
        membership.start();
        Host {
            address,
            outbox: membership.outboxes().remove(0),
            shared,
            membership,
            config: self.config,
        }
    }
}

fn peer(address: &SocketAddr) -> Peer {
    Peer {
        name: address.to_string().into(),
        address: Address::Ip(address.ip(), address.port()),
        addresses: vec![*address],
    }
}

impl Host {
    fn keep(&self, policy: PolicyTag, id: &[u8]) -> SessionName {
        let now = self.shared.clock.now();
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
        assert!(self.shared.table.insert(policy, id, session, lives).stored);
        SessionName::new(policy, id).unwrap()
    }

    fn make(&self, policy: PolicyTag, id: &[u8]) {
        self.outbox.leave(SessionEvent::Made(self.keep(policy, id)));
    }

    fn end(&self, policy: PolicyTag, id: &[u8]) {
        self.shared.table.remove(policy, id);
        let name = SessionName::new(policy, id).unwrap();
        self.outbox.leave(SessionEvent::Ended(name));
    }

    /// The pool of a worker.
    fn pool(&self) -> Pool {
        let backend = Arc::clone(&self.config.backends[0]);
        let state = self.shared.backends.by_name(&backend.name);
        let pool = Pool::new(backend, state.unwrap(), Arc::<TestInbox>::default(), 0);
        pool.telling(Some(self.outbox.clone()))
    }

    fn holds(&self, id: &[u8]) -> Option<Session> {
        let now = self.shared.clock.now().mono;
        match self.shared.table.get(KNOWN, id, now) {
            Lookup::Hit(session) => Some(session),
            _ => None,
        }
    }

    fn status(&self) -> ClusterStatus {
        self.membership.node().status(self.shared.clock.now())
    }

    fn is_live(&self) -> bool {
        self.status().peers.iter().any(|peer| peer.state == "live")
    }

    fn reload(&mut self, change: impl FnOnce(&mut Cluster)) {
        let mut config = sample::config();
        config.cluster.clone_from(&self.config.cluster);
        change(config.cluster.as_mut().unwrap());
        self.config.cluster.clone_from(&config.cluster);
        self.membership.reload(&Arc::new(config));
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
async fn a_session_appears_on_the_other_node_as_it_was_and_goes_with_its_end() {
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
async fn a_client_finds_the_server_that_it_had_through_another_node() {
    let (a, b) = two().await;
    let (here, there) = (a.pool(), b.pool());
    let guest = Guest {
        source: [192, 0, 2, 1].into(),
        name: None,
        origin: Some(OriginId(77)),
    };
    let now = a.shared.clock.now().mono;
    let server = &here.state().servers()[1];
    here.learn(&guest, server, now);
    here.learn(&guest, server, now);
    let known = || there.recall(&guest, b.shared.clock.now().mono);
    until("it is known there", || known() == Some(server.key())).await;
    assert_eq!(
        a.status().sessions.sticks_told,
        1,
        "told once, not at each visit"
    );
    assert_eq!(b.status().sessions.sticks, 1);
}

#[tokio::test]
async fn a_node_that_joins_late_is_given_what_the_others_hold() {
    let (a, b) = (Site::new(1, 7), Site::new(2, 7));
    let addresses = [a.address(), b.address()];
    let a = a.start(&addresses);
    for id in 0..500_u32 {
        a.keep(KNOWN, &id.to_be_bytes());
    }
    let b = b.start(&addresses);
    until("it has all of them", || b.shared.table.len() == 500).await;
    until("and knows it", || b.status().warm_up == "done").await;
}

#[tokio::test]
async fn a_wrong_secret_learns_nothing_and_is_named() {
    let (a, stranger) = (Site::new(1, 7), Site::new(2, 8));
    let addresses = [a.address(), stranger.address()];
    let (a, stranger) = (a.start(&addresses), stranger.start(&addresses));
    a.make(KNOWN, b"one");
    until("it is named", || !a.status().refused.is_empty()).await;
    let status = a.status();
    assert_eq!(status.refused[0].address, stranger.address);
    assert_eq!(status.refused[0].cause, "unknown-secret");
    assert_eq!(status.refused[0].secret, format!("{:08x}", secret(8).id.0));
    let fault = format!("{}: joins with secret", stranger.address);
    assert!(status.faults[0].starts_with(&fault), "{:?}", status.faults);
    assert!(!a.is_live() && stranger.shared.table.is_empty());
}

#[tokio::test]
async fn a_session_of_an_unknown_policy_is_refused_and_its_node_named() {
    let (a, b) = two().await;
    a.make(UNKNOWN, b"one");
    a.make(KNOWN, b"two");
    until("what comes after it is there", || b.holds(b"two").is_some()).await;
    assert_eq!(b.shared.table.len(), 1);
    let status = b.status();
    assert_eq!(status.unknown_policies[0].node, 1);
    assert_eq!(status.unknown_policies[0].policy, "0000000000000001");
    assert_eq!(status.total.causes["unknown-policy"], 1);
}

#[tokio::test]
async fn a_flood_of_garbage_is_counted_and_disturbs_nobody() {
    let (a, b) = two().await;
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut sent = 0;
    for round in 0..200_u8 {
        for len in [0, 1, 15, 16, 60, 1400, 1401, 4000] {
            let mut garbage = vec![round; len];
            // Half of them begin as ours do; of the others the kernel lets none through.
            let ours = round % 2 == 0 && len > 16;
            if ours {
                garbage[..4].copy_from_slice(b"BKT2");
            }
            let is_sent = stranger.send_to(&garbage, a.address).is_ok();
            sent += u64::from(ours && is_sent);
        }
        a.make(KNOWN, &[round, 1]);
        b.make(KNOWN, &[round, 2]);
        // Time to receive: what does not fit into the socket's buffer is neither counted nor kept.
        sleep(Duration::from_millis(1)).await;
    }
    until("all of it is counted", || a.status().total.dropped >= sent).await;
    assert!(!a.status().total.causes.contains_key("garbage"));
    for round in 0..200 {
        until("b has it", || b.holds(&[round, 1]).is_some()).await;
        until("a has it", || a.holds(&[round, 2]).is_some()).await;
    }
}

#[tokio::test]
async fn a_secret_is_changed_by_reloads_without_losing_the_pair() {
    let (mut a, mut b) = two().await;
    let boots = |host: &Host| -> Vec<String> {
        let peers = host.status().peers;
        peers.into_iter().map(|peer| peer.boot).collect()
    };
    let before = (boots(&a), boots(&b));
    // Both accept both; then the new one is joined with; then the old one is forgotten.
    let steps: [&[u8]; 3] = [&[7, 8], &[8, 7], &[8]];
    for (step, secrets) in steps.into_iter().enumerate() {
        let secrets: Vec<SharedSecret> = secrets.iter().map(|byte| secret(*byte)).collect();
        a.reload(|cluster| cluster.secrets.clone_from(&secrets));
        let id = [b'a', step as u8];
        a.make(KNOWN, &id);
        until("between the reloads", || b.holds(&id).is_some()).await;
        b.reload(|cluster| cluster.secrets.clone_from(&secrets));
        let first = format!("{:08x}", secrets[0].id.0);
        let joined = |host: &Host| host.status().peers.iter().any(|peer| peer.secret == first);
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
async fn peers_come_and_go_by_reload() {
    let (a, b) = (Site::new(1, 7), Site::new(2, 7));
    let addresses = [a.address(), b.address()];
    let (mut a, mut b) = (a.start(&[]), b.start(&[]));
    a.reload(|cluster| cluster.peers = vec![peer(&addresses[1])]);
    until("one side's list is enough", || a.is_live() && b.is_live()).await;
    b.reload(|cluster| cluster.node = NodeId(9));
    b.make(KNOWN, b"one");
    until("what cannot change has not", || a.holds(b"one").is_some()).await;
    assert_eq!(b.status().node, 2);
}

#[tokio::test]
async fn who_leaves_has_left_at_once_and_its_socket_is_free() {
    let (a, b) = two().await;
    let Host {
        membership,
        outbox,
        address,
        ..
    } = b;
    membership.leave().await;
    // Silence would have it vanish from the list, and not leave.
    until("it has left", || a.status().peers[0].state == "left").await;
    let status = a.status();
    assert!(!status.peers.iter().any(|peer| peer.state == "live"));
    assert!(UdpSocket::bind(address).is_ok(), "the socket is closed");
    // A worker that has not heard of it yet.
    outbox.leave(SessionEvent::Made(SessionName::new(KNOWN, b"one").unwrap()));
}

#[tokio::test]
async fn a_node_that_joins_late_knows_the_servers_of_clients() {
    let (a, b) = (Site::new(1, 7), Site::new(2, 7));
    let addresses = [a.address(), b.address()];
    let a = a.start(&addresses);
    let guest = |origin| Guest {
        source: [192, 0, 2, 1].into(),
        name: None,
        origin: Some(OriginId(origin)),
    };
    let (here, now) = (a.pool(), a.shared.clock.now().mono);
    let server = &here.state().servers()[1];
    (0..50).for_each(|origin| here.learn(&guest(origin), server, now));
    let b = b.start(&addresses);
    let there = b.pool();
    let known = |origin| there.recall(&guest(origin), b.shared.clock.now().mono);
    let all = || (0..50).all(|origin| known(origin) == Some(server.key()));
    until("all of them are known", all).await;
    until("and it knows that", || b.status().warm_up == "done").await;
}

#[tokio::test]
async fn two_processes_with_one_number_are_named() {
    let sites = [Site::new(1, 7), Site::new(2, 7), Site::new(2, 7)];
    let addresses = sites.each_ref().map(Site::address);
    let [a, _b, _c] = sites.map(|site| site.start(&addresses));
    until("the number is named", || a.status().collisions == [2]).await;
    let status = a.status();
    assert!(
        status.faults[0].starts_with("node 2: two processes"),
        "{:?}",
        status.faults
    );
}
