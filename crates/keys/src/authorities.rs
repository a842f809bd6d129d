//! Certificates without keys: CA certificates and pinned certificates, from a bundle or a folder
//! with hashed file names.

use std::io;
use std::path::{Path, PathBuf};

use becket_config::error::Report;
use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;

use super::texts::read;
use crate::files::{Files, shown};

/// Loads the certificates of a bundle, or of a folder with hashed file names. Problems refer to the
/// configuration key `path`.
pub fn certificates(
    files: &Files,
    path: &str,
    place: &Path,
    report: &mut Report,
) -> Option<Vec<CertificateDer<'static>>> {
    if !files.is_folder(place) {
        return read(files, path, place, report).map(|pem| pem.certificates);
    }
    let mut found: Vec<CertificateDer<'static>> = Vec::new();
    for file in hashed(files, place, "").unwrap_or_default() {
        let of_file = read(files, path, &file, report)?.certificates;
        found.extend(of_file);
    }
    found.sort_unstable_by(|a, b| a.as_ref().cmp(b.as_ref()));
    found.dedup();
    Some(found)
}

/// Returns the files that OpenSSL would load from a `CApath` folder. Their names consist of eight
/// hexadecimal digits, a dot, `prefix`, and a number. `prefix` is `r` for revocation lists.
///
/// # Errors
/// Returns the error of reading the folder.
pub fn hashed(files: &Files, folder: &Path, prefix: &str) -> io::Result<Vec<PathBuf>> {
    let is_hashed = |file: &PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let parts = name.split_once('.');
        parts.is_some_and(|(hash, number)| {
            let number = number.strip_prefix(prefix).unwrap_or_default();
            hash.len() == 8
                && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
                && !number.is_empty()
                && number.bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    let mut found = files.list(folder)?;
    found.retain(is_hashed);
    Ok(found)
}

/// Loads CA certificates as trust anchors. Problems refer to the configuration key `path`.
pub fn authorities(
    files: &Files,
    path: &str,
    file: &Path,
    report: &mut Report,
) -> Option<RootCertStore> {
    let certificates = certificates(files, path, file, report)?;
    anchors(&certificates, path, file, report)
}

pub fn anchors(
    certificates: &[CertificateDer<'_>],
    path: &str,
    file: &Path,
    report: &mut Report,
) -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for (at, certificate) in certificates.iter().enumerate() {
        if let Err(error) = roots.add(certificate.clone()) {
            let fault = format!("certificate {} cannot be used: {error}", at + 1);
            report.error(shown(path, file, fault));
        }
    }
    if certificates.is_empty() {
        let accepted = "PEM certificates in a file, or in a folder prepared by openssl rehash";
        report.error(shown(path, file, "no certificate").accepted(accepted));
    }
    (!roots.is_empty()).then_some(roots)
}
