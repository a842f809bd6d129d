//! Names of processes, and a canonical form of addresses.

use std::net::SocketAddr;

use becket_proto::ticket::NodeId;

/// 64 random bits that identify a process: drawn at start, never stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Boot(pub u64);

/// Name of a process of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerName {
    /// Configured number of the node.
    pub node: NodeId,
    /// Identifies the process of the node.
    pub boot: Boot,
}

/// Converts an address to its canonical form, so that addresses can be compared.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(_) => address,
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(ip) => SocketAddr::from((ip, v6.port())),
            None => std::net::SocketAddrV6::new(*v6.ip(), v6.port(), 0, v6.scope_id()).into(),
        },
    }
}
