//! The PROXY header that introduces a client to its server.
//!
//! Source: HAProxy's proxy-protocol.txt, sections 2.1 and 2.2; the codec is
//! [`becket_proto::proxy_header`].

use becket_proto::proxy_header::{EncodeError, Endpoints, Format, ProxyHeader, SslTlv, Tlvs};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{Core, Net};
use crate::config::ProxyVersion;
use crate::log::access::ResumedBy;
use crate::socket::Socket;
use crate::tls::engine::Engine;
use crate::tls::names;

/// Encodes the header for a client whose handshake is complete, or who has none with us.
///
/// # Errors
///
/// When a field is longer than the protocol can say.
pub fn proxy_header<N: Net>(
    version: ProxyVersion,
    core: &Core<N>,
    engine: Option<&Engine>,
) -> Result<Vec<u8>, EncodeError> {
    let arrived_at = core.facts.arrived_at;
    let endpoints = match arrived_at.or_else(|| core.client.socket.local_address()) {
        Some(local) => Endpoints::tcp(core.facts.client, local),
        None => Endpoints::Unknown,
    };
    let tls = core.facts.tls.as_ref();
    let has_certificate = tls.is_some_and(|tls| tls.client_verified);
    let resumed: Option<ResumedBy> = tls.and_then(|tls| tls.resumed);
    let suite = engine
        .and_then(|engine| engine.facts().negotiated_cipher_suite())
        .and_then(|suite| suite.suite().as_str());
    let leaf = engine
        .and_then(|engine| engine.facts().peer_certificates())
        .and_then(<[_]>::first);
    let parsed = leaf.and_then(|leaf| X509Certificate::from_der(leaf).ok());
    let common_name = parsed.as_ref().and_then(|(_, leaf)| common_name(leaf));
    let ssl = SslTlv {
        is_tls: true,
        cert_in_connection: has_certificate && resumed.is_none(),
        cert_in_session: has_certificate,
        verify: u32::from(!has_certificate),
        version: tls.and_then(|tls| tls.version).map(names::version),
        common_name,
        cipher: suite,
        signature_algorithm: None,
        key_algorithm: None,
    };
    let header = ProxyHeader {
        endpoints,
        tlvs: Tlvs {
            alpn: tls.and_then(|tls| tls.alpn.as_deref()),
            authority: core.facts.server_name.as_deref(),
            unique_id: None,
            ssl: engine.map(|_| ssl),
            early_data: tls.and_then(|tls| tls.early_data),
        },
    };
    let mut out = Vec::new();
    let format = match version {
        ProxyVersion::V1 => Format::V1,
        ProxyVersion::V2 => Format::V2 {
            checksum: false,
            padding: None,
        },
    };
    header.encode(format, &mut out)?;
    Ok(out)
}

/// The last common name of the subject: the most specific one (RFC 4514, section 2.1).
fn common_name<'a>(leaf: &'a X509Certificate<'_>) -> Option<&'a str> {
    leaf.subject()
        .iter_common_name()
        .last()
        .and_then(|name| name.as_str().ok())
}
