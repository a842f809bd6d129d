//! Identities of nodes and processes, and a canonical form of addresses.

use std::net::SocketAddr;

use becket_proto::ticket::NodeId;

/// Random 64-bit identifier of a process, generated at start and never stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Boot(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerName {
    pub node: NodeId,
    pub boot: Boot,
}

impl PeerName {
    /// First name in the order of all names.
    pub(super) const LOWEST: Self = Self {
        node: NodeId(0),
        boot: Boot(0),
    };
}

/// Converts IPv4-mapped IPv6 addresses to IPv4 and clears the flow label, so that addresses can be
/// compared.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(_) => address,
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(ip) => SocketAddr::from((ip, v6.port())),
            None => std::net::SocketAddrV6::new(*v6.ip(), v6.port(), 0, v6.scope_id()).into(),
        },
    }
}
