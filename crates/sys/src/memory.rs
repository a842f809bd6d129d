//! What this process holds: memory and descriptors, as the kernel counts them; and giving memory back.
//!
//! For metrics and for tests that compare with a baseline. Reading `smaps_rollup` walks the page tables, so
//! its cost grows with the memory in use: read it when asked, not in a loop turn. Source: proc(5).

use std::fs;
use std::io;

/// Memory of this process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Resident set: all pages in RAM, shared ones counted whole.
    pub rss: u64,
    /// Proportional set: each shared page divided by the number of processes that share it. This is the one to add up.
    pub pss: u64,
    /// The greatest resident set so far.
    pub peak_rss: u64,
}

impl Memory {
    /// Reads the memory of this process from `/proc/self/smaps_rollup` and `/proc/self/status`.
    ///
    /// # Errors
    /// What reading the files returns; `InvalidData` if a figure is not there.
    pub fn of_this_process() -> io::Result<Self> {
        let rollup = fs::read_to_string("/proc/self/smaps_rollup")?;
        let status = fs::read_to_string("/proc/self/status")?;
        let figure =
            |text, key| kibibytes(text, key).ok_or(io::Error::from(io::ErrorKind::InvalidData));
        Ok(Self {
            rss: figure(&rollup, "Rss:")?,
            pss: figure(&rollup, "Pss:")?,
            peak_rss: figure(&status, "VmHWM:")?,
        })
    }
}

/// Has the C library give back to the system what was freed; on another one than glibc nothing happens. Locks one arena after the
/// other for as long as the kernel takes for its pages: for a thread of its own, and rarely.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number, and may be called at any time by any thread (malloc_trim(3)).
    unsafe {
        libc::malloc_trim(0);
    }
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

/// Finds the line that begins with `key`, and returns its figure in bytes.
fn kibibytes(text: &str, key: &str) -> Option<u64> {
    let figure = text.lines().find_map(|line| line.strip_prefix(key))?;
    let number: u64 = figure.trim().strip_suffix(" kB")?.parse().ok()?;
    number.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLLUP: &str = "5581 7ffd ---p 00000000 00:00 0    [rollup]\nRss:      2048 kB\nPss:       100 kB\nPss_Dirty: 7 kB\n";

    #[test]
    fn figures_are_found_by_their_whole_key() {
        assert_eq!(kibibytes(ROLLUP, "Rss:"), Some(2048 * 1024));
        assert_eq!(kibibytes(ROLLUP, "Pss:"), Some(100 * 1024));
        assert_eq!(kibibytes(ROLLUP, "Swap:"), None);
        assert_eq!(kibibytes("Rss: many kB", "Rss:"), None);
        assert_eq!(kibibytes("Rss: 18446744073709551615 kB", "Rss:"), None);
    }

    #[test]
    fn the_parts_of_this_process_are_in_order_of_size() {
        let memory = Memory::of_this_process().unwrap();
        assert!(memory.pss > 0);
        assert!(memory.pss <= memory.rss);
        assert!(memory.peak_rss > 0);
    }

    // Other tests open descriptors meanwhile: the exact count is proved where a process runs alone.
    #[test]
    fn this_process_has_descriptors_open() {
        assert!(open_descriptors().unwrap() >= 3);
    }
}
