//! The crypto threads: they sign what workers ask for, and stand behind them on every core.
//!
//! They are not pinned: the scheduler moves them to cores that workers leave idle.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use becket_sys::priority;
use rustls::Error;

use super::queue::SigningQueue;

/// Threads that sign. Dropping this sends them home; none is waited for.
#[derive(Debug)]
pub struct CryptoThreads(Arc<SigningQueue>);

impl CryptoThreads {
    /// Starts the threads that serve the queue.
    ///
    /// # Errors
    /// When the system gives no more threads.
    pub fn start(queue: &Arc<SigningQueue>) -> io::Result<Self> {
        // Made first: where one thread of many cannot be started, the others go home.
        let threads = Self(Arc::clone(queue));
        let crypto_threads = queue.threads();
        if crypto_threads > 0 {
            tracing::info!(
                crypto_threads,
                "signatures with expensive keys off the loop"
            );
        }
        for number in 0..crypto_threads {
            let queue = Arc::clone(queue);
            thread::Builder::new()
                .name(format!("becket-crypto-{number}"))
                .spawn(move || run(&queue))?;
        }
        Ok(threads)
    }
}

impl Drop for CryptoThreads {
    fn drop(&mut self) {
        self.0.close();
    }
}

fn run(queue: &SigningQueue) {
    if let Err(error) = priority::only_computes().and_then(|()| priority::give_way(STEPS)) {
        tracing::warn!(%error, "crypto thread as important as a worker");
    }
    while let Some(job) = queue.pop() {
        job.answer(|request| {
            // Where a panic does not end the process, the handshake must not wait for its time-out.
            let signed = catch_unwind(AssertUnwindSafe(|| request.sign()));
            signed.unwrap_or_else(|_| Err(Error::General("the key panicked".into())))
        });
    }
}

/// Nice steps behind the workers: beside one that is busy, a crypto thread gets a tenth of the core.
const STEPS: i32 = 10;
