//! A listening Unix socket and its file.
//!
//! The file is created under a temporary name, gets its mode and owner, and is renamed when the socket listens. So the
//! path always leads to a working socket with the configured permissions. Links are not followed.
//!
//! A file at the path is replaced only if it is a socket without a listener, or a socket whose listener has called
//! [`SocketFile::give_way`].
//!
//! Sources: unix(7), path_resolution(7), and proc(5): chmod and chown through `/proc/self/fd` change the file of an
//! `O_PATH` descriptor.

use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use socket2::{Domain, SockAddr, Socket, Type};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketAccess {
    pub mode: u32,
    /// User ID; `None` for the user of the process.
    pub owner: Option<u32>,
    /// Group ID; `None` for the group of the process.
    pub group: Option<u32>,
}

/// A listening Unix socket. Dropping it removes its file, unless another file has replaced it.
#[derive(Debug)]
pub struct SocketFile {
    listener: UnixListener,
    /// Path, device number and inode of the file; `None` if another process created the file.
    file: Option<(PathBuf, u64, u64)>,
}

impl SocketFile {
    /// Listens at a path.
    ///
    /// # Errors
    /// `AddrInUse` if another socket listens there; `AlreadyExists` if there is a file that is not a socket;
    /// otherwise the error of the system call.
    pub fn bind(path: &Path, access: &SocketAccess) -> io::Result<Self> {
        may_be_replaced(path)?;
        let mut fresh = path.as_os_str().to_owned();
        fresh.push(SUFFIX);
        let fresh = PathBuf::from(fresh);
        may_be_replaced(&fresh)?;
        remove(&fresh)?;
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.bind(&SockAddr::unix(&fresh)?)?;
        let ready = give(&fresh, access).and_then(|file| {
            socket.listen(BACKLOG)?;
            fs::rename(&fresh, path)?;
            Ok(file)
        });
        match ready {
            Ok(file) => Ok(Self {
                listener: OwnedFd::from(socket).into(),
                file: Some((path.to_owned(), file.dev(), file.ino())),
            }),
            Err(error) => {
                remove(&fresh)?;
                Err(error)
            }
        }
    }

    /// Takes over a listening socket from a previous process. The socket's file must still exist at
    /// `path`.
    ///
    /// # Errors
    /// Returns the error of reading the file's metadata.
    pub fn adopt(listener: OwnedFd, path: PathBuf) -> io::Result<Self> {
        let found = fs::symlink_metadata(&path)?;
        Ok(Self {
            listener: listener.into(),
            file: Some((path, found.dev(), found.ino())),
        })
    }

    /// Returns the path of the file, or `None` if another process created it.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|(path, ..)| path.as_path())
    }

    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Allows the next process to replace the file while this socket still listens. Sets the sticky bit of the file,
    /// which marks this state and otherwise has no meaning for a socket.
    pub fn give_way(&self) -> io::Result<()> {
        let Some((path, ..)) = self.file.as_ref().filter(|file| is_there(file)) else {
            return Ok(());
        };
        let (file, path) = open(path)?;
        let mode = file.metadata()?.mode() & 0o7777;
        fs::set_permissions(path, Permissions::from_mode(mode | STICKY))
    }
}

impl From<OwnedFd> for SocketFile {
    fn from(listener: OwnedFd) -> Self {
        Self {
            listener: listener.into(),
            file: None,
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Some(file) = self.file.as_ref().filter(|file| is_there(file)) {
            // Fails if the file was already removed, which is not an error here.
            remove(&file.0).ok();
        }
    }
}

fn is_there((path, device, inode): &(PathBuf, u64, u64)) -> bool {
    let found = fs::symlink_metadata(path);
    found.is_ok_and(|found| (found.dev(), found.ino()) == (*device, *inode))
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Checks that the path is free or leads to a replaceable socket: one without a listener, or one
/// whose listener has called [`SocketFile::give_way`].
fn may_be_replaced(path: &Path) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if !found.file_type().is_socket() {
        return Err(io::Error::from_raw_os_error(libc::EEXIST));
    }
    if found.mode() & STICKY != 0 {
        return Ok(());
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A blocking connect() would wait while the queue is full.
    socket.set_nonblocking(true)?;
    match socket.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Err(io::Error::from_raw_os_error(libc::EADDRINUSE)),
    }
}

fn give(path: &Path, access: &SocketAccess) -> io::Result<Metadata> {
    let (file, path) = open(path)?;
    // chown is skipped if it would change nothing, because some sandboxes refuse every chown.
    if access.owner.is_some() || access.group.is_some() {
        chown(&path, access.owner, access.group)?;
    }
    fs::set_permissions(&path, Permissions::from_mode(access.mode))?;
    file.metadata()
}

/// Opens the socket at a path without following a link. Also returns its path below `/proc/self/fd`, which is valid
/// while the descriptor is open.
fn open(path: &Path) -> io::Result<(File, PathBuf)> {
    // On musl, `OpenOptions` drops O_PATH from custom flags.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.file_type().is_socket() {
        return Err(io::Error::from_raw_os_error(libc::EEXIST));
    }
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok((file, path.into()))
}

const SUFFIX: &str = ".new";
const STICKY: u32 = 0o1000;
/// Maximum number of connections that wait to be accepted. Few tools connect at a time.
const BACKLOG: i32 = 64;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn bind(path: &Path, mode: u32) -> io::Result<SocketFile> {
        let access = SocketAccess {
            mode,
            owner: None,
            group: None,
        };
        SocketFile::bind(path, &access)
    }

    fn kind(path: &Path) -> io::ErrorKind {
        bind(path, 0o600).unwrap_err().kind()
    }

    #[test]
    fn a_socket_file_has_the_given_mode_and_is_removed_on_drop() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        let socket = bind(&path, 0o660).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o660);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        UnixStream::connect(&path).unwrap();
        socket.listener().accept().unwrap();
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn only_stale_and_released_sockets_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        drop(UnixListener::bind(&path).unwrap());
        let first = bind(&path, 0o600).unwrap();
        assert_eq!(kind(&path), io::ErrorKind::AddrInUse);
        first.give_way().unwrap();
        let second = bind(&path, 0o600).unwrap();
        drop(first);
        UnixStream::connect(&path).unwrap();
        second.listener().accept().unwrap();
    }

    #[test]
    fn other_files_are_not_replaced_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        let other = folder.path().join("other");
        fs::write(&other, "text").unwrap();
        for place in [path.clone(), folder.path().join("admin.sock.new")] {
            symlink(&other, &place).unwrap();
            assert_eq!(kind(&path), io::ErrorKind::AlreadyExists);
            fs::remove_file(&place).unwrap();
        }
        fs::write(&path, "text").unwrap();
        assert_eq!(kind(&path), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
    }
}
