//! Reads PEM files (RFC 7468) and keeps private keys only in memory that is erased on drop.
//!
//! A [`Pem`] contains the certificates and private keys of one file in their order. Other sections,
//! such as DH PARAMETERS for older terminators, are skipped. The file text, the decoded keys and
//! all intermediate buffers are erased on drop. Therefore this module splits the sections itself: a
//! library would leave a copy of the base64 text in memory. The module `keys` matches keys with
//! certificates.

use std::fmt;
use std::fs::Metadata;
use std::io::{self, Read};
use std::mem;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use base64ct::{Base64, Encoding};
use memchr::memmem::Finder;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer,
};
use zeroize::Zeroizing;

use super::issuers::{IssuerTable, Issuers};
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

/// Omits the text, which may have private keys.
impl fmt::Debug for FileText {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "FileText({} bytes)", self.text.len())
    }
}

#[derive(Debug, Default)]
pub struct Pem {
    pub certificates: Vec<CertificateDer<'static>>,
    /// Issuers of the first certificate, if they were known by their text. `certificates` does not
    /// contain them then.
    pub issuers: Option<Arc<Issuers>>,
    /// Text of the certificates after the first one; empty if another section is between them.
    pub issuers_text: Vec<u8>,
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
        Self::of(&sections(text)?)
    }

    /// Parses the text of a file with a chain. Does not decode issuers whose text is in the table.
    ///
    /// # Errors
    /// Fails if a section is broken.
    pub fn parse_chain(text: &[u8], table: &IssuerTable) -> Result<Self, PemError> {
        let mut sections = sections(text)?;
        let is_certificate = |section: &Section<'_>| section.label == b"CERTIFICATE";
        let first = sections.iter().position(is_certificate).unwrap_or(0);
        let rest = sections.get(first + 1..).unwrap_or_default();
        let count = rest.iter().take_while(|it| is_certificate(it)).count();
        let is_only = rest.iter().filter(|it| is_certificate(it)).count() == count;
        let both = rest.first().zip(rest.get(count.wrapping_sub(1)));
        let Some((from, to)) = both.filter(|_| count > 0 && is_only) else {
            return Self::of(&sections);
        };
        let issuers = text.get(from.start..to.start + to.whole.len());
        let issuers = issuers.unwrap_or_default();
        if let Some(known) = table.known(issuers) {
            sections.drain(first + 1..=first + count);
            return Ok(Self {
                issuers: Some(known),
                ..Self::of(&sections)?
            });
        }
        Ok(Self {
            issuers_text: issuers.to_vec(),
            ..Self::of(&sections)?
        })
    }

    fn of(sections: &[Section<'_>]) -> Result<Self, PemError> {
        let mut pem = Self::default();
        for section in sections {
            let broken = |what| PemError::Section(section.number, what);
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
    /// Number of the section in the file, from 1 on.
    number: usize,
    /// Position of the section in the text.
    start: usize,
    label: &'a [u8],
    whole: &'a [u8],
    body: &'a [u8],
}

fn sections(text: &[u8]) -> Result<Vec<Section<'_>>, PemError> {
    let mut sections: Vec<Section<'_>> = Vec::new();
    let mut at = 0;
    while let Some(section) = Section::next(text, at)? {
        at = section.start + section.whole.len();
        sections.push(Section {
            number: sections.len() + 1,
            ..section
        });
    }
    Ok(sections)
}

impl<'a> Section<'a> {
    /// Returns the next section of the text from position `at` on.
    fn next(text: &'a [u8], at: usize) -> Result<Option<Self>, PemError> {
        let rest = text.get(at..).unwrap_or_default();
        let Some(start) = BEGINNINGS.find(rest) else {
            return Ok(None);
        };
        let whole = rest.get(start..).unwrap_or_default();
        let after = whole.get(BEGIN.len()..).unwrap_or_default();
        let label = (after.windows(DASHES.len()).position(|it| it == DASHES))
            .and_then(|end| after.get(..end))
            .filter(|label| !label.contains(&b'\n'))
            .ok_or(PemError::Begin)?;
        let no_end = || PemError::End(String::from_utf8_lossy(label).into_owned());
        let header = BEGIN.len() + label.len() + DASHES.len();
        let end = ENDS.find(whole).ok_or_else(no_end)?;
        let end_line = whole.get(end + END.len()..).unwrap_or_default();
        let is_labelled = end_line.strip_prefix(label);
        if !is_labelled.is_some_and(|it| it.starts_with(DASHES)) {
            return Err(no_end());
        }
        let body = whole.get(header..end).unwrap_or_default();
        if BEGINNINGS.find(body).is_some() {
            return Err(no_end());
        }
        let length = end + END.len() + label.len() + DASHES.len();
        Ok(Some(Self {
            number: 0,
            start: at + start,
            label,
            whole: whole.get(..length).unwrap_or_default(),
            body,
        }))
    }

    /// Returns `true` if the body has the RFC 1421 headers that OpenSSL writes for an encrypted
    /// key.
    fn is_encrypted(&self) -> bool {
        memchr::memmem::find(self.body, b"ENCRYPTED").is_some()
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

static BEGINNINGS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(BEGIN));
static ENDS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(END));
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
    fn issuers_with_a_known_text_are_not_decoded() {
        let certificate = |name: &str| {
            let params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
            let key = rcgen::KeyPair::generate().unwrap();
            params.self_signed(&key).unwrap().pem()
        };
        let [leaf, one, other] = ["a.test", "b.test", "c.test"].map(certificate);
        let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
        let table = IssuerTable::default();
        let mut kept = Vec::new();
        let mut parse = |text: &str| {
            let pem = Pem::parse_chain(text.as_bytes(), &table).unwrap();
            let known = pem.issuers.as_ref().map(|it| it.certificates().len());
            let issuers = pem.certificates.get(1..).unwrap_or_default();
            kept.push(table.find(issuers, &pem.issuers_text).unwrap());
            (known, pem.certificates.len(), pem.keys.len())
        };
        for text in [
            format!("{leaf}{one}{other}{key}"),
            format!("{key}{leaf}{one}{other}"),
        ] {
            let is_first = text.starts_with("-----BEGIN CERT");
            let expected = if is_first {
                (None, 3, 1)
            } else {
                (Some(2), 1, 1)
            };
            assert_eq!(parse(&text), expected);
        }
        // A section in between, another order, and no issuers.
        for (text, count) in [
            (format!("{leaf}{one}{key}{other}"), 3),
            (format!("{leaf}{other}{one}{key}"), 3),
            (format!("{leaf}{key}"), 1),
        ] {
            assert_eq!(parse(&text), (None, count, 1));
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
