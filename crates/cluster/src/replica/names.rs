//! The names of processes, and one spelling for each address.

use std::net::SocketAddr;

use becket_proto::ticket::NodeId;

/// 64 random bits that name a process: drawn at start, never kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Boot(pub u64);

/// Who a record came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerName {
    /// The configured number of the node.
    pub node: NodeId,
    /// The process that speaks for it.
    pub boot: Boot,
}

/// One spelling per address, so that addresses can be compared.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(_) => address,
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(ip) => SocketAddr::from((ip, v6.port())),
            None => std::net::SocketAddrV6::new(*v6.ip(), v6.port(), 0, v6.scope_id()).into(),
        },
    }
}
