//! Tokens whose agents are threads of a test: each does what the test has it do, request by request.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread;

use aws_lc_rs::digest::{Digest, SHA256};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use becket_config::key_source::KeyUri;
use becket_proto::token::{Answer, LONGEST, Mechanisms, Request};
use becket_sys::seqpacket::{Packet, Seqpacket};
use rcgen::KeyPair;

use super::link::{Agent, Confined, Link};
use super::{Token, Tokens};

/// What an agent does with a request to sign, once it has proved its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Signs,
    Fails,
    /// Signs what nobody asked for.
    SignsOddly,
    IsSilent,
    /// Hears nothing, until there is another way.
    Stands,
    Dies,
    Lies,
    SaysMore,
    Talks,
    /// Says that the PIN is wrong.
    Refuses,
    /// Has no such token.
    IsEmpty,
}

/// A URI of the first key.
pub(crate) const FIRST_KEY: &str = "pkcs11:object=a?module-path=/x";
/// A URI of the second key.
pub(crate) const SECOND_KEY: &str = "pkcs11:object=b?module-path=/x";

/// An agent that has these keys, called "a", "b" and so on, with P-256.
pub(super) fn play(socket: &Seqpacket, keys: &[KeyPair], way: impl Fn() -> Way) {
    let mut room = [0; LONGEST];
    let (mut found, mut proved) = (HashMap::new(), HashSet::new());
    let say = |number, answer: Answer<'_>| socket.send(&answer.write(number), None).ok();
    while let Ok(Packet::Message(length, _)) = socket.receive(&mut room) {
        let (number, request) = Request::read(&room[..length]).unwrap();
        let way = way();
        let (key, input) = match request {
            Request::Open { .. } => {
                say(
                    number,
                    match way {
                        Way::Refuses => Answer::Refused("C_Login: PinIncorrect"),
                        Way::IsEmpty => Answer::Failed("no such token"),
                        _ => Answer::Opened,
                    },
                );
                continue;
            }
            Request::Find { key, uri } => {
                let object = KeyUri::parse(uri).unwrap().object.unwrap();
                found.insert(key, &keys[usize::from(object.as_bytes()[0] - b'a')]);
                say(number, Answer::Found(Mechanisms::ECDSA));
                continue;
            }
            Request::Sign { key, input, .. } => (key, input),
            _ => panic!("an agent starts nothing"),
        };
        let good = sign(found[&key], input);
        if proved.insert(key) {
            say(number, Answer::Signed(&good));
            continue;
        }
        match way {
            Way::Signs | Way::Stands => say(number, Answer::Signed(&good)),
            Way::SignsOddly => say(number, Answer::Signed(&[7; 70])),
            Way::Fails | Way::IsEmpty => say(number, Answer::Failed("C_Sign: DeviceRemoved\n")),
            Way::IsSilent | Way::Refuses => None,
            Way::Dies => return,
            Way::Lies => say(number, Answer::Opened),
            Way::SaysMore => say(number + 1000, Answer::Signed(&good)),
            Way::Talks => socket.send(&[1; 40], None).ok(),
        };
    }
}

/// A signature of a digest. The library signs messages only, so that this one is of the message that has it.
fn sign(key: &KeyPair, digest: &[u8]) -> Vec<u8> {
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &key.serialize_der());
    let digest = Digest::import_less_safe(digest, &SHA256);
    let signed = pair.unwrap().sign_digest(&digest.unwrap());
    signed.unwrap().as_ref().to_vec()
}

/// A token that all configurations of a test share, and whose agents go the way that it is told.
pub(crate) struct Script {
    keys: Vec<KeyPair>,
    way: Mutex<Way>,
    changed: Condvar,
    agents: Mutex<Vec<Weak<Seqpacket>>>,
    links: Mutex<Vec<Arc<Link>>>,
    odd: AtomicU64,
}

impl Script {
    /// A token with these keys.
    pub(crate) fn new(keys: Vec<KeyPair>) -> Arc<Self> {
        Arc::new(Self {
            keys,
            way: Mutex::new(Way::Signs),
            changed: Condvar::new(),
            agents: Mutex::default(),
            links: Mutex::default(),
            odd: AtomicU64::new(0),
        })
    }

    /// Has agents go another way.
    pub(crate) fn go(&self, way: Way) {
        *self.way.lock().unwrap() = way;
        self.changed.notify_all();
    }

    /// Ends all agents.
    pub(crate) fn kill(&self) {
        let agents = self.agents.lock().unwrap();
        agents
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|it| it.end());
    }

    /// Agents that run.
    pub(crate) fn agents(&self) -> usize {
        let mut agents = self.agents.lock().unwrap();
        agents.retain(|agent| agent.strong_count() > 0);
        agents.len()
    }

    /// The token, which is among those in use for as long as this or a key of it is held.
    pub(crate) fn plug_in(self: &Arc<Self>, tokens: &Tokens) -> impl Sized + use<> {
        let id = KeyUri::parse(FIRST_KEY).unwrap().token;
        let mut used = tokens.used.lock().unwrap();
        if let Some(token) = used.iter().find_map(Weak::upgrade) {
            return token;
        }
        let script = Arc::clone(self);
        let token = Token::start(id, Box::new(move || script.start()), Confined::No).unwrap();
        self.links.lock().unwrap().push(Arc::clone(&token.0));
        let token = Arc::new(token);
        *used = vec![Arc::downgrade(&token)];
        token
    }

    fn start(self: &Arc<Self>) -> std::io::Result<Agent> {
        let (here, there) = Seqpacket::pair()?;
        let there = Arc::new(there);
        self.agents.lock().unwrap().push(Arc::downgrade(&there));
        let script = Arc::clone(self);
        thread::spawn(move || play(&there, &script.keys, || script.way()));
        Ok(Agent {
            socket: Arc::new(here),
            process: None,
        })
    }

    fn way(&self) -> Way {
        let stands = |way: &mut Way| *way == Way::Stands;
        let way = self.way.lock().unwrap();
        let way = *self.changed.wait_while(way, stands).unwrap();
        self.odd
            .fetch_add(u64::from(way == Way::SignsOddly), Relaxed);
        way
    }

    /// How many signatures are none, at most.
    pub(crate) fn odd(&self) -> u64 {
        self.odd.load(Relaxed)
    }

    /// Signatures that it made, and that it did not make.
    pub(crate) fn counts(&self) -> [u64; 2] {
        let links = self.links.lock().unwrap();
        let sum = |count: fn(&Link) -> u64| links.iter().map(|link| count(link)).sum();
        [
            sum(|link| link.signatures.load(Relaxed)),
            sum(|link| link.failures.load(Relaxed)),
        ]
    }

    /// Keys of it that are in use.
    pub(crate) fn keys(&self) -> usize {
        let links = self.links.lock().unwrap();
        links.iter().map(|link| link.keys()).sum()
    }

    /// How often it was plugged in, and how many of those are still served.
    pub(crate) fn threads(&self) -> (usize, usize) {
        let links = self.links.lock().unwrap();
        let served = links.iter().filter(|link| Arc::strong_count(link) > 1);
        (links.len(), served.count())
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Script")
    }
}
