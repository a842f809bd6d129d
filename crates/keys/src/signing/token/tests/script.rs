//! Simulated agents that run as threads of a test. The test chooses their behaviour for each
//! request.

#![expect(
    clippy::unwrap_used,
    reason = "part of tests: a failure panics, and names say what an agent does"
)]

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::{fmt, thread};

use aws_lc_rs::digest::{Digest, SHA256};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use becket_sys::seqpacket::Seqpacket;
use rcgen::KeyPair;
use rustls::SignatureScheme;

use super::Tokens;
use super::link::TokenFacts;
use super::wire::{LONGEST, OpenToken, TokenAnswer, TokenFault, TokenRequest, receive, write};

/// Behaviour of a simulated agent after it has proved its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentBehaviour {
    Signs,
    Fails,
    /// Signs data that differs from the request.
    SignsOddly,
    IsSilent,
    /// Reads no requests until its behaviour changes.
    Stands,
    Dies,
    Lies,
    SaysMore,
    Talks,
    /// Reports a wrong PIN.
    Refuses,
    /// Reports that the token is missing.
    IsEmpty,
    /// Reports that the key is missing.
    LacksKey,
}

pub const FIRST_KEY: &str = "pkcs11:object=a?module-path=/x";
pub const SECOND_KEY: &str = "pkcs11:object=b?module-path=/x";

pub(super) fn play(socket: &Seqpacket, pair: &KeyPair, way: impl Fn() -> AgentBehaviour) {
    let say = |answer: &TokenAnswer| socket.send(&write(answer), None).ok();
    let open = |fault: Option<&str>| OpenToken {
        schemes: vec![SignatureScheme::ECDSA_NISTP256_SHA256.into()],
        faults: vec![fault.map(|why: &str| TokenFault::Refused(why.to_owned()))],
    };
    let opened = |fault| TokenAnswer::Opened(open(fault));
    say(&match way() {
        AgentBehaviour::Refuses => {
            TokenAnswer::Failed(TokenFault::Refused("C_Login: PinIncorrect".to_owned()))
        }
        AgentBehaviour::IsEmpty => {
            TokenAnswer::Failed(TokenFault::Away("no such token".to_owned()))
        }
        AgentBehaviour::LacksKey => opened(Some("the token has no such private key")),
        _ => opened(None),
    });
    let mut room = vec![0; LONGEST];
    let mut proved = HashSet::new();
    while let Ok(Some((request, _))) = receive::<TokenRequest>(socket, &mut room) {
        let TokenRequest {
            number, key, input, ..
        } = request;
        let way = way();
        let signature = Ok(sign(pair, &input));
        let good = TokenAnswer::Signed { number, signature };
        let signed = |signature| TokenAnswer::Signed { number, signature };
        if proved.insert(key) {
            say(&good);
            continue;
        }
        match way {
            AgentBehaviour::Signs | AgentBehaviour::Stands => say(&good),
            AgentBehaviour::SignsOddly => say(&signed(Ok(vec![7; 70]))),
            AgentBehaviour::Fails | AgentBehaviour::IsEmpty | AgentBehaviour::LacksKey => say(
                &signed(Err(TokenFault::Away("C_Sign: DeviceRemoved\n".to_owned()))),
            ),
            AgentBehaviour::IsSilent | AgentBehaviour::Refuses => None,
            AgentBehaviour::Dies => return,
            AgentBehaviour::Lies => say(&opened(None)),
            AgentBehaviour::SaysMore => say(&TokenAnswer::Signed {
                number: number + 1000,
                signature: Ok(Vec::new()),
            }),
            AgentBehaviour::Talks => socket.send(&[1; 40], None).ok(),
        };
    }
}

fn sign(key: &KeyPair, digest: &[u8]) -> Vec<u8> {
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &key.serialize_der());
    let digest = Digest::import_less_safe(digest, &SHA256);
    let signed = pair.unwrap().sign_digest(&digest.unwrap());
    signed.unwrap().as_ref().to_vec()
}

pub struct Script {
    keys: Vec<KeyPair>,
    way: Mutex<AgentBehaviour>,
    changed: Condvar,
    agents: Mutex<Vec<Weak<Seqpacket>>>,
    known: Mutex<Vec<Arc<TokenFacts>>>,
    odd: AtomicU64,
}

impl Script {
    pub fn new(keys: Vec<KeyPair>) -> Arc<Self> {
        Arc::new(Self {
            keys,
            way: Mutex::new(AgentBehaviour::Signs),
            changed: Condvar::new(),
            agents: Mutex::default(),
            known: Mutex::default(),
            odd: AtomicU64::new(0),
        })
    }

    pub fn go(&self, way: AgentBehaviour) {
        *self.way.lock().unwrap() = way;
        self.changed.notify_all();
    }

    pub fn kill(&self) {
        let agents = self.agents.lock().unwrap();
        agents
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|it| it.end());
    }

    pub fn agents(&self) -> usize {
        let mut agents = self.agents.lock().unwrap();
        agents.retain(|agent| agent.strong_count() > 0);
        agents.len()
    }

    pub fn start(self: &Arc<Self>, key: usize) -> Vec<OwnedFd> {
        if key >= self.keys.len() {
            return Vec::new();
        }
        let (here, there) = Seqpacket::pair().unwrap();
        let there = Arc::new(there);
        self.agents.lock().unwrap().push(Arc::downgrade(&there));
        let script = Arc::clone(self);
        thread::spawn(move || play(&there, &script.keys[key], || script.way()));
        vec![here.into()]
    }

    /// Replaces failed agents of these tokens, and includes the tokens in [`Self::counts`].
    pub fn supervise(self: &Arc<Self>, tokens: &Tokens, key: usize) {
        let mut known = self.known.lock().unwrap();
        for link in &tokens.links {
            if !known.iter().any(|it| Arc::ptr_eq(it, &link.known)) {
                known.push(Arc::clone(&link.known));
            }
        }
        for index in tokens.lost() {
            let agent = self.start(key).into_iter();
            agent.for_each(|agent| tokens.replace(index, agent));
        }
    }

    fn way(&self) -> AgentBehaviour {
        let stands = |way: &mut AgentBehaviour| *way == AgentBehaviour::Stands;
        let way = self.way.lock().unwrap();
        let way = *self.changed.wait_while(way, stands).unwrap();
        self.odd
            .fetch_add(u64::from(way == AgentBehaviour::SignsOddly), Relaxed);
        way
    }

    /// Returns the number of wrong signatures that the agents may have made so far.
    pub fn odd(&self) -> u64 {
        self.odd.load(Relaxed)
    }

    pub fn counts(&self) -> [u64; 2] {
        let known = self.known.lock().unwrap();
        let sum = |count: fn(&TokenFacts) -> u64| known.iter().map(|known| count(known)).sum();
        [
            sum(|known| known.signatures.load(Relaxed)),
            sum(|known| known.failures.load(Relaxed)),
        ]
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Script")
    }
}
