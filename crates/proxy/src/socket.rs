//! The traits through which a connection sees sockets, so that it runs on real ones and on scripted ones.
//!
//! Sockets are non-blocking; `WouldBlock` is an answer like any other. Errors are read once
//! ([`SocketError`]), so that phases decide by cause and never by error number.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};

use becket_sys::kernel_tls::{self, Cipher, Direction, Key, ReceivedRecord, Support};
use becket_sys::pipe::Pipe;
use mio::net::TcpStream;

/// A non-blocking stream socket.
pub trait StreamSocket {
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

    /// Sends as [`Self::send`] does, where more follows at once: the kernel may keep the last bytes back until then.
    ///
    /// # Errors
    ///
    /// As [`Self::send`].
    fn send_more(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Sends up to `most` bytes of `file`, which are in memory, from `at` on; 0 is the end of the file. Fewer do not mean that the
    /// socket takes no more.
    ///
    /// # Errors
    ///
    /// As [`Self::send`], or that the kernel sends no such file.
    fn send_file(&mut self, file: &File, at: u64, most: usize) -> io::Result<usize>;

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

    /// Sends FIN behind what was sent; receiving continues.
    fn finish(&mut self);

    /// The address that the peer connected to, where there is one. A system call.
    fn local_address(&self) -> Option<SocketAddr>;

    /// Makes the coming close a reset: the peer must not take what it got for the whole.
    fn reset_on_close(&mut self);

    /// Copies what has arrived into `buffer` and leaves it there; 0 is the end of the stream.
    ///
    /// # Errors
    ///
    /// As [`Self::receive`].
    fn peek(&mut self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Returns whether the peer has ended its side or has reset, also behind bytes that were not received.
    /// A system call.
    fn is_gone(&self) -> bool;

    /// Returns whether the peer has acknowledged all that was sent, a FIN included. A system call.
    fn is_acknowledged(&self) -> bool;
}

/// A socket whose records the kernel may seal and open; see [`kernel_tls`].
pub trait KernelTlsSocket: StreamSocket {
    /// Versions and ciphers that the kernel has.
    fn support(&self) -> Support;

    /// Gives the socket the layer for TLS; see [`kernel_tls::attach`].
    ///
    /// # Errors
    ///
    /// If the kernel refuses; nothing has changed.
    fn attach(&mut self) -> io::Result<()>;

    /// Seals or opens with this key from now on; see [`kernel_tls::set_key`].
    ///
    /// # Errors
    ///
    /// If the kernel refuses.
    fn set_key(&mut self, direction: Direction, key: &Key<'_>) -> io::Result<()>;

    /// The number of the next record that is sealed.
    ///
    /// # Errors
    ///
    /// If there is no such key.
    fn next_record(&self, cipher: Cipher) -> io::Result<u64>;

    /// Receives a record of whatever type; see [`kernel_tls::receive_record`].
    ///
    /// # Errors
    ///
    /// As [`StreamSocket::receive`].
    fn receive_record(&mut self, buffer: &mut [u8]) -> io::Result<ReceivedRecord>;

    /// Sends a record of this type, all of it or nothing.
    ///
    /// # Errors
    ///
    /// As [`StreamSocket::send`].
    fn send_record(&mut self, kind: u8, bytes: &[u8]) -> io::Result<()>;

    /// Returns whether there is room for more than a record. If not, readiness will be reported when there is. A system call.
    fn has_room(&self) -> bool;
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
pub struct ByteCounts {
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

/// A socket of the kernel, towards a client or a server. A unix socket towards a server is in it as well: for all that is called here the kernel tells
/// them apart, and has no layer for TLS, no linger and no addresses of TCP for one.
#[derive(Debug)]
pub struct KernelSocket {
    pub stream: TcpStream,
    sends: Sends,
}

/// Calls that have sent on a socket. The bytes of the first call leave at once, its last segment too: Linux has Nagle's algorithm (RFC 896) hold back
/// what is small only behind something small that is not acknowledged. So `TCP_NODELAY` is set before the second, and a server that is asked
/// once costs a system call less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sends {
    Nothing,
    Once,
    /// More than that, or it needs no option: it delays nothing.
    Promptly,
}

impl KernelSocket {
    /// A socket that delays no segment.
    pub fn prompt(stream: TcpStream) -> Self {
        let sends = Sends::Promptly;
        Self { stream, sends }
    }

    /// A TCP socket that gets its option with the second call that sends.
    pub fn dialled(stream: TcpStream) -> Self {
        let sends = Sends::Nothing;
        Self { stream, sends }
    }

    /// Before each call that sends.
    fn note_send(&mut self) {
        self.sends = match self.sends {
            Sends::Nothing => Sends::Once,
            Sends::Once => {
                // Fails only if the connection is gone, which the call will tell.
                let _gone = self.stream.set_nodelay(true);
                Sends::Promptly
            }
            Sends::Promptly => return,
        };
    }
}

impl StreamSocket for KernelSocket {
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        uninterrupted(|| self.stream.read(buffer))
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.note_send();
        uninterrupted(|| self.stream.write(bytes))
    }

    fn send_more(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.note_send();
        uninterrupted(|| becket_sys::socket::send_more(&self.stream, bytes))
    }

    fn send_file(&mut self, file: &File, at: u64, most: usize) -> io::Result<usize> {
        self.note_send();
        uninterrupted(|| becket_sys::socket::send_file(&self.stream, file, at, most))
    }

    fn splice_in(&mut self, pipe: &Pipe, most: usize) -> io::Result<usize> {
        uninterrupted(|| pipe.fill_from(&self.stream, most))
    }

    fn splice_out(&mut self, pipe: &Pipe, most: usize) -> io::Result<usize> {
        self.note_send();
        uninterrupted(|| pipe.drain_to(&self.stream, most))
    }

    fn finish(&mut self) {
        // Fails only if the peer is gone already, and then it has learnt of the end.
        let _gone = self.stream.shutdown(Shutdown::Write);
    }

    fn local_address(&self) -> Option<SocketAddr> {
        self.stream.local_addr().ok()
    }

    fn reset_on_close(&mut self) {
        let _gone = becket_sys::socket::reset_on_close(&self.stream);
    }

    fn peek(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        uninterrupted(|| self.stream.peek(buffer))
    }

    fn is_gone(&self) -> bool {
        // Without memory nothing was learnt; the next read tells.
        becket_sys::socket::client_gone(&self.stream).unwrap_or(false)
    }

    fn is_acknowledged(&self) -> bool {
        // Fails on no stream.
        becket_sys::socket::unsent(&self.stream).is_ok_and(|bytes| bytes == 0)
    }
}

impl KernelTlsSocket for KernelSocket {
    fn support(&self) -> Support {
        *kernel_tls::support()
    }

    fn attach(&mut self) -> io::Result<()> {
        kernel_tls::attach(&self.stream)
    }

    fn set_key(&mut self, direction: Direction, key: &Key<'_>) -> io::Result<()> {
        kernel_tls::set_key(&self.stream, direction, key)
    }

    fn next_record(&self, cipher: Cipher) -> io::Result<u64> {
        kernel_tls::next_record(&self.stream, cipher)
    }

    fn receive_record(&mut self, buffer: &mut [u8]) -> io::Result<ReceivedRecord> {
        uninterrupted(|| kernel_tls::receive_record(&self.stream, buffer))
    }

    fn send_record(&mut self, kind: u8, bytes: &[u8]) -> io::Result<()> {
        uninterrupted(|| kernel_tls::send_record(&self.stream, kind, bytes))
    }

    fn has_room(&self) -> bool {
        // Without memory nothing was learnt; the send tells.
        becket_sys::socket::has_room(&self.stream).unwrap_or(true)
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
        let mut server = KernelSocket::dialled(TcpStream::from_std(socket));
        let mut peer = listener.accept().unwrap().0;
        for (promptly, byte) in [(false, b"a"), (true, b"b"), (true, b"c")] {
            assert_eq!(server.send(byte).unwrap(), 1);
            assert_eq!(server.stream.nodelay().unwrap(), promptly);
            let mut got = [0];
            peer.read_exact(&mut got).unwrap();
            assert_eq!(&got, byte);
        }
    }
}
