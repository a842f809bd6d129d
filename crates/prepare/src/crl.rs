//! Reads certificate revocation lists (RFC 5280, section 5).
//!
//! The verifier checks the signature of a list for each client or server. This module finds other
//! problems when the list is loaded. A list that does not parse is an error. A list that is
//! overdue, or whose issuer is not a configured CA, is only a warning, because rejecting it would
//! lock out all peers.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls_pki_types::CertificateRevocationListDer;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::pem::{Error, SectionKind};

use super::ConfigBuilder;
use becket_keys::authorities::hashed;
use becket_keys::facts;
use becket_keys::files::{part, reason, shown};
use becket_tls::verifier;

pub(super) struct RevocationLists<'a> {
    pub files: &'a [String],
    pub authorities: &'a Arc<RootCertStore>,
    /// Configuration key of `authorities`, for messages.
    pub key: &'static str,
}

impl ConfigBuilder<'_> {
    /// Returns all lists, newest first, because the verifier uses the first list of each issuer.
    pub(super) fn revocation(
        &mut self,
        path: &str,
        asked: &RevocationLists<'_>,
    ) -> Vec<CertificateRevocationListDer<'static>> {
        let mut lists = Vec::new();
        for (index, text) in asked.files.iter().enumerate() {
            let path = format!("{path}.crl[{index}]");
            let place = self.environment.base.join(text);
            let files = if self.environment.files.is_folder(&place) {
                hashed(&self.environment.files, &place, "r").unwrap_or_default()
            } else {
                vec![place]
            };
            for file in files {
                for list in self.revocation_lists(&path, &file) {
                    let issued = self.check_list(&path, &file, &list, asked);
                    lists.extend(issued.map(|issued| (issued, list)));
                }
            }
        }
        lists.sort_by_key(|(issued, _)| std::cmp::Reverse(*issued));
        lists.into_iter().map(|(_, list)| list).collect()
    }

    /// Reads a file: one list in DER, or several in PEM.
    fn revocation_lists(
        &mut self,
        path: &str,
        file: &Path,
    ) -> Vec<CertificateRevocationListDer<'static>> {
        let opened = self.environment.files.open(file);
        let bytes = opened.and_then(|it| part(&it.0, LARGEST_FILE));
        let found = bytes.and_then(|bytes| split(&bytes));
        match found {
            Ok(lists) => lists,
            Err(error) => {
                let problem = shown(path, file, reason(&error));
                self.report
                    .error(problem.accepted("certificate revocation lists, PEM or DER"));
                Vec::new()
            }
        }
    }

    /// Checks the fields of a list. Returns its time of issue in seconds since 1970.
    fn check_list(
        &mut self,
        path: &str,
        file: &Path,
        list: &CertificateRevocationListDer<'static>,
        asked: &RevocationLists<'_>,
    ) -> Option<i64> {
        let parsed = match facts::revocation_list(list) {
            Ok(parsed) => parsed,
            Err(error) => {
                let fault = format!("not a revocation list: {error}");
                self.report.error(shown(path, file, fault));
                return None;
            }
        };
        if let Err(error) = verifier::accepts(asked.authorities, list) {
            let fault = format!("a revocation list that cannot be used: {error}");
            let problem = shown(path, file, fault);
            self.report
                .error(problem.accepted("a complete list of one CA (RFC 5280), not a delta list"));
            return None;
        }
        let issuer = parsed.issuer();
        let now = i64::try_from(self.environment.now.as_secs()).unwrap_or(i64::MAX);
        let next = parsed.next_update().map(|next| next.timestamp());
        if next.is_some_and(|next| next <= now) {
            let fault = format!("the revocation list of {issuer} is overdue; install a newer one");
            self.report.warn(shown(path, file, fault));
        }
        if !asked.issued_by(issuer.as_raw()) {
            let fault = format!(
                "issued by {issuer}, which is not a CA of {}: the list applies only to certificates below a CA of that name in a presented chain",
                asked.key
            );
            self.report.warn(shown(path, file, fault));
        }
        Some(parsed.last_update().timestamp())
    }
}

impl RevocationLists<'_> {
    /// Returns `true` if a CA has this subject, a DER-encoded name.
    fn issued_by(&self, name: &[u8]) -> bool {
        // A trust anchor stores the subject without the SEQUENCE header, which has up to 6 bytes.
        let mut anchors = self.authorities.roots.iter();
        anchors
            .any(|anchor| name.ends_with(&anchor.subject) && name.len() <= anchor.subject.len() + 6)
    }
}

fn split(bytes: &[u8]) -> io::Result<Vec<CertificateRevocationListDer<'static>>> {
    // A DER file begins with a SEQUENCE tag.
    if bytes.first() == Some(&0x30) {
        return Ok(vec![CertificateRevocationListDer::from(bytes.to_vec())]);
    }
    let lists = CertificateRevocationListDer::pem_slice_iter(bytes);
    let lists: Result<Vec<_>, Error> = lists.collect();
    match lists {
        Ok(lists) if lists.is_empty() => Err(io::Error::other("no revocation list in the file")),
        Ok(lists) => Ok(lists),
        Err(_) => {
            let fault = format!("a broken section {:?}", SectionKind::Crl);
            Err(io::Error::other(fault))
        }
    }
}

/// Maximum file size in bytes. Lists of large CAs have tens of MiB.
const LARGEST_FILE: u64 = 256 * 1024 * 1024;
