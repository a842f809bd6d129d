//! The UDP sockets of replication: bound at launch, before privileges are given up.
//!
//! One socket sends and receives everything. Calls to a multicast group leave by it as well, so
//! that the answer comes to an address at which we hear it. To hear the calls of others it joins
//! the group if it is bound to every address and to the group's port; else there is a second
//! socket that only listens.
//!
//! Sending never blocks: a datagram that the kernel does not take is lost and counted, as one that
//! the network loses. What other hosts say by ICMP does not reach a socket that is not connected.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket as StdSocket};

use becket_sys::socket::{Group, datagrams, hear_only, interface, join, member, send_to_group};
use tokio::net::UdpSocket;

use crate::replica::SIGNATURE;
use crate::settings::{Multicast, Settings};

/// The sockets of one node, not registered with a runtime yet.
#[derive(Debug)]
pub struct Bound {
    unicast: StdSocket,
    group: Option<StdSocket>,
}

/// The sockets of one node.
#[derive(Debug)]
pub(crate) struct Sockets {
    unicast: UdpSocket,
    group: Option<UdpSocket>,
    /// The unicast socket once more: the runtime would refuse to send before it has looked at it.
    sender: StdSocket,
    /// The unicast socket is on `[::]`: it speaks with IPv4 by mapped addresses.
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

/// Binds the socket of these settings, unless it is given, and joins their group.
///
/// # Errors
/// What cannot be bound or joined.
pub fn bind(settings: &Settings, given: Option<io::Result<StdSocket>>) -> Result<Bound, NotBound> {
    let listen = settings.listen;
    let unicast = bind_datagrams("cluster.listen", listen, BUFFER, given)?;
    let group = match &settings.multicast {
        None => None,
        Some(multicast) => enter(&unicast, listen, multicast)?,
    };
    for socket in [Some(&unicast), group.as_ref()].into_iter().flatten() {
        if let Err(error) = hear_only(socket, SIGNATURE) {
            // It costs time only: what is garbage is found out here as well.
            tracing::warn!(%error, "garbage is not dropped by the kernel");
        }
    }
    tracing::info!(address = %listen, node = settings.node.0, "listening for peers");
    Ok(Bound { unicast, group })
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

/// Lets `unicast` call the group, and returns the socket that hears it where that is another.
fn enter(
    unicast: &StdSocket,
    listen: SocketAddr,
    multicast: &Multicast,
) -> Result<Option<StdSocket>, NotBound> {
    let index = multicast.interface.as_deref().map(interface).transpose();
    let index = index.map_err(|error| NotBound {
        key: "cluster.multicast-interface",
        value: format!("{:?}", multicast.interface.as_deref().unwrap_or_default()),
        fault: error.to_string(),
        accepted: "an interface of this host",
    })?;
    let group = Group {
        address: multicast.group,
        interface: index,
        hops: multicast.ttl.into(),
    };
    let hears = || -> io::Result<Option<StdSocket>> {
        send_to_group(unicast, &group)?;
        if listen.ip().is_unspecified() && listen.port() == group.address.port() {
            join(unicast, &group)?;
            return Ok(None);
        }
        member(&group).map(Some)
    };
    hears().map_err(|error| NotBound {
        key: "cluster.multicast",
        value: multicast.group.to_string(),
        fault: error.to_string(),
        accepted: "a group that an interface of this host can join",
    })
}

impl Bound {
    /// Where datagrams of peers arrive.
    ///
    /// # Errors
    /// None on a bound socket.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.unicast.local_addr()
    }
}

impl Sockets {
    /// Hands the sockets to the runtime in which this is called.
    ///
    /// # Errors
    /// When the runtime cannot watch them.
    pub(crate) fn register(bound: Bound) -> io::Result<Self> {
        let maps_v4 =
            matches!(bound.unicast.local_addr()?, SocketAddr::V6(v6) if v6.ip().is_unspecified());
        Ok(Self {
            sender: bound.unicast.try_clone()?,
            unicast: UdpSocket::from_std(bound.unicast)?,
            group: bound.group.map(UdpSocket::from_std).transpose()?,
            maps_v4,
        })
    }

    /// Waits until something can be received.
    pub(crate) async fn readable(&self) {
        let group = async {
            match &self.group {
                Some(group) => group.readable().await,
                None => std::future::pending().await,
            }
        };
        // An error of the watch itself would be found by `receive` as well.
        let _watched = tokio::select! {
            readable = self.unicast.readable() => readable,
            readable = group => readable,
        };
    }

    /// Receives one datagram without waiting. `number` counts the calls: neither socket is heard
    /// only when the other is silent.
    pub(crate) fn receive(&self, buffer: &mut [u8], number: usize) -> SocketRead {
        let mut sockets = [Some(&self.unicast), self.group.as_ref()];
        sockets.rotate_left(number % 2);
        for socket in sockets.into_iter().flatten() {
            match socket.try_recv_from(buffer) {
                Ok((len, from)) => return SocketRead::Datagram(len, from),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return SocketRead::Noise,
            }
        }
        SocketRead::Silence
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
