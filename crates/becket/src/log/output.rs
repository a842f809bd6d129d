//! Where lines go: a standard stream, or a file that can be opened anew after it was rotated.
//!
//! A file is opened by the rights of the user that becket becomes, as it is after a rotation: root opens nothing in a folder that
//! others may change (`becket_sys::log_file`). Names of our own streams, such as `/dev/stderr`, are not opened: that user may not,
//! and a socket cannot be.
//!
//! An [`Output`] is cheap to clone and every clone follows a reopen. Lines of several threads do not
//! mix: a file is behind a mutex and opened for appending, and each line is one write. A reopen that
//! fails keeps the old file, so that no line is lost; the caller says so.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use becket_sys::identity::Identity;
use becket_sys::log_file::{append, append_as};
use tracing_subscriber::fmt::MakeWriter;

/// A standard stream or a shared, reopenable file.
#[derive(Clone, Debug)]
pub enum Output {
    /// The process' standard output.
    Stdout,
    /// The process' standard error.
    Stderr,
    /// A file of our own.
    File(Arc<LogFile>),
}

/// A file open for appending, and the path by which it is opened anew.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    file: Mutex<File>,
}

impl Output {
    /// Opens stderr for `None`, else a file, which is made if it is not there (mode 0640), for `user` if it is given.
    ///
    /// # Errors
    /// What the system says when the file cannot be opened for appending, and by whom it must be.
    pub fn open(path: Option<&Path>, user: Option<&Identity>) -> io::Result<Self> {
        let Some(path) = path else {
            return Ok(Self::Stderr);
        };
        match path.to_str() {
            Some("/dev/stderr" | "/dev/fd/2" | "/proc/self/fd/2") => return Ok(Self::Stderr),
            Some("/dev/stdout" | "/dev/fd/1" | "/proc/self/fd/1") => return Ok(Self::Stdout),
            _ => {}
        }
        let opened = user.map_or_else(|| append(path), |user| append_as(path, user));
        let file = Mutex::new(opened.map_err(|error| refusal(path, user, &error))?);
        let path = path.to_owned();
        Ok(Self::File(Arc::new(LogFile { path, file })))
    }

    /// Opens the file anew by its path, after it was moved away. Stderr has nothing to reopen.
    ///
    /// # Errors
    /// What the system says; the old file stays in use then.
    pub fn reopen(&self) -> io::Result<()> {
        let Self::File(log) = self else {
            return Ok(());
        };
        let fresh = append(&log.path)?;
        *log.lock() = fresh;
        Ok(())
    }

    /// The path of the file; `None` for stderr.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Stderr | Self::Stdout => None,
            Self::File(log) => Some(&log.path),
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stdout => io::stdout().write(bytes),
            Self::Stderr => io::stderr().write(bytes),
            Self::File(log) => log.lock().write(bytes),
        }
    }

    /// Holds the lock for all of `bytes`, so that they stay together.
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout => io::stdout().lock().write_all(bytes),
            Self::Stderr => io::stderr().lock().write_all(bytes),
            Self::File(log) => log.lock().write_all(bytes),
        }
    }

    /// Nothing is held back.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Output {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl LogFile {
    /// A thread that panicked while writing leaves at worst half a line behind.
    fn lock(&self) -> MutexGuard<'_, File> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Names the path, who must be able to open it, and what helps.
fn refusal(path: &Path, user: Option<&Identity>, error: &io::Error) -> io::Error {
    let mut text = format!("{}: {error}", path.display());
    if error.raw_os_error() == Some(ENXIO) {
        text.push_str(
            "; a FIFO needs a reader before becket starts, and a socket cannot be opened",
        );
    } else if let Some(user) = user {
        let uid = user.uid;
        text.push_str(&format!(
            "; user {uid} must be able to open it for appending, as after a rotation: make the file for this user, or the folder"
        ));
    }
    io::Error::new(error.kind(), text)
}

/// No such device or address (errno(3)), on Linux.
const ENXIO: i32 = 6;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_moved_file_is_opened_anew_by_every_clone() {
        let dir = tempfile::tempdir().unwrap();
        let (path, moved) = (dir.path().join("log"), dir.path().join("log.1"));
        let mut output = Output::open(Some(&path), None).unwrap();
        let mut clone = output.clone();
        output.write_all(b"one\n").unwrap();
        fs::rename(&path, &moved).unwrap();
        clone.write_all(b"two\n").unwrap();
        output.reopen().unwrap();
        clone.write_all(b"three\n").unwrap();
        assert_eq!(fs::read_to_string(&moved).unwrap(), "one\ntwo\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "three\n");
    }

    #[test]
    fn a_failed_reopen_keeps_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let (path, moved) = (dir.path().join("log"), dir.path().join("log.1"));
        let mut output = Output::open(Some(&path), None).unwrap();
        fs::rename(&path, &moved).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(output.reopen().is_err());
        output.write_all(b"kept\n").unwrap();
        assert_eq!(fs::read_to_string(&moved).unwrap(), "kept\n");
    }

    #[test]
    fn a_file_that_exists_is_appended_to() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        fs::write(&path, "old\n").unwrap();
        let mut output = Output::open(Some(&path), None).unwrap();
        output.write_all(b"new\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old\nnew\n");
        assert_eq!(output.path(), Some(path.as_path()));
    }

    #[test]
    fn our_own_streams_are_not_opened_by_name() {
        let open = |path: &str| Output::open(Some(Path::new(path)), None).unwrap();
        assert!(matches!(open("/dev/stderr"), Output::Stderr));
        assert!(matches!(open("/proc/self/fd/1"), Output::Stdout));
    }
}
