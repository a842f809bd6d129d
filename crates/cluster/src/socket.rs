//! The UDP socket of replication, bound at start before privileges are dropped.
//!
//! Sending never blocks: a datagram that the kernel does not accept is counted as lost. The socket is not connected, so
//! ICMP errors do not affect it.

use std::io;
use std::net::{SocketAddr, UdpSocket as StdSocket};

use becket_sys::socket::{datagrams, hear_only};
use tokio::net::UdpSocket;

use crate::replica::SIGNATURE;
use crate::settings::Settings;

#[derive(Debug)]
pub(crate) struct PeerSocket {
    socket: UdpSocket,
    /// Second handle of the socket, for sending. The runtime's handle cannot send until the runtime has polled the
    /// socket.
    sender: StdSocket,
    /// `true` if the socket is bound to `[::]` and therefore uses IPv4-mapped IPv6 addresses for
    /// IPv4.
    maps_v4: bool,
}

/// Binds the socket to the configured address, or uses the inherited socket `given`.
///
/// # Errors
/// Fails if the socket cannot be bound.
pub fn bind(settings: &Settings, given: Option<io::Result<StdSocket>>) -> io::Result<StdSocket> {
    let listen = settings.listen;
    let socket = given.unwrap_or_else(|| datagrams(listen, BUFFER))?;
    if let Err(error) = hear_only(&socket, SIGNATURE) {
        // Without the filter, datagrams of other protocols are dropped later, by the state machine.
        tracing::warn!(name: "socket-filter-failed", %error, "cannot attach the socket filter of the cluster socket");
    }
    tracing::info!(name: "replication-listening", address = %listen, node = settings.node.0, "listening for peers");
    Ok(socket)
}

impl PeerSocket {
    /// Registers a bound socket with the current async runtime.
    ///
    /// # Errors
    /// Fails if the runtime cannot register the socket.
    pub(crate) fn register(bound: StdSocket) -> io::Result<Self> {
        let maps_v4 = matches!(bound.local_addr()?, SocketAddr::V6(v6) if v6.ip().is_unspecified());
        Ok(Self {
            sender: bound.try_clone()?,
            socket: UdpSocket::from_std(bound)?,
            maps_v4,
        })
    }

    pub(crate) async fn readable(&self) {
        // The error is ignored because the next `receive` returns it.
        let _watched = self.socket.readable().await;
    }

    /// Receives one datagram without waiting, and returns its length and source. Truncates a datagram
    /// that is longer than the buffer.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.socket.try_recv_from(buffer)
    }

    /// Sends one datagram without waiting. Returns `true` if the kernel accepted it.
    pub(crate) fn send(&self, to: SocketAddr, datagram: &[u8]) -> bool {
        let to = match to {
            SocketAddr::V4(v4) if self.maps_v4 => (v4.ip().to_ipv6_mapped(), v4.port()).into(),
            to => to,
        };
        self.sender.send_to(datagram, to).is_ok()
    }
}

/// Requested size of the kernel's receive buffer in bytes: half a second of datagrams at 50 000
/// sessions per second.
const BUFFER: usize = 4 * 1024 * 1024;
