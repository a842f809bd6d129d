//! The `[cluster]` section, prepared for use.

use std::fmt;
use std::net::SocketAddr;

use becket_cluster::Peer;
use becket_config::cluster;
use becket_proto::epoch::EpochLength;
use becket_proto::ticket::NodeId;
use zeroize::Zeroizing;

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
    /// Files of `cluster.store`.
    pub store: StoreFiles,
}

/// Contents of the files that a connection to the store needs.
#[derive(Clone, Default, PartialEq)]
pub struct StoreFiles {
    pub password: Option<Zeroizing<String>>,
    /// CA certificates as PEM; `None` for the system's.
    pub authorities: Option<Vec<u8>>,
}

impl fmt::Debug for StoreFiles {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("StoreFiles").finish_non_exhaustive()
    }
}
