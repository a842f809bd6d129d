//! A listening socket on its way to a worker.

use std::net::{SocketAddr, TcpListener};

/// A listening socket of one worker.
#[derive(Debug)]
pub struct BoundListener {
    /// The configured address.
    pub address: SocketAddr,
    /// The socket, not registered yet.
    pub listener: TcpListener,
    /// It belongs to the service manager, which will pass it to the next process.
    pub inherited: bool,
}
