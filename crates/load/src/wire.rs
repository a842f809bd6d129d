//! A socket with a send buffer.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};

use mio::net::TcpStream;
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};

#[derive(Debug)]
pub struct Wire {
    pub socket: TcpStream,
    /// Data to send, of which the socket has accepted the first `sent` bytes.
    pub outbox: Vec<u8>,
    sent: usize,
}

impl Wire {
    /// Starts a non-blocking connect. The socket does not need `TCP_NODELAY`: each flight is sent with one write and answers the peer's last
    /// flight, so it never waits for an acknowledgement.
    ///
    /// # Errors
    /// The error of `socket`, `bind` or `connect`, except `EINPROGRESS`.
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

    /// Sends the outbox, and returns the number of bytes sent.
    ///
    /// # Errors
    /// The error of `send`, except `EAGAIN` and `ENOTCONN`.
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
        Err(e) if Errno::from_io_error(&e) != Some(Errno::INPROGRESS) => Err(e),
        _ => Ok(TcpStream::from_std(socket.into())),
    }
}
