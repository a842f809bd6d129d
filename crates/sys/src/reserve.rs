//! A descriptor kept in reserve for the moment when there are none left.
//!
//! When accept() fails with EMFILE, the connection stays in the queue and the listener stays readable: an event loop would
//! spin. With one descriptor in reserve, the owner releases it, accepts, closes what it accepted and restores the reserve; or
//! pauses accepting and uses it to say so in a log file.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};

/// A spare descriptor, of an eventfd(2): it needs no file.
#[derive(Debug)]
pub struct ReserveFd {
    spare: Option<OwnedFd>,
}

impl ReserveFd {
    /// Opens the spare descriptor.
    ///
    /// # Errors
    /// What eventfd(2) returns.
    pub fn new() -> io::Result<Self> {
        let mut reserve = Self { spare: None };
        reserve.restore()?;
        Ok(reserve)
    }

    /// Closes the spare, so that one descriptor can be opened. Returns false if it was released before.
    pub fn release(&mut self) -> bool {
        self.spare.take().is_some()
    }

    /// Opens the spare again, if it was released.
    ///
    /// # Errors
    /// EMFILE or ENFILE while there is still no descriptor free: try later.
    pub fn restore(&mut self) -> io::Result<()> {
        if self.spare.is_none() {
            self.spare = Some(eventfd(0, EventfdFlags::CLOEXEC)?);
        }
        Ok(())
    }

    /// Tells whether the spare is there.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.spare.is_some()
    }
}
