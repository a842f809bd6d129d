//! A PROXY header as a value, and the reasons for refusing one.

use std::net::{IpAddr, SocketAddr};

/// A PROXY header: the addresses of the connection and further information about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyHeader<'a> {
    /// Addresses of the client's connection.
    pub endpoints: Endpoints,
    /// Further information. Neither version 1 nor [`Endpoints::Local`] can carry it.
    pub tlvs: Tlvs<'a>,
}

/// Addresses of a client's connection as its first proxy saw them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoints {
    /// The connection is the sender's own, e.g. a health check, so the addresses of the socket apply.
    /// Version 1 writes `UNKNOWN`.
    Local,
    /// The connection is relayed, but the client's address is unknown or not TCP, so the addresses of the
    /// socket apply.
    Unknown,
    /// TCP over IPv4 or IPv6.
    Tcp {
        /// The client's address.
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
    /// Opaque name of the connection, at most 128 bytes (0x05).
    pub unique_id: Option<&'a [u8]>,
    /// Number of bytes at the start of the stream that may be early data (0-RTT), and so a replay; later
    /// bytes are not (0xED, specific to becket). Written, never read.
    pub early_data: Option<u32>,
    /// JA4 fingerprint of the client (0xEC, specific to becket). Written, never read.
    pub ja4: Option<&'a [u8]>,
    /// The client's certificate in PEM, as hitch sends it (0xE0). Written, never read.
    pub client_certificate_pem: Option<&'a str>,
    /// Information about TLS; `None` if the client did not use TLS with the sender (0x20).
    pub ssl: Option<SslTlv<'a>>,
}

/// Information about the TLS of the client's connection, with OpenSSL's names by convention.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SslTlv<'a> {
    /// The client used TLS (bit 0x01). If false, the other fields have no meaning, but can be
    /// encoded.
    pub is_tls: bool,
    /// The client sent a certificate in this connection (bit 0x02).
    pub cert_in_connection: bool,
    /// The client sent a certificate at least once in the session of this connection (bit 0x04).
    pub cert_in_session: bool,
    /// 0 if the client sent a certificate that was verified, otherwise not 0.
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

/// Reason for refusing a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The first bytes are not the signature of an accepted version.
    #[error("no proxy protocol signature")]
    Signature,
    /// The line of version 1 has no CRLF within [`MAX_V1_BYTES`](super::MAX_V1_BYTES), or a lone CR or LF.
    #[error("line without CRLF at its end")]
    LineEnd,
    /// The line of version 1 does not contain TCP4, TCP6 or UNKNOWN.
    #[error("unknown protocol name")]
    Protocol,
    /// The line of version 1 does not have two addresses and two ports that fit its protocol.
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
    /// A TLV of this type does not decode, or its length does not fit.
    #[error("invalid tlv of type {0:#04x}")]
    Tlv(u8),
    /// A TLV of this type occurs twice, so that two readers could use different ones.
    #[error("duplicate tlv of type {0:#04x}")]
    DuplicateTlv(u8),
}

/// Reason why a header cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The addresses and TLVs exceed the maximum of the length field, 65535 bytes.
    #[error("proxy header longer than 65535 bytes")]
    TooLong,
    /// A unique ID exceeds 128 bytes.
    #[error("unique id longer than 128 bytes")]
    UniqueId,
}

impl Endpoints {
    /// Creates the endpoints of a TCP connection from its two addresses.
    ///
    /// Converts IPv4-mapped addresses (`::ffff:192.0.2.1`), which a dual-stack socket reports, to IPv4.
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

/// Converts both addresses to one family: the format has one family field for the two.
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
