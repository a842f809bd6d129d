//! An answer that another thread gives to a connection.

use std::sync::{Arc, Mutex, PoisonError};

use super::backend_state::Waiter;
use super::inbox::BackendEvent;

/// The pending answer to a request of a connection. Dropping it abandons the request.
#[derive(Debug)]
pub struct Awaited<T>(Arc<Mutex<AwaitedAnswer<T>>>);

#[derive(Debug)]
pub enum AwaitedAnswer<T> {
    Waiting,
    Done(T),
    /// The request failed or was dropped without an answer.
    Lost,
}

/// The other thread's side of an [`Awaited`]. On drop, the worker advances the waiting connection, even without an
/// answer.
#[derive(Debug)]
pub struct Answering<T> {
    answer: Arc<Mutex<AwaitedAnswer<T>>>,
    waiter: Waiter,
}

impl<T> Awaited<T> {
    pub fn take(&self) -> AwaitedAnswer<T> {
        let mut answer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut answer, AwaitedAnswer::Waiting)
    }
}

impl<T> Answering<T> {
    pub fn new(waiter: Waiter) -> (Self, Awaited<T>) {
        let answer = Arc::new(Mutex::new(AwaitedAnswer::Waiting));
        let awaited = Awaited(Arc::clone(&answer));
        (Self { answer, waiter }, awaited)
    }

    pub fn is_wanted(&self) -> bool {
        Arc::strong_count(&self.answer) > 1
    }

    pub fn set(&self, value: T) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = AwaitedAnswer::Done(value);
    }
}

impl<T> Drop for Answering<T> {
    fn drop(&mut self) {
        let mut answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*answer, AwaitedAnswer::Waiting) {
            *answer = AwaitedAnswer::Lost;
        }
        drop(answer);
        let look = BackendEvent::Look(self.waiter.place);
        self.waiter.inbox.deliver(look);
    }
}
