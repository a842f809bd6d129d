//! The memory in which processes that serve under one parent tell each other what they use of common limits.
//!
//! It has a row for each process. The parent makes it, gives each child a row, and clears the row when the child has ended: then what it
//! used is free, whatever ended it. What is in a row is its process' business (`server/leases.rs`); all can write everywhere.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use becket_sys::shared_memory::SharedMemory;

/// All rows.
#[derive(Debug)]
pub(crate) struct Rows(SharedMemory);

impl Rows {
    /// Makes them, all clear.
    pub(crate) fn create() -> io::Result<Self> {
        SharedMemory::create(ROWS * ROW).map(Self)
    }

    /// Those that another process has made.
    pub(crate) fn open(file: OwnedFd) -> io::Result<Self> {
        let memory = SharedMemory::open(file)?;
        match memory.words().len() == ROWS * ROW {
            true => Ok(Self(memory)),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Every row, in order.
    pub(crate) fn all(&self) -> impl Iterator<Item = &[AtomicU64]> {
        self.0.words().chunks_exact(ROW)
    }

    /// Clears a row, whose process has ended.
    pub(crate) fn clear(&self, index: usize) {
        let words = self.all().nth(index).into_iter().flatten();
        words.for_each(|word| word.store(0, SeqCst));
    }
}

impl AsFd for Rows {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Processes at a time: one that serves, one that is to replace it, and those that drain.
pub(crate) const ROWS: usize = 16;
/// Words of a row: 64 KiB, of which only what is used takes memory.
const ROW: usize = 8 * 1024;
