//! Configuration and folder of the companion, and the names that connect both.

use std::cell::{OnceCell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;

use aws_lc_rs::digest::{SHA256, digest};
use becket_config::acme::{Acme, AcmeCertificate, Authority};
use becket_config::notation::Text;
use becket_proto::acme::{BundleFacts, LONGEST_BUNDLE};
use becket_sys::clock::Clock;
use zeroize::Zeroizing;

use crate::http::AskingClient;
use crate::schedule::{Held, Moment};
use crate::store::{Part, Store};
use crate::verify;

#[derive(Debug)]
pub struct Context {
    pub section: Acme,
    /// Folder at which relative paths start.
    pub base: PathBuf,
    pub store: Store,
    pub clock: Clock,
    /// The configured certificates, followed by the on-demand certificates. An unused index has a
    /// certificate without names.
    certificates: RefCell<Vec<Rc<AcmeCertificate>>>,
    /// Created for the first name that clients ask for.
    pub asking: OnceCell<AskingClient>,
}

impl Context {
    pub fn new(section: Acme, base: PathBuf, store: Store) -> Self {
        let configured = section.certificate.iter().cloned().map(Rc::new);
        Self {
            certificates: RefCell::new(configured.collect()),
            section,
            base,
            store,
            clock: Clock::start(),
            asking: OnceCell::new(),
        }
    }

    /// Returns a certificate, or one without names for an unused index.
    pub fn certificate(&self, index: usize) -> Rc<AcmeCertificate> {
        let certificates = self.certificates.borrow();
        certificates.get(index).cloned().unwrap_or_default()
    }

    pub fn certificates(&self) -> Vec<Rc<AcmeCertificate>> {
        self.certificates.borrow().clone()
    }

    pub fn is_on_demand(&self, index: usize) -> bool {
        index >= self.section.certificate.len()
    }

    /// Sets an on-demand certificate. The default is an unused index.
    pub fn set_on_demand(&self, index: usize, certificate: AcmeCertificate) {
        let mut certificates = self.certificates.borrow_mut();
        if index >= certificates.len() {
            certificates.resize(index + 1, Rc::default());
        }
        certificates[index] = Rc::new(certificate);
    }

    pub fn now(&self) -> Moment {
        let now = self.clock.now();
        Moment {
            mono: now.mono,
            unix: now.unix,
        }
    }

    /// Returns the index of the certificate whose file has this name, or otherwise of the first one
    /// with this name.
    pub fn find(&self, name: &str) -> Option<usize> {
        let certificates = self.certificates.borrow();
        let mut all = certificates.iter();
        let by_file = all.position(|it| !it.names.is_empty() && it.stem() == name);
        by_file.or_else(|| certificates.iter().position(|it| it.has_name(name)))
    }

    pub fn names(&self, index: usize) -> Vec<String> {
        let certificate = self.certificate(index);
        certificate.names.iter().map(ToString::to_string).collect()
    }

    /// Returns the authority with a directory URL, and whether this is its test environment.
    pub fn authority(&self, directory: &str) -> Option<(&Authority, bool)> {
        let all = self.section.authority.iter();
        let mut all = all.flat_map(|it| [(it, false), (it, true)]);
        all.find(|(it, staging)| it.directory(*staging) == Some(directory))
    }

    /// Returns the facts about the bundle in use. Returns `None` if it is missing, unreadable or for
    /// other names.
    pub fn bundle(&self, index: usize) -> Option<(Option<BundleFacts>, Held)> {
        let bundle = self.bundle_text(index)?;
        let held = verify::examine(&bundle, &self.certificate(index).names)?;
        Some((facts(&bundle, &held), held))
    }

    pub fn bundle_text(&self, index: usize) -> Option<Zeroizing<Vec<u8>>> {
        let file = bundle_file(&self.certificate(index));
        self.store.load(Part::Certificates, &file).ok()?
    }

    /// Removes a file that is not needed any more.
    pub fn discard(&self, part: Part, file: &str) {
        if let Err(error) = self.store.remove(part, file) {
            tracing::warn!(name: "acme-cleanup-failed", %error, "cannot remove a file that is not needed any more");
        }
    }

    /// Returns the directory URL of the authority that issued a certificate.
    pub fn issued_by(&self, certificate: usize) -> Option<String> {
        let stem = self.certificate(certificate).stem();
        self.store.state().authorities.remove(&stem)
    }
}

/// Returns the facts about a bundle by which nodes decide which one is newer. Returns `None` for a
/// bundle that is too long to be shared.
pub fn facts(bundle: &[u8], held: &Held) -> Option<BundleFacts> {
    let digest = digest(&SHA256, bundle);
    Some(BundleFacts {
        ordered: verify::ordered(bundle, held).as_secs(),
        digest: digest.as_ref().try_into().ok()?,
        length: u32::try_from(bundle.len()).ok()?,
    })
    .filter(|_| bundle.len() <= LONGEST_BUNDLE)
}

/// Returns the name of the file with chain and key.
pub fn bundle_file(certificate: &AcmeCertificate) -> String {
    certificate.stem() + ".pem"
}

/// Returns the name of the file with the unfinished order.
pub fn order_file(certificate: &AcmeCertificate) -> String {
    certificate.stem() + ".json"
}

/// Returns the name of an authority for logs and files.
pub fn label(authority: &Authority, staging: bool) -> String {
    let suffix = match authority {
        Authority::Directory(_) => "",
        _ if staging => "-staging",
        _ => "",
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
    let name = authority.write();
    let name = name.strip_prefix("https://").unwrap_or(&name).chars();
    let name: String = name
        .map(|c| if plain(c) { c } else { '_' })
        .take(LONGEST_LABEL)
        .collect();
    name + suffix
}

/// The name of a file has at most 255 bytes.
const LONGEST_LABEL: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_file_names() {
        for (text, staging, expected) in [
            ("letsencrypt", false, "letsencrypt"),
            ("google", true, "google-staging"),
            (
                "https://ca.test:14000/a/../dir",
                true,
                "ca.test_14000_a_.._dir",
            ),
        ] {
            let authority = Authority::parse(text).unwrap();
            assert_eq!(label(&authority, staging), expected);
        }
        let long = Authority::Directory(format!("https://{}", "a".repeat(400)));
        assert_eq!(label(&long, true).len(), LONGEST_LABEL);
    }
}
