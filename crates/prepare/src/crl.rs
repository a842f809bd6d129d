//! Reads certificate revocation lists (RFC 5280, section 5).
//!
//! A list is taken as it is signed: whether its signature holds is asked by the verifier, for each
//! client, or server. What can be seen before any comes is said here: a list that does not parse is
//! an error; one that is overdue, or whose issuer is none of their CAs, is a warning, since to
//! refuse it would lock everybody out.

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
use becket_keys::files::{part, reason};
use becket_keys::keys::shown;
use becket_tls::verifier;

/// What is asked about the certificates of clients, or of servers.
pub(super) struct RevocationLists<'a> {
    /// As the file names them.
    pub files: &'a [String],
    /// Who issued the certificates, and the key that says so.
    pub authorities: &'a Arc<RootCertStore>,
    pub key: &'static str,
}

impl ConfigBuilder<'_> {
    /// All lists, newest first: of two of one issuer the verifier asks the first.
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

    /// Reads a file: one list in DER, or any number in PEM.
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

    /// Looks at what a list says of itself. Returns when it was issued, in seconds since 1970.
    fn check_list(
        &mut self,
        path: &str,
        file: &Path,
        list: &CertificateRevocationListDer<'static>,
        asked: &RevocationLists<'_>,
    ) -> Option<i64> {
        let parsed = facts::revocation_list(list);
        let usable = verifier::accepts(asked.authorities, list);
        let (parsed, fault) = match (&parsed, usable) {
            (Ok(parsed), Ok(())) => (parsed, None),
            (Ok(parsed), Err(error)) => (parsed, Some(error.to_string())),
            (Err(error), _) => {
                let fault = format!("not a revocation list: {error}");
                self.report.error(shown(path, file, fault));
                return None;
            }
        };
        if let Some(fault) = fault {
            let fault = format!("a revocation list that cannot be used: {fault}");
            let problem = shown(path, file, fault);
            self.report
                .error(problem.accepted("a complete list of one CA (RFC 5280), no delta"));
            return None;
        }
        let issuer = parsed.issuer();
        let now = i64::try_from(self.environment.now.as_secs()).unwrap_or(i64::MAX);
        let next = parsed.next_update().map(|next| next.timestamp());
        if next.is_some_and(|next| next <= now) {
            let fault =
                format!("the revocation list of {issuer} is overdue: a newer one should be there");
            self.report.warn(shown(path, file, fault));
        }
        if !asked.issued_by(issuer.as_raw()) {
            let fault = format!(
                "issued by {issuer}, which is no CA of {}: it is used only for certificates below a CA of that name in a chain that is shown",
                asked.key
            );
            self.report.warn(shown(path, file, fault));
        }
        Some(parsed.last_update().timestamp())
    }
}

impl RevocationLists<'_> {
    /// Whether a CA has this subject, a DER-encoded name.
    fn issued_by(&self, name: &[u8]) -> bool {
        // An anchor keeps the contents of the SEQUENCE only.
        let mut anchors = self.authorities.roots.iter();
        anchors
            .any(|anchor| name.ends_with(&anchor.subject) && name.len() <= anchor.subject.len() + 6)
    }
}

fn split(bytes: &[u8]) -> io::Result<Vec<CertificateRevocationListDer<'static>>> {
    // DER begins with a SEQUENCE.
    if bytes.first() == Some(&0x30) {
        return Ok(vec![CertificateRevocationListDer::from(bytes.to_vec())]);
    }
    let lists = CertificateRevocationListDer::pem_slice_iter(bytes);
    let lists: Result<Vec<_>, Error> = lists.collect();
    match lists {
        Ok(lists) if lists.is_empty() => Err(io::Error::other("no revocation list in it")),
        Ok(lists) => Ok(lists),
        Err(_) => {
            let fault = format!("a broken section {:?}", SectionKind::Crl);
            Err(io::Error::other(fault))
        }
    }
}

/// Lists of large authorities have some tens of MiB.
const LARGEST_FILE: u64 = 256 * 1024 * 1024;
