//! Certificates of all listeners with their expiry, for the admin pages.
//!
//! The list is created once per configuration, because parsing takes about 10 us per certificate.
//! Certificates are not checked here, because `prepare` has checked them; certificates that cannot
//! be parsed are omitted.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use becket_proto::ticket::UnixSeconds;
use rustls::SignatureAlgorithm;
use rustls::sign::CertifiedKey;
use serde::{Deserialize, Serialize};

use becket_keys::facts;
use becket_keys::identity::serial;
use becket_keys::ocsp::OcspStatus;
use becket_keys::temporary::is_temporary;
use becket_log::Timestamp;
use becket_tls::config::{Config, Listener};

/// Status of one certificate: a server name of a listener, and one key type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CertificateStatus {
    pub listener: String,
    /// Server name, `*.example.org` for a wildcard, or [`DEFAULT`].
    pub name: String,
    /// Key type: `ecdsa`, `rsa`, `ed25519` or `other`.
    pub key: Cow<'static, str>,
    /// Serial number in hexadecimal digits, in the format of OpenSSL.
    pub serial: String,
    pub not_after: Timestamp,
    /// Time from which the certificate is reported as expiring soon.
    pub renew_by: Timestamp,
    /// `true` for a temporary certificate that waits for an ACME authority.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub temporary: bool,
    /// Expiry of the certificate's OCSP response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ocsp_until: Option<Timestamp>,
}

impl CertificateStatus {
    /// Returns the time until or since the expiry as text.
    pub fn expiry(&self, now: Timestamp) -> String {
        let seconds = |at: Timestamp| at.unix_seconds().cast_signed();
        facts::expiry(seconds(self.not_after) - seconds(now))
    }
}

/// Returns the status of every certificate by listener and name, sorted. The default certificate is
/// listed separately only if no name uses it.
pub fn certificates(config: &Config) -> Arc<[CertificateStatus]> {
    let mut list: Vec<_> = config.listeners.iter().flat_map(|l| of(l)).collect();
    list.sort_by(|a, b| (&a.listener, &a.name, &a.key).cmp(&(&b.listener, &b.name, &b.key)));
    list.into()
}

/// Returns the number of handshakes per name since the last reload, over all listeners. Names without handshakes are
/// omitted.
pub(super) fn handshakes(config: &Config) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    let names = config.listeners.iter();
    for (name, keys) in names.flat_map(|it| it.certificates.names()) {
        if keys.handshakes() > 0 {
            *counts.entry(name.to_string()).or_default() += keys.handshakes();
        }
    }
    counts
}

fn of(listener: &Listener) -> Vec<CertificateStatus> {
    let map = &listener.certificates;
    let mut list = Vec::new();
    let mut named = Vec::new();
    for (name, keys) in map.names() {
        let name = name.to_string();
        for key in keys.iter() {
            named.push(Arc::as_ptr(key));
            list.extend(entry(listener, &name, key));
        }
    }
    named.sort_unstable();
    for key in map.default_keys().iter() {
        if named.binary_search(&Arc::as_ptr(key)).is_err() {
            list.extend(entry(listener, DEFAULT, key));
        }
    }
    list
}

fn entry(listener: &Listener, name: &str, key: &CertifiedKey) -> Option<CertificateStatus> {
    let leaf = key.cert.first()?;
    let at = |seconds: UnixSeconds| Timestamp::from_unix(Duration::from_secs(seconds.0));
    let parsed = facts::certificate(leaf)?;
    let renew_by = facts::renew_by(parsed.validity());
    let status = key
        .ocsp
        .as_deref()
        .map(|response| OcspStatus::read(response, leaf));
    Some(CertificateStatus {
        listener: listener.keys.name.to_string(),
        name: name.to_owned(),
        key: kind(key.key.algorithm()).into(),
        serial: serial(&parsed),
        not_after: at(facts::not_after(leaf)?),
        renew_by: at(UnixSeconds(u64::try_from(renew_by).unwrap_or(0))),
        temporary: is_temporary(&parsed),
        ocsp_until: status.and_then(Result::ok).and_then(|it| it.until).map(at),
    })
}

fn kind(algorithm: SignatureAlgorithm) -> &'static str {
    match algorithm {
        SignatureAlgorithm::ECDSA => "ecdsa",
        SignatureAlgorithm::RSA => "rsa",
        SignatureAlgorithm::ED25519 => "ed25519",
        // The loader accepts no other keys.
        _ => "ml-dsa",
    }
}

/// Entry for clients that send no server name, or a name that no certificate contains. Not a valid
/// host name.
pub const DEFAULT: &str = "(default)";

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn every_name_is_listed_once_and_the_default_only_if_it_has_no_name() {
        let config = sample::config();
        let list = certificates(&config);
        let names: Vec<_> = list
            .iter()
            .map(|c| (&*c.listener, &*c.name, &*c.key))
            .collect();
        let expected = [
            ("other", "(default)", "ecdsa"),
            ("web", "*.example.net", "ecdsa"),
            ("web", "example.org", "ecdsa"),
        ];
        assert_eq!(names, expected);
        assert!(
            list.iter()
                .all(|c| c.not_after.to_string().starts_with("2040-01-01T") && c.serial.len() > 9)
        );
        let map = &config.listeners[0].certificates;
        map.keys_for(Some("a.example.net")).count_handshake();
        let counted = [("*.example.net".to_owned(), 1)];
        assert_eq!(handshakes(&config), counted.into());
    }
}
