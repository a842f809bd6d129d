//! Keys on PKCS#11 tokens: a separate process with the module and the PIN makes the signatures.
//!
//! The supervisor starts an [`agent`] for each token before it sends a configuration ([`agents`]),
//! and passes a socket for each. The serving process matches sockets to tokens by their order
//! ([`Tokens`]). While a configuration loads, each key signs a challenge to prove that it belongs
//! to its certificate. After that, a thread per token receives answers ([`link`]), and workers send
//! requests without waiting. If a token fails, the serving process requests another agent from the
//! supervisor, by the token's index. See docs/decisions/0032.

pub mod agent;
pub mod agents;
mod link;
mod module;
mod public;
#[cfg(any(test, feature = "script"))]
#[path = "tests/script.rs"]
pub mod script;
pub mod wire;

use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};

use becket_config::file::File;
use becket_config::key_source::KeyUri;
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::sign::{Signer, SigningKey};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};

pub use self::link::TokenStatus;
use self::link::{SignatureReply, TokenLink};
pub use self::public::PublicKey;
use self::wire::{TokenFault, TokenSpec};

/// The tokens of a configuration, in the order in which its certificates first use them.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    links: Vec<Arc<TokenLink>>,
    /// Sockets of the agents for the next configuration, in the order of its tokens.
    given: Arc<Mutex<Vec<OwnedFd>>>,
}

#[derive(Clone, Debug)]
pub struct TokenKey(Arc<ProvedKey>);

#[derive(Debug)]
struct ProvedKey {
    link: Arc<TokenLink>,
    key: usize,
    public: PublicKey,
    schemes: Vec<SignatureScheme>,
}

impl Tokens {
    /// Stores the agents' sockets for the next configuration. Keeps the tokens of the previous
    /// configuration, `before`.
    pub fn adopt(sockets: Vec<OwnedFd>, before: &Self) -> Self {
        Self {
            links: before.links.clone(),
            given: Arc::new(Mutex::new(sockets)),
        }
    }

    /// Opens the tokens of a new configuration. Waits until each agent has opened its token or has
    /// failed.
    pub fn open(&self, file: &File) -> Self {
        let given = mem::take(&mut *self.given.lock().unwrap_or_else(PoisonError::into_inner));
        let open = |(spec, socket): (TokenSpec, OwnedFd)| {
            let id = KeyUri::parse(spec.keys.first()?).ok()?.token;
            let before = self.links.iter().find(|link| link.id == id);
            let known = before.map(|link| Arc::clone(&link.known));
            let (time_out, token) = (file.timeouts.pkcs11, (id, spec.keys));
            let link = TokenLink::open(token, time_out, socket.into(), known.unwrap_or_default());
            Some(Arc::new(link))
        };
        let tokens = wire::tokens(file).into_iter().zip(given);
        Self {
            links: tokens.filter_map(open).collect(),
            given: Arc::default(),
        }
    }

    /// Proves that a key on a token belongs to a certificate. May block for seconds, so it is
    /// called only while a configuration is loaded.
    ///
    /// # Errors
    /// Returns the reason if the key cannot be used.
    pub fn key(&self, uri: &KeyUri, public: PublicKey) -> Result<TokenKey, TokenFault> {
        let uri = uri.to_string();
        let index = |link: &TokenLink| link.keys.iter().position(|key| *key == uri);
        let mut links = self.links.iter();
        let found = links.find_map(|link| Some((Arc::clone(link), index(link)?)));
        let (link, key) = found.ok_or_else(|| TokenFault::Refused(NO_AGENT.to_owned()))?;
        let schemes = link.prove(key, &public)?;
        Ok(TokenKey(Arc::new(ProvedKey {
            link,
            key,
            public,
            schemes,
        })))
    }

    /// Returns `true` if a key was proved with one of these tokens and this URI.
    pub fn has(&self, key: &TokenKey, uri: &KeyUri) -> bool {
        let uri = uri.to_string();
        let of_link = self
            .links
            .iter()
            .find(|link| Arc::ptr_eq(link, &key.0.link));
        of_link.is_some_and(|link| link.keys.get(key.0.key) == Some(&uri))
    }

    /// Starts a thread for each token, after which workers can request signatures. Threads inherit
    /// the sandbox of the caller.
    ///
    /// # Errors
    /// Fails if a thread cannot be started.
    pub fn serve(&self) -> io::Result<()> {
        self.links.iter().try_for_each(|link| link.serve())
    }

    /// Returns the indices of tokens that need a new agent.
    pub fn lost(&self) -> Vec<usize> {
        let links = self.links.iter().enumerate();
        let lost = links.filter(|(_, link)| link.is_lost());
        lost.map(|(index, _)| index).collect()
    }

    pub fn replace(&self, index: usize, socket: OwnedFd) {
        if let Some(link) = self.links.get(index) {
            link.replace(socket.into());
        }
    }

    pub fn status(&self) -> Vec<TokenStatus> {
        self.links.iter().map(|link| link.status()).collect()
    }
}

impl TokenKey {
    /// Returns `true` if both are one key of one agent's socket. Each configuration has its own
    /// sockets.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Requests a signature without waiting. May call `reply` on another thread.
    pub fn request(
        &self,
        scheme: SignatureScheme,
        message: &[u8],
        reply: impl FnOnce(Result<Vec<u8>, Error>) + Send + 'static,
    ) {
        let reply = SignatureReply(Box::new(reply));
        self.0.link.request(self.0.key, scheme, message, reply);
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

/// Signer for `becket check` that blocks until the token answers. Workers use a signer that does
/// not block (`crates/tls/src/served_key.rs`).
#[derive(Debug)]
struct WaitingSigner {
    key: TokenKey,
    scheme: SignatureScheme,
}

impl Signer for WaitingSigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let (sender, answer) = channel();
        // Sending cannot fail, because the receiver lives until the answer arrives.
        let reply = move |signature| drop(sender.send(signature));
        self.key.request(self.scheme, message, reply);
        // Waits for at most `timeouts.pkcs11`, because each request receives an answer within this
        // time.
        let signature = answer.recv().ok();
        signature.unwrap_or_else(|| Err(Error::General("the token did not sign".into())))
    }

    fn scheme(&self) -> SignatureScheme {
        self.scheme
    }
}

const NO_AGENT: &str = "no agent was started for this token; put the configuration in a regular file and restart becket";
