//! Address of a server, as used for a connect.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use becket_config::address::Address;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl ServerAddress {
    /// Converts a configured address. Returns `None` if it needs a DNS lookup.
    pub fn fixed(address: &Address) -> Option<Self> {
        match address {
            Address::Ip(ip, port) => Some(Self::Tcp((*ip, *port).into())),
            Address::Unix(path) => Some(Self::Unix(path.clone())),
            Address::Name(..) | Address::Any(_) => None,
        }
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// Maximum number of addresses used per server. A DNS response may contain thousands.
pub const MOST_ADDRESSES: usize = 64;
