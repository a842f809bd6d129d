//! The UDP socket of replication: bound at launch, before privileges are given up.
//!
//! Sending never blocks: a datagram that the kernel does not take is lost and counted, as one that
//! the network loses. What other hosts say by ICMP does not reach a socket that is not connected.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket as StdSocket};

use becket_sys::socket::{datagrams, hear_only};
use tokio::net::UdpSocket;

use crate::replica::SIGNATURE;
use crate::settings::Settings;

/// The socket of one node.
#[derive(Debug)]
pub(crate) struct PeerSocket {
    socket: UdpSocket,
    /// A second handle of the socket: the runtime refuses to send before it has polled its own.
    sender: StdSocket,
    /// The socket is on `[::]`: it speaks with IPv4 by mapped addresses.
    maps_v4: bool,
}

/// What came of an attempt to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketRead {
    /// A datagram of so many bytes, cut to the buffer.
    Datagram(usize, SocketAddr),
    /// An error that says nothing about the next attempt.
    Noise,
    /// Nothing waits.
    Silence,
}

/// What could not be bound: a fault of the configuration, or of the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotBound {
    /// The path of the key.
    pub key: &'static str,
    /// Its value, in the notation of the file.
    pub value: String,
    /// In words.
    pub fault: String,
    /// In words, too.
    pub accepted: &'static str,
}

/// Binds the socket of these settings, unless it is given.
///
/// # Errors
/// When it cannot be bound.
pub fn bind(
    settings: &Settings,
    given: Option<io::Result<StdSocket>>,
) -> Result<StdSocket, NotBound> {
    let listen = settings.listen;
    let socket = bind_datagrams("cluster.listen", listen, BUFFER, given)?;
    if let Err(error) = hear_only(&socket, SIGNATURE) {
        // It costs time only: what is garbage is found out here as well.
        tracing::warn!(%error, "garbage is not dropped by the kernel");
    }
    tracing::info!(address = %listen, node = settings.node.0, "listening for peers");
    Ok(socket)
}

/// Binds a socket for datagrams with a buffer of so many bytes, unless it is given, for the key at fault where that fails.
pub(crate) fn bind_datagrams(
    key: &'static str,
    listen: SocketAddr,
    buffer: usize,
    given: Option<io::Result<StdSocket>>,
) -> Result<StdSocket, NotBound> {
    let bound = given.unwrap_or_else(|| datagrams(listen, buffer));
    bound.map_err(|error| NotBound {
        key,
        value: listen.to_string(),
        fault: error.to_string(),
        accepted: match error.kind() {
            ErrorKind::AddrInUse => "an address and UDP port that no other program has",
            ErrorKind::PermissionDenied => {
                "a port from 1024 up, or CAP_NET_BIND_SERVICE, or a start as root with process.user"
            }
            ErrorKind::AddrNotAvailable => "an address of this host",
            _ => "an address that can be bound",
        },
    })
}

impl PeerSocket {
    /// Hands a bound socket to the runtime in which this is called.
    ///
    /// # Errors
    /// When the runtime cannot watch it.
    pub(crate) fn register(bound: StdSocket) -> io::Result<Self> {
        let maps_v4 = matches!(bound.local_addr()?, SocketAddr::V6(v6) if v6.ip().is_unspecified());
        Ok(Self {
            sender: bound.try_clone()?,
            socket: UdpSocket::from_std(bound)?,
            maps_v4,
        })
    }

    /// Waits until something can be received.
    pub(crate) async fn readable(&self) {
        // An error of the watch itself would be found by `receive` as well.
        let _watched = self.socket.readable().await;
    }

    /// Receives one datagram without waiting.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> SocketRead {
        match self.socket.try_recv_from(buffer) {
            Ok((len, from)) => SocketRead::Datagram(len, from),
            Err(error) if error.kind() == ErrorKind::WouldBlock => SocketRead::Silence,
            Err(_) => SocketRead::Noise,
        }
    }

    /// Sends one datagram without waiting. False when the kernel did not take it.
    pub(crate) fn send(&self, to: SocketAddr, datagram: &[u8]) -> bool {
        let to = match to {
            SocketAddr::V4(v4) if self.maps_v4 => (v4.ip().to_ipv6_mapped(), v4.port()).into(),
            to => to,
        };
        self.sender.send_to(datagram, to).is_ok()
    }
}

/// What the kernel is asked to hold: half a second of 50 000 sessions a second.
const BUFFER: usize = 4 * 1024 * 1024;
