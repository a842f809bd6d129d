//! Requests of workers for sessions that only a store may have.
//!
//! A worker never waits for the answer: it continues with other connections. The number of unanswered requests is
//! bounded for the whole process. At the bound, and while the store is not available, a worker makes no request.

use std::fmt;
use std::sync::Arc;

use becket_proto::session::SessionName;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// A worker's end of the requests. Clones share the bound.
#[derive(Clone, Debug)]
pub struct StoreLookups {
    /// Never holds more requests than the semaphore permits.
    requests: UnboundedSender<LookupRequest>,
    free: Arc<Semaphore>,
    shared: Arc<LookupsShared>,
}

#[derive(Debug, Default)]
struct LookupsShared {
    is_available: AtomicBool,
    skipped: AtomicU64,
}

/// A request for a session. Dropping it tells the worker that the session table now has the session, if the store has
/// it.
pub struct LookupRequest {
    pub name: SessionName,
    _answer: Box<dyn Send>,
    _permit: OwnedSemaphorePermit,
}

impl StoreLookups {
    /// Creates requests of which at most `most` are unanswered. They are skipped until the store is available.
    pub fn new(most: usize) -> (Self, UnboundedReceiver<LookupRequest>) {
        let (requests, receiver) = unbounded_channel();
        let lookups = Self {
            requests,
            free: Arc::new(Semaphore::new(most)),
            shared: Arc::default(),
        };
        (lookups, receiver)
    }

    /// Requests a session. Drops what `answer` returns when the table has the session, or when the store does not have
    /// it or fails. Returns `false` without a request if the store is not available or too many requests are unanswered.
    pub fn ask<A: Send + 'static>(&self, name: SessionName, answer: impl FnOnce() -> A) -> bool {
        let permit = || Arc::clone(&self.free).try_acquire_owned().ok();
        let is_available = self.shared.is_available.load(Relaxed);
        let Some(permit) = is_available.then(permit).flatten() else {
            self.shared.skipped.fetch_add(1, Relaxed);
            return false;
        };
        let request = LookupRequest {
            name,
            _answer: Box::new(answer()),
            _permit: permit,
        };
        self.requests.send(request).is_ok()
    }

    pub fn set_available(&self, is_available: bool) {
        self.shared.is_available.store(is_available, Relaxed);
    }

    /// Number of requests that were not made.
    pub fn skipped(&self) -> u64 {
        self.shared.skipped.load(Relaxed)
    }
}

impl fmt::Debug for LookupRequest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("LookupRequest")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use becket_proto::session::PolicyTag;

    use super::*;

    #[test]
    fn requests_are_bounded_and_need_an_available_store() {
        let (lookups, mut requests) = StoreLookups::new(2);
        let name = SessionName::new(PolicyTag(1), b"id").unwrap();
        let answered = Arc::new(());
        let ask = || lookups.ask(name, || Arc::clone(&answered));
        assert!(!ask(), "not available");
        lookups.set_available(true);
        assert!(ask() && ask() && !ask());
        assert_eq!(Arc::strong_count(&answered), 3);
        drop(requests.try_recv().unwrap());
        assert_eq!(Arc::strong_count(&answered), 2);
        assert!(ask());
        assert_eq!(lookups.skipped(), 2);
        drop(requests);
        assert_eq!(Arc::strong_count(&answered), 1, "all are answered");
        assert!(!ask());
    }
}
