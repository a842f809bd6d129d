//! Opening a log for appending, by the rights of the process.
//!
//! Source: open(2), fifo(7).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, OFlags, accessat, fcntl_setfl};

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

/// Whether [`append`] would open or make the file. Nothing is made, and a reader of a FIFO notices nothing.
///
/// # Errors
/// Why it would not, as far as rights and kinds of files tell.
pub fn try_append(path: &Path) -> io::Result<()> {
    let may = |path: &Path| accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS);
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(_) => Ok(may(path)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = path.parent().unwrap_or(path);
            let folder = if folder == Path::new("") {
                Path::new(".")
            } else {
                folder
            };
            Ok(may(folder)?)
        }
        Err(error) => Err(error),
    }
}

/// For the run user, and for a group that may read.
const MODE: u32 = 0o640;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_try_makes_nothing_and_says_why_a_file_could_not_be_opened() {
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
