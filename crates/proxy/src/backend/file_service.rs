//! A docroot in one worker: its cache of open files, and its requests to reader threads.

use std::cell::RefCell;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::inbox::{BackendEvent, Inbox};
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

/// The pending answer of a reader thread. Dropping it abandons the request.
#[derive(Debug)]
pub struct Awaited<T>(Arc<Mutex<ReaderAnswer<T>>>);

#[derive(Debug)]
pub enum ReaderAnswer<T> {
    Waiting,
    Done(T),
    /// The job failed or was dropped without an answer.
    Lost,
}

impl<T> Awaited<T> {
    pub fn take(&self) -> ReaderAnswer<T> {
        let mut answer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut answer, ReaderAnswer::Waiting)
    }
}

/// The reader thread's side of an [`Awaited`]. On drop, the worker advances the connection at index
/// `place`, even without an answer.
struct Answering<T> {
    answer: Arc<Mutex<ReaderAnswer<T>>>,
    inbox: Arc<dyn Inbox>,
    place: usize,
}

impl<T> Answering<T> {
    fn is_wanted(&self) -> bool {
        Arc::strong_count(&self.answer) > 1
    }

    fn set(&self, value: ReaderAnswer<T>) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = value;
    }
}

impl<T> Drop for Answering<T> {
    fn drop(&mut self) {
        let mut answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*answer, ReaderAnswer::Waiting) {
            *answer = ReaderAnswer::Lost;
        }
        drop(answer);
        self.inbox.deliver(BackendEvent::Look(self.place));
    }
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

    /// Stores a found file in the cache. Returns the result of the lookup.
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
        let answer = Arc::new(Mutex::new(ReaderAnswer::Waiting));
        let told = Answering {
            answer: Arc::clone(&answer),
            inbox: Arc::clone(&self.inbox),
            place,
        };
        self.readers.run(Box::new(move || {
            if told.is_wanted() {
                told.set(job().map_or(ReaderAnswer::Lost, ReaderAnswer::Done));
            }
        }));
        Awaited(answer)
    }
}
