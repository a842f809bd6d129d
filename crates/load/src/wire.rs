//! A socket with what is still to be sent and what was read but not yet understood.
//!
//! Buffers own heap bytes only while they hold something: what is read lands in the thread's scratch
//! buffer, and only a partial record is kept.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};

use mio::net::TcpStream;
use socket2::{Domain, Protocol, Socket, Type};

/// The socket of one connection and its leftovers.
#[derive(Debug)]
pub struct Wire {
    /// The socket.
    pub socket: TcpStream,
    /// Bytes of a partial record.
    pub inbox: Vec<u8>,
    /// Bytes to send, of which `sent` have gone.
    pub outbox: Vec<u8>,
    sent: usize,
}

/// What reading gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// The scratch buffer holds this many bytes, with the inbox in front.
    Bytes {
        /// Bytes in the scratch buffer.
        filled: usize,
        /// Bytes that came with this read.
        fresh: usize,
        /// Whether the socket had no more.
        drained: bool,
    },
    /// Nothing has come.
    Nothing,
    /// The peer has closed.
    End,
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
            inbox: Vec::new(),
            outbox: Vec::new(),
            sent: 0,
        })
    }

    /// Sends what is in the outbox; returns the bytes that went and whether all did.
    ///
    /// # Errors
    /// What `send` returns, but for one that would block and a connection that does not stand yet.
    pub fn flush(&mut self) -> io::Result<(usize, bool)> {
        let before = self.sent;
        while let Some(rest) = self.outbox.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match self.socket.write(rest) {
                Ok(count) => self.sent += count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected
                    ) =>
                {
                    return Ok((self.sent - before, false));
                }
                Err(e) => return Err(e),
            }
        }
        let count = self.sent - before;
        self.outbox.clear();
        self.sent = 0;
        Ok((count, true))
    }

    /// Reads once into `scratch`, behind a copy of the inbox.
    ///
    /// # Errors
    /// What `recv` returns, but for one that would block.
    pub fn receive(&mut self, scratch: &mut [u8]) -> io::Result<Received> {
        let kept = self.inbox.len();
        let Some(space) = scratch.get_mut(kept..).filter(|space| !space.is_empty()) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let fresh = loop {
            match self.socket.read(space) {
                Ok(0) => return Ok(Received::End),
                Ok(count) => break count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Received::Nothing),
                Err(e) => return Err(e),
            }
        };
        let drained = fresh < space.len();
        self.restore(scratch);
        Ok(Received::Bytes {
            filled: kept + fresh,
            fresh,
            drained,
        })
    }

    /// Copies the inbox to the front of `scratch`, and returns its length.
    pub fn restore(&mut self, scratch: &mut [u8]) -> usize {
        let kept = self.inbox.len();
        if let Some(front) = scratch.get_mut(..kept) {
            front.copy_from_slice(&self.inbox);
        }
        self.inbox.clear();
        kept
    }

    /// Keeps what was not understood yet.
    pub fn keep(&mut self, rest: &[u8]) {
        self.inbox.clear();
        self.inbox.extend_from_slice(rest);
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
