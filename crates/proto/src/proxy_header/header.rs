//! A header as a value, and the reasons to refuse one.

use std::net::{IpAddr, SocketAddr};

/// A header: the ends of the connection and what else is known about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyHeader<'a> {
    /// The ends of the client's connection.
    pub endpoints: Endpoints,
    /// More about it. Version 1 cannot carry it, nor can [`Endpoints::Local`].
    pub tlvs: Tlvs<'a>,
}

/// The ends of a client's connection as its first proxy saw them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoints {
    /// The sender speaks for itself, as in a health check: the real ends count. Version 1 says `UNKNOWN` for it.
    Local,
    /// Relayed for a client whose address is not known, or is not one of TCP: the real ends count.
    Unknown,
    /// TCP over IPv4 or IPv6.
    Tcp {
        /// The client's address.
        source: SocketAddr,
        /// The address that the client connected to.
        destination: SocketAddr,
    },
}

/// What is known about a connection besides its ends. Nothing by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tlvs<'a> {
    /// The protocol agreed on by ALPN (0x01).
    pub alpn: Option<&'a [u8]>,
    /// The host name that the client asked for, in TLS by SNI (0x02).
    pub authority: Option<&'a str>,
    /// An opaque name of the connection, at most 128 bytes (0x05).
    pub unique_id: Option<&'a [u8]>,
    /// Some of what follows came as early data (0-RTT) and may be a replay; so much, in bytes, the sender takes as
    /// such, so nothing behind that is (0xED, becket's own). Written, never read.
    pub early_data: Option<u32>,
    /// The JA4 fingerprint of the client (0xEC, becket's own). Written, never read.
    pub ja4: Option<&'a [u8]>,
    /// The client's certificate, PEM, as hitch sends it (0xE0). Written, never read.
    pub client_certificate_pem: Option<&'a str>,
    /// What is known about TLS, `None` if the client did not speak it to the sender (0x20).
    pub ssl: Option<SslTlv<'a>>,
}

/// What is known about the TLS of the client's connection. The names are those of OpenSSL by custom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SslTlv<'a> {
    /// The client spoke TLS (bit 0x01). False makes the rest meaningless, but can be said.
    pub is_tls: bool,
    /// The client sent a certificate in this connection (bit 0x02).
    pub cert_in_connection: bool,
    /// The client sent a certificate at least once in the session that this connection belongs to (bit 0x04).
    pub cert_in_session: bool,
    /// 0 if the client presented a certificate and it was verified, otherwise not 0.
    pub verify: u32,
    /// The version, such as `TLSv1.3` (0x21).
    pub version: Option<&'a str>,
    /// The common name of the client's certificate, UTF-8 (0x22).
    pub common_name: Option<&'a str>,
    /// The cipher suite, such as `ECDHE-RSA-AES128-GCM-SHA256` (0x23).
    pub cipher: Option<&'a str>,
    /// The algorithm that the frontend's certificate is signed with, such as `SHA256` (0x24).
    pub signature_algorithm: Option<&'a str>,
    /// The algorithm of the frontend's key, such as `RSA2048` (0x25).
    pub key_algorithm: Option<&'a str>,
    /// The client's certificate, DER (0x28).
    pub client_certificate: Option<&'a [u8]>,
}

/// Why a header is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// It does not start with the signature of an accepted version.
    #[error("no proxy protocol signature")]
    Signature,
    /// The line of version 1 has no CRLF within [`MAX_V1_BYTES`](super::MAX_V1_BYTES), or a single CR or LF.
    #[error("line does not end as it must")]
    LineEnd,
    /// The line of version 1 does not name TCP4, TCP6 or UNKNOWN.
    #[error("unknown protocol name")]
    Protocol,
    /// The line of version 1 does not have two addresses and two ports of the protocol it names.
    #[error("invalid addresses")]
    Address,
    /// A version other than 1 and 2.
    #[error("unknown version")]
    Version,
    /// A command other than LOCAL and PROXY.
    #[error("unknown command")]
    Command,
    /// An address family or transport that version 2 does not know.
    #[error("unknown address family or transport")]
    Family,
    /// Announces more than [`MAX_V2_BYTES`](super::MAX_V2_BYTES).
    #[error("too long")]
    TooLong,
    /// Announces less than the addresses of its family take.
    #[error("too short for its addresses")]
    TooShort,
    /// A TLV of this type that does not decode, or whose length does not fit.
    #[error("invalid tlv of type {0:#04x}")]
    Tlv(u8),
    /// A TLV of this type that came twice, so that two readers could take different ones.
    #[error("tlv of type {0:#04x} came twice")]
    DuplicateTlv(u8),
}

/// A header that cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The addresses and TLVs take more than the 65535 bytes that the length field can say.
    #[error("proxy header longer than 65535 bytes")]
    TooLong,
    /// A unique ID above 128 bytes.
    #[error("unique id longer than 128 bytes")]
    UniqueId,
}

impl Endpoints {
    /// Makes the ends of a TCP connection out of its two addresses.
    ///
    /// IPv4 addresses that a socket of both families shows as mapped (`::ffff:192.0.2.1`) become IPv4 again.
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

/// Brings both ends into one family: the format has one family field for the two.
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
