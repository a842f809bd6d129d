//! The `[cluster]` section, prepared for use.

use std::net::SocketAddr;

use becket_cluster::Peer;
use becket_config::cluster;
use becket_proto::epoch::EpochLength;
use becket_proto::ticket::NodeId;

use crate::secret::shared::SharedSecret;

#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    pub keys: cluster::Cluster,
    /// Number of this node in the cluster, at least 1. Peers identify this node by it, and its
    /// tickets contain it as a hint.
    pub node: NodeId,
    /// Cluster secrets with unique IDs; never empty. The first secret seals tickets. Every secret
    /// can open tickets and authenticate peers.
    pub secrets: Vec<SharedSecret>,
    /// Time for which one ticket key seals new tickets. Equal on all nodes.
    pub rotation: EpochLength,
    /// Address for datagrams of peers; `None` if only tickets are shared.
    pub listen: Option<SocketAddr>,
    /// Peers to which sessions are sent. Their names are unique.
    pub peers: Vec<Peer>,
}
