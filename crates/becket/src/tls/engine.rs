//! rustls' unbuffered server connection as "bytes in, bytes out".
//!
//! An [`Engine`] owns keys and handshake state, and no bytes: ciphertext and plaintext pass
//! through the worker's scratch buffers. [`Engine::receive`] takes all whole records from the
//! front of its input; what is left is a partial record, for the connection to keep. Whatever TLS
//! itself wants to send (handshake flights, tickets, key updates, alerts) is appended to `out` in
//! the right order.

use std::fmt;
use std::sync::Arc;

use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus,
};
use rustls::{Error, HandshakeKind, ServerConfig};

use crate::scratch::Buffer;

/// One client's TLS state.
pub struct Engine {
    /// On the heap: a transition between phases then moves a pointer, not a kilobyte.
    connection: Box<UnbufferedServerConnection>,
    close_notify_sent: bool,
}

/// Shows nothing of the keys.
impl fmt::Debug for Engine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Engine")
            .field("version", &self.connection.protocol_version())
            .field("kind", &self.connection.handshake_kind())
            .finish_non_exhaustive()
    }
}

/// What [`Engine::receive`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Bytes of the input that are done with.
    pub consumed: usize,
    /// Application data may be sent: the handshake is complete.
    pub ready: bool,
    /// The client sent close_notify: no more data follows.
    pub ended: bool,
}

impl Engine {
    /// Starts the server's side of a handshake.
    ///
    /// # Errors
    ///
    /// Only when the configuration is unusable.
    pub fn new(config: Arc<ServerConfig>) -> Result<Self, Error> {
        Ok(Self {
            connection: Box::new(UnbufferedServerConnection::new(config)?),
            close_notify_sent: false,
        })
    }

    /// Processes the records at the front of `input`: appends what they held to `plain` and what
    /// TLS wants to send to `out`. With empty input it only collects output.
    ///
    /// # Errors
    ///
    /// When the client broke the protocol or the handshake failed; the alert to send is in `out`.
    pub fn receive(
        &mut self,
        input: &mut [u8],
        plain: &mut Buffer,
        out: &mut Buffer,
    ) -> Result<Received, Error> {
        let mut received = Received::default();
        loop {
            let rest = input.get_mut(received.consumed..).unwrap_or_default();
            let UnbufferedStatus { mut discard, state } = self.connection.process_tls_records(rest);
            let mut settled = false;
            match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record?;
                        discard += record.discard;
                        plain.push(record.payload);
                    }
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    encode_into(out, |room| data.encode(room))?;
                }
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                Ok(ConnectionState::PeerClosed) => received.ended = true,
                Ok(ConnectionState::WriteTraffic(_)) => {
                    received.ready = true;
                    settled = true;
                }
                // 0-RTT is never enabled on these configurations, so it has no state here.
                Ok(_) => settled = true,
                Err(error) => {
                    self.collect_alert(out);
                    return Err(error);
                }
            }
            received.consumed += discard;
            if settled {
                return Ok(received);
            }
        }
    }

    /// After an error, one more round yields the alert that tells the client.
    fn collect_alert(&mut self, out: &mut Buffer) {
        for _ in 0..MOST_ALERT_ROUNDS {
            match self.connection.process_tls_records(&mut []).state {
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    if encode_into(out, |room| data.encode(room)).is_err() {
                        return;
                    }
                }
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                _ => return,
            }
        }
    }

    /// Encrypts `plain` into records behind what is in `out`; a ticket or key update that waits
    /// goes first.
    ///
    /// # Errors
    ///
    /// When the handshake is not complete, or the keys are worn out (RFC 8446, section 5.5).
    pub fn encrypt(&mut self, plain: &[u8], out: &mut Buffer) -> Result<(), Error> {
        self.write(out, |traffic, room| traffic.encrypt(plain, room))
    }

    /// Appends close_notify, once: no data may follow.
    ///
    /// # Errors
    ///
    /// As [`Self::encrypt`].
    pub fn close_notify(&mut self, out: &mut Buffer) -> Result<(), Error> {
        if self.close_notify_sent {
            return Ok(());
        }
        self.close_notify_sent = true;
        self.write(out, |traffic, room| traffic.queue_close_notify(room))
    }

    fn write(
        &mut self,
        out: &mut Buffer,
        mut write: impl FnMut(&mut Traffic<'_>, &mut [u8]) -> Result<usize, EncryptError>,
    ) -> Result<(), Error> {
        loop {
            match self.connection.process_tls_records(&mut []).state? {
                ConnectionState::WriteTraffic(mut traffic) => {
                    return encode_into(out, |room| write(&mut traffic, room));
                }
                ConnectionState::EncodeTlsData(mut data) => {
                    encode_into(out, |room| data.encode(room))?;
                }
                ConnectionState::TransmitTlsData(data) => data.done(),
                ConnectionState::PeerClosed => {}
                _ => return Err(Error::HandshakeNotComplete),
            }
        }
    }

    /// Full or resumed, once that is known.
    pub fn handshake_kind(&self) -> Option<HandshakeKind> {
        self.connection.handshake_kind()
    }

    /// What was negotiated, and the client's chain.
    pub fn facts(&self) -> &UnbufferedServerConnection {
        &self.connection
    }
}

type Traffic<'a> = rustls::unbuffered::WriteTraffic<'a, rustls::server::ServerConnectionData>;

/// The two kinds of "too small" that rustls reports, and what else may go wrong.
enum Encoding {
    TooSmall(usize),
    Failed(Error),
}

impl From<EncodeError> for Encoding {
    fn from(error: EncodeError) -> Self {
        match error {
            EncodeError::InsufficientSize(InsufficientSizeError { required_size }) => {
                Self::TooSmall(required_size)
            }
            EncodeError::AlreadyEncoded => Self::Failed(Error::General(error.to_string())),
        }
    }
}

impl From<EncryptError> for Encoding {
    fn from(error: EncryptError) -> Self {
        match error {
            EncryptError::InsufficientSize(InsufficientSizeError { required_size }) => {
                Self::TooSmall(required_size)
            }
            EncryptError::EncryptExhausted => Self::Failed(Error::EncryptError),
        }
    }
}

/// Encodes behind what is filled, making room once if there was too little.
fn encode_into<E: Into<Encoding>>(
    out: &mut Buffer,
    mut encode: impl FnMut(&mut [u8]) -> Result<usize, E>,
) -> Result<(), Error> {
    let mut least = 0;
    for _ in 0..2 {
        match encode(out.room(least)).map_err(Into::into) {
            Ok(written) => {
                out.advance(written);
                return Ok(());
            }
            Err(Encoding::TooSmall(required)) => least = required,
            Err(Encoding::Failed(error)) => return Err(error),
        }
    }
    Err(Error::EncryptError)
}

/// An alert is one message; the bound only keeps a fault of ours from spinning.
const MOST_ALERT_ROUNDS: usize = 8;
