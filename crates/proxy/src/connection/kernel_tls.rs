//! TLS work that remains in becket for a leg whose records the kernel encrypts and decrypts.
//!
//! A [`KernelRecords`] consumes an idle [`Engine`], and passes its secrets and sequence numbers to
//! the kernel; rustls keeps the state for KeyUpdates and tickets. After that, becket reads and
//! writes plaintext on the socket. [`KernelRecords::receive`] processes records without data:
//! alerts, tickets of servers, KeyUpdates. The module also maintains two counts that rustls would
//! maintain: records without data (`proto::records`), and records under one key. It queries the
//! kernel for the second count when that count may be large.
//!
//! `half/kernel.rs` moves a leg to the kernel and relays the ends of its streams. Sources: RFC 8446
//! sections
//! 4.6.3, 5.5 and 6; `becket_sys::kernel_tls`.

use std::io::ErrorKind;
use std::mem;

use becket_proto::half_pipe::HalfPipe;
use becket_proto::post_handshake::{Alert, KEY_UPDATE, Message, Messages, Unexpected};
use becket_proto::records::{ALERT, APPLICATION_DATA, Allowance, HANDSHAKE};
use becket_sys::kernel_tls::{Cipher, Direction, Key, TlsVersion};
use rustls::kernel::KernelConnection;
use rustls::{CommonState, ConnectionTrafficSecrets};

use super::context::Side;
use crate::leg::{Got, Leg};
use crate::metrics::Counter;
use crate::pipes::Lent;
use crate::socket::{KernelTlsSocket, SocketError};
use becket_proto::close_reason::CloseReason;
use becket_tls::engine::Engine;
use becket_tls::kernel::{cipher_of, confidentiality_limit};
use becket_tls::scratch::{Buffer, READ};
use becket_tls::side::TlsSide;

pub struct KernelRecords<C: TlsSide> {
    side: Side,
    connection: KernelConnection<C::Data>,
    kind: KernelCipher,
    /// `true` if the kernel can replace keys, so that KeyUpdates are possible.
    rekeys: bool,
    messages: Messages,
    allowance: Allowance,
    wear: Wear,
    /// `true` if a KeyUpdate must be sent: the peer requested it, or the sending key is nearly
    /// exhausted.
    owes_update: bool,
    close_notify_sent: bool,
}

/// Version and cipher that the kernel must support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelCipher {
    pub version: TlsVersion,
    pub cipher: Cipher,
}

enum RecordFailure {
    /// The peer violated TLS. The value is the alert to send.
    Broken(u8),
    /// The peer sent too many records without data.
    WithoutData,
    Reason(CloseReason),
}

/// Use of the current sending key, measured in encrypted records.
#[derive(Clone, Copy, Debug)]
struct Wear {
    /// Maximum number of records under one key.
    limit: u64,
    /// Upper bound for the number of records since the kernel was last queried.
    since: u64,
    /// Value of `since` above which the kernel is queried.
    ask: u64,
}

impl KernelCipher {
    /// Returns the negotiated version and cipher, if the kernel can support them.
    pub fn of(common: &CommonState) -> Option<Self> {
        let (version, cipher) = cipher_of(common.negotiated_cipher_suite()?)?;
        Some(Self { version, cipher })
    }

    fn set_key(
        self,
        socket: &mut impl KernelTlsSocket,
        direction: Direction,
        (sequence, secrets): (u64, ConnectionTrafficSecrets),
    ) -> Result<(), CloseReason> {
        let (cipher, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (Cipher::Aes128Gcm, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (Cipher::Aes256Gcm, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
                (Cipher::ChaCha20Poly1305, key, iv)
            }
            _ => return Err(CloseReason::KernelTls),
        };
        let iv = iv.as_ref().try_into();
        let iv = iv.map_err(|_| CloseReason::KernelTls)?;
        let key = Key {
            version: self.version,
            cipher,
            key: key.as_ref(),
            iv,
            sequence,
        };
        let set = socket.set_key(direction, &key);
        set.map_err(|_| CloseReason::KernelTls)
    }
}

impl<C: TlsSide> KernelRecords<C> {
    /// Moves the TLS of an [idle](Engine::is_at_rest) engine to the kernel. The TLS layer must be
    /// attached to the socket.
    ///
    /// # Errors
    ///
    /// Returns [`CloseReason::KernelTls`] if the move fails. The engine is consumed, so the
    /// connection must end.
    pub fn enter(
        engine: Engine<C>,
        (kind, side): (KernelCipher, Side),
        socket: &mut impl KernelTlsSocket,
    ) -> Result<Self, CloseReason> {
        let secrets = engine.into_secrets();
        let (secrets, connection) = secrets.map_err(|_| CloseReason::KernelTls)?;
        let limit = confidentiality_limit(connection.negotiated_cipher_suite());
        let wear = Wear::new(limit, secrets.tx.0);
        kind.set_key(socket, Direction::Send, secrets.tx)?;
        kind.set_key(socket, Direction::Receive, secrets.rx)?;
        Ok(Self {
            side,
            connection,
            kind,
            rekeys: socket.support().rekey && kind.version == TlsVersion::Tls13,
            messages: Messages::default(),
            allowance: Allowance::default(),
            wear,
            owes_update: false,
            close_notify_sent: false,
        })
    }

    /// Receives decrypted data into `plain`, or one record without data. `onward` is the direction
    /// that carries data from this leg. Returns the weight of a record without data, 0 for data, or
    /// `None` for a FIN.
    ///
    /// # Errors
    ///
    /// Returns the close reason. If the peer violated TLS, an alert was sent.
    pub fn receive<S: KernelTlsSocket>(
        &mut self,
        leg: &mut Leg<S>,
        onward: &mut HalfPipe<Lent>,
        plain: &mut Buffer,
        counter: &Counter,
    ) -> Result<Option<usize>, CloseReason> {
        while plain.len() < READ {
            let before = plain.len();
            match leg.receive(plain, READ - before, counter) {
                Ok(Got::Bytes(n)) => {
                    self.note_data(n, &mut leg.socket)?;
                    onward.passed(n);
                }
                Ok(Got::Nothing) => {
                    onward.block_source();
                    break;
                }
                // The received data is returned first. The next call reports the end or the refusal
                // again.
                Ok(Got::End) | Err(SocketError::Refused) if before > 0 => break,
                Ok(Got::End) | Err(SocketError::Refused) => {
                    let weight = self.receive_record(leg, onward, plain, counter);
                    return weight.map_err(|failure| self.end(&failure, &mut leg.socket));
                }
                Err(error) => return Err(self.end(&self.failure(error), &mut leg.socket)),
            }
        }
        Ok(Some(0))
    }

    /// Notes that data was spliced instead of received by [`Self::receive`].
    ///
    /// # Errors
    ///
    /// Fails if the data arrived between the parts of a handshake message.
    pub fn note_data(
        &mut self,
        bytes: usize,
        socket: &mut impl KernelTlsSocket,
    ) -> Result<(), CloseReason> {
        if self.messages.is_begun() {
            return Err(self.end(&RecordFailure::Broken(UNEXPECTED_MESSAGE), socket));
        }
        let _weight = self.allowance.charge(bytes, bytes);
        Ok(())
    }

    /// Returns the close reason for an error of the socket. Sends an alert if the peer caused the
    /// error.
    pub fn fail(&self, error: SocketError, socket: &mut impl KernelTlsSocket) -> CloseReason {
        self.end(&self.failure(error), socket)
    }

    fn failure(&self, error: SocketError) -> RecordFailure {
        match error {
            SocketError::Unopened => RecordFailure::Broken(BAD_RECORD_MAC),
            _ => RecordFailure::Reason(self.side.reset()),
        }
    }

    /// Receives a record that probably contains no data.
    fn receive_record<S: KernelTlsSocket>(
        &mut self,
        leg: &mut Leg<S>,
        onward: &mut HalfPipe<Lent>,
        buffer: &mut Buffer,
        counter: &Counter,
    ) -> Result<Option<usize>, RecordFailure> {
        let record = leg.receive_record(buffer, counter);
        let record = record.map_err(|error| self.failure(error))?;
        // The kernel refused to splice because of a record, so it must return that record. Otherwise
        // the stream is broken.
        let record = record.ok_or(RecordFailure::Broken(BAD_RECORD_MAC))?;
        let content = &buffer.next(record.len)[..];
        match record.kind {
            None if record.len == 0 => return Ok(None),
            None | Some(APPLICATION_DATA) => {
                let noted = self.note_data(record.len, &mut leg.socket);
                noted.map_err(RecordFailure::Reason)?;
                buffer.advance(record.len);
                onward.passed(record.len);
                return Ok(Some(0));
            }
            Some(_) => {}
        }
        let weight = self.allowance.charge(record.len + SEALING, 0);
        let weight = weight.ok_or(RecordFailure::WithoutData)?;
        match record.kind {
            Some(ALERT) if !self.messages.is_begun() => {
                match Alert::read(content, self.kind.version == TlsVersion::Tls13) {
                    Some(Alert::CloseNotify) => onward.end_source(),
                    Some(Alert::Warning) => {}
                    Some(Alert::Fatal) => return Err(RecordFailure::Reason(self.side.tls_error())),
                    None => return Err(RecordFailure::Broken(DECODE_ERROR)),
                }
            }
            Some(HANDSHAKE) => {
                let mut messages = mem::take(&mut self.messages);
                messages.take(content, |message| self.heed(&message, &mut leg.socket))?;
                self.messages = messages;
            }
            _ => return Err(RecordFailure::Broken(UNEXPECTED_MESSAGE)),
        }
        Ok(Some(weight))
    }

    fn heed(
        &mut self,
        message: &Message<'_>,
        socket: &mut impl KernelTlsSocket,
    ) -> Result<(), RecordFailure> {
        match (message, self.kind.version) {
            (Message::KeyUpdate { .. }, TlsVersion::Tls13) if !self.rekeys => {
                Err(RecordFailure::Reason(CloseReason::KeyUpdate))
            }
            (Message::KeyUpdate { requested }, TlsVersion::Tls13) => {
                self.owes_update |= requested;
                let secrets = self.connection.update_rx_secret();
                let secrets = secrets.map_err(|_| CloseReason::KernelTls);
                let set = secrets
                    .and_then(|secrets| self.kind.set_key(socket, Direction::Receive, secrets));
                set.map_err(RecordFailure::Reason)
            }
            (Message::Ticket(ticket), TlsVersion::Tls13) => {
                let taken = C::take_ticket(&mut self.connection, ticket);
                taken.map_err(|_| RecordFailure::Broken(UNEXPECTED_MESSAGE))
            }
            (Message::Renegotiation, TlsVersion::Tls12) => {
                match socket.send_record(ALERT, &[1, NO_RENEGOTIATION]) {
                    Err(error) if error.kind() != ErrorKind::WouldBlock => {
                        Err(RecordFailure::Reason(self.side.reset()))
                    }
                    _ => Ok(()),
                }
            }
            _ => Err(RecordFailure::Broken(UNEXPECTED_MESSAGE)),
        }
    }

    /// Must be called before `bytes` are sent in at most `pieces` calls. Sends a KeyUpdate first if
    /// one is due. Returns `false` if the socket is full.
    ///
    /// # Errors
    ///
    /// Returns [`CloseReason::KeyUpdate`] if the key has reached its limit and cannot be replaced.
    pub fn before_sending(
        &mut self,
        socket: &mut impl KernelTlsSocket,
        bytes: usize,
        pieces: usize,
    ) -> Result<bool, CloseReason> {
        if self.wear.is_due() {
            let next = socket.next_record(self.kind.cipher);
            let next = next.map_err(|_| CloseReason::KernelTls)?;
            self.wear = Wear::new(self.wear.limit, next);
            if self.wear.is_over() {
                if !self.rekeys {
                    return Err(CloseReason::KeyUpdate);
                }
                self.owes_update = true;
            }
        }
        if self.owes_update {
            match socket.send_record(HANDSHAKE, &KEY_UPDATE) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                // The next send on the socket reports the error.
                Err(_) => return Ok(true),
            }
            let secrets = self.connection.update_tx_secret();
            let secrets = secrets.map_err(|_| CloseReason::KernelTls)?;
            self.kind.set_key(socket, Direction::Send, secrets)?;
            self.wear = Wear::new(self.wear.limit, 0);
            self.owes_update = false;
        }
        self.wear.note(bytes, pieces);
        Ok(true)
    }

    /// Sends close_notify once. Returns `false` if the socket is full.
    ///
    /// The record is sent only if the socket has ample space. Otherwise the kernel might accept
    /// only a part of the record, and an immediate FIN would truncate it. Returns `true` for a
    /// closed socket, because its peer needs no close_notify.
    pub fn close_notify(&mut self, socket: &mut impl KernelTlsSocket) -> bool {
        if self.close_notify_sent {
            return true;
        }
        if !socket.has_room() {
            return false;
        }
        match socket.send_record(ALERT, &[1, 0]) {
            Ok(()) => self.close_notify_sent = true,
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
        true
    }

    /// Returns the close reason of a failure. Tries once to send the alert, if there is one.
    fn end(&self, failure: &RecordFailure, socket: &mut impl KernelTlsSocket) -> CloseReason {
        let (reason, alert) = match failure {
            RecordFailure::Broken(alert) => (self.side.tls_error(), *alert),
            RecordFailure::WithoutData => (self.side.without_data(), UNEXPECTED_MESSAGE),
            RecordFailure::Reason(reason) => return *reason,
        };
        if !self.close_notify_sent {
            let _lost = socket.send_record(ALERT, &[2, alert]);
        }
        reason
    }
}

impl Wear {
    fn new(limit: u64, next: u64) -> Self {
        Self {
            limit,
            since: 0,
            ask: limit.saturating_sub(next) / 2,
        }
    }

    /// Adds an upper bound for the number of records that these bytes need. A record has at most 16
    /// KiB. In the worst case, each piece starts a new record, and needs one more if the socket
    /// accepts only a part.
    fn note(&mut self, bytes: usize, pieces: usize) {
        self.since += (bytes / RECORD + 2 * pieces) as u64;
    }

    fn is_due(self) -> bool {
        self.since > self.ask
    }

    fn is_over(self) -> bool {
        self.ask < self.limit / 64
    }
}

impl From<Unexpected> for RecordFailure {
    fn from(_: Unexpected) -> Self {
        Self::Broken(UNEXPECTED_MESSAGE)
    }
}

/// Alert `unexpected_message` (RFC 8446, section 6.2).
const UNEXPECTED_MESSAGE: u8 = 10;
/// Alert `bad_record_mac` (RFC 8446, section 6.2).
const BAD_RECORD_MAC: u8 = 20;
/// Alert `decode_error` (RFC 8446, section 6.2).
const DECODE_ERROR: u8 = 50;
/// Alert `no_renegotiation` of TLS 1.2 (RFC 5246, section 7.2.2).
const NO_RENEGOTIATION: u8 = 100;
/// Maximum data per record in bytes.
const RECORD: usize = 16 * 1024;
/// Minimum overhead per record in bytes: header, type, tag.
const SEALING: usize = 5 + 1 + 16;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Simulates a kernel that makes as many records per call as allowed, and one that makes as
        /// few as possible.
        #[test]
        fn no_key_seals_more_records_than_its_limit(
            limit in 1_u64 << 20..1 << 24,
            already in 0..1_u64 << 19,
            sends in prop::collection::vec((0..300_000_usize, 1..512_usize, any::<bool>()), 1..400),
        ) {
            let (mut wear, mut sealed, mut asked) = (Wear::new(limit, already), already, 0_u64);
            for (bytes, pieces, many) in sends.iter().cycle().take(20_000) {
                if wear.is_due() {
                    asked += 1;
                    wear = Wear::new(limit, sealed);
                    if wear.is_over() {
                        break;
                    }
                }
                wear.note(*bytes, *pieces);
                sealed += if *many { (bytes / RECORD + 2 * pieces) as u64 } else { 1 };
                prop_assert!(sealed < limit);
            }
            // Each query covers half of the remaining records, so most calls need none.
            prop_assert!(asked <= 20_000 / 2);
        }
    }

    #[test]
    fn a_cipher_without_a_limit_never_needs_a_new_key() {
        let mut wear = Wear::new(u64::MAX, 1 << 40);
        wear.note(usize::MAX, 256);
        assert!(!wear.is_due() && !wear.is_over());
    }
}
