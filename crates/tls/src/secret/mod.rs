//! The secrets that the nodes of a cluster share, as files have them.
//!
//! `becket secret` makes a file with 32 random bytes that never change. Two things are derived from them and never mixed: what
//! ticket keys come from, and a replication key, by which nodes know each other. The id that names a secret on all nodes
//! is a hash of the latter, so it tells nothing about the former.
//!
//! Bytes are erased when they are dropped and never shown. `crates/prepare/src/cluster.rs` reads the files and
//! reports their faults; `crates/control/src/rotation/` decides which epochs there are.

pub mod base64;
pub mod file;
pub mod shared;

use std::path::Path;

use self::file::{FileFault, ROOT_FILE, RunUser};
use self::shared::{SecretBytes, SharedSecret};
use becket_keys::files::Files;

/// Reads a file, for a becket that runs as this user.
///
/// # Errors
/// What is wrong with it, in words.
pub fn open(files: &Files, path: &Path, user: &RunUser) -> Result<SharedSecret, FileFault> {
    let text = file::read(files, path, user)?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let bytes = base64::decode(line.trim_end_matches('\r'))
        .map_err(|fault| FileFault::new(fault, ROOT_FILE))?;
    SharedSecret::of_root(SecretBytes::new(bytes), path)
        .map_err(|error| FileFault::new(error.to_string(), ROOT_FILE))
}
