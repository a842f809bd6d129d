//! Signatures of one worker: the number in progress, and the stacks of suspended handshakes.
//!
//! Each worker limits its signatures in progress. The limit is high enough to keep the crypto
//! threads busy until the worker next checks for answers. At the limit, a new handshake waits
//! before it starts. The worker then holds only its ClientHello, and can still reject the client
//! under overload. A handshake whose ClientHello offers a session may need no signature. It starts
//! while fewer than twice the limit are in progress: it does not wait for full handshakes, but a
//! flood of invalid sessions is limited, too.
//!
//! The worker holds back signatures for a batch until the batch is full, or until no waiting
//! handshake could start now. A thread then signs the whole batch, and one wake-up suffices. If the
//! worker itself computes single signatures ([`Offload::Batches`]), it passes on only signatures
//! that fill a batch.

use std::cell::{Cell, RefCell};
use std::io;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use becket_multibuffer::LANES;
use becket_sys::clock::Stopwatch;
use becket_sys::coroutine::{CoroutineState, Stacks};

use super::queue::{Answers, Asker, PAYS, Signed, SigningJob, SigningQueue, answer};
use super::request::{Offload, SignatureRequest};

#[derive(Debug)]
pub struct WorkerSigning {
    queue: Arc<SigningQueue>,
    answers: Arc<dyn Answers>,
    stacks: Stacks,
    threads: SigningLane,
    tokens: SigningLane,
    /// Jobs for crypto threads, held back until they fill a batch.
    held: RefCell<Vec<SigningJob>>,
    /// Number of clients whose handshakes wait to start, excluding the client that the worker
    /// serves now.
    waiting: Cell<usize>,
    last: Cell<u64>,
}

/// Number and limit of a worker's requests in progress, for the crypto threads or the tokens.
#[derive(Debug)]
struct SigningLane {
    /// Number of requests in progress at which handshakes that need a signature must wait.
    most: usize,
    under_way: Cell<usize>,
}

/// Result of [`WorkerSigning::room`]: `true` for crypto threads or tokens that can receive another
/// request.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    pub threads: bool,
    pub tokens: bool,
}

/// A signature request in progress. Dropping it abandons the request.
#[derive(Debug)]
pub struct PendingSignature {
    number: u64,
    abandoned: Arc<AtomicBool>,
}

impl WorkerSigning {
    /// Creates the state of one worker. `workers` is the number of all workers, which share the
    /// crypto threads.
    pub fn new(queue: Arc<SigningQueue>, workers: usize, answers: Arc<dyn Answers>) -> Self {
        let share = (PER_THREAD * queue.threads()).div_ceil(workers);
        Self {
            queue,
            answers,
            stacks: Stacks::new(STACK),
            threads: SigningLane::of(share.max(LEAST)),
            tokens: SigningLane::of(1),
            held: RefCell::default(),
            waiting: Cell::new(0),
            last: Cell::new(0),
        }
    }

    /// Sets the number of sessions per token. All `workers` share these sessions.
    pub fn with_sessions(self, sessions: u16, workers: usize) -> Self {
        let most = (PER_SESSION * usize::from(sessions)).div_ceil(workers);
        let tokens = SigningLane::of(most);
        Self { tokens, ..self }
    }

    /// Returns `true` for crypto threads and for tokens if a handshake that needs their signature
    /// may start or continue.
    pub fn room(&self) -> Room {
        let has_room = |lane: &SigningLane| lane.under_way.get() < lane.most;
        Room {
            threads: has_room(&self.threads),
            tokens: has_room(&self.tokens),
        }
    }

    /// Returns `true` while a handshake that may need a signature with this `offload` must wait.
    pub fn is_crowded(&self, offload: Offload) -> bool {
        let lane = self.lane(offload == Offload::Token);
        lane.under_way.get() >= 2 * lane.most
    }

    fn lane(&self, is_token: bool) -> &SigningLane {
        if is_token {
            &self.tokens
        } else {
            &self.threads
        }
    }

    /// Returns `offload`, but [`Offload::Never`] if crypto threads are required and none run.
    pub fn limit(&self, offload: Offload) -> Offload {
        match offload {
            Offload::Batches | Offload::Always if self.queue.threads() == 0 => Offload::Never,
            other => other,
        }
    }

    /// Sets the number of clients that wait for a signature, excluding the client that the worker
    /// serves now.
    pub fn note_waiting(&self, clients: usize) {
        self.waiting.set(clients);
    }

    /// Returns `true` if the next signature with this `offload` goes to a crypto thread or a token.
    /// A new batch needs [`LANES`] signatures, a started batch [`PAYS`]; signatures that waiting
    /// clients need count too.
    pub fn takes(&self, offload: Offload) -> bool {
        let fills_batch = || {
            let held = self.held.borrow().len();
            let enough = if held > 0 { PAYS } else { LANES };
            self.queue.batches().is_some() && held + 1 + self.waiting.get() >= enough
        };
        match offload {
            Offload::Pointless | Offload::Never => false,
            Offload::Batches => fills_batch(),
            Offload::Always | Offload::Token => true,
        }
    }

    /// Runs a handshake step on its own stack, so that it can be suspended until a signature
    /// arrives.
    ///
    /// # Errors
    /// Fails if there is no memory for a stack.
    pub fn run<T: 'static>(
        &self,
        step: impl FnOnce() -> T + 'static,
    ) -> io::Result<CoroutineState<T>> {
        self.stacks.run(step)
    }

    pub fn ask(&self, place: usize, request: SignatureRequest) -> PendingSignature {
        let number = self.last.get() + 1;
        self.last.set(number);
        let lane = self.lane(request.token.is_some());
        lane.under_way.set(lane.under_way.get() + 1);
        let abandoned = Arc::new(AtomicBool::new(false));
        let mut job = SigningJob {
            request,
            asker: Asker { place, number },
            abandoned: Arc::clone(&abandoned),
            asked: Stopwatch::start(),
            answers: Arc::clone(&self.answers),
        };
        if let Some(token) = job.request.token.clone() {
            let message = mem::take(&mut job.request.message);
            token.request(job.request.scheme, &message, |signature| {
                answer(vec![job], |_| vec![signature]);
            });
        } else if self.queue.batches_take(&job.request) {
            self.held.borrow_mut().push(job);
            if self.held.borrow().len() >= LANES {
                self.flush();
            }
        } else {
            self.queue.push([job]);
        }
        PendingSignature { number, abandoned }
    }

    pub fn flush(&self) {
        let mut held = self.held.borrow_mut();
        if !held.is_empty() {
            self.queue.push(held.drain(..));
        }
    }

    #[cfg(any(test, feature = "script"))]
    pub fn free_stacks(&self) -> usize {
        self.stacks.free()
    }

    /// Returns two numbers: token requests since the start, and unanswered token requests.
    #[cfg(any(test, feature = "script"))]
    pub fn asked_of_tokens(&self) -> (u64, usize) {
        (self.last.get(), self.tokens.under_way.get())
    }

    pub fn note_answer(&self, signed: &Signed) {
        let under_way = &self.lane(signed.by_token).under_way;
        under_way.set(under_way.get().saturating_sub(1));
    }
}

impl SigningLane {
    fn of(most: usize) -> Self {
        let under_way = Cell::new(0);
        Self { most, under_way }
    }
}

impl PendingSignature {
    pub fn is(&self, asker: Asker) -> bool {
        self.number == asker.number
    }
}

impl Drop for PendingSignature {
    fn drop(&mut self) {
        self.abandoned.store(true, Relaxed);
    }
}

/// Maximum number of signatures in progress per crypto thread: a batch of eight being computed, and
/// a queued batch. Two batches take 4 ms with RSA-2048 and 30 ms with RSA-4096. A worker checks for
/// answers between any two connections.
const PER_THREAD: usize = 16;
/// Maximum number of signatures in progress per token session: one being computed, and one queued.
const PER_SESSION: usize = 2;
/// Lower bound of a worker's limit for signatures in progress on crypto threads.
const LEAST: usize = 4;
/// Stack size in bytes. All tests pass with it in debug builds, which have the largest frames.
const STACK: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use becket_multibuffer::{Multibuffer, PrivateKey};
    use rcgen::{KeyPair, RsaKeySize};
    use rustls::SignatureScheme;
    use rustls::crypto::aws_lc_rs::sign::any_supported_type;
    use rustls::pki_types::PrivateKeyDer;

    use super::*;

    #[derive(Debug)]
    struct Unheard;

    impl Answers for Unheard {
        fn answer(&self, _signed: Vec<Signed>) {}
    }

    impl SignatureRequest {
        fn again(&self) -> Self {
            Self {
                key: Arc::clone(&self.key),
                batch_key: self.batch_key.clone(),
                token: None,
                scheme: self.scheme,
                message: self.message.clone(),
            }
        }
    }

    fn request() -> SignatureRequest {
        let rsa = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap();
        let der = rsa.serialize_der();
        SignatureRequest {
            batch_key: Some(Arc::new(PrivateKey::from_pkcs8(&der).unwrap())),
            token: None,
            key: any_supported_type(&PrivateKeyDer::Pkcs8(der.into())).unwrap(),
            scheme: SignatureScheme::RSA_PSS_SHA256,
            message: Vec::new(),
        }
    }

    fn hands_over(multibuffer: Option<Multibuffer>) -> (Arc<SigningQueue>, WorkerSigning) {
        let queue = Arc::new(SigningQueue::new(1, multibuffer));
        let worker = WorkerSigning::new(Arc::clone(&queue), 1, Arc::new(Unheard));
        (queue, worker)
    }

    #[test]
    fn batch_requests_are_queued_when_the_batch_is_full_or_flushed() {
        let request = request();
        let ask = |worker: &WorkerSigning| worker.ask(0, request.again());
        let (queue, worker) = hands_over(Some(Multibuffer::portable()));
        let _asked: Vec<_> = (1..LANES).map(|_| ask(&worker)).collect();
        assert!(queue.try_pop().is_empty());
        let _last = ask(&worker);
        assert_eq!(queue.try_pop().len(), LANES);
        let _few: Vec<_> = (1..PAYS).map(|_| ask(&worker)).collect();
        worker.flush();
        for _ in 1..PAYS {
            assert_eq!(queue.try_pop().len(), 1, "too few for a batch");
        }
        // Jobs of other classes in between do not prevent a batch, and keep their position.
        for _ in 0..PAYS {
            let mut other = request.again();
            other.batch_key = None;
            worker.ask(0, other);
            ask(&worker);
            worker.flush();
        }
        let pop = || Some(queue.try_pop().len()).filter(|length| *length > 0);
        let popped: Vec<_> = std::iter::from_fn(pop).collect();
        assert_eq!(popped, [1, PAYS, 1, 1, 1, 1, 1]);
        let (queue, worker) = hands_over(None);
        let _at_once = ask(&worker);
        assert_eq!(queue.try_pop().len(), 1);
    }

    #[test]
    fn a_batch_starts_if_it_can_be_filled_and_continues_while_it_pays() {
        let (_queue, worker) = hands_over(Some(Multibuffer::portable()));
        let takes = |waiting| {
            worker.note_waiting(waiting);
            worker.takes(Offload::Batches)
        };
        assert!(!takes(LANES - 2) && takes(LANES - 1));
        let _asked = worker.ask(0, request());
        assert!(!takes(PAYS - 3) && takes(PAYS - 2));
        assert!(worker.takes(Offload::Always) && !worker.takes(Offload::Never));
    }
}
