//! TLS versions, suites and groups by name. Names of IANA, OpenSSL and becket are accepted.
//!
//! Suites and groups are printed with their IANA names (`TLS_AES_128_GCM_SHA256`, `secp256r1`),
//! versions with their OpenSSL names (`TLSv1.3`), because IANA assigns only numbers to versions.

use crate::notation::{Text, ValueError, as_text, meant};

/// A TLS version, with its number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServedVersion {
    /// TLS 1.2 (RFC 5246).
    Tls12 = 0x0303,
    /// TLS 1.3 (RFC 8446).
    Tls13 = 0x0304,
}

/// A key exchange group, with its IANA number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyExchangeGroup {
    /// Hybrid of X25519 and ML-KEM-768; TLS 1.3 only.
    X25519MlKem768 = 0x11ec,
    /// Curve25519 (RFC 7748).
    X25519 = 0x001d,
    /// NIST P-256 (secp256r1).
    P256 = 0x0017,
    /// NIST P-384 (secp384r1).
    P384 = 0x0018,
}

/// Cipher suites selected by one name: a single suite, or all three suites with one cipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suites(&'static str);

impl Suites {
    /// Returns the IANA numbers, with the TLS 1.3 suites first.
    pub fn numbers(self) -> impl Iterator<Item = u16> {
        let named = move |[cipher, iana, ..]: &[&str; 3]| *cipher == self.0 || *iana == self.0;
        let all = SUITES.iter().filter(move |(_, names)| named(names));
        all.map(|(number, _)| *number)
    }
}

/// Number, cipher, IANA name and OpenSSL name of each suite.
#[rustfmt::skip]
const SUITES: [(u16, [&str; 3]); 9] = [
    (0x1301, ["AES-128-GCM", "TLS_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256"]),
    (0x1302, ["AES-256-GCM", "TLS_AES_256_GCM_SHA384", "TLS_AES_256_GCM_SHA384"]),
    (0x1303, ["CHACHA20-POLY1305", "TLS_CHACHA20_POLY1305_SHA256", "TLS_CHACHA20_POLY1305_SHA256"]),
    (0xc02b, ["AES-128-GCM", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256"]),
    (0xc02f, ["AES-128-GCM", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"]),
    (0xc02c, ["AES-256-GCM", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"]),
    (0xc030, ["AES-256-GCM", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"]),
    (0xcca9, ["CHACHA20-POLY1305", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"]),
    (0xcca8, ["CHACHA20-POLY1305", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"]),
];

const VERSIONS: [(ServedVersion, &[&str]); 2] = [
    (
        ServedVersion::Tls12,
        &["TLSv1.2", "1.2", "TLS 1.2", "TLS1.2"],
    ),
    (
        ServedVersion::Tls13,
        &["TLSv1.3", "1.3", "TLS 1.3", "TLS1.3"],
    ),
];

const GROUPS: [(KeyExchangeGroup, &[&str]); 4] = [
    (KeyExchangeGroup::X25519MlKem768, &["X25519MLKEM768"]),
    (KeyExchangeGroup::X25519, &["x25519"]),
    (
        KeyExchangeGroup::P256,
        &["secp256r1", "P-256", "prime256v1"],
    ),
    (KeyExchangeGroup::P384, &["secp384r1", "P-384"]),
];

/// Returns a suite's IANA name and OpenSSL name.
pub fn suite_names(number: u16) -> Option<[&'static str; 2]> {
    let (_, [_, iana, openssl]) = SUITES.iter().find(|(suite, _)| *suite == number)?;
    Some([iana, openssl])
}

pub fn version_name(number: u16) -> Option<&'static str> {
    let named = VERSIONS
        .iter()
        .find(|(version, _)| *version as u16 == number);
    named.map(|(_, names)| names[0])
}

/// Returns IANA's name of a group.
pub fn group_name(number: u16) -> Option<&'static str> {
    let named = GROUPS.iter().find(|(group, _)| *group as u16 == number);
    named.map(|(_, names)| names[0])
}

/// Finds an entry by name. Ignores case and accepts `_` for `-`. The error suggests a similar name.
fn named<T: Copy>(text: &str, what: &str, all: &[(T, &[&str])]) -> Result<T, ValueError> {
    let plain = |name: &str| name.replace('_', "-").to_ascii_lowercase();
    let written = plain(text);
    let same = |name: &&str| plain(name) == written;
    if let Some((found, _)) = all.iter().find(|(_, names)| names.iter().any(same)) {
        return Ok(*found);
    }
    let names = all.iter().flat_map(|(_, names)| names.iter().copied());
    Err(match meant(text, names) {
        Some(name) => format!("not a {what} (did you mean {name:?}?)").into(),
        None => format!("not a {what}").into(),
    })
}

impl Text for Suites {
    const ACCEPTED: &str = "\"AES-128-GCM\", \"AES-256-GCM\", \"CHACHA20-POLY1305\", or names such as \"TLS_AES_128_GCM_SHA256\", \"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256\" and \"ECDHE-RSA-AES128-GCM-SHA256\"";

    fn parse(text: &str) -> Result<Self, ValueError> {
        let all = SUITES.each_ref().map(|(_, names)| {
            let [cipher, iana, _] = names;
            [(Self(cipher), &names[..1]), (Self(iana), &names[1..])]
        });
        named(text, "suite", all.as_flattened())
    }

    fn write(&self) -> String {
        self.0.to_owned()
    }
}

impl Text for ServedVersion {
    const ACCEPTED: &str = "\"1.2\", \"1.3\" or both";

    fn parse(text: &str) -> Result<Self, ValueError> {
        named(text, "version", &VERSIONS)
    }

    fn write(&self) -> String {
        version_name(*self as u16).unwrap_or_default().to_owned()
    }
}

impl Text for KeyExchangeGroup {
    const ACCEPTED: &str = "\"X25519MLKEM768\" (TLS 1.3 only), \"x25519\", \"secp256r1\" (P-256), \"secp384r1\" (P-384)";

    fn parse(text: &str) -> Result<Self, ValueError> {
        named(text, "group", &GROUPS)
    }

    fn write(&self) -> String {
        group_name(*self as u16).unwrap_or_default().to_owned()
    }
}

as_text!(Suites, ServedVersion, KeyExchangeGroup);
