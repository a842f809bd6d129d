//! rustls' unbuffered connections, of either side, as "bytes in, bytes out".
//!
//! Ciphertext and plaintext pass through the worker's scratch buffers. [`Engine::receive`] takes
//! whole records from the front of its input; what is left, a partial record or handshake
//! message, the engine holds, bounded, and the caller puts it in front of the next input.
//!
//! rustls is shown one record more at a time, since it processes all that it is shown, and says
//! nothing of records that hold no data. Once there are traffic keys each record is weighed
//! (`proto::records`), and a call that has taken in enough leaves the rest for [`Engine::resume`].
//!
//! Invariant: rustls is shown what it has taken in and not discarded, in every call. Its deframer
//! keeps positions in those bytes, and indexes out of them when they are missing.
//!
//! Early data (0-RTT) comes out like other data, before the client has finished its handshake. From
//! then on the engine may be written to, and it keeps what the rest of the handshake needs.
//!
//! Whatever TLS itself wants to send (handshake flights, tickets, key updates, alerts) is
//! appended to `out` in the right order.

use std::sync::Arc;
use std::{fmt, mem};

use becket_proto::records::{self, Allowance};
use rustls::kernel::KernelConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus,
    WriteTraffic,
};
use rustls::{Error, ExtractedSecrets, HandshakeKind, OtherError, PeerMisbehaved, ServerConfig};

use super::side::TlsSide;
use super::skipping::{Skipping, Verdict};
use crate::scratch::{Buffer, LARGEST_RECORD, READ};
use crate::sessions::context::{self, HandshakeContext};

/// The TLS state of one leg: `C` says which side of TLS we are on it. To a client we are the
/// server, which is the default.
pub struct Engine<C = UnbufferedServerConnection> {
    /// On the heap: a transition between phases then moves a pointer, not a kilobyte.
    connection: Box<C>,
    /// Bytes that rustls has not discarded, and bytes that it was not shown.
    held: Vec<u8>,
    /// How much of that rustls has taken in, in whole records.
    taken: usize,
    /// Behind that, a whole record waits.
    waits: bool,
    /// How much of an unfinished record or message may be held.
    most_held: usize,
    /// Data may pass, and records are weighed.
    traffic: bool,
    allowance: Allowance,
    /// For a client that announced early data, until it has sent more.
    skipping: Option<Box<Skipping>>,
    /// For a handshake that continues while data moves already, because it began with early data.
    unfinished: Option<Box<HandshakeContext>>,
    close_notify_sent: bool,
    /// The peer has been sent something.
    spoken: bool,
    /// The secrets may be given out: the kernel may take over.
    movable: bool,
    /// A record without data came that was no ticket, perhaps a KeyUpdate, and rustls may hold its answer back until there is
    /// data to send.
    owes: bool,
}

/// Shows nothing of the keys.
impl<C: TlsSide> fmt::Debug for Engine<C> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let common = self.connection.common();
        out.debug_struct("Engine")
            .field("version", &common.protocol_version())
            .field("kind", &common.handshake_kind())
            .finish_non_exhaustive()
    }
}

/// The outcome of [`Engine::receive`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Application data may be sent: the handshake is complete, or early data has come.
    pub ready: bool,
    /// Some of the data came as early data: it may be a replay (RFC 8446, section 2.3).
    pub early: bool,
    /// The peer sent close_notify: no more data follows.
    pub ended: bool,
    /// Weight of the records that were taken in, in bytes.
    pub weight: usize,
}

/// A peer's message, or record, is longer than this many bytes, which is all that is held of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overfull(pub usize);

impl fmt::Display for Overfull {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "more than {} bytes of an unfinished message", self.0)
    }
}

impl std::error::Error for Overfull {}

impl Engine {
    /// Starts the server's side of a handshake. Of an unfinished record or message at most
    /// `most_held` bytes are held while it lasts, and one record afterwards.
    ///
    /// # Errors
    ///
    /// Only when the configuration is unusable.
    pub fn new(config: Arc<ServerConfig>, most_held: usize) -> Result<Self, Error> {
        let movable = config.enable_secret_extraction;
        let connection = UnbufferedServerConnection::new(config)?;
        Ok(Self::of(connection, most_held, movable))
    }
}

impl<C: TlsSide> Engine<C> {
    /// Wraps a connection of rustls that has not begun; `most_held` as for [`Engine::new`]. `movable` is whether the
    /// configuration lets secrets out.
    pub fn of(connection: C, most_held: usize, movable: bool) -> Self {
        Self {
            connection: Box::new(connection),
            held: Vec::new(),
            taken: 0,
            waits: false,
            most_held,
            traffic: false,
            allowance: Allowance::new(),
            skipping: None,
            unfinished: None,
            close_notify_sent: false,
            spoken: false,
            movable,
            owes: false,
        }
    }

    /// Expects early data, which the policy takes or not. What is not taken is thrown away.
    pub fn expecting_early_data(mut self, may_be_taken: bool) -> Self {
        self.skipping = Some(Box::new(Skipping::new(may_be_taken)));
        self.most_held = self.most_held.max(LARGEST_RECORD);
        self
    }

    /// The bytes that belong in front of the next input.
    pub fn held(&self) -> &[u8] {
        &self.held
    }

    /// Returns whether a whole record is held: [`Self::resume`] continues with it, and nothing need be received.
    pub fn waits(&self) -> bool {
        self.waits
    }

    /// Processes `input`, which begins with what was held: appends what the records held to
    /// `plain` and what TLS wants to send to `out`. What does not fit into one call waits.
    ///
    /// # Errors
    ///
    /// When the peer broke the protocol or the handshake failed; the alert to send is in `out`.
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

    /// Goes on with what is held.
    ///
    /// # Errors
    ///
    /// As [`Self::receive`].
    pub fn resume(&mut self, plain: &mut Buffer, out: &mut Buffer) -> Result<Received, Error> {
        let mut held = mem::take(&mut self.held);
        let outcome = self.process(&mut held, plain, out);
        self.held = held;
        let (discarded, received) = outcome?;
        self.held.drain(..discarded.min(self.held.len()));
        Ok(received)
    }

    /// Returns whether the client has still to finish its handshake, though it may be served already.
    pub fn is_unfinished(&self) -> bool {
        self.connection.common().is_handshaking()
    }

    /// Keeps what the rest of a handshake needs to make sessions, lent by [`Self::receive`].
    pub fn keep(&mut self, handshake: Option<HandshakeContext>) {
        self.unfinished = handshake.map(Box::new);
    }

    /// Lends what an unfinished handshake needs while records are taken in.
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
        self.unfinished = handshake
            .filter(|_| self.connection.common().is_handshaking())
            .map(Box::new);
        taken
    }

    /// Shows rustls one record after the other. Returns how many bytes it has done with.
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
            let (established, tickets) = (self.traffic, self.connection.tickets());
            discarded += self.show(shown, plain, out, &mut received)?;
            let Some(len) = record else { break };
            if verdict == Verdict::Ask && discarded == taken {
                self.refuse_early_data(len)?;
                discarded = end;
            }
            taken = end;
            if self.traffic {
                let mute = plain.len() == before && self.connection.tickets() == tickets;
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
        let Some(skipping) = &mut self.skipping else {
            return Ok(Verdict::Pass);
        };
        let verdict = skipping.judge(record, self.connection.common())?;
        if verdict == Verdict::Over {
            self.skipping = None;
        }
        Ok(verdict)
    }

    fn refuse_early_data(&mut self, len: usize) -> Result<(), Error> {
        let skipping = self.skipping.as_mut();
        skipping.map_or(Ok(()), |skipping| skipping.refuse(len))
    }

    /// Lets rustls process what it is shown until it wants more. Returns how much to discard.
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
            let UnbufferedStatus { mut discard, state } = self.connection.process(rest);
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
                // If early data is taken, rustls writes as soon as its own flight is out. That
                // alone admits nobody: a hello can be sent again and again.
                let handshaking = self.connection.common().is_handshaking();
                received.ready = writable && (received.early || !handshaking);
                if received.ready {
                    self.skipping = None;
                    (self.traffic, self.most_held) = (true, LARGEST_RECORD);
                }
                return Ok(consumed);
            }
        }
    }

    /// Sends an error to the peer, and returns it. `rest` is what rustls was shown and did not
    /// discard. What is still to be sent comes first, and last the alert.
    fn refuse(&mut self, rest: &[u8], out: &mut Buffer, error: Error) -> Error {
        let mut rest = rest.to_vec();
        if matches!(error, Error::General(_)) && self.connection.common().wants_write() {
            // A key that does not sign: what goes before its signature is there, and no alert behind it.
            self.collect_alert(&mut rest, out);
            self.spoken = true;
        }
        let silent = !self.connection.common().wants_write();
        if silent && !matches!(error, Error::AlertReceived(_)) && !self.close_notify_sent {
            if !self.spoken {
                // Nothing in common was found, and there are no keys yet.
                out.push(&HANDSHAKE_FAILURE);
                return error;
            }
            // rustls has no alert for some errors, and no call that sends one: it makes its own,
            // under the keys of the moment, of a record that cannot be.
            rest.extend(IMPOSSIBLE);
            let UnbufferedStatus { discard, state } = self.connection.process(&mut rest);
            drop(state);
            rest.drain(..discard.min(rest.len()));
        }
        self.collect_alert(&mut rest, out);
        error
    }

    /// Not one call more than there is to collect: the error would be found again.
    fn collect_alert(&mut self, rest: &mut [u8], out: &mut Buffer) {
        let mut discarded = 0;
        while self.connection.common().wants_write() {
            let rest = rest.get_mut(discarded..).unwrap_or_default();
            let UnbufferedStatus { discard, state } = self.connection.process(rest);
            let Ok(ConnectionState::EncodeTlsData(mut data)) = state else {
                return;
            };
            if encode_into(out, |room| data.encode(room)).is_err() {
                return;
            }
            discarded += discard;
        }
    }

    /// Encrypts `plain` into records behind what is in `out`; a ticket or key update that waits
    /// goes first.
    ///
    /// # Errors
    ///
    /// When the handshake is not complete, or the keys are worn out (RFC 8446, section 5.5).
    pub fn encrypt(&mut self, plain: &[u8], out: &mut Buffer) -> Result<(), Error> {
        self.write(out, |traffic, room| traffic.encrypt(plain, room))?;
        self.owes &= plain.is_empty();
        Ok(())
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

    /// Encrypts `plain`, if there is any, and at the `end` of all data appends close_notify.
    ///
    /// # Errors
    ///
    /// As [`Self::encrypt`].
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
        loop {
            let taken = self.held.get_mut(..self.taken).unwrap_or_default();
            let UnbufferedStatus { discard, state } = self.connection.process(taken);
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

    /// Returns whether the kernel may take over, some time.
    pub fn is_movable(&self) -> bool {
        self.movable
    }

    /// The kernel will not.
    pub fn stay(&mut self) {
        self.movable = false;
    }

    /// Returns whether nothing is under way: no part of a record or message, no answer that rustls owes, and no end.
    pub fn is_at_rest(&self) -> bool {
        self.traffic
            && self.held.is_empty()
            && self.skipping.is_none()
            && !self.owes
            && !self.close_notify_sent
            && !self.is_unfinished()
    }

    /// Ends, and gives out the secrets, from the next record in each direction on.
    ///
    /// # Errors
    ///
    /// As [`TlsSide::into_secrets`].
    pub fn into_secrets(self) -> Result<(ExtractedSecrets, KernelConnection<C::Data>), Error> {
        self.connection.into_secrets()
    }

    /// Full or resumed, once that is known.
    pub fn handshake_kind(&self) -> Option<HandshakeKind> {
        self.connection.common().handshake_kind()
    }

    /// The negotiated parameters, and the peer's chain.
    pub fn facts(&self) -> &C {
        &self.connection
    }
}

/// Returns whether the peer sent more records without data than it may, by our count or by one of rustls'.
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

/// Weight of the records that one call takes in: that of the records that one read can complete,
/// if they are long.
const MOST_WEIGHT: usize = READ + LARGEST_RECORD;
/// A fatal alert in clear: RFC 8446, section 6.2.
const HANDSHAKE_FAILURE: [u8; 7] = [21, 3, 3, 0, 2, 2, 40];
/// The header of a record that is longer than any, which is a decode_error.
const IMPOSSIBLE: [u8; 5] = [23, 3, 3, 0xff, 0xff];
