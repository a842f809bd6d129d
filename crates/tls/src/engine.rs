//! Wraps the unbuffered connections of rustls, for clients and servers: ciphertext in, plaintext
//! out, and vice versa.
//!
//! [`Engine::receive`] processes whole records at the front of its input. The engine stores the
//! remaining bytes (a partial record or handshake message, of bounded size), and the caller must
//! put these bytes in front of the next input.
//!
//! The engine passes records to rustls one at a time, because rustls otherwise processes all of its
//! input and does not report records without data. After the handshake, each record has a weight
//! (`proto::records`). A call stops at a maximum weight and leaves further records for
//! [`Engine::resume`].
//!
//! Early data (0-RTT) is returned like other data, before the handshake is complete. After early
//! data has arrived, the engine accepts data to send, and stores the context of the unfinished
//! handshake.
//!
//! All messages that TLS itself sends (handshake flights, tickets, key updates, alerts) are
//! appended to `out` in order.
//!
//! Invariant: each call passes to rustls all bytes that rustls has processed and not discarded. Its
//! deframer stores positions in these bytes, and would otherwise index out of bounds.

use std::sync::Arc;
use std::{fmt, mem};

use becket_proto::records::{self, Allowance};
use rustls::kernel::KernelConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncryptError, UnbufferedStatus, WriteTraffic};
use rustls::{
    CommonState, Error, ExtractedSecrets, HandshakeKind, OtherError, PeerMisbehaved, ServerConfig,
};

use super::direct::Direct;
use super::output::{collect_alert, encode_into};
use super::side::TlsSide;
use super::skipping::{Skipping, Verdict};
use crate::scratch::{Buffer, LARGEST_RECORD, READ};
use crate::sessions::context::{self, HandshakeContext};

/// TLS state of one connection. `C` is becket's role: TLS server by default, or TLS client for
/// connections to servers.
pub struct Engine<C: TlsSide = UnbufferedServerConnection> {
    layer: Layer<C>,
    /// Bytes that rustls has processed but not discarded, followed by bytes that were not yet
    /// passed to rustls.
    held: Vec<u8>,
    /// Number of bytes of `held` that rustls has processed. They are whole records.
    taken: usize,
    /// `true` if a whole record follows the processed bytes in `held`.
    waits: bool,
    /// Maximum size of an unfinished record or message in `held`, in bytes.
    most_held: usize,
    /// `true` after the handshake has derived traffic keys. From then on, records have a weight.
    traffic: bool,
    allowance: Allowance,
    /// Skips rejected early data. Set for a client that announced early data, until it sends other
    /// data.
    skipping: Option<Box<Skipping>>,
    /// Context of a handshake that continues after the first data was relayed, because it began
    /// with early data.
    unfinished: Option<Box<HandshakeContext>>,
    close_notify_sent: bool,
    /// `true` after a TLS message was sent to the peer. If `false`, no keys exist yet, so an alert
    /// is sent in plaintext.
    spoken: bool,
    /// `true` if the kernel may take over encryption later.
    movable: bool,
    /// `true` if rustls may owe the peer the answer to a KeyUpdate, because a record without data
    /// other than a ticket has arrived. rustls may delay the answer until there is data to send.
    owes: bool,
}

/// Implementation of the record layer. Boxed, so that a phase transition moves a pointer instead of
/// a kilobyte.
enum Layer<C: TlsSide> {
    Rustls(Box<C>),
    Direct(Box<Direct<C>>),
}

/// Omits all keys from the output.
impl<C: TlsSide> fmt::Debug for Engine<C> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let common = self.facts().map(TlsSide::common);
        out.debug_struct("Engine")
            .field("version", &common.map(CommonState::protocol_version))
            .field("kind", &common.map(CommonState::handshake_kind))
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// `true` if application data may be sent: the handshake is complete, or early data has
    /// arrived.
    pub ready: bool,
    /// `true` if the data contains early data, which may be a replay (RFC 8446, section 2.3).
    pub early: bool,
    pub ended: bool,
    /// Weight of the processed records in bytes.
    pub weight: usize,
}

/// Error: an unfinished message or record of the peer exceeds this number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {0} bytes of an unfinished message")]
pub struct Overfull(pub usize);

impl Engine {
    /// Starts the server side of a handshake. The other arguments are those of [`Engine::of`].
    ///
    /// # Errors
    ///
    /// Fails only if the configuration is unusable.
    pub fn new(config: Arc<ServerConfig>, most_held: usize, movable: bool) -> Result<Self, Error> {
        let connection = UnbufferedServerConnection::new(config)?;
        Ok(Self::of(connection, most_held, movable))
    }
}

impl<C: TlsSide> Engine<C> {
    /// Wraps a rustls connection that has not started. `most_held` is the maximum size of an
    /// unfinished record or message during the handshake, in bytes. `movable` means that the kernel
    /// may encrypt later.
    pub fn of(connection: C, most_held: usize, movable: bool) -> Self {
        Self {
            layer: Layer::Rustls(Box::new(connection)),
            held: Vec::new(),
            taken: 0,
            waits: false,
            most_held,
            traffic: false,
            allowance: Allowance::default(),
            skipping: None,
            unfinished: None,
            close_notify_sent: false,
            spoken: false,
            movable,
            owes: false,
        }
    }

    /// Prepares for early data of the client. `may_be_taken` is `true` if the policy accepts early
    /// data. If it is rejected, the engine discards it.
    pub fn expecting_early_data(mut self, may_be_taken: bool) -> Self {
        self.skipping = Some(Box::new(Skipping::new(may_be_taken)));
        self.most_held = self.most_held.max(LARGEST_RECORD);
        self
    }

    /// Returns the held bytes, which the caller puts in front of the next input.
    pub fn held(&self) -> &[u8] {
        &self.held
    }

    /// Returns `true` if a whole record is held. [`Self::resume`] then continues without more
    /// input.
    pub fn waits(&self) -> bool {
        self.waits
    }

    /// Processes `input`, which starts with the held bytes. Appends decrypted data to `plain` and
    /// TLS output to `out`. Input beyond the maximum weight of one call stays held.
    ///
    /// # Errors
    ///
    /// Fails if the peer violates the protocol or the handshake fails. The alert to send is in
    /// `out`.
    pub fn receive(
        &mut self,
        input: &mut [u8],
        plain: &mut Buffer,
        out: &mut Buffer,
    ) -> Result<Received, Error> {
        debug_assert!(input.starts_with(&self.held), "held bytes come first");
        let (discarded, received) = self.process(input, plain, out)?;
        self.held = input.get(discarded..).unwrap_or_default().to_vec();
        Ok(received)
    }

    pub fn resume(&mut self, plain: &mut Buffer, out: &mut Buffer) -> Result<Received, Error> {
        let mut held = mem::take(&mut self.held);
        let outcome = self.process(&mut held, plain, out);
        self.held = held;
        let (discarded, received) = outcome?;
        self.held.drain(..discarded.min(self.held.len()));
        if self.held.is_empty() {
            self.held = Vec::new();
        }
        Ok(received)
    }

    /// Returns `true` if the handshake is unfinished. Early data may already have been relayed.
    pub fn is_unfinished(&self) -> bool {
        self.facts()
            .is_some_and(|facts| facts.common().is_handshaking())
    }

    /// Stores the context for the remaining handshake. [`Self::receive`] lends the context to
    /// rustls.
    pub fn keep(&mut self, handshake: Option<HandshakeContext>) {
        self.unfinished = handshake.map(Box::new);
    }

    /// Processes records. During the call, this thread can access the context of an unfinished
    /// handshake.
    fn process(
        &mut self,
        input: &mut [u8],
        plain: &mut Buffer,
        out: &mut Buffer,
    ) -> Result<(usize, Received), Error> {
        let Some(handshake) = self.unfinished.take() else {
            return self.take_in(input, plain, out);
        };
        let mut handshake = Some(*handshake);
        let taken = context::lend(&mut handshake, || self.take_in(input, plain, out));
        self.unfinished = handshake.filter(|_| self.is_unfinished()).map(Box::new);
        taken
    }

    /// Passes records to rustls one at a time. Returns the number of bytes to discard.
    fn take_in(
        &mut self,
        input: &mut [u8],
        plain: &mut Buffer,
        out: &mut Buffer,
    ) -> Result<(usize, Received), Error> {
        let mut received = Received::default();
        let (mut taken, mut discarded) = (self.taken, 0);
        loop {
            let record = records::first(input.get(taken..).unwrap_or_default());
            let end = record.map_or(input.len(), |len| taken + len);
            let before = plain.len();
            let verdict = match record {
                Some(_) if taken == discarded => {
                    let verdict = self.judge(input.get(taken..end).unwrap_or_default());
                    verdict.map_err(|error| self.refuse(&[], out, error))?
                }
                _ => Verdict::Pass,
            };
            if verdict == Verdict::Skip {
                (taken, discarded) = (end, end);
                continue;
            }
            let shown = input.get_mut(discarded..end).unwrap_or_default();
            let (established, tickets) = (self.traffic, self.tickets());
            discarded += self.show(shown, plain, out, &mut received)?;
            let Some(len) = record else { break };
            if verdict == Verdict::Ask && discarded == taken {
                self.refuse_early_data(len)?;
                discarded = end;
            }
            taken = end;
            if self.traffic {
                let mute = plain.len() == before && self.tickets() == tickets;
                self.owes |= established && mute;
                let weight = self.allowance.charge(len, plain.len() - before);
                let Some(weight) = weight else {
                    let rest = input.get(discarded..end).unwrap_or_default();
                    let error = PeerMisbehaved::TooManyEmptyFragments.into();
                    return Err(self.refuse(rest, out, error));
                };
                received.weight += weight;
            }
            if taken == input.len() || received.ended || received.weight >= MOST_WEIGHT {
                break;
            }
        }
        self.taken = taken.saturating_sub(discarded);
        self.waits = records::first(input.get(taken..).unwrap_or_default()).is_some();
        if received.ended {
            // RFC 8446, section 6.1: "Any data received after a closure alert has been received
            // MUST be ignored."
            (self.taken, self.waits) = (0, false);
            return Ok((input.len(), received));
        }
        let unfinished = if self.waits { taken } else { input.len() } - discarded;
        if unfinished > self.most_held {
            let cause = Overfull(self.most_held);
            let rest = input.get(discarded..taken).unwrap_or_default();
            let error = Error::Other(OtherError(Arc::new(cause)));
            return Err(self.refuse(rest, out, error));
        }
        Ok((discarded, received))
    }

    fn judge(&mut self, record: &[u8]) -> Result<Verdict, Error> {
        let (Some(skipping), Layer::Rustls(connection)) = (&mut self.skipping, &self.layer) else {
            return Ok(Verdict::Pass);
        };
        let verdict = skipping.judge(record, connection.common())?;
        if verdict == Verdict::Over {
            self.skipping = None;
        }
        Ok(verdict)
    }

    fn refuse_early_data(&mut self, len: usize) -> Result<(), Error> {
        let skipping = self.skipping.as_mut();
        skipping.map_or(Ok(()), |skipping| skipping.refuse(len))
    }

    /// Runs rustls on `input` until it needs more input. Returns the number of bytes to discard.
    fn show(
        &mut self,
        input: &mut [u8],
        plain: &mut Buffer,
        out: &mut Buffer,
        received: &mut Received,
    ) -> Result<usize, Error> {
        let mut consumed = 0;
        loop {
            let rest = input.get_mut(consumed..).unwrap_or_default();
            let connection = match &mut self.layer {
                Layer::Rustls(connection) => connection,
                // The record is incomplete.
                Layer::Direct(_) if records::first(rest).is_none() => return Ok(0),
                Layer::Direct(direct) => {
                    let opened = direct.open(rest, plain, out);
                    received.ready = true;
                    received.ended = opened.map_err(|error| self.refuse(&[], out, error))?;
                    return Ok(rest.len());
                }
            };
            let UnbufferedStatus { mut discard, state } = connection.process(rest);
            let (mut settled, mut writable) = (false, false);
            match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record?;
                        discard += record.discard;
                        plain.push(record.payload);
                    }
                }
                Ok(ConnectionState::ReadEarlyData(early)) => {
                    let before = plain.len();
                    discard += C::read_early(early, plain)?;
                    received.early |= plain.len() > before;
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    encode_into(out, |room| data.encode(room))?;
                    self.spoken = true;
                }
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                Ok(ConnectionState::PeerClosed) => received.ended = true,
                Ok(ConnectionState::WriteTraffic(_)) => (settled, writable) = (true, true),
                Ok(_) => settled = true,
                Err(error) => {
                    let rest = input.get(consumed + discard..).unwrap_or_default();
                    return Err(self.refuse(rest, out, error));
                }
            }
            consumed += discard;
            if settled {
                // rustls can already write after its flight if the client announced early data.
                // That is not enough to serve the client, because the ClientHello may be a replay.
                let handshaking = self.is_unfinished();
                received.ready = writable && (received.early || !handshaking);
                if received.ready {
                    self.skipping = None;
                    (self.traffic, self.most_held) = (true, LARGEST_RECORD);
                }
                return Ok(consumed);
            }
        }
    }

    /// Appends the pending output and the alert for `error` to `out`, and returns `error`. `rest`
    /// contains the bytes that rustls has processed and not discarded.
    fn refuse(&mut self, rest: &[u8], out: &mut Buffer, error: Error) -> Error {
        let connection = match &mut self.layer {
            Layer::Rustls(connection) => connection,
            Layer::Direct(_) if self.close_notify_sent => return error,
            Layer::Direct(direct) => {
                direct.refuse(&error, out);
                return error;
            }
        };
        let mut rest = rest.to_vec();
        if matches!(error, Error::General(_)) && connection.common().wants_write() {
            // The private key failed to sign. The messages before the signature are pending,
            // without an alert after them.
            collect_alert(connection.as_mut(), &mut rest, out);
            self.spoken = true;
        }
        let silent = !connection.common().wants_write();
        if silent && !matches!(error, Error::AlertReceived(_)) && !self.close_notify_sent {
            if !self.spoken {
                // No keys exist yet, so the alert is sent in plaintext.
                out.push(&HANDSHAKE_FAILURE);
                return error;
            }
            // rustls sends no alert for some errors, and has no function to send one. An invalid
            // record makes rustls send an alert, encrypted with the current keys.
            rest.extend(IMPOSSIBLE);
            let UnbufferedStatus { discard, state } = connection.process(&mut rest);
            drop(state);
            rest.drain(..discard.min(rest.len()));
        }
        collect_alert(connection.as_mut(), &mut rest, out);
        error
    }

    /// Encrypts `plain` into records and appends them to `out`. A pending ticket or key update
    /// comes first.
    ///
    /// # Errors
    ///
    /// Fails before the end of the handshake, or if the keys are exhausted (RFC 8446, section 5.5).
    pub fn encrypt(&mut self, plain: &[u8], out: &mut Buffer) -> Result<(), Error> {
        if let Layer::Direct(direct) = &mut self.layer {
            return direct.seal(plain, out);
        }
        self.write(out, |traffic, room| traffic.encrypt(plain, room))?;
        self.owes &= plain.is_empty();
        Ok(())
    }

    /// Appends close_notify, unless it was already appended. No data may follow.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Self::encrypt`].
    pub fn close_notify(&mut self, out: &mut Buffer) -> Result<(), Error> {
        if self.close_notify_sent {
            return Ok(());
        }
        self.close_notify_sent = true;
        if let Layer::Direct(direct) = &mut self.layer {
            return direct.close_notify(out);
        }
        self.write(out, |traffic, room| traffic.queue_close_notify(room))
    }

    /// Encrypts `plain`, if it is not empty. Appends close_notify if `end` is `true`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Self::encrypt`].
    pub fn seal(&mut self, plain: &[u8], end: bool, out: &mut Buffer) -> Result<(), Error> {
        if !plain.is_empty() {
            self.encrypt(plain, out)?;
        }
        if end {
            self.close_notify(out)?;
        }
        Ok(())
    }

    fn write(
        &mut self,
        out: &mut Buffer,
        mut write: impl FnMut(&mut WriteTraffic<'_, C::Data>, &mut [u8]) -> Result<usize, EncryptError>,
    ) -> Result<(), Error> {
        let Layer::Rustls(connection) = &mut self.layer else {
            return Err(Error::EncryptError);
        };
        loop {
            let taken = self.held.get_mut(..self.taken).unwrap_or_default();
            let UnbufferedStatus { discard, state } = connection.process(taken);
            let done = match state? {
                ConnectionState::WriteTraffic(mut traffic) => {
                    encode_into(out, |room| write(&mut traffic, room))?;
                    true
                }
                ConnectionState::EncodeTlsData(mut data) => {
                    encode_into(out, |room| data.encode(room))?;
                    false
                }
                ConnectionState::TransmitTlsData(data) => {
                    data.done();
                    false
                }
                ConnectionState::PeerClosed => false,
                _ => return Err(Error::HandshakeNotComplete),
            };
            let discard = discard.min(self.taken);
            self.held.drain(..discard);
            self.taken -= discard;
            if done {
                return Ok(());
            }
        }
    }

    /// Returns `true` if the kernel may take over encryption later.
    pub fn is_movable(&self) -> bool {
        self.movable
    }

    /// Prevents the kernel from taking over encryption.
    pub fn stay(&mut self) {
        self.movable = false;
    }

    /// Returns `true` if the kernel or [`Direct`] can take over from rustls now: no partial record
    /// or message is stored, rustls has no pending answer, and close_notify was not sent.
    pub fn is_at_rest(&self) -> bool {
        self.held.is_empty() && self.may_leave_rustls()
    }

    /// Returns `true` if rustls has no pending answer, so that the engine can leave it at the end
    /// of a record.
    pub fn may_leave_rustls(&self) -> bool {
        self.traffic
            && self.skipping.is_none()
            && !self.owes
            && !self.close_notify_sent
            && !self.is_direct()
            && !self.is_unfinished()
    }

    /// Returns `true` if no part of a record or message was received.
    pub fn is_without_part(&self) -> bool {
        let has_part = matches!(&self.layer, Layer::Direct(direct) if direct.has_part());
        self.held.is_empty() && !has_part
    }

    /// Consumes the engine, and returns the secrets for the next record in each direction.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`TlsSide::into_secrets`].
    pub fn into_secrets(self) -> Result<(ExtractedSecrets, KernelConnection<C::Data>), Error> {
        match self.layer {
            Layer::Rustls(connection) => connection.into_secrets(),
            Layer::Direct(_) => Err(Error::General("the secrets were extracted before".into())),
        }
    }

    /// Returns `true` if becket encrypts and decrypts without rustls.
    pub fn is_direct(&self) -> bool {
        matches!(self.layer, Layer::Direct(_))
    }

    /// Takes the records of an engine [at rest](Self::is_at_rest) from rustls; see [`Direct`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`TlsSide::into_secrets`]. The engine is consumed, so the connection
    /// must end.
    pub fn into_direct(mut self) -> Result<Self, Error> {
        if let Layer::Rustls(connection) = self.layer {
            let direct = Direct::new(connection.into_secrets()?)?;
            self.layer = Layer::Direct(Box::new(direct));
        }
        Ok(self)
    }

    #[cfg(test)]
    pub(crate) fn direct(&mut self) -> Option<&mut Direct<C>> {
        match &mut self.layer {
            Layer::Rustls(_) => None,
            Layer::Direct(direct) => Some(direct),
        }
    }

    fn tickets(&self) -> u32 {
        self.facts().map_or(0, TlsSide::tickets)
    }

    /// Returns the kind of the handshake, full or resumed, or `None` if it is not known yet.
    pub fn handshake_kind(&self) -> Option<HandshakeKind> {
        self.facts()?.common().handshake_kind()
    }

    /// Returns the rustls connection, from which the caller can read negotiated parameters and the
    /// peer's chain. Returns `None` if rustls no longer encrypts and decrypts.
    pub fn facts(&self) -> Option<&C> {
        match &self.layer {
            Layer::Rustls(connection) => Some(connection),
            Layer::Direct(_) => None,
        }
    }
}

/// Returns `true` if the error means that the peer sent more records without data than the engine
/// or rustls allows.
pub fn is_without_data(error: &Error) -> bool {
    matches!(
        error,
        Error::PeerMisbehaved(
            PeerMisbehaved::TooManyEmptyFragments
                | PeerMisbehaved::TooManyKeyUpdateRequests
                | PeerMisbehaved::TooManyWarningAlertsReceived
                | PeerMisbehaved::TooManyRenegotiationRequests
        )
    )
}

/// Maximum weight of the records that one call processes. It is so large that one read of
/// full-sized records never exceeds it.
const MOST_WEIGHT: usize = READ + LARGEST_RECORD;
/// A fatal handshake_failure alert in plaintext (RFC 8446, section 6.2).
const HANDSHAKE_FAILURE: [u8; 7] = [21, 3, 3, 0, 2, 2, 40];
/// Header of a record with an invalid length. rustls answers it with a decode_error alert.
const IMPOSSIBLE: [u8; 5] = [23, 3, 3, 0xff, 0xff];
