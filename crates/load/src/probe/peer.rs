//! A connection to a probed server with limits on time and received bytes.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustls::Error as TlsError;
use rustls::client::ClientConnection;

use crate::clock;
use crate::failure::Failure;

/// Blocking socket with one deadline for its whole life and a limit on received bytes.
#[derive(Debug)]
pub(super) struct Peer {
    socket: TcpStream,
    until: Instant,
    left: usize,
}

impl Peer {
    pub(super) fn connect(address: SocketAddr, time_out: Duration) -> Result<Self, Failure> {
        let until = clock::now() + time_out;
        Ok(Self {
            socket: TcpStream::connect_timeout(&address, time_out)?,
            until,
            left: MOST_BYTES,
        })
    }

    pub(super) fn say(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.write_all(bytes).map_err(failure)
    }

    pub(super) fn turn(&mut self, tls: &mut ClientConnection) -> Result<(), Failure> {
        tls.complete_io(self).map_err(failure)?;
        Ok(())
    }

    /// Sends a request and reads until `is_enough` returns `true`, the connection ends, or [`WAIT_FOR_TICKETS`] has passed.
    pub(super) fn ask(
        &mut self,
        tls: &mut ClientConnection,
        request: &str,
        is_enough: impl Fn() -> bool,
    ) {
        self.until = self.until.min(clock::now() + WAIT_FOR_TICKETS);
        let sent = tls.writer().write_all(request.as_bytes());
        let mut is_open = sent.is_ok() && flush(tls, self).is_ok();
        while is_open && !is_enough() {
            is_open = matches!(tls.read_tls(self), Ok(1..))
                && tls
                    .process_new_packets()
                    .is_ok_and(|state| !state.peer_has_closed());
        }
    }

    /// Sends close_notify and closes. Some servers invalidate the session of a connection that ends without close_notify.
    pub(super) fn close(mut self, tls: &mut ClientConnection) {
        tls.send_close_notify();
        // Ignores errors, because the server may already have closed the connection.
        flush(tls, &mut self).ok();
    }

    /// Returns the time until the deadline. Fails with `TimedOut` after the deadline.
    fn remaining(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(clock::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(Some(left))
    }
}

impl Read for Peer {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(self.remaining()?)?;
        let room = buffer.len().min(self.left);
        let room = buffer.get_mut(..room).unwrap_or_default();
        if room.is_empty() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let count = self.socket.read(room)?;
        self.left -= count;
        Ok(count)
    }
}

impl Write for Peer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(self.remaining()?)?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn flush(tls: &mut ClientConnection, peer: &mut Peer) -> io::Result<()> {
    while tls.wants_write() {
        tls.write_tls(peer)?;
    }
    Ok(())
}

pub(super) fn failure(error: io::Error) -> Failure {
    let of_tls = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<TlsError>());
    match (of_tls, error.kind()) {
        (Some(error), _) => error.clone().into(),
        (None, io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            Failure::TimeOut("handshake".into())
        }
        (None, io::ErrorKind::UnexpectedEof) => Failure::ClosedEarly,
        (None, io::ErrorKind::FileTooLarge) => Failure::Tls("handshake too long".into()),
        _ => error.into(),
    }
}

/// Maximum received bytes per connection: enough for the longest certificate chain that rustls accepts and the tickets after it.
const MOST_BYTES: usize = 256 * 1024;
/// Maximum time to wait for a TLS 1.3 ticket after the handshake.
const WAIT_FOR_TICKETS: Duration = Duration::from_secs(1);
