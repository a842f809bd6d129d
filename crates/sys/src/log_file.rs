//! Opening a log for appending, by the rights of the process.
//!
//! Source: open(2), fifo(7).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{OFlags, fcntl_setfl};

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

/// For the run user, and for a group that may read.
const MODE: u32 = 0o640;
