//! Signature requests for the crypto threads: one queue for all workers.
//!
//! The oldest job is always next. It runs in a batch with jobs of the same key length if enough are
//! queued for a batch to pay off, and alone otherwise. No job waits for a batch to fill. Each
//! worker has a bounded number of signatures in progress ([`super::worker::WorkerSigning`]), which
//! bounds the queue. The lock is held only to push or pop. A push makes a system call only if a
//! thread sleeps.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use becket_multibuffer::{LANES, Multibuffer};
use becket_sys::clock::Stopwatch;
use rustls::Error;

use super::batches::Batches;
use super::request::SignatureRequest;

#[derive(Debug)]
pub struct SigningJob {
    pub request: SignatureRequest,
    pub asker: Asker,
    /// `true` if the handshake that requested the signature has ended.
    pub abandoned: Arc<AtomicBool>,
    pub asked: Stopwatch,
    pub answers: Arc<dyn Answers>,
}

/// Signs with `sign`, but skips requests whose handshakes have ended. Sends an answer for every
/// job.
pub fn answer(
    jobs: Vec<SigningJob>,
    sign: impl FnOnce(&[&SignatureRequest]) -> Vec<Result<Vec<u8>, Error>>,
) {
    let begin = |job: SigningJob| (job.asked.elapsed(), !job.abandoned.load(Relaxed), job);
    let jobs: Vec<_> = jobs.into_iter().map(begin).collect();
    let wanted = jobs.iter().filter(|(_, wanted, _)| *wanted);
    let wanted: Vec<_> = wanted.map(|(.., job)| &job.request).collect();
    let mut signatures = match wanted[..] {
        [] => Vec::new(),
        _ => sign(&wanted),
    }
    .into_iter();
    let mut by_worker: Vec<(Arc<dyn Answers>, Vec<Signed>)> = Vec::new();
    for (waited, wanted, job) in jobs {
        let none = || Err(Error::General("no signature was made".into()));
        let signed = Signed {
            asker: job.asker,
            by_token: job.request.token.is_some(),
            signature: wanted.then(|| signatures.next().unwrap_or_else(none)),
            waited,
            took: job.asked.elapsed().saturating_sub(waited),
        };
        let known = by_worker
            .iter_mut()
            .find(|(to, _)| Arc::ptr_eq(to, &job.answers));
        match known {
            Some((_, all)) => all.push(signed),
            None => by_worker.push((job.answers, vec![signed])),
        }
    }
    for (worker, all) in by_worker {
        worker.answer(all);
    }
}

/// Destination of an answer: the connection and its request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asker {
    /// Index of the connection in its worker. A later connection may have the same index.
    pub place: usize,
    /// Number of the request, unique within its worker.
    pub number: u64,
}

#[derive(Debug)]
pub struct Signed {
    pub asker: Asker,
    pub by_token: bool,
    /// The signature; `None` if the request was abandoned.
    pub signature: Option<Result<Vec<u8>, Error>>,
    /// Time that the request spent in the queue.
    pub waited: Duration,
    pub took: Duration,
}

pub trait Answers: fmt::Debug + Send + Sync {
    /// Delivers all answers with a single wake-up of the worker.
    fn answer(&self, signed: Vec<Signed>);
}

#[derive(Debug)]
pub struct SigningQueue {
    threads: usize,
    batches: Option<Batches>,
    served: AtomicBool,
    state: Mutex<QueueState>,
    filled: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    jobs: VecDeque<SigningJob>,
    /// Number of sleeping threads that have not been woken yet.
    asleep: usize,
    /// Woken threads that have not checked the queue yet.
    woken: usize,
    closed: bool,
}

impl SigningQueue {
    /// Creates an empty queue. With zero threads, workers compute all signatures themselves.
    pub fn new(threads: usize, multibuffer: Option<Multibuffer>) -> Self {
        Self {
            threads,
            batches: multibuffer.map(Batches::new),
            served: AtomicBool::new(false),
            state: Mutex::default(),
            filled: Condvar::new(),
        }
    }

    pub fn threads(&self) -> usize {
        self.threads
    }

    pub fn serving(&self) -> usize {
        if self.served.load(Relaxed) {
            self.threads
        } else {
            0
        }
    }

    pub(super) fn note_served(&self) {
        self.served.store(true, Relaxed);
    }

    pub fn batches(&self) -> Option<&Batches> {
        self.batches.as_ref()
    }

    pub fn batches_take(&self, request: &SignatureRequest) -> bool {
        self.class_of(request).is_some()
    }

    /// Returns the batch class of a request: jobs of one class can share a batch. Returns `None` if
    /// the request must be signed alone.
    fn class_of(&self, request: &SignatureRequest) -> Option<usize> {
        let key = request
            .batch_key
            .as_ref()
            .filter(|_| self.batches.is_some());
        key.map(|key| key.modulus_len())
    }

    fn take(&self, jobs: &mut VecDeque<SigningJob>) -> Vec<SigningJob> {
        let first = jobs.front().and_then(|job| self.class_of(&job.request));
        let is_alike = |job: &SigningJob| first.is_some() && self.class_of(&job.request) == first;
        let alike = jobs.iter().enumerate().filter(|(_, job)| is_alike(job));
        let places: Vec<usize> = alike.map(|(place, _)| place).take(LANES).collect();
        if places.len() < PAYS {
            return jobs.pop_front().into_iter().collect();
        }
        let taken = places.into_iter().enumerate();
        taken
            .filter_map(|(before, place)| jobs.remove(place - before))
            .collect()
    }

    pub fn push(&self, jobs: impl IntoIterator<Item = SigningJob>) {
        let mut state = self.lock();
        state.jobs.extend(jobs);
        self.wake_one(state);
    }

    /// Takes the oldest job, or a batch that contains it. Returns an empty list if no job is
    /// queued.
    pub fn try_pop(&self) -> Vec<SigningJob> {
        self.take(&mut self.lock().jobs)
    }

    /// Waits for a job. Returns the job, or a batch that contains it. Returns `None` after the
    /// queue was closed.
    pub fn pop(&self) -> Option<Vec<SigningJob>> {
        let mut state = self.lock();
        while !state.closed {
            let jobs = self.take(&mut state.jobs);
            if !jobs.is_empty() {
                self.wake_one(state);
                return Some(jobs);
            }
            state.asleep += 1;
            while state.woken == 0 && !state.closed {
                let woken = self.filled.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
            }
            state.woken = state.woken.saturating_sub(1);
        }
        None
    }

    /// Wakes a thread if a job is queued. Each woken thread wakes the next one, so the number of
    /// system calls is bounded by the number of threads, not of jobs.
    fn wake_one(&self, mut state: MutexGuard<'_, QueueState>) {
        if state.asleep == 0 || state.jobs.is_empty() {
            return;
        }
        state.asleep -= 1;
        state.woken += 1;
        drop(state);
        self.filled.notify_one();
    }

    /// Stops the threads and drops queued jobs.
    pub fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // The queue stays valid if another lock holder panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Minimum number of signatures for which a batch is used. A batch takes a fixed time for one to
/// eight signatures, about as long as five single signatures (docs/decisions/0023).
pub(super) const PAYS: usize = 6;
