//! What this process holds: descriptors, as the kernel counts them; and giving memory back.
//!
//! Source: proc(5), malloc_trim(3).

use std::fs;
use std::io;

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

#[cfg(test)]
mod tests {
    use super::*;

    // Other tests open descriptors meanwhile: the exact count is proved where a process runs alone.
    #[test]
    fn this_process_has_descriptors_open() {
        assert!(open_descriptors().unwrap() >= 3);
    }
}
