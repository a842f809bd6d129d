//! Files of root's that change are handed over once more.
//!
//! The parent watches what it opened for the child: files whose path only root can change. What the child opens by its own rights it
//! watches itself, and says so when that changes. Either way, and after each start and each reload, all files of the
//! configuration that runs are opened again and handed over; the child looks what is new in them, and says when it has. The
//! configuration itself is not read again.
//!
//! A child that says it all the time has the files opened once a second.

use std::io;
use std::path::{Path, PathBuf};

use becket_config::process::Process;
use becket_sys::root_only;

use super::holding::{Parcel, Seen};
use super::needs::Needs;
use super::{Current, Parent};
use crate::handover::Order;
use crate::watch::Places;

/// Files that may be handed over once more.
#[derive(Debug, Default)]
pub(super) struct Renewable {
    /// Those that root may open; none where another can change the configuration.
    files: Vec<PathBuf>,
    keys: Process,
}

impl Renewable {
    /// Those of a configuration.
    pub(super) fn of(seen: &Seen, needs: &Needs) -> Self {
        let files = needs.watched.iter().filter(|_| seen.is_roots);
        Self {
            files: files.cloned().collect(),
            keys: seen.file.process.clone(),
        }
    }
}

impl Parent {
    /// Files may have changed.
    pub(super) fn expect_changes(&mut self) {
        if self.renewable.keys.watch {
            self.watch.note();
        } else {
            self.watch.stop();
        }
    }

    /// Has the child look at the files as they are now.
    pub(super) fn look_at_files(&mut self, child: &Current) -> io::Result<()> {
        if self.ends_by.is_some() {
            return Ok(());
        }
        if self.is_looking || self.is_busy(child) {
            self.looks_next = true;
            return Ok(());
        }
        let files = self.renewable.files.iter();
        let watched: Vec<PathBuf> = files.filter(|path| is_roots(path)).cloned().collect();
        if !watched.is_empty() {
            self.watch.over(Places::of(&watched), &self.renewable.keys);
        }
        let mut parcel = Parcel::default();
        parcel.open_all(&self.renewable.files);
        parcel.list.is_all = self.chroot.is_some();
        self.is_looking = true;
        child.serving.send(&Order::Renew(parcel.list), &parcel.fds)
    }
}

/// Whether nobody but root can change where a path leads to, as far as it is there.
fn is_roots(path: &Path) -> bool {
    let mut found = path.ancestors().map(root_only::is_roots);
    found.find_map(Result::ok).unwrap_or(false)
}
