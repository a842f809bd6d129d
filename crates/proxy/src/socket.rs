//! What the connection needs of a socket, so that it runs on real ones and on scripted ones.
//!
//! Sockets are non-blocking; `WouldBlock` is an answer like any other. Errors are read once
//! ([`SocketError`]), so that phases decide by cause and never by error number.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};

use becket_sys::kernel_tls::{self, Cipher, Direction, Key, ReceivedRecord, Support};
use becket_sys::pipe::Pipe;
use mio::net::{TcpStream, UnixStream};

/// A non-blocking stream socket.
pub trait Socket {
    /// Receives into `buffer`; 0 is the end of the stream.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when nothing is there, or the socket's fault.
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Sends from `bytes` and returns how many were taken.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when nothing was taken, or the socket's fault.
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Moves up to `most` bytes that have arrived into `pipe`, which is empty; 0 is the end of the stream. Fewer than
    /// `most` do not mean that there are no more.
    ///
    /// # Errors
    ///
    /// As [`Self::receive`], or that the kernel does not splice here.
    fn splice_in(&mut self, pipe: &Pipe, most: usize) -> io::Result<usize>;

    /// Sends up to `most` bytes out of `pipe`, which holds as many. Fewer do not mean that the socket takes no more.
    ///
    /// # Errors
    ///
    /// As [`Self::send`], or that the kernel does not splice here.
    fn splice_out(&mut self, pipe: &Pipe, most: usize) -> io::Result<usize>;

    /// Sends FIN behind what was sent; receiving goes on.
    fn finish(&mut self);

    /// The address that the peer connected to, where there is one. A system call.
    fn local_address(&self) -> Option<SocketAddr>;

    /// Makes the coming close a reset: the peer must not take what it got for the whole.
    fn reset_on_close(&mut self);
}

/// A socket whose bytes can be looked at before they are taken.
pub trait Peek {
    /// Copies what has arrived into `buffer` and leaves it there; 0 is the end of the stream.
    ///
    /// # Errors
    ///
    /// As [`Socket::receive`].
    fn peek(&mut self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Whether the peer has ended its side or has reset, also behind bytes that were not received.
    /// Looks anew: a system call.
    fn is_gone(&self) -> bool;
}

/// A socket whose records the kernel may seal and open; see [`kernel_tls`].
pub trait KernelTlsSocket: Socket {
    /// What the kernel does.
    fn support(&self) -> Support;

    /// Copies what has arrived into `buffer` and leaves it there; 0 is the end of the stream.
    ///
    /// # Errors
    ///
    /// As [`Socket::receive`].
    fn look(&mut self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Gives the socket the layer for TLS; see [`kernel_tls::attach`].
    ///
    /// # Errors
    ///
    /// Where the kernel refuses; nothing has changed.
    fn attach(&mut self) -> io::Result<()>;

    /// Seals or opens with this key from now on; see [`kernel_tls::set_key`].
    ///
    /// # Errors
    ///
    /// Where the kernel refuses.
    fn set_key(&mut self, direction: Direction, key: &Key<'_>) -> io::Result<()>;

    /// The number of the next record that is sealed.
    ///
    /// # Errors
    ///
    /// Where there is no such key.
    fn next_record(&self, cipher: Cipher) -> io::Result<u64>;

    /// Receives a record of whatever type; see [`kernel_tls::receive_record`].
    ///
    /// # Errors
    ///
    /// As [`Socket::receive`].
    fn receive_record(&mut self, buffer: &mut [u8]) -> io::Result<ReceivedRecord>;

    /// Sends a record of this type, all of it or nothing.
    ///
    /// # Errors
    ///
    /// As [`Socket::send`].
    fn send_record(&mut self, kind: u8, bytes: &[u8]) -> io::Result<()>;

    /// Whether there is room for more than a record. If not, readiness will be reported when there is. A system call.
    fn has_room(&self) -> bool;
}

impl KernelTlsSocket for TcpStream {
    fn support(&self) -> Support {
        *kernel_tls::support()
    }

    fn look(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Peek::peek(self, buffer)
    }

    fn attach(&mut self) -> io::Result<()> {
        kernel_tls::attach(&*self)
    }

    fn set_key(&mut self, direction: Direction, key: &Key<'_>) -> io::Result<()> {
        kernel_tls::set_key(&*self, direction, key)
    }

    fn next_record(&self, cipher: Cipher) -> io::Result<u64> {
        kernel_tls::next_record(self, cipher)
    }

    fn receive_record(&mut self, buffer: &mut [u8]) -> io::Result<ReceivedRecord> {
        uninterrupted(|| kernel_tls::receive_record(&*self, buffer))
    }

    fn send_record(&mut self, kind: u8, bytes: &[u8]) -> io::Result<()> {
        uninterrupted(|| kernel_tls::send_record(&*self, kind, bytes))
    }

    fn has_room(&self) -> bool {
        // Without memory nothing was learnt; the send tells.
        becket_sys::socket::has_room(self).unwrap_or(true)
    }
}

/// A unix socket has no such layer: [`attach`](KernelTlsSocket::attach) says so, and nothing else is asked of it.
impl KernelTlsSocket for ServerSocket {
    fn support(&self) -> Support {
        *kernel_tls::support()
    }

    fn look(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.tcp()?.look(buffer)
    }

    fn attach(&mut self) -> io::Result<()> {
        self.tcp()?.attach()
    }

    fn set_key(&mut self, direction: Direction, key: &Key<'_>) -> io::Result<()> {
        self.tcp()?.set_key(direction, key)
    }

    fn next_record(&self, cipher: Cipher) -> io::Result<u64> {
        match self {
            Self::Tcp(socket, _) => socket.next_record(cipher),
            Self::Unix(_) => Err(ErrorKind::Unsupported.into()),
        }
    }

    fn receive_record(&mut self, buffer: &mut [u8]) -> io::Result<ReceivedRecord> {
        self.tcp()?.receive_record(buffer)
    }

    fn send_record(&mut self, kind: u8, bytes: &[u8]) -> io::Result<()> {
        self.tcp()?.send_record(kind, bytes)
    }

    fn has_room(&self) -> bool {
        match self {
            Self::Tcp(socket, _) => socket.has_room(),
            Self::Unix(_) => true,
        }
    }
}

impl ServerSocket {
    fn tcp(&mut self) -> io::Result<&mut TcpStream> {
        match self {
            Self::Tcp(socket, _) => Ok(socket),
            Self::Unix(_) => Err(ErrorKind::Unsupported.into()),
        }
    }
}

impl Peek for TcpStream {
    fn peek(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        uninterrupted(|| Self::peek(self, buffer))
    }

    fn is_gone(&self) -> bool {
        // Without memory nothing was learnt; the next read tells.
        becket_sys::socket::client_gone(self).unwrap_or(false)
    }
}

/// Readiness of a socket, gathered until a phase looks at it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// Bytes, the end or an error may be received.
    pub readable: bool,
    /// Bytes may be sent, or a connect was decided.
    pub writable: bool,
    /// The peer has ended its stream: what is received is the last.
    pub ended: bool,
    /// The connection was reset or timed out.
    pub failed: bool,
}

/// Bytes that a socket carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// From the peer.
    pub received: u64,
    /// To the peer.
    pub sent: u64,
}

/// Why a socket gave nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketError {
    /// Try again at the next readiness.
    WouldBlock,
    /// The peer closed its receiving side in good order (EPIPE).
    Closed,
    /// The peer reset the connection, or the network did.
    Reset,
    /// The kernel does not do such a thing with this socket, or not with what comes next; nothing has moved.
    Refused,
    /// A record does not open, where the kernel opens them.
    Unopened,
}

impl Ready {
    /// Adds what an event says.
    pub fn add(&mut self, other: Self) {
        self.readable |= other.readable;
        self.writable |= other.writable;
        self.ended |= other.ended;
        self.failed |= other.failed;
    }
}

impl From<io::Error> for SocketError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::WouldBlock => Self::WouldBlock,
            _ if becket_sys::socket::is_connecting(&error) => Self::WouldBlock,
            ErrorKind::BrokenPipe => Self::Closed,
            ErrorKind::InvalidInput | ErrorKind::Unsupported | ErrorKind::PermissionDenied => {
                Self::Refused
            }
            _ if kernel_tls::holds_no_data(&error) => Self::Refused,
            _ if kernel_tls::does_not_open(&error) => Self::Unopened,
            _ => Self::Reset,
        }
    }
}

/// A socket towards a server.
#[derive(Debug)]
pub enum ServerSocket {
    /// TCP, and what it sends.
    Tcp(TcpStream, Sends),
    /// A unix stream socket.
    Unix(UnixStream),
}

/// What a socket has sent. What the first call sends leaves at once, its last segment too: Linux has Nagle's algorithm (RFC 896) hold back
/// what is small only behind something small that is not acknowledged. So `TCP_NODELAY` is set before the second, and a server that is asked
/// once costs a system call less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sends {
    /// Nothing.
    #[default]
    Nothing,
    /// Something, with one call.
    Once,
    /// More than that: it delays nothing.
    Promptly,
}

impl Sends {
    /// Before each call that sends.
    fn note(&mut self, socket: &TcpStream) {
        *self = match self {
            Self::Nothing => Self::Once,
            Self::Once => {
                // Fails only where the connection is gone, which the call will tell.
                let _gone = socket.set_nodelay(true);
                Self::Promptly
            }
            Self::Promptly => return,
        };
    }
}

impl Socket for TcpStream {
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        uninterrupted(|| self.read(buffer))
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        uninterrupted(|| self.write(bytes))
    }

    fn splice_in(&mut self, pipe: &Pipe, most: usize) -> io::Result<usize> {
        uninterrupted(|| pipe.fill_from(&*self, most))
    }

    fn splice_out(&mut self, pipe: &Pipe, most: usize) -> io::Result<usize> {
        uninterrupted(|| pipe.drain_to(&*self, most))
    }

    fn finish(&mut self) {
        // Fails only when the peer is gone already, and then it has learnt of the end.
        let _gone = self.shutdown(Shutdown::Write);
    }

    fn local_address(&self) -> Option<SocketAddr> {
        self.local_addr().ok()
    }

    fn reset_on_close(&mut self) {
        let _gone = becket_sys::socket::reset_on_close(&*self);
    }
}

impl Socket for UnixStream {
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        uninterrupted(|| self.read(buffer))
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        uninterrupted(|| self.write(bytes))
    }

    fn splice_in(&mut self, pipe: &Pipe, most: usize) -> io::Result<usize> {
        uninterrupted(|| pipe.fill_from(&*self, most))
    }

    fn splice_out(&mut self, pipe: &Pipe, most: usize) -> io::Result<usize> {
        uninterrupted(|| pipe.drain_to(&*self, most))
    }

    fn finish(&mut self) {
        let _gone = self.shutdown(Shutdown::Write);
    }

    fn local_address(&self) -> Option<SocketAddr> {
        None
    }

    /// A unix socket with unread data resets by itself; there is no linger to set.
    fn reset_on_close(&mut self) {}
}

impl Socket for ServerSocket {
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket, _) => socket.receive(buffer),
            Self::Unix(socket) => socket.receive(buffer),
        }
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket, sends) => {
                sends.note(socket);
                Socket::send(socket, bytes)
            }
            Self::Unix(socket) => Socket::send(socket, bytes),
        }
    }

    fn splice_in(&mut self, pipe: &Pipe, most: usize) -> io::Result<usize> {
        match self {
            Self::Tcp(socket, _) => socket.splice_in(pipe, most),
            Self::Unix(socket) => socket.splice_in(pipe, most),
        }
    }

    fn splice_out(&mut self, pipe: &Pipe, most: usize) -> io::Result<usize> {
        match self {
            Self::Tcp(socket, sends) => {
                sends.note(socket);
                socket.splice_out(pipe, most)
            }
            Self::Unix(socket) => socket.splice_out(pipe, most),
        }
    }

    fn finish(&mut self) {
        match self {
            Self::Tcp(socket, _) => socket.finish(),
            Self::Unix(socket) => socket.finish(),
        }
    }

    fn local_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(socket, _) => socket.local_address(),
            Self::Unix(socket) => socket.local_address(),
        }
    }

    fn reset_on_close(&mut self) {
        match self {
            Self::Tcp(socket, _) => socket.reset_on_close(),
            Self::Unix(socket) => socket.reset_on_close(),
        }
    }
}

fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_sent_a_second_segment_as_promptly_as_the_first() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut server = ServerSocket::Tcp(TcpStream::from_std(socket), Sends::default());
        let mut peer = listener.accept().unwrap().0;
        for (promptly, byte) in [(false, b"a"), (true, b"b"), (true, b"c")] {
            assert_eq!(server.send(byte).unwrap(), 1);
            assert_eq!(server.tcp().unwrap().nodelay().unwrap(), promptly);
            let mut got = [0];
            peer.read_exact(&mut got).unwrap();
            assert_eq!(&got, byte);
        }
    }
}
