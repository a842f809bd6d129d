//! The issuers of certificates, each list of them in memory once.
//!
//! Most certificates of a host have one of a few issuers. An [`IssuerTable`] finds the [`Issuers`]
//! that another chain already has, with everything that was read from them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use rustls::{Error, RootCertStore};
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, Validity, X509Certificate};

use super::digest::digest;

/// The certificates of a chain after the first one, in its order.
#[derive(Debug)]
pub struct Issuers {
    certificates: Vec<CertificateDer<'static>>,
    pub(super) facts: Vec<IssuerFacts>,
    /// The last issuer as the only trust anchor.
    anchor: OnceLock<Result<Arc<RootCertStore>, Error>>,
}

#[derive(Debug)]
pub(super) struct IssuerFacts {
    /// Names in DER.
    pub(super) subject: Box<[u8]>,
    pub(super) issuer: Box<[u8]>,
    pub(super) validity: Validity,
}

impl Issuers {
    /// Reads the issuers of a chain. Fails if one is not a certificate.
    fn read(certificates: &[CertificateDer<'static>]) -> Result<Self, String> {
        let facts = certificates.iter().map(|certificate| {
            let read = X509Certificate::from_der(certificate);
            let (_, read) = read.map_err(|error| format!("not a certificate: {error}"))?;
            Ok(IssuerFacts {
                subject: read.subject().as_raw().into(),
                issuer: read.issuer().as_raw().into(),
                validity: read.validity().clone(),
            })
        });
        Ok(Self {
            facts: facts.collect::<Result<_, String>>()?,
            certificates: certificates.to_vec(),
            anchor: OnceLock::new(),
        })
    }

    pub fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.certificates
    }

    /// Returns the last issuer as the only trust anchor; `None` without issuers.
    pub(super) fn anchor(&self) -> Option<Result<Arc<RootCertStore>, Error>> {
        let last = self.certificates.last()?;
        let anchor = self.anchor.get_or_init(|| {
            let mut roots = RootCertStore::empty();
            roots.add(last.clone()).map(|()| Arc::new(roots))
        });
        Some(anchor.clone())
    }
}

/// The issuers of all loaded chains. Clones share the table.
#[derive(Clone, Debug, Default)]
pub struct IssuerTable(Arc<Mutex<KnownIssuers>>);

#[derive(Debug, Default)]
struct KnownIssuers {
    by_digest: HashMap<[u8; 32], Weak<Issuers>>,
    /// Number of entries at which unused ones are removed.
    most: usize,
}

impl IssuerTable {
    /// Returns the issuers in memory, or reads them. Takes the lock of the table.
    ///
    /// # Errors
    /// Returns the fault of a certificate.
    pub fn find(&self, certificates: &[CertificateDer<'static>]) -> Result<Arc<Issuers>, String> {
        let parts: Vec<&[u8]> = certificates.iter().map(AsRef::as_ref).collect();
        let digest = digest(&parts);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known.by_digest.get(&digest).and_then(Weak::upgrade) {
            return Ok(found);
        }
        let read = Arc::new(Issuers::read(certificates)?);
        if known.by_digest.len() >= known.most {
            known.by_digest.retain(|_, issuers| issuers.strong_count() > 0);
            known.most = (2 * known.by_digest.len()).max(LEAST);
        }
        known.by_digest.insert(digest, Arc::downgrade(&read));
        Ok(read)
    }
}

/// Number of entries up to which unused ones are kept.
const LEAST: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(name: &str) -> CertificateDer<'static> {
        let params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().clone()
    }

    #[test]
    fn equal_issuers_are_in_memory_once_and_unused_ones_not_at_all() {
        let table = IssuerTable::default();
        let [one, other] = ["a.test", "b.test"].map(certificate);
        let first = table.find(&[one.clone(), other.clone()]).unwrap();
        let again = table.clone().find(&[one.clone(), other.clone()]).unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        let reversed = table.find(&[other, one.clone()]).unwrap();
        assert!(!Arc::ptr_eq(&first, &reversed));
        let alone = table.find(&[]).unwrap();
        assert!(alone.anchor().is_none() && first.anchor().unwrap().is_ok());
        drop((first, again, reversed));
        for number in 0..2 * LEAST {
            table.find(&[certificate(&format!("{number}.test"))]).unwrap();
        }
        let kept = table.0.lock().unwrap().by_digest.len();
        assert!(kept <= LEAST, "{kept}");
        table.find(&[CertificateDer::from(vec![0x30, 3, 1])]).unwrap_err();
    }
}
