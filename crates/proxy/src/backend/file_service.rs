//! A docroot in one worker: its cache of open files, and its requests to reader threads.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::awaited::{Answering, Awaited};
use super::backend_state::Waiter;
use super::inbox::Inbox;
use becket_http::docroot::cache::Cache;
use becket_http::docroot::readers::Readers;
use becket_http::docroot::{AtPath, Docroot, FileKey, OpenFile};

#[derive(Debug)]
pub struct FileService {
    docroot: Arc<Docroot>,
    cache: RefCell<Cache>,
    readers: Arc<Readers>,
    inbox: Arc<dyn Inbox>,
}

impl FileService {
    pub(super) fn new(
        docroot: &Arc<Docroot>,
        readers: &Arc<Readers>,
        inbox: &Arc<dyn Inbox>,
    ) -> Self {
        Self {
            docroot: Arc::clone(docroot),
            cache: RefCell::default(),
            readers: Arc::clone(readers),
            inbox: Arc::clone(inbox),
        }
    }

    pub fn docroot(&self) -> &Docroot {
        &self.docroot
    }

    /// Looks up a file without disk access. Returns `None` if the lookup needs the disk.
    pub fn find(&self, wanted: &FileKey, now: Duration) -> Option<AtPath> {
        if let Some(file) = self.cache.borrow_mut().get(wanted, now) {
            return Some(AtPath::File(file));
        }
        let found = self.docroot.find(wanted, false)?;
        Some(self.keep(wanted, found, now))
    }

    /// Adds the file to the cache if the lookup found one. Returns the result of the lookup.
    pub fn keep(&self, wanted: &FileKey, found: AtPath, now: Duration) -> AtPath {
        match found {
            AtPath::File(file) => {
                let bound = (now, self.docroot.keys.open_files);
                AtPath::File(self.cache.borrow_mut().keep(wanted, file, bound))
            }
            other => other,
        }
    }

    /// Queues the lookup of a file on a reader thread, for the connection at index `place`.
    pub fn find_later(&self, wanted: &FileKey, place: usize) -> Awaited<AtPath> {
        let (docroot, wanted) = (Arc::clone(&self.docroot), wanted.clone());
        self.ask(place, move || docroot.find(&wanted, true))
    }

    /// Queues a read of `len` bytes at offset `at` of a file on a reader thread.
    pub fn read_later(
        &self,
        file: &Arc<OpenFile>,
        (at, len): (u64, usize),
        place: usize,
    ) -> Awaited<io::Result<Vec<u8>>> {
        let file = Arc::clone(file);
        self.ask(place, move || Some(file.read(at, len)))
    }

    fn ask<T: Send + 'static>(
        &self,
        place: usize,
        job: impl FnOnce() -> Option<T> + Send + 'static,
    ) -> Awaited<T> {
        let inbox = Arc::clone(&self.inbox);
        let (told, awaited) = Answering::new(Waiter { inbox, place });
        self.readers.run(Box::new(move || {
            if told.is_wanted()
                && let Some(answer) = job()
            {
                told.set(answer);
            }
        }));
        awaited
    }
}
