//! Certificates of all listeners with their expiry, for the admin pages.
//!
//! The list is created once per configuration and when it is first requested, because parsing takes
//! about 10 us per certificate. Certificates are not checked here, because `prepare` has checked
//! them; certificates that cannot be parsed are omitted.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use becket_proto::ticket::UnixSeconds;
use rustls::SignatureAlgorithm;
use serde::{Deserialize, Serialize};

use becket_keys::facts;
use becket_keys::identity::serial;
use becket_keys::loaded::Loaded;
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
        if self.temporary {
            return "temporary".to_owned();
        }
        let seconds = |at: Timestamp| at.unix_seconds().cast_signed();
        facts::expiry(seconds(self.not_after) - seconds(now))
    }
}

/// Certificates in use: at most [`MOST_LISTED`], which are temporary or expire first.
#[derive(Clone, Debug, Default)]
pub struct CertificateList {
    /// Certificates sorted by listener and name.
    pub listed: Arc<[CertificateStatus]>,
    /// Number of certificates that are not listed.
    pub omitted: usize,
}

/// The list of a configuration, which is made when it is first needed. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct LazyList(Arc<OnceLock<CertificateList>>);

impl LazyList {
    pub(super) fn get(&self, config: &Config) -> &CertificateList {
        self.0.get_or_init(|| certificates(config))
    }
}

/// A certificate, and a name for which it is sent.
#[derive(Clone, Copy)]
struct ServedName<'a> {
    listener: &'a Listener,
    name: &'a str,
    loaded: &'a Loaded,
}

/// Returns the status of every certificate by listener and name. The default certificate is listed
/// separately only if no name uses it.
pub fn certificates(config: &Config) -> CertificateList {
    let mut served: Vec<_> = config.listeners.iter().flat_map(|it| of(it)).collect();
    let omitted = served.len().saturating_sub(MOST_LISTED);
    if omitted > 0 {
        served.select_nth_unstable_by_key(MOST_LISTED, |it| urgency(it.loaded));
        served.truncate(MOST_LISTED);
    }
    let mut list: Vec<_> = served.into_iter().filter_map(entry).collect();
    list.sort_by(|a, b| (&a.listener, &a.name, &a.key).cmp(&(&b.listener, &b.name, &b.key)));
    CertificateList {
        listed: list.into(),
        omitted,
    }
}

/// Returns the number of handshakes per name, over all listeners. Counting starts again when a certificate of the name
/// changes. Names without handshakes are omitted.
pub(super) fn handshakes(config: &Config) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    let names = config.listeners.iter();
    for keys in names.flat_map(|it| it.certificates.names()) {
        if keys.handshakes() > 0 {
            *counts.entry(keys.name().to_owned()).or_default() += keys.handshakes();
        }
    }
    counts
}

fn of(listener: &Listener) -> impl Iterator<Item = ServedName<'_>> {
    let map = &listener.certificates;
    let has_name = move |chain: &&Arc<Loaded>| {
        let is_used = |name: &str| {
            let keys = map.keys_of(name).into_iter();
            let mut chains = keys.flat_map(|keys| keys.chains());
            chains.any(|it| Arc::ptr_eq(it, chain))
        };
        chain.names().iter().any(|name| is_used(name))
    };
    let default = map.default_keys().chains().iter();
    let default = default.filter(move |chain| !has_name(chain));
    let default = default.map(|loaded| (DEFAULT, loaded));
    let named = map.names().flat_map(|keys| {
        let chains = keys.chains().iter();
        chains.map(|loaded| (keys.name(), loaded))
    });
    named.chain(default).map(|(name, loaded)| ServedName {
        listener,
        name,
        loaded,
    })
}

fn entry(served: ServedName<'_>) -> Option<CertificateStatus> {
    let ServedName {
        listener,
        name,
        loaded,
    } = served;
    let at = |seconds: UnixSeconds| Timestamp::from_unix(Duration::from_secs(seconds.0));
    let leaf = loaded.leaf();
    let parsed = facts::certificate(&leaf)?;
    let renew_by = facts::renew_by(parsed.validity());
    Some(CertificateStatus {
        listener: listener.keys.name.to_string(),
        name: name.to_owned(),
        key: kind(loaded.algorithm()).into(),
        serial: serial(&parsed),
        not_after: at(facts::not_after(&leaf)?),
        renew_by: at(UnixSeconds(u64::try_from(renew_by).unwrap_or(0))),
        temporary: loaded.is_temporary(),
        ocsp_until: loaded.staple().and_then(|it| it.until).map(at),
    })
}

/// Returns the rank of a certificate: 0 if it may be temporary, otherwise its expiry. Temporary
/// certificates do not expire.
fn urgency(loaded: &Loaded) -> u64 {
    let expiry = loaded.not_after().0;
    let may_be_temporary = loaded.managed().is_some() && expiry == u64::from(u32::MAX);
    if may_be_temporary { 0 } else { expiry }
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
/// Maximum number of listed certificates. With their metrics, each takes 0.6 KiB of a page.
pub const MOST_LISTED: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn every_name_is_listed_once_and_the_default_only_if_it_has_no_name() {
        let config = sample::config();
        let CertificateList { listed: list, .. } = certificates(&config);
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
