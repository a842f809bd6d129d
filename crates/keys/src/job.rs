//! One certificate to load: its files, as the configuration names them, and the outcome.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use becket_config::error::Report;
use becket_config::key_source::KeyUri;

use super::loaded::{Loaded, Names};

#[derive(Debug)]
pub struct Job {
    /// Index of the entry in the configuration's list of certificates.
    pub entry: u32,
    /// Configuration key to which problems refer.
    pub path: Arc<str>,
    pub source: ChainSource,
    /// File of the OCSP response.
    pub ocsp: Option<PathBuf>,
    /// Policy name for clients that receive this certificate; `None` if not configured.
    pub policy: Option<Arc<str>>,
    /// Names for which the ACME companion maintains the file; `None` for a file of the operator.
    pub managed: Option<Arc<[Box<str>]>>,
    /// Certificate that was loaded earlier. It is used again if nothing has changed.
    pub before: Option<Arc<Loaded>>,
}

#[derive(Debug)]
pub enum ChainSource {
    /// A file with chain and key.
    Bundle(PathBuf),
    Pair {
        chain: PathBuf,
        key: PathBuf,
    },
    /// A chain whose key is on a token.
    Token {
        chain: PathBuf,
        uri: Box<KeyUri>,
    },
}

impl Job {
    /// Creates a job for a chain with its key, without an OCSP response.
    pub fn of(entry: u32, path: &Arc<str>, source: ChainSource) -> Self {
        Self {
            entry,
            path: Arc::clone(path),
            source,
            ocsp: None,
            policy: None,
            managed: None,
            before: None,
        }
    }

    /// Returns the file of the chain.
    pub fn file(&self) -> &Path {
        match &self.source {
            ChainSource::Bundle(chain)
            | ChainSource::Pair { chain, .. }
            | ChainSource::Token { chain, .. } => chain,
        }
    }

    /// Returns the file of the key, with its configuration key; `None` for a key on a token.
    pub fn key_file(&self) -> Option<(String, &Path)> {
        match &self.source {
            ChainSource::Bundle(file) => Some((self.path.to_string(), file)),
            ChainSource::Pair { key, .. } => Some((format!("{}.key", self.path), key)),
            ChainSource::Token { .. } => None,
        }
    }
}

#[derive(Debug, Default)]
pub struct LoadOutcome {
    /// The certificate, which may be the one that was loaded earlier; `None` if there are errors.
    pub loaded: Option<Arc<Loaded>>,
    /// Names of a new certificate; `None` for the one that was loaded earlier.
    pub names: Option<Names>,
    pub report: Report,
}
