//! Opens files below a directory by names that clients choose. Never opens a file outside the
//! directory, and blocks on a disk only if the caller allows it.
//!
//! openat2(2) resolves a path without leaving the directory, regardless of links and concurrent
//! renames. With `RESOLVE_CACHED` (Linux 5.12) it returns `WouldBlock` instead of reading
//! directories from a disk. With `RWF_NOWAIT`, preadv2(2) returns `WouldBlock` for pages that are
//! not in memory. The caller then repeats the call on a thread that may block.

use std::fs::{File, Metadata};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

#[derive(Debug)]
pub struct Tree(OwnedFd);

#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Follows symbolic links that stay below the directory.
    pub links: bool,
    /// Allows the call to block on disk I/O.
    pub waits: bool,
}

impl Tree {
    /// Opens a directory at any path.
    ///
    /// # Errors
    /// Returns the errors of open(2), and `Unsupported` on kernels without openat2 (Linux 5.6) or if a sandbox forbids
    /// it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        match openat2(&folder, c".", flags, Mode::empty(), ResolveFlags::BENEATH) {
            Err(Errno::NOSYS | Errno::PERM) => Err(io::ErrorKind::Unsupported.into()),
            Err(error) => Err(error.into()),
            Ok(_) => Ok(Self(folder)),
        }
    }

    /// Opens the regular file at a path below the directory for reading, and returns its metadata. If the path leads to
    /// another type of file, returns an `O_PATH` descriptor, so that a device or a FIFO is not really opened.
    ///
    /// # Errors
    /// Returns the errors of openat2(2): `CrossesDevices` if a path leaves the directory; `FilesystemLoop` for a link
    /// that is not followed; `WouldBlock` if the call would block and `how` does not allow that.
    pub fn file(&self, path: &[u8], how: OpenOptions) -> io::Result<(File, Metadata)> {
        let found = self.resolve(path, OFlags::PATH, how)?;
        let metadata = found.metadata()?;
        if !metadata.is_file() {
            return Ok((found, metadata));
        }
        // The file is opened through the descriptor, because the path may lead to another file now.
        let link = format!("/proc/self/fd/{}", found.as_raw_fd());
        let file = File::from(rustix::fs::open(link, READ, Mode::empty())?);
        let metadata = file.metadata()?;
        Ok((file, metadata))
    }

    fn resolve(&self, path: &[u8], flags: OFlags, how: OpenOptions) -> io::Result<File> {
        let flags = flags | OFlags::CLOEXEC;
        let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        resolve.set(ResolveFlags::NO_SYMLINKS, !how.links);
        resolve.set(ResolveFlags::CACHED, !how.waits);
        match openat2(&self.0, path, flags, Mode::empty(), resolve) {
            // The kernel does not support RESOLVE_CACHED, so only a call that may block can open
            // the file.
            Err(Errno::INVAL) if !how.waits => Err(io::ErrorKind::WouldBlock.into()),
            opened => Ok(File::from(opened?)),
        }
    }
}

/// Flags for opening a file that may have been replaced meanwhile. With these flags, open(2) does not wait for the
/// writer of a FIFO and does not acquire a controlling terminal.
const READ: OFlags = OFlags::RDONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// Reads file data from offset `at`, as far as it is in memory. Returns 0 at the end of the file.
///
/// # Errors
/// `WouldBlock` if the first byte is not in memory, or if the file system does not support the
/// check; otherwise the error of preadv2(2).
pub fn read_cached(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let into = &mut [IoSliceMut::new(buffer)];
    match preadv2(file, into, at, ReadWriteFlags::NOWAIT) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Err(io::ErrorKind::WouldBlock.into()),
        read => Ok(read?),
    }
}

/// Returns the number of bytes from offset `at` that are in memory, up to [`MOST_CACHED`]; 0 at the end of the file.
///
/// One preadv2(2) reads all these bytes into a single page, because only a read shows whether a later read would block.
/// mincore(2) and cachestat(2) also count pages that are still being read from the disk, and do not work for files that
/// the process may not write.
///
/// # Errors
/// Returns the errors of [`read_cached`].
pub fn cached(file: &File, at: u64, most: usize) -> io::Result<usize> {
    let mut page = [const { MaybeUninit::<u8>::uninit() }; PAGE];
    let iov_base = page.as_mut_ptr().cast();
    let most = most.min(MOST_CACHED);
    let mut parts = [libc::iovec {
        iov_base,
        iov_len: PAGE,
    }; MOST_CACHED / PAGE];
    let count = most.div_ceil(PAGE);
    if let Some(last) = parts[..count].last_mut() {
        last.iov_len = most - (count - 1) * PAGE;
    }
    let at = at.try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the descriptor is borrowed, hence open; each part is `page` or its beginning, and nothing reads
    // its contents.
    let read = unsafe {
        libc::preadv2(
            file.as_raw_fd(),
            parts.as_ptr(),
            count as libc::c_int,
            at,
            libc::RWF_NOWAIT,
        )
    };
    if let Ok(read) = usize::try_from(read) {
        return Ok(read);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::ENOSYS) => Err(io::ErrorKind::WouldBlock.into()),
        _ => Err(error),
    }
}

/// Maximum result of [`cached`], in bytes. Larger sends are no cheaper, and the socket of a slow client accepts less.
pub const MOST_CACHED: usize = 128 * 1024;
const PAGE: usize = 4096;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::{FileTypeExt, symlink};

    use rustix::fs::{FileType, mknodat};

    use super::*;

    const LINKS: OpenOptions = OpenOptions {
        links: true,
        waits: true,
    };
    const NO_LINKS: OpenOptions = OpenOptions {
        links: false,
        waits: true,
    };

    #[test]
    fn paths_outside_the_folder_are_not_opened() {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("root");
        fs::create_dir_all(root.join("sub")).unwrap();
        fs::write(outer.path().join("secret"), "secret").unwrap();
        fs::write(root.join("sub/file"), "text").unwrap();
        symlink("sub/file", root.join("inside")).unwrap();
        symlink("../secret", root.join("outside")).unwrap();
        symlink("/etc/passwd", root.join("absolute")).unwrap();
        symlink("/proc/self/root", root.join("magic")).unwrap();
        let tree = Tree::open(&root).unwrap();
        for (path, how, opens) in [
            ("sub/file", NO_LINKS, true),
            ("sub/../sub/file", NO_LINKS, true),
            ("inside", LINKS, true),
            ("inside", NO_LINKS, false),
            ("outside", LINKS, false),
            ("absolute", LINKS, false),
            ("magic/etc/passwd", LINKS, false),
            ("../secret", LINKS, false),
            ("/etc/passwd", LINKS, false),
            ("..", LINKS, false),
            ("nothing", LINKS, false),
        ] {
            let opened = tree.file(path.as_bytes(), how);
            assert_eq!(opened.is_ok(), opens, "{path}: {opened:?}");
        }
    }

    #[test]
    fn a_fifo_is_recognised_without_being_opened_for_reading() {
        let root = tempfile::tempdir().unwrap();
        let fifo = root.path().join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let tree = Tree::open(root.path()).unwrap();
        let (_found, metadata) = tree.file(b"fifo", NO_LINKS).unwrap();
        assert!(metadata.file_type().is_fifo());
        let flags = OFlags::WRONLY | OFlags::NONBLOCK;
        let writer = rustix::fs::open(&fifo, flags, Mode::empty());
        assert_eq!(writer.err(), Some(Errno::NXIO), "the FIFO has a reader");
        assert!(tree.file(b".", NO_LINKS).unwrap().1.is_dir());
    }

    #[test]
    fn cached_bytes_are_read_and_zero_marks_the_end_of_the_file() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("file"), "text").unwrap();
        let tree = Tree::open(root.path()).unwrap();
        let (file, _) = tree.file(b"file", NO_LINKS).unwrap();
        let mut buffer = [0; 8];
        match read_cached(&file, &mut buffer, 1) {
            Ok(n) => {
                assert_eq!(&buffer[..n], b"ext");
                assert_eq!(read_cached(&file, &mut buffer, 4).unwrap(), 0);
            }
            // The file system cannot tell.
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
    }

    #[test]
    fn cached_bytes_are_counted_up_to_the_end_of_the_file() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; MOST_CACHED + 5000]).unwrap();
        let count = |at, most| cached(&file, at, most);
        match count(0, usize::MAX) {
            Ok(n) => {
                assert_eq!(n, MOST_CACHED);
                assert_eq!(count(1, 10_000).unwrap(), 10_000);
                assert_eq!(count(MOST_CACHED as u64 + 4999, 2).unwrap(), 1);
                assert_eq!(count(MOST_CACHED as u64 + 5000, 2).unwrap(), 0);
                assert_eq!(count(0, 0).unwrap(), 0);
            }
            // The file system cannot tell.
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
    }
}
