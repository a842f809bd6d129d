//! Names of versions, suites, groups and alerts for logs and PROXY headers. Alerts have the names
//! of RFC 8446; the other names are those of the configuration ([`becket_config::suites`]).

use becket_config::suites::{group_name, suite_names, version_name};
use rustls::{AlertDescription, CipherSuite, NamedGroup, ProtocolVersion};

/// Returns the name of a version, such as `TLSv1.3`.
pub fn version(version: ProtocolVersion) -> &'static str {
    version_name(version.into()).unwrap_or(UNKNOWN)
}

/// Returns the IANA name of a suite, such as `TLS_AES_128_GCM_SHA256`.
pub fn suite(suite: CipherSuite) -> &'static str {
    suite_names(suite.into()).map_or(UNKNOWN, |[iana, _]| iana)
}

/// Returns the OpenSSL name of a suite, such as `ECDHE-RSA-AES128-GCM-SHA256`, which readers of
/// PROXY headers expect. TLS 1.3 suites have only one name.
pub fn openssl_suite(suite: CipherSuite) -> &'static str {
    suite_names(suite.into()).map_or(UNKNOWN, |[_, openssl]| openssl)
}

pub fn group(group: NamedGroup) -> &'static str {
    group_name(group.into()).unwrap_or(UNKNOWN)
}

/// Returns the name of an alert, such as `bad_certificate`, or its number if it has no name.
pub fn alert(alert: AlertDescription) -> String {
    let name = alert.as_str().map(|name| words(name, '_'));
    name.unwrap_or_else(|| u8::from(alert).to_string())
}

/// Splits a camel case name, such as a variant in rustls' error texts, into words with `between` as
/// separator.
pub fn words(camel: &str, between: char) -> String {
    let (mut words, mut before) = (String::new(), None::<char>);
    let mut letters = camel.chars().peekable();
    while let Some(letter) = letters.next() {
        // An acronym is one word. It ends before the capital letter of the next word.
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

/// Name of an unsupported value, which no handshake negotiates.
const UNKNOWN: &str = "unknown";

#[cfg(test)]
mod tests {
    use rustls::crypto::aws_lc_rs::{ALL_CIPHER_SUITES, DEFAULT_KX_GROUPS};

    use super::*;

    #[test]
    fn alerts_and_error_causes_have_readable_names() {
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
    fn all_supported_groups_and_suites_have_names() {
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
