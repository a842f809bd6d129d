//! Reads the files of a certificate, and decodes them.
//!
//! A [`Texts`] keeps what was read until another thread decodes and checks it. It is erased on
//! drop.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use becket_config::error::{Problem, Report};
use rustls_pki_types::UnixTime;

use super::checked::{CheckedDigest, CheckedFiles};
use super::issuers::IssuerTable;
use super::job::{ChainSource, Job};
use super::pem::{FileText, Pem, PemError};
use super::stamp::Stamp;
use crate::files::{Files, clean, reason, shown};

/// The contents of the files of a [`Job`], and the errors of reading them.
#[derive(Debug)]
pub(super) struct Texts {
    chain: Option<FileText>,
    /// File of the key; `None` if the chain's file has it, or for a key on a token.
    key: Option<FileText>,
    pub(super) ocsp: Option<Vec<u8>>,
    pub(super) report: Report,
}

impl Texts {
    /// Reads the files of a job. Blocks.
    pub(super) fn read(files: &Files, job: &Job) -> Self {
        let mut report = Report::default();
        let mut read = |path: &str, file: &Path| {
            let text = FileText::read(files, file);
            text.map_err(|error| report.error(unreadable(path, file, &error)))
                .ok()
        };
        let (chain, key) = match &job.source {
            ChainSource::Bundle(file) => (read(&job.path, file), None),
            ChainSource::Pair { chain, key } => (
                read(&format!("{}.chain", job.path), chain),
                read(&format!("{}.key", job.path), key),
            ),
            ChainSource::Token { chain, .. } => (read(&format!("{}.chain", job.path), chain), None),
        };
        let ocsp = job.ocsp.as_ref().and_then(|file| {
            let fault = |error| {
                let problem = shown(&format!("{}.ocsp", job.path), file, reason(&error));
                report.error(problem.accepted("a readable OCSP response, DER"));
            };
            files.bytes(file).map_err(fault).ok()
        });
        Self {
            chain,
            key,
            ocsp,
            report,
        }
    }

    /// Returns the certificates of a job's files, with exactly one key unless it is on a token.
    pub(super) fn parse(
        &self,
        job: &Job,
        issuers: &IssuerTable,
        report: &mut Report,
    ) -> Option<Pem> {
        let mut parse = |path: &str, file: &Path, text: &FileText| {
            let pem = Pem::parse_chain(&text.text, issuers);
            pem.map_err(|error| report.error(unreadable(path, file, &error)))
                .ok()
        };
        let (path, file) = (&*job.path, job.file());
        let chain_path = match &job.source {
            ChainSource::Bundle(_) => path.to_owned(),
            ChainSource::Pair { .. } | ChainSource::Token { .. } => format!("{path}.chain"),
        };
        let chain = self.chain.as_ref();
        let chain = chain.and_then(|text| parse(&chain_path, file, text));
        let pem = match &job.source {
            ChainSource::Bundle(_) => chain?,
            ChainSource::Token { .. } => Pem {
                keys: Vec::new(),
                ..chain?
            },
            ChainSource::Pair { key, .. } => {
                let text = self.key.as_ref();
                let of_key = text.and_then(|text| parse(&format!("{path}.key"), key, text));
                let (chain, of_key) = (chain?, of_key?);
                Pem {
                    keys: of_key.keys,
                    encrypted: of_key.encrypted,
                    ..chain
                }
            }
        };
        let fault = match (job.key_file(), pem.certificates.len(), pem.keys.len()) {
            (Some((path, key)), ..) if needs_password(&path, key, &pem, report) => return None,
            (_, 0, _) => "no certificate",
            (None, ..) | (_, _, 1) => return Some(pem),
            (_, _, 0) => "no private key",
            _ => "more than one private key",
        };
        let accepted = match job.source {
            ChainSource::Token { .. } => "certificates, the server's own first, PEM",
            _ => "certificates, the server's own first, and one private key, PEM",
        };
        report.error(shown(path, file, fault).accepted(accepted));
        None
    }

    /// Returns `true` if all users can read the key.
    pub(super) fn has_readers(&self) -> bool {
        let of_key = self.key.as_ref().or(self.chain.as_ref());
        of_key.is_some_and(FileText::is_world_readable)
    }

    /// Returns the stamp of the chain and the key. Returns `None` if one has changed so recently
    /// before `now` that a further change might not change its times.
    pub(super) fn stamp(&self, job: &Job, now: UnixTime) -> Option<Stamp> {
        let recent = i64::try_from(now.as_secs()).unwrap_or(i64::MAX) - GRANULARITY;
        let of = |path: &Path, text: &FileText| {
            (text.meta.ctime() < recent).then(|| Stamp::of(path, &text.meta))
        };
        let stamp = of(job.file(), self.chain.as_ref()?)?;
        match (&self.key, job.key_file()) {
            (Some(text), Some((_, path))) => Some(stamp.and(of(path, text)?)),
            _ => Some(stamp),
        }
    }

    /// Returns the digest of the chain and the key; `None` if nothing is remembered.
    pub(super) fn digest(&self, checked: &CheckedFiles) -> Option<CheckedDigest> {
        let key = self.key.as_ref().map(|key| &**key.text);
        checked.digest(&self.chain.as_ref()?.text, key.unwrap_or_default())
    }
}

/// Reads a PEM file. Reports an error for the configuration key `path` and returns `None` on
/// failure.
pub fn read(files: &Files, path: &str, file: &Path, report: &mut Report) -> Option<Pem> {
    Pem::read(files, file)
        .map_err(|error| report.error(unreadable(path, file, &error)))
        .ok()
}

fn unreadable(path: &str, file: &Path, error: &PemError) -> Problem {
    shown(path, file, error.to_string()).accepted("a readable PEM file")
}

/// Warns if all users can read the file of a private key.
pub fn warn_if_readable(path: &str, file: &Path, pem: &Pem, report: &mut Report) {
    if pem.world_readable && !pem.keys.is_empty() {
        warn_of_readers(path, file, report);
    }
}

pub(super) fn warn_of_readers(path: &str, file: &Path, report: &mut Report) {
    let fault = "all users of this host can read this private key";
    report.warn(shown(path, file, fault).accepted("chmod o-r"));
}

/// Returns `true` and reports an error if every private key of the file is encrypted.
pub fn needs_password(path: &str, file: &Path, pem: &Pem, report: &mut Report) -> bool {
    let needs = pem.encrypted && pem.keys.is_empty();
    if needs {
        let named = clean(file);
        let problem = shown(path, file, "the private key needs a password");
        report.error(problem.accepted(format!(
            "a key without a password: openssl pkey -in {0} -out {0}.decrypted",
            named.display()
        )));
    }
    needs
}

/// Time in seconds in which two changes of a file may get equal times, with a reserve.
const GRANULARITY: i64 = 1;
