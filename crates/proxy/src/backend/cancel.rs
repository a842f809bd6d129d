//! Queue of cancel requests from PostgreSQL clients. The control thread sends each request to every
//! server of the client's listener (`becket_control`, `health/cancel.rs`).
//!
//! Source: PostgreSQL, "Frontend/Backend Protocol", section "Canceling Requests in Progress".

use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use becket_proto::admission::Source;
use becket_proto::close_reason::CloseReason;
use becket_proto::fair_queue::FairQueue;

use super::awaited::Answering;
use super::backend_state::BackendState;
use becket_tls::config::Backend;

/// Queue of cancel requests from workers to the control thread, with counts of their results.
///
/// The queue is bounded: [`Cancels::enqueue`] rejects a request if the queue is full. The queue is
/// fair, so one source cannot block the requests of other sources.
#[derive(Debug)]
pub struct Cancels {
    queue: Mutex<CancelQueue>,
    passed: AtomicU64,
    failed: AtomicU64,
}

#[derive(Debug)]
struct CancelQueue {
    waiting: FairQueue<Source, Cancel>,
    /// Wakes the control thread when the queue becomes non-empty.
    control: Option<Waker>,
}

pub type CancelTargets = Arc<[(Arc<Backend>, Arc<BackendState>)]>;

/// A cancel request for the servers of all backends of a listener.
pub struct Cancel {
    pub request: Arc<[u8]>,
    pub backends: CancelTargets,
    /// Dropping it reports to the client's connection that the request was sent or has failed.
    pub completion: Answering<CloseReason>,
}

impl Default for Cancels {
    fn default() -> Self {
        let queue = CancelQueue {
            waiting: FairQueue::new(MAX_WAITING),
            control: None,
        };
        Self {
            queue: Mutex::new(queue),
            passed: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }
}

impl Cancels {
    /// Enqueues a cancel request. If the queue is full, rejects this request, or a request of a
    /// source that has more requests in the queue.
    pub fn enqueue(&self, source: Source, cancel: Cancel) {
        let mut queue = self.lock();
        let refused = queue.waiting.push(source, cancel);
        let control = queue.control.take();
        drop(queue);
        if let Some(cancel) = refused {
            cancel.completion.set(CloseReason::CancelLimit);
        }
        if let Some(control) = control {
            control.wake();
        }
    }

    /// Waits for the next request. Only one task may wait at a time.
    pub async fn next(&self) -> Cancel {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&self, cx: &Context<'_>) -> Poll<Cancel> {
        let mut queue = self.lock();
        if let Some(cancel) = queue.waiting.pop() {
            return Poll::Ready(cancel);
        }
        queue.control = Some(cx.waker().clone());
        Poll::Pending
    }

    fn lock(&self) -> MutexGuard<'_, CancelQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the result for one server: `true` if the request was sent, `false` if sending failed.
    pub fn count(&self, passed: bool) {
        let counter = if passed { &self.passed } else { &self.failed };
        counter.fetch_add(1, Relaxed);
    }

    /// Returns the total numbers of sent and failed requests, over all servers.
    pub fn counts(&self) -> (u64, u64) {
        (self.passed.load(Relaxed), self.failed.load(Relaxed))
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Prints no bytes of the request, because they contain a secret.
        out.debug_struct("Cancel").finish_non_exhaustive()
    }
}

/// Maximum number of queued requests: enough for a connection pool that cancels all its queries at
/// the same time.
const MAX_WAITING: usize = 64;
