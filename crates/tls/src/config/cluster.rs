//! Prepared `[cluster]`: the state that this becket shares with others.

use std::net::SocketAddr;

use becket_cluster::Peer;
use becket_cluster::stud::StudKey;
use becket_config::cluster;
use becket_proto::epoch::EpochLength;
use becket_proto::session::PolicyTag;
use becket_proto::ticket::NodeId;

use crate::secret::shared::SharedSecret;

/// Settings for the state that this becket shares with others.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// The configured keys.
    pub keys: cluster::Cluster,
    /// Number of this node in the cluster; at least 1. It is a hint in tickets, and identifies this
    /// node to its peers.
    pub node: NodeId,
    /// Cluster secrets with unique IDs; never empty. The first secret seals tickets. All secrets
    /// open tickets and authenticate peers.
    pub secrets: Vec<SharedSecret>,
    /// Duration of a ticket key epoch, equal on all nodes.
    pub rotation: EpochLength,
    /// Address for datagrams of peers; `None` if only tickets are shared.
    pub listen: Option<SocketAddr>,
    /// Peers by address. Names are unique.
    pub peers: Vec<Peer>,
}

/// Settings for receiving sessions of stud and hitch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stud {
    /// Address that receives the datagrams of stud and hitch.
    pub listen: SocketAddr,
    /// Key that seals the datagrams.
    pub key: StudKey,
    /// Configuration name of the policy.
    pub policy_name: String,
    /// Policy under which the sessions resume.
    pub policy: PolicyTag,
    /// Numbers of the policy's TLS 1.2 suites.
    pub suites: Vec<u16>,
    /// The policy rejects sessions without extended master secret.
    pub require_ems: bool,
}
