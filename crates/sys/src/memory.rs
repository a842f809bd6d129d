//! Reads the resident memory and the number of descriptors of this process.
//!
//! Source: proc(5).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

/// Resident memory of this process, including mapped files. It does not include the page cache or
/// the kernel's memory for sockets.
#[derive(Debug)]
pub struct ResidentMemory(File);

impl ResidentMemory {
    /// Opens the file in `/proc`, which stays open so that it can be read in a sandbox.
    ///
    /// # Errors
    /// Fails if `/proc` is inaccessible.
    pub fn open() -> io::Result<Self> {
        File::open("/proc/self/statm").map(Self)
    }

    /// Returns the resident memory in bytes.
    ///
    /// # Errors
    /// Returns the errors of reading the file.
    pub fn read(&self) -> io::Result<u64> {
        let pages = read_again(&self.0)?;
        let pages = pages.split(' ').nth(1).and_then(|pages| pages.parse().ok());
        let pages: u64 = pages.ok_or(io::ErrorKind::InvalidData)?;
        Ok(pages * page_size())
    }
}

/// Returns the page size from the C library, which caches it at start-up. rustix would make a
/// system call that a sandbox refuses.
fn page_size() -> u64 {
    // SAFETY: takes a number, and no memory.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.cast_unsigned()
}

pub(crate) fn read_again(file: &File) -> io::Result<String> {
    let mut text = vec![0; 8192];
    let read = file.read_at(&mut text, 0)?;
    text.truncate(read);
    String::from_utf8(text).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Returns the number of descriptors that this process has open.
///
/// # Errors
/// Returns the errors of listing `/proc/self/fd`, including EMFILE, because the listing needs a
/// descriptor.
pub fn open_descriptors() -> io::Result<usize> {
    let listed = fs::read_dir("/proc/self/fd")?.count();
    // The listing's own descriptor is included.
    Ok(listed.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touched_pages_are_resident() {
        let memory = ResidentMemory::open().unwrap();
        let touched = vec![1_u8; 64 << 20];
        assert!(memory.read().unwrap() > 64 << 20);
        drop(touched);
    }
}
