//! Opening a log that root names and another user will write.
//!
//! Whoever may write to a folder can put a link there, and a root that opens or gives away what it finds by that name gives away
//! any file of the host (CVE-2016-1247 was that). So [`append_as`] opens as the run user, by its rights alone; that user will
//! have to do the same when the log was rotated. Only where the kernel refuses it does root help, and only in a folder that the run user cannot
//! change, nor any folder on the way to it: what lies there, root put there.
//!
//! Sources: open(2), path_resolution(7), symlink(7) on sticky folders.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path};

use rustix::fs::{
    Access, AtFlags, CWD, FileType, Mode, OFlags, accessat, fchown, fcntl_setfl, fstat, openat,
};
use rustix::process::{Gid, Uid};

use crate::identity::Identity;
use crate::privileges::{acting_as, is_root};

/// Opens a file for appending as the calling thread's user; makes it (mode 0640) if it is not there.
///
/// A FIFO must have a reader already: nobody is waited for. Later writes to it do wait.
///
/// # Errors
/// What open(2) returns; ENXIO for a FIFO that nobody reads and for a socket.
pub fn append(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(MODE)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    fcntl_setfl(&file, OFlags::APPEND)?;
    Ok(file)
}

/// Opens a file for appending with the rights of `identity`. Where these do not suffice, the caller is root and the folder is out of
/// reach for that user, root makes the file, or takes one of its own, and gives it to the user. Starts and joins threads: for start-up.
///
/// # Errors
/// As [`append`]; `PermissionDenied` also where root must not help.
pub fn append_as(path: &Path, identity: &Identity) -> io::Result<File> {
    if !is_root() {
        return append(path);
    }
    let path = &std::path::absolute(path)?;
    match acting_as(identity, || append(path))? {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(error);
            };
            let folder = acting_as(identity, || out_of_reach(folder))??;
            give(&folder, Path::new(name), identity)?;
            acting_as(identity, || append(path))?
        }
        opened => opened,
    }
}

/// Opens a folder that the calling thread's user can neither change nor move: it and all above it are root's, and none is writable,
/// but for sticky ones above it, in which only owners move what is theirs. No link is followed.
fn out_of_reach(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut folder = openat(CWD, "/", flags, Mode::empty())?;
    let mut names = path.components().skip(1);
    loop {
        let name = names.next();
        let stat = fstat(&folder)?;
        let sticky = name.is_some() && Mode::from_raw_mode(stat.st_mode).contains(Mode::SVTX);
        let writable = accessat(&folder, ".", Access::WRITE_OK, AtFlags::empty()).is_ok();
        if stat.st_uid != 0 || (writable && !sticky) {
            return Err(refused("another than root may change the way to it"));
        }
        folder = match name {
            None => return Ok(folder),
            Some(Component::Normal(name)) => openat(&folder, name, flags, Mode::empty())?,
            Some(_) => return Err(refused("\"..\" is on the way to it")),
        };
    }
}

/// Makes a file, or takes root's, and gives it to the user.
fn give(folder: &OwnedFd, name: &Path, identity: &Identity) -> io::Result<()> {
    let flags = OFlags::WRONLY
        | OFlags::CREATE
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::NOCTTY
        | OFlags::CLOEXEC;
    let file = openat(folder, name, flags, Mode::from_raw_mode(MODE))?;
    let stat = fstat(&file)?;
    let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if !regular || stat.st_nlink != 1 || stat.st_uid != 0 {
        return Err(refused("it is not a regular file of root with one name"));
    }
    let owner = (Uid::from_raw(identity.uid), Gid::from_raw(identity.gid));
    Ok(fchown(&file, Some(owner.0), Some(owner.1))?)
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// For the run user, and for a group that may read.
const MODE: u32 = 0o640;
