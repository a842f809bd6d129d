//! Tests links with simulated agents: an agent that hangs, exits or sends wrong answers only costs
//! signatures.

use becket_config::key_source::KeyUri;
use rcgen::{KeyPair, PublicKeyData};

use super::*;
use crate::signing::token::script::{AgentBehaviour, FIRST_KEY, play};

type Signature = Result<Vec<u8>, Error>;

/// A token with agents that run as threads of the test.
struct Bench {
    link: Arc<TokenLink>,
    key: Arc<KeyPair>,
    answers: (Sender<Signature>, Mutex<Receiver<Signature>>),
}

impl Bench {
    fn new(way: AgentBehaviour) -> Self {
        Self::of(way, &Arc::new(KeyPair::generate().unwrap()), Arc::default())
    }

    fn of(way: AgentBehaviour, key: &Arc<KeyPair>, known: Arc<TokenFacts>) -> Self {
        let id = KeyUri::parse(FIRST_KEY).unwrap().token;
        let keys = vec![FIRST_KEY.to_owned()];
        let link = TokenLink::open((id, keys), TIME_OUT, agent(key, way), known);
        let (sender, receiver) = channel();
        Self {
            link: Arc::new(link),
            key: Arc::clone(key),
            answers: (sender, Mutex::new(receiver)),
        }
    }

    /// Loads the next configuration with this token.
    fn reloaded(&self, way: AgentBehaviour) -> Self {
        Self::of(way, &self.key, Arc::clone(&self.link.known))
    }

    fn prove(&self) -> Result<Vec<SignatureScheme>, TokenFault> {
        self.link.prove(0, &public(&self.key))
    }

    /// Proves the key and starts the receiving thread.
    fn serving(self) -> Self {
        self.prove().unwrap();
        self.link.serve().unwrap();
        self
    }

    fn ask(&self) {
        let sender = self.answers.0.clone();
        let reply = SignatureReply(Box::new(move |signature| drop(sender.send(signature))));
        self.link.request(0, SCHEME, b"message", reply);
    }

    /// Waits for the next answer. Returns `true` if it is a signature.
    fn answer(&self) -> bool {
        match self.answers.1.lock().unwrap().recv().unwrap() {
            Ok(signature) => {
                assert!(public(&self.key).verifies(SCHEME, b"message", &signature));
                true
            }
            Err(_) => false,
        }
    }

    /// Replaces the agent, and requests signatures until one succeeds, like clients that retry.
    fn comes_back(&self) {
        while {
            if self.link.is_lost() {
                self.link.replace(agent(&self.key, AgentBehaviour::Signs));
            }
            self.ask();
            !self.answer()
        } {
            thread::yield_now();
        }
    }
}

fn agent(key: &Arc<KeyPair>, way: AgentBehaviour) -> Seqpacket {
    let (here, there) = Seqpacket::pair().unwrap();
    let key = Arc::clone(key);
    thread::spawn(move || play(&there, &key, || way));
    here
}

fn public(key: &KeyPair) -> PublicKey {
    PublicKey::of(&key.subject_public_key_info()).unwrap()
}

const SCHEME: SignatureScheme = SignatureScheme::ECDSA_NISTP256_SHA256;
const TIME_OUT: Duration = Duration::from_millis(200);

#[test]
fn a_failed_agent_fails_its_requests_and_is_replaced() {
    for way in [
        AgentBehaviour::Fails,
        AgentBehaviour::IsSilent,
        AgentBehaviour::Dies,
        AgentBehaviour::Lies,
        AgentBehaviour::SaysMore,
        AgentBehaviour::Talks,
    ] {
        let bench = Bench::new(way).serving();
        (0..50).for_each(|_| bench.ask());
        assert!((0..50).all(|_| !bench.answer()), "{way:?}");
        bench.comes_back();
        let status = bench.link.status();
        assert_eq!(
            (status.available, status.starts, status.in_flight),
            (true, 2, 0),
            "{way:?}"
        );
        assert_eq!(status.signatures, 1, "{way:?}");
    }
}

#[test]
fn a_key_of_another_certificate_is_refused_before_and_after_it_serves() {
    let bench = Bench::new(AgentBehaviour::Signs);
    let other = public(&KeyPair::generate().unwrap());
    let refused = |bench: &Bench| bench.link.prove(0, &other).unwrap_err().to_string();
    assert_eq!(refused(&bench), OTHER);
    let bench = bench.serving();
    assert!(refused(&bench).contains(OTHER));
    assert!(
        bench.prove().is_ok(),
        "a renewed certificate of the same key"
    );
}

#[test]
fn a_proved_key_is_accepted_while_its_token_is_unavailable() {
    let before = Bench::new(AgentBehaviour::Signs).serving();
    let bench = before.reloaded(AgentBehaviour::IsEmpty);
    let other = public(&KeyPair::generate().unwrap());
    let refused = bench.link.prove(0, &other).unwrap_err();
    assert_eq!(refused.to_string(), "no such token");
    let bench = bench.serving();
    bench.ask();
    assert!(!bench.answer());
    let status = bench.link.status();
    assert_eq!((status.available, &*status.fault), (false, "no such token"));
    bench.comes_back();
    assert!(Bench::new(AgentBehaviour::IsEmpty).prove().is_err());
}

/// The configuration in use keeps its agent.
#[test]
fn a_configuration_with_a_refused_pin_or_key_is_rejected() {
    let before = Bench::new(AgentBehaviour::Signs).serving();
    for (way, why) in [
        (AgentBehaviour::Refuses, "PinIncorrect"),
        (AgentBehaviour::LacksKey, "no such private key"),
    ] {
        let refused = before.reloaded(way).prove().unwrap_err();
        assert!(refused.to_string().contains(why));
    }
    before.ask();
    assert!(before.answer());
}

#[test]
fn a_late_agent_does_not_replace_a_working_one() {
    let bench = Bench::new(AgentBehaviour::Signs).serving();
    bench.link.replace(agent(&bench.key, AgentBehaviour::Dies));
    bench.ask();
    assert!(bench.answer());
    assert_eq!(bench.link.status().starts, 1);
}

/// The agent would otherwise run forever.
#[test]
fn an_agent_that_opens_its_token_after_the_link_closed_does_not_serve() {
    let bench = Bench::new(AgentBehaviour::Signs);
    bench.prove().unwrap();
    bench.link.lock().agent = Err(TokenFault::silent());
    let (here, there) = Seqpacket::pair().unwrap();
    let (sender, replacements) = channel();
    sender.send(here).unwrap();
    let (link, key) = (Arc::clone(&bench.link), Arc::clone(&bench.key));
    let weak = Arc::downgrade(&link);
    let serving = thread::spawn(move || run(&weak, &replacements));
    while !link.lock().is_lost {
        thread::yield_now();
    }
    drop((bench, link));
    play(&there, &key, || AgentBehaviour::Signs);
    assert!(serving.join().unwrap().is_none());
}

/// A compromised agent may send any answer.
#[test]
fn each_request_gets_one_answer_from_any_agent() {
    let mut random = fastrand::Rng::with_seed(7512);
    for _ in 0..300 {
        let bench = Bench::new(AgentBehaviour::Signs);
        bench.prove().unwrap();
        let (here, _there) = Seqpacket::pair().unwrap();
        let opened = OpenedAgent {
            socket: here,
            token: OpenToken {
                schemes: Vec::new(),
                faults: Vec::new(),
            },
        };
        bench.link.lock().agent = Ok(Arc::new(opened));
        let asked = random.u64(1..6);
        (0..asked).for_each(|_| bench.ask());
        for _ in 0..random.usize(..20) {
            let number = random.u64(..asked + 3);
            let said = match random.u8(..8) {
                0 => TokenAnswer::Failed(TokenFault::silent()),
                1 => TokenAnswer::Signed {
                    number,
                    signature: Err(TokenFault::silent()),
                },
                _ => TokenAnswer::Signed {
                    number,
                    signature: Ok(vec![random.u8(..); 70]),
                },
            };
            if bench.link.take(said).is_err() {
                break;
            }
        }
        bench.link.abandon(TokenFault::silent());
        let answers = bench.answers.1.lock().unwrap().try_iter().count();
        assert_eq!(answers as u64, asked);
        assert!(bench.link.lock().pending.is_empty());
    }
}
