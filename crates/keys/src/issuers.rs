//! The issuers of certificates, each list of them in memory once.
//!
//! Most certificates of a host have one of a few issuers. An [`IssuerTable`] finds the [`Issuers`]
//! that another chain already has, with everything that was read from them.

use std::collections::{HashMap, VecDeque};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use rustls::{Error, RootCertStore};
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, Validity, X509Certificate};

use super::digest::digest;
use super::facts;

/// The certificates of a chain after the first one, in its order.
#[derive(Debug)]
pub struct Issuers {
    certificates: Vec<CertificateDer<'static>>,
    pub(super) facts: Vec<IssuerFacts>,
    /// The last issuer as the only trust anchor.
    anchor: OnceLock<Result<Arc<RootCertStore>, Error>>,
    /// `true` after the signatures of a chain with these issuers were verified.
    pub(super) is_verified: AtomicBool,
}

#[derive(Debug)]
pub(super) struct IssuerFacts {
    /// Names in DER.
    pub(super) subject: Box<[u8]>,
    pub(super) issuer: Box<[u8]>,
    pub(super) validity: Validity,
    /// Identifier of its public key; `None` if the certificate has none.
    pub(super) key_identifier: Option<Box<[u8]>>,
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
                key_identifier: facts::key_identifier(&read).map(Into::into),
            })
        });
        Ok(Self {
            facts: facts.collect::<Result<_, String>>()?,
            certificates: certificates.to_vec(),
            anchor: OnceLock::new(),
            is_verified: AtomicBool::new(false),
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

/// The bytes of a path up to its last slash, and the rest.
pub type FileParts<'a> = (&'a [u8], &'a [u8]);

/// Splits a path after its last slash.
pub fn file_parts(file: &Path) -> FileParts<'_> {
    let bytes = file.as_os_str().as_bytes();
    let slash = bytes.iter().rposition(|byte| *byte == b'/');
    bytes.split_at(slash.map_or(0, |at| at + 1))
}

/// A folder, and the issuers of certificates in it. Most certificates have these in common.
#[derive(Debug)]
pub struct FolderIssuers {
    /// Path up to the last slash.
    pub(super) folder: Box<[u8]>,
    pub issuers: Arc<Issuers>,
}

/// The issuers of all loaded chains. Clones share the table.
#[derive(Clone, Debug, Default)]
pub struct IssuerTable(Arc<Mutex<KnownIssuers>>);

#[derive(Debug, Default)]
struct KnownIssuers {
    by_digest: HashMap<[u8; 32], Weak<Issuers>>,
    /// Number of entries at which unused ones are removed.
    most: usize,
    /// Texts of the issuers that were found last, in PEM.
    texts: VecDeque<(Box<[u8]>, Weak<Issuers>)>,
    /// Folders that were found last.
    folders: VecDeque<Weak<FolderIssuers>>,
}

impl IssuerTable {
    /// Returns issuers in memory by their text. Takes the lock of the table.
    pub(super) fn known(&self, text: &[u8]) -> Option<Arc<Issuers>> {
        let known = self.lock();
        let mut texts = known.texts.iter();
        texts.find(|(known, _)| **known == *text)?.1.upgrade()
    }

    /// Returns the issuers in memory, or reads them. `text` is their PEM, if it may be remembered.
    /// Takes the lock of the table.
    ///
    /// # Errors
    /// Returns the fault of a certificate.
    pub fn find(
        &self,
        certificates: &[CertificateDer<'static>],
        text: &[u8],
    ) -> Result<Arc<Issuers>, String> {
        let parts: Vec<&[u8]> = certificates.iter().map(AsRef::as_ref).collect();
        let digest = digest(&parts);
        let mut known = self.lock();
        let found = known.by_digest.get(&digest).and_then(Weak::upgrade);
        let found = match found {
            Some(found) => found,
            None => {
                let read = Arc::new(Issuers::read(certificates)?);
                known.add(digest, &read);
                read
            }
        };
        if !text.is_empty() {
            known.texts.truncate(MOST_TEXTS - 1);
            known
                .texts
                .push_front((text.into(), Arc::downgrade(&found)));
        }
        Ok(found)
    }

    /// Returns issuers with the folder of a file, in memory once for most certificates of the
    /// folder. Takes the lock of the table.
    pub fn in_folder(&self, file: &Path, issuers: &Arc<Issuers>) -> Arc<FolderIssuers> {
        let (folder, _) = file_parts(file);
        let mut known = self.lock();
        let mut folders = known.folders.iter().filter_map(Weak::upgrade);
        let is_same =
            |it: &Arc<FolderIssuers>| *it.folder == *folder && Arc::ptr_eq(&it.issuers, issuers);
        if let Some(found) = folders.find(is_same) {
            return found;
        }
        let new = Arc::new(FolderIssuers {
            folder: folder.into(),
            issuers: Arc::clone(issuers),
        });
        known.folders.truncate(MOST_TEXTS - 1);
        known.folders.push_front(Arc::downgrade(&new));
        new
    }

    fn lock(&self) -> MutexGuard<'_, KnownIssuers> {
        // The table stays valid if another lock holder panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KnownIssuers {
    fn add(&mut self, digest: [u8; 32], issuers: &Arc<Issuers>) {
        if self.by_digest.len() >= self.most {
            self.by_digest
                .retain(|_, issuers| issuers.strong_count() > 0);
            self.most = (2 * self.by_digest.len()).max(LEAST);
        }
        self.by_digest.insert(digest, Arc::downgrade(issuers));
    }
}

/// Number of texts and of folders that are compared with each file.
const MOST_TEXTS: usize = 16;
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
        let both = [one.clone(), other.clone()];
        let first = table.find(&both, b"text").unwrap();
        let again = table.find(&both, b"").unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        assert!(Arc::ptr_eq(&first, &table.known(b"text").unwrap()));
        let reversed = table.find(&[other, one.clone()], b"").unwrap();
        assert!(!Arc::ptr_eq(&first, &reversed));
        let alone = table.find(&[], b"").unwrap();
        assert!(alone.anchor().is_none() && first.anchor().unwrap().is_ok());
        drop((first, again, reversed));
        assert!(table.known(b"text").is_none());
        for number in 0..2 * LEAST {
            let one = certificate(&format!("{number}.test"));
            table.find(&[one], number.to_string().as_bytes()).unwrap();
        }
        let known = table.lock();
        assert!(known.by_digest.len() <= LEAST && known.texts.len() == MOST_TEXTS);
        drop(known);
        let broken = CertificateDer::from(vec![0x30, 3, 1]);
        table.find(&[broken], b"").unwrap_err();
    }

    #[test]
    fn certificates_share_their_folder_and_issuers() {
        let table = IssuerTable::default();
        let [none, one] = [vec![], vec![certificate("a.test")]];
        let [none, one] = [none, one].map(|it| table.find(&it, b"").unwrap());
        let first = table.in_folder(Path::new("/a/1"), &none);
        for (file, issuers, is_same) in [
            ("/a/2", &none, true),
            ("/a/1", &one, false),
            ("/b/1", &none, false),
        ] {
            let found = table.in_folder(Path::new(file), issuers);
            assert_eq!(Arc::ptr_eq(&first, &found), is_same);
            assert!(*found.folder == file.as_bytes()[..3] && Arc::ptr_eq(&found.issuers, issuers));
        }
        for number in 0..4 * MOST_TEXTS {
            table.in_folder(Path::new(&format!("{number}/1")), &one);
        }
        assert_eq!(table.lock().folders.len(), MOST_TEXTS);
    }
}
