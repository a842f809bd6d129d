//! Tests of waiting for a server's slot, until the slot is granted or the client or the server
//! closes.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::script::net::Plan;
use crate::script::stage::Stage;
use becket_config::process::{Admission, NameLimits};
use becket_proto::close_reason::CloseReason;
use becket_proxy::backend::backend_state::Pick;
use becket_proxy::backend::pool::PickHint;
use becket_proxy::backend::slot::ServerSlot;
use becket_proxy::metrics::{AtomicHistogram, Times};
use becket_tls::admission::{SharedAdmission, WorkerAdmission};
use rustls::version::{TLS12, TLS13};

use crate::common::{Client, House, server_got, server_says};

/// Returns one server with one slot; `keys` are added to the backend.
fn house(keys: &str) -> House {
    House::new(&format!(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:443']\nbackend = 'app'\n\
         certificates = ['a.pem', 'b.pem']\n\
         [[backend]]\nname = 'app'\n{keys}\n\
         [[backend.server]]\naddress = '127.0.0.1:81'\nmaxconn = 1\n"
    ))
}

/// Takes a slot, as another connection would.
fn take(house: &House) -> ServerSlot {
    let hint = PickHint {
        source: IpAddr::from([192, 0, 2, 9]),
        name: None,
        origin: None,
    };
    match house.pool(0).pick(&hint, None, &[]) {
        Pick::Slot(slot) => slot,
        other => panic!("{other:?}"),
    }
}

fn in_use(house: &House) -> u32 {
    let server = house.pool(0).state().servers()[0].clone();
    server.in_use()
}

fn waiting(house: &House) -> usize {
    house.pool(0).state().waiting()
}

/// Connects a client that sends hello as soon as it can.
fn enter(house: &House, plans: impl IntoIterator<Item = Plan>) -> (Stage, Client) {
    let mut stage = house.stage();
    let config = Arc::new(house.client(&TLS13));
    let mut client = Client::enter_before(&mut stage, house.listener(0), &config, "a.test", plans);
    client.say(b"hello");
    client.talk(&mut stage);
    (stage, client)
}

#[test]
fn a_queued_client_loses_no_data() {
    for version in [&TLS12, &TLS13] {
        let house = house("");
        let held = take(&house);
        let mut stage = house.stage();
        let config = Arc::new(house.client(version));
        let plans = [Plan::Accept];
        let mut client =
            Client::enter_before(&mut stage, house.listener(0), &config, "a.test", plans);
        client.say(b"hello");
        client.talk(&mut stage);
        assert!(!client.tls.is_handshaking());
        let tickets = client.tls.tls13_tickets_received();
        assert_eq!(tickets > 0, version == &TLS13, "an answer is not near");
        assert!(stage.net.dialled.is_empty());
        assert_eq!((waiting(&house), in_use(&house)), (1, 1));
        stage.wait(Duration::from_millis(300));
        drop(held);
        assert_eq!((waiting(&house), in_use(&house)), (0, 1), "handed over");
        client.talk(&mut stage);
        assert_eq!(server_got(&mut stage), b"hello");
        server_says(&mut stage, b"welcome");
        client.talk(&mut stage);
        assert_eq!(client.received, b"welcome");
        let seen = |histogram: &AtomicHistogram| {
            let Times { counts, seconds } = AtomicHistogram::gather([histogram]);
            (counts.iter().sum::<u64>(), seconds)
        };
        assert_eq!(seen(&stage.counters.queue_waited), (1, 0.3));
        // The clock moved only during the wait.
        assert_eq!(seen(&stage.counters.handshake_full).1, 0.0);
        drop(stage);
        assert_eq!(in_use(&house), 0);
    }
}

#[test]
fn a_queue_timeout_removes_the_client_from_the_queue() {
    let house = house("");
    let held = take(&house);
    let (mut stage, mut client) = enter(&house, [Plan::Accept]);
    stage.wait(house.config.backends[0].queue_timeout);
    client.talk(&mut stage);
    assert_eq!(waiting(&house), 0);
    assert!(!client.closed, "no clean end");
    drop(client);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::QueueTimeout));
    let facts = stage.record().unwrap().facts;
    assert_eq!(facts.queued, house.config.backends[0].queue_timeout);
    assert_eq!(facts.connect, None);
    drop(held);
    assert_eq!(in_use(&house), 0);
}

#[test]
fn a_full_queue_rejects_clients_at_once() {
    let house = house("queue-length = 0");
    let _held = take(&house);
    let (mut stage, client) = enter(&house, [Plan::Accept]);
    drop(client);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::QueueFull));
}

#[test]
fn a_queued_client_that_resets_leaves_and_releases_its_slot() {
    let house = house("");
    let held = take(&house);
    let (mut stage, client) = enter(&house, [Plan::Accept]);
    client.end.watch_peer().fail(ErrorKind::ConnectionReset);
    // Even if the slot is granted at the same moment.
    drop(held);
    assert_eq!(in_use(&house), 1);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::LeftQueue));
    assert_eq!((waiting(&house), in_use(&house)), (0, 0));
    assert!(stage.net.dialled.is_empty());
}

#[test]
fn abort_on_close_removes_half_closed_clients_from_the_queue() {
    for aborts in [false, true] {
        let house = house(&format!("abort-on-close = {aborts}"));
        let held = take(&house);
        let (mut stage, mut client) = enter(&house, [Plan::Accept]);
        client.tls.send_close_notify();
        client.flush();
        becket_proxy::socket::StreamSocket::finish(&mut client.end);
        client.talk(&mut stage);
        if aborts {
            assert_eq!(stage.closed(), Some(CloseReason::LeftQueue));
            continue;
        }
        assert_eq!(waiting(&house), 1);
        drop(held);
        client.talk(&mut stage);
        assert_eq!(server_got(&mut stage), b"hello");
        server_says(&mut stage, b"welcome");
        client.talk(&mut stage);
        assert_eq!(client.received, b"welcome");
    }
}

#[test]
fn clients_are_rejected_if_no_server_is_in_service() {
    let house = house("");
    let held = take(&house);
    let server = house.pool(0).state().servers()[0].clone();
    let (mut stage, client) = enter(&house, [Plan::Accept]);
    assert_eq!(waiting(&house), 1);
    server.set_failing(true);
    stage.settle();
    drop(client);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::NoServer));
    let (mut stage, client) = enter(&house, [Plan::Accept]);
    drop(client);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::NoServer));
    drop(held);
    server.set_failing(false);
    let (mut stage, _client) = enter(&house, [Plan::Accept]);
    assert_eq!(server_got(&mut stage), b"hello");
}

/// Returns two servers with one slot each.
fn two_servers() -> House {
    House::new(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:443']\nbackend = 'app'\n\
         certificates = ['a.pem']\n[[backend]]\nname = 'app'\n\
         [[backend.server]]\naddress = '127.0.0.1:81'\nmaxconn = 1\n\
         [[backend.server]]\naddress = '127.0.0.1:82'\nmaxconn = 1\n",
    )
}

#[test]
fn a_client_with_a_failed_connect_waits_ahead_of_later_clients() {
    let house = two_servers();
    let (mut stage, mut client) = enter(&house, [Plan::Later, Plan::Accept]);
    let other = take(&house);
    let failing = house.pool(0).state().servers()[0].key();
    let later = house.pool(0).wait(99, &[failing], None).unwrap();
    stage.net.dialled[0].near.fail(ErrorKind::ConnectionRefused);
    client.talk(&mut stage);
    assert_eq!(waiting(&house), 2);
    drop(other);
    client.talk(&mut stage);
    assert_eq!(server_got(&mut stage), b"hello");
    assert_eq!(waiting(&house), 1);
    drop(later);
}

#[test]
fn the_queue_timeout_covers_all_waits_of_a_client() {
    let house = two_servers();
    let (first, other) = (take(&house), take(&house));
    let limit = house.config.backends[0].queue_timeout;
    let (mut stage, mut client) = enter(&house, [Plan::Later]);
    stage.wait(limit * 3 / 4);
    drop(first);
    client.talk(&mut stage);
    assert_eq!(waiting(&house), 0, "one has a slot for it");
    stage.net.dialled[0].near.fail(ErrorKind::ConnectionRefused);
    client.talk(&mut stage);
    assert_eq!(waiting(&house), 1, "for the other one");
    stage.wait(limit / 4 + Duration::from_millis(1));
    client.talk(&mut stage);
    drop(client);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::QueueTimeout));
    drop(other);
}

#[test]
fn a_failed_connect_releases_its_slot_before_the_next_selection() {
    let house = two_servers();
    let (mut stage, mut client) = enter(&house, [Plan::Later, Plan::Accept]);
    let servers = house.pool(0).state().servers();
    let counts = || [servers[0].in_use(), servers[1].in_use()];
    assert_eq!(counts(), [1, 0]);
    // The other server is full now, so the client waits for it, and not for the failed one.
    let other = take(&house);
    stage.net.dialled[0].near.fail(ErrorKind::ConnectionRefused);
    client.talk(&mut stage);
    assert_eq!((counts(), waiting(&house)), ([0, 1], 1));
    assert_eq!(servers[0].failures_in_a_row(), 1);
    drop(other);
    client.talk(&mut stage);
    assert_eq!(server_got(&mut stage), b"hello");
    assert_eq!(counts(), [0, 1]);
    let record = stage.record().unwrap();
    assert_eq!(record.facts.server.as_deref(), Some("127.0.0.1:82"));
}

#[test]
fn the_retries_limit_the_number_of_servers_tried() {
    for (retries, dials) in [(0, 1), (1, 2), (5, 3)] {
        let servers: String = (81..84)
            .map(|port| format!("[[backend.server]]\naddress = '127.0.0.1:{port}'\n"))
            .collect();
        let house = House::new(&format!(
            "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:443']\nbackend = 'app'\n\
             certificates = ['a.pem']\n[[backend]]\nname = 'app'\nretries = {retries}\n{servers}"
        ));
        let refuse = Plan::Refuse(ErrorKind::ConnectionRefused);
        let (mut stage, client) = enter(&house, [refuse; 8]);
        assert_eq!(stage.counters.connect_failures.value(), dials);
        drop(client);
        stage.settle();
        assert_eq!(stage.closed(), Some(CloseReason::ConnectFailed));
        assert!(
            house
                .pool(0)
                .state()
                .servers()
                .iter()
                .all(|server| server.in_use() == 0)
        );
    }
}

#[test]
fn connections_on_failure_keeps_or_closes_connections() {
    for (on_down, reason) in [("drain", None), ("close", Some(CloseReason::ServerDown))] {
        let house = house(&format!("connections-on-failure = '{on_down}'"));
        let (mut stage, mut client) = enter(&house, [Plan::Accept]);
        assert_eq!(server_got(&mut stage), b"hello");
        let server = house.pool(0).state().servers()[0].clone();
        server.set_failing(true);
        client.talk(&mut stage);
        if reason.is_none() {
            server_says(&mut stage, b"still here");
            client.talk(&mut stage);
            assert_eq!(client.received, b"still here");
            continue;
        }
        assert!(!client.closed, "no clean end");
        drop(client);
        stage.settle();
        assert_eq!(stage.closed(), reason);
        assert!(stage.net.dialled[0].far.watch().is_broken());
        assert_eq!(in_use(&house), 0);
    }
}

#[test]
fn a_granted_slot_of_a_server_that_failed_meanwhile_is_returned() {
    let house = house("");
    let held = take(&house);
    let (mut stage, mut client) = enter(&house, [Plan::Accept]);
    assert_eq!(waiting(&house), 1);
    drop(held);
    assert_eq!(waiting(&house), 0, "granted, and not seen yet");
    house.pool(0).state().servers()[0].set_failing(true);
    client.talk(&mut stage);
    assert!(stage.net.dialled.is_empty());
    assert_eq!((waiting(&house), in_use(&house)), (0, 0));
    drop(client);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::NoServer));
}

#[test]
fn clients_of_one_name_cannot_exceed_their_share_of_the_queue() {
    let house = house("queue-length = 4");
    let rules = Admission {
        name: NameLimits {
            queue_share: Some(50),
            ..NameLimits::default()
        },
        ..Admission::default()
    };
    let admission = WorkerAdmission::new(&Arc::new(SharedAdmission::new(1)), &rules, None);
    let config = Arc::new(house.client(&TLS13));
    let slot = take(&house);
    let come = |name: &str| {
        let mut stage = house.stage();
        stage.admission = Rc::clone(&admission);
        let mut client = Client::enter_before(&mut stage, house.listener(0), &config, name, []);
        client.say(b"hello");
        client.talk(&mut stage);
        (stage, client)
    };
    let refused = |name: &str| {
        let (mut stage, client) = come(name);
        drop(client);
        stage.settle();
        stage.closed()
    };
    let flood: Vec<_> = (0..2).map(|_| come("a.test")).collect();
    assert_eq!(waiting(&house), 2);
    assert_eq!(refused("a.test"), Some(CloseReason::NameQueue));
    let others = ["x.b.test", "y.b.test"].map(come);
    assert_eq!(waiting(&house), 4);
    assert_eq!(
        refused("z.b.test"),
        Some(CloseReason::NameQueue),
        "names of one wildcard are one name"
    );
    drop((flood, others, slot));
}
