//! One request and its response on a connection, without I/O.
//!
//! [`Exchange`] knows what is still to be sent and reads what comes. It is the same for TLS and for
//! plain targets; [`crate::link`] moves the bytes.

use std::time::Instant;

use rustls::client::ClientConnectionData;
use rustls::unbuffered::{EncodeError, EncodeTlsData, EncryptError, WriteTraffic};

use crate::failure::Failure;
use crate::request::RequestBytes;
use crate::response::Response;

/// One request and its response.
#[derive(Debug)]
pub struct Exchange {
    /// What has come of the response.
    pub response: Response,
    /// When the request was given to the socket.
    pub asked: Instant,
    /// When the first byte of the response came.
    pub answered: Option<Instant>,
    head_due: bool,
    last: bool,
    early: Early,
}

/// What became of early data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Early {
    /// None was sent.
    #[default]
    None,
    /// The request went out before the handshake was done.
    Sent,
    /// The server took it.
    Accepted,
    /// The server did not; the request goes out again.
    Rejected,
}

impl Exchange {
    /// Makes an exchange that is due.
    pub fn new(last: bool, now: Instant) -> Self {
        Self {
            response: Response::new(),
            asked: now,
            answered: None,
            head_due: true,
            last,
            early: Early::None,
        }
    }

    /// Makes it the next one on the same connection.
    pub fn restart(&mut self, last: bool, now: Instant) {
        self.response.restart();
        (self.asked, self.answered, self.head_due) = (now, None, true);
        (self.last, self.early) = (last, Early::None);
    }

    /// Returns whether there is more to send.
    pub fn wants_write(&self) -> bool {
        self.head_due
    }

    /// Returns what became of early data.
    pub fn early(&self) -> Early {
        self.early
    }

    /// Takes plaintext of the response.
    ///
    /// # Errors
    /// What [`Response::feed`] finds wrong.
    pub fn feed(&mut self, bytes: &[u8], now: Instant) -> Result<(), Failure> {
        self.answered.get_or_insert(now);
        self.response.feed(bytes)
    }

    /// Puts as much of the request in the outbox as is good for one send, in clear.
    pub fn produce_plain(&mut self, request: &RequestBytes, outbox: &mut Vec<u8>, now: Instant) {
        if std::mem::take(&mut self.head_due) {
            outbox.extend_from_slice(request.head(self.last));
            self.asked = now;
        }
    }

    /// The same, encrypted.
    ///
    /// # Errors
    /// [`Failure::Tls`] when the connection cannot encrypt any more.
    pub fn produce_tls(
        &mut self,
        traffic: &mut WriteTraffic<'_, ClientConnectionData>,
        request: &RequestBytes,
        outbox: &mut Vec<u8>,
        now: Instant,
    ) -> Result<(), Failure> {
        if std::mem::take(&mut self.head_due) {
            encrypt(request.head(self.last), outbox, |data, out| {
                traffic.encrypt(data, out)
            })?;
            self.asked = now;
        }
        Ok(())
    }

    /// Puts the head in the outbox as early data, if the limit of the ticket allows it.
    pub fn produce_early(
        &mut self,
        request: &RequestBytes,
        outbox: &mut Vec<u8>,
        encrypt: impl FnOnce(&[u8], &mut [u8]) -> Option<usize>,
    ) {
        let head = request.head(self.last);
        let start = outbox.len();
        outbox.resize(start + head.len() + RECORD_OVERHEAD, 0);
        let room = outbox.get_mut(start..).unwrap_or(&mut []);
        let written = encrypt(head, room).unwrap_or(0);
        outbox.truncate(start + written);
        if written > 0 {
            self.early = Early::Sent;
            self.head_due = false;
        }
    }

    /// Settles what became of early data; the request is due again when it was refused.
    pub fn settle_early(&mut self, flight: &[u8]) {
        if self.early == Early::Sent {
            let accepted = ends_early_data(flight);
            self.early = if accepted {
                Early::Accepted
            } else {
                Early::Rejected
            };
            self.head_due = !accepted;
        }
    }
}

/// Appends a handshake record to the outbox.
///
/// # Errors
/// [`Failure::Tls`], which the library's contract excludes.
pub fn encode(
    record: &mut EncodeTlsData<'_, ClientConnectionData>,
    outbox: &mut Vec<u8>,
) -> Result<(), Failure> {
    append(outbox, HANDSHAKE_ROOM, |room| match record.encode(room) {
        Err(EncodeError::InsufficientSize(size)) => Err(Lacks::Room(size.required_size)),
        Err(EncodeError::AlreadyEncoded) => Err(Lacks::Keys("encoded twice")),
        Ok(written) => Ok(written),
    })
}

/// Appends an encrypted message to the outbox.
///
/// # Errors
/// [`Failure::Tls`] when the connection cannot encrypt any more.
pub fn encrypt(
    data: &[u8],
    outbox: &mut Vec<u8>,
    mut with: impl FnMut(&[u8], &mut [u8]) -> Result<usize, EncryptError>,
) -> Result<(), Failure> {
    append(outbox, data.len() + RECORD_OVERHEAD, |room| {
        match with(data, room) {
            Err(EncryptError::InsufficientSize(size)) => Err(Lacks::Room(size.required_size)),
            Err(EncryptError::EncryptExhausted) => Err(Lacks::Keys("keys exhausted")),
            Ok(written) => Ok(written),
        }
    })
}

/// Why nothing was written.
enum Lacks {
    Room(usize),
    Keys(&'static str),
}

/// Appends what is written into room that grows until it is enough.
fn append(
    outbox: &mut Vec<u8>,
    mut room: usize,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, Lacks>,
) -> Result<(), Failure> {
    let start = outbox.len();
    loop {
        outbox.resize(start + room, 0);
        match write(outbox.get_mut(start..).unwrap_or(&mut [])) {
            Ok(written) => {
                outbox.truncate(start + written);
                return Ok(());
            }
            Err(Lacks::Room(wanted)) => room = wanted,
            Err(Lacks::Keys(why)) => return Err(Failure::Tls(why)),
        }
    }
}

/// Whether a flight of the client holds an EndOfEarlyData message, which it does if and only if the
/// server accepted early data. It is the only empty handshake message that a client sends after its
/// hello (RFC 8446, 4.5), so its record is the only one with four bytes of header, one of type and
/// sixteen of tag.
fn ends_early_data(mut flight: &[u8]) -> bool {
    while let [kind, _, _, high, low, rest @ ..] = flight {
        let length = usize::from(*high) << 8 | usize::from(*low);
        if *kind == APPLICATION_DATA && length == END_OF_EARLY_DATA_LENGTH {
            return true;
        }
        flight = rest.get(length..).unwrap_or(&[]);
    }
    false
}

/// Header, type, explicit nonce and tag of one record, with room to spare.
const RECORD_OVERHEAD: usize = 64;
/// A ClientHello with a post-quantum key share and a ticket fits.
const HANDSHAKE_ROOM: usize = 2048;
const APPLICATION_DATA: u8 = 23;
const END_OF_EARLY_DATA_LENGTH: usize = 4 + 1 + 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_early_data_is_found_between_other_records() {
        let record =
            |kind: u8, length: u8| [&[kind, 3, 3, 0, length][..], &vec![0; length.into()]].concat();
        let with = [record(20, 1), record(23, 21), record(23, 53)].concat();
        let without = [record(20, 1), record(23, 53)].concat();
        assert!(ends_early_data(&with));
        assert!(!ends_early_data(&without));
        assert!(!ends_early_data(&with[..4]));
        assert!(!ends_early_data(&[23, 3, 3, 255, 255]));
    }
}
