//! A socket with what is still to be sent.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};

use mio::net::TcpStream;
use socket2::{Domain, Protocol, Socket, Type};

/// The socket of one connection and what it has not taken yet.
#[derive(Debug)]
pub struct Wire {
    pub socket: TcpStream,
    /// Bytes to send, of which `sent` have gone.
    pub outbox: Vec<u8>,
    sent: usize,
}

impl Wire {
    /// Begins to connect. Flights that answer one another and go in one write each never wait for an acknowledgement, so no socket needs
    /// `TCP_NODELAY`.
    ///
    /// # Errors
    /// What `socket`, `bind` and `connect` return, but for a connection in progress.
    pub fn connect(target: SocketAddr, source: Option<IpAddr>) -> io::Result<Self> {
        let socket = match source {
            None => TcpStream::connect(target)?,
            Some(source) => connect_from(target, source)?,
        };
        Ok(Self {
            socket,
            outbox: Vec::new(),
            sent: 0,
        })
    }

    /// Sends what is in the outbox, and returns how many bytes went.
    ///
    /// # Errors
    /// What `send` returns, but for one that would block and a connection that does not stand yet.
    pub fn flush(&mut self) -> io::Result<usize> {
        let before = self.sent;
        while let Some(rest) = self.outbox.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match self.socket.write(rest) {
                Ok(count) => self.sent += count,
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected
                    ) =>
                {
                    return Ok(self.sent - before);
                }
                Err(e) => return Err(e),
            }
        }
        let count = self.sent - before;
        self.outbox.clear();
        self.sent = 0;
        Ok(count)
    }
}

fn connect_from(target: SocketAddr, source: IpAddr) -> io::Result<TcpStream> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(target), kind, Some(Protocol::TCP))?;
    becket_sys::socket::bind_no_port(&socket, source)?;
    match socket.connect(&target.into()) {
        Err(e) if e.raw_os_error() != Some(EINPROGRESS) => Err(e),
        _ => Ok(TcpStream::from_std(socket.into())),
    }
}

/// A non-blocking connect that is under way.
const EINPROGRESS: i32 = 115;
