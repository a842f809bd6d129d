//! Files that may have changed, and the state of their renewal.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use becket_config::error::Problem;
use becket_keys::watch::Changes;

/// Files that may have changed.
#[derive(Clone, Debug, Default)]
pub struct ChangedFiles {
    pub changes: Changes,
    /// Files and folders of the configuration in which any file may have changed.
    pub unknown: BTreeSet<PathBuf>,
}

impl ChangedFiles {
    pub fn add(&mut self, other: Self) {
        self.changes.add(other.changes);
        self.unknown.extend(other.unknown);
    }

    pub(super) fn touches(&self, place: &Path) -> bool {
        let mut folders = place.ancestors();
        folders.any(|it| self.unknown.contains(it)) || self.changes.touches(place)
    }
}

/// State of a renewal.
pub(super) struct Renewing<'a> {
    pub(super) changed: &'a ChangedFiles,
    /// Errors in changed files.
    pub(super) kept_out: Vec<Problem>,
}
