//! Parser of OpenSSL's SSL_SESSION in DER, limited to the fields that a resumption needs.
//!
//! A sequence: version 1, protocol version, suite, session ID, master secret, then tagged fields in ascending order.
//! Fields that do not affect a resumption are skipped, and so are fields that later versions of OpenSSL add.
//! Unsupported content is refused with a reason ([`SessionFault`]): another protocol version, a client certificate,
//! compression, a maximum fragment length.
//!
//! The caller checks whether the suite is supported, and whether the session is still valid.
//!
//! Source: OpenSSL 3.0, `ssl/ssl_asn1.c`; RFC 7627 section 5.3 for the flag.

use becket_proto::der::Der;

/// Contents of a TLS 1.2 session. Debug output omits the master secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct StudSession<'a> {
    pub suite: u16,
    /// Session ID, 1 to 32 bytes.
    pub id: &'a [u8],
    /// Master secret, RFC 5246, section 8.1.
    pub master_secret: &'a [u8; 48],
    /// Time of the full handshake by the sender's clock, in seconds since 1970.
    pub time: Option<u64>,
    /// Lifetime of the session at the sender, in seconds.
    pub timeout: Option<u64>,
    /// Server name that the client sent and the server recognized.
    pub server_name: Option<&'a [u8]>,
    /// The master secret is bound to the handshake (RFC 7627).
    pub extended_master_secret: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionFault {
    Malformed,
    /// A version other than TLS 1.2.
    Version,
    /// The client sent a certificate. Its session must not be resumed where a certificate is required.
    ClientCertificate,
    /// An unsupported feature: compression, a maximum fragment length, or a pre-shared key.
    Unsupported,
}

impl<'a> StudSession<'a> {
    /// Parses the complete DER of one session.
    ///
    /// # Errors
    /// Returns the reason why the session cannot be used.
    pub fn parse(der: &'a [u8]) -> Result<Self, SessionFault> {
        let mut whole = Der::new(der);
        let mut fields = whole.sequence().ok_or(SessionFault::Malformed)?;
        if !whole.is_empty() || fields.unsigned() != Some(STRUCTURE) {
            return Err(SessionFault::Malformed);
        }
        match fields.unsigned() {
            None => return Err(SessionFault::Malformed),
            Some(TLS12) => {}
            Some(_) => return Err(SessionFault::Version),
        }
        let mut session = Self::fixed(&mut fields).ok_or(SessionFault::Malformed)?;
        let mut last = None;
        while !fields.is_empty() {
            let (tag, contents) = fields.next().ok_or(SessionFault::Malformed)?;
            if last.is_some_and(|last| last >= tag) {
                return Err(SessionFault::Malformed);
            }
            last = Some(tag);
            session.tagged(tag, contents)?;
        }
        Ok(session)
    }

    /// Reads the mandatory fields.
    fn fixed(fields: &mut Der<'a>) -> Option<Self> {
        let suite = fields.octets()?.try_into().ok()?;
        let id = fields.octets()?;
        let master_secret = fields.octets()?.try_into().ok()?;
        matches!(id.len(), 1..=32).then_some(Self {
            suite: u16::from_be_bytes(suite),
            id,
            master_secret,
            time: None,
            timeout: None,
            server_name: None,
            extended_master_secret: false,
        })
    }

    fn tagged(&mut self, tag: u8, contents: &'a [u8]) -> Result<(), SessionFault> {
        let field = tag.checked_sub(EXPLICIT).ok_or(SessionFault::Malformed)?;
        if field == PEER {
            return Err(SessionFault::ClientCertificate);
        }
        if matches!(field, PSK_HINT | PSK_IDENTITY | COMPRESSION | SRP_USER) {
            return Err(SessionFault::Unsupported);
        }
        let mut inside = Der::new(contents);
        let whole = |inside: Der<'_>| inside.is_empty();
        match field {
            SERVER_NAME => {
                let name = inside.octets().filter(|_| whole(inside));
                self.server_name = Some(name.ok_or(SessionFault::Malformed)?);
            }
            TIME | TIMEOUT | FLAGS | FRAGMENT => {
                let number = inside.unsigned().filter(|_| whole(inside));
                self.number(field, number.ok_or(SessionFault::Malformed)?)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn number(&mut self, field: u8, number: u64) -> Result<(), SessionFault> {
        match field {
            TIME => self.time = Some(number),
            TIMEOUT => self.timeout = Some(number),
            FLAGS => self.extended_master_secret = number & EXTENDED_MASTER_SECRET != 0,
            // A resumed session keeps its maximum fragment length (RFC 6066, section 4). Codes 1 to
            // 4 set one.
            FRAGMENT if matches!(number, 1..=4) => return Err(SessionFault::Unsupported),
            _ => {}
        }
        Ok(())
    }
}

impl std::fmt::Debug for StudSession<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StudSession")
            .field("suite", &self.suite)
            .field("id", &self.id)
            .field("time", &self.time)
            .field("timeout", &self.timeout)
            .field("server_name", &self.server_name)
            .field("extended_master_secret", &self.extended_master_secret)
            .finish_non_exhaustive()
    }
}

/// OpenSSL's `SSL_SESSION_ASN1_VERSION`.
const STRUCTURE: u64 = 1;
const TLS12: u64 = 0x0303;
/// Context-specific and constructed: all tagged fields are explicit, except `[0]`, the key argument of SSLv2.
const EXPLICIT: u8 = 0xa0;
const TIME: u8 = 1;
const TIMEOUT: u8 = 2;
const PEER: u8 = 3;
const SERVER_NAME: u8 = 6;
const PSK_HINT: u8 = 7;
const PSK_IDENTITY: u8 = 8;
const COMPRESSION: u8 = 11;
const SRP_USER: u8 = 12;
const FLAGS: u8 = 13;
const FRAGMENT: u8 = 17;
/// OpenSSL's `SSL_SESS_FLAG_EXTMS`.
const EXTENDED_MASTER_SECRET: u64 = 1;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Fields of an encoded session, in the order of the structure.
    #[derive(Clone, Debug)]
    struct Written {
        version: u64,
        suite: u16,
        id: Vec<u8>,
        secret: [u8; 48],
        tagged: Vec<(u8, Vec<u8>)>,
    }

    fn element(tag: u8, contents: &[u8]) -> Vec<u8> {
        let len = match contents.len() {
            len @ ..=0x7f => vec![len as u8],
            len @ 0x80..=0xff => vec![0x81, len as u8],
            len => vec![0x82, (len >> 8) as u8, len as u8],
        };
        [&[tag], len.as_slice(), contents].concat()
    }

    fn integer(number: u64) -> Vec<u8> {
        let bytes = number.to_be_bytes();
        let first = bytes.iter().position(|byte| *byte != 0).unwrap_or(7);
        let mut digits = bytes[first..].to_vec();
        if digits[0] >= 0x80 {
            digits.insert(0, 0);
        }
        element(0x02, &digits)
    }

    impl Written {
        fn plain() -> Self {
            Self {
                version: TLS12,
                suite: 0xc030,
                id: vec![5; 32],
                secret: [6; 48],
                tagged: Vec::new(),
            }
        }

        fn with(field: u8, contents: Vec<u8>) -> Self {
            Self {
                tagged: vec![(field, contents)],
                ..Self::plain()
            }
        }

        fn der(&self) -> Vec<u8> {
            let mut body = [integer(STRUCTURE), integer(self.version)].concat();
            body.extend(element(0x04, &self.suite.to_be_bytes()));
            body.extend(element(0x04, &self.id));
            body.extend(element(0x04, &self.secret));
            for (field, contents) in &self.tagged {
                body.extend(element(EXPLICIT | field, contents));
            }
            element(0x30, &body)
        }
    }

    fn fault(written: &Written) -> SessionFault {
        StudSession::parse(&written.der()).unwrap_err()
    }

    #[test]
    fn what_we_could_not_keep_is_refused_by_name() {
        let tls13 = Written {
            version: 0x0304,
            ..Written::plain()
        };
        assert_eq!(fault(&tls13), SessionFault::Version);
        let certificate = Written::with(PEER, element(0x30, &[0; 300]));
        assert_eq!(fault(&certificate), SessionFault::ClientCertificate);
        let compressed = Written::with(COMPRESSION, element(0x04, &[1]));
        assert_eq!(fault(&compressed), SessionFault::Unsupported);
        assert_eq!(
            fault(&Written::with(FRAGMENT, integer(2))),
            SessionFault::Unsupported
        );
        let unlimited = Written::with(FRAGMENT, integer(0)).der();
        assert!(StudSession::parse(&unlimited).is_ok());
    }

    #[test]
    fn a_session_without_an_id_or_with_a_short_secret_is_malformed() {
        let nameless = Written {
            id: Vec::new(),
            ..Written::plain()
        };
        assert_eq!(fault(&nameless), SessionFault::Malformed);
        let mut short = Written::plain().der();
        let at = short.windows(2).position(|two| two == [0x04, 48]).unwrap();
        short.remove(at + 2);
        short[at + 1] = 47;
        short[1] -= 1;
        assert_eq!(StudSession::parse(&short), Err(SessionFault::Malformed));
    }

    #[test]
    fn fields_come_once_and_in_order() {
        let mut written = Written::with(TIMEOUT, integer(300));
        written.tagged.push((TIME, integer(7)));
        assert_eq!(fault(&written), SessionFault::Malformed);
        written.tagged.reverse();
        assert!(StudSession::parse(&written.der()).is_ok());
        written.tagged.push((TIMEOUT, integer(300)));
        assert_eq!(fault(&written), SessionFault::Malformed);
    }

    #[test]
    fn debug_output_holds_no_secret() {
        let der = Written::plain().der();
        let shown = format!("{:?}", StudSession::parse(&der).unwrap());
        assert!(!shown.contains("6, 6"), "{shown}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

        #[test]
        fn what_was_written_is_read(
            suite in any::<u16>(),
            id in proptest::collection::vec(any::<u8>(), 1..=32),
            time in proptest::option::of(any::<u64>()),
            timeout in proptest::option::of(any::<u64>()),
            name in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..=255)),
            flags in proptest::option::of(any::<u64>()),
            later in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..=40)),
        ) {
            let number = |field, number: Option<u64>| number.map(|n| (field, integer(n)));
            let tagged = [
                number(TIME, time),
                number(TIMEOUT, timeout),
                Some((4, element(0x04, b"context"))),
                name.as_ref().map(|name| (SERVER_NAME, element(0x04, name))),
                number(FLAGS, flags),
                later.map(|bytes| (20, bytes)),
            ];
            let tagged = tagged.into_iter().flatten().collect();
            let written = Written { suite, id, tagged, ..Written::plain() };
            let der = written.der();
            let read = StudSession::parse(&der).unwrap();
            prop_assert_eq!(read.suite, suite);
            prop_assert_eq!(read.id, &written.id);
            prop_assert_eq!(read.master_secret, &written.secret);
            prop_assert_eq!(read.time, time);
            prop_assert_eq!(read.timeout, timeout);
            prop_assert_eq!(read.server_name, name.as_deref());
            prop_assert_eq!(read.extended_master_secret, flags.unwrap_or(0) & 1 == 1);
            for len in 0..der.len() {
                prop_assert_eq!(StudSession::parse(&der[..len]), Err(SessionFault::Malformed));
            }
        }
    }
}
