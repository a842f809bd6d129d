//! Signatures that wait for a crypto thread: one queue for all workers.
//!
//! First come, first served. Its length is bounded by those who fill it: each worker has a bounded number of signatures
//! under way ([`super::worker::WorkerSigning`]). The lock is held to push or to pop; a thread is woken only if one sleeps.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use becket_sys::clock::Stopwatch;
use rustls::Error;

use super::Request;

/// A signature that a worker waits for.
#[derive(Debug)]
pub struct Job {
    /// What is to be signed.
    pub request: Request,
    /// Who waits for it in its worker.
    pub(crate) asker: Asker,
    /// Nobody waits for it any more.
    pub(crate) abandoned: Arc<AtomicBool>,
    /// Since it was asked for.
    pub(crate) asked: Stopwatch,
    /// Where the answer goes.
    pub(crate) answers: Arc<dyn Answers>,
}

impl Job {
    /// Answers with what `sign` makes of the request, or with nothing where nobody waits.
    pub fn answer(self, sign: impl FnOnce(&Request) -> Result<Vec<u8>, Error>) {
        let waited = self.asked.elapsed();
        let wanted = !self.abandoned.load(Relaxed);
        let signature = wanted.then(|| sign(&self.request));
        self.answers.answer(Signed {
            asker: self.asker,
            signature,
            waited,
            took: self.asked.elapsed().saturating_sub(waited),
        });
    }
}

/// A connection, and which of its worker's signatures is its.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// Where the connection lives in its worker; by now it may be another one.
    pub place: usize,
    /// No two signatures of a worker have the same.
    pub(crate) number: u64,
}

/// What became of a request.
#[derive(Debug)]
pub struct Signed {
    /// Who asked.
    pub asker: Asker,
    /// Nothing when the asker had left.
    pub(crate) signature: Option<Result<Vec<u8>, Error>>,
    /// From the request to a thread that took it.
    pub(crate) waited: Duration,
    /// How long it signed.
    pub(crate) took: Duration,
}

/// Takes answers for one worker, from any thread.
pub trait Answers: fmt::Debug + Send + Sync {
    /// Leaves an answer and sees to it that the worker looks soon.
    fn answer(&self, signed: Signed);
}

/// What waits for crypto threads.
#[derive(Debug, Default)]
pub struct SigningQueue {
    threads: usize,
    state: Mutex<State>,
    filled: Condvar,
}

#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<Job>,
    asleep: usize,
    closed: bool,
}

impl SigningQueue {
    /// An empty queue for so many threads, which may be none: then workers sign.
    pub fn of(threads: usize) -> Self {
        Self {
            threads,
            ..Self::default()
        }
    }

    /// How many threads serve it.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Leaves a job for the next thread that is free.
    pub(crate) fn push(&self, job: Job) {
        let mut state = self.lock();
        state.jobs.push_back(job);
        let wakes = state.asleep > 0;
        drop(state);
        if wakes {
            self.filled.notify_one();
        }
    }

    /// Takes the oldest job; nothing when there is none.
    pub fn try_pop(&self) -> Option<Job> {
        self.lock().jobs.pop_front()
    }

    /// Takes the oldest job, or waits for one; nothing when the queue is closed.
    pub(crate) fn pop(&self) -> Option<Job> {
        let mut state = self.lock();
        while !state.closed {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            state.asleep += 1;
            state = self
                .filled
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            state.asleep -= 1;
        }
        None
    }

    /// Sends the threads home: what waits is signed by nobody.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A poisoned queue is still a queue.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
