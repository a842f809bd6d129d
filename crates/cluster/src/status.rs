//! Status of the cluster, for `/status` and `/metrics`.
//!
//! Field names are the names in the JSON, so fields may be added but not renamed. Keys, session
//! states and session IDs are not included.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use becket_proto::session::PolicyTag;
use becket_proto::ticket::{NodeId, SecretId};
use serde::{Serialize, Serializer};

use crate::addresses::ConfiguredPeer;
use crate::replica::{DropCause, ReplicaStatus};
use crate::sink::SinkCounts;

#[derive(Clone, Debug, Serialize)]
pub struct ClusterStatus {
    #[serde(flatten)]
    pub replica: ReplicaStatus,
    pub listen: SocketAddr,
    /// IDs of the accepted secrets. This node sends its joins under the first one.
    #[serde(serialize_with = "secrets")]
    pub secrets: Vec<SecretId>,
    /// Descriptions of problems that an operator must solve.
    pub faults: Vec<String>,
    pub names: Vec<ConfiguredPeer>,
    pub unknown_policies: Vec<UnknownPolicy>,
    pub sessions: SinkCounts,
}

/// Number of sessions refused because no route of this node has their policy.
#[derive(Clone, Debug, Serialize)]
pub struct UnknownPolicy {
    pub node: u16,
    /// First 8 bytes of the policy's digest, in hex.
    pub policy: String,
    pub count: u64,
}

impl ClusterStatus {
    pub(crate) fn find_faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for peer in &self.names {
            let (name, used) = (&peer.name, peer.addresses.len());
            if let Some(problem) = &peer.problem {
                faults.push(format!("{name}: {problem}; {used} addresses are kept"));
            }
            if peer.ignored > 0 {
                let all = used + peer.ignored;
                faults.push(format!(
                    "{name}: has {all} addresses, of which {used} are used"
                ));
            }
        }
        for node in &self.replica.collisions {
            faults.push(format!(
                "node {}: two processes use this number; give each node one of its own",
                node.0
            ));
        }
        for refused in &self.replica.refused {
            let unknown = refused.cause == DropCause::UnknownSecret;
            // Skip solved problems: the node has stopped joining, or its secret is now accepted.
            if refused.ago >= STILL_TRIES || unknown && self.secrets.contains(&refused.secret) {
                continue;
            }
            let who = who(refused.name.as_ref(), refused.address);
            let secret = hex(refused.secret);
            faults.push(if unknown {
                let ours: Vec<String> = self.secrets.iter().copied().map(hex).collect();
                let ours = ours.join(", ");
                format!("{who}: joins with secret {secret}; accepted secrets: {ours}")
            } else {
                format!("{who}: sends joins that do not decrypt, with secret {secret}")
            });
        }
        for UnknownPolicy { node, policy, .. } in &self.unknown_policies {
            faults.push(format!(
                "node {node}: sends sessions of policy {policy}, which no route here has"
            ));
        }
        faults
    }
}

impl UnknownPolicy {
    pub(crate) fn of(((node, policy), count): (&(NodeId, PolicyTag), &u64)) -> Self {
        Self {
            node: node.0,
            policy: format!("{:016x}", policy.0),
            count: *count,
        }
    }
}

/// Time without a join after which a refused node counts as stopped. A joining node sends a HELLO
/// at least every 30 seconds.
const STILL_TRIES: Duration = Duration::from_secs(60);

fn who(name: Option<&Arc<str>>, address: SocketAddr) -> String {
    let address = address.to_string();
    match name {
        Some(name) if **name != *address => format!("{name} ({address})"),
        _ => address,
    }
}

fn hex(secret: SecretId) -> String {
    format!("{:08x}", secret.0)
}

fn secrets<S: Serializer>(secrets: &[SecretId], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(secrets.iter().copied().map(hex))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::{Boot, PeerTraffic, RefusedJoin, WarmUp};

    fn status() -> ClusterStatus {
        ClusterStatus {
            replica: ReplicaStatus {
                node: NodeId(2),
                boot: Boot(1),
                warm_up: WarmUp::Done,
                peers: Vec::new(),
                unanswered: Vec::new(),
                collisions: Vec::new(),
                refused: Vec::new(),
                refused_left_out: 0,
                total: PeerTraffic::default(),
            },
            listen: SocketAddr::from(([192, 0, 2, 2], 7443)),
            secrets: vec![OURS],
            faults: Vec::new(),
            names: Vec::new(),
            unknown_policies: Vec::new(),
            sessions: SinkCounts::default(),
        }
    }

    const OURS: SecretId = SecretId(0x0a0b_0c0d);

    #[test]
    fn recent_rejected_joins_are_faults_unless_the_secret_is_now_known() {
        let mut status = status();
        let mut faults = |secret, cause, ago| {
            status.replica.refused = vec![RefusedJoin {
                address: SocketAddr::from(([192, 0, 2, 9], 7443)),
                name: None,
                cause,
                secret,
                ago: Duration::from_secs(ago),
                last: Duration::ZERO,
                count: 3,
            }];
            status.find_faults().len()
        };
        let other = SecretId(9);
        assert_eq!(faults(other, DropCause::UnknownSecret, 3), 1);
        assert_eq!(faults(other, DropCause::UnknownSecret, 61), 0);
        assert_eq!(faults(OURS, DropCause::UnknownSecret, 3), 0);
        assert_eq!(faults(OURS, DropCause::BadJoin, 3), 1);
    }
}
