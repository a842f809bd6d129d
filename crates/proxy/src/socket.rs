//! Traits for non-blocking sockets, with an implementation for kernel sockets. Tests implement them
//! for simulated sockets.
//!
//! [`SocketError`] classifies the errors of a socket, so that the code of a connection does not
//! depend on error numbers.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};

use becket_sys::kernel_tls::{self, Cipher, Direction, Key, ReceivedRecord, Support};
use becket_sys::pipe::Pipe;
use mio::net::TcpStream;

pub trait StreamSocket {
    /// Receives into `buffer`. Returns 0 at the end of the stream.
    ///
    /// # Errors
    ///
    /// Returns `WouldBlock` if there is no data, or the error of the socket.
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Sends a prefix of `bytes` and returns its length.
    ///
    /// # Errors
    ///
    /// Returns `WouldBlock` if nothing was accepted, or the error of the socket.
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Sends like [`Self::send`] with `MSG_MORE`: the kernel may delay the last bytes. The caller
    /// must send more data immediately afterwards.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Self::send`].
    fn send_more(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Sends up to `most` bytes of `file` from offset `at`. These bytes must be in the page cache.
    /// Returns 0 at the end of the file. A shorter count does not mean that the socket is full.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Self::send`], or an error if the kernel cannot send this file.
    fn send_file(&mut self, file: &File, at: u64, most: usize) -> io::Result<usize>;

    /// Moves up to `most` received bytes into the empty `pipe`. Returns 0 at the end of the stream.
    /// A shorter count does not mean that the socket is empty.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Self::receive`], or an error if the kernel cannot splice from this
    /// socket.
    fn splice_in(&mut self, pipe: &Pipe, most: usize) -> io::Result<usize>;

    /// Sends up to `most` bytes from `pipe`, which contains at least as many. A shorter count does
    /// not mean that the socket is full.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Self::send`], or an error if the kernel cannot splice to this
    /// socket.
    fn splice_out(&mut self, pipe: &Pipe, most: usize) -> io::Result<usize>;

    /// Sends FIN after the sent data. Receiving continues.
    fn finish(&mut self);

    /// Returns the local address, or `None` if the socket has no TCP address. Costs a system call.
    fn local_address(&self) -> Option<SocketAddr>;

    /// Makes a close of this socket send a reset, so that the peer cannot mistake the received data
    /// for complete.
    fn reset_on_close(&mut self);

    /// Copies received data into `buffer` without removing it. Returns 0 at the end of the stream.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Self::receive`].
    fn peek(&mut self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Returns `true` if the peer has closed its sending side or reset the connection, even if
    /// there is unread data before that end. Costs a system call.
    fn is_gone(&self) -> bool;

    /// Returns `true` if the peer has acknowledged all sent data including a FIN. Costs a system
    /// call.
    fn is_acknowledged(&self) -> bool;
}

/// A socket whose records the kernel can encrypt and decrypt; see [`kernel_tls`].
pub trait KernelTlsSocket: StreamSocket {
    fn support(&self) -> Support;

    /// Attaches the TLS layer to the socket; see [`kernel_tls::attach`].
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses. The socket is then unchanged.
    fn attach(&mut self) -> io::Result<()>;

    /// Sets the key of a direction; see [`kernel_tls::set_key`].
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses.
    fn set_key(&mut self, direction: Direction, key: &Key<'_>) -> io::Result<()>;

    /// Returns the sequence number of the next sent record.
    ///
    /// # Errors
    ///
    /// Fails if no key of this cipher is set for sending.
    fn next_record(&self, cipher: Cipher) -> io::Result<u64>;

    /// Receives a record of any type; see [`kernel_tls::receive_record`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`StreamSocket::receive`].
    fn receive_record(&mut self, buffer: &mut [u8]) -> io::Result<ReceivedRecord>;

    /// Sends a record of this type, completely or not at all.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`StreamSocket::send`].
    fn send_record(&mut self, kind: u8, bytes: &[u8]) -> io::Result<()>;

    /// Returns `true` if the send buffer has space for more than one record. If `false`, a writable
    /// event follows as soon as there is space. Costs a system call.
    fn has_room(&self) -> bool;
}

/// Readiness of a socket. Events accumulate here until the connection reads them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    pub readable: bool,
    /// `true` if data can be sent or a connect has finished.
    pub writable: bool,
    /// `true` if the peer has closed its sending side, so that no data follows what has been
    /// received.
    pub ended: bool,
    pub failed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketError {
    WouldBlock,
    /// The peer closed its receiving side in an orderly way (EPIPE).
    Closed,
    /// The peer or the network reset the connection.
    Reset,
    /// The kernel does not support the operation for this socket or for the next record. No data
    /// was transferred.
    Refused,
    /// The kernel cannot decrypt a received TLS record.
    Unopened,
}

impl Ready {
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

/// Non-blocking stream socket to a client or a server. A unix socket to a server is also stored as
/// a [`TcpStream`]; the calls for kernel TLS, linger and TCP addresses then fail.
#[derive(Debug)]
pub struct KernelSocket {
    pub stream: TcpStream,
    sends: Sends,
}

/// Number of send calls on a socket so far. `TCP_NODELAY` is set just before the second call,
/// because Nagle's algorithm (RFC 896) never delays the first. This saves a system call on
/// connections that send only once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sends {
    Nothing,
    Once,
    /// `TCP_NODELAY` is set or not needed, so sends are no longer counted.
    Promptly,
}

impl KernelSocket {
    /// Wraps a socket that already has `TCP_NODELAY` or does not need it.
    pub fn prompt(stream: TcpStream) -> Self {
        let sends = Sends::Promptly;
        Self { stream, sends }
    }

    /// Wraps a TCP socket whose `TCP_NODELAY` is set just before its second send call.
    pub fn dialled(stream: TcpStream) -> Self {
        let sends = Sends::Nothing;
        Self { stream, sends }
    }

    fn note_send(&mut self) {
        self.sends = match self.sends {
            Sends::Nothing => Sends::Once,
            Sends::Once => {
                // Fails only if the connection is closed. The following send call reports the
                // close.
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
        // Fails only if the peer has closed the connection already.
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
        // Fails only if the kernel lacks memory. In that case the next read reports that the peer
        // has closed.
        becket_sys::socket::client_gone(&self.stream).unwrap_or(false)
    }

    fn is_acknowledged(&self) -> bool {
        // This call never fails for a connected stream socket.
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
        // Fails only if the kernel lacks memory. In that case the next send reports a full buffer.
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
    fn nodelay_is_set_on_server_sockets_from_the_second_send() {
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
