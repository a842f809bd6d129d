//! What this process holds: descriptors and memory, as the kernel counts them; and giving memory back.
//!
//! Source: proc(5), malloc_trim(3).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

/// Has the C library give back to the system what was freed; on another one than glibc nothing happens. Locks one arena after the
/// other for as long as the kernel takes for its pages: for a thread of its own, and rarely.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number, and may be called at any time by any thread (malloc_trim(3)).
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The memory of this process that is resident: its own and what it has mapped, no files that it merely reads or sends, and nothing
/// that the kernel holds for its sockets.
#[derive(Debug)]
pub struct ResidentMemory(File);

impl ResidentMemory {
    /// Opens what says so, which stays open: it can be read in a sandbox.
    ///
    /// # Errors
    /// Where `/proc` is out of reach.
    pub fn open() -> io::Result<Self> {
        File::open("/proc/self/statm").map(Self)
    }

    /// Reads how many bytes it is.
    ///
    /// # Errors
    /// What reading it returns.
    pub fn read(&self) -> io::Result<u64> {
        let pages = read_again(&self.0)?;
        let pages = pages.split(' ').nth(1).and_then(|pages| pages.parse().ok());
        let pages: u64 = pages.ok_or(io::ErrorKind::InvalidData)?;
        Ok(pages * page_size())
    }
}

/// By the C library, which knows it from its start: rustix would ask the kernel, by a call that a sandbox refuses.
fn page_size() -> u64 {
    // SAFETY: takes a number, and no memory.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.cast_unsigned()
}

/// Reads a small file of the kernel from its beginning.
pub(crate) fn read_again(file: &File) -> io::Result<String> {
    let mut text = vec![0; 8192];
    let read = file.read_at(&mut text, 0)?;
    text.truncate(read);
    String::from_utf8(text).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Counts the descriptors that this process has open.
///
/// # Errors
/// What listing `/proc/self/fd` returns; EMFILE among them, as the listing takes one itself.
pub fn open_descriptors() -> io::Result<usize> {
    let listed = fs::read_dir("/proc/self/fd")?.count();
    // The listing's own descriptor is among them.
    Ok(listed.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_touched_is_resident() {
        let memory = ResidentMemory::open().unwrap();
        let touched = vec![1_u8; 64 << 20];
        assert!(memory.read().unwrap() > 64 << 20);
        drop(touched);
    }
}
