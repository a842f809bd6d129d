//! Threads that read from disks, so that workers do not wait.
//!
//! The first thread starts when a requested file is not in memory. At most [`MOST`] threads run,
//! and each exits after a minute without work. The queue is bounded, since each connection has at
//! most one job at a time.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

type ReadJob = Box<dyn FnOnce() + Send>;

#[derive(Debug, Default)]
pub struct Readers {
    state: Mutex<ReaderState>,
    filled: Condvar,
}

#[derive(Default)]
struct ReaderState {
    jobs: VecDeque<ReadJob>,
    threads: usize,
    asleep: usize,
}

impl fmt::Debug for ReaderState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} jobs, {} threads", self.jobs.len(), self.threads)
    }
}

impl Readers {
    pub fn run(self: &Arc<Self>, job: ReadJob) {
        let mut state = self.lock();
        state.jobs.push_back(job);
        let starts = state.asleep == 0 && state.threads < MOST;
        state.threads += usize::from(starts);
        drop(state);
        if !starts {
            return self.filled.notify_one();
        }
        let readers = Arc::clone(self);
        let thread = thread::Builder::new().name("becket-reader".into());
        if let Err(error) = thread.spawn(move || readers.work()) {
            tracing::error!(name: "file-thread-failed", %error, "cannot start a thread that reads the files to serve");
            let mut state = self.lock();
            state.threads -= 1;
            // If no thread is running, drops the queued jobs. This wakes their connections without
            // a result.
            let jobs = match state.threads {
                0 => std::mem::take(&mut state.jobs),
                _ => VecDeque::new(),
            };
            drop(state);
            drop(jobs);
        }
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = self.lock();
                continue;
            }
            state.asleep += 1;
            let waited = self.filled.wait_timeout(state, IDLE);
            let (next, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = next;
            state.asleep -= 1;
            if timeout.timed_out() && state.jobs.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, ReaderState> {
        // The queue is valid even after a panic, because every change is complete.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Maximum number of threads, and thus of parallel reads: about as many as a disk handles well. Several disks usually
/// appear as one kernel device.
const MOST: usize = 8;
/// Idle time after which a thread exits.
const IDLE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn every_job_is_done_by_a_bounded_number_of_threads() {
        let readers = Arc::<Readers>::default();
        let (done, dones) = channel();
        for number in 0..100 {
            let done = done.clone();
            readers.run(Box::new(move || done.send(number).unwrap()));
        }
        drop(done);
        let mut all: Vec<i32> = dones.iter().collect();
        all.sort_unstable();
        assert_eq!(all, (0..100).collect::<Vec<_>>());
        assert!(readers.lock().threads <= MOST);
    }
}
