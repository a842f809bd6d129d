//! Tests of a backend in one worker: choosing servers, waiting, stickiness.

use super::*;
use crate::backend::inbox::{BackendEvent, Grant, TestInbox};
use becket_tls::config::Server;

struct Fixture {
    pool: Pool,
    servers: Arc<[Arc<ServerState>]>,
    test_inbox: Arc<TestInbox>,
}

/// Returns unix sockets with consecutive names.
fn servers(count: usize) -> Vec<Server> {
    let server = |index| {
        let name = format!("/s{index}");
        Server::plain(&name, vec![ServerAddress::Unix(name.clone().into())])
    };
    (0..count).map(server).collect()
}

fn fixture(backend: Backend) -> Fixture {
    let test_inbox = Arc::new(TestInbox::default());
    let pool = Pool::lone(Arc::new(backend), Arc::clone(&test_inbox) as Arc<dyn Inbox>);
    Fixture {
        servers: pool.state.servers(),
        pool,
        test_inbox,
    }
}

fn hint() -> PickHint<'static> {
    PickHint {
        source: IpAddr::from([192, 0, 2, 1]),
        name: Some("a.test"),
        origin: Some(OriginId(7)),
    }
}

impl Fixture {
    fn try_pick(&self) -> Option<ServerSlot> {
        match self.pool.pick(&hint(), None, &[]) {
            Pick::Slot(slot) => Some(slot),
            Pick::Full | Pick::Nobody => None,
        }
    }

    fn pick(&self) -> ServerSlot {
        self.try_pick().expect("a slot")
    }

    /// Returns the index of the slot's server.
    fn place(&self, slot: &ServerSlot) -> usize {
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
        let events = self.test_inbox.take().into_iter();
        let grant = |event| match event {
            BackendEvent::Granted(grant) => Some(grant),
            BackendEvent::Failed(_) | BackendEvent::Awaited | BackendEvent::Look(_) => None,
        };
        events.filter_map(grant).collect()
    }
}

#[test]
fn every_algorithm_fills_all_servers_and_counts_their_slots() {
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
        backend.keys.balance = balance;
        backend
            .servers
            .iter_mut()
            .for_each(|server| server.keys.maxconn = Some(2));
        let fixture = fixture(backend);
        let slots: Vec<ServerSlot> = (0..6).map(|_| fixture.pick()).collect();
        assert_eq!(fixture.in_use(), [2, 2, 2], "{balance:?}");
        assert!(matches!(fixture.pool.pick(&hint(), None, &[]), Pick::Full));
        drop(slots);
        assert_eq!(fixture.in_use(), [0, 0, 0]);
    }
}

#[test]
fn round_robin_honours_weights_and_workers_start_at_different_servers() {
    let mut backend = Backend::plain("app", servers(3));
    backend.servers[0].keys.weight = 2;
    let picks = fixture(backend).picks(400);
    let share = |server| picks.iter().filter(|pick| **pick == server).count();
    assert_eq!([share(0), share(1), share(2)], [200, 100, 100]);

    let backend = Arc::new(Backend::plain("app", servers(3)));
    let state = lone_state(&backend, Vec::new());
    let begins = |start| {
        let test_inbox = Arc::new(TestInbox::default());
        let pool = Pool::new(Arc::clone(&backend), Arc::clone(&state), test_inbox, start);
        let Pick::Slot(slot) = pool.pick(&hint(), None, &[]) else {
            panic!("a slot");
        };
        slot.server().name().to_string()
    };
    assert_eq!([begins(0), begins(1), begins(2)], ["/s0", "/s1", "/s2"]);
}

#[test]
fn servers_out_of_service_receive_no_clients() {
    let mut backend = Backend::plain("app", servers(4));
    backend.servers[0].keys.disabled = true;
    backend.servers[1].keys.weight = 0;
    let fixture = fixture(backend);
    fixture.servers[2].set_failing(true);
    assert_eq!(fixture.picks(5), [3; 5]);
    fixture.servers[3].set_failing(true);
    assert!(matches!(
        fixture.pool.pick(&hint(), None, &[]),
        Pick::Nobody
    ));
    fixture.servers[2].set_failing(false);
    assert_eq!(fixture.picks(5), [2; 5]);
}

#[test]
fn backups_are_used_only_if_all_other_servers_are_out_of_service() {
    let mut backend = Backend::plain("app", servers(3));
    backend.servers[0].keys.maxconn = Some(1);
    backend.servers[1].keys.backup = true;
    backend.servers[2].keys.backup = true;
    let fixture = fixture(backend);
    let held = fixture.pick();
    assert_eq!(fixture.place(&held), 0);
    assert!(matches!(fixture.pool.pick(&hint(), None, &[]), Pick::Full));
    drop(held);
    fixture.servers[0].set_failing(true);
    assert_eq!(fixture.picks(4), [1, 2, 1, 2]);
}

#[test]
fn a_server_that_was_tried_is_not_selected_again() {
    let fixture = fixture(Backend::plain("app", servers(2)));
    let tried = [fixture.servers[0].key()];
    let Pick::Slot(slot) = fixture.pool.pick(&hint(), None, &tried) else {
        panic!("a slot");
    };
    assert_eq!(fixture.place(&slot), 1);
    let both = [fixture.servers[0].key(), fixture.servers[1].key()];
    assert!(matches!(
        fixture.pool.pick(&hint(), None, &both),
        Pick::Nobody
    ));
}

#[test]
fn a_free_slot_goes_to_the_longest_waiter_before_new_clients() {
    let mut backend = Backend::plain("app", servers(1));
    backend.servers[0].keys.maxconn = Some(1);
    backend.keys.queue_length = 2;
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
    assert!(matches!(fixture.pool.pick(&hint(), None, &[]), Pick::Full));
    let grant = fixture.granted().remove(0);
    assert!(first.is_over_by(&grant) && !second.is_over_by(&grant));
    assert_eq!(grant.place, 10);
    drop(first);
    // The grant was not used, so dropping it passes the slot on.
    drop(grant);
    assert!(second.is_over_by(&fixture.granted()[0]));
    assert_eq!(fixture.in_use(), [0]);
    assert_eq!(fixture.pool.state.hand_overs(), 2);
}

/// Returns two servers with one slot each, and a queue of length one.
fn narrow() -> (Fixture, [u64; 2]) {
    let mut backend = Backend::plain("app", servers(2));
    backend.keys.queue_length = 1;
    for server in &mut backend.servers {
        server.keys.maxconn = Some(1);
    }
    let fixture = fixture(backend);
    let keys = [fixture.servers[0].key(), fixture.servers[1].key()];
    (fixture, keys)
}

#[test]
fn a_redispatched_client_keeps_its_position_and_is_not_rejected() {
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
        let arrival = ours.arrival;
        drop(ours);
        let sent_on = fixture.pool.wait(10, &tried, Some(arrival)).unwrap();
        drop(other);
        let grants = fixture.granted();
        assert!(sent_on.is_over_by(&grants[0]), "it came first");
        assert!(!newer.is_over_by(&grants[0]) && grants.len() == 1);
    }
}

#[test]
fn a_new_client_may_take_a_slot_that_no_waiter_can_use() {
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
fn a_client_that_left_the_queue_is_skipped() {
    let mut backend = Backend::plain("app", servers(1));
    backend.servers[0].keys.maxconn = Some(1);
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
fn waiting_clients_are_notified_if_no_server_is_left_for_them() {
    let mut backend = Backend::plain("app", servers(2));
    backend
        .servers
        .iter_mut()
        .for_each(|server| server.keys.maxconn = Some(1));
    let fixture = fixture(backend);
    let held = [fixture.pick(), fixture.pick()];
    let first = fixture.pool.wait(10, &[], None).unwrap();
    let tried = [fixture.servers[0].key()];
    let second = fixture.pool.wait(11, &tried, None).unwrap();
    fixture.servers[1].set_failing(true);
    let grants = fixture.granted();
    assert!(second.is_over_by(&grants[0]) && grants[0].slot.is_none());
    assert_eq!(grants.len(), 1, "the first still waits");
    drop(held);
    let grants = fixture.granted();
    assert!(first.is_over_by(&grants[0]) && grants[0].slot.is_some());
    drop(grants);

    let held = fixture.pick();
    let third = fixture.pool.wait(12, &[], None).unwrap();
    fixture.servers[0].set_failing(true);
    let grants = fixture.granted();
    assert!(third.is_over_by(&grants[0]) && grants[0].slot.is_none());
    drop(held);
    assert_eq!(fixture.in_use(), [0, 0]);
}

#[test]
fn clients_wait_for_the_first_lookup_of_a_server_name() {
    for resolves in [true, false] {
        let fixture = fixture(Backend::plain(
            "app",
            vec![Server::plain("a.test:80", vec![])],
        ));
        let server = &fixture.servers[0];
        let pick = || fixture.pool.pick(&hint(), None, &[]);
        assert!(matches!(pick(), Pick::Full));
        let wait = fixture.pool.wait(10, &[], None).unwrap();
        assert!(fixture.granted().is_empty());
        server.note_lookup(resolves);
        if resolves {
            let address = "192.0.2.1:80".parse().unwrap();
            server.set_addresses(&[ServerAddress::Tcp(address)]);
        }
        server.backend().settle();
        let grants = fixture.granted();
        assert!(wait.is_over_by(&grants[0]) && grants[0].slot.is_some() == resolves);
        assert_eq!(matches!(pick(), Pick::Nobody), !resolves);
    }
}

#[test]
fn a_sticky_client_returns_to_its_server_while_slots_are_free() {
    let mut backend = Backend::plain("app", servers(8));
    backend.keys.stick = StickBy::TlsSession;
    backend.keys.stick_entries = 100;
    backend.servers[5].keys.maxconn = Some(1);
    let fixture = fixture(backend);
    let now = Duration::from_secs(1);
    assert_eq!(fixture.pool.recall(&hint(), now), None);
    fixture.pool.learn(&hint(), &fixture.servers[5], now);
    let had = fixture.pool.recall(&hint(), now);
    let Pick::Slot(slot) = fixture.pool.pick(&hint(), had, &[]) else {
        panic!("a slot");
    };
    assert_eq!(fixture.place(&slot), 5);
    let Pick::Slot(other) = fixture.pool.pick(&hint(), had, &[]) else {
        panic!("a slot");
    };
    assert_ne!(fixture.place(&other), 5, "full: balanced as usual");
    drop(slot);
    fixture.servers[5].set_failing(true);
    let Pick::Slot(other) = fixture.pool.pick(&hint(), had, &[]) else {
        panic!("a slot");
    };
    assert_ne!(
        fixture.place(&other),
        5,
        "out of service: balanced as usual"
    );
}

#[test]
fn waiters_for_one_server_do_not_affect_the_choice_of_others() {
    let mut backend = Backend::plain("app", servers(3));
    backend.keys.balance = Balance::SourceHash;
    backend.servers[2].keys.maxconn = Some(1);
    let fixture = fixture(backend);
    let keys: Vec<u64> = fixture.servers.iter().map(|one| one.key()).collect();
    let held = ServerSlot::claim(&fixture.servers[2]).unwrap();
    let hashed = fixture.picks(1);
    let waits = fixture.pool.wait(10, &keys[..2], None).unwrap();
    for index in [0, 1] {
        let _others = [(); 3].map(|()| ServerSlot::claim(&fixture.servers[index]).unwrap());
        assert_eq!(fixture.picks(1), hashed);
        let Pick::Slot(slot) = fixture.pool.pick(&hint(), Some(keys[index]), &[]) else {
            panic!("it is free");
        };
        assert_eq!(fixture.place(&slot), index);
    }
    let only_that = fixture.pool.pick(&hint(), Some(keys[2]), &keys[..2]);
    assert!(matches!(only_that, Pick::Full), "behind who waits");
    drop(held);
    assert!(waits.is_over_by(&fixture.granted()[0]));
}

#[test]
fn source_addresses_alternate_within_their_address_family() {
    let sources = ["192.0.2.1", "::1", "192.0.2.2"].map(|one| one.parse().unwrap());
    let mut backend = Backend::plain("app", servers(1));
    backend.keys.source = sources.to_vec();
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
fn changed_addresses_are_used_at_the_next_lookup() {
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

#[test]
fn a_node_id_selects_only_servers_eligible_for_balancing() {
    let mut all = servers(3);
    for (node, server) in (1..).zip(&mut all) {
        server.keys.node = Some(node);
    }
    all[1].keys.backup = true;
    all[2].keys.weight = 0;
    let fixture = fixture(Backend::plain("app", all));
    let keys: Vec<u64> = fixture.servers.iter().map(|server| server.key()).collect();
    let at = |node| fixture.pool.at_node(NodeId(node));
    assert_eq!([1, 2, 3, 4].map(at), [Some(keys[0]), None, None, None]);
    fixture.servers[0].set_failing(true);
    assert_eq!([1, 2, 3].map(at), [None, Some(keys[1]), None]);
}
