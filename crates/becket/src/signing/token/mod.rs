//! Keys on tokens, by PKCS#11: signatures that are made by another process, which has the module and the PIN.
//!
//! A [`Token`] is one token, as its URIs name it. It has an agent process ([`agent`]), which alone loads the module, and a thread that
//! has the agent started ([`starter`]), hears it and replaces it ([`link`]). Workers ask for signatures as they ask crypto threads, and the answer comes
//! to their mailbox in the same form; nothing of the terminator ever waits for a token, but a start or a reload, which has it prove
//! that it has the key of a certificate.
//!
//! [`Tokens`] knows those that are in use: a reload that names a token again finds it. docs/decisions/0032 says why it is done so.

pub mod agent;
mod link;
mod module;
mod public;
#[cfg(test)]
pub(crate) mod script;
pub mod starter;

use std::cell::RefCell;
use std::fmt;
use std::fs::File;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use becket_config::key_source::{KeyUri, TokenId};
use becket_sys::clock::Stopwatch;
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::sign::{Signer, SigningKey};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};

pub(crate) use self::link::TokenStatus;
use self::link::{Confined, Link, Start};
pub use self::public::PublicKey;
use self::starter::{Starter, StarterProcess};
use super::Request;
use super::queue::{Answers, Asker, Job, Signed};

/// Tokens that are in use, in the order in which they were first named. The default starts no agents, and so finds none.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    used: Arc<Mutex<Vec<Weak<Token>>>>,
    /// Where this program knows what to do when it is executed as an agent, or as what starts those.
    starter: Option<Arc<Starter>>,
}

/// What is asked of all tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TokenLimits {
    /// Signatures that one makes at a time.
    pub sessions: u16,
    /// How long one may take.
    pub time_out: Duration,
    /// The process is going to be confined, or is.
    pub is_sandboxed: bool,
}

/// Finds the keys of one configuration. Tokens that were asked are kept as long as this is: they remember that they have refused a PIN.
#[derive(Debug, Default)]
pub(crate) struct Search {
    tokens: Tokens,
    settings: TokenLimits,
    asked: RefCell<Vec<Arc<Token>>>,
}

/// A token, until nobody has it.
#[derive(Debug)]
struct Token(Arc<Link>);

/// A private key on a token.
#[derive(Clone, Debug)]
pub struct TokenKey(Arc<Held>);

#[derive(Debug)]
struct Held {
    token: Arc<Token>,
    number: u32,
    public: PublicKey,
    schemes: Vec<SignatureScheme>,
}

impl Tokens {
    /// Those of a program that calls [`agent::run`] and [`starter::run`] when it is executed as one of these.
    pub fn with_agents() -> Self {
        Self {
            starter: Some(Arc::default()),
            ..Self::default()
        }
    }

    /// Has agents started by a process that was made for it.
    pub(crate) fn adopt(&self, process: StarterProcess) {
        if let Some(starter) = &self.starter {
            starter.adopt(process);
        }
    }

    /// Before this process meets peers, where it is confined: what it could have agents load is known by now.
    pub(crate) fn seal(&self) {
        self.starter.iter().for_each(|starter| starter.seal());
    }

    /// How those are that are in use.
    pub(crate) fn status(&self) -> Vec<TokenStatus> {
        let tokens = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let used = tokens.iter().filter_map(Weak::upgrade);
        used.map(|token| token.0.status()).collect()
    }

    /// Begins to look for the keys of a configuration.
    pub(crate) fn search(&self, settings: TokenLimits) -> Search {
        Search {
            tokens: self.clone(),
            settings,
            asked: RefCell::default(),
        }
    }

    fn token(&self, id: &TokenId, is_sandboxed: bool) -> io::Result<Arc<Token>> {
        let starter = self.starter.clone();
        let starter = starter.ok_or_else(|| io::Error::other("no agents are started here"))?;
        let mut tokens = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.retain(|token| token.strong_count() > 0);
        let mut used = tokens.iter().filter_map(Weak::upgrade);
        if let Some(token) = used.find(|token| token.0.id == *id) {
            return Ok(token);
        }
        starter.make_ready()?;
        let confined = match is_sandboxed {
            true if starter.is_sealed() => Confined::Already,
            true => Confined::Later,
            false => Confined::No,
        };
        let module = id.module.clone();
        let start = Box::new(move || starter.start(&module));
        let token = Arc::new(Token::start(id.clone(), start, confined)?);
        tokens.push(Arc::downgrade(&token));
        Ok(token)
    }
}

impl Token {
    fn start(id: TokenId, start: Start, confined: Confined) -> io::Result<Self> {
        let link = Arc::new(Link::new(id, start, confined));
        let run = Arc::clone(&link);
        let thread = thread::Builder::new().name("becket-token".into());
        thread.spawn(move || run.run())?;
        Ok(Self(link))
    }
}

impl Search {
    /// Finds a key, and has it signed with. Blocks: a token may take seconds.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(crate) fn key(
        &self,
        uri: &KeyUri,
        pin: Option<File>,
        public: PublicKey,
    ) -> Result<TokenKey, String> {
        let settings = &self.settings;
        let token = self.tokens.token(&uri.token, settings.is_sandboxed);
        let token = token.map_err(|error| error.to_string())?;
        self.asked.borrow_mut().push(Arc::clone(&token));
        let millis = settings.time_out.as_millis();
        let millis = u64::try_from(millis).unwrap_or(u64::MAX);
        token.0.time_out.store(millis, Relaxed);
        token.0.set_pin(pin, settings.sessions);
        let (number, mechanisms) = token.0.prove(uri, public.clone())?;
        let schemes = public.schemes(mechanisms);
        Ok(TokenKey(Arc::new(Held {
            token,
            number,
            public,
            schemes,
        })))
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Link").field(&self.id).finish()
    }
}

impl TokenKey {
    /// Asks for a signature; the answer goes where the job says.
    pub(crate) fn ask(&self, job: Job) {
        self.0.token.0.ask(self.0.number, job);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.token.0.forget(self.number);
    }
}

impl SigningKey for TokenKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let mut schemes = self.0.schemes.iter();
        let scheme = *schemes.find(|scheme| offered.contains(scheme))?;
        let key = self.clone();
        Some(Box::new(WaitingSigner { key, scheme }))
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        Some(self.0.public.info())
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.0.public.algorithm()
    }
}

/// Signs by waiting for the token: for `becket check`. Workers do not wait (`tls/deferred.rs`).
#[derive(Debug)]
struct WaitingSigner {
    key: TokenKey,
    scheme: SignatureScheme,
}

/// Where the answer goes that is waited for.
#[derive(Debug)]
struct Waiter(SyncSender<Signed>);

impl Answers for Waiter {
    fn answer(&self, signed: Vec<Signed>) {
        for signed in signed {
            // Nobody waits any more: no harm.
            self.0.try_send(signed).ok();
        }
    }
}

impl Signer for WaitingSigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let (sender, answer) = sync_channel(1);
        self.key.ask(Job {
            request: Request {
                key: Arc::new(self.key.clone()),
                batch_key: None,
                token: Some(self.key.clone()),
                scheme: self.scheme,
                message: message.to_vec(),
            },
            asker: Asker {
                place: 0,
                number: 0,
            },
            abandoned: Arc::default(),
            asked: Stopwatch::start(),
            answers: Arc::new(Waiter(sender)),
        });
        // Each job is answered, at the latest when its time is over.
        let signed = answer.recv().ok().and_then(|signed| signed.signature);
        signed.unwrap_or_else(|| Err(Error::General("no signature came".into())))
    }

    fn scheme(&self) -> SignatureScheme {
        self.scheme
    }
}
