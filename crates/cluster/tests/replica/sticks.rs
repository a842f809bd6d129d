//! Assignments of clients to servers (sticks) in the dump for a joining node.

use std::time::Duration;

use becket_cluster::replica::{ServerTag, WarmUp};

use crate::cluster::Cluster;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_joining_node_receives_the_stick_entries() {
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
