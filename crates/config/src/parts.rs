//! Parts of a configuration that are files of their own, as stunnel includes them.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// Opens what a configuration includes.
pub trait IncludedFiles {
    /// The paths of what is in a folder, sorted.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>>;

    /// The text of a part; nothing for what is no regular file. A part of more than `most` bytes is not read.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn text(&self, path: &Path, most: u64) -> io::Result<Option<Vec<u8>>>;
}

/// The error of a part that has more bytes than may be read.
pub const TOO_LARGE: &str = "too large: all parts together may have 16 MiB";
/// Maximum bytes of all parts of a configuration together.
pub const MOST_BYTES: u64 = 16 * 1024 * 1024;

/// Files in memory, by their paths.
impl IncludedFiles for BTreeMap<PathBuf, Vec<u8>> {
    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let within = self.keys().filter(|path| path.parent() == Some(folder));
        match within.cloned().collect::<Vec<_>>() {
            none if none.is_empty() => Err(io::Error::other("no such folder")),
            paths => Ok(paths),
        }
    }

    fn text(&self, path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
        match self.get(path) {
            Some(text) if text.len() as u64 > most => Err(io::Error::other(TOO_LARGE)),
            text => Ok(text.cloned()),
        }
    }
}
