//! The first bytes that a server receives about its client: a new PROXY header, the received header
//! unchanged, or only the address.
//!
//! Source: HAProxy's proxy-protocol.txt, sections 2.1 and 2.2; the codec is
//! [`becket_proto::proxy_header`]. A new header contains the TLS properties of the handshake with
//! becket. If becket received a header, only its addresses and the connection ID are copied to the
//! new header.

use std::net::IpAddr;

use base64ct::{Base64, Encoding};
use becket_config::choices::{Introduction, ProxyTlv};
use becket_proto::proxy_header::{EncodeError, Endpoints, Format, ProxyHeader, SslTlv, Tlvs};

use super::context::{Core, Net};
use becket_keys::presented::Presented;
use becket_log::facts::{Agreed, Facts};
use becket_tls::engine::Engine;
use becket_tls::ja4::Ja4;
use becket_tls::names;

/// Encodes the bytes that introduce a client to its server.
///
/// # Errors
///
/// Fails if a field is too long for the protocol.
pub(super) fn introduction<N: Net>(
    (kind, also): (Introduction, &[ProxyTlv]),
    core: &mut Core<N>,
    engine: Option<&Engine>,
) -> Result<Vec<u8>, EncodeError> {
    let format = match kind {
        Introduction::V1 => Format::V1,
        Introduction::V2 => Format::V2,
        Introduction::Ip => return Ok(address(core.facts.client.ip())),
        Introduction::Received => {
            let introduced = core.facts.introduced.as_deref();
            let received = introduced.and_then(|known| known.header.as_deref());
            return Ok(received.unwrap_or_default().to_vec());
        }
    };
    let says = |tlv| also.contains(&tlv);
    if says(ProxyTlv::UniqueId) {
        name_connection(&mut core.facts);
    }
    let facts = &core.facts;
    let introduced = facts.introduced.as_deref();
    let endpoints = match core.arrived_at() {
        Some(local) => Endpoints::tcp(facts.client, local),
        None => Endpoints::Unknown,
    };
    let tls = facts.tls.as_ref();
    let unique_id = introduced.and_then(|known| known.unique_id.as_deref());
    let certificate = engine.and_then(certificate);
    let pem = certificate
        .filter(|_| says(ProxyTlv::ClientCertificatePem))
        .map(pem);
    let presented = tls.and_then(|tls| tls.presented);
    let key_algorithm = presented.and_then(Presented::key);
    let ssl = tls.map(|tls| SslTlv {
        client_certificate: certificate.filter(|_| says(ProxyTlv::ClientCertificate)),
        ..ssl(tls, key_algorithm.as_deref())
    });
    let ja4 = facts.ja4.as_ref().filter(|_| says(ProxyTlv::Ja4));
    let header = ProxyHeader {
        endpoints,
        tlvs: Tlvs {
            alpn: tls.and_then(|tls| tls.alpn.as_deref()),
            authority: facts.server_name.as_deref(),
            unique_id: unique_id.filter(|_| says(ProxyTlv::UniqueId)),
            ja4: ja4.map(Ja4::as_bytes),
            client_certificate_pem: pem.as_deref(),
            ssl,
            early_data: tls.and_then(|tls| tls.early_data),
        },
    };
    let mut out = Vec::new();
    header.encode(format, &mut out)?;
    Ok(out)
}

/// Returns the TLS properties for the header. The flag for the connection refers to this handshake.
/// The flag for the session also includes the full handshake of a resumed session.
fn ssl<'a>(tls: &'a Agreed, key_algorithm: Option<&'a str>) -> SslTlv<'a> {
    let identity = tls.identity.as_deref();
    SslTlv {
        is_tls: true,
        cert_in_connection: tls.client_verified && tls.resumed.is_none(),
        cert_in_session: tls.client_verified,
        verify: u32::from(!tls.client_verified),
        version: tls.version.map(names::version),
        common_name: identity.and_then(|identity| identity.common_name.as_deref()),
        cipher: tls.suite.map(names::openssl_suite),
        signature_algorithm: tls.presented.and_then(Presented::signature),
        key_algorithm,
        client_certificate: None,
    }
}

/// Returns the client's certificate, or `None` if it would make the header too long for usual
/// servers.
fn certificate(engine: &Engine) -> Option<&[u8]> {
    let chain = engine.facts()?.peer_certificates()?;
    let leaf: &[u8] = chain.first()?;
    Some(leaf).filter(|leaf| leaf.len() <= LONGEST_CERTIFICATE)
}

/// Encodes a certificate as PEM, with the same label that hitch uses.
fn pem(certificate: &[u8]) -> String {
    let letters = Base64::encode_string(certificate);
    let mut text = String::with_capacity(letters.len() + letters.len() / PEM_LINE + 80);
    text += "-----BEGIN TRUSTED CERTIFICATE-----\n";
    for (at, letter) in letters.chars().enumerate() {
        if at > 0 && at.is_multiple_of(PEM_LINE) {
            text.push('\n');
        }
        text.push(letter);
    }
    text + "\n-----END TRUSTED CERTIFICATE-----\n"
}

/// Encodes an address for [`Introduction::Ip`]: one byte with Linux's number of the address family,
/// then the address.
fn address(ip: IpAddr) -> Vec<u8> {
    match ip.to_canonical() {
        IpAddr::V4(ip) => [&[AF_INET], &ip.octets()[..]].concat(),
        IpAddr::V6(ip) => [&[AF_INET6], &ip.octets()[..]].concat(),
    }
}

/// Generates a unique ID for a connection that has none.
fn name_connection(facts: &mut Facts) {
    let introduced = facts.introduced.get_or_insert_default();
    if introduced.unique_id.is_some() {
        return;
    }
    let mut bytes = [0; 16];
    // The call fails only if the system has no random bytes. Handshakes would then fail, too, so
    // the ID is merely omitted.
    if aws_lc_rs::rand::fill(&mut bytes).is_ok() {
        let name: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        introduced.unique_id = Some(name.into_bytes().into());
    }
}

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// Characters per line (RFC 7468, section 2).
const PEM_LINE: usize = 64;
/// Maximum size of a certificate in the header, in bytes. HAProxy stores a header and all following
/// data in one buffer of 16 KiB.
const LONGEST_CERTIFICATE: usize = 8 * 1024;
