//! The PROXY header that introduces a client to its server.
//!
//! Source: HAProxy's proxy-protocol.txt, sections 2.1 and 2.2; the codec is
//! [`becket_proto::proxy_header`]. What the server is told of TLS is what the handshake agreed on;
//! what a header from in front said of it is not passed on, apart from the addresses and the name
//! of the connection.

use becket_config::choices::{ProxyTlv, ProxyVersion};
use becket_proto::proxy_header::{EncodeError, Endpoints, Format, ProxyHeader, SslTlv, Tlvs};

use super::facts::{Agreed, Facts};
use super::{Core, Net};
use crate::socket::Socket;
use crate::tls::engine::Engine;
use crate::tls::names;

/// Encodes the header for a client whose handshake is complete, or who has none with us.
///
/// # Errors
///
/// When a field is longer than the protocol can say.
pub(super) fn proxy_header<N: Net>(
    (version, also): (ProxyVersion, &[ProxyTlv]),
    core: &mut Core<N>,
    engine: Option<&Engine>,
) -> Result<Vec<u8>, EncodeError> {
    let says = |tlv| also.contains(&tlv);
    if says(ProxyTlv::UniqueId) {
        name_connection(&mut core.facts);
    }
    let facts = &core.facts;
    let introduced = facts.introduced.as_deref();
    let arrived_at = introduced.and_then(|known| known.arrived_at);
    let endpoints = match arrived_at.or_else(|| core.client.socket.local_address()) {
        Some(local) => Endpoints::tcp(facts.client, local),
        None => Endpoints::Unknown,
    };
    let tls = facts.tls.as_ref();
    let unique_id = introduced.and_then(|known| known.unique_id.as_deref());
    let ssl = tls.map(|tls| SslTlv {
        client_certificate: engine
            .filter(|_| says(ProxyTlv::ClientCertificate))
            .and_then(certificate),
        ..ssl(tls)
    });
    let header = ProxyHeader {
        endpoints,
        tlvs: Tlvs {
            alpn: tls.and_then(|tls| tls.alpn.as_deref()),
            authority: facts.server_name.as_deref(),
            unique_id: unique_id.filter(|_| says(ProxyTlv::UniqueId)),
            ssl,
            early_data: tls.and_then(|tls| tls.early_data),
        },
    };
    let format = match version {
        ProxyVersion::V1 => Format::V1,
        ProxyVersion::V2 => Format::V2 {
            checksum: says(ProxyTlv::Crc32c),
            padding: None,
        },
    };
    let mut out = Vec::new();
    header.encode(format, &mut out)?;
    Ok(out)
}

/// What TLS knows. "Connection" is this one; "session" begins with the full handshake from which
/// this one descends.
fn ssl(tls: &Agreed) -> SslTlv<'_> {
    let presented = tls.presented.as_deref();
    let identity = tls.identity.as_deref();
    SslTlv {
        is_tls: true,
        cert_in_connection: tls.client_verified && tls.resumed.is_none(),
        cert_in_session: tls.client_verified,
        verify: u32::from(!tls.client_verified),
        version: tls.version.map(names::version),
        common_name: identity.and_then(|identity| identity.common_name.as_deref()),
        cipher: tls.suite.map(names::openssl_suite),
        signature_algorithm: presented.and_then(|presented| presented.signature),
        key_algorithm: presented.and_then(|presented| presented.key.as_deref()),
        client_certificate: None,
    }
}

/// The client's own certificate, unless it is so long that readers would refuse the header.
fn certificate(engine: &Engine) -> Option<&[u8]> {
    let chain = engine.facts().peer_certificates()?;
    let leaf: &[u8] = chain.first()?;
    Some(leaf).filter(|leaf| leaf.len() <= LONGEST_CERTIFICATE)
}

/// Gives a connection a name that no other has, unless it came with one.
fn name_connection(facts: &mut Facts) {
    let introduced = facts.introduced.get_or_insert_default();
    if introduced.unique_id.is_some() {
        return;
    }
    let mut bytes = [0; 16];
    // Without random bytes there are no handshakes either; then it has no name.
    if aws_lc_rs::rand::fill(&mut bytes).is_ok() {
        let name: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        introduced.unique_id = Some(name.into_bytes().into());
    }
}

/// haproxy keeps a header in one buffer of 16 KiB, with all that is behind it.
const LONGEST_CERTIFICATE: usize = 8 * 1024;
