//! The secrets that the nodes of a cluster share, as files have them.
//!
//! A secret comes from one of two kinds of file, both made by `becket secret`: a *root*, 32 random bytes that never
//! change, or the *state* of a [`ratchet`], which goes on from epoch to epoch and forgets. From either, two things are
//! derived and never mixed: what ticket keys come from, and a replication key, by which nodes know each other. The id
//! that names a secret on all nodes is a hash of the latter, so it tells nothing about the former.
//!
//! Bytes are erased when they are dropped and never shown. `crates/prepare/src/cluster.rs` reads the files and
//! reports their faults; `crates/control/src/rotation/` decides which epochs there are.

pub mod base64;
pub mod file;
pub mod ratchet;
pub mod shared;

use std::path::Path;

use self::file::{FileFault, ROOT_FILE, RunUser};
use self::ratchet::Ratchet;
use self::shared::{NotDerived, SecretBytes, SharedSecret};
use becket_keys::files::Files;

/// What a file held.
#[derive(Debug)]
pub struct OpenedSecret {
    /// For the configuration.
    pub secret: SharedSecret,
    /// The chain, where the file is a state.
    pub ratchet: Option<Ratchet>,
}

/// Reads a file of either kind, for a becket that runs as this user.
///
/// # Errors
/// What is wrong with it, in words.
pub fn open(files: &Files, path: &Path, user: &RunUser) -> Result<OpenedSecret, FileFault> {
    let text = file::read(files, path, user)?;
    if ratchet::is_state(&text) {
        let ratchet = Ratchet::parse(&text, path)?;
        return Ok(OpenedSecret {
            secret: ratchet.shared(),
            ratchet: Some(ratchet),
        });
    }
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let bytes = base64::decode(line.trim_end_matches('\r'))
        .map_err(|fault| FileFault::new(fault, ROOT_FILE))?;
    let root = SecretBytes::new(bytes);
    let derived = || FileFault::new(NotDerived.to_string(), ROOT_FILE);
    let secret = SharedSecret::of_root(root, path).map_err(|_| derived())?;
    Ok(OpenedSecret {
        secret,
        ratchet: None,
    })
}
