//! The part of `/metrics` about the cluster; nothing of it is there when sessions are not
//! replicated.
//!
//! The label `node` is a number that a peer with the secret says is its own, and there are no more
//! of them than a state machine remembers peers; no other label depends on what peers do.

use std::collections::BTreeMap;
use std::fmt;

use becket_proto::replica::Cause;

use super::exposition::{Page, Scrape};
use crate::cluster::status::{ClusterStatus, PeerStatus};

impl Scrape {
    /// Writes the families of the cluster.
    pub(super) fn cluster(&self, page: &mut Page<'_>) -> fmt::Result {
        let untold = self.sum(|c| &c.sessions_untold);
        match &self.condition.cluster {
            None => Ok(()),
            Some(cluster) => {
                sessions(page, cluster, untold)?;
                traffic(page, cluster)?;
                peers(page, cluster)
            }
        }
    }
}

impl Scrape {
    /// Writes what became of datagrams of stud and hitch, where they are received.
    pub(super) fn stud(&self, page: &mut Page<'_>) -> fmt::Result {
        let Some(stud) = &self.condition.stud else {
            return Ok(());
        };
        let datagrams = stud.datagrams.iter();
        page.counters(
            "becket_stud_datagrams",
            "Datagrams of stud and hitch by what became of the session in them",
            datagrams.map(|(outcome, count)| ([("outcome", *outcome)], *count)),
        )
    }
}

fn sessions(page: &mut Page<'_>, cluster: &ClusterStatus, untold: u64) -> fmt::Result {
    let sessions = &cluster.sessions;
    page.counters(
        "becket_cluster_sessions",
        "Sessions told to peers, kept of theirs, and not told because control was behind",
        [
            ([("what", "told")], sessions.told),
            ([("what", "stored")], sessions.stored),
            ([("what", "untold")], untold),
        ],
    )?;
    page.counters(
        "becket_cluster_sessions_ended",
        "Sessions that ended with a fatal alert: told to peers, and removed because of theirs",
        [
            ([("what", "told")], sessions.ends_told),
            ([("what", "removed")], sessions.ended),
        ],
    )?;
    page.counters(
        "becket_cluster_sticks",
        "Clients that stick to a server: told to peers, and kept of theirs",
        [
            ([("what", "told")], sessions.sticks_told),
            ([("what", "kept")], sessions.sticks),
        ],
    )
}

fn traffic(page: &mut Page<'_>, cluster: &ClusterStatus) -> fmt::Result {
    let total = &cluster.total;
    let both = |sent, received| [([("way", "out")], sent), ([("way", "in")], received)];
    page.counters(
        "becket_cluster_datagrams",
        "Datagrams sent to peers, and genuine ones received",
        both(total.sent, total.received),
    )?;
    page.counters(
        "becket_cluster_bytes",
        "Bytes of these datagrams",
        both(total.sent_bytes, total.received_bytes),
    )?;
    page.counters(
        "becket_cluster_records",
        "Records in these datagrams; of received ones, those that were put to use",
        both(total.sent_records, total.received_records),
    )?;
    page.counter(
        "becket_cluster_datagrams_lost",
        "Datagrams of peers that never came",
        total.lost,
    )?;
    let dropped = Cause::ALL.map(|cause| {
        let count = total.causes.get(cause.name());
        ([("cause", cause.name())], count.copied().unwrap_or(0))
    });
    page.counters(
        "becket_cluster_dropped",
        "Datagrams and records that were dropped",
        dropped,
    )
}

fn peers(page: &mut Page<'_>, cluster: &ClusterStatus) -> fmt::Result {
    let states = ["live", "replaced", "left"].map(|state| {
        let peers = cluster.peers.iter().filter(|peer| peer.state == state);
        ([("state", state)], peers.count() as u64)
    });
    page.gauges("becket_cluster_peers", "Peers", states)?;
    let configured = cluster.names.len() as u64;
    page.gauge(
        "becket_cluster_peers_configured",
        "Peers of the configuration",
        configured,
    )?;
    let collisions = cluster.collisions.len() as u64;
    page.gauge(
        "becket_cluster_collisions",
        "Numbers of nodes that two or more processes use",
        collisions,
    )?;
    let unresolved = cluster.names.iter().filter(|name| name.problem.is_some());
    page.gauge(
        "becket_cluster_names_unresolved",
        "Names of peers that do not resolve",
        unresolved.count() as u64,
    )?;
    let warm = u64::from(cluster.warm_up == "done");
    page.gauge(
        "becket_cluster_warm",
        "1 once what others hold was received, as far as there was any",
        warm,
    )?;
    let heard = by_node(cluster, |peer| peer.heard_seconds_ago, f64::min);
    page.gauges(
        "becket_cluster_peer_heard_seconds",
        "Time since a node was heard",
        heard,
    )?;
    let lost = by_node(cluster, |peer| peer.exchanged.lost, |a, b| a + b);
    page.gauges(
        "becket_cluster_peer_lost",
        "Datagrams of a node that never came, since it became a peer",
        lost,
    )
}

/// One value per node: two processes may use one number.
fn by_node<T: Copy>(
    cluster: &ClusterStatus,
    value: impl Fn(&PeerStatus) -> T,
    join: impl Fn(T, T) -> T,
) -> Vec<([(&'static str, String); 1], T)> {
    let mut nodes: BTreeMap<u16, T> = BTreeMap::new();
    for peer in &cluster.peers {
        let one = value(peer);
        let joined = nodes.get(&peer.node).map_or(one, |other| join(*other, one));
        nodes.insert(peer.node, joined);
    }
    let labelled = nodes.into_iter();
    labelled
        .map(|(node, value)| ([("node", node.to_string())], value))
        .collect()
}
