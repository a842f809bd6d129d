//! Files that may have changed, and the state of their renewal.

use std::collections::BTreeSet;
use std::mem;
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

    /// Keeps only the folders of very many changes. Files in them that stay rejected would otherwise
    /// accumulate all later changes.
    pub fn limit(&mut self) {
        if self.changes.len() > MOST_CHANGES {
            let paths = mem::take(&mut self.changes).paths;
            let folders = paths.iter().filter_map(|path| path.parent());
            self.unknown.extend(folders.map(Path::to_owned));
        }
    }

    /// Returns `true` if any file at this place may have changed.
    pub(super) fn is_unknown(&self, place: &Path) -> bool {
        place.ancestors().any(|it| self.unknown.contains(it))
    }

    pub(super) fn touches(&self, place: &Path) -> bool {
        self.is_unknown(place) || self.changes.touches(place)
    }
}

/// State of a renewal.
pub(super) struct Renewing<'a> {
    pub(super) changed: &'a ChangedFiles,
    /// Errors in changed files.
    pub(super) kept_out: Vec<Problem>,
}

const MOST_CHANGES: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_in_an_unknown_folder_may_have_changed() {
        let changed = ChangedFiles {
            unknown: [PathBuf::from("/acme")].into(),
            ..ChangedFiles::default()
        };
        assert!(
            ["/acme", "/acme/a.pem"]
                .map(Path::new)
                .map(|it| changed.touches(it))
                == [true; 2]
        );
        assert!(!changed.touches(Path::new("/acme-other/a.pem")));
    }

    #[test]
    fn of_very_many_changes_the_folders_are_kept() {
        let mut changed = ChangedFiles::default();
        let folder = Path::new("/certs/of/a");
        for number in 0..2 * MOST_CHANGES as u64 {
            let paths = [folder.join(number.to_string()), folder.to_owned()];
            changed.add(ChangedFiles {
                changes: Changes {
                    paths: paths.into(),
                    gone: [number].into(),
                },
                ..ChangedFiles::default()
            });
            changed.limit();
            assert!(changed.changes.len() <= MOST_CHANGES);
        }
        let first = folder.join("0");
        assert!(changed.touches(&first) && changed.is_unknown(folder));
        assert!(!changed.touches(Path::new("/certs/other")));
        assert!(changed.unknown.len() <= 2);
    }
}
