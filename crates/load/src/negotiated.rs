//! Negotiated parameters of a handshake, named as in the becket log: cipher suites and groups by IANA name, versions by OpenSSL name.

use crate::report::Negotiated;
use rustls::client::ClientConnection;
use rustls::{CipherSuite, NamedGroup, ProtocolVersion};

/// Describes a completed handshake. A resumed TLS 1.2 handshake has no group, and no resumed handshake has a signature.
pub fn of(connection: &ClientConnection, signature: Option<String>) -> Negotiated {
    let group = connection
        .negotiated_key_exchange_group()
        .map(|kx| group(kx.name()));
    let alpn = connection
        .alpn_protocol()
        .map(|alpn| String::from_utf8_lossy(alpn).into_owned());
    Negotiated {
        version: connection.protocol_version().map_or(String::new(), version),
        suite: connection
            .negotiated_cipher_suite()
            .map_or(String::new(), |agreed| suite(agreed.suite())),
        group,
        signature,
        alpn,
        tickets_per_full: None,
        tickets_per_resumed: None,
    }
}

/// Returns the name of a version, such as `TLSv1.3`. Tickets are counted only for [`TLS13`].
fn version(version: ProtocolVersion) -> String {
    version.as_str().unwrap_or("unknown").replace('_', ".")
}

/// Returns the name of a cipher suite, such as `TLS_AES_128_GCM_SHA256` (`TLS13_AES_128_GCM_SHA256` in rustls).
pub(crate) fn suite(suite: CipherSuite) -> String {
    let name = suite.as_str().unwrap_or("unknown");
    name.replacen("TLS13_", "TLS_", 1)
}

/// Returns the name of a group, such as `x25519` or `X25519MLKEM768`.
fn group(group: NamedGroup) -> String {
    match group {
        NamedGroup::X25519 => "x25519".to_owned(),
        other => other.as_str().unwrap_or("unknown").to_owned(),
    }
}

pub(crate) const TLS13: &str = "TLSv1.3";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_the_becket_log() {
        assert_eq!(version(ProtocolVersion::TLSv1_3), TLS13);
        assert_eq!(version(ProtocolVersion::TLSv1_2), "TLSv1.2");
        let tls13 = CipherSuite::TLS13_AES_128_GCM_SHA256;
        assert_eq!(suite(tls13), "TLS_AES_128_GCM_SHA256");
        let tls12 = CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256;
        assert_eq!(suite(tls12), "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256");
        assert_eq!(group(NamedGroup::X25519), "x25519");
        assert_eq!(group(NamedGroup::secp256r1), "secp256r1");
    }
}
