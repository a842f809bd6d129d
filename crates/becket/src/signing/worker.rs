//! One worker's signatures: how many are under way, and the stacks on which handshakes wait for them.
//!
//! As many are under way as keep the crypto threads busy until the worker looks again, and no more: what waits longer waits
//! before its handshake begins, where it costs a hello and no more, and where the rules for overload apply. A handshake whose hello
//! shows that it may need no signature, because it may resume, begins as long as there are not
//! twice as many: it does not wait for those that need one, and if it deceives us, that is bounded, too.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use becket_sys::clock::Stopwatch;
use becket_sys::coroutine::{Progress, Stacks};

use super::Request;
use super::queue::{Answers, Asker, Job, SigningQueue};

/// One worker's way to the crypto threads.
#[derive(Debug)]
pub struct WorkerSigning {
    queue: Arc<SigningQueue>,
    answers: Arc<dyn Answers>,
    stacks: Stacks,
    /// Signatures under way at which no handshake begins that needs one.
    most: usize,
    /// Asked for, and not answered.
    under_way: Cell<usize>,
    last: Cell<u64>,
}

/// A signature that somebody waits for. Whoever drops it does not any more.
#[derive(Debug)]
pub struct Asked {
    number: u64,
    abandoned: Arc<AtomicBool>,
}

impl WorkerSigning {
    /// The part of one of `workers` workers in a queue; answers arrive at `answers`.
    pub fn new(queue: Arc<SigningQueue>, workers: usize, answers: Arc<dyn Answers>) -> Self {
        let share = (PER_THREAD * queue.threads()).div_ceil(workers);
        Self {
            queue,
            answers,
            stacks: Stacks::new(STACK),
            most: share.max(LEAST),
            under_way: Cell::new(0),
            last: Cell::new(0),
        }
    }

    /// Whether a handshake may begin, or go on, that needs a signature.
    pub fn has_room(&self) -> bool {
        self.under_way.get() < self.most
    }

    /// Whether none may begin that might need one.
    pub(crate) fn is_crowded(&self) -> bool {
        self.under_way.get() >= 2 * self.most
    }

    /// Runs a step that may need a signature.
    ///
    /// # Errors
    /// When there is no memory for a stack.
    pub(crate) fn run<T: 'static>(
        &self,
        step: impl FnOnce() -> T + 'static,
    ) -> io::Result<Progress<T>> {
        self.stacks.run(step)
    }

    /// Asks for a signature, for the connection that lives at `place`.
    pub fn ask(&self, place: usize, request: Request) -> Asked {
        let number = self.last.get() + 1;
        self.last.set(number);
        self.under_way.set(self.under_way.get() + 1);
        let abandoned = Arc::new(AtomicBool::new(false));
        self.queue.push(Job {
            request,
            asker: Asker { place, number },
            abandoned: Arc::clone(&abandoned),
            asked: Stopwatch::start(),
            answers: Arc::clone(&self.answers),
        });
        Asked { number, abandoned }
    }

    /// An answer has come, whoever it is for.
    pub fn note_answer(&self) {
        self.under_way.set(self.under_way.get().saturating_sub(1));
    }
}

impl Asked {
    /// Whether this is the answer.
    pub(crate) fn is(&self, asker: Asker) -> bool {
        self.number == asker.number
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.abandoned.store(true, Relaxed);
    }
}

/// Signatures under way for each crypto thread: two batches of eight, one that is computed and one that waits. With RSA-2048
/// they last for four milliseconds, with RSA-4096 for thirty, and a worker looks for answers between any two connections.
const PER_THREAD: usize = 16;
/// A worker among many has so many at least.
const LEAST: usize = 4;
/// Bytes of a stack. Debug builds, whose frames are the largest, pass all tests with it.
const STACK: usize = 256 * 1024;
