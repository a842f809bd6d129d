//! Nodes that end with a word: seen at once, and by nobody but those to whom it was said.

use std::time::Duration;

use becket_proto::replica::PeerState;

use crate::cluster::Cluster;

const SECOND: Duration = Duration::from_secs(1);

fn states(cluster: &mut Cluster, node: usize) -> Vec<(u16, PeerState)> {
    let peers = cluster.status(node).peers;
    peers.iter().map(|peer| (peer.node.0, peer.state)).collect()
}

#[test]
fn who_says_goodbye_has_left_at_once_and_is_sent_nothing() {
    let mut cluster = Cluster::full(30, 3);
    cluster.run(SECOND * 10);
    cluster.leave(1);
    cluster.run(Duration::from_millis(10));
    let expected = [(2, PeerState::Left), (3, PeerState::Live)];
    assert_eq!(states(&mut cluster, 0), expected);
    let before = cluster.status(0).peers[0].traffic.datagrams_out;
    let id = cluster.offer(0);
    cluster.run(SECOND * 10);
    assert_eq!(cluster.came(2, &id), 1);
    let left = cluster.status(0).peers[0].clone();
    assert_eq!((left.traffic.datagrams_out, left.queued_bytes), (before, 0));
    cluster.run(SECOND * 10);
    assert_eq!(states(&mut cluster, 0), [(3, PeerState::Live)], "forgotten");
}

#[test]
fn who_left_and_comes_back_is_a_peer_at_once_and_is_given_what_it_missed() {
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
fn a_goodbye_that_was_recorded_ends_nobody() {
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
