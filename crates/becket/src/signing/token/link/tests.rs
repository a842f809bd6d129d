//! Agents that are scripts: what hangs, dies or lies costs signatures, and nothing else.

use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use rcgen::{KeyPair, PublicKeyData};
use rustls::SignatureScheme;

use super::*;
use crate::signing::Request as Wanted;
use crate::signing::queue::{Answers, Asker, Signed};
use crate::signing::token::Token;
use crate::signing::token::script::{FIRST_KEY, Way, play};

/// A token whose agents are threads of the test, each of the next way; the last way stays.
struct Bench {
    link: Arc<Link>,
    key: KeyPair,
    answers: (Sender<Signed>, Mutex<Receiver<Signed>>),
}

#[derive(Debug)]
struct To(Sender<Signed>);

impl Answers for To {
    fn answer(&self, signed: Vec<Signed>) {
        for signed in signed {
            self.0.send(signed).unwrap();
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.link.close();
    }
}

impl Bench {
    fn with(ways: &'static [Way]) -> Self {
        let key = KeyPair::generate().unwrap();
        let (der, count) = (key.serialize_der(), AtomicUsize::new(0));
        let start = move || {
            let at = count.fetch_add(1, Relaxed).min(ways.len() - 1);
            let (here, there) = Seqpacket::pair()?;
            let keys = [KeyPair::try_from(&*der).unwrap()];
            thread::spawn(move || play(&there, &keys, || ways[at]));
            Ok(Agent {
                socket: Arc::new(here),
                process: None,
            })
        };
        let uri = uri();
        let link = Arc::new(Link::new(uri.token, Box::new(start), Confined::No));
        link.time_out.store(200, Relaxed);
        let run = Arc::clone(&link);
        thread::spawn(move || run.run());
        let (sender, receiver) = channel();
        Self {
            link,
            key,
            answers: (sender, Mutex::new(receiver)),
        }
    }

    fn prove(&self) -> Result<u32, String> {
        let info = self.key.subject_public_key_info();
        let proved = self.link.prove(&uri(), PublicKey::of(&info).unwrap());
        proved.map(|(number, _)| number)
    }

    fn ask(&self, key: u32) {
        let der = rustls_pki_types::PrivateKeyDer::Pkcs8(self.key.serialize_der().into());
        self.link.ask(
            key,
            Job {
                request: Wanted {
                    key: rustls::crypto::aws_lc_rs::sign::any_supported_type(&der).unwrap(),
                    batch_key: None,
                    token: None,
                    scheme: SignatureScheme::ECDSA_NISTP256_SHA256,
                    message: b"message".to_vec(),
                },
                asker: Asker {
                    place: 0,
                    number: 0,
                },
                abandoned: Arc::default(),
                asked: Stopwatch::start(),
                answers: Arc::new(To(self.answers.0.clone())),
            },
        );
    }

    /// Whether the next answer is a signature.
    fn answer(&self) -> bool {
        let signed = self.answers.1.lock().unwrap().recv().unwrap();
        match signed.signature.unwrap() {
            Ok(signature) => {
                let info = self.key.subject_public_key_info();
                let public = PublicKey::of(&info).unwrap();
                let scheme = SignatureScheme::ECDSA_NISTP256_SHA256;
                assert!(public.verifies(scheme, b"message", &signature));
                true
            }
            Err(_) => false,
        }
    }

    /// Asks until there is a signature, as clients do.
    fn comes_back(&self, key: u32) {
        while {
            self.ask(key);
            !self.answer()
        } {
            thread::yield_now();
        }
    }
}

fn uri() -> KeyUri {
    KeyUri::parse(FIRST_KEY).unwrap()
}

#[test]
fn a_token_signs_for_whoever_asks() {
    let bench = Bench::with(&[Way::Signs]);
    let key = bench.prove().unwrap();
    for _ in 0..3 {
        bench.ask(key);
        assert!(bench.answer());
    }
    let status = bench.link.status();
    assert_eq!(
        (status.available, status.signatures, status.failures),
        (true, 3, 0)
    );
    assert_eq!((status.starts, status.in_flight), (1, 0));
    // One that nobody knows costs an error.
    bench.ask(key + 1);
    assert!(!bench.answer());
}

#[test]
fn whatever_a_agent_does_it_costs_what_was_asked_of_it_and_another_takes_its_place() {
    for way in [
        &[Way::Fails, Way::Signs],
        &[Way::IsSilent, Way::Signs],
        &[Way::Dies, Way::Signs],
        &[Way::Lies, Way::Signs],
        &[Way::SaysMore, Way::Signs],
        &[Way::Talks, Way::Signs],
    ] {
        let bench = Bench::with(way);
        let key = bench.prove().unwrap();
        for _ in 0..50 {
            bench.ask(key);
        }
        // Another one may have its place before all of them have asked.
        let failed = (0..50).filter(|_| !bench.answer()).count();
        assert!(failed > 0, "{way:?}");
        bench.comes_back(key);
        let status = bench.link.status();
        assert_eq!(
            (status.available, status.starts, status.in_flight),
            (true, 2, 0),
            "{way:?}"
        );
    }
}

#[test]
fn a_key_of_another_certificate_is_refused() {
    let bench = Bench::with(&[Way::Signs]);
    let other = KeyPair::generate().unwrap().subject_public_key_info();
    let refused = bench.link.prove(&uri(), PublicKey::of(&other).unwrap());
    assert!(refused.unwrap_err().contains("another certificate"));
    assert!(bench.prove().is_ok(), "the token is still good");
}

#[test]
fn a_pin_that_is_refused_is_not_tried_again_until_its_file_changes() {
    let bench = Bench::with(&[Way::Refuses, Way::Signs]);
    for _ in 0..3 {
        assert!(bench.prove().unwrap_err().contains("PinIncorrect"));
        bench.link.set_pin(None, 1);
    }
    assert_eq!(bench.link.status().starts, 1);
    let folder = tempfile::tempdir().unwrap();
    let pin = folder.path().join("pin");
    std::fs::write(&pin, "1234").unwrap();
    bench.link.set_pin(Some(File::open(pin).unwrap()), 1);
    bench.prove().unwrap();
}

#[test]
fn a_key_that_was_proved_is_believed_while_its_token_is_away() {
    let bench = Bench::with(&[Way::Dies, Way::IsEmpty]);
    let key = bench.prove().unwrap();
    bench.ask(key);
    assert!(!bench.answer());
    let again = bench.prove().unwrap();
    assert_ne!(again, key);
    for key in [key, again] {
        bench.ask(key);
        assert!(!bench.answer());
    }
    let status = bench.link.status();
    assert_eq!((status.available, &*status.fault), (false, "no such token"));
    bench.link.forget(key);
    bench.link.forget(again);
    assert!(bench.prove().is_err(), "nobody remembers it");
}

#[test]
fn who_waits_when_a_token_is_closed_is_answered() {
    let bench = Bench::with(&[Way::IsSilent]);
    bench.link.time_out.store(60_000, Relaxed);
    let key = bench.prove().unwrap();
    for _ in 0..100 {
        bench.ask(key);
    }
    assert_eq!(bench.link.status().in_flight, 100);
    bench.link.close();
    for _ in 0..100 {
        assert!(!bench.answer());
    }
}

/// An agent that is in another's hands answers what it likes, to whom it likes.
#[test]
fn whatever_is_said_each_signature_that_was_asked_for_is_answered_once() {
    let mut random = fastrand::Rng::with_seed(7512);
    let mut bench = Bench::with(&[Way::Signs]);
    for _ in 0..300 {
        let (here, _there) = Seqpacket::pair().unwrap();
        let link = Link::new(
            uri().token,
            Box::new(|| Err(io::ErrorKind::NotFound.into())),
            Confined::No,
        );
        let public = PublicKey::of(&bench.key.subject_public_key_info()).unwrap();
        let asked = random.u8(1..6);
        {
            let mut state = link.lock();
            state.socket = Some(Arc::new(here));
            let key = |standing| Key {
                uri: uri(),
                public: public.clone(),
                standing,
                proved: None,
            };
            state.keys.insert(1, key(Standing::Ready));
            state.keys.insert(2, key(Standing::Asked));
            state.find(2);
            state.challenge(2, Mechanisms::ECDSA);
            state.note(Asked::Open);
        }
        let other = std::mem::replace(&mut bench.link, Arc::new(link));
        (0..asked).for_each(|_| bench.ask(1));
        for _ in 0..random.u8(..20) {
            let mut packet = vec![
                1,
                random.u8(..7),
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                random.u8(..asked + 5),
            ];
            packet.extend((0..random.usize(..4)).map(|_| random.u8(..16)));
            if bench.link.hear(&packet).is_err() {
                break;
            }
        }
        bench.link.abandon("it is gone".to_owned());
        let answers = bench.answers.1.lock().unwrap().try_iter().count();
        assert_eq!(answers, usize::from(asked));
        assert!(bench.link.lock().pending.is_empty());
        bench.link = other;
    }
}

/// The process is confined later than this thread is started, which Landlock would not reach then.
#[test]
fn the_thread_of_a_token_opens_no_file_in_a_sandbox() {
    let nothing = || file_reach::confine::<&Path>([], []).unwrap();
    if thread::spawn(nothing).join().unwrap().is_none() {
        println!("skipped: this kernel has no Landlock");
        return;
    }
    for (confined, can_open) in [(Confined::No, true), (Confined::Later, false)] {
        let (sender, opened) = channel();
        let start = move || {
            sender.send(File::open("/proc/self/maps").is_ok()).unwrap();
            Err(io::ErrorKind::Other.into())
        };
        let token = Token::start(uri().token, Box::new(start), confined).unwrap();
        let info = KeyPair::generate().unwrap().subject_public_key_info();
        let proved = token.0.prove(&uri(), PublicKey::of(&info).unwrap());
        assert!(proved.is_err());
        assert_eq!(opened.recv().unwrap(), can_open);
    }
}
