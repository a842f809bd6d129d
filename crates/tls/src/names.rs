//! What versions, suites, groups and alerts are called in logs and PROXY headers: as in the configuration
//! ([`becket_config::suites`]), and as RFC 8446 calls alerts.

use becket_config::suites::{group_name, suite_names, version_name};
use rustls::{AlertDescription, CipherSuite, NamedGroup, ProtocolVersion};

/// Such as `TLSv1.3`.
pub fn version(version: ProtocolVersion) -> &'static str {
    version_name(version.into()).unwrap_or(UNKNOWN)
}

/// Such as `TLS_AES_128_GCM_SHA256`.
pub fn suite(suite: CipherSuite) -> &'static str {
    suite_names(suite.into()).map_or(UNKNOWN, |[iana, _]| iana)
}

/// What OpenSSL calls it, such as `ECDHE-RSA-AES128-GCM-SHA256`: what readers of PROXY headers expect. The
/// suites of TLS 1.3 have one name.
pub fn openssl_suite(suite: CipherSuite) -> &'static str {
    suite_names(suite.into()).map_or(UNKNOWN, |[_, openssl]| openssl)
}

/// Such as `X25519MLKEM768`.
pub fn group(group: NamedGroup) -> &'static str {
    group_name(group.into()).unwrap_or(UNKNOWN)
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

/// What we do not speak. A handshake agrees on nothing of that kind.
const UNKNOWN: &str = "unknown";

#[cfg(test)]
mod tests {
    use rustls::crypto::aws_lc_rs::{ALL_CIPHER_SUITES, DEFAULT_KX_GROUPS};

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
    fn all_that_is_spoken_has_a_name() {
        for spoken in DEFAULT_KX_GROUPS {
            let (name, number) = (group(spoken.name()), u16::from(spoken.name()));
            assert!(
                name.eq_ignore_ascii_case(spoken.name().as_str().unwrap()),
                "{number}: {name}"
            );
        }
        for suite in ALL_CIPHER_SUITES {
            assert_eq!(self::suite(suite.suite()).split('_').next(), Some("TLS"));
            let name = openssl_suite(suite.suite());
            let tls13 = suite.version().version == ProtocolVersion::TLSv1_3;
            let prefix = if tls13 { "TLS_" } else { "ECDHE-" };
            assert!(name.starts_with(prefix), "{name}");
        }
    }
}
