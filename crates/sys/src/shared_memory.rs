//! Memory that several processes of ours see: numbers of 64 bits, read and written as atomics.
//!
//! Whoever makes it passes its descriptor on. Its size is sealed, so that no process can take it away from under another, and it is 0
//! everywhere at first. What is in it is as good as the processes that have it.
//!
//! Source: memfd_create(2), F_ADD_SEALS in fcntl(2), mmap(2).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Such memory, as long as this value lives.
#[derive(Debug)]
pub struct SharedMemory {
    words: NonNull<AtomicU64>,
    count: usize,
    file: OwnedFd,
}

// SAFETY: atomics may be used by any thread, and the mapping stays where it is until the value is dropped.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Makes memory of so many words.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn create(words: usize) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("becket-shared", flags)?;
        ftruncate(&file, (words * WORD) as u64)?;
        fcntl_add_seals(&file, SIZE | SealFlags::SEAL)?;
        Self::open(file)
    }

    /// Memory that another process has made.
    ///
    /// # Errors
    /// `InvalidData` for what is none, or could shrink; otherwise what the system refuses.
    pub fn open(file: OwnedFd) -> io::Result<Self> {
        let seals = fcntl_get_seals(&file).unwrap_or(SealFlags::empty());
        let size = usize::try_from(fstat(&file)?.st_size).unwrap_or(0);
        if !seals.contains(SIZE) || size == 0 || !size.is_multiple_of(WORD) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
        let at = unsafe {
            mmap(
                std::ptr::null_mut(),
                size,
                access,
                MapFlags::SHARED,
                &file,
                0,
            )
        }?;
        let words = NonNull::new(at.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self {
            words,
            count: size / WORD,
            file,
        })
    }

    /// All of it.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: a page is aligned for them, the file has so many and cannot shrink, and every pattern of bits is a number.
        // Other processes change them by atomic operations, as this one does.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.count) }
    }
}

impl AsFd for SharedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: nobody has a reference any more, since those that were lent end before this.
        let _unmapped = unsafe { munmap(self.words.as_ptr().cast(), self.count * WORD) };
    }
}

const WORD: usize = size_of::<u64>();
/// Neither end of it moves.
const SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;

    #[test]
    fn what_one_writes_the_other_reads_and_its_size_stays() {
        let here = SharedMemory::create(1000).unwrap();
        let there = SharedMemory::open(here.as_fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!((here.words().len(), there.words().len()), (1000, 1000));
        assert!(there.words().iter().all(|word| word.load(SeqCst) == 0));
        here.words()[999].store(7, SeqCst);
        assert_eq!(there.words()[999].fetch_add(1, SeqCst), 7);
        drop(there);
        assert_eq!(here.words()[999].load(SeqCst), 8);
        assert!(ftruncate(&here, 0).is_err());
    }

    #[test]
    fn what_could_shrink_is_not_taken() {
        let file = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, 4096).unwrap();
        let refused = SharedMemory::open(file).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        let file = tempfile::tempfile().unwrap();
        assert!(SharedMemory::open(file.into()).is_err());
    }
}
