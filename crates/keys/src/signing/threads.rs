//! The crypto threads, which sign for workers at a lower priority on every core.
//!
//! The threads are not pinned, so the scheduler moves them to idle cores.

use std::io;
use std::sync::Arc;
use std::thread;

use becket_sys::priority;
use rustls::Error;

use super::queue::{PAYS, SigningQueue, answer};
use super::request::SignatureRequest;

/// Dropping the handle ends the crypto threads, without waiting for them.
#[derive(Debug)]
pub struct CryptoThreads(Arc<SigningQueue>);

impl CryptoThreads {
    /// Starts the crypto threads.
    ///
    /// # Errors
    /// Fails if a thread cannot be started.
    pub fn start(queue: &Arc<SigningQueue>) -> io::Result<Self> {
        // Created before the threads: if a thread cannot be started, dropping this value ends the
        // earlier threads.
        let threads = Self(Arc::clone(queue));
        for number in 0..queue.threads() {
            let queue = Arc::clone(queue);
            thread::Builder::new()
                .name(format!("becket-crypto-{number}"))
                .spawn(move || run(&queue))?;
        }
        queue.note_served();
        if queue.serving() > 0 {
            tracing::info!(
                name: "crypto-threads-started",
                crypto_threads = queue.serving(),
                rsa_batches = queue.batches().is_some(),
                "crypto threads started"
            );
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
        tracing::warn!(name: "crypto-thread-priority-failed", %error, "cannot lower the priority of a crypto thread");
    }
    while let Some(jobs) = queue.pop() {
        answer(jobs, |requests| sign(requests, queue));
    }
}

/// Signs requests that were taken from the queue together. Uses a batch if enough handshakes still
/// need their signature.
pub fn sign(requests: &[&SignatureRequest], queue: &SigningQueue) -> Vec<Result<Vec<u8>, Error>> {
    match queue.batches() {
        Some(batches) if requests.len() >= PAYS => batches.sign(requests),
        _ => requests.iter().map(|request| request.sign()).collect(),
    }
}

/// Difference in nice value to the workers: on a core with a busy worker, a crypto thread receives
/// about a tenth of the CPU time.
const STEPS: i32 = 10;

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use becket_multibuffer::{Multibuffer, PrivateKey};
    use rcgen::{KeyPair, RsaKeySize};
    use rustls::SignatureScheme;
    use rustls::crypto::aws_lc_rs::sign::any_supported_type;
    use rustls::pki_types::PrivateKeyDer;

    use super::*;
    use crate::signing::queue::{Answers, Signed};
    use crate::signing::worker::WorkerSigning;

    #[derive(Debug)]
    struct Answered(Sender<Vec<Signed>>);

    impl Answers for Answered {
        fn answer(&self, signed: Vec<Signed>) {
            self.0.send(signed).unwrap();
        }
    }

    /// With several workers and threads, each job is answered once, to its worker.
    #[test]
    fn every_job_is_answered_to_its_worker() {
        let rsa = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap();
        let der = rsa.serialize_der();
        let batch_key = Arc::new(PrivateKey::from_pkcs8(&der).unwrap());
        let key = any_supported_type(&PrivateKeyDer::Pkcs8(der.into())).unwrap();
        for multibuffer in [None, Some(Multibuffer::portable())] {
            let queue = Arc::new(SigningQueue::new(2, multibuffer));
            let threads = CryptoThreads::start(&queue).unwrap();
            let workers: Vec<_> = (0..3)
                .map(|_| {
                    let (sender, answered) = channel();
                    let answers = Arc::new(Answered(sender));
                    (WorkerSigning::new(Arc::clone(&queue), 3, answers), answered)
                })
                .collect();
            let ask = |at: usize| {
                let request = SignatureRequest {
                    key: Arc::clone(&key),
                    batch_key: Some(Arc::clone(&batch_key)),
                    token: None,
                    scheme: SignatureScheme::RSA_PKCS1_SHA256,
                    message: vec![at as u8; 100],
                };
                workers[at % 3].0.ask(at, request)
            };
            let asked: Vec<_> = (0..JOBS).map(ask).collect();
            for (number, (worker, answered)) in workers.iter().enumerate() {
                worker.flush();
                let mut places = Vec::new();
                while places.len() < JOBS / 3 {
                    for signed in answered.recv().unwrap() {
                        let place = signed.asker.place;
                        assert!(asked[place].is(signed.asker) && place % 3 == number);
                        signed.signature.unwrap().unwrap();
                        places.push(place);
                    }
                }
                places.sort_unstable();
                places.dedup();
                assert_eq!(places.len(), JOBS / 3);
            }
            drop(threads);
        }
    }

    const JOBS: usize = 60;
}
