//! Opens log files for appending, as the user of the process.
//!
//! Sources: open(2), fifo(7).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, AtFlags, CWD, OFlags, accessat, fcntl_setfl, fstat};
use rustix::io::retry_on_intr;

/// Opens a file for appending as the calling thread's user; creates it (mode 0640) if it does not exist.
///
/// A FIFO must already have a reader: opening does not wait for one. Later writes to it do wait.
///
/// # Errors
/// Returns the errors of open(2); ENXIO for a FIFO without a reader and for a socket.
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

/// Writes bytes in pieces of at most `PIPE_BUF` bytes. Polls before each piece, and writes it only
/// if the file is ready, so the write does not block.
///
/// # Errors
/// `WouldBlock` if the file is not ready; otherwise the errors of poll(2) and write(2). Some of the
/// bytes may have been written.
pub fn write_if_ready(file: impl AsFd, bytes: &[u8]) -> io::Result<()> {
    for mut piece in bytes.chunks(PIPE_BUF) {
        while !piece.is_empty() {
            let mut writable = [PollFd::new(&file, PollFlags::OUT)];
            let ready = retry_on_intr(|| poll(&mut writable, Some(&Timespec::default())))?;
            if ready == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let written = retry_on_intr(|| rustix::io::write(&file, piece))?;
            piece = piece.get(written..).unwrap_or_default();
        }
    }
    Ok(())
}

/// Number of bytes that a writable pipe accepts in one write without blocking; see pipe(7).
const PIPE_BUF: usize = 4096;

/// Returns `true` if standard error is the stream in `JOURNAL_STREAM`, which systemd's journal
/// reads.
///
/// Source: systemd.exec(5).
pub fn stderr_is_journal() -> bool {
    let named = std::env::var("JOURNAL_STREAM");
    named.is_ok_and(|named| is_named(io::stderr(), &named))
}

/// Returns `true` if `named` is the `device:inode` of the stream.
fn is_named(stream: impl AsFd, named: &str) -> bool {
    let Some((device, inode)) = named.split_once(':') else {
        return false;
    };
    let stat = fstat(stream);
    stat.is_ok_and(|stat| device.parse() == Ok(stat.st_dev) && inode.parse() == Ok(stat.st_ino))
}

/// Checks whether [`append`] would open or create the file. Creates nothing, and a FIFO's reader is not affected.
///
/// # Errors
/// Returns the reason why [`append`] would fail, as far as permissions and file types show it.
pub fn try_append(path: &Path) -> io::Result<()> {
    let may = |path: &Path| accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS);
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(_) => Ok(may(path)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = path.parent().filter(|folder| *folder != Path::new(""));
            Ok(may(folder.unwrap_or(Path::new(".")))?)
        }
        Err(error) => Err(error),
    }
}

const MODE: u32 = 0o640;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_without_a_reader_does_not_block_the_writer() {
        let (reader, writer) = io::pipe().unwrap();
        let line = [b'x'; 100_000];
        let error = write_if_ready(&writer, &line).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(reader);
        assert!(write_if_ready(&writer, b"x").is_err());
    }

    #[test]
    fn a_stream_is_identified_by_device_and_inode() {
        use std::os::unix::fs::MetadataExt;
        let file = tempfile::tempfile().unwrap();
        let meta = file.metadata().unwrap();
        let (device, inode) = (meta.dev(), meta.ino());
        assert!(is_named(&file, &format!("{device}:{inode}")));
        assert!(!is_named(&file, &format!("{device}:{}", inode + 1)));
        for other in ["", ":", "1", "a:b"] {
            assert!(!is_named(&file, other));
        }
    }

    #[test]
    fn try_append_creates_no_file_and_returns_the_open_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        try_append(&path("new.log")).unwrap();
        assert!(!path("new.log").exists());
        std::fs::write(path("old.log"), "").unwrap();
        try_append(&path("old.log")).unwrap();
        let kind = |path: &Path| try_append(path).unwrap_err().kind();
        assert_eq!(kind(&path("nowhere/new.log")), io::ErrorKind::NotFound);
        assert_eq!(kind(folder.path()), io::ErrorKind::IsADirectory);
    }
}
