//! Into the background, once it serves: as daemons of old go there, for start scripts that wait for it.
//!
//! The process in front starts this program once more and waits until that one is ready, which it tells as it would tell a
//! service manager. What it says until then, such as a fault, is passed on; after that nobody reads its standard error.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use becket_sys::process::begin_session;

/// Which of the two this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DaemonSide {
    /// The one that was started, and ends.
    Front,
    /// The one that stays.
    Back,
}

/// Which of the two this process is; the one that stays leaves its terminal.
///
/// # Errors
/// What setsid(2) says.
pub(super) fn begin() -> io::Result<DaemonSide> {
    if std::env::var_os(IS_BACK).is_none() {
        return Ok(DaemonSide::Front);
    }
    begin_session()?;
    Ok(DaemonSide::Back)
}

/// Starts the one that stays, and waits until it serves or has ended.
///
/// # Errors
/// What the system refuses.
pub(super) fn detach() -> io::Result<ExitCode> {
    // Without a name, so that nobody else can say that it serves.
    let (socket, there) = UnixDatagram::pair()?;
    socket.set_read_timeout(Some(STEP))?;
    let mut own = std::env::args_os();
    let mut child = Command::new("/proc/self/exe")
        .arg0(own.next().unwrap_or_default())
        .args(own)
        .env(IS_BACK, "1")
        .env("NOTIFY_SOCKET", "fd:0")
        .stdin(Stdio::from(OwnedFd::from(there)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let said = child.stderr.take();
    let passing = thread::spawn(move || said.map(pass));
    let mut datagram = [0; 4096];
    loop {
        if let Ok(length) = socket.recv(&mut datagram)
            && datagram[..length]
                .split(|byte| *byte == b'\n')
                .any(|line| line == b"READY=1")
        {
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(status) = child.try_wait()? {
            passing.join().ok();
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            return Ok(code.map_or(ExitCode::FAILURE, ExitCode::from));
        }
    }
}

fn pass(mut said: impl Read) {
    let mut bytes = [0; 4096];
    while let Ok(length @ 1..) = said.read(&mut bytes) {
        // Whoever started us may not read what is said.
        io::stderr().write_all(&bytes[..length]).ok();
    }
}

/// Tells a process that it is the one that stays.
const IS_BACK: &str = "BECKET_BACKGROUND";
/// How often it is looked whether the other one has ended.
const STEP: Duration = Duration::from_millis(50);
