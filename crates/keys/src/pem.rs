//! Reads PEM files (RFC 7468) and keeps private keys only in memory that is erased on drop.
//!
//! A [`Pem`] contains the certificates and private keys of one file in their order. Other sections,
//! such as DH PARAMETERS for older terminators, are skipped. The file text, the decoded keys and
//! all intermediate buffers are erased on drop. Therefore this module splits the sections itself: a
//! library would leave a copy of the base64 text in memory. The module `keys` matches keys with
//! certificates.

use std::fs::Metadata;
use std::io::{self, Read};
use std::mem;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use base64ct::{Base64, Encoding};
use memchr::memmem::find;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer,
};
use zeroize::Zeroizing;

use crate::files::{Files, reason};

#[derive(Debug, thiserror::Error)]
pub enum PemError {
    #[error("{}", reason(.0))]
    Read(#[from] io::Error),
    #[error("larger than 16 MiB")]
    TooLarge,
    #[error("section {0}: broken {1}")]
    Section(usize, &'static str),
    #[error("a BEGIN line without closing dashes")]
    Begin,
    #[error("no END {0}")]
    End(String),
}

/// The text of a file, which is erased on drop.
#[derive(Debug)]
pub struct FileText {
    pub text: Zeroizing<Vec<u8>>,
    /// Metadata of the file when it was opened.
    pub meta: Metadata,
}

impl FileText {
    /// Reads a file of at most 16 MiB. Blocks.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn read(files: &Files, path: &Path) -> Result<Self, PemError> {
        let (mut file, meta) = files.open(path)?;
        if meta.len() > LARGEST_FILE {
            return Err(PemError::TooLarge);
        }
        // One byte more than the file size, so that the buffer is never reallocated: a freed buffer
        // would still contain private keys.
        let room = usize::try_from(meta.len()).unwrap_or_default() + 1;
        let mut text = Zeroizing::new(Vec::with_capacity(room));
        file.by_ref().take(meta.len()).read_to_end(&mut text)?;
        Ok(Self { text, meta })
    }

    /// Returns `true` if all users of this host can read the file.
    pub fn is_world_readable(&self) -> bool {
        self.meta.permissions().mode() & 0o004 != 0
    }
}

#[derive(Debug, Default)]
pub struct Pem {
    pub certificates: Vec<CertificateDer<'static>>,
    pub keys: Vec<Zeroizing<PrivateKeyDer<'static>>>,
    /// `true` if the file contains an encrypted private key.
    pub encrypted: bool,
    /// `true` if all users of this host can read the file.
    pub world_readable: bool,
}

impl Pem {
    /// Reads a file of at most 16 MiB. Blocks.
    ///
    /// # Errors
    /// Fails if the file cannot be read or a section is broken.
    pub fn read(files: &Files, path: &Path) -> Result<Self, PemError> {
        let file = FileText::read(files, path)?;
        Ok(Self {
            world_readable: file.is_world_readable(),
            ..Self::parse(&file.text)?
        })
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// Fails if a section is broken.
    pub fn parse(text: &[u8]) -> Result<Self, PemError> {
        let mut pem = Self::default();
        let mut rest = text;
        let mut count = 0;
        while let Some(section) = Section::next(&mut rest)? {
            count += 1;
            let broken = |what| PemError::Section(count, what);
            let key = || section.secret().ok_or_else(|| broken("private key"));
            match section.label {
                b"CERTIFICATE" => {
                    let der = CertificateDer::from_pem_slice(section.whole);
                    pem.certificates
                        .push(der.map_err(|_| broken("certificate"))?);
                }
                b"PRIVATE KEY" => pem.push_key(PrivatePkcs8KeyDer::from(key()?)),
                b"RSA PRIVATE KEY" | b"EC PRIVATE KEY" if section.is_encrypted() => {
                    pem.encrypted = true;
                }
                b"RSA PRIVATE KEY" => pem.push_key(PrivatePkcs1KeyDer::from(key()?)),
                b"EC PRIVATE KEY" => pem.push_key(PrivateSec1KeyDer::from(key()?)),
                b"ENCRYPTED PRIVATE KEY" => pem.encrypted = true,
                _ => {}
            }
        }
        Ok(pem)
    }

    fn push_key(&mut self, key: impl Into<PrivateKeyDer<'static>>) {
        self.keys.push(Zeroizing::new(key.into()));
    }
}

/// One section of the file, borrowed from its text.
struct Section<'a> {
    label: &'a [u8],
    whole: &'a [u8],
    body: &'a [u8],
}

impl<'a> Section<'a> {
    /// Removes the next section from the text and returns it.
    fn next(rest: &mut &'a [u8]) -> Result<Option<Self>, PemError> {
        let text = *rest;
        let Some(start) = find(text, BEGIN) else {
            return Ok(None);
        };
        let whole = text.get(start..).unwrap_or_default();
        let after = whole.get(BEGIN.len()..).unwrap_or_default();
        let label = find(after, DASHES)
            .and_then(|end| after.get(..end))
            .filter(|label| !label.contains(&b'\n'))
            .ok_or(PemError::Begin)?;
        let no_end = || PemError::End(String::from_utf8_lossy(label).into_owned());
        let end_line = [END, label, DASHES].concat();
        let end = find(whole, &end_line).ok_or_else(no_end)?;
        let header = BEGIN.len() + label.len() + DASHES.len();
        let body = whole.get(header..end).unwrap_or_default();
        if find(body, BEGIN).is_some() {
            return Err(no_end());
        }
        let length = end + end_line.len();
        *rest = whole.get(length..).unwrap_or_default();
        Ok(Some(Self {
            label,
            whole: whole.get(..length).unwrap_or_default(),
            body,
        }))
    }

    /// Returns `true` if the body has the RFC 1421 headers that OpenSSL writes for an encrypted
    /// key.
    fn is_encrypted(&self) -> bool {
        find(self.body, b"ENCRYPTED").is_some()
    }

    fn secret(&self) -> Option<Vec<u8>> {
        let mut digits = Zeroizing::new(Vec::with_capacity(self.body.len()));
        digits.extend(self.body.iter().filter(|byte| !byte.is_ascii_whitespace()));
        let mut out = Zeroizing::new(vec![0; digits.len() / 4 * 3]);
        let length = Base64::decode(&*digits, &mut out).ok()?.len();
        out.truncate(length);
        Some(mem::take(&mut *out))
    }
}

const BEGIN: &[u8] = b"-----BEGIN ";
const END: &[u8] = b"-----END ";
const DASHES: &[u8] = b"-----";

/// Maximum size of a file in bytes. Every bundle of CAs is much smaller; the limit stops reading
/// after a mistyped path.
const LARGEST_FILE: u64 = 16 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_decode_as_the_library_decodes_them() {
        for _ in 0..8 {
            let key = rcgen::KeyPair::generate().unwrap();
            let pem = Pem::parse(key.serialize_pem().as_bytes()).unwrap();
            assert_eq!(pem.keys[0].secret_der(), key.serialized_der());
        }
    }

    #[test]
    fn sections_of_other_kinds_are_skipped() {
        let text = b"x\n-----BEGIN DH PARAMETERS-----\n!!\n-----END DH PARAMETERS-----\n\
            -----BEGIN ENCRYPTED PRIVATE KEY-----\n!!\n-----END ENCRYPTED PRIVATE KEY-----\n";
        let pem = Pem::parse(text).unwrap();
        assert!(pem.certificates.is_empty() && pem.keys.is_empty() && pem.encrypted);
    }

    #[test]
    fn malformed_sections_are_reported() {
        for (text, fault) in [
            ("-----BEGIN CERTIFICATE-----\nAAAA\n", "no END CERTIFICATE"),
            (
                "-----BEGIN CERTIFICATE\n-----",
                "a BEGIN line without closing dashes",
            ),
            (
                "-----BEGIN PRIVATE KEY-----\n-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----",
                "no END PRIVATE KEY",
            ),
            (
                "-----BEGIN PRIVATE KEY-----\nAAA\n-----END PRIVATE KEY-----",
                "section 1: broken private key",
            ),
            (
                "-----BEGIN CERTIFICATE-----\n??\n-----END CERTIFICATE-----",
                "section 1: broken certificate",
            ),
        ] {
            assert_eq!(Pem::parse(text.as_bytes()).unwrap_err().to_string(), fault);
        }
    }

    #[test]
    fn a_directory_and_a_missing_file_are_faults() {
        assert_eq!(
            Pem::read(&Files::default(), Path::new("/"))
                .unwrap_err()
                .to_string(),
            "not a file"
        );
        let fault = Pem::read(&Files::default(), Path::new("/nowhere/x.pem")).unwrap_err();
        assert_eq!(fault.to_string(), "no such file or directory");
    }
}
