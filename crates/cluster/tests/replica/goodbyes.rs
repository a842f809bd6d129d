//! Nodes that say goodbye: detected at once, and only by the peers that received it.

use std::net::SocketAddr;
use std::time::Duration;

use becket_cluster::replica::PeerState;

use crate::cluster::{Cluster, SECRET};

const SECOND: Duration = Duration::from_secs(1);

fn states(cluster: &Cluster, node: usize) -> Vec<(u16, PeerState)> {
    let peers = cluster.status(node).peers;
    peers.iter().map(|peer| (peer.node.0, peer.state)).collect()
}

#[test]
fn a_goodbye_marks_the_peer_as_left_at_once_and_ends_sending_to_it() {
    let mut cluster = Cluster::full(30, 3);
    cluster.run(SECOND * 10);
    cluster.leave(1);
    cluster.run(Duration::from_millis(10));
    let expected = [(2, PeerState::Left), (3, PeerState::Live)];
    assert_eq!(states(&cluster, 0), expected);
    let before = cluster.status(0).peers[0].traffic.sent;
    let id = cluster.offer(0);
    cluster.run(SECOND * 10);
    assert_eq!(cluster.came(2, &id), 1);
    let left = cluster.status(0).peers[0].clone();
    assert_eq!((left.traffic.sent, left.queued_bytes), (before, 0));
    cluster.run(SECOND * 10);
    assert_eq!(states(&cluster, 0), [(3, PeerState::Live)], "forgotten");
}

#[test]
fn a_restarted_peer_rejoins_at_once_and_receives_missed_sessions() {
    let mut cluster = Cluster::full(31, 3);
    cluster.run(SECOND * 10);
    cluster.leave(1);
    let ids: Vec<_> = (0..100).map(|_| cluster.offer(0)).collect();
    cluster.run(SECOND);
    cluster.restart(1);
    cluster.run(SECOND * 5);
    assert_eq!(cluster.live(0).len(), 2);
    assert!(ids.iter().all(|id| cluster.holds(1, id)));
    assert!(cluster.status(0).collisions.is_empty());
}

#[test]
fn sessions_created_before_a_restarted_node_joins_are_replicated() {
    let mut cluster = Cluster::full(35, 3);
    cluster.run(SECOND * 10);
    let old = cluster.offer(1);
    cluster.run(SECOND * 20);
    for leaves in [true, false] {
        if leaves {
            cluster.leave(1);
        } else {
            cluster.kill(1);
        }
        cluster.run(SECOND);
        cluster.restart(1);
        let ids: Vec<_> = (0..50).map(|_| cluster.offer(1)).collect();
        cluster.run(SECOND * 5);
        for node in [0, 2] {
            assert!(ids.iter().all(|id| cluster.holds(node, id)), "{leaves}");
            assert_eq!(cluster.came(node, &old), 1, "only what is new");
        }
    }
}

#[test]
fn a_replayed_goodbye_ends_no_peer() {
    let mut cluster = Cluster::full(32, 2);
    cluster.run(SECOND * 10);
    cluster.network.tap = true;
    cluster.leave(1);
    cluster.network.tap = false;
    cluster.run(SECOND);
    let recorded = std::mem::take(&mut cluster.network.recorded);
    let [(from, _, goodbye)] = &recorded[..] else {
        panic!("{} datagrams", recorded.len())
    };
    cluster.restart(1);
    cluster.run(SECOND * 5);
    cluster.deliver(0, *from, goodbye);
    assert_eq!(cluster.live(0), [cluster.nodes[1].name]);
}

#[test]
fn the_number_of_remembered_departed_peers_is_bounded() {
    let mut cluster = Cluster::new(33);
    cluster.add(&[SECRET]);
    cluster.set_limits(0, |limits| limits.peers = 2);
    // After each datagram, an assertion checks that memory is bounded.
    for node in 1..=12 {
        cluster.add(&[SECRET]);
        cluster.list(node, &[0]);
        cluster.run(Duration::from_millis(200));
        assert_eq!(cluster.live(0), [cluster.nodes[node].name]);
        cluster.leave(node);
        cluster.run(Duration::from_millis(10));
    }
    assert_eq!(cluster.status(0).peers.len(), 2 * 4);
}

#[test]
fn a_departed_peer_that_keeps_sending_is_forgotten() {
    let mut cluster = Cluster::new(34);
    cluster.add(&[SECRET]);
    cluster.add(&[SECRET]);
    cluster.list(1, &[0]);
    cluster.run(SECOND * 8);
    cluster.list(1, &[]);
    cluster.leave(1);
    cluster.nodes[1].running = true;
    for _ in 0..20 {
        cluster.offer(1);
        cluster.run(SECOND);
    }
    assert!(cluster.nodes[0].sink.taken > 10, "it is heard");
    assert!(states(&cluster, 0).is_empty());
}

#[test]
fn an_answer_delivered_after_a_goodbye_revives_no_peer() {
    let mut cluster = Cluster::new(36);
    cluster.add(&[SECRET]);
    cluster.add(&[SECRET]);
    let (zero, one) = (cluster.nodes[0].address, cluster.nodes[1].address);
    // Node 1 has an address that differs from the one in node 0's list.
    let other = SocketAddr::from(([10, 0, 1, 1], 7000));
    // Only datagrams that are delivered here arrive.
    (cluster.network.tap, cluster.network.loss_percent) = (true, 100);
    let last = |cluster: &mut Cluster| cluster.network.recorded.pop().expect("it spoke").2;
    cluster.list(0, &[1]);
    let hello = last(&mut cluster);
    cluster.deliver(1, zero, &hello);
    let late = last(&mut cluster);
    cluster.list(1, &[0]);
    let hello = last(&mut cluster);
    cluster.deliver(0, other, &hello);
    let welcome = last(&mut cluster);
    cluster.deliver(1, zero, &welcome);
    let echo = last(&mut cluster);
    cluster.deliver(0, other, &echo);
    assert_eq!(states(&cluster, 0), [(2, PeerState::Live)]);
    cluster.leave(1);
    let goodbye = last(&mut cluster);
    cluster.deliver(0, other, &goodbye);
    cluster.deliver(0, one, &late);
    assert_eq!(states(&cluster, 0), [(2, PeerState::Left)]);
}

#[test]
fn a_replaced_process_does_not_displace_a_later_peer() {
    let mut cluster = Cluster::new(37);
    cluster.add(&[SECRET]);
    cluster.set_limits(0, |limits| limits.peers = 1);
    for node in 1..=3 {
        cluster.add(&[SECRET]);
        if node == 2 {
            cluster.nodes[2].name.node = cluster.nodes[1].name.node;
            cluster.restart(2);
        }
        cluster.list(node, &[0]);
        cluster.run(SECOND);
        assert_eq!(cluster.live(0), [cluster.nodes[node].name]);
        if node == 2 {
            cluster.leave(2);
        }
    }
    let before = cluster.status(0).total.received;
    cluster.offer(1);
    cluster.run(SECOND * 12);
    assert!(cluster.status(0).total.received > before + 3);
    assert_eq!(cluster.live(0), [cluster.nodes[3].name]);
}
