//! Settings of replication, passed at the start and at each reload.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use becket_proto::session::PolicyTag;
use becket_proto::ticket::{NodeId, SecretId};
use zeroize::Zeroizing;

use crate::sharing::SharedCertificate;

/// All settings of replication. A reload can change all except `node` and `listen`.
#[derive(Clone, Debug)]
pub struct Settings {
    pub node: NodeId,
    /// Secrets of the cluster. The node sends joins under the first secret and accepts joins under
    /// any.
    pub secrets: Vec<Secret>,
    /// Local UDP address for datagrams of peers.
    pub listen: SocketAddr,
    /// Peers, without duplicate names.
    pub peers: Vec<Peer>,
    /// Interval between DNS lookups of the peers. If `None`, lookups end when all names are
    /// resolved.
    pub resolve_interval: Option<Duration>,
    /// TLS policies of all routes. Sessions with a different policy are refused.
    pub policies: HashSet<PolicyTag>,
    /// Maximum lifetime of a session on this node.
    pub id_lifetime: Duration,
    /// Age since the full handshake after which a session is no longer resumed.
    pub max_age: Duration,
    /// Maximum lifetime of a stick (the assignment of a client to a server).
    pub stick_lifetime: Duration,
    /// ACME certificates that the nodes share.
    pub certificates: Vec<SharedCertificate>,
    /// `true` if challenges of peers for any name are passed on, because there are on-demand
    /// certificates.
    pub has_on_demand: bool,
}

/// A secret of the cluster. The ID is identical on all nodes and changes with the key.
#[derive(Clone, PartialEq)]
pub struct Secret {
    pub id: SecretId,
    /// Key from which the join keys and pair keys are derived.
    pub key: Zeroizing<[u8; 32]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Configured name, used in status and log.
    pub name: Arc<str>,
    /// Host name and port to look up; `None` if an IP address is configured.
    pub lookup: Option<(String, u16)>,
    /// The configured IP address, or the addresses that the last DNS lookup returned.
    pub addresses: Vec<SocketAddr>,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Secret({:08x})", self.id.0)
    }
}
