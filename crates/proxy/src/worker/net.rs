//! Real sockets, registered with the worker's poll.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};

use crate::connection::Net;
use crate::socket::KernelSocket;
use becket_tls::config::ServerAddress;

/// Connects sockets to servers for the connection that is being advanced.
#[derive(Debug)]
pub struct RealNet {
    registry: Registry,
    token: Token,
}

impl RealNet {
    pub fn new(registry: Registry) -> Self {
        Self {
            registry,
            token: Token(0),
        }
    }

    pub fn serve(&mut self, token: Token) {
        self.token = token;
    }
}

impl Net for RealNet {
    type Client = KernelSocket;
    type Server = KernelSocket;

    fn connect(
        &mut self,
        address: &ServerAddress,
        source: Option<IpAddr>,
    ) -> io::Result<KernelSocket> {
        let mut socket = match address {
            ServerAddress::Tcp(address) => {
                let socket = becket_sys::socket::connect(*address, source)?;
                KernelSocket::dialled(TcpStream::from_std(socket))
            }
            ServerAddress::Unix(path) => {
                let socket = OwnedFd::from(UnixStream::connect(path)?);
                KernelSocket::prompt(TcpStream::from_std(socket.into()))
            }
        };
        self.registry
            .register(&mut socket.stream, self.token, BOTH)?;
        Ok(socket)
    }

    fn connected(server: &KernelSocket) -> io::Result<()> {
        server.stream.take_error()?.map_or(Ok(()), Err)
    }
}

/// Interest of every socket: both directions, registered once and never changed.
pub const BOTH: Interest = Interest::READABLE.add(Interest::WRITABLE);
