//! Where lines go: a standard stream, or a file that can be opened anew after it was rotated.
//!
//! A file is opened by the rights of this process, or before it became its user if that may not enter the folder. Names of our own
//! streams, such as `/dev/stderr`, are not opened: that user may not, and a socket cannot be.
//!
//! A log outside of a `process.chroot` was opened before that was entered, and stays that file: what the path is then is not this process' to
//! see.
//!
//! One thread owns an [`Output`] and writes whole lines to it (`backlog`, `log::access_log`). A reopen that fails keeps the
//! old file, so that no line is lost; the caller says so.

use std::fmt::{self, Display};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use becket_sys::log_file::{append, try_append, write_if_ready};
use becket_sys::privileges::effective_user;

use super::syslog_daemon::Daemon;
use becket_keys::files::Files;

/// A standard stream, a file or a syslog daemon.
#[derive(Debug)]
pub enum Output {
    /// The process' standard output.
    Stdout,
    /// The process' standard error.
    Stderr,
    /// A file open for appending, and the path by which it is opened anew.
    File(PathBuf, File),
    /// A file whose path leads nowhere any more.
    Outside(PathBuf, File),
    /// A syslog daemon.
    Syslog(Daemon),
}

impl Output {
    /// Opens stderr for `None`, else a file, which is made if it is not there (mode 0640).
    ///
    /// # Errors
    /// What the system says when the file cannot be opened for appending, and by whom it must be.
    pub fn open(path: Option<&Path>, files: &Files) -> io::Result<Self> {
        let Some(path) = path else {
            return Ok(Self::Stderr);
        };
        if let Some(stream) = Self::stream(path) {
            return Ok(stream);
        }
        let outside = files.log(path).map_err(|error| refusal(path, &error))?;
        if let Some(file) = outside {
            let path = path.to_owned();
            return Ok(if files.is_confined() {
                Self::Outside(path, file)
            } else {
                Self::File(path, file)
            });
        }
        let file = append(path).map_err(|error| refusal(path, &error))?;
        Ok(Self::File(path.to_owned(), file))
    }

    /// Whether [`Self::open`] would open a file. Nothing is made.
    ///
    /// # Errors
    /// As there, as far as can be told.
    pub fn check(path: &Path) -> io::Result<()> {
        match Self::stream(path) {
            Some(_) => Ok(()),
            None => try_append(path).map_err(|error| refusal(path, &error)),
        }
    }

    /// The standard stream that a path means.
    fn stream(path: &Path) -> Option<Self> {
        match path.to_str() {
            Some("/dev/stderr" | "/dev/fd/2" | "/proc/self/fd/2") => Some(Self::Stderr),
            Some("/dev/stdout" | "/dev/fd/1" | "/proc/self/fd/1") => Some(Self::Stdout),
            _ => None,
        }
    }

    /// Opens the file anew by its path, after it was moved away. A stream has nothing to reopen.
    ///
    /// # Errors
    /// What the system says; the old file stays in use then.
    pub fn reopen(&mut self) -> io::Result<()> {
        match self {
            Self::File(path, file) => *file = append(path)?,
            Self::Outside(..) => {
                let text = "it is outside of process.chroot: rotate it by a copy (copytruncate), or restart";
                return Err(io::Error::new(io::ErrorKind::Unsupported, text));
            }
            Self::Stdout | Self::Stderr | Self::Syslog(_) => {}
        }
        Ok(())
    }

    /// Writes a line unless that would wait for a reader.
    ///
    /// # Errors
    /// `WouldBlock`, or what the system says; a part of the line may have been written.
    pub fn write_if_ready(&mut self, line: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout => write_if_ready(io::stdout(), line),
            Self::Stderr => write_if_ready(io::stderr(), line),
            Self::File(_, file) | Self::Outside(_, file) => write_if_ready(file, line),
            Self::Syslog(_) => self.write_all(line),
        }
    }

    /// Writes whole lines; waits as long as the file or the reader of a stream does. Those of several threads do not mix.
    ///
    /// # Errors
    /// What the system says; some of the lines may have been written.
    pub fn write_all(&mut self, lines: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(lines)?;
                stdout.flush()
            }
            Self::Stderr => io::stderr().lock().write_all(lines),
            Self::File(_, file) | Self::Outside(_, file) => file.write_all(lines),
            Self::Syslog(daemon) => daemon.send_all(lines),
        }
    }
}

/// The path of the file, or the name of the stream.
impl Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout => f.write_str("stdout"),
            Self::Stderr => f.write_str("stderr"),
            Self::File(path, _) | Self::Outside(path, _) => path.display().fmt(f),
            Self::Syslog(daemon) => daemon.fmt(f),
        }
    }
}

/// Names the path, who must be able to open it, and what helps.
fn refusal(path: &Path, error: &io::Error) -> io::Error {
    let mut text = format!("{}: {error}", path.display());
    if error.raw_os_error() == Some(ENXIO) {
        text.push_str(
            "; a FIFO needs a reader before becket starts, and a socket cannot be opened",
        );
    } else if error.kind() == io::ErrorKind::PermissionDenied {
        let uid = effective_user();
        text.push_str(&format!(
            "; user {uid}, as which becket runs, must be able to append to it, or to make it in its folder"
        ));
    }
    io::Error::new(error.kind(), text)
}

/// No such device or address (errno(3)), on Linux.
const ENXIO: i32 = 6;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::fs;

    #[test]
    fn a_moved_file_is_opened_anew() {
        let dir = tempfile::tempdir().unwrap();
        let (path, moved) = (dir.path().join("log"), dir.path().join("log.1"));
        let mut output = Output::open(Some(&path), &Files::default()).unwrap();
        output.write_all(b"one\n").unwrap();
        fs::rename(&path, &moved).unwrap();
        output.write_all(b"two\n").unwrap();
        output.reopen().unwrap();
        output.write_all(b"three\n").unwrap();
        assert_eq!(fs::read_to_string(&moved).unwrap(), "one\ntwo\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "three\n");
    }

    #[test]
    fn a_failed_reopen_keeps_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let (path, moved) = (dir.path().join("log"), dir.path().join("log.1"));
        let mut output = Output::open(Some(&path), &Files::default()).unwrap();
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
        let mut output = Output::open(Some(&path), &Files::default()).unwrap();
        output.write_all(b"new\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old\nnew\n");
        assert_eq!(output.to_string(), path.display().to_string());
    }

    #[test]
    fn a_log_outside_is_the_file_that_it_was_and_a_reopen_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let (path, moved) = (dir.path().join("log"), dir.path().join("log.1"));
        let refused = io::Error::from_raw_os_error(ENXIO);
        let logs = [(path.clone(), append(&path)), (moved.clone(), Err(refused))];
        let files = Files::new(BTreeMap::new(), true).with_logs(logs.into());
        let mut output = Output::open(Some(&path), &files).unwrap();
        fs::rename(&path, &moved).unwrap();
        assert!(output.reopen().is_err());
        output.write_all(b"kept\n").unwrap();
        assert_eq!(fs::read_to_string(&moved).unwrap(), "kept\n");
        assert!(!path.exists());
        let error = Output::open(Some(&moved), &files).unwrap_err();
        assert!(error.to_string().contains("needs a reader"), "{error}");
    }

    #[test]
    fn our_own_streams_are_not_opened_by_name() {
        let open = |path: &str| Output::open(Some(Path::new(path)), &Files::default()).unwrap();
        assert!(matches!(open("/dev/stderr"), Output::Stderr));
        assert!(matches!(open("/proc/self/fd/1"), Output::Stdout));
    }
}
