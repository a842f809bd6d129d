//! Secrets that the nodes of a cluster share.
//!
//! `becket secret` creates a file with 32 random bytes that never change. Two independent values
//! are derived from these bytes: the root of the ticket keys, and a replication key that
//! authenticates nodes. The ID of a secret is a hash of the replication key, so it is equal on all
//! nodes and reveals nothing about the ticket keys.
//!
//! Secret bytes are erased on drop and never displayed. `crates/prepare/src/cluster.rs` reads the
//! files and reports problems.

pub mod base64;
pub mod file;
pub mod shared;

use std::path::Path;

use self::file::{FileFault, ROOT_FILE, RunUser};
use self::shared::{SecretBytes, SharedSecret};
use becket_keys::files::Files;

/// Reads a secret file. `user` is the user that becket runs as.
///
/// # Errors
/// Returns the problem with the file.
pub fn open(files: &Files, path: &Path, user: &RunUser) -> Result<SharedSecret, FileFault> {
    let text = file::read(files, path, user)?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let bytes = base64::decode(line.trim_end_matches('\r'))
        .map_err(|fault| FileFault::new(fault, ROOT_FILE))?;
    SharedSecret::of_root(SecretBytes::new(bytes), path)
        .map_err(|error| FileFault::new(error.to_string(), ROOT_FILE))
}
