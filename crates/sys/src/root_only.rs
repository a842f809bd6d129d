//! Opens files whose path only root can change.
//!
//! A user that can write to a directory on a path can create a link there, and make root open any file of the host. So
//! before root opens a file for another user, this module walks the path component by component. Each directory must
//! belong to root and be writable only for root. The kernel follows no link; this module reads each link and checks its
//! target in the same way.
//!
//! A path through a sticky directory such as `/tmp` is accepted if it continues in a directory of root, which another
//! user cannot create or move there. ACLs need no separate check, because the mode shows the most that an ACL allows
//! (acl(5)).
//!
//! Sources: path_resolution(7), symlink(7), openat(2); CVE-2016-1247 for an attack.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, fchown, fstat, mkdirat, openat, readlinkat, statat,
};
use rustix::process::{Gid, Uid};

use crate::identity::UnixIdentity;

#[derive(Debug)]
pub enum RootOnly {
    File(File),
    /// A directory with its entries.
    Folder(Vec<FolderEntry>),
}

#[derive(Debug)]
pub struct FolderEntry {
    pub name: OsString,
    /// `true` for a regular file; `false` for other files, and if the type is not known.
    pub is_file: bool,
}

/// An open directory that only root can change. It opens many files without walking the path again.
#[derive(Debug)]
pub struct RootFolder(OwnedFd);

impl RootFolder {
    /// Opens a directory by an absolute path. Returns `None` if the path leads to a file, or if a user other than root
    /// can change the directory.
    ///
    /// # Errors
    /// Returns the error of the failed system call.
    pub fn open(path: &Path) -> io::Result<Option<Self>> {
        let found = walk(path)?;
        Ok(found.and_then(|(folder, name)| name.is_none().then_some(Self(folder))))
    }

    /// Opens a regular file in this directory. Returns `None` for a link, whose path must be walked.
    ///
    /// # Errors
    /// Returns the error of the failed system call; `InvalidInput` if it is not a regular file.
    pub fn file(&self, name: &OsStr) -> io::Result<Option<File>> {
        match open_in(&self.0, name) {
            Err(error) if error.raw_os_error() == Some(libc::ELOOP) => Ok(None),
            opened => opened.map(Some),
        }
    }
}

fn open_in(folder: &OwnedFd, name: &OsStr) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = openat(folder, name, flags | NO_LINK, Mode::empty())?;
    match FileType::from_raw_mode(fstat(&file)?.st_mode) {
        FileType::RegularFile => Ok(file.into()),
        _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
}

/// Opens a file or lists a directory by an absolute path. Returns `None` if a user other than root can change the file
/// to which the path leads.
///
/// # Errors
/// Returns the error of the failed system call; `InvalidInput` if the path leads to neither a file nor a directory.
pub fn open(path: &Path) -> io::Result<Option<RootOnly>> {
    let Some((folder, name)) = walk(path)? else {
        return Ok(None);
    };
    let Some(name) = name else {
        return list(&folder).map(Some);
    };
    let file = open_in(&folder, &name)?;
    Ok(Some(RootOnly::File(file)))
}

/// Opens a file as [`open`] does.
///
/// # Errors
/// As [`open`]; `InvalidInput` for a directory.
pub fn open_file(path: &Path) -> io::Result<Option<File>> {
    match walk(path)? {
        None => Ok(None),
        Some((folder, Some(name))) => open_in(&folder, &name).map(Some),
        Some((_, None)) => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
}

/// Creates a file that the user owns, or changes the owner of an existing file from root to the user. Does nothing if a
/// user other than root can change the directory, or if the file belongs to another user.
///
/// # Errors
/// Returns the error of the failed system call; `PermissionDenied` unless the file is a regular file without further
/// hard links.
pub fn give(path: &Path, identity: &UnixIdentity) -> io::Result<()> {
    let Some((folder, Some(name))) = walk(path)? else {
        return Ok(());
    };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = openat(&folder, &name, flags | NO_LINK, Mode::from_raw_mode(0o640))?;
    let stat = fstat(&file)?;
    if stat.st_uid != 0 {
        return Ok(());
    }
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_nlink != 1 {
        let text = "not a regular file with a single name";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    let owner = (Uid::from_raw(identity.uid), Gid::from_raw(identity.gid));
    Ok(fchown(&file, Some(owner.0), Some(owner.1))?)
}

/// Creates a directory that the user owns and its group can read, or changes the owner of an empty directory from root
/// to the user. Does nothing if another user owns the path, or if the directory is not empty.
///
/// # Errors
/// Returns the error of the failed system call; `PermissionDenied` if a user other than root can change the parent
/// directory.
pub fn give_folder(path: &Path, identity: &UnixIdentity) -> io::Result<()> {
    if let Some((folder, Some(name))) = walk_to(path, Last::Unseen)? {
        let stat = fstat(&folder)?;
        let others = Mode::from_raw_mode(stat.st_mode).intersects(Mode::WGRP | Mode::WOTH);
        let is_roots = stat.st_uid == 0 && !others;
        match statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if found.st_uid != 0 => return Ok(()),
            Ok(_) => {}
            Err(rustix::io::Errno::NOENT) if is_roots => {
                mkdirat(&folder, &name, Mode::from_raw_mode(0o750))?;
            }
            Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        if is_roots {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | NO_LINK;
            let made = openat(&folder, &name, flags, Mode::empty())?;
            if !matches!(list(&made)?, RootOnly::Folder(names) if names.is_empty()) {
                return Ok(());
            }
            let owner = (Uid::from_raw(identity.uid), Gid::from_raw(identity.gid));
            return Ok(fchown(&made, Some(owner.0), Some(owner.1))?);
        }
    }
    let text = "a user other than root can change the path to this folder; create it";
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

/// Opens a user's log file for appending. The user itself may lack access to the directory. Returns `None` if a user
/// other than root can change the directory, if the file belongs to another user, or if it has several hard links.
pub fn open_log(path: &Path, identity: &UnixIdentity) -> io::Result<Option<File>> {
    let Some((folder, Some(name))) = walk(path)? else {
        return Ok(None);
    };
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = openat(&folder, &name, flags | NO_LINK, Mode::empty())?;
    let stat = fstat(&file)?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let is_own = is_file && stat.st_uid == identity.uid && stat.st_nlink == 1;
    Ok(is_own.then(|| file.into()))
}

/// Returns `true` if [`give`] would make the user the owner of the file, or if the user already
/// owns it. Accepts a missing file, and a regular file that belongs to root or to this user.
pub fn gives(path: &Path, identity: &UnixIdentity) -> io::Result<bool> {
    let Some((folder, Some(name))) = walk(path)? else {
        return Ok(false);
    };
    match statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(rustix::io::Errno::NOENT) => Ok(true),
        Err(error) => Err(error.into()),
        Ok(stat) => {
            let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
            Ok(is_file && [0, identity.uid].contains(&stat.st_uid) && stat.st_nlink == 1)
        }
    }
}

/// Returns `true` if only root can create a file at `path`.
pub fn is_roots(path: &Path) -> io::Result<bool> {
    Ok(walk(path)?.is_some())
}

/// Returns `true` if only root can change a program: both the file and the path to it.
pub fn is_program(path: &Path) -> io::Result<bool> {
    let Some(RootOnly::File(file)) = open(path)? else {
        return Ok(false);
    };
    let stat = fstat(&file)?;
    let others = Mode::from_raw_mode(stat.st_mode).intersects(Mode::WGRP | Mode::WOTH);
    Ok(stat.st_uid == 0 && !others)
}

/// Opens the parent directory of an absolute path. This directory and the file in it may belong to any user. Returns
/// `None` if a user other than root can change the path to the directory.
pub fn folder_of(path: &Path) -> io::Result<Option<OwnedFd>> {
    Ok(walk_to(path, Last::Unseen)?.map(|(folder, _)| folder))
}

/// Walks a path. Returns the parent directory and the file name, which may not exist there. The name is `None` if the
/// path leads to the directory itself.
///
/// Returns `None` if a user other than root can change the path.
fn walk(path: &Path) -> io::Result<Option<(OwnedFd, Option<OsString>)>> {
    walk_to(path, Last::Checked)
}

/// Selects whether the parent directory of a path and the file name in it are checked.
#[derive(PartialEq, Eq)]
enum Last {
    Checked,
    Unseen,
}

fn walk_to(path: &Path, last: Last) -> io::Result<Option<(OwnedFd, Option<OsString>)>> {
    if !path.is_absolute() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut ahead = names_to_walk(path);
    let mut folder = openat(CWD, "/", FOLDER, Mode::empty())?;
    for _ in 0..LONGEST {
        if last == Last::Unseen && ahead.len() == 1 {
            return Ok(Some((folder, ahead.pop())));
        }
        let stat = fstat(&folder)?;
        let mode = Mode::from_raw_mode(stat.st_mode);
        let others = mode.intersects(Mode::WGRP | Mode::WOTH);
        if stat.st_uid != 0 || (others && !mode.contains(Mode::SVTX)) {
            return Ok(None);
        }
        let Some(name) = ahead.pop() else {
            return Ok((!others).then_some((folder, None)));
        };
        let kind = match statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => FileType::from_raw_mode(stat.st_mode),
            Err(error) if ahead.is_empty() && error == rustix::io::Errno::NOENT => {
                FileType::Unknown
            }
            Err(error) => return Err(error.into()),
        };
        match kind {
            FileType::Directory => folder = openat(&folder, &name, FOLDER, Mode::empty())?,
            _ if others => return Ok(None),
            FileType::Symlink => {
                let target = readlinkat(&folder, &name, Vec::new())?.into_bytes();
                let target = OsString::from_vec(target);
                let target = Path::new(&target);
                if target.is_absolute() {
                    folder = openat(CWD, "/", FOLDER, Mode::empty())?;
                }
                ahead.extend(names_to_walk(target));
            }
            _ if ahead.is_empty() => return Ok(Some((folder, Some(name)))),
            _ => return Err(io::Error::from_raw_os_error(libc::ENOTDIR)),
        }
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

/// Returns the components of a path, the last one first.
fn names_to_walk(path: &Path) -> Vec<OsString> {
    let named = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    let mut parts: Vec<OsString> = named.collect();
    parts.reverse();
    parts
}

fn list(folder: &OwnedFd) -> io::Result<RootOnly> {
    let mut entries = Vec::new();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    for entry in Dir::new(openat(folder, ".", flags, Mode::empty())?)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
        if name != "." && name != ".." {
            let is_file = entry.file_type() == FileType::RegularFile;
            entries.push(FolderEntry { name, is_file });
        }
    }
    Ok(RootOnly::Folder(entries))
}

const NO_LINK: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC);
const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(NO_LINK);
/// Maximum number of path components to walk, including those of links. The kernel limits a path to 4096 bytes.
const LONGEST: usize = 4096;

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
    use std::path::PathBuf;

    use super::*;
    use crate::privileges::is_root;

    const USER: UnixIdentity = UnixIdentity {
        uid: 12345,
        gid: 12345,
        groups: Vec::new(),
    };

    /// Creates a folder of root in the sticky one for temporary files. Returns `None` without root.
    fn folder() -> Option<tempfile::TempDir> {
        is_root().then(|| tempfile::tempdir().unwrap())
    }

    fn text(path: &Path) -> Option<String> {
        match open(path).unwrap()? {
            RootOnly::File(file) => Some(io::read_to_string(file).unwrap()),
            RootOnly::Folder(entries) => {
                let mut names: Vec<_> = entries.into_iter().map(|it| it.name).collect();
                names.sort();
                Some(names.join(OsStr::new(" ")).into_string().unwrap())
            }
        }
    }

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn files_folders_and_links_owned_by_root_are_opened() {
        let Some(place) = folder() else { return };
        let at = |name: &str| place.path().join(name);
        fs::create_dir(at("archive")).unwrap();
        fs::write(at("archive/key1.pem"), "one").unwrap();
        mode(&at("archive"), 0o700);
        mode(&at("archive/key1.pem"), 0o600);
        fs::create_dir(at("live")).unwrap();
        symlink("../archive/key1.pem", at("live/key.pem")).unwrap();
        symlink(at("live"), at("absolute")).unwrap();
        for path in [
            "archive/key1.pem",
            "live/key.pem",
            "absolute/../live/key.pem",
        ] {
            assert_eq!(text(&at(path)).as_deref(), Some("one"), "{path}");
        }
        assert_eq!(text(&at("absolute")).as_deref(), Some("key.pem"));
        let file = open_file(&at("live/key.pem")).unwrap().unwrap();
        assert_eq!(io::read_to_string(file).unwrap(), "one");
        open_file(&at("live")).unwrap_err();
        let gone = open(&at("live/gone.pem")).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
        symlink("loop", at("loop")).unwrap();
        assert!(open(&at("loop")).is_err());
    }

    #[test]
    fn files_of_a_folder_of_root_are_opened_without_walking_their_links() {
        let Some(place) = folder() else { return };
        let at = |name: &str| place.path().join(name);
        mode(place.path(), 0o755);
        fs::write(at("file"), "one").unwrap();
        symlink("file", at("link")).unwrap();
        fs::create_dir(at("folder")).unwrap();
        let open = |path: &Path| RootFolder::open(path).unwrap();
        let opened = open(place.path()).unwrap();
        let file = opened.file(OsStr::new("file")).unwrap().unwrap();
        assert_eq!(io::read_to_string(file).unwrap(), "one");
        assert!(opened.file(OsStr::new("link")).unwrap().is_none());
        for name in ["folder", "none"] {
            opened.file(OsStr::new(name)).unwrap_err();
        }
        assert!(open(&at("file")).is_none());
        mode(place.path(), 0o775);
        assert!(open(place.path()).is_none());
    }

    #[test]
    fn a_path_that_another_user_can_change_is_not_opened() {
        let Some(place) = folder() else { return };
        let at = |name: &str| place.path().join(name);
        fs::create_dir(at("theirs")).unwrap();
        fs::write(at("theirs/key.pem"), "root's").unwrap();
        fs::write(at("key.pem"), "root's").unwrap();
        symlink("theirs/key.pem", at("to-theirs")).unwrap();
        chown(at("theirs"), Some(USER.uid), None).unwrap();
        for path in ["theirs", "theirs/key.pem", "to-theirs"] {
            assert_eq!(text(&at(path)), None, "{path}");
        }
        // Another user can write to the folder, through its group or its mode for all.
        for bits in [0o775, 0o757, 0o1777] {
            mode(place.path(), bits);
            assert_eq!(text(&at("key.pem")), None, "{bits:o}");
            assert_eq!(text(place.path()), None, "{bits:o}");
        }
        // In a sticky folder a link may be another name of a file of root.
        symlink(at("key.pem"), at("link")).unwrap();
        assert_eq!(text(&at("link")), None);
    }

    #[test]
    fn a_program_is_accepted_only_if_root_alone_can_change_it() {
        let Some(place) = folder() else { return };
        let path = place.path().join("program");
        fs::write(&path, "").unwrap();
        for (bits, is_roots) in [(0o755, true), (0o775, false), (0o757, false)] {
            mode(&path, bits);
            assert_eq!(is_program(&path).unwrap(), is_roots, "{bits:o}");
        }
        mode(&path, 0o755);
        chown(&path, Some(USER.uid), None).unwrap();
        assert!(!is_program(&path).unwrap());
        assert!(!is_program(place.path()).unwrap());
    }

    #[test]
    fn a_folder_is_given_only_if_it_is_new_or_empty_and_below_a_folder_of_root() {
        let Some(place) = folder() else { return };
        let at = |name: &str| place.path().join(name);
        let owner = |name: &str| fs::metadata(at(name)).unwrap().uid();
        fs::create_dir(at("empty")).unwrap();
        fs::create_dir_all(at("full/precious")).unwrap();
        symlink(at("full"), at("link")).unwrap();
        for name in ["new", "empty", "full"] {
            give_folder(&at(name), &USER).unwrap();
            give_folder(&at(name), &USER).unwrap();
        }
        assert_eq!(
            [owner("new"), owner("empty"), owner("full")],
            [USER.uid, USER.uid, 0]
        );
        assert!(give_folder(&at("link"), &USER).is_err());
        let within = give_folder(&at("new/inner"), &USER).unwrap_err();
        assert_eq!(within.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_log_changes_owner_only_in_a_folder_of_root() {
        let Some(place) = folder() else { return };
        let at = |name: &str| place.path().join(name);
        let owner = |path: PathBuf| fs::metadata(path).unwrap().uid();
        fs::write(at("old.log"), "").unwrap();
        for name in ["old.log", "new.log"] {
            give(&at(name), &USER).unwrap();
            give(&at(name), &USER).unwrap();
            assert_eq!(owner(at(name)), USER.uid);
        }
        fs::write(at("precious"), "").unwrap();
        fs::hard_link(at("precious"), at("second")).unwrap();
        let refused = give(&at("second"), &USER).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        fs::create_dir(at("theirs")).unwrap();
        symlink(at("precious"), at("theirs/log")).unwrap();
        lchown(at("theirs/log"), Some(USER.uid), None).unwrap();
        chown(at("theirs"), Some(USER.uid), None).unwrap();
        for name in ["theirs/log", "theirs/new.log"] {
            give(&at(name), &USER).unwrap();
        }
        assert_eq!(owner(at("precious")), 0);
        assert!(!at("theirs/new.log").exists());
    }

    #[test]
    fn a_log_of_the_user_is_opened_in_a_private_folder_of_root() {
        let Some(place) = folder() else { return };
        let at = |name: &str| place.path().join(name);
        mode(place.path(), 0o700);
        for name in ["own.log", "roots.log", "strangers.log", "two-names.log"] {
            fs::write(at(name), "old\n").unwrap();
        }
        for (name, uid) in [
            ("own.log", 12_345),
            ("strangers.log", 4711),
            ("two-names.log", 12_345),
        ] {
            chown(at(name), Some(uid), None).unwrap();
        }
        fs::hard_link(at("two-names.log"), at("second")).unwrap();
        let mut file = open_log(&at("own.log"), &USER).unwrap().unwrap();
        io::Write::write_all(&mut file, b"new\n").unwrap();
        assert_eq!(fs::read_to_string(at("own.log")).unwrap(), "old\nnew\n");
        for name in ["roots.log", "strangers.log", "two-names.log"] {
            assert!(open_log(&at(name), &USER).unwrap().is_none(), "{name}");
        }
        assert!(open_log(&at("none.log"), &USER).is_err());
        for (name, is_given) in [
            ("own.log", true),
            ("roots.log", true),
            ("strangers.log", false),
        ] {
            assert_eq!(gives(&at(name), &USER).unwrap(), is_given, "{name}");
        }
        // In a folder of the user, a link may lead anywhere.
        chown(place.path(), Some(USER.uid), None).unwrap();
        assert!(open_log(&at("own.log"), &USER).unwrap().is_none());
    }
}
