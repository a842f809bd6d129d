//! The PID file of this process.
//!
//! The file is written under a temporary name and renamed, so that no reader sees an incomplete file and a link at its
//! path is replaced. The directory stays open, so that the file is later removed from the directory to which it was
//! written. Root follows no link that another user could have created ([`root_only::folder_of`]).

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, renameat, unlinkat};

use crate::privileges::is_root;
use crate::root_only;

#[derive(Debug)]
pub struct PidFile {
    folder: OwnedFd,
    name: OsString,
}

impl PidFile {
    /// Writes the file with mode 0644, and replaces an existing one.
    ///
    /// # Errors
    /// `PermissionDenied` for root if another user can change the path to the folder; otherwise the error of
    /// the system call.
    pub fn write(path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let folder = if is_root() {
            root_only::folder_of(&path)?.ok_or_else(|| {
                let text = "a user other than root can change the path to its folder";
                io::Error::new(io::ErrorKind::PermissionDenied, text)
            })?
        } else {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            openat(CWD, parent, flags, Mode::empty())?
        };
        let number = std::process::id();
        let mut fresh = name.to_owned();
        fresh.push(format!(".{number}"));
        // A previous process with this PID may have been killed and left this file.
        unlinkat(&folder, &fresh, AtFlags::empty()).ok();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(&folder, &fresh, flags, Mode::from_raw_mode(0o644))?;
        writeln!(File::from(file), "{number}")?;
        renameat(&folder, &fresh, &folder, name)?;
        let name = name.to_owned();
        Ok(Self { folder, name })
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // Fails if the file was already removed, which is not an error here.
        unlinkat(&self.folder, &self.name, AtFlags::empty()).ok();
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn own_number() -> String {
        format!("{}\n", std::process::id())
    }

    #[test]
    fn a_symlink_at_the_pid_file_path_is_replaced() {
        let place = tempfile::tempdir().unwrap();
        let (path, other) = (place.path().join("pid"), place.path().join("other"));
        fs::write(&other, "text").unwrap();
        symlink(&other, &path).unwrap();
        let file = PidFile::write(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), own_number());
        assert_eq!(fs::read_to_string(&other).unwrap(), "text");
        drop(file);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }

    #[test]
    fn root_follows_no_symlink_in_a_folder_of_another_user() {
        if !is_root() {
            return;
        }
        let place = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
        let at = |name: &str| place.path().join(name);
        for folder in ["roots", "theirs", "theirs/run"] {
            fs::create_dir(at(folder)).unwrap();
            chown(
                at(folder),
                Some(if folder == "roots" { 0 } else { 12345 }),
                None,
            )
            .unwrap();
        }
        symlink(at("roots"), at("theirs/link")).unwrap();
        symlink("roots", at("of-root")).unwrap();
        for path in ["theirs/link/pid", "theirs/run/pid"] {
            let refused = PidFile::write(&at(path)).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{path}");
        }
        assert_eq!(fs::read_dir(at("roots")).unwrap().count(), 0);
        for path in ["of-root/pid", "theirs/pid"] {
            let file = PidFile::write(&at(path)).unwrap();
            assert_eq!(fs::read_to_string(at(path)).unwrap(), own_number());
            drop(file);
        }
        let file = PidFile::write(&at("theirs/pid")).unwrap();
        fs::rename(at("theirs"), at("moved")).unwrap();
        symlink("roots", at("theirs")).unwrap();
        fs::write(at("roots/pid"), "").unwrap();
        drop(file);
        assert!(at("roots/pid").exists() && !at("moved/pid").exists());
    }
}
