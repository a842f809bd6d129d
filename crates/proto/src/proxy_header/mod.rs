//! The PROXY protocol header, versions 1 and 2: who the client of a relayed connection is.
//!
//! Encodes what becket tells its servers, and decodes what stands in front of becket when it is itself behind a proxy.
//! Whether a header is expected is configuration, never guesswork: whoever may send one may claim any address
//! (section 5 of the specification). [`decode`] therefore knows no answer "no header".
//!
//! Borrows everything; the header is a value that both ends can be tested against: what [`ProxyHeader::encode`] writes,
//! [`decode`] reads back. Where the specification leaves a choice, see `v1`, `v2` and `tlv`.
//! Source: HAProxy's doc/proxy-protocol.txt.

mod crc32c;
mod tlv;
mod v1;
mod v2;

use std::fmt;
use std::net::{IpAddr, SocketAddr};

pub use self::tlv::{SslTlv, Tlvs};
pub use self::v1::MAX_V1_BYTES;
pub use self::v2::MAX_V2_BYTES;
use crate::reader::{Prefix, prefix};

/// A header: the ends of the connection and what else is known about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyHeader<'a> {
    /// The ends of the client's connection.
    pub endpoints: Endpoints<'a>,
    /// More about it. Version 1 cannot carry it, nor can [`Endpoints::Local`].
    pub tlvs: Tlvs<'a>,
}

/// The ends of a client's connection as its first proxy saw them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoints<'a> {
    /// The sender speaks for itself, as in a health check: the real ends count. Version 1 says `UNKNOWN` for it.
    Local,
    /// Relayed for a client without an address that the protocol can express: the real ends count.
    Unknown,
    /// TCP or UDP over IPv4 or IPv6.
    Inet {
        /// The client's address.
        source: SocketAddr,
        /// The address that the client connected to.
        destination: SocketAddr,
        /// TCP or UDP. Version 1 knows only TCP.
        transport: Transport,
    },
    /// A Unix socket. Version 1 says `UNKNOWN` for it.
    Unix {
        /// The client's path without the zeros that fill it up, at most 108 bytes; starts with a zero if abstract.
        source: &'a [u8],
        /// The path that the client connected to, likewise.
        destination: &'a [u8],
        /// Stream or datagram.
        transport: Transport,
    },
}

/// The kind of transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP, or a stream socket.
    Stream,
    /// UDP, or a datagram socket.
    Datagram,
}

/// How a header is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Version 1: one line of text.
    V1,
    /// Version 2: binary.
    V2 {
        /// Adds a CRC32C of the header.
        checksum: bool,
        /// Adds a TLV of so many zero bytes that says nothing.
        padding: Option<u16>,
    },
}

/// Which versions a receiver takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Accept {
    /// Version 1 only.
    V1,
    /// Version 2 only.
    V2,
    /// Both.
    #[serde(rename = "any")]
    Either,
}

/// What the first bytes of a connection are to a receiver that expects a header.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "made once per connection and taken apart at once"
)]
pub enum Decoded<'a> {
    /// The beginning of a header; more bytes are needed.
    Incomplete,
    /// A whole header. The input may go on behind it.
    Header {
        /// The header.
        header: ProxyHeader<'a>,
        /// Bytes that it took at the start of the input.
        len: usize,
    },
    /// No acceptable header: the connection must be closed. More bytes cannot change that.
    Refused(Refusal),
}

/// Why a header is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// It does not start with the signature of an accepted version.
    Signature,
    /// The line of version 1 has no CRLF within [`MAX_V1_BYTES`], or a single CR or LF.
    LineEnd,
    /// The line of version 1 does not name TCP4, TCP6 or UNKNOWN.
    Protocol,
    /// The line of version 1 does not have two addresses and two ports of the protocol it names.
    Address,
    /// A version other than 1 and 2.
    Version,
    /// A command other than LOCAL and PROXY.
    Command,
    /// An address family or transport that version 2 does not know.
    Family,
    /// Announces more than [`MAX_V2_BYTES`].
    TooLong,
    /// Announces less than the addresses of its family take.
    TooShort,
    /// A TLV of this type that does not decode, or whose length does not fit.
    Tlv(u8),
    /// A TLV of this type that came twice, so that two readers could take different ones.
    DuplicateTlv(u8),
    /// The checksum is wrong.
    Checksum,
}

/// A header that cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The addresses and TLVs take more than the 65535 bytes that the length field can say.
    #[error("proxy header longer than 65535 bytes")]
    TooLong,
    /// A Unix path above 108 bytes.
    #[error("unix path longer than 108 bytes")]
    Path,
    /// A unique ID above 128 bytes.
    #[error("unique id longer than 128 bytes")]
    UniqueId,
}

impl ProxyHeader<'_> {
    /// Appends the header to `out`.
    ///
    /// An IPv4 and an IPv6 end together are written as two IPv6 addresses, the first one mapped.
    ///
    /// # Errors
    ///
    /// Something is longer than the format allows; `out` is then as before. Version 1 never fails.
    pub fn encode(&self, format: Format, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        match format {
            Format::V1 => v1::encode(&self.endpoints, out),
            Format::V2 { checksum, padding } => {
                let start = out.len();
                let extras = tlv::Extras { checksum, padding };
                return v2::encode(self, extras, out).inspect_err(|_| out.truncate(start));
            }
        }
        Ok(())
    }
}

impl Endpoints<'_> {
    /// Makes the ends of a TCP connection out of its two addresses.
    ///
    /// IPv4 addresses that a socket of both families shows as mapped (`::ffff:192.0.2.1`) become IPv4 again.
    pub fn tcp(source: SocketAddr, destination: SocketAddr) -> Self {
        Self::Inet {
            source: canonical(source),
            destination: canonical(destination),
            transport: Transport::Stream,
        }
    }
}

/// Reads the header at the start of `input`, given the bytes that came until now.
///
/// An answer other than [`Decoded::Incomplete`] stays the same when more bytes come. Never allocates, never panics;
/// at most [`MAX_V2_BYTES`] are needed for a decision.
pub fn decode(input: &[u8], accept: Accept) -> Decoded<'_> {
    let v1 = match accept {
        Accept::V1 | Accept::Either => prefix(input, v1::SIGNATURE),
        Accept::V2 => Prefix::Differs,
    };
    let v2 = match accept {
        Accept::V2 | Accept::Either => prefix(input, v2::SIGNATURE),
        Accept::V1 => Prefix::Differs,
    };
    let decoded = match (v1, v2) {
        (Prefix::Whole, _) => v1::decode(input),
        (_, Prefix::Whole) => v2::decode(input),
        (Prefix::Differs, Prefix::Differs) => Err(Refusal::Signature),
        _ => Ok(None),
    };
    match decoded {
        Ok(Some((header, len))) => Decoded::Header { header, len },
        Ok(None) => Decoded::Incomplete,
        Err(refusal) => Decoded::Refused(refusal),
    }
}

/// Compares the first bytes of a connection with the signatures of both versions.
pub(crate) fn signature(input: &[u8]) -> Prefix {
    match (prefix(input, v1::SIGNATURE), prefix(input, v2::SIGNATURE)) {
        (Prefix::Whole, _) | (_, Prefix::Whole) => Prefix::Whole,
        (Prefix::Differs, Prefix::Differs) => Prefix::Differs,
        _ => Prefix::Partial,
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Brings both ends into one family: the format has one family field for the two.
fn one_family(source: SocketAddr, destination: SocketAddr) -> (IpAddr, IpAddr) {
    match (source.ip(), destination.ip()) {
        (IpAddr::V4(source), destination @ IpAddr::V6(_)) => {
            (source.to_ipv6_mapped().into(), destination)
        }
        (source @ IpAddr::V6(_), IpAddr::V4(destination)) => {
            (source, destination.to_ipv6_mapped().into())
        }
        same => same,
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signature => f.write_str("no proxy protocol signature"),
            Self::LineEnd => f.write_str("line does not end as it must"),
            Self::Protocol => f.write_str("unknown protocol name"),
            Self::Address => f.write_str("invalid addresses"),
            Self::Version => f.write_str("unknown version"),
            Self::Command => f.write_str("unknown command"),
            Self::Family => f.write_str("unknown address family or transport"),
            Self::TooLong => f.write_str("too long"),
            Self::TooShort => f.write_str("too short for its addresses"),
            Self::Tlv(kind) => write!(f, "invalid tlv of type {kind:#04x}"),
            Self::DuplicateTlv(kind) => write!(f, "tlv of type {kind:#04x} came twice"),
            Self::Checksum => f.write_str("wrong checksum"),
        }
    }
}

#[cfg(test)]
mod tests;
