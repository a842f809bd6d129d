//! Stamps of files: equal stamps mean that a file has not changed, without reading it.

use std::fs::Metadata;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Hash of a path and the metadata that identifies the contents of its file: device, inode, length
/// and times. Includes the change time (ctime), which programs cannot set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(pub u64);

impl Stamp {
    pub fn of(path: &Path, file: &Metadata) -> Self {
        let times = [
            file.mtime(),
            file.mtime_nsec(),
            file.ctime(),
            file.ctime_nsec(),
        ];
        let mut hasher = DefaultHasher::new();
        (path_hash(path), file.dev(), file.ino(), file.len(), times).hash(&mut hasher);
        Self(hasher.finish())
    }

    /// Returns the stamp of a path whose metadata cannot be read.
    pub fn of_error(path: &Path, error: &io::Error) -> Self {
        let mut hasher = DefaultHasher::new();
        (path_hash(path), error.raw_os_error()).hash(&mut hasher);
        Self(hasher.finish())
    }

    /// Combines the stamps of several files.
    pub fn and(self, other: Self) -> Self {
        let mut hasher = DefaultHasher::new();
        (self.0, other.0).hash(&mut hasher);
        Self(hasher.finish())
    }
}

pub fn path_hash(path: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.as_os_str().as_bytes().hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_stamp_changes_with_the_contents_and_differs_between_files() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other] = ["a.pem", "b.pem"].map(|name| folder.path().join(name));
        fs::write(&one, "1").unwrap();
        fs::hard_link(&one, &other).unwrap();
        let of = |path: &Path| Stamp::of(path, &fs::metadata(path).unwrap());
        let first = of(&one);
        assert_eq!(first, of(&one));
        assert_ne!(first, of(&other));
        assert_ne!(first.and(of(&other)), of(&other).and(first));
        fs::write(&one, "longer").unwrap();
        assert_ne!(first, of(&one));
    }
}
