//! Access to the files that a configuration includes. Only stunnel configurations include files.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

pub trait IncludedFiles {
    /// Returns the paths of a folder's entries, sorted.
    ///
    /// # Errors
    /// Fails if the folder cannot be read.
    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>>;

    /// Returns the content of an included file, or `None` if it is not a regular file.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or is longer than `most` bytes.
    fn text(&self, path: &Path, most: u64) -> io::Result<Option<Vec<u8>>>;
}

pub const TOO_LARGE: &str = "too large: all included files together may have at most 16 MiB";
/// Maximum size of all included files together, in bytes.
pub const MOST_BYTES: u64 = 16 * 1024 * 1024;

/// Included files in memory, by path.
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
