//! The decoded PROXY header, and the reasons why decoding or encoding fails.

use std::net::{IpAddr, SocketAddr};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyHeader<'a> {
    pub endpoints: Endpoints,
    /// Optional TLVs. Version 1 and [`Endpoints::Local`] cannot carry them.
    pub tlvs: Tlvs<'a>,
}

/// Addresses of a client connection, as reported by the sender of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoints {
    /// The connection is the sender's own, e.g. a health check, so the addresses of the socket apply.
    /// Version 1 writes `UNKNOWN`.
    Local,
    /// The sender relays a connection but reports no TCP addresses, so the addresses of the socket apply.
    Unknown,
    Tcp {
        source: SocketAddr,
        /// The address that the client connected to.
        destination: SocketAddr,
    },
}

/// Information about a connection besides its addresses. Empty by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tlvs<'a> {
    /// Protocol negotiated by ALPN (0x01).
    pub alpn: Option<&'a [u8]>,
    /// Host name requested by the client, in TLS by SNI (0x02).
    pub authority: Option<&'a str>,
    /// Opaque ID of the connection, at most 128 bytes (0x05).
    pub unique_id: Option<&'a [u8]>,
    /// Number of bytes at the start of the stream that may be early data (0-RTT), and so may be replayed (0xED,
    /// specific to becket). Written, never read.
    pub early_data: Option<u32>,
    /// JA4 fingerprint of the client (0xEC, specific to becket). Written, never read.
    pub ja4: Option<&'a [u8]>,
    /// The client's certificate in PEM, as hitch sends it (0xE0). Written, never read.
    pub client_certificate_pem: Option<&'a str>,
    /// Information about TLS; `None` if the client did not use TLS with the sender (0x20).
    pub ssl: Option<SslTlv<'a>>,
}

/// TLS properties of the client's connection. Strings are OpenSSL's names by convention.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SslTlv<'a> {
    /// `true` if the client used TLS (bit 0x01). If `false`, the remaining fields have no meaning.
    pub is_tls: bool,
    /// `true` if the client sent a certificate in this connection (bit 0x02).
    pub cert_in_connection: bool,
    /// `true` if the client sent a certificate in this connection or when its session was created
    /// (bit 0x04).
    pub cert_in_session: bool,
    /// Verification result: 0 if the client sent a certificate that was verified, otherwise
    /// nonzero.
    pub verify: u32,
    /// TLS version, such as `TLSv1.3` (0x21).
    pub version: Option<&'a str>,
    /// Common name of the client's certificate, UTF-8 (0x22).
    pub common_name: Option<&'a str>,
    /// Cipher suite, such as `ECDHE-RSA-AES128-GCM-SHA256` (0x23).
    pub cipher: Option<&'a str>,
    /// Signature algorithm of the frontend's certificate, such as `SHA256` (0x24).
    pub signature_algorithm: Option<&'a str>,
    /// Algorithm of the frontend's key, such as `RSA2048` (0x25).
    pub key_algorithm: Option<&'a str>,
    /// The client's certificate, DER (0x28).
    pub client_certificate: Option<&'a [u8]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The first bytes are not the signature of an accepted version.
    #[error("no proxy protocol signature")]
    Signature,
    /// The version 1 line has no CRLF within [`MAX_V1_BYTES`](super::MAX_V1_BYTES), or contains a lone CR or LF.
    #[error("line without CRLF at its end")]
    LineEnd,
    /// The version 1 line does not contain TCP4, TCP6 or UNKNOWN.
    #[error("unknown protocol name")]
    Protocol,
    /// The version 1 line lacks two addresses and two ports that match its protocol.
    #[error("invalid addresses")]
    Address,
    /// A version other than 1 and 2.
    #[error("unknown version")]
    Version,
    /// A command other than LOCAL and PROXY.
    #[error("unknown command")]
    Command,
    /// An address family or transport that version 2 does not define.
    #[error("unknown address family or transport")]
    Family,
    /// The announced length exceeds [`MAX_V2_BYTES`](super::MAX_V2_BYTES).
    #[error("longer than 4096 bytes")]
    TooLong,
    /// The announced length is too short for the addresses of its family.
    #[error("too short for the addresses of its family")]
    TooShort,
    /// A TLV of this type has an invalid value or length.
    #[error("invalid tlv of type {0:#04x}")]
    Tlv(u8),
    /// A TLV of this type occurs twice, and another program could use the other value.
    #[error("duplicate tlv of type {0:#04x}")]
    DuplicateTlv(u8),
}

/// A field is too long, or the addresses and TLVs exceed the maximum of the length field, 65535 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeError;

impl Endpoints {
    /// Creates the endpoints of a TCP connection. Converts IPv4-mapped addresses (`::ffff:192.0.2.1`), which a
    /// dual-stack socket reports, to IPv4.
    pub fn tcp(source: SocketAddr, destination: SocketAddr) -> Self {
        Self::Tcp {
            source: canonical(source),
            destination: canonical(destination),
        }
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Converts both addresses to one family, since the format has a single family field for both.
pub(super) fn one_family(source: SocketAddr, destination: SocketAddr) -> (IpAddr, IpAddr) {
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
