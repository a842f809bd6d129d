//! The guarantees of replication one by one, on a controlled network.

use std::time::Duration;

use becket_cluster::replica::{
    DropCause, PeerRecord, PeerState, PeerStick, ServerTag, SessionRecord, WarmUp,
};
use becket_proto::ticket::{NodeId, OriginId};

use crate::cluster::{Cluster, OTHER, POLICY, SECRET};

const SECOND: Duration = Duration::from_secs(1);

fn drops(cluster: &Cluster, node: usize, cause: DropCause) -> u64 {
    cluster.status(node).total.drops.of(cause)
}

fn session<'a>(id: &'a [u8], state: &'a [u8]) -> SessionRecord<'a> {
    SessionRecord {
        policy: POLICY,
        id,
        ttl: Duration::from_secs(60),
        age: Duration::ZERO,
        origin: OriginId(1),
        state,
    }
}

#[test]
fn two_nodes_join_if_only_one_lists_the_other() {
    let mut cluster = Cluster::new(1);
    cluster.add(&[SECRET]);
    cluster.add(&[SECRET]);
    cluster.list(0, &[1]);
    cluster.run(SECOND);
    assert_eq!(cluster.live(0), [cluster.nodes[1].name]);
    assert_eq!(cluster.live(1), [cluster.nodes[0].name]);
}

#[test]
fn a_node_that_lists_itself_detects_it_and_sends_one_hello() {
    let mut cluster = Cluster::full(3, 2);
    cluster.run(SECOND * 20);
    let status = cluster.status(0);
    let [own] = &status.unanswered[..] else {
        panic!("{:?}", status.unanswered)
    };
    assert!(own.own && own.address == cluster.nodes[0].address);
    assert_eq!(own.hellos, 1);
}

#[test]
fn an_idle_cluster_sends_only_keep_alives() {
    let mut cluster = Cluster::full(4, 3);
    cluster.run(SECOND * 20);
    let before = cluster.status(0).total.sent;
    cluster.run(SECOND * 50);
    let sent = cluster.status(0).total.sent - before;
    assert!((16..=26).contains(&sent), "{sent} in 50 s to 2 peers");
}

#[test]
fn records_are_sent_packed_and_arrive_unchanged() {
    let mut cluster = Cluster::full(5, 2);
    cluster.run(SECOND * 10);
    let before = cluster.status(0).total;
    let mut ids: Vec<_> = (0..99).map(|_| cluster.offer_later(0)).collect();
    ids.push(cluster.offer(0));
    cluster.run(SECOND);
    assert!(
        ids.iter()
            .all(|id| cluster.came(1, id) == 1 && cluster.holds(1, id))
    );
    let after = cluster.status(0).total;
    assert_eq!(after.sent_records - before.sent_records, 100);
    assert!(after.sent - before.sent < 25);

    let id = &ids[0];
    cluster.nodes[0]
        .replica
        .offer(&PeerRecord::Del { policy: POLICY, id });
    cluster.settle(0);
    cluster.run(SECOND);
    assert!(!cluster.holds(1, id) && cluster.holds(1, &ids[1]));

    let stick = PeerRecord::Stick(PeerStick {
        origin: OriginId(9),
        server: ServerTag(5),
        life: SECOND * 30,
    });
    cluster.nodes[0].replica.offer(&stick);
    cluster.settle(0);
    cluster.run(SECOND);
    assert_eq!(cluster.nodes[1].sink.last, Some(format!("{stick:?}")));
}

#[test]
fn pair_keys_are_replaced_on_schedule_without_loss() {
    let mut cluster = Cluster::full(14, 3);
    for node in 0..3 {
        cluster.set_limits(node, |limits| limits.rejoin_after = SECOND * 100);
    }
    cluster.run(SECOND * 20);
    let joined = cluster.audit.borrow().agreements;
    let mut ids = Vec::new();
    for _ in 0..500 {
        ids.push(cluster.offer(0));
        cluster.run(SECOND);
    }
    let agreements = cluster.audit.borrow().agreements - joined;
    // Three pairs of nodes, four or five times each, by one side or by both; two agreements per join.
    assert!(
        (3 * 4 * 2..=3 * 6 * 4).contains(&agreements),
        "{agreements}"
    );
    for node in 1..3 {
        assert!(ids.iter().all(|id| cluster.came(node, id) == 1));
        assert_eq!(cluster.live(node).len(), 2);
    }
}

#[test]
fn a_restarted_node_receives_the_sessions_of_its_peers() {
    let mut cluster = Cluster::full(6, 3);
    cluster.run(SECOND * 10);
    let ids: Vec<_> = (0..3000).map(|serial| cluster.offer(serial % 3)).collect();
    cluster.run(SECOND);
    cluster.restart(1);
    assert_eq!(cluster.status(1).warm_up, WarmUp::Waiting);
    cluster.run(SECOND * 5);
    assert_eq!(cluster.status(1).warm_up, WarmUp::Done);
    assert!(ids.iter().all(|id| cluster.holds(1, id)));
    assert_eq!(cluster.nodes[1].sink.taken, 3000, "one peer was asked");
    let peers = cluster.status(0).peers;
    let states: Vec<_> = peers.iter().map(|peer| (peer.node.0, peer.state)).collect();
    let old = (2, PeerState::Replaced);
    assert!(states.len() == 3 && states.contains(&old), "{states:?}");
}

#[test]
fn a_new_process_replaces_the_old_one_within_a_second() {
    let mut cluster = Cluster::full(7, 2);
    cluster.run(SECOND * 10);
    cluster.restart(1);
    cluster.run(SECOND);
    assert_eq!(cluster.live(0), [cluster.nodes[1].name]);
    let id = cluster.offer(0);
    cluster.run(SECOND);
    assert_eq!(cluster.came(1, &id), 1);
}

#[test]
fn sessions_created_during_a_partition_are_exchanged_after_it() {
    let mut cluster = Cluster::full(8, 4);
    cluster.run(SECOND * 10);
    cluster.network.island = vec![0, 1];
    cluster.run(SECOND * 30);
    let ids: Vec<_> = (0..400).map(|serial| cluster.offer(serial % 4)).collect();
    cluster.run(SECOND * 10);
    assert!(!cluster.holds(2, &ids[0]));
    cluster.network.island.clear();
    cluster.run(SECOND * 40);
    for node in 0..4 {
        assert!(ids.iter().all(|id| cluster.holds(node, id)), "node {node}");
    }
}

#[test]
fn a_dead_peer_is_removed_and_rejoins() {
    let mut cluster = Cluster::full(9, 2);
    cluster.run(SECOND * 10);
    cluster.kill(1);
    cluster.run(SECOND * 25);
    assert!(cluster.live(0).is_empty());
    assert_eq!(cluster.status(0).unanswered.len(), 2);
    cluster.restart(1);
    cluster.run(SECOND * 8);
    assert_eq!(cluster.live(0).len(), 1);
}

#[test]
fn an_interrupted_dump_is_requested_from_another_peer() {
    let mut cluster = Cluster::full(35, 3);
    cluster.set_limits(0, |limits| limits.sync_bytes_per_second = 50_000);
    cluster.run(SECOND * 10);
    for _ in 0..40 {
        (0..100).for_each(|_| drop(cluster.offer(0)));
        cluster.run(Duration::from_millis(50));
    }
    // It reports more sessions than the other node, is asked, and is slow.
    cluster.nodes[0].sink.claims = 1_000_000;
    cluster.run(SECOND * 10);
    cluster.restart(1);
    cluster.run(SECOND * 5);
    assert_eq!(cluster.status(1).warm_up, WarmUp::Receiving);
    assert!(cluster.status(0).peers.iter().any(|peer| peer.dumping));
    assert!((1..4000).contains(&cluster.nodes[1].sink.len()));
    cluster.kill(0);
    cluster.run(SECOND * 20);
    assert_eq!(cluster.status(1).warm_up, WarmUp::Done);
    assert_eq!(cluster.nodes[1].sink.len(), 4000);
}

#[test]
fn a_rotation_of_the_secret_loses_nothing() {
    let mut cluster = Cluster::full(10, 3);
    cluster.run(SECOND * 10);
    let steps: [&[(u32, u64)]; 3] = [&[SECRET, OTHER], &[OTHER, SECRET], &[OTHER]];
    let mut ids = Vec::new();
    for secrets in steps {
        for node in 0..3 {
            cluster.set_secrets(node, secrets);
            for _ in 0..30 {
                ids.extend((0..3).map(|node| (node, cluster.offer(node))));
                cluster.run(Duration::from_millis(100));
            }
        }
    }
    cluster.run(SECOND * 2);
    for (from, id) in ids {
        for node in (0..3).filter(|node| *node != from) {
            assert_eq!(cluster.came(node, &id), 1);
        }
    }
    for node in 0..3 {
        let peers = cluster.status(node).peers;
        assert!(peers.iter().all(|peer| peer.secret.0 == OTHER.0));
    }
}

#[test]
fn an_incomplete_rotation_does_not_cause_repeated_joins() {
    let mut cluster = Cluster::full(11, 2);
    cluster.set_secrets(0, &[SECRET, OTHER]);
    cluster.set_secrets(1, &[OTHER, SECRET]);
    cluster.run(SECOND * 20);
    let agreements = cluster.audit.borrow().agreements;
    cluster.run(SECOND * 200);
    assert_eq!(cluster.audit.borrow().agreements, agreements);
    assert_eq!(cluster.live(0).len(), 1);
}

#[test]
fn removing_a_secret_ends_its_pairs_at_once() {
    let mut cluster = Cluster::full(12, 2);
    cluster.run(SECOND * 10);
    cluster.set_secrets(0, &[OTHER]);
    assert!(cluster.live(0).is_empty());
    let id = cluster.offer(1);
    cluster.run(SECOND);
    assert!(!cluster.holds(0, &id));
}

#[test]
fn a_node_with_another_secret_is_rejected_and_reported() {
    for (secret, cause) in [
        (OTHER, DropCause::UnknownSecret),
        ((SECRET.0, 1), DropCause::BadJoin),
    ] {
        let mut cluster = Cluster::new(13);
        cluster.add(&[SECRET]);
        cluster.add(&[secret]);
        cluster.list(1, &[0]);
        cluster.run(SECOND * 5);
        let refused = cluster.status(0).refused;
        assert_eq!(refused.len(), 1);
        assert_eq!(refused[0].address, cluster.nodes[1].address);
        assert_eq!((refused[0].cause, refused[0].secret.0), (cause, secret.0));
        assert!(refused[0].count > 1);
        assert!(cluster.live(0).is_empty() && cluster.live(1).is_empty());
    }
}

#[test]
fn two_processes_of_one_node_are_reported_while_both_run() {
    let mut cluster = Cluster::full(14, 3);
    cluster.run(SECOND * 10);
    cluster.nodes[2].name.node = cluster.nodes[1].name.node;
    cluster.restart(2);
    cluster.run(SECOND * 20);
    let twice = cluster.nodes[1].name.node;
    assert_eq!(cluster.status(0).collisions, [twice]);
    assert_eq!(
        cluster.status(1).collisions,
        [twice],
        "its own number is used"
    );
    let id = cluster.offer(0);
    cluster.run(SECOND);
    assert!(cluster.holds(1, &id) && cluster.holds(2, &id));
    cluster.kill(2);
    cluster.run(SECOND * 25);
    assert!(cluster.status(0).collisions.is_empty());
    assert_eq!(cluster.live(0), [cluster.nodes[1].name]);
}

#[test]
fn replayed_joins_neither_create_nor_end_a_peer() {
    let mut cluster = Cluster::full(15, 2);
    cluster.network.tap = true;
    cluster.run(SECOND * 10);
    cluster.restart(1);
    cluster.run(SECOND * 10);
    cluster.network.tap = false;
    let recorded = std::mem::take(&mut cluster.network.recorded);
    let before = (cluster.live(0), cluster.live(1));
    for (from, to, bytes) in &recorded {
        let node = usize::from(*to == cluster.nodes[1].address);
        cluster.deliver(node, *from, bytes);
        let id = cluster.offer(0);
        cluster.run(Duration::from_millis(300));
        assert_eq!(cluster.came(1, &id), 1);
    }
    assert!(recorded.len() > 10);
    assert_eq!((cluster.live(0), cluster.live(1)), before);
    assert!(drops(&cluster, 0, DropCause::Replayed) > 0);
}

#[test]
fn lost_datagrams_are_counted_from_sequence_gaps() {
    let mut cluster = Cluster::full(16, 2);
    cluster.run(SECOND * 10);
    cluster.network.loss_percent = 20;
    for _ in 0..500 {
        cluster.offer(0);
        cluster.run(Duration::from_millis(20));
    }
    cluster.network.loss_percent = 0;
    cluster.run(SECOND * 6);
    let peer = &cluster.status(1).peers[0];
    let sent = cluster.status(0).peers[0].traffic;
    assert_eq!(peer.traffic.lost, sent.sent - peer.traffic.received);
    assert!(
        (60..140).contains(&peer.traffic.lost),
        "{}",
        peer.traffic.lost
    );
}

#[test]
fn an_oversized_state_is_counted_and_not_sent() {
    let mut cluster = Cluster::full(17, 2);
    cluster.run(SECOND * 10);
    let record = PeerRecord::New(session(b"id", &[1; 1400]));
    cluster.nodes[0].replica.offer(&record);
    cluster.settle(0);
    assert_eq!(drops(&cluster, 0, DropCause::TooLarge), 1);
    assert_eq!(cluster.status(0).peers[0].queued_bytes, 0);
}

#[test]
fn a_full_queue_drops_and_counts_records_and_never_grows() {
    let mut cluster = Cluster::full(18, 2);
    cluster.set_limits(0, |limits| limits.bytes_per_second = 1000);
    cluster.run(SECOND * 10);
    for _ in 0..2000 {
        cluster.offer(0);
    }
    let peer = cluster.status(0).peers[0].clone();
    assert!(peer.queued_bytes > 60_000 && peer.queued_bytes <= 64 * 1024);
    assert!(peer.traffic.drops.of(DropCause::QueueFull) > 1000);
    assert_eq!(cluster.live(1).len(), 1, "keep-alives do not wait");
    cluster.run(SECOND * 30);
    assert_eq!(cluster.live(1).len(), 1);
}

#[test]
fn a_dump_respects_its_rate_and_does_not_delay_new_sessions() {
    let mut cluster = Cluster::full(19, 2);
    cluster.set_limits(0, |limits| limits.sync_bytes_per_second = 50_000);
    cluster.run(SECOND * 10);
    for _ in 0..40 {
        (0..100).for_each(|_| drop(cluster.offer(0)));
        cluster.run(Duration::from_millis(50));
    }
    cluster.restart(1);
    cluster.run(SECOND * 3);
    let mut before = cluster.status(0).total.sent_bytes;
    for _ in 0..5 {
        let id = cluster.offer(0);
        cluster.run(SECOND);
        assert_eq!(cluster.came(1, &id), 1);
        let bytes = cluster.status(0).total.sent_bytes;
        assert!(
            (30_000..70_000).contains(&(bytes - before)),
            "{}",
            bytes - before
        );
        before = bytes;
    }
    assert!(cluster.status(0).peers.iter().any(|peer| peer.dumping));
    cluster.run(SECOND * 20);
    assert_eq!(cluster.nodes[1].sink.len(), cluster.nodes[0].sink.len());
}

#[test]
fn records_rejected_by_the_table_are_counted_per_peer() {
    let mut cluster = Cluster::full(22, 2);
    cluster.run(SECOND * 10);
    cluster.nodes[1].sink.answer = Err(DropCause::UnknownPolicy);
    let id = [1; 8];
    cluster.nodes[0].replica.offer(&PeerRecord::Del {
        policy: POLICY,
        id: &id,
    });
    cluster.settle(0);
    cluster.run(SECOND);
    let traffic = cluster.status(1).peers[0].traffic;
    assert_eq!(traffic.drops.of(DropCause::UnknownPolicy), 1);
    assert_eq!(traffic.received_records, 0);
}

#[test]
fn peers_beyond_the_limit_are_refused() {
    let mut cluster = Cluster::full(23, 5);
    cluster.set_limits(0, |limits| limits.peers = 2);
    cluster.run(SECOND * 30);
    assert_eq!(cluster.live(0).len(), 2);
    assert!(drops(&cluster, 0, DropCause::TooManyPeers) > 0);
    let begun = cluster.status(0).total.sent;
    cluster.run(SECOND * 30);
    assert!(cluster.status(0).total.sent - begun < 200);
}

#[test]
fn addresses_beyond_the_limit_are_ignored_and_counted() {
    let mut cluster = Cluster::new(24);
    cluster.add(&[SECRET]);
    cluster.set_limits(0, |limits| limits.addresses = 2);
    let list: Vec<_> = (1..6).map(|host| ([10, 0, 1, host], 7000).into()).collect();
    cluster.list_addresses(0, list);
    assert_eq!(cluster.status(0).unanswered.len(), 2);
    assert_eq!(drops(&cluster, 0, DropCause::TooManyAddresses), 3);
    cluster.list_addresses(0, Vec::new());
    cluster.run(SECOND);
    let before = cluster.status(0).total.sent;
    cluster.run(SECOND * 30);
    assert_eq!(cluster.status(0).total.sent, before);
}

#[test]
fn datagrams_rejected_by_the_socket_are_counted_as_unsent() {
    let mut cluster = Cluster::full(25, 2);
    cluster.run(SECOND * 10);
    let now = cluster.local(0);
    let node = &mut cluster.nodes[0];
    let id = [1; 8];
    node.replica.offer(&PeerRecord::Del {
        policy: POLICY,
        id: &id,
    });
    let later = now + SECOND;
    node.replica.poll(later, &mut node.sink, &mut |_, _| false);
    assert_eq!(
        node.replica.status(now).total.drops.of(DropCause::Unsent),
        1
    );
}

#[test]
fn ipv4_mapped_ipv6_addresses_equal_their_ipv4_form() {
    let mut cluster = Cluster::full(26, 2);
    let mapped = "[::ffff:10.0.0.2]:7000".parse().unwrap();
    cluster.list_addresses(0, vec![mapped]);
    cluster.list(1, &[]);
    cluster.run(SECOND * 5);
    assert_eq!(cluster.live(0), [cluster.nodes[1].name]);
    assert!(cluster.status(0).unanswered.is_empty());
    assert_eq!(cluster.nodes[0].name.node, NodeId(1));
}
