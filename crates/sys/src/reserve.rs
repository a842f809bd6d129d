//! A reserved descriptor, for use when the descriptor limit is reached.
//!
//! If accept() fails with EMFILE, the connection stays in the queue and the listener stays readable, so an event loop
//! would spin. The owner can then release the reserve, accept the connection, close it and restore the reserve. The
//! owner can also use the reserve to write a log line before it pauses accepting.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};

/// A spare descriptor of an eventfd(2), which needs no file.
#[derive(Debug)]
pub struct ReserveFd {
    spare: Option<OwnedFd>,
}

impl ReserveFd {
    /// Opens the spare descriptor.
    ///
    /// # Errors
    /// Returns the errors of eventfd(2).
    pub fn new() -> io::Result<Self> {
        let mut reserve = Self { spare: None };
        reserve.restore()?;
        Ok(reserve)
    }

    /// Closes the spare, so that one descriptor can be opened. Returns `false` if it was released before.
    pub fn release(&mut self) -> bool {
        self.spare.take().is_some()
    }

    /// Opens the spare again, if it was released.
    ///
    /// # Errors
    /// EMFILE or ENFILE if still no descriptor is free: retry later.
    pub fn restore(&mut self) -> io::Result<()> {
        if self.spare.is_none() {
            self.spare = Some(eventfd(0, EventfdFlags::CLOEXEC)?);
        }
        Ok(())
    }

    #[must_use]
    pub fn is_held(&self) -> bool {
        self.spare.is_some()
    }
}
