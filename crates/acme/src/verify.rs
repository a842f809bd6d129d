//! Checks a certificate before it replaces the one in use, and reads the facts of the one in use.
//!
//! The chain and the key are loaded as the serving process loads them (`becket_keys::keys`): the key
//! must belong to the first certificate, and each certificate must be signed by the next one. In
//! addition, the first certificate must have exactly the configured names, and all certificates
//! must be valid now.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64ct::{Base64, Encoding};
use becket_config::acme::AcmeName;
use becket_keys::checked::CheckedFiles;
use becket_keys::facts::names_of;
use becket_keys::files::Files;
use becket_keys::issuers::IssuerTable;
use becket_keys::job::{ChainSource, Job};
use becket_keys::keys::Loader;
use becket_keys::signing::token::Tokens;
use becket_log::shortened;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate};
use zeroize::Zeroizing;

use crate::error::Error;
use crate::schedule::Held;

/// Returns the text of a bundle, which begins with the time of its order. Drops everything in
/// `chain` that is not a certificate.
pub fn bundle(chain: &str, key: &str, now: Duration) -> Result<Zeroizing<String>, Error> {
    let mut text = Zeroizing::new(String::with_capacity(chain.len() + key.len() + 1024));
    text.push_str(&format!("{ORDERED}{}\n", now.as_secs()));
    let mut count = 0;
    for certificate in CertificateDer::pem_slice_iter(chain.as_bytes()) {
        let certificate = certificate.map_err(|error| rejected(error.to_string()))?;
        let base64 = Base64::encode_string(&certificate);
        text.push_str("-----BEGIN CERTIFICATE-----\n");
        for line in base64.as_bytes().chunks(64) {
            text.push_str(&String::from_utf8_lossy(line));
            text.push('\n');
        }
        text.push_str("-----END CERTIFICATE-----\n");
        count += 1;
    }
    text.push_str(key);
    match count {
        1..=LONGEST_CHAIN => Ok(text),
        count => Err(rejected(format!("a chain of {count} certificates"))),
    }
}

/// Returns the time of the order of a bundle. Without it, the certificate's validity begins then.
pub fn ordered(bundle: &[u8], held: &Held) -> Duration {
    let line = bundle.split(|byte| *byte == b'\n').next();
    let line = line.and_then(|line| std::str::from_utf8(line).ok());
    let seconds = line.and_then(|line| line.strip_prefix(ORDERED)?.parse().ok());
    seconds.map_or(held.not_before, Duration::from_secs)
}

/// Checks a bundle for the configured names. `now` is the time since 1970.
pub fn verify(file: &Path, names: &[AcmeName], now: Duration) -> Result<Held, Error> {
    let loader = Loader {
        provider: rustls::crypto::aws_lc_rs::default_provider(),
        now: UnixTime::since_unix_epoch(now),
        files: Files::default(),
        batches: false,
        crypto_threads: false,
        tokens: Tokens::default(),
        issuers: IssuerTable::default(),
        checked: CheckedFiles::default(),
        verifies_all: true,
    };
    let job = Job::of(0, &Arc::from(""), ChainSource::Bundle(file.to_owned()));
    let outcome = loader.load(&[job]).pop().unwrap_or_default();
    let Some(loaded) = outcome.loaded else {
        let faults = outcome.report.errors.into_iter();
        let faults: Vec<String> = faults.map(|problem| problem.fault).collect();
        return Err(rejected(faults.join("; ")));
    };
    let chain = loaded.chain();
    for certificate in &chain {
        let held = held(certificate).ok_or_else(|| rejected("unreadable".to_owned()))?;
        if held.not_before > now + TOLERANCE || held.not_after <= now {
            return Err(rejected(format!(
                "it is valid from {} to {} s since 1970, and now is {}; check the clock",
                held.not_before.as_secs(),
                held.not_after.as_secs(),
                now.as_secs()
            )));
        }
    }
    let leaf = chain.first().filter(|leaf| has_names(leaf, names));
    let held = leaf.and_then(held);
    held.ok_or_else(|| rejected("its names are not the configured ones".to_owned()))
}

/// Returns the facts about the bundle in use. Returns `None` if it is not readable or is for other
/// names.
pub fn examine(bundle: &[u8], names: &[AcmeName]) -> Option<Held> {
    let leaf = leaf(bundle).filter(|leaf| has_names(leaf, names))?;
    held(&leaf)
}

/// Returns the first certificate of a bundle.
pub fn leaf(bundle: &[u8]) -> Option<CertificateDer<'static>> {
    CertificateDer::from_pem_slice(bundle).ok()
}

/// Returns `true` if a certificate has exactly these names.
pub fn has_names(leaf: &CertificateDer<'_>, names: &[AcmeName]) -> bool {
    let Ok((_, leaf)) = X509Certificate::from_der(leaf) else {
        return false;
    };
    let (found, others) = names_of(&leaf);
    let found: BTreeSet<String> = found.iter().map(ToString::to_string).collect();
    let expected: BTreeSet<String> = names.iter().map(ToString::to_string).collect();
    others.is_empty() && found == expected
}

fn held(certificate: &CertificateDer<'_>) -> Option<Held> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let time = |seconds: i64| Duration::from_secs(seconds.try_into().unwrap_or(0));
    // The last bytes are a part of the signature, which is random.
    let end = certificate.last_chunk().map(|end| u64::from_be_bytes(*end));
    Some(Held {
        not_before: time(parsed.validity().not_before.timestamp()),
        not_after: time(parsed.validity().not_after.timestamp()),
        position: end? as f64 / u64::MAX as f64,
    })
}

fn rejected(why: String) -> Error {
    Error::Certificate(shortened(why.as_bytes()))
}

/// Start of the first line of a bundle. Seconds since 1970 follow.
const ORDERED: &str = "# ordered at ";
/// Tolerated difference between the clocks of this host and of the authority.
pub const TOLERANCE: Duration = Duration::from_secs(600);
/// Maximum number of certificates in a chain. Usual chains have two or three.
const LONGEST_CHAIN: usize = 10;

#[cfg(test)]
mod tests {
    use becket_config::notation::Text;
    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
    };

    use super::*;

    /// 2026-06-01.
    const NOW: Duration = Duration::from_secs(1_780_272_000);

    struct Chain {
        pem: String,
        key: String,
        issuer: String,
    }

    fn chain(names: &[&str], year: i32) -> Chain {
        let mut ca = CertificateParams::new(Vec::new()).unwrap();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.distinguished_name.push(DnType::CommonName, "Test CA");
        let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut leaf = CertificateParams::new(names).unwrap();
        leaf.not_before = date_time_ymd(year, 5, 1);
        leaf.not_after = date_time_ymd(year, 8, 1);
        let key = KeyPair::generate().unwrap();
        Chain {
            pem: leaf.signed_by(&key, &ca).unwrap().pem(),
            key: key.serialize_pem(),
            issuer: ca.pem(),
        }
    }

    fn names(names: &[&str]) -> Vec<AcmeName> {
        names
            .iter()
            .map(|it| AcmeName::parse(it).unwrap())
            .collect()
    }

    fn verdict(chain: &str, key: &str, expected: &[&str]) -> Result<Held, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.pem");
        let bundle = bundle(chain, key, NOW).map_err(|error| error.to_string())?;
        std::fs::write(&path, &*bundle).unwrap();
        let held = verify(&path, &names(expected), NOW).map_err(|error| error.to_string())?;
        assert_eq!(examine(bundle.as_bytes(), &names(expected)), Some(held));
        assert_eq!(ordered(bundle.as_bytes(), &held), NOW);
        assert_eq!(ordered(&bundle.as_bytes()[1..], &held), held.not_before);
        Ok(held)
    }

    #[test]
    fn a_chain_with_the_configured_names_is_accepted() {
        let all = ["a.test", "*.b.test", "192.0.2.1", "2001:db8::1"];
        let one = chain(&all, 2026);
        let text = format!("text\n{}{}", one.pem, one.issuer);
        let held = verdict(&text, &one.key, &all).unwrap();
        assert!(held.not_before < NOW && NOW < held.not_after);
        assert!((0.0..=1.0).contains(&held.position));
    }

    #[test]
    fn other_names_dates_keys_and_chains_are_rejected() {
        let (one, other) = (chain(&["a.test", "b.test"], 2026), chain(&["a.test"], 2025));
        let whole = one.pem.clone() + &one.issuer;
        for (text, key, names, fault) in [
            (whole.clone(), &one.key, &["a.test"][..], "names"),
            (
                whole.clone(),
                &one.key,
                &["a.test", "b.test", "c.test"],
                "names",
            ),
            (
                other.pem.clone() + &other.issuer,
                &other.key,
                &["a.test"],
                "check the clock",
            ),
            (
                whole,
                &other.key,
                &["a.test", "b.test"],
                "another certificate",
            ),
            (
                one.pem.clone() + &other.issuer,
                &one.key,
                &["a.test", "b.test"],
                "not signed",
            ),
            (
                one.pem.clone() + &other.pem,
                &one.key,
                &["a.test", "b.test"],
                "out of order",
            ),
            (
                one.key.clone(),
                &one.key,
                &["a.test", "b.test"],
                "chain of 0",
            ),
            (
                one.issuer.repeat(11),
                &one.key,
                &["a.test", "b.test"],
                "chain of 11",
            ),
        ] {
            let error = verdict(&text, key, names).unwrap_err();
            assert!(error.contains(fault), "{error}");
        }
    }

    #[test]
    fn a_bundle_for_other_names_is_not_in_use() {
        let one = chain(&["a.test"], 2026);
        assert!(examine(one.pem.as_bytes(), &names(&["a.test"])).is_some());
        assert!(examine(one.pem.as_bytes(), &names(&["a.test", "b.test"])).is_none());
        assert!(examine(b"rubbish", &names(&["a.test"])).is_none());
    }
}
