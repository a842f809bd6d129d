//! A peek at the TLS ClientHello in the first bytes of a connection, before any of them is given to the TLS engine.
//!
//! [`peek`] reads a prefix of a stream of TLS records and says what it is: the beginning of a ClientHello, a whole one,
//! or something else ([`NotHello`] says what came instead), as early as the bytes allow and never taking it back.
//! A hello in one record is borrowed; one that is spread over several records is put together in a buffer of its own.
//!
//! The peek picks policy and configuration; the TLS engine then sees the same bytes. So the peek must never read
//! another hello than the engine: whatever rustls accepts, the peek reads alike (name, ALPN, suites, schemes, groups)
//! or refuses, and a fuzz target holds the two together. It is stricter than rustls in these: records above 2^14 bytes, record versions
//! other than 0x03xx, more than [`MAX_EXTENSIONS`] extensions. It is laxer where nothing that it reads is concerned
//! (compression methods, key shares, contents of extensions it has no getter for): there rustls refuses.
//!
//! Nothing here limits how many bytes of an unfinished hello a connection may hold: that is the caller's limit.
//! Files: `records` (record layer), `parse` (hello to spans), `hello` (getters), `server_name` (SNI).
//! Sources: RFC 8446 4.1.2, 4.2 and 5.1; RFC 5246 7.4.1; RFC 6066 3; RFC 7301 3.1; RFC 5077 3.2.

mod hello;
mod parse;
mod records;
mod server_name;

use std::fmt;

pub use self::hello::ClientHello;
pub use self::parse::MAX_EXTENSIONS;
pub use self::records::{MAX_HELLO_BYTES, MAX_RECORD_BYTES};
pub use self::server_name::{MAX_NAME_BYTES, ServerName};

/// What the first bytes of a connection are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peek<'a> {
    /// A ClientHello as far as can be told; more bytes are needed.
    Incomplete,
    /// A whole ClientHello. The input may go on behind it; [`ClientHello::wire_len`] says where it ended.
    Hello(ClientHello<'a>),
    /// Something else. More bytes cannot change that.
    Refused(NotHello),
}

/// What came instead of a ClientHello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotHello {
    /// An HTTP request in clear text, or the preface of HTTP/2.
    PlainHttp,
    /// A PROXY protocol header (version 1 or 2) where none is expected.
    ProxyHeader,
    /// A ClientHello in the framing of SSL 2.0 (RFC 5246 E.2).
    Sslv2,
    /// Bytes that begin neither a TLS record nor anything above.
    NotTls,
    /// A TLS alert.
    Alert {
        /// 1 is a warning, 2 is fatal.
        level: u8,
        /// The description, RFC 8446 6.
        description: u8,
    },
    /// A TLS record of another content type than handshake (22).
    NotHandshake(u8),
    /// A handshake message of another type than client_hello (1).
    NotClientHello(u8),
    /// A ClientHello that breaks the rules of its encoding.
    Malformed(Malformed),
}

/// The rule that a ClientHello broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Malformed {
    /// A handshake record without content (RFC 8446 5.1).
    EmptyRecord,
    /// A record announcing more than [`MAX_RECORD_BYTES`].
    OversizedRecord,
    /// A later record of another version than 0x03xx.
    RecordVersion,
    /// A record of another content type between the parts of the hello (RFC 8446 5.1).
    Interleaved(u8),
    /// A hello announcing more than [`MAX_HELLO_BYTES`].
    OversizedHello,
    /// More bytes behind the hello in the record that ends it (RFC 8446 5.1: it precedes a key change).
    TrailingBytes,
    /// A length inside the hello that does not fit what surrounds it, or a list of an impossible length.
    Length,
    /// An extension that came twice.
    DuplicateExtension(u16),
    /// More extensions than [`MAX_EXTENSIONS`].
    TooManyExtensions,
    /// An extension of this type whose content does not decode.
    Extension(u16),
    /// The pre_shared_key extension before another (RFC 8446 4.2.11).
    PskNotLast,
    /// A server_name that names no host, names two, or names one in a form that is no DNS name.
    ServerName,
}

/// Says what the first bytes of a connection are, given those that came until now.
///
/// An answer other than [`Peek::Incomplete`] stays the same when more bytes come. Costs one pass over the record
/// headers and one over the hello; copies (and allocates, once) only a complete hello that is spread over records.
/// Never panics.
pub fn peek(input: &[u8]) -> Peek<'_> {
    let assembled = match records::assemble(input) {
        Ok(Some(assembled)) => assembled,
        Ok(None) => return Peek::Incomplete,
        Err(not_hello) => return Peek::Refused(not_hello),
    };
    match ClientHello::parse(assembled.body, assembled.wire_len) {
        Ok(hello) => Peek::Hello(hello),
        Err(malformed) => Peek::Refused(NotHello::Malformed(malformed)),
    }
}

impl NotHello {
    /// Returns the description of the fatal alert (RFC 8446 6.2) that answers this, `None` where TLS was not spoken.
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
    /// Returns the description of the fatal alert that answers this, RFC 8446 6.2.
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

impl fmt::Display for NotHello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PlainHttp => f.write_str("plain http"),
            Self::ProxyHeader => f.write_str("unexpected proxy protocol header"),
            Self::Sslv2 => f.write_str("ssl 2.0 hello"),
            Self::NotTls => f.write_str("not tls"),
            Self::Alert { level, description } => {
                write!(f, "tls alert {description} of level {level}")
            }
            Self::NotHandshake(kind) => {
                write!(f, "tls record of type {kind} instead of a handshake")
            }
            Self::NotClientHello(kind) => write!(
                f,
                "handshake message of type {kind} instead of a client hello"
            ),
            Self::Malformed(malformed) => write!(f, "malformed client hello: {malformed}"),
        }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyRecord => f.write_str("empty record"),
            Self::OversizedRecord => f.write_str("oversized record"),
            Self::RecordVersion => f.write_str("record version changed"),
            Self::Interleaved(kind) => write!(f, "interrupted by a record of type {kind}"),
            Self::OversizedHello => f.write_str("longer than 64 KiB"),
            Self::TrailingBytes => f.write_str("more data in its record"),
            Self::Length => f.write_str("inconsistent length"),
            Self::DuplicateExtension(kind) => write!(f, "extension {kind} came twice"),
            Self::TooManyExtensions => f.write_str("too many extensions"),
            Self::Extension(kind) => write!(f, "extension {kind} does not decode"),
            Self::PskNotLast => f.write_str("pre_shared_key is not the last extension"),
            Self::ServerName => f.write_str("invalid server name"),
        }
    }
}

// Alert descriptions, RFC 8446 6.
const UNEXPECTED_MESSAGE: u8 = 10;
const RECORD_OVERFLOW: u8 = 22;
const ILLEGAL_PARAMETER: u8 = 47;
const DECODE_ERROR: u8 = 50;
const PROTOCOL_VERSION: u8 = 70;

#[cfg(test)]
mod tests;
