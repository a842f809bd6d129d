//! Opens regular files in directories that another user can write to.
//!
//! Opening a FIFO would wait for its writer, and a device such as `/dev/zero` has no end. A check before the open does
//! not help, because the path may refer to another file afterwards. So the file is opened without waiting, and then its
//! type is checked.
//!
//! Sources: open(2), fifo(7).

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::privileges::effective_user;

/// Opens a regular file for reading, without waiting. Also returns its metadata, read after the
/// open. Callers must limit reads to the length in the metadata, because the file may grow.
///
/// # Errors
/// Returns the errors of open(2); `InvalidInput` if it is not a regular file.
pub fn open(path: &Path) -> io::Result<(File, Metadata)> {
    open_with(path, 0)
}

/// Opens a regular file as [`open`] does, unless the path is a symbolic link.
///
/// # Errors
/// As [`open`]; `FilesystemLoop` (ELOOP) for a symbolic link.
pub fn open_unlinked(path: &Path) -> io::Result<(File, Metadata)> {
    open_with(path, libc::O_NOFOLLOW)
}

/// Opens a file of this user for reading and appending, without following a symbolic link. With
/// `creates`, creates a missing file with mode 0600.
///
/// # Errors
/// Returns the errors of open(2); `PermissionDenied` unless the file is a regular file of this user that no other
/// user can write.
pub fn open_own(path: &Path, creates: bool) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_NOFOLLOW;
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(creates);
    let file = options.mode(0o600).custom_flags(flags).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() || found.uid() != effective_user() || found.mode() & 0o022 != 0 {
        let text = "not a regular file of this user that only it can write";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(file)
}

fn open_with(path: &Path, flags: i32) -> io::Result<(File, Metadata)> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | flags)
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file"));
    }
    Ok((file, metadata))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_a_fifo_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let (fifo, file) = (folder.path().join("fifo"), folder.path().join("file"));
        mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        fs::write(&file, "text").unwrap();
        for other in [&fifo, folder.path(), Path::new("/dev/zero")] {
            let error = open(other).unwrap_err();
            assert_eq!(error.to_string(), "not a file", "{}", other.display());
        }
        assert_eq!(open(&file).unwrap().1.len(), 4);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("file", &link).unwrap();
        assert!(open(&link).is_ok() && open_unlinked(&file).is_ok());
        open_unlinked(&link).unwrap_err();
    }

    #[test]
    fn only_a_file_of_this_user_that_others_cannot_write_is_opened_for_appending() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        assert!(open_own(&file, false).is_err() && open_own(&file, true).is_ok());
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("file", &link).unwrap();
        for other in [folder.path(), &link, Path::new("/dev/null")] {
            open_own(other, true).unwrap_err();
        }
        fs::set_permissions(&file, fs::Permissions::from_mode(0o620)).unwrap();
        open_own(&file, true).unwrap_err();
    }
}
