//! What is known of a token and its keys, and what its agent was asked and has not answered.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;

use becket_config::key_source::KeyUri;
use becket_proto::token::{Mechanisms, Request};
use becket_sys::clock::Stopwatch;
use becket_sys::seqpacket::Seqpacket;
use rustls::SignatureScheme;

use crate::signing::queue::Job;
use crate::signing::token::public::{PublicKey, input};

#[derive(Default)]
pub(super) struct State {
    /// Of the agent that runs.
    pub(super) socket: Option<Arc<Seqpacket>>,
    /// It has found the token.
    pub(super) is_open: bool,
    pub(super) pending: BTreeMap<u64, Pending>,
    pub(super) last: u64,
    pub(super) keys: BTreeMap<u32, Key>,
    pub(super) last_key: u32,
    pub(super) sessions: u16,
    pub(super) pin: Option<File>,
    /// The token refused the PIN of this file: it is not asked again with the same, since some lock themselves.
    pub(super) refused: bool,
    /// Why the token is not there; the last reason.
    pub(super) fault: String,
    /// What the log was told last.
    pub(super) said: Option<bool>,
    /// Start the next agent at once.
    pub(super) hurries: bool,
    pub(super) is_closed: bool,
}

/// A request that was not answered.
pub(super) struct Pending {
    pub(super) what: Asked,
    pub(super) since: Stopwatch,
}

pub(super) enum Asked {
    Open,
    Find(u32),
    /// To sign a challenge.
    Proof(u32, Challenge),
    Job(Job),
}

pub(super) struct Challenge {
    pub(super) scheme: SignatureScheme,
    pub(super) message: [u8; 32],
    pub(super) mechanisms: Mechanisms,
}

pub(super) struct Key {
    pub(super) uri: KeyUri,
    pub(super) public: PublicKey,
    pub(super) standing: Standing,
    /// What its token can do. It was proved once that it has the key.
    pub(super) proved: Option<Mechanisms>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Asked,
    Ready,
    Lost(String),
}

impl State {
    /// Every key that is in use signs.
    pub(super) fn is_available(&self) -> bool {
        let mut needed = self.keys.values().filter(|key| key.proved.is_some());
        needed.all(|key| key.standing == Standing::Ready)
    }

    pub(super) fn note(&mut self, what: Asked) -> u64 {
        self.last += 1;
        let since = Stopwatch::start();
        self.pending.insert(self.last, Pending { what, since });
        self.last
    }

    /// Asks the agent, or gives back what could not be asked.
    pub(super) fn send(&mut self, request: &Request<'_>, what: Asked) -> Result<(), Asked> {
        let Some(socket) = self.socket.clone() else {
            return Err(what);
        };
        let number = self.note(what);
        match socket.send(&request.write(number), None) {
            Ok(()) => Ok(()),
            Err(_) => match self.pending.remove(&number) {
                Some(pending) => Err(pending.what),
                None => Ok(()),
            },
        }
    }

    pub(super) fn find(&mut self, number: u32) {
        let Some(key) = self.keys.get_mut(&number) else {
            return;
        };
        key.standing = Standing::Asked;
        let uri = key.uri.to_string();
        let request = Request::Find {
            key: number,
            uri: &uri,
        };
        if self.send(&request, Asked::Find(number)).is_err() {
            self.lose(number, "it does not read what it is asked".to_owned());
        }
    }

    /// Has the agent sign what nobody could have signed before.
    pub(super) fn challenge(&mut self, number: u32, mechanisms: Mechanisms) {
        let Some(key) = self.keys.get_mut(&number) else {
            return;
        };
        let Some(scheme) = key.public.schemes(mechanisms).first().copied() else {
            let why = "the token has no mechanism for the kind of key in the certificate";
            return self.lose(number, why.to_owned());
        };
        let mut message = [0; 32];
        if aws_lc_rs::rand::fill(&mut message).is_err() {
            return self.lose(number, "no random numbers".to_owned());
        }
        let request = Request::Sign {
            key: number,
            scheme: scheme.into(),
            input: &input(scheme, &message),
        };
        let challenge = Challenge {
            scheme,
            message,
            mechanisms,
        };
        if self
            .send(&request, Asked::Proof(number, challenge))
            .is_err()
        {
            self.lose(number, "it does not read what it is asked".to_owned());
        }
    }

    pub(super) fn judge(&mut self, number: u32, challenge: &Challenge, signature: &[u8]) {
        let Some(key) = self.keys.get_mut(&number) else {
            return;
        };
        if key
            .public
            .verifies(challenge.scheme, &challenge.message, signature)
        {
            key.standing = Standing::Ready;
            key.proved = Some(challenge.mechanisms);
        } else {
            let why = "the key on the token belongs to another certificate";
            self.lose(number, why.to_owned());
        }
    }

    pub(super) fn lose(&mut self, number: u32, why: String) {
        if let Some(key) = self.keys.get_mut(&number) {
            key.standing = Standing::Lost(why.clone());
            self.fault = why;
        }
    }
}
