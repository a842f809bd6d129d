//! Where clients were sent: told to who joins, and bounded for each peer.

use std::time::Duration;

use becket_cluster::replica::{DropCause, PeerRecord, ServerTag, StickKey, StickRecord, WarmUp};
use becket_proto::ticket::OriginId;

use crate::cluster::Cluster;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_node_that_joins_is_told_who_sticks_where() {
    let mut cluster = Cluster::full(33, 2);
    cluster.run(SECOND * 10);
    for origin in 0..500 {
        let sticks = &mut cluster.nodes[0].sink.sticks;
        sticks.insert(origin, ServerTag(origin * 3));
    }
    let id = cluster.offer(0);
    cluster.restart(1);
    cluster.run(SECOND * 5);
    assert_eq!(cluster.status(1).warm_up, WarmUp::Done);
    assert!(cluster.holds(1, &id));
    assert_eq!(cluster.nodes[1].sink.sticks.len(), 500);
    assert_eq!(cluster.nodes[1].sink.sticks[&7], ServerTag(21));
}

#[test]
fn one_peer_has_a_bounded_number_of_clients_that_stick() {
    let mut cluster = Cluster::full(34, 2);
    cluster.set_limits(1, |limits| {
        limits.sticks_per_peer = 50;
        limits.max_stick_ttl = SECOND * 100;
    });
    // The time of a count is set when a peer joins.
    cluster.restart(1);
    cluster.run(SECOND * 10);
    let stick = |cluster: &mut Cluster, origin| {
        let stick = StickRecord {
            by: StickKey::Origin(OriginId(origin)),
            server: ServerTag(1),
            ttl: SECOND * 10_000,
        };
        cluster.nodes[0].replica.offer(&PeerRecord::Stick(stick));
        cluster.settle(0);
    };
    (0..80).for_each(|origin| stick(&mut cluster, origin));
    cluster.run(SECOND);
    let peer = cluster.status(1).peers[0].clone();
    assert_eq!((peer.sticks, cluster.nodes[1].sink.sticks.len()), (50, 50));
    assert_eq!(peer.traffic.drops.of(DropCause::TooManyEntries), 30);
    assert_eq!(peer.entries, 0, "sessions are counted apart");
    cluster.run(SECOND * 130);
    stick(&mut cluster, 100);
    cluster.run(SECOND);
    assert_eq!(cluster.status(1).peers[0].sticks, 1, "their time was over");
}
