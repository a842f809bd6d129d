//! Parts of a configuration that are files of their own, as stunnel includes them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Opens what a configuration includes.
pub trait Parts {
    /// The paths of what is in a folder, sorted.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn list(&self, folder: &Path) -> Result<Vec<PathBuf>, String>;

    /// The text of a part; nothing for what is no regular file.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn text(&self, path: &Path) -> Result<Option<Vec<u8>>, String>;
}

/// Files in memory, by their paths.
impl Parts for BTreeMap<PathBuf, Vec<u8>> {
    fn list(&self, folder: &Path) -> Result<Vec<PathBuf>, String> {
        let within = self.keys().filter(|path| path.parent() == Some(folder));
        match within.cloned().collect::<Vec<_>>() {
            none if none.is_empty() => Err("no such folder".to_owned()),
            paths => Ok(paths),
        }
    }

    fn text(&self, path: &Path) -> Result<Option<Vec<u8>>, String> {
        Ok(self.get(path).cloned())
    }
}

/// A configuration that includes nothing.
#[cfg(test)]
pub(super) static NO_PARTS: BTreeMap<PathBuf, Vec<u8>> = BTreeMap::new();
