//! Real sockets, registered with the worker's poll.

use std::io;
use std::net::IpAddr;

use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};

use crate::connection::Net;
use crate::socket::{Sends, ServerSocket};
use becket_tls::config::ServerAddress;

/// Makes sockets for the connection that is being advanced.
#[derive(Debug)]
pub struct RealNet {
    registry: Registry,
    /// Under which events of its server socket are reported.
    token: Token,
}

impl RealNet {
    /// Makes sockets that report to the poll of `registry`.
    pub fn new(registry: Registry) -> Self {
        Self {
            registry,
            token: Token(0),
        }
    }

    /// Sockets made from now on belong to the connection with this server token.
    pub fn serve(&mut self, token: Token) {
        self.token = token;
    }
}

impl Net for RealNet {
    type Client = TcpStream;
    type Server = ServerSocket;

    fn connect(
        &mut self,
        address: &ServerAddress,
        source: Option<IpAddr>,
        fast_open: bool,
    ) -> io::Result<ServerSocket> {
        match address {
            ServerAddress::Tcp(address) => {
                let socket = becket_sys::socket::connect(*address, source, fast_open)?;
                let mut socket = TcpStream::from_std(socket);
                self.registry.register(&mut socket, self.token, BOTH)?;
                Ok(ServerSocket::Tcp(socket, Sends::default()))
            }
            ServerAddress::Unix(path) => {
                let mut socket = UnixStream::connect(path)?;
                self.registry.register(&mut socket, self.token, BOTH)?;
                Ok(ServerSocket::Unix(socket))
            }
        }
    }

    fn connected(server: &ServerSocket) -> io::Result<()> {
        let error = match server {
            ServerSocket::Tcp(socket, _) => socket.take_error()?,
            ServerSocket::Unix(socket) => socket.take_error()?,
        };
        error.map_or(Ok(()), Err)
    }
}

/// Registered once and never changed: edges of both kinds.
pub const BOTH: Interest = Interest::READABLE.add(Interest::WRITABLE);
