//! Logs changes among the peers, one line for each change: new and lost peers, node numbers that are used twice, and
//! nodes that try to join with an unknown secret.
//!
//! Checks take place at most once a second, regardless of the number of datagrams. Lines about unknown addresses are
//! limited to one per second, because the number of addresses is unlimited.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use becket_proto::ticket::{NodeId, SecretId};

use crate::replica::{PeerName, PeerState, ReplicaStatus};

#[derive(Debug, Default)]
pub(crate) struct PeerLog {
    next: Duration,
    live: BTreeSet<PeerName>,
    collisions: Vec<NodeId>,
    refused: Vec<(SocketAddr, SecretId)>,
    /// Earliest time at which an unknown address is logged again. Lines before that time are only
    /// counted.
    stranger_next: Duration,
    suppressed: u64,
}

impl PeerLog {
    /// Returns whether the next check is due. Returns `true` at most once a second.
    pub(crate) fn is_due(&mut self, now: Duration) -> bool {
        let due = now >= self.next;
        if due {
            self.next = now + AGAIN;
        }
        due
    }

    /// Logs changes. Returns the number of log lines.
    pub(crate) fn tell(&mut self, status: &ReplicaStatus, now: Duration) -> usize {
        self.peers(status) + self.collisions(status) + self.strangers(status, now)
    }

    fn peers(&mut self, status: &ReplicaStatus) -> usize {
        let live = status.peers.iter();
        let live = live.filter(|peer| peer.state == PeerState::Live);
        let mut lines = 0;
        let mut now = BTreeSet::new();
        for peer in live {
            let name = PeerName {
                node: peer.node,
                boot: peer.boot,
            };
            now.insert(name);
            if !self.live.contains(&name) {
                lines += 1;
                tracing::info!(name: "peer-joined", node = peer.node.0, address = %peer.address, "peer joined");
            }
        }
        for gone in self.live.difference(&now) {
            lines += 1;
            let mut peers = status.peers.iter();
            let said = peers.any(|peer| {
                (peer.node, peer.boot, peer.state) == (gone.node, gone.boot, PeerState::Left)
            });
            if said {
                tracing::info!(name: "peer-left", node = gone.node.0, "peer left");
            } else {
                tracing::warn!(name: "peer-lost", node = gone.node.0, "lost contact with a peer");
            }
        }
        self.live = now;
        lines
    }

    fn collisions(&mut self, status: &ReplicaStatus) -> usize {
        let fresh = status.collisions.iter();
        let fresh = fresh.filter(|node| !self.collisions.contains(node));
        let lines = fresh
            .inspect(|node| tracing::error!(name: "peer-duplicate-node", node = node.0, "another process has the same cluster.node"))
            .count();
        self.collisions.clone_from(&status.collisions);
        lines
    }

    fn strangers(&mut self, status: &ReplicaStatus, now: Duration) -> usize {
        let mut lines = 0;
        for refused in &status.refused {
            if self.refused.contains(&(refused.address, refused.secret)) {
                continue;
            }
            if now < self.stranger_next {
                self.suppressed += 1;
            } else {
                self.stranger_next = now + AGAIN;
                let suppressed = std::mem::take(&mut self.suppressed);
                lines += 1;
                let secret = format!("{:08x}", refused.secret.0);
                let (address, cause) = (refused.address, refused.cause.label());
                tracing::warn!(name: "peer-rejected", %address, secret, reason = cause, suppressed, "peer not admitted to the cluster");
            }
        }
        let refused = status.refused.iter();
        self.refused = refused.map(|one| (one.address, one.secret)).collect();
        lines
    }
}

const AGAIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use crate::replica::{Boot, DropCause, PeerStatus, PeerTraffic, RefusedJoin, WarmUp};

    use super::*;

    fn status(boots: &[u64], collisions: &[u16], strangers: u16) -> ReplicaStatus {
        let address = |port| SocketAddr::from(([192, 0, 2, 1], port));
        let peer = |boot: &u64| PeerStatus {
            name: None,
            node: NodeId(1),
            boot: Boot(*boot),
            address: address(1),
            state: PeerState::Live,
            secret: SecretId(1),
            peer_for: Duration::ZERO,
            heard_ago: Duration::ZERO,
            sessions_held: 0,
            queued_bytes: 0,
            dumping: false,
            traffic: PeerTraffic::default(),
        };
        let stranger = |port| RefusedJoin {
            address: address(port),
            cause: DropCause::UnknownSecret,
            secret: SecretId(2),
            name: None,
            ago: Duration::ZERO,
            last: Duration::ZERO,
            count: 1,
        };
        ReplicaStatus {
            node: NodeId(2),
            boot: Boot(0),
            peers: boots.iter().map(peer).collect(),
            unanswered: Vec::new(),
            collisions: collisions.iter().copied().map(NodeId).collect(),
            refused: (0..strangers).map(stranger).collect(),
            refused_left_out: 0,
            warm_up: WarmUp::Waiting,
            total: PeerTraffic::default(),
        }
    }

    #[test]
    fn each_change_is_logged_once() {
        let now = Duration::ZERO;
        let mut log = PeerLog::default();
        assert_eq!(log.tell(&status(&[], &[], 0), now), 0);
        assert_eq!(log.tell(&status(&[7], &[], 0), now), 1);
        assert_eq!(log.tell(&status(&[7], &[], 0), now), 0);
        // A restart: one process is lost, another one joined.
        assert_eq!(log.tell(&status(&[8], &[], 0), now), 2);
        assert_eq!(log.tell(&status(&[8], &[1], 0), now), 1);
        assert_eq!(log.tell(&status(&[8], &[1], 0), now), 0);
        assert_eq!(log.tell(&status(&[], &[], 0), now), 1);
    }

    #[test]
    fn rejected_peers_log_at_most_one_line_per_second() {
        let now = Duration::ZERO;
        let mut log = PeerLog::default();
        assert_eq!(log.tell(&status(&[], &[], 50), now), 1);
        assert_eq!(log.tell(&status(&[], &[], 50), now), 0);
        assert_eq!(
            log.tell(&status(&[], &[], 60), now),
            0,
            "in the same second"
        );
    }

    #[test]
    fn a_status_check_is_due_once_per_second() {
        let mut log = PeerLog::default();
        assert!(log.is_due(Duration::from_millis(10)));
        assert!(!log.is_due(Duration::from_millis(1000)));
        assert!(log.is_due(Duration::from_millis(1010)));
    }
}
