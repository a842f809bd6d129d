//! What `/status` and `/metrics` show of the cluster: everything at one moment.
//!
//! Serialized as it is, so its fields are the names in the JSON; they are added to, never renamed. Keys, states and session
//! IDs are not in it. [`ClusterStatus::faults`] says in words what somebody has to mend; the rest is numbers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use becket_proto::session_table::PolicyTag;
use becket_proto::ticket::{NodeId, SecretId};
use becket_sys::clock::Now;
use serde::{Serialize, Serializer};

use crate::addresses::ConfiguredPeer;
use crate::node::Inner;
use crate::replica::{Cause, Status};
use crate::sink::Numbers;

/// The whole object.
#[derive(Clone, Debug, Serialize)]
pub struct ClusterStatus {
    /// What the state machine knows.
    #[serde(flatten)]
    pub replica: Status,
    /// Where datagrams of peers arrive.
    pub listen: SocketAddr,
    /// The group that is called for further peers.
    pub multicast: Option<SocketAddr>,
    /// Ids of the secrets that let peers in; the first one is joined with.
    #[serde(serialize_with = "secrets")]
    pub secrets: Vec<SecretId>,
    /// What somebody has to mend, in words.
    pub faults: Vec<String>,
    /// Peers of the configuration.
    pub names: Vec<ConfiguredPeer>,
    /// Sessions of policies that we do not have.
    pub unknown_policies: Vec<UnknownPolicy>,
    /// Sessions out and in.
    pub sessions: Numbers,
}

/// Sessions of a policy that we do not have.
#[derive(Clone, Debug, Serialize)]
pub struct UnknownPolicy {
    /// Who sends them.
    pub node: u16,
    /// The first 8 bytes of its digest, in hex.
    pub policy: String,
    /// How many came.
    pub count: u64,
}

impl ClusterStatus {
    pub(crate) fn of(inner: &mut Inner, now: Now) -> Self {
        let mut replica = inner.replica.status(now.mono);
        let name = |address| inner.addresses.name_of(address);
        for peer in &mut replica.peers {
            peer.name = name(peer.address);
        }
        for unanswered in &mut replica.unanswered {
            unanswered.name = name(unanswered.address);
        }
        for refused in &mut replica.refused {
            refused.name = name(refused.address);
        }
        let settings = &inner.settings;
        let secrets = settings.secrets.iter().map(|secret| secret.id).collect();
        let unknown = inner.sink.unknown.iter();
        let mut this = Self {
            replica,
            listen: settings.listen,
            multicast: settings.multicast.as_ref().map(|multicast| multicast.group),
            secrets,
            faults: Vec::new(),
            names: inner.addresses.peers().cloned().collect(),
            unknown_policies: unknown.map(UnknownPolicy::of).collect(),
            sessions: inner.sink.numbers,
        };
        this.faults = this.find_faults();
        this
    }

    fn find_faults(&self) -> Vec<String> {
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
            let unknown = refused.cause == Cause::UnknownSecret;
            // A node that still tries comes again within seconds; what was mended is no fault any more.
            if refused.ago >= STILL_TRIES || unknown && self.secrets.contains(&refused.secret) {
                continue;
            }
            let who = who(refused.name.as_ref(), refused.address);
            let secret = hex(refused.secret);
            faults.push(if unknown {
                let ours: Vec<String> = self.secrets.iter().copied().map(hex).collect();
                let ours = ours.join(", ");
                format!("{who}: joins with secret {secret}, which is not one of ours ({ours})")
            } else {
                format!("{who}: joins that do not open, with secret {secret}")
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
    fn of(((node, policy), count): (&(NodeId, PolicyTag), &u64)) -> Self {
        Self {
            node: node.0,
            policy: format!("{:016x}", policy.0),
            count: *count,
        }
    }
}

/// A node that wants to join greets every few seconds, and rests for half a minute at most.
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
    use crate::replica::{Boot, RefusedJoin, Traffic, WarmUp};

    fn status() -> ClusterStatus {
        ClusterStatus {
            replica: Status {
                node: NodeId(2),
                boot: Boot(1),
                warm_up: WarmUp::Done,
                peers: Vec::new(),
                unanswered: Vec::new(),
                collisions: Vec::new(),
                refused: Vec::new(),
                refused_left_out: 0,
                total: Traffic::default(),
            },
            listen: SocketAddr::from(([192, 0, 2, 2], 7443)),
            multicast: None,
            secrets: vec![OURS],
            faults: Vec::new(),
            names: Vec::new(),
            unknown_policies: Vec::new(),
            sessions: Numbers::default(),
        }
    }

    const OURS: SecretId = SecretId(0x0a0b_0c0d);

    #[test]
    fn who_is_refused_is_a_fault_until_it_is_mended() {
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
        assert_eq!(faults(other, Cause::UnknownSecret, 3), 1);
        assert_eq!(faults(other, Cause::UnknownSecret, 61), 0);
        assert_eq!(faults(OURS, Cause::UnknownSecret, 3), 0);
        assert_eq!(faults(OURS, Cause::BadJoin, 3), 1);
    }
}
