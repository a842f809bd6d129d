//! Remembers which certificate files were checked, so that a start need not check them again.
//!
//! The file has a line of text, and a digest of 16 bytes for each checked pair of chain and key. It
//! is trusted for one thing: that files with these contents passed the checks of signatures and of
//! the key. Names and keys are always read from the certificate files. A missing, old or damaged
//! file costs only time.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use becket_sys::regular;

use super::digest::digest;

/// Digest of the contents of a chain and its key.
pub type CheckedDigest = [u8; 16];

#[derive(Debug, Default)]
pub struct CheckedFiles {
    /// `None` if nothing is remembered.
    path: Option<PathBuf>,
    known: HashSet<CheckedDigest>,
    /// Number of digests in the file.
    in_file: usize,
    seen: Mutex<SeenDigests>,
}

#[derive(Debug, Default)]
struct SeenDigests {
    /// Digests of the file that were found again.
    used: Vec<CheckedDigest>,
    new: Vec<CheckedDigest>,
}

impl CheckedFiles {
    /// Reads the remembered digests. Ignores a file that another user can write. Blocks.
    pub fn read(path: PathBuf) -> Self {
        let mut text = Vec::new();
        let read = regular::open_own(&path, false);
        let read = read.and_then(|file| file.take(LARGEST).read_to_end(&mut text));
        let digests = read.ok().and_then(|_| text.strip_prefix(HEAD));
        let (digests, _) = digests.unwrap_or_default().as_chunks::<16>();
        Self {
            known: digests.iter().copied().collect(),
            in_file: digests.len(),
            path: Some(path),
            seen: Mutex::default(),
        }
    }

    /// Adds to the remembered digests without reading them. Nothing counts as checked.
    pub fn append(path: PathBuf) -> Self {
        Self {
            path: Some(path),
            ..Self::default()
        }
    }

    /// Returns the digest of a chain and its key; `None` if nothing is remembered.
    pub fn digest(&self, chain: &[u8], key: &[u8]) -> Option<CheckedDigest> {
        self.path.as_ref()?;
        let whole = digest(&[&HEAD[..], chain, key]);
        whole.first_chunk().copied()
    }

    /// Returns `true` if files with this digest were checked.
    pub fn contains(&self, digest: &CheckedDigest) -> bool {
        let is_known = self.known.contains(digest);
        if is_known {
            self.seen().used.push(*digest);
        }
        is_known
    }

    pub fn insert(&self, digest: CheckedDigest) {
        self.seen().new.push(digest);
    }

    fn seen(&self) -> MutexGuard<'_, SeenDigests> {
        // The lists stay valid if another lock holder panics.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends the new digests. Replaces the contents if they are not ours, or if most of the
    /// digests were not found again. Blocks.
    ///
    /// # Errors
    /// Returns the error of a system call; `PermissionDenied` if another user can write the file.
    pub fn save(self) -> io::Result<()> {
        let seen = self
            .seen
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(path) = self.path.filter(|_| !seen.new.is_empty()) else {
            return Ok(());
        };
        let mut file = regular::open_own(&path, true)?;
        let mut head = [0; HEAD.len()];
        let is_ours = file.read_exact(&mut head).is_ok() && head == *HEAD;
        let mut bytes = Vec::new();
        if !is_ours || self.in_file > SPARE + 4 * seen.used.len() {
            file.set_len(0)?;
            bytes.extend_from_slice(HEAD);
            bytes.extend_from_slice(seen.used.as_flattened());
        } else {
            // An incomplete digest at the end is filled up.
            let digests = file.metadata()?.len().saturating_sub(HEAD.len() as u64);
            bytes.resize((digests.next_multiple_of(16) - digests) as usize, 0);
        }
        bytes.extend_from_slice(seen.new.as_flattened());
        file.write_all(&bytes)
    }
}

/// The number changes with the checks.
const HEAD: &[u8; 24] = b"becket checked files, 1\n";
/// Number of unused digests that may stay in the file.
const SPARE: usize = 1000;
/// Maximum size of a file in bytes; fits four million digests.
const LARGEST: u64 = 64 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn at(number: usize) -> (Vec<u8>, Vec<u8>) {
        (b"chain".to_vec(), number.to_be_bytes().to_vec())
    }

    fn of(files: &CheckedFiles, number: usize) -> CheckedDigest {
        let (chain, key) = at(number);
        files.digest(&chain, &key).unwrap()
    }

    fn is_known(path: &std::path::Path, number: usize) -> bool {
        let files = CheckedFiles::read(path.to_owned());
        files.contains(&of(&files, number))
    }

    #[test]
    fn files_are_remembered_over_starts_and_renewals() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checked");
        for number in 0..3 {
            assert!(!is_known(&path, number));
            let files = match number {
                0 => CheckedFiles::read(path.clone()),
                _ => CheckedFiles::append(path.clone()),
            };
            files.insert(of(&files, number));
            files.save().unwrap();
            assert!((0..=number).all(|number| is_known(&path, number)));
        }
        let (chain, key) = at(0);
        let files = CheckedFiles::read(path);
        assert_ne!(files.digest(&chain, &key), files.digest(&key, &chain));
        assert_eq!(CheckedFiles::default().digest(&chain, &key), None);
    }

    #[test]
    fn foreign_and_damaged_files_are_replaced_or_filled_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checked");
        for text in ["", "becket", "a file of another program, longer"] {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            let files = CheckedFiles::read(path.clone());
            files.insert(of(&files, 7));
            files.save().unwrap();
            assert!(is_known(&path, 7), "{text}");
        }
        let whole = fs::read(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        assert!(!is_known(&path, 7), "anyone can write the file");
        let files = CheckedFiles::append(path.clone());
        files.insert(of(&files, 8));
        files.save().unwrap_err();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, &whole[..whole.len() - 5]).unwrap();
        assert!(!is_known(&path, 7));
        let files = CheckedFiles::append(path.clone());
        files.insert(of(&files, 8));
        files.save().unwrap();
        assert!(is_known(&path, 8) && !is_known(&path, 7));
    }

    #[test]
    fn digests_that_are_not_found_again_are_dropped_when_they_are_many() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checked");
        let files = CheckedFiles::read(path.clone());
        (0..2000).for_each(|number| files.insert(of(&files, number)));
        files.save().unwrap();
        let files = CheckedFiles::read(path.clone());
        assert!((0..10).all(|number| files.contains(&of(&files, number))));
        files.insert(of(&files, 5000));
        files.save().unwrap();
        assert!(is_known(&path, 9) && is_known(&path, 5000) && !is_known(&path, 10));
    }
}
