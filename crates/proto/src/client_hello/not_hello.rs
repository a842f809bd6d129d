//! Reasons why the first bytes of a connection are not a ClientHello, and the alerts to answer with.

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotHello {
    /// An HTTP request in clear text, or the preface of HTTP/2.
    #[error("plain http")]
    PlainHttp,
    /// A PROXY protocol header (version 1 or 2) where none is expected.
    #[error("unexpected proxy protocol header")]
    ProxyHeader,
    /// A ClientHello in the framing of SSL 2.0 (RFC 5246 E.2).
    #[error("ssl 2.0 hello")]
    Sslv2,
    /// Bytes that begin neither a TLS record nor one of the protocols above.
    #[error("not tls")]
    NotTls,
    #[error("tls alert {description} of level {level}")]
    Alert {
        /// Alert level: 1 is a warning, 2 is fatal (RFC 8446, section 6).
        level: u8,
        /// Alert description (RFC 8446, section 6).
        description: u8,
    },
    /// A TLS record with a content type other than handshake (22).
    #[error("tls record of type {0} instead of a handshake")]
    NotHandshake(u8),
    /// A handshake message with a type other than client_hello (1).
    #[error("handshake message of type {0} instead of a client hello")]
    NotClientHello(u8),
    /// A ClientHello that violates its encoding.
    #[error("malformed client hello: {0}")]
    Malformed(Malformed),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// A handshake record without content (RFC 8446 5.1).
    #[error("empty record")]
    EmptyRecord,
    /// A record that announces more than [`MAX_RECORD_BYTES`](super::MAX_RECORD_BYTES).
    #[error("oversized record")]
    OversizedRecord,
    /// A later record with a version other than 0x03xx.
    #[error("record version changed")]
    RecordVersion,
    /// A record of another content type between the parts of the hello (RFC 8446 5.1).
    #[error("interrupted by a record of type {0}")]
    Interleaved(u8),
    /// A hello that announces more than [`MAX_HELLO_BYTES`](super::MAX_HELLO_BYTES).
    #[error("longer than 64 KiB")]
    OversizedHello,
    /// More bytes after the hello in its last record (RFC 8446 5.1: a key change follows the hello).
    #[error("more data after it in the same record")]
    TrailingBytes,
    /// A length that contradicts the enclosing structure, or an impossible length of a list.
    #[error("inconsistent length")]
    Length,
    #[error("duplicate extension {0}")]
    DuplicateExtension(u16),
    /// More extensions than [`MAX_EXTENSIONS`](super::MAX_EXTENSIONS).
    #[error("too many extensions")]
    TooManyExtensions,
    /// An extension whose content does not decode.
    #[error("extension {0} does not decode")]
    Extension(u16),
    /// A pre_shared_key extension that is not the last one (RFC 8446 4.2.11).
    #[error("pre_shared_key is not the last extension")]
    PskNotLast,
    /// A server_name extension without a host name, with two, or with an invalid DNS name.
    #[error("invalid server name")]
    ServerName,
}

impl NotHello {
    /// Returns the description of the fatal alert to send (RFC 8446 6.2), or `None` if the peer does not
    /// use TLS.
    pub fn alert(self) -> Option<u8> {
        match self {
            Self::PlainHttp | Self::ProxyHeader | Self::NotTls | Self::Alert { .. } => None,
            Self::Sslv2 => Some(PROTOCOL_VERSION),
            Self::NotHandshake(_) | Self::NotClientHello(_) => Some(UNEXPECTED_MESSAGE),
            Self::Malformed(malformed) => Some(malformed.alert()),
        }
    }
}

impl Malformed {
    /// Returns the description of the fatal alert to send, RFC 8446 6.2.
    pub fn alert(self) -> u8 {
        match self {
            Self::OversizedRecord => RECORD_OVERFLOW,
            Self::Interleaved(_) | Self::TrailingBytes => UNEXPECTED_MESSAGE,
            Self::DuplicateExtension(_) | Self::PskNotLast | Self::ServerName => ILLEGAL_PARAMETER,
            Self::EmptyRecord
            | Self::RecordVersion
            | Self::OversizedHello
            | Self::Length
            | Self::TooManyExtensions
            | Self::Extension(_) => DECODE_ERROR,
        }
    }
}

// Alert descriptions, RFC 8446 6.
const UNEXPECTED_MESSAGE: u8 = 10;
const RECORD_OVERFLOW: u8 = 22;
const ILLEGAL_PARAMETER: u8 = 47;
const DECODE_ERROR: u8 = 50;
const PROTOCOL_VERSION: u8 = 70;
