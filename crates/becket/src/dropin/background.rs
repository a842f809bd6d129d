//! Moves the program to the background after the service is ready, so that start scripts can wait
//! for it.
//!
//! The foreground process starts this program a second time, as the background process. It waits
//! until the background process reports readiness through `NOTIFY_SOCKET`, as it would to systemd.
//! Until then, the foreground process forwards the standard error of the background process; later
//! output is discarded.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use becket_sys::process::begin_session;

/// Returns `true` in the background process, after it has started a new session, which detaches it
/// from the terminal.
///
/// # Errors
/// setsid(2) failed.
pub(super) fn is_background() -> io::Result<bool> {
    let is_background = std::env::var_os(IS_BACK).is_some();
    if is_background {
        begin_session()?;
    }
    Ok(is_background)
}

/// Starts the background process, and waits until it is ready or has exited.
///
/// # Errors
/// A system call failed.
pub(super) fn detach() -> io::Result<ExitCode> {
    // The socket has no name, so no other process can send a readiness message.
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
        // Ignore errors, because the user may have closed standard error.
        io::stderr().write_all(&bytes[..length]).ok();
    }
}

/// Environment variable that marks the background process.
const IS_BACK: &str = "BECKET_BACKGROUND";
/// Interval at which the foreground process checks whether the background process has exited.
const STEP: Duration = Duration::from_millis(50);
