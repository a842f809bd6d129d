//! Keys on tokens, by PKCS#11: signatures that are made by another process, which has the module and the PIN.
//!
//! The supervisor starts a [`agent`] for each token of a configuration before it hands the configuration over ([`agents`]), and
//! passes one socket for each. The serving process pairs them with the tokens by their order ([`Tokens`]). While a configuration is
//! loaded, each key signs a challenge, which proves that it belongs to its certificate. After that a thread for each token receives
//! answers ([`link`]); workers send requests themselves, without waiting. A token that fails gets another agent: the
//! serving process asks the supervisor for it by the token's index. See docs/decisions/0032.

pub mod agent;
pub mod agents;
mod link;
mod module;
mod public;
#[cfg(any(test, feature = "script"))]
pub mod script;
pub mod wire;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::{fmt, mem};

use becket_config::file::File;
use becket_config::key_source::KeyUri;
use becket_sys::clock::Stopwatch;
use becket_sys::seqpacket::Seqpacket;
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::sign::{Signer, SigningKey};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};

use self::link::Link;
pub use self::link::TokenStatus;
pub use self::public::PublicKey;
use super::Request;
use super::queue::{Answers, Asker, Job, Signed};

/// The tokens of a configuration, in the order of their first keys.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    tokens: Vec<Arc<Token>>,
    /// Sockets of agents for a configuration that is about to be loaded.
    given: Arc<Mutex<Vec<OwnedFd>>>,
}

/// A token. Its agent ends when nothing has this any more.
#[derive(Debug)]
struct Token(Arc<Link>);

/// A private key on a token.
#[derive(Clone, Debug)]
pub struct TokenKey(Arc<Held>);

#[derive(Debug)]
struct Held {
    token: Arc<Token>,
    /// Index of the key.
    key: usize,
    public: PublicKey,
    schemes: Vec<SignatureScheme>,
}

impl Tokens {
    /// Takes the sockets of agents that were started for a configuration, which follows one with the tokens `before`.
    pub fn adopt(sockets: Vec<OwnedFd>, before: &Self) -> Self {
        Self {
            tokens: before.tokens.clone(),
            given: Arc::new(Mutex::new(sockets)),
        }
    }

    /// Waits until the agents have opened the tokens of a configuration that is being loaded.
    pub fn open(&self, file: &File) -> Self {
        let given = mem::take(&mut *self.given.lock().unwrap_or_else(PoisonError::into_inner));
        let time_out = file.timeouts.token;
        let open = |(spec, socket): (wire::TokenSpec, OwnedFd)| {
            let id = KeyUri::parse(spec.keys.first()?).ok()?.token;
            let mut before = self.tokens.iter().map(|token| &token.0);
            let known = before.find(|link| link.id == id).map(|it| it.known.clone());
            let link = Link::open(
                (id, spec.keys),
                time_out,
                Seqpacket::from(socket),
                known.unwrap_or_default(),
            );
            Some(Arc::new(Token(Arc::new(link))))
        };
        Self {
            tokens: wire::tokens(file)
                .into_iter()
                .zip(given)
                .filter_map(open)
                .collect(),
            given: Arc::default(),
        }
    }

    /// Has a key prove that it belongs to a certificate. Blocks while a configuration is loaded: a token may take seconds.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn key(&self, uri: &KeyUri, public: PublicKey) -> Result<TokenKey, String> {
        let uri = uri.to_string();
        let index = |token: &Token| token.0.keys.iter().position(|key| *key == uri);
        let mut tokens = self.tokens.iter();
        let found = tokens.find_map(|token| Some((token, index(token)?)));
        let (token, key) = found.ok_or(NO_AGENT)?;
        let schemes = public.schemes(token.0.prove(key, &public)?);
        Ok(TokenKey(Arc::new(Held {
            token: Arc::clone(token),
            key,
            public,
            schemes,
        })))
    }

    /// Starts a thread for each token. From then on workers can ask for signatures. Threads inherit the sandbox of the one that calls.
    ///
    /// # Errors
    /// When the system gives no more threads.
    pub fn serve(&self) -> io::Result<()> {
        self.tokens.iter().try_for_each(|token| token.0.serve())
    }

    /// The indices of tokens that need another agent: each once a second.
    pub fn lost(&self) -> Vec<usize> {
        let tokens = self.tokens.iter().enumerate();
        let lost = tokens.filter(|(_, token)| token.0.needs_agent());
        lost.map(|(index, _)| index).collect()
    }

    /// Gives a token another agent.
    pub fn replace(&self, index: usize, socket: OwnedFd) {
        if let Some(token) = self.tokens.get(index) {
            token.0.replace(Seqpacket::from(socket));
        }
    }

    /// Returns the status of each token.
    pub fn status(&self) -> Vec<TokenStatus> {
        self.tokens.iter().map(|token| token.0.status()).collect()
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
    pub fn ask(&self, job: Job) {
        self.0.token.0.ask(self.0.key, job);
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

#[derive(Debug)]
struct Waiter(SyncSender<Signed>);

impl Answers for Waiter {
    fn answer(&self, signed: Vec<Signed>) {
        for signed in signed {
            // Fails after the waiting thread has ended.
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

const NO_AGENT: &str = "no process was started for this token: restart becket, with its configuration in a regular file";
