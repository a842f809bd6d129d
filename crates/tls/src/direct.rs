//! Records of an established connection, encrypted and decrypted without rustls.
//!
//! rustls allocates a block for each sent record and copies the data twice, and copies received
//! data once. [`Direct`] takes over from it and moves data between the caller's buffers in one
//! pass. It also needs less memory, because rustls keeps only the state for KeyUpdates and tickets.
//! Decision 0052 has the measurements.
//!
//! Sources: RFC 8446 sections 4.6.3, 5 and 6; RFC 5246 section 6.2.3.3; RFC 5288; RFC 7905.

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use becket_proto::post_handshake::{Alert, KEY_UPDATE, Message, Messages, Unexpected};
use becket_proto::records::{ALERT, APPLICATION_DATA, HANDSHAKE};
use rustls::kernel::KernelConnection;
use rustls::{
    AlertDescription, ConnectionTrafficSecrets, Error, ExtractedSecrets, InvalidMessage,
    PeerMisbehaved, ProtocolVersion,
};

use crate::kernel::confidentiality_limit;
use crate::scratch::Buffer;
use crate::side::TlsSide;

pub(crate) struct Direct<C: TlsSide> {
    connection: KernelConnection<C::Data>,
    sealing: RecordKey,
    opening: RecordKey,
    /// Maximum number of sent records under one key.
    limit: u64,
    messages: Messages,
    /// `true` if a KeyUpdate must precede the next data, because the peer requested it.
    owes_update: bool,
    /// `true` if the peer has requested a second handshake.
    renegotiates: bool,
}

/// Key of one direction.
struct RecordKey {
    key: LessSafeKey,
    iv: [u8; IV],
    /// Sequence number of the next record.
    sequence: u64,
    form: Form,
}

/// Form of a record's header, nonce and additional data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Tls13,
    /// TLS 1.2 with AES-GCM: each record contains a part of its nonce.
    Tls12Gcm,
    /// TLS 1.2 with ChaCha20-Poly1305.
    Tls12,
}

impl<C: TlsSide> Direct<C> {
    /// Takes over the records of a connection at these secrets.
    ///
    /// # Errors
    ///
    /// Fails if the cipher or the version is unknown.
    pub(crate) fn new(
        (secrets, connection): (ExtractedSecrets, KernelConnection<C::Data>),
    ) -> Result<Self, Error> {
        let tls13 = connection.protocol_version() == ProtocolVersion::TLSv1_3;
        Ok(Self {
            limit: confidentiality_limit(connection.negotiated_cipher_suite()),
            connection,
            sealing: RecordKey::new(secrets.tx, tls13)?,
            opening: RecordKey::new(secrets.rx, tls13)?,
            messages: Messages::default(),
            owes_update: false,
            renegotiates: false,
        })
    }

    /// Decrypts one whole record. Appends data to `plain`, and answers to `out`. Returns `true` if
    /// the record is a close_notify.
    ///
    /// # Errors
    ///
    /// Fails if the peer violates the protocol or sends a fatal alert. [`Self::refuse`] answers it.
    pub(crate) fn open(
        &mut self,
        record: &[u8],
        plain: &mut Buffer,
        out: &mut Buffer,
    ) -> Result<bool, Error> {
        let (kind, len) = self.opening.open(record, plain)?;
        if kind == APPLICATION_DATA {
            if self.messages.is_begun() {
                return Err(PeerMisbehaved::MessageInterleavedWithHandshakeMessage.into());
            }
            plain.advance(len);
            return Ok(false);
        }
        let content = plain.next(len).to_vec();
        match kind {
            ALERT if !self.messages.is_begun() => self.heed_alert(&content),
            HANDSHAKE => {
                let mut messages = std::mem::take(&mut self.messages);
                messages.take(&content, |message| {
                    self.heed(&message, out).map_err(MessageRefusal)
                })?;
                self.messages = messages;
                Ok(false)
            }
            _ => Err(unexpected()),
        }
    }

    /// Returns `true` if a part of a message was received.
    pub(crate) fn has_part(&self) -> bool {
        self.messages.is_begun()
    }

    fn heed_alert(&self, content: &[u8]) -> Result<bool, Error> {
        match Alert::read(content, self.opening.form == Form::Tls13) {
            Some(Alert::CloseNotify) => Ok(true),
            Some(Alert::Warning) => Ok(false),
            Some(Alert::Fatal) => {
                let description = content.last().copied().unwrap_or_default();
                Err(Error::AlertReceived(AlertDescription::from(description)))
            }
            None => Err(InvalidMessage::MissingData("alert").into()),
        }
    }

    fn heed(&mut self, message: &Message<'_>, out: &mut Buffer) -> Result<(), Error> {
        let tls13 = self.opening.form == Form::Tls13;
        match message {
            Message::KeyUpdate { requested } if tls13 => {
                self.owes_update |= requested;
                self.opening = RecordKey::new(self.connection.update_rx_secret()?, tls13)?;
                Ok(())
            }
            Message::Ticket(ticket) if tls13 => C::take_ticket(&mut self.connection, ticket),
            // One answer, as by rustls, so that requests in a row cost no unbounded output.
            Message::Renegotiation if !tls13 => {
                if std::mem::replace(&mut self.renegotiates, true) {
                    return Err(PeerMisbehaved::TooManyRenegotiationRequests.into());
                }
                let refusal = [1, u8::from(AlertDescription::NoRenegotiation)];
                self.sealing.seal(ALERT, &refusal, out)
            }
            _ => Err(unexpected()),
        }
    }

    /// Appends records with this data to `out`, after a KeyUpdate if one is due.
    ///
    /// # Errors
    ///
    /// Fails if the key has reached its limit and TLS 1.2 cannot replace it.
    pub(crate) fn seal(&mut self, data: &[u8], out: &mut Buffer) -> Result<(), Error> {
        for part in data.chunks(LARGEST_PART) {
            let worn = self.sealing.sequence >= self.limit.saturating_sub(RESERVED);
            if self.owes_update || worn {
                if self.sealing.form != Form::Tls13 {
                    return Err(Error::EncryptError);
                }
                self.sealing.seal(HANDSHAKE, &KEY_UPDATE, out)?;
                self.sealing = RecordKey::new(self.connection.update_tx_secret()?, true)?;
                self.owes_update = false;
            }
            self.sealing.seal(APPLICATION_DATA, part, out)?;
        }
        Ok(())
    }

    /// Appends a close_notify to `out`.
    ///
    /// # Errors
    ///
    /// Fails if AWS-LC cannot encrypt.
    pub(crate) fn close_notify(&mut self, out: &mut Buffer) -> Result<(), Error> {
        let content = [1, u8::from(AlertDescription::CloseNotify)];
        self.sealing.seal(ALERT, &content, out)
    }

    /// Appends the alert that answers `error` to `out`. A fatal alert gets no answer.
    pub(crate) fn refuse(&mut self, error: &Error, out: &mut Buffer) {
        let alert = match error {
            Error::AlertReceived(_) => return,
            Error::DecryptError => AlertDescription::BadRecordMac,
            Error::PeerSentOversizedRecord | Error::Other(_) => AlertDescription::RecordOverflow,
            Error::InvalidMessage(InvalidMessage::UnexpectedMessage(_)) => {
                AlertDescription::UnexpectedMessage
            }
            Error::InvalidMessage(_) => AlertDescription::DecodeError,
            _ => AlertDescription::UnexpectedMessage,
        };
        // The connection ends in any case, so a failure changes nothing.
        let _unsent = self.sealing.seal(ALERT, &[2, u8::from(alert)], out);
    }
}

impl RecordKey {
    fn new(
        (sequence, secrets): (u64, ConnectionTrafficSecrets),
        tls13: bool,
    ) -> Result<Self, Error> {
        let (algorithm, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(Error::General("unknown cipher".into())),
        };
        let form = match algorithm {
            _ if tls13 => Form::Tls13,
            algorithm if *algorithm == CHACHA20_POLY1305 => Form::Tls12,
            _ => Form::Tls12Gcm,
        };
        let key = UnboundKey::new(algorithm, key.as_ref()).map_err(|_| Error::EncryptError)?;
        let iv = iv.as_ref().try_into().map_err(|_| Error::EncryptError)?;
        Ok(Self {
            key: LessSafeKey::new(key),
            iv,
            sequence,
            form,
        })
    }

    /// Returns the nonce of the next record.
    fn nonce(&self) -> [u8; IV] {
        let mut nonce = self.iv;
        let sequence = self.sequence.to_be_bytes();
        let tail = nonce.iter_mut().skip(IV - sequence.len());
        tail.zip(sequence).for_each(|(byte, other)| *byte ^= other);
        nonce
    }

    /// Returns the additional data of a record that starts with `head` and contains `len` bytes
    /// (RFC 5246, section 6.2.3.3; RFC 8446, section 5.2).
    fn additional(&self, head: [u8; HEADER], len: usize) -> ([u8; MOST_ADDITIONAL], usize) {
        let mut data = [0; MOST_ADDITIONAL];
        let sequence = self.sequence.to_be_bytes();
        let [kind, major, minor, ..] = head;
        if self.form == Form::Tls13 {
            data[..HEADER].copy_from_slice(&head);
            return (data, HEADER);
        }
        data[..sequence.len()].copy_from_slice(&sequence);
        data[sequence.len()..].copy_from_slice(&header([kind, major, minor], len));
        (data, MOST_ADDITIONAL)
    }

    /// Appends a record with this content, of at most [`LARGEST_PART`] bytes, to `out`.
    fn seal(&mut self, kind: u8, content: &[u8], out: &mut Buffer) -> Result<(), Error> {
        let nonce = self.nonce();
        let kinds = [kind];
        let (outer, explicit, inner): (u8, &[u8], &[u8]) = match self.form {
            Form::Tls13 => (APPLICATION_DATA, &[], &kinds),
            Form::Tls12Gcm => (kind, &nonce[SALT..], &[]),
            Form::Tls12 => (kind, &[], &[]),
        };
        let len = explicit.len() + content.len() + inner.len() + TAG;
        let start = header([outer, MAJOR, MINOR], len);
        let (additional, known) = self.additional(start, content.len());
        let record = out.next(HEADER + len);
        let (head, rest) = record.split_at_mut(HEADER + explicit.len());
        head[..HEADER].copy_from_slice(&start);
        head[HEADER..].copy_from_slice(explicit);
        let (sealed, tail) = rest.split_at_mut(content.len());
        let done = self.key.seal_out_of_place_scatter(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(&additional[..known]),
            content,
            sealed,
            inner,
            tail,
        );
        done.map_err(|_| Error::EncryptError)?;
        self.sequence += 1;
        out.advance(HEADER + len);
        Ok(())
    }

    /// Decrypts a record into the free space of `plain`. Returns its type and the length of its
    /// content.
    fn open(&mut self, record: &[u8], plain: &mut Buffer) -> Result<(u8, usize), Error> {
        let (start, body) = record.split_first_chunk::<HEADER>().ok_or(SHORT)?;
        let [kind, major, ..] = *start;
        if major != MAJOR {
            return Err(InvalidMessage::UnknownProtocolVersion.into());
        }
        let (most, explicit) = match self.form {
            Form::Tls13 if kind != APPLICATION_DATA => return Err(unexpected()),
            // The type follows the data.
            Form::Tls13 => (LARGEST_PART + 1, 0),
            Form::Tls12Gcm => (LARGEST_PART, IV - SALT),
            Form::Tls12 => (LARGEST_PART, 0),
        };
        let (explicit, body) = body.split_at_checked(explicit).ok_or(SHORT)?;
        let (sealed, tag) = body.split_last_chunk::<TAG>().ok_or(SHORT)?;
        if sealed.len() > most {
            return Err(Error::PeerSentOversizedRecord);
        }
        let mut nonce = self.nonce();
        nonce[IV - explicit.len()..].copy_from_slice(explicit);
        let (additional, known) = self.additional(*start, sealed.len());
        let opened = plain.next(sealed.len());
        let done = self.key.open_separate_gather(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(&additional[..known]),
            sealed,
            tag,
            opened,
        );
        done.map_err(|_| Error::DecryptError)?;
        self.sequence += 1;
        if self.form != Form::Tls13 {
            return Ok((kind, sealed.len()));
        }
        // The type is the last byte that is not zero (RFC 8446, section 5.4).
        let len = opened.iter().rposition(|byte| *byte != 0);
        let len = len.ok_or_else(unexpected)?;
        Ok((opened[len], len))
    }
}

fn header([kind, major, minor]: [u8; 3], len: usize) -> [u8; HEADER] {
    // A record has at most 16 KiB and its overhead, so the length fits.
    let [high, low] = (len as u16).to_be_bytes();
    [kind, major, minor, high, low]
}

fn unexpected() -> Error {
    InvalidMessage::UnexpectedMessage("after the handshake").into()
}

/// An error of a message, or an unexpected message.
struct MessageRefusal(Error);

impl From<Unexpected> for MessageRefusal {
    fn from(_: Unexpected) -> Self {
        Self(unexpected())
    }
}

impl From<MessageRefusal> for Error {
    fn from(refusal: MessageRefusal) -> Self {
        refusal.0
    }
}

const SHORT: Error = Error::InvalidMessage(InvalidMessage::MessageTooShort);
/// Maximum data per record in bytes.
const LARGEST_PART: usize = 16 * 1024;
/// Records that a key may still encrypt after data has reached the limit: alerts and a KeyUpdate.
const RESERVED: u64 = 8;
const HEADER: usize = 5;
/// Version in the header of each record.
const MAJOR: u8 = 3;
const MINOR: u8 = 3;
/// Maximum length of the additional data, in TLS 1.2.
const MOST_ADDITIONAL: usize = 8 + HEADER;
const TAG: usize = 16;
const IV: usize = 12;
/// Part of the nonce in TLS 1.2 with AES-GCM that the records do not contain, in bytes.
const SALT: usize = 4;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use rustls::client::UnbufferedClientConnection;
    use rustls::crypto::aws_lc_rs::{ALL_CIPHER_SUITES, default_provider};
    use rustls::pki_types::{PrivateKeyDer, ServerName};
    use rustls::{ClientConfig, HandshakeKind, RootCertStore, ServerConfig, SupportedCipherSuite};

    use super::*;
    use crate::engine::{Engine, Received};
    use crate::scratch::LARGEST_RECORD;

    struct Pair {
        server: Engine,
        client: Engine<UnbufferedClientConnection>,
        /// Tickets of the server that the client has not received.
        tickets: Vec<u8>,
    }

    struct Configs(Arc<ServerConfig>, Arc<ClientConfig>);

    impl Configs {
        fn of(suite: SupportedCipherSuite) -> Self {
            let made = rcgen::generate_simple_self_signed(vec!["a.example".into()]).unwrap();
            let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
            let certificate = made.cert.der().clone();
            let mut provider = default_provider();
            provider.cipher_suites = vec![suite];
            let provider = Arc::new(provider);
            let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
                .with_protocol_versions(&[suite.version()])
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(vec![certificate.clone()], key);
            let mut server = server.unwrap();
            server.enable_secret_extraction = true;
            let mut roots = RootCertStore::empty();
            roots.add(certificate).unwrap();
            let mut client = ClientConfig::builder_with_provider(provider)
                .with_protocol_versions(&[suite.version()])
                .unwrap()
                .with_root_certificates(roots)
                .with_no_client_auth();
            client.enable_secret_extraction = true;
            Self(Arc::new(server), Arc::new(client))
        }

        /// Returns both ends of an established connection.
        fn pair(&self) -> Pair {
            let name = ServerName::try_from("a.example").unwrap();
            let client = UnbufferedClientConnection::new(Arc::clone(&self.1), name).unwrap();
            let mut client = Engine::of(client, LARGEST_RECORD, false);
            let mut server = Engine::new(Arc::clone(&self.0), LARGEST_RECORD, false).unwrap();
            let mut tickets = Vec::new();
            while server.is_unfinished() || client.is_unfinished() {
                let flight = pass(&mut client, &tickets).1;
                tickets = pass(&mut server, &flight).1;
            }
            assert!(server.is_at_rest() && client.is_at_rest());
            Pair {
                server,
                client,
                tickets,
            }
        }
    }

    /// Returns both ends of an established connection with this cipher suite.
    fn pair(suite: SupportedCipherSuite) -> Pair {
        let mut pair = Configs::of(suite).pair();
        pass(&mut pair.client, &pair.tickets);
        pair
    }

    /// Passes `input` to an engine. Returns the decrypted data and the output.
    fn pass<C: TlsSide>(engine: &mut Engine<C>, input: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let (received, plain, out) = attempt(engine, input);
        received.unwrap();
        (plain, out)
    }

    fn attempt<C: TlsSide>(
        engine: &mut Engine<C>,
        input: &[u8],
    ) -> (Result<Received, Error>, Vec<u8>, Vec<u8>) {
        let (mut plain, mut out) = (Buffer::default(), Buffer::default());
        let mut input = [engine.held(), input].concat();
        let mut received = engine.receive(&mut input, &mut plain, &mut out);
        while received.is_ok() && engine.waits() {
            received = engine.resume(&mut plain, &mut out);
        }
        (received, plain.filled().to_vec(), out.filled().to_vec())
    }

    fn seal<C: TlsSide>(engine: &mut Engine<C>, data: &[u8]) -> Vec<u8> {
        let mut out = Buffer::default();
        engine.seal(data, false, &mut out).unwrap();
        out.filled().to_vec()
    }

    fn direct(engine: &mut Engine) -> &mut Direct<rustls::server::UnbufferedServerConnection> {
        engine.direct().unwrap()
    }

    const TLS13: SupportedCipherSuite =
        rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
    const TLS12: SupportedCipherSuite =
        rustls::crypto::aws_lc_rs::cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256;

    #[test]
    fn rustls_understands_every_cipher_and_is_understood() {
        // The certificate has an ECDSA key, and the records of the RSA suites are the same.
        let signs = |suite: &&SupportedCipherSuite| !format!("{suite:?}").contains("_RSA_");
        for suite in ALL_CIPHER_SUITES.iter().filter(signs) {
            let Pair {
                server, mut client, ..
            } = pair(*suite);
            let mut server = server.into_direct().unwrap();
            assert!(server.is_direct() && server.facts().is_none());
            for len in [1, 100, LARGEST_PART, LARGEST_PART + 1, 70_000] {
                let data: Vec<u8> = (0..len).map(|at| at as u8).collect();
                let sealed = seal(&mut server, &data);
                assert_eq!(pass(&mut client, &sealed), (data.clone(), Vec::new()));
                let sealed = seal(&mut client, &data);
                assert_eq!(pass(&mut server, &sealed), (data, Vec::new()));
            }
            let mut out = Buffer::default();
            server.seal(b"last", true, &mut out).unwrap();
            let (received, plain, _) = attempt(&mut client, out.filled());
            assert!(received.unwrap().ended);
            assert_eq!(plain, b"last");
            let mut out = Buffer::default();
            client.seal(b"bye", true, &mut out).unwrap();
            let (received, plain, _) = attempt(&mut server, out.filled());
            assert!(received.unwrap().ended);
            assert_eq!(plain, b"bye");
        }
    }

    #[test]
    fn keys_change_when_the_peer_asks_and_at_the_limit() {
        let Pair { server, client, .. } = pair(TLS13);
        let mut server = server.into_direct().unwrap();
        let mut client = client.into_direct().unwrap();
        direct(&mut server).limit = RESERVED + 3;
        let client_limit = client.direct().unwrap();
        client_limit.limit = RESERVED + 2;
        for _ in 0..20 {
            let sealed = seal(&mut server, b"down");
            assert_eq!(pass(&mut client, &sealed).0, b"down");
            let sealed = seal(&mut client, b"up");
            assert_eq!(pass(&mut server, &sealed).0, b"up");
            assert!(direct(&mut server).sealing.sequence <= RESERVED + 3);
        }
        let request = [24, 0, 0, 1, 1];
        let mut out = Buffer::default();
        let client_direct = client.direct().unwrap();
        client_direct
            .sealing
            .seal(HANDSHAKE, &request, &mut out)
            .unwrap();
        let next = client_direct.connection.update_tx_secret().unwrap();
        client_direct.sealing = RecordKey::new(next, true).unwrap();
        pass(&mut server, out.filled());
        assert!(direct(&mut server).owes_update);
        let sealed = seal(&mut server, b"again");
        assert_eq!(pass(&mut client, &sealed).0, b"again");
        assert!(!direct(&mut server).owes_update);
    }

    #[test]
    fn a_key_of_tls_12_encrypts_no_data_beyond_its_limit() {
        let Pair {
            server, mut client, ..
        } = pair(TLS12);
        let mut server = server.into_direct().unwrap();
        direct(&mut server).limit = RESERVED + 3;
        let mut out = Buffer::default();
        let sealed = server.seal(&[0; 3 * LARGEST_PART], false, &mut out);
        assert_eq!(sealed, Err(Error::EncryptError));
        out.clear();
        server.close_notify(&mut out).unwrap();
        let (received, _, _) = attempt(&mut client, out.filled());
        received.unwrap_err();
    }

    #[test]
    fn tickets_of_a_server_are_taken() {
        let configs = Configs::of(TLS13);
        let Pair {
            client, tickets, ..
        } = configs.pair();
        assert!(!tickets.is_empty());
        pass(&mut client.into_direct().unwrap(), &tickets);
        let next = configs.pair().client;
        assert_eq!(next.handshake_kind(), Some(HandshakeKind::Resumed));
    }

    #[test]
    fn a_second_handshake_of_tls_12_is_refused_with_a_warning() {
        let Pair { server, client, .. } = pair(TLS12);
        let mut server = server.into_direct().unwrap();
        let mut client = client.into_direct().unwrap();
        let mut out = Buffer::default();
        let peer = client.direct().unwrap();
        peer.sealing
            .seal(HANDSHAKE, &[1, 0, 0, 0], &mut out)
            .unwrap();
        let (_, answer) = pass(&mut server, out.filled());
        let mut content = Buffer::default();
        let opened = client.direct().unwrap().opening.open(&answer, &mut content);
        assert_eq!(opened, Ok((ALERT, 2)));
        assert_eq!(content.next(2), [1, 100]);
    }

    #[test]
    fn further_requests_for_a_handshake_end_the_connection() {
        let Pair { server, client, .. } = pair(TLS12);
        let mut server = server.into_direct().unwrap();
        let mut client = client.into_direct().unwrap();
        let mut out = Buffer::default();
        let peer = client.direct().unwrap();
        let requests = [1, 0, 0, 0].repeat(4096);
        peer.sealing.seal(HANDSHAKE, &requests, &mut out).unwrap();
        let (received, _, answer) = attempt(&mut server, out.filled());
        assert!(crate::engine::is_without_data(&received.unwrap_err()));
        assert!(answer.len() < 100, "{}", answer.len());
    }

    /// Returns the alert with which the server answers a record of the client with this content.
    fn answer_to(suite: SupportedCipherSuite, kind: u8, content: &[u8]) -> Option<u8> {
        let Pair { server, client, .. } = pair(suite);
        let mut server = server.into_direct().unwrap();
        let mut client = client.into_direct().unwrap();
        let mut out = Buffer::default();
        client
            .direct()
            .unwrap()
            .sealing
            .seal(kind, content, &mut out)
            .unwrap();
        let (received, plain, answer) = attempt(&mut server, out.filled());
        received.unwrap_err();
        assert_eq!(plain, b"");
        let mut content = Buffer::default();
        let opened = client.direct().unwrap().opening.open(&answer, &mut content);
        let (kind, len) = opened.ok()?;
        assert_eq!((kind, len, content.next(1)), (ALERT, 2, &mut [2][..]));
        Some(content.next(2)[1])
    }

    #[test]
    fn violations_are_answered_with_the_right_alert() {
        let unexpected = Some(10);
        for suite in [TLS12, TLS13] {
            assert_eq!(answer_to(suite, 20, &[1]), unexpected);
            assert_eq!(answer_to(suite, HANDSHAKE, &[20, 0, 0, 0]), unexpected);
            assert_eq!(answer_to(suite, ALERT, &[1]), Some(50));
            assert_eq!(answer_to(suite, ALERT, &[2, 80]), None);
        }
        assert_eq!(answer_to(TLS12, HANDSHAKE, &[24, 0, 0, 1, 0]), unexpected);
        assert_eq!(answer_to(TLS13, HANDSHAKE, &[1, 0, 0, 0]), unexpected);
        assert_eq!(answer_to(TLS13, HANDSHAKE, &[4, 0, 0, 0]), unexpected);
        // Only padding.
        assert_eq!(answer_to(TLS13, 0, &[0; 100]), unexpected);
        assert_eq!(
            answer_to(TLS13, APPLICATION_DATA, &[1; LARGEST_PART + 1]),
            Some(22)
        );
        assert_eq!(
            answer_to(TLS12, APPLICATION_DATA, &[1; LARGEST_PART + 1]),
            Some(22)
        );
    }

    #[test]
    fn padding_is_removed_up_to_the_largest_record() {
        for (padding, fits) in [
            (200, true),
            (LARGEST_PART - 2, true),
            (LARGEST_PART - 1, false),
        ] {
            let Pair { server, client, .. } = pair(TLS13);
            let mut server = server.into_direct().unwrap();
            let mut client = client.into_direct().unwrap();
            let (mut padded, mut out) = (vec![7, 0, APPLICATION_DATA], Buffer::default());
            // The type that `seal` appends is a byte of padding.
            padded.extend(vec![0; padding - 1]);
            let peer = client.direct().unwrap();
            peer.sealing.seal(0, &padded, &mut out).unwrap();
            let (received, plain, _) = attempt(&mut server, out.filled());
            assert_eq!(received.is_ok(), fits, "{padding}");
            assert_eq!(plain, if fits { &[7, 0][..] } else { &[] });
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Data survives any division into writes and reads. A changed byte ends the connection
        /// before any data of its record.
        #[test]
        fn records_are_cut_anywhere_and_changed_nowhere(
            writes in prop::collection::vec(0..40_000usize, 1..6),
            cuts in prop::collection::vec(1..30_000usize, 0..20),
            flip in prop::option::of((any::<prop::sample::Index>(), 1..=255u8)),
            tls13 in any::<bool>(),
        ) {
            let Pair { mut client, server, .. } = pair(if tls13 { TLS13 } else { TLS12 });
            let mut server = server.into_direct().unwrap();
            let (mut sent, mut sealed) = (Vec::new(), Vec::new());
            for len in writes {
                let data: Vec<u8> = (0..len).map(|at| (at / 7) as u8).collect();
                sealed.extend(seal(&mut client, &data));
                sent.extend(data);
            }
            let flipped = flip.filter(|_| !sealed.is_empty()).map(|(at, bits)| {
                let at = at.index(sealed.len());
                sealed[at] ^= bits;
                at
            });
            let (mut rest, mut got, mut failed) = (&sealed[..], Vec::new(), false);
            for cut in cuts.into_iter().chain([usize::MAX]) {
                let (now, later) = rest.split_at(cut.min(rest.len()));
                rest = later;
                let (received, plain, _) = attempt(&mut server, now);
                got.extend(plain);
                failed |= received.is_err();
                if failed {
                    break;
                }
            }
            prop_assert!(sent.starts_with(&got));
            match flipped {
                None => prop_assert_eq!(got.len(), sent.len()),
                Some(_) => prop_assert!(failed || got.len() < sent.len()),
            }
        }
    }
}
