//! The socket of a syslog daemon: a datagram socket of this host, or UDP to another.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use becket_config::address::Address;
use becket_config::process::Log;

use super::PATIENCE;

/// The daemon. Its socket is connected when the first line is sent.
#[derive(Debug)]
pub struct Daemon {
    place: Place,
    socket: Option<Socket>,
}

#[derive(Debug)]
enum Place {
    Path(PathBuf),
    Host(SocketAddr),
}

#[derive(Debug)]
enum Socket {
    Unix(UnixDatagram),
    Udp(UdpSocket),
}

impl Daemon {
    /// Returns the daemon of a configuration, if there is one, without connecting.
    pub(super) fn of(log: &Log) -> Option<Self> {
        let place = match &log.syslog.as_ref()?.address {
            Address::Unix(path) => Place::Path(path.clone()),
            Address::Ip(ip, port) => Place::Host(SocketAddr::new(*ip, *port)),
            // Neither is a syslog address.
            Address::Any(_) | Address::Name(..) => return None,
        };
        Some(Self {
            place,
            socket: None,
        })
    }

    /// Returns `true` for a daemon on another host.
    pub(super) fn is_remote(&self) -> bool {
        matches!(self.place, Place::Host(_))
    }

    /// Sends every line.
    ///
    /// # Errors
    /// Returns the error of the first line that is not taken; later lines are not sent.
    pub(super) fn send_all(&mut self, lines: &[u8]) -> io::Result<()> {
        let lines = lines.split(|byte| *byte == b'\n');
        lines
            .filter(|line| !line.is_empty())
            .try_for_each(|line| self.send(line))
    }

    fn send(&mut self, line: &[u8]) -> io::Result<()> {
        match self.socket.as_ref().map(|socket| socket.send(line)) {
            Some(Ok(())) => Ok(()),
            // The daemon is busy.
            Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
            // The daemon was restarted, or this is the first line.
            Some(Err(_)) | None => {
                let socket = self.place.connect()?;
                let sent = socket.send(line);
                self.socket = Some(socket);
                sent
            }
        }
    }
}

impl Place {
    fn connect(&self) -> io::Result<Socket> {
        match self {
            Self::Path(path) => {
                let socket = UnixDatagram::unbound()?;
                socket.connect(path)?;
                socket.set_write_timeout(Some(PATIENCE))?;
                Ok(Socket::Unix(socket))
            }
            Self::Host(address) => {
                let any: IpAddr = if address.is_ipv4() {
                    Ipv4Addr::UNSPECIFIED.into()
                } else {
                    Ipv6Addr::UNSPECIFIED.into()
                };
                let socket = UdpSocket::bind((any, 0))?;
                socket.connect(address)?;
                socket.set_write_timeout(Some(PATIENCE))?;
                Ok(Socket::Udp(socket))
            }
        }
    }
}

impl Socket {
    fn send(&self, line: &[u8]) -> io::Result<()> {
        match self {
            Self::Unix(socket) => socket.send(line),
            Self::Udp(socket) => socket.send(line),
        }
        .map(drop)
    }
}

impl std::fmt::Display for Daemon {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.place {
            Place::Path(path) => write!(f, "syslog at {}", path.display()),
            Place::Host(address) => write!(f, "syslog at {address}"),
        }
    }
}
