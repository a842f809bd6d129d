//! What versions, suites and groups are called in logs and PROXY headers: the names of the IANA
//! TLS registries, and OpenSSL's for versions, as every reader of such fields expects.

use rustls::{CipherSuite, NamedGroup, ProtocolVersion};

/// Such as `TLSv1.3`.
pub fn version(version: ProtocolVersion) -> &'static str {
    match version {
        ProtocolVersion::TLSv1_2 => "TLSv1.2",
        ProtocolVersion::TLSv1_3 => "TLSv1.3",
        _ => "unknown",
    }
}

/// Such as `TLS_AES_128_GCM_SHA256`.
pub fn suite(suite: CipherSuite) -> &'static str {
    match suite {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => "TLS_AES_128_GCM_SHA256",
        CipherSuite::TLS13_AES_256_GCM_SHA384 => "TLS_AES_256_GCM_SHA384",
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => "TLS_CHACHA20_POLY1305_SHA256",
        other => other.as_str().unwrap_or("unknown"),
    }
}

/// Such as `X25519MLKEM768`.
pub fn group(group: NamedGroup) -> &'static str {
    match group {
        NamedGroup::X25519 => "x25519",
        other => other.as_str().unwrap_or("unknown"),
    }
}
