//! Reads and creates secret files. A file is read only if no other user has access to it. A new
//! file has mode 0600 and never replaces an existing file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use becket_sys::privileges;
use zeroize::Zeroizing;

use becket_keys::files::{Files, reason};

/// Description of an accepted file, for error messages.
pub const ROOT_FILE: &str = "a file that \"becket secret FILE\" made";

/// A problem with a secret file, and how to fix it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFault {
    pub fault: String,
    pub accepted: String,
}

impl FileFault {
    pub fn new(fault: impl Into<String>, accepted: impl Into<String>) -> Self {
        Self {
            fault: fault.into(),
            accepted: accepted.into(),
        }
    }
}

/// The user and the group that becket runs as, or will run as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunUser {
    pub uid: u32,
    pub gid: u32,
    /// User name, for suggested shell commands.
    pub name: String,
}

impl RunUser {
    pub fn effective() -> Self {
        let uid = privileges::effective_user();
        let name = match uid {
            0 => "root".to_owned(),
            uid => uid.to_string(),
        };
        Self {
            uid,
            gid: privileges::effective_group(),
            name,
        }
    }

    /// Rejects a file of another user, because that user could change its mode and then read or
    /// replace its contents.
    fn check_owner(&self, path: &Path, owner: u32) -> Result<(), FileFault> {
        if owner == 0 || owner == self.uid {
            return Ok(());
        }
        let name = &self.name;
        let fault = match self.uid {
            0 => format!("it belongs to user {owner}, not to root"),
            _ => format!("it belongs to user {owner}, not to root or {name}"),
        };
        let advice = format!("chown {} {}", quoted(Path::new(name)), quoted(path));
        Err(FileFault::new(fault, advice))
    }
}

/// Reads a small file that root or `user` owns and that no other user can access. The group of
/// `user` may read a file of root, because Kubernetes gives secrets to a process so.
///
/// # Errors
/// Fails if the path does not exist or is not a file, if the file is too large or not text, or if
/// another user owns it or has access.
pub fn read(files: &Files, path: &Path, user: &RunUser) -> Result<Zeroizing<String>, FileFault> {
    let fault = |error: &io::Error| FileFault::new(reason(error), ROOT_FILE);
    let (file, metadata) = files.open(path).map_err(|error| fault(&error))?;
    user.check_owner(path, metadata.uid())?;
    let mode = metadata.mode() & 0o777;
    let is_given = metadata.uid() == 0 && user.uid != 0 && metadata.gid() == user.gid;
    if mode & if is_given { 0o037 } else { 0o077 } != 0 {
        let fault = format!("users other than its owner have access (mode {mode:04o})");
        let advice = format!("chmod 600 {}", quoted(path));
        return Err(FileFault::new(fault, advice));
    }
    let mut text = Zeroizing::new(String::with_capacity(LARGEST + 1));
    file.take(LARGEST as u64 + 1)
        .read_to_string(&mut text)
        .map_err(|error| match error.kind() {
            ErrorKind::InvalidData => FileFault::new("not text", ROOT_FILE),
            _ => fault(&error),
        })?;
    if text.len() > LARGEST {
        return Err(FileFault::new("too long", ROOT_FILE));
    }
    Ok(text)
}

/// Creates a new file, and writes the file and its directory to disk (fsync(2)).
///
/// # Errors
/// Returns the error of the failed system call, such as `AlreadyExists`. After a failure, the new
/// file is removed.
pub fn create(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| file.sync_all());
    if written.is_err() {
        // An error of the removal is ignored, because the error of the write is more useful.
        let _left_behind = fs::remove_file(path);
    }
    written?;
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    File::open(folder)?.sync_all()
}

fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    if text.chars().all(plain) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// Maximum size of a secret file in bytes; larger than any secret.
const LARGEST: usize = 1024;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn read(path: &Path) -> Result<Zeroizing<String>, FileFault> {
        super::read(&Files::default(), path, &RunUser::effective())
    }

    #[test]
    fn a_new_file_is_private_to_its_owner_and_never_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        create(&path, "one\n").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let again = create(&path, "two\n").unwrap_err();
        assert_eq!(again.kind(), ErrorKind::AlreadyExists);
        assert_eq!(*read(&path).unwrap(), "one\n");
    }

    #[test]
    fn a_file_accessible_to_others_is_rejected_with_a_chmod_command() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("it's secret");
        create(&path, "one\n").unwrap();
        for mode in [0o640, 0o604, 0o660, 0o610] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let fault = read(&path).unwrap_err();
            assert!(fault.fault.contains(&format!("{mode:04o}")), "{fault:?}");
            let quoted = format!("'{}", folder.path().join("it").display());
            assert_eq!(fault.accepted, format!(r"chmod 600 {quoted}'\''s secret'"));
        }
    }

    #[test]
    fn a_file_of_another_user_is_rejected_with_a_chown_command() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        create(&path, "one\n").unwrap();
        let owner = fs::metadata(&path).unwrap().uid();
        let user = RunUser {
            uid: owner + 1,
            gid: 7,
            name: "becket".to_owned(),
        };
        assert!(user.check_owner(&path, 0).is_ok(), "root");
        assert!(user.check_owner(&path, owner + 1).is_ok(), "ours");
        let fault = user.check_owner(&path, owner + 2).unwrap_err();
        assert!(fault.fault.contains(&(owner + 2).to_string()), "{fault:?}");
        assert_eq!(fault.accepted, format!("chown becket {}", path.display()));
        if owner != 0 {
            let refused = super::read(&Files::default(), &path, &user);
            assert!(refused.unwrap_err().fault.starts_with("it belongs to"));
            return;
        }
        // Root can give a file to the user's group.
        for (gid, mode, is_accepted) in [
            (7, 0o440, true),
            (8, 0o440, false),
            (7, 0o460, false),
            (7, 0o444, false),
        ] {
            std::os::unix::fs::chown(&path, None, Some(gid)).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let read = super::read(&Files::default(), &path, &user);
            assert_eq!(read.is_ok(), is_accepted, "{gid} {mode:o}");
        }
        // Root can give a file to another user.
        std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
        let refused = super::read(&Files::default(), &path, &user);
        assert!(refused.unwrap_err().fault.contains("user 12345"));
    }

    #[test]
    fn folders_and_missing_or_oversized_files_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        assert_eq!(read(folder.path()).unwrap_err().fault, "not a file");
        assert!(read(&path).unwrap_err().fault.contains("no such file"));
        create(&path, &"a".repeat(LARGEST + 1)).unwrap();
        assert_eq!(read(&path).unwrap_err().fault, "too long");
    }
}
