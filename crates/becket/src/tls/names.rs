//! What versions, suites and groups are called in logs and PROXY headers: the names of the IANA
//! TLS registries, and OpenSSL's for versions, as every reader of such fields expects.

use rustls::{AlertDescription, CipherSuite, NamedGroup, ProtocolVersion};

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

/// The same as OpenSSL calls it, such as `ECDHE-RSA-AES128-GCM-SHA256`: what readers of PROXY
/// headers expect. The suites of TLS 1.3 have one name.
pub(crate) fn openssl_suite(suite: CipherSuite) -> &'static str {
    match suite {
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 => "ECDHE-ECDSA-AES128-GCM-SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 => "ECDHE-ECDSA-AES256-GCM-SHA384",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256 => {
            "ECDHE-ECDSA-CHACHA20-POLY1305"
        }
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 => "ECDHE-RSA-AES128-GCM-SHA256",
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 => "ECDHE-RSA-AES256-GCM-SHA384",
        CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 => "ECDHE-RSA-CHACHA20-POLY1305",
        other => self::suite(other),
    }
}

/// Such as `X25519MLKEM768`.
pub fn group(group: NamedGroup) -> &'static str {
    match group {
        NamedGroup::X25519 => "x25519",
        other => other.as_str().unwrap_or("unknown"),
    }
}

/// Such as `bad_certificate`; the number of one that has no name.
pub fn alert(alert: AlertDescription) -> String {
    let name = alert.as_str().map(|name| words(name, '_'));
    name.unwrap_or_else(|| u8::from(alert).to_string())
}

/// The words of a name in camel case, as rustls writes many a cause.
pub fn words(camel: &str, between: char) -> String {
    let (mut words, mut before) = (String::new(), None::<char>);
    let mut letters = camel.chars().peekable();
    while let Some(letter) = letters.next() {
        // An acronym is one word: it ends before the capital that begins the next one.
        let ends_acronym = letters.peek().is_some_and(|next| next.is_lowercase());
        let begins = before.is_some_and(|before| before.is_lowercase() || ends_acronym);
        if letter.is_uppercase() && begins {
            words.push(between);
        }
        words.extend(letter.to_lowercase());
        before = Some(letter);
    }
    words
}

#[cfg(test)]
mod tests {
    use rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES;

    use super::*;

    #[test]
    fn alerts_and_causes_are_words() {
        for (description, name) in [
            (AlertDescription::UnknownCA, "unknown_ca"),
            (AlertDescription::UnknownPSKIdentity, "unknown_psk_identity"),
            (AlertDescription::BadCertificate, "bad_certificate"),
            (AlertDescription::Unknown(250), "250"),
        ] {
            assert_eq!(alert(description), name);
        }
        assert_eq!(
            words("NoCipherSuitesInCommon", ' '),
            "no cipher suites in common"
        );
    }

    #[test]
    fn every_suite_has_a_name_of_openssl() {
        for suite in ALL_CIPHER_SUITES {
            let name = openssl_suite(suite.suite());
            let tls13 = suite.version().version == ProtocolVersion::TLSv1_3;
            let prefix = if tls13 { "TLS_" } else { "ECDHE-" };
            assert!(name.starts_with(prefix), "{name}");
        }
    }
}
