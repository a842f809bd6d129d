//! Outputs for lines: a standard stream, a file that can be reopened after a rotation, or a syslog
//! daemon.
//!
//! A file is opened with the permissions of this process. If the user of the process cannot access
//! the folder, the file was opened before the change of user. Names of standard streams, such as
//! `/dev/stderr`, are not opened, because the user may lack permission and a socket cannot be
//! opened.
//!
//! One thread owns an [`Output`] and writes whole lines to it (`queue`, `access_log`). If a reopen
//! fails, the old file stays in use, so that no line is lost.

use std::fmt::{self, Display};
use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use becket_config::address::{Address, SyslogAddress};
use becket_sys::log_file::{append, try_append, write_if_ready};
use becket_sys::privileges::effective_user;
use socket2::{SockAddr, Socket, Type};

use becket_keys::files::Files;

#[derive(Debug)]
pub enum Output {
    Stdout,
    Stderr,
    File { path: PathBuf, file: File },
    Syslog(SyslogDaemon),
}

#[derive(Debug)]
pub struct SyslogDaemon {
    address: SyslogAddress,
    /// The connected socket; `None` before the first line.
    socket: Option<Socket>,
}

#[derive(Debug)]
pub(super) struct CountedOutput {
    output: Output,
    dropped: Arc<AtomicU64>,
    /// Number of dropped lines that were already reported in the log.
    reported: u64,
    is_failing: bool,
}

impl CountedOutput {
    pub(super) fn new(output: Output) -> Self {
        Self {
            output,
            dropped: Arc::default(),
            reported: 0,
            is_failing: false,
        }
    }

    /// Returns the counter of dropped lines. The queue that feeds this output also increments it.
    pub(super) fn dropped(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.dropped)
    }

    pub(super) fn write_if_ready(&mut self, line: &[u8]) -> io::Result<()> {
        self.output.write_if_ready(line)
    }

    /// Writes whole lines, or drops them after a failure. Blocks while the output blocks.
    ///
    /// Logs only the first of consecutive failures, and the number of dropped lines after the next
    /// successful write, because the log may use the same output.
    pub(super) fn write(&mut self, lines: &[u8]) {
        if lines.is_empty() {
            return;
        }
        if let Err(error) = self.output.write_all(lines) {
            let count = lines.iter().filter(|byte| **byte == b'\n').count();
            self.dropped.fetch_add(count as u64, Relaxed);
            if !std::mem::replace(&mut self.is_failing, true) {
                tracing::error!(name: "log-write-failed", path = %self.output, %error, "cannot write log lines");
            }
            return;
        }
        self.is_failing = false;
        let dropped = self.dropped.load(Relaxed);
        let lines = dropped - std::mem::replace(&mut self.reported, dropped);
        if lines > 0 {
            tracing::warn!(name: "log-lines-dropped", path = %self.output, lines, "log lines dropped: they could not be written in time");
        }
    }

    pub(super) fn reopen(&mut self) {
        if let Err(error) = self.output.reopen() {
            tracing::error!(name: "log-reopen-failed", path = %self.output, %error, "cannot reopen the log file; keeping the old one");
        }
    }
}

impl Output {
    /// Opens stderr for `None`, otherwise a file, which is created if it is missing (mode 0640).
    ///
    /// # Errors
    /// Fails if the file cannot be opened for appending. The error names the user that needs
    /// access.
    pub fn open(path: Option<&Path>, files: &Files) -> io::Result<Self> {
        let Some(path) = path else {
            return Ok(Self::Stderr);
        };
        if let Some(stream) = Self::stream(path) {
            return Ok(stream);
        }
        let file = match files.log(path) {
            Some(file) => file.try_clone(),
            None => append(path),
        };
        Ok(Self::File {
            path: path.to_owned(),
            file: file.map_err(|error| refusal(path, &error))?,
        })
    }

    /// Checks that [`Self::open`] would succeed, without creating anything.
    ///
    /// # Errors
    /// Returns the errors of [`Self::open`] that can be predicted.
    pub fn check(path: &Path) -> io::Result<()> {
        match Self::stream(path) {
            Some(_) => Ok(()),
            None => try_append(path).map_err(|error| refusal(path, &error)),
        }
    }

    /// Returns `true` if the path names a standard stream, which is not opened.
    pub fn is_stream(path: &Path) -> bool {
        Self::stream(path).is_some()
    }

    fn stream(path: &Path) -> Option<Self> {
        match path.to_str() {
            Some("/dev/stderr" | "/dev/fd/2" | "/proc/self/fd/2") => Some(Self::Stderr),
            Some("/dev/stdout" | "/dev/fd/1" | "/proc/self/fd/1") => Some(Self::Stdout),
            _ => None,
        }
    }

    /// Opens the file again by its path, after it was renamed. Does nothing for a stream.
    ///
    /// # Errors
    /// Fails if the file cannot be opened; the old file stays in use.
    fn reopen(&mut self) -> io::Result<()> {
        match self {
            Self::File { path, file } => *file = append(path)?,
            Self::Stdout | Self::Stderr | Self::Syslog(_) => {}
        }
        Ok(())
    }

    /// Writes a line unless the write would block. After an error, part of the line may have been
    /// written.
    fn write_if_ready(&mut self, line: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout => write_if_ready(io::stdout(), line),
            Self::Stderr => write_if_ready(io::stderr(), line),
            Self::File { file, .. } => write_if_ready(file, line),
            Self::Syslog(_) => self.write_all(line),
        }
    }

    /// Writes whole lines, which do not mix with lines of other threads. After an error, some lines
    /// may have been written.
    fn write_all(&mut self, lines: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(lines)?;
                stdout.flush()
            }
            Self::Stderr => io::stderr().lock().write_all(lines),
            Self::File { file, .. } => file.write_all(lines),
            Self::Syslog(daemon) => daemon.send_all(lines),
        }
    }
}

/// Writes the path of the file, or the name of the stream.
impl Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout => f.write_str("stdout"),
            Self::Stderr => f.write_str("stderr"),
            Self::File { path, .. } => path.display().fmt(f),
            Self::Syslog(daemon) => write!(f, "syslog at {}", daemon.address.text),
        }
    }
}

impl SyslogDaemon {
    pub(super) fn new(address: SyslogAddress) -> Self {
        let socket = None;
        Self { address, socket }
    }

    /// Returns `true` if the daemon is on another host.
    pub(super) fn is_remote(&self) -> bool {
        !matches!(self.address.address, Address::Unix(_))
    }

    /// Sends each line as a datagram, until a send fails.
    fn send_all(&mut self, lines: &[u8]) -> io::Result<()> {
        let mut lines = lines.split(|byte| *byte == b'\n');
        lines.try_for_each(|line| {
            if line.is_empty() {
                return Ok(());
            }
            self.send(line)
        })
    }

    fn send(&mut self, line: &[u8]) -> io::Result<()> {
        if let Some(socket) = &self.socket {
            match socket.send(line) {
                Ok(_) => return Ok(()),
                // The daemon is busy: a new socket would not help.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
                // The daemon may have restarted, so connect a new socket and send again.
                Err(_) => {}
            }
        }
        let socket = self.connect()?;
        let sent = socket.send(line);
        self.socket = Some(socket);
        sent.map(drop)
    }

    fn connect(&self) -> io::Result<Socket> {
        let address = match &self.address.address {
            Address::Unix(path) => SockAddr::unix(path)?,
            Address::Ip(ip, port) => SocketAddr::new(*ip, *port).into(),
            // Unreachable: the configuration rejects these addresses for syslog.
            Address::Any(_) | Address::Name(..) => return Err(io::ErrorKind::InvalidInput.into()),
        };
        let socket = Socket::new(address.domain(), Type::DGRAM, None)?;
        socket.set_write_timeout(Some(PATIENCE))?;
        socket.connect(&address)?;
        Ok(socket)
    }
}

/// Adds the path, the user that needs access, and a remedy to an error.
fn refusal(path: &Path, error: &io::Error) -> io::Error {
    let mut text = format!("{}: {error}", path.display());
    if error.raw_os_error() == Some(ENXIO) {
        text.push_str(
            "; a FIFO needs a reader before becket starts, and a socket cannot be opened",
        );
    } else if error.kind() == io::ErrorKind::PermissionDenied {
        let uid = effective_user();
        text.push_str(&format!(
            "; user {uid} (the user of becket) must be able to append to the file, or to create it in its folder"
        ));
    }
    io::Error::new(error.kind(), text)
}

/// Time limit for writing the last lines of each log at exit, and for sending a line to a syslog
/// daemon.
pub const PATIENCE: Duration = Duration::from_millis(500);
/// `ENXIO` on Linux (errno(3)): no such device or address.
const ENXIO: i32 = 6;

#[cfg(test)]
mod tests {
    use super::*;
    use becket_config::notation::Text as _;
    use std::fs;
    use std::os::unix::net::UnixDatagram;

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
    fn a_log_file_that_was_opened_before_is_not_opened_by_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let (path, moved) = (dir.path().join("log"), dir.path().join("log.1"));
        let logs = [(path.clone(), append(&path).unwrap())];
        let files = Files::default().with_logs(logs.into());
        fs::rename(&path, &moved).unwrap();
        let mut output = Output::open(Some(&path), &files).unwrap();
        output.write_all(b"kept\n").unwrap();
        assert_eq!(fs::read_to_string(&moved).unwrap(), "kept\n");
        assert!(!path.exists());
    }

    fn daemon(path: &Path) -> SyslogDaemon {
        SyslogDaemon::new(SyslogAddress::parse(path.to_str().unwrap()).unwrap())
    }

    #[test]
    fn a_syslog_daemon_that_starts_late_or_restarts_receives_later_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut daemon = daemon(&path);
        assert!(daemon.send_all(b"lost\n").is_err());
        for _ in 0..2 {
            let socket = UnixDatagram::bind(&path).unwrap();
            daemon.send_all(b"one\ntwo\n").unwrap();
            let mut bytes = [0; 16];
            for line in [b"one", b"two"] {
                let length = socket.recv(&mut bytes).unwrap();
                assert_eq!(&bytes[..length], line);
            }
            fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn a_blocked_syslog_daemon_loses_lines_without_blocking_the_writer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let _socket = UnixDatagram::bind(&path).unwrap();
        let lines = b"line\n".repeat(100_000);
        let error = daemon(&path).send_all(&lines).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn standard_streams_are_recognised_by_their_paths() {
        let open = |path: &str| Output::open(Some(Path::new(path)), &Files::default()).unwrap();
        assert!(matches!(open("/dev/stderr"), Output::Stderr));
        assert!(matches!(open("/proc/self/fd/1"), Output::Stdout));
        assert!(!Output::is_stream(Path::new("/dev/null")));
    }
}
