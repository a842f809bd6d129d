//! A TLS connection between coordinator and agent that sends and receives messages.
//!
//! The socket blocks for at most [`TURN`], so that a wait can look at its deadline and at other events. Memory grows only
//! with received bytes, up to the maximum size of a message. TCP keepalive detects a host that vanished.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustls::Connection;
use serde::Serialize;
use serde::de::DeserializeOwned;
use socket2::{SockRef, TcpKeepalive};

use super::protocol::{decode, encode};
use crate::clock;

#[derive(Debug)]
pub struct Channel {
    tls: Connection,
    socket: TcpStream,
    inbound: Vec<u8>,
    /// Maximum size of a received message in bytes.
    most: usize,
}

impl Channel {
    /// Completes the handshake.
    ///
    /// # Errors
    /// Fails if the socket or TLS fails, or if the handshake takes longer than [`HANDSHAKE`].
    pub fn establish(mut tls: Connection, socket: TcpStream, most: usize) -> io::Result<Self> {
        let until = clock::now() + HANDSHAKE;
        socket.set_nonblocking(false)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(TURN))?;
        socket.set_write_timeout(Some(TURN))?;
        let keepalive = TcpKeepalive::new().with_time(PROBE).with_interval(PROBE);
        let options = SockRef::from(&socket);
        options.set_tcp_keepalive(&keepalive.with_retries(PROBES))?;
        // Keepalive does not apply while sent data is not acknowledged.
        options.set_tcp_user_timeout(Some(PROBE * (PROBES + 1)))?;
        // Messages are bounded, and each is sent before the next one.
        tls.set_buffer_limit(None);
        let mut channel = Self {
            tls,
            socket,
            inbound: Vec::new(),
            most,
        };
        while channel.tls.is_handshaking() {
            channel.turn(until)?;
        }
        channel.flush(until)?;
        Ok(channel)
    }

    /// Sends a message.
    ///
    /// # Errors
    /// Fails if the message is too long, the connection fails, or the peer does not receive it until `until`.
    pub fn send(&mut self, message: &impl Serialize, until: Instant) -> io::Result<()> {
        let mut frame = Vec::new();
        encode(message, &mut frame).map_err(invalid)?;
        self.tls.writer().write_all(&frame)?;
        self.flush(until)
    }

    /// Waits for a message until `until`.
    ///
    /// # Errors
    /// Fails if the connection ends or fails, for an invalid message, and at `until`.
    pub fn receive<M: DeserializeOwned>(&mut self, until: Instant) -> io::Result<M> {
        loop {
            if let Some(message) = self.poll(until)? {
                return Ok(message);
            }
        }
    }

    /// Returns a message, or `None` if nothing arrives for [`TURN`].
    ///
    /// # Errors
    /// As [`Self::receive`].
    pub fn poll<M: DeserializeOwned>(&mut self, until: Instant) -> io::Result<Option<M>> {
        loop {
            let message = decode(&mut self.inbound, self.most).map_err(invalid)?;
            if message.is_some() || !self.turn(until)? {
                return Ok(message);
            }
        }
    }

    /// Reads once. Returns `false` if nothing arrives for [`TURN`].
    fn turn(&mut self, until: Instant) -> io::Result<bool> {
        self.flush(until)?;
        match self.tls.read_tls(&mut self.socket) {
            Ok(0) => {
                let why = "the connection was closed";
                return Err(io::Error::new(ErrorKind::UnexpectedEof, why));
            }
            Ok(_) => {}
            Err(error) if is_pause(&error) => return in_time(until).map(|()| false),
            Err(error) => return Err(error),
        }
        match self.tls.process_new_packets() {
            Ok(state) => {
                let unread = state.plaintext_bytes_to_read() as u64;
                let mut reader = self.tls.reader().take(unread);
                reader.read_to_end(&mut self.inbound)?;
                in_time(until).map(|()| true)
            }
            Err(error) => {
                // Best effort: the alert explains the failure to the peer.
                self.flush(until).unwrap_or(());
                Err(invalid(error.to_string()))
            }
        }
    }

    fn flush(&mut self, until: Instant) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Err(error) if !is_pause(&error) => return Err(error),
                _ => in_time(until)?,
            }
        }
        Ok(())
    }
}

fn in_time(until: Instant) -> io::Result<()> {
    if clock::now() < until {
        Ok(())
    } else {
        Err(io::Error::new(ErrorKind::TimedOut, "no message in time"))
    }
}

fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

fn invalid(why: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}

/// Returns the error for a message that does not fit the state of the conversation.
pub fn unexpected() -> io::Error {
    invalid("unexpected message".to_owned())
}

/// Maximum time of a blocking call on the socket.
const TURN: Duration = Duration::from_millis(100);
/// A connection ends when its peer does not answer for about twelve seconds.
const PROBE: Duration = Duration::from_secs(3);
const PROBES: u32 = 3;
const HANDSHAKE: Duration = Duration::from_secs(10);
