//! Signatures that wait for a crypto thread: one queue for all workers.
//!
//! The oldest job always goes next: with others of its length of key, where enough of them wait for a batch to pay, and alone otherwise.
//! No job waits for company. The queue's length is bounded by those who fill it: each worker has
//! a bounded number of signatures under way ([`super::worker::WorkerSigning`]). The lock is held to push or to pop; a thread is
//! woken only if one sleeps.

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

/// A signature that a worker waits for.
#[derive(Debug)]
pub struct SigningJob {
    pub request: SignatureRequest,
    pub asker: Asker,
    /// No handshake waits for it any more.
    pub abandoned: Arc<AtomicBool>,
    /// Since the request.
    pub asked: Stopwatch,
    pub answers: Arc<dyn Answers>,
}

/// Answers each job. `sign` gets the requests for which a handshake still waits.
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

/// A connection, and which of its worker's signatures is its.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asker {
    /// Where the connection lives in its worker; by now it may be another one.
    pub place: usize,
    /// No two signatures of a worker have the same.
    pub number: u64,
}

/// What became of a request.
#[derive(Debug)]
pub struct Signed {
    /// Who asked.
    pub asker: Asker,
    /// A token was asked.
    pub by_token: bool,
    /// Nothing when the asker had left.
    pub signature: Option<Result<Vec<u8>, Error>>,
    /// From the request to a thread that took it.
    pub waited: Duration,
    /// How long it signed.
    pub took: Duration,
}

/// Takes answers for one worker, from any thread.
pub trait Answers: fmt::Debug + Send + Sync {
    /// Leaves answers and sees to it that the worker looks soon, once for all of them.
    fn answer(&self, signed: Vec<Signed>);
}

/// What waits for crypto threads.
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
    /// Threads that sleep and that nobody has woken.
    asleep: usize,
    /// Threads that were woken and have not looked yet.
    woken: usize,
    closed: bool,
}

impl SigningQueue {
    /// An empty queue for so many threads, which may be none: then workers sign. Signatures with RSA are made in batches where
    /// there is something that makes them.
    pub fn new(threads: usize, multibuffer: Option<Multibuffer>) -> Self {
        Self {
            threads,
            batches: multibuffer.map(Batches::new),
            served: AtomicBool::new(false),
            state: Mutex::default(),
            filled: Condvar::new(),
        }
    }

    /// How many threads serve it once somebody asks.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// How many threads serve it now.
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

    /// What makes batches, if there are any.
    pub fn batches(&self) -> Option<&Batches> {
        self.batches.as_ref()
    }

    /// Whether this may be signed in a batch.
    pub fn batches_take(&self, request: &SignatureRequest) -> bool {
        self.class_of(request).is_some()
    }

    /// What can be signed together.
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

    /// Leaves jobs for the next thread that is free.
    pub fn push(&self, jobs: impl IntoIterator<Item = SigningJob>) {
        let mut state = self.lock();
        state.jobs.extend(jobs);
        self.wake_one(state);
    }

    /// Takes the oldest job, or the batch that it begins; nothing when there is none.
    pub fn try_pop(&self) -> Vec<SigningJob> {
        self.take(&mut self.lock().jobs)
    }

    /// As [`Self::try_pop`], but waits for a job; `None` when the queue is closed.
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

    /// Wakes a thread if there is a job for it. One that is woken wakes the next, so a call of the system is made for each thread
    /// that has to wake up, and for no job.
    fn wake_one(&self, mut state: MutexGuard<'_, QueueState>) {
        if state.asleep == 0 || state.jobs.is_empty() {
            return;
        }
        state.asleep -= 1;
        state.woken += 1;
        drop(state);
        self.filled.notify_one();
    }

    /// Sends the threads home: what waits is signed by nobody.
    pub fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // A poisoned queue is still a queue.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A batch takes as long for one as for eight, and five signatures take as long one by one (docs/decisions/0023).
pub(super) const PAYS: usize = 6;
