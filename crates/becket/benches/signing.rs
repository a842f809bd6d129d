//! What a signature costs by kind of key, and what it costs to have it made by a crypto thread.
//!
//! Run with `cargo bench -p becket --bench signing [-- ROUNDS]`. `signs` is the signature alone; `there and back` is the time
//! from asking for one until its answer lies in a mailbox whose owner sleeps in poll(2), with a crypto thread that sleeps as
//! well: the most that waiting adds when nobody else wants the processor. `CPU` is what both threads spend on that. `suspended`
//! is a body that runs on a stack of its own and is suspended and resumed once. Medians. Without `--bench`, as in CI, once.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;
use std::{io, thread};

use becket_keys::signing::SignatureRequest;
use becket_keys::signing::queue::{Answers, SigningQueue};
use becket_keys::signing::threads::CryptoThreads;
use becket_keys::signing::worker::WorkerSigning;
use becket_proxy::worker::mailbox::{Mailbox, WorkerMessage};
use becket_sys::clock::Stopwatch;
use becket_sys::coroutine::{CoroutineState, Stacks, suspend};
use mio::{Events, Poll, Token, Waker};
use rcgen::{KeyPair, RsaKeySize};
use rustls::SignatureScheme;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let asked = arguments.iter().find_map(|argument| argument.parse().ok());
    let real = arguments.iter().any(|argument| argument == "--bench");
    let rounds = if real { asked.unwrap_or(2000) } else { 1 };
    let mut worker = Worker::start()?;
    println!("us; {rounds} rounds");
    println!(
        "{:>10} {:>9} {:>15} {:>9}",
        "key", "signs", "there and back", "CPU"
    );
    for (name, key, scheme) in keys() {
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let key = any_supported_type(&der).expect("a key that signs");
        let request = || SignatureRequest {
            key: Arc::clone(&key),
            batch_key: None,
            token: None,
            scheme,
            message: vec![7; 130],
        };
        let signs = median(rounds, || drop(black_box(request().sign())));
        let before = cpu();
        let there = median(rounds, || worker.ask(request()));
        let spent = (cpu() - before) / rounds as u32;
        println!(
            "{name:>10} {:>9.1} {:>15.1} {:>9.1}",
            us(signs),
            us(there),
            us(spent)
        );
    }
    let stacks = Stacks::new(256 * 1024);
    let switch = median(rounds * 10, || {
        let Ok(CoroutineState::Suspended(body)) = stacks.run(suspend) else {
            panic!("it does not wait");
        };
        drop(black_box(body.resume()));
    });
    println!("suspended: {:.2}", us(switch));
    Ok(())
}

/// A worker that does nothing but wait for signatures.
struct Worker {
    poll: Poll,
    events: Events,
    mailbox: Arc<Mailbox>,
    signing: WorkerSigning,
    _threads: CryptoThreads,
}

impl Worker {
    fn start() -> io::Result<Self> {
        let poll = Poll::new()?;
        let mailbox = Arc::new(Mailbox::new(Waker::new(poll.registry(), Token(0))?));
        let queue = Arc::new(SigningQueue::new(1, None));
        let answers = Arc::clone(&mailbox) as Arc<dyn Answers>;
        Ok(Self {
            _threads: CryptoThreads::start(&queue)?,
            signing: WorkerSigning::new(queue, 1, answers),
            events: Events::with_capacity(8),
            mailbox,
            poll,
        })
    }

    fn ask(&mut self, request: SignatureRequest) {
        let _asked = self.signing.ask(0, request);
        let mut messages = self.mailbox.take();
        while messages.is_empty() {
            let waited = self.mailbox.wait(&mut self.poll, &mut self.events, None);
            waited.expect("a poll");
            messages = self.mailbox.take();
        }
        for message in &messages {
            if let WorkerMessage::Signed(all) = message {
                all.iter()
                    .for_each(|signed| self.signing.note_answer(signed));
            }
        }
    }
}

fn keys() -> Vec<(&'static str, KeyPair, SignatureScheme)> {
    let ec = |kind| KeyPair::generate_for(kind).expect("a key");
    let rsa = |size| KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, size).expect("a key");
    let pss = SignatureScheme::RSA_PSS_SHA256;
    use SignatureScheme as Scheme;
    vec![
        ("Ed25519", ec(&rcgen::PKCS_ED25519), Scheme::ED25519),
        (
            "P-256",
            ec(&rcgen::PKCS_ECDSA_P256_SHA256),
            Scheme::ECDSA_NISTP256_SHA256,
        ),
        (
            "P-384",
            ec(&rcgen::PKCS_ECDSA_P384_SHA384),
            Scheme::ECDSA_NISTP384_SHA384,
        ),
        (
            "P-521",
            ec(&rcgen::PKCS_ECDSA_P521_SHA512),
            Scheme::ECDSA_NISTP521_SHA512,
        ),
        ("RSA-2048", rsa(RsaKeySize::_2048), pss),
        ("RSA-3072", rsa(RsaKeySize::_3072), pss),
        ("RSA-4096", rsa(RsaKeySize::_4096), pss),
    ]
}

fn median(rounds: usize, mut run: impl FnMut()) -> Duration {
    let mut times: Vec<_> = (0..rounds)
        .map(|_| {
            let begun = Stopwatch::start();
            run();
            begun.elapsed()
        })
        .collect();
    times.sort_unstable();
    // Those that come back at once would say nothing of threads that sleep.
    thread::yield_now();
    times[rounds / 2]
}

/// What all threads of the process have spent.
fn cpu() -> Duration {
    becket_sys::cpu::time_of(std::process::id()).expect("our own")
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
