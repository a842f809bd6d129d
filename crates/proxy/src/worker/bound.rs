//! A listening socket that is bound to its address, before a worker accepts from it.

use std::net::{SocketAddr, TcpListener};

#[derive(Debug)]
pub struct BoundListener {
    pub address: SocketAddr,
    pub listener: TcpListener,
    /// `true` if the service manager owns the socket and also passes it to the next process.
    pub inherited: bool,
}
