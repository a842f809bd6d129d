//! The link to one token: its agent process, the requests in flight, and the state of its keys.
//!
//! A link starts with an agent that opens its token. The thread that loads the configuration then
//! proves each key ([`TokenLink::prove`]): the token signs a challenge, and the certificate must
//! verify the signature. [`TokenLink::serve`] starts a thread that receives answers.
//!
//! This thread drops an agent that exits, sends an unexpected message, does not answer in time, or
//! fails to sign. A new agent is needed because a module call cannot be cancelled, and many modules
//! do not recover from a lost token. The thread then waits for a replacement
//! ([`TokenLink::replace`]), which must prove every key again.
//!
//! Workers send requests on the same socket without waiting. The thread has only a weak reference
//! to the link, so dropping the link ends the thread and the agent.
//!
//! A compromised agent can make handshakes fail, but nothing else.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use std::{fmt, io, mem, thread};

use becket_config::key_source::TokenId;
use becket_sys::clock::Stopwatch;
use becket_sys::seqpacket::Seqpacket;
use rustls::{Error, SignatureScheme};

use super::public::PublicKey;
use super::wire::{self, LONGEST, OpenToken, TokenAnswer, TokenFault, TokenRequest};

#[derive(Debug)]
pub(super) struct TokenLink {
    pub(super) id: TokenId,
    /// URIs of the keys; requests refer to a key by its index.
    pub(super) keys: Vec<String>,
    pub(super) known: Arc<TokenFacts>,
    time_out: Duration,
    last: AtomicU64,
    state: Mutex<LinkState>,
}

/// State of a token that survives reloads.
#[derive(Debug, Default)]
pub(super) struct TokenFacts {
    /// Public keys and schemes of keys that have signed a challenge, by URI.
    proved: Mutex<BTreeMap<String, (PublicKey, Vec<SignatureScheme>)>>,
    /// `true` after the token was logged as unavailable, to log this only once.
    is_away: AtomicBool,
    pub(super) signatures: AtomicU64,
    pub(super) failures: AtomicU64,
    starts: AtomicU64,
}

#[derive(Debug)]
struct LinkState {
    /// The current agent, or the reason why no agent is available.
    agent: Result<Arc<OpenedAgent>, TokenFault>,
    /// Keys that certificates use, by index.
    keys: BTreeMap<usize, KeyProof>,
    pending: BTreeMap<u64, (SignatureReply, Stopwatch)>,
    /// Sends new agents to the thread; `None` before the thread starts.
    replacements: Option<Sender<Seqpacket>>,
    /// `true` while the thread waits for a replacement agent.
    is_lost: bool,
}

#[derive(Clone, Debug)]
struct KeyProof {
    public: PublicKey,
    /// `Ok` if the current agent can sign with this key, otherwise the reason.
    proved: Result<(), TokenFault>,
}

pub(super) struct SignatureReply(pub(super) Box<dyn FnOnce(Result<Vec<u8>, Error>) + Send>);

impl fmt::Debug for SignatureReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SignatureReply")
    }
}

#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct TokenStatus {
    pub module: String,
    pub token: String,
    /// `true` if all keys in use can sign.
    pub available: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fault: String,
    pub signatures: u64,
    /// Number of signatures that failed or timed out.
    pub failures: u64,
    pub in_flight: usize,
    pub starts: u64,
}

#[derive(Debug)]
struct OpenedAgent {
    socket: Seqpacket,
    token: OpenToken,
}

impl OpenedAgent {
    fn by(socket: Seqpacket) -> Result<Arc<Self>, TokenFault> {
        match first_answer(&socket)? {
            TokenAnswer::Opened(token) => Ok(Arc::new(Self { socket, token })),
            TokenAnswer::Failed(fault) => Err(fault),
            TokenAnswer::Signed { .. } => Err(TokenFault::unexpected()),
        }
    }

    /// Requests the signature of a challenge to prove possession of the key. Returns the schemes of
    /// the key. No other request may be in flight.
    fn prove(&self, key: usize, public: &PublicKey) -> Result<Vec<SignatureScheme>, TokenFault> {
        let refused = |why: &str| Err(TokenFault::Refused(why.to_owned()));
        match self.token.faults.get(key) {
            Some(None) => {}
            Some(Some(fault)) => return Err(fault.clone()),
            None => return Err(TokenFault::unexpected()),
        }
        let schemes = public.schemes(&self.token.schemes);
        let Some(scheme) = schemes.first().copied() else {
            return refused("the token has no mechanism for the kind of key in the certificate");
        };
        let mut message = [0; 32];
        let random = aws_lc_rs::rand::fill(&mut message);
        random.map_err(|_| TokenFault::Away("no random bytes from the system".to_owned()))?;
        let packet = TokenRequest::packet(0, key, scheme, &message);
        self.socket.send(&packet, None)?;
        let TokenAnswer::Signed {
            number: 0,
            signature,
        } = first_answer(&self.socket)?
        else {
            return Err(TokenFault::unexpected());
        };
        if public.verifies(scheme, &message, &signature?) {
            Ok(schemes)
        } else {
            refused(OTHER)
        }
    }
}

impl TokenLink {
    /// Creates the link to a token. Waits until the agent has opened the token.
    pub(super) fn open(
        (id, keys): (TokenId, Vec<String>),
        time_out: Duration,
        socket: Seqpacket,
        known: Arc<TokenFacts>,
    ) -> Self {
        known.starts.fetch_add(1, Relaxed);
        Self {
            id,
            keys,
            known,
            time_out,
            last: AtomicU64::new(0),
            state: Mutex::new(LinkState {
                agent: OpenedAgent::by(socket),
                keys: BTreeMap::new(),
                pending: BTreeMap::new(),
                replacements: None,
                is_lost: false,
            }),
        }
    }

    /// Proves that the token holds the key of a certificate, and returns the schemes of the key.
    /// Waits for the agent before [`Self::serve`]; later, accepts only keys that were proved
    /// before. A key that was proved in an earlier configuration also counts as proved while its
    /// token is unavailable.
    pub(super) fn prove(
        &self,
        key: usize,
        public: &PublicKey,
    ) -> Result<Vec<SignatureScheme>, TokenFault> {
        let known = self.known.proved.lock();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        let uri = self.keys.get(key).cloned().unwrap_or_default();
        let before = known.get(&uri).filter(|(of, _)| of == public);
        let before = before.map(|(_, schemes)| schemes.clone());
        let state = self.lock();
        if state.replacements.is_some() {
            // A private key has exactly one public key, so the key does not belong to this
            // certificate.
            let why = || format!("{OTHER}; if it was replaced, reload becket");
            return before.ok_or_else(|| TokenFault::Refused(why()));
        }
        let agent = state.agent.clone();
        drop(state);
        let outcome = agent.and_then(|agent| agent.prove(key, public));
        let proved = outcome.as_ref().map(drop).map_err(TokenFault::clone);
        let schemes = match (outcome, before) {
            (Ok(schemes), _) | (Err(TokenFault::Away(_)), Some(schemes)) => schemes,
            (Err(fault), _) => return Err(fault),
        };
        known.insert(uri, (public.clone(), schemes.clone()));
        let public = public.clone();
        self.lock().keys.insert(key, KeyProof { public, proved });
        Ok(schemes)
    }

    /// Starts the thread that receives answers, unless it runs already.
    pub(super) fn serve(self: &Arc<Self>) -> io::Result<()> {
        let mut state = self.lock();
        if state.replacements.is_some() {
            return Ok(());
        }
        let (sender, replacements) = channel();
        state.replacements = Some(sender);
        drop(state);
        self.log_availability();
        let link = Arc::downgrade(self);
        let thread = thread::Builder::new().name("becket-token".into());
        thread.spawn(move || run(&link, &replacements)).map(drop)
    }

    /// Requires a replacement agent to prove all keys. Uses the agent if it can sign with at least
    /// one of them.
    fn adopt(&self, agent: Arc<OpenedAgent>) {
        let mut keys = self.lock().keys.clone();
        for (index, key) in &mut keys {
            key.proved = agent.prove(*index, &key.public).map(drop);
        }
        let fault = keys.values().find_map(|key| key.proved.clone().err());
        let is_useless = keys.values().all(|key| key.proved.is_err());
        let mut state = self.lock();
        state.keys = keys;
        state.agent = fault.filter(|_| is_useless).map_or(Ok(agent), Err);
        drop(state);
        self.log_availability();
    }

    /// Returns `true` if the token needs another agent.
    pub(super) fn is_lost(&self) -> bool {
        self.lock().is_lost
    }

    /// Replaces the agent if the token has none. Otherwise drops the new agent: it was requested
    /// before a reload started another one.
    pub(super) fn replace(&self, socket: Seqpacket) {
        let mut state = self.lock();
        if mem::take(&mut state.is_lost)
            && let Some(replacements) = &state.replacements
        {
            self.known.starts.fetch_add(1, Relaxed);
            // Fails only if the thread has panicked.
            replacements.send(socket).ok();
        }
    }

    /// Requests a signature. Fails at once if the agent cannot sign with the key.
    pub(super) fn request(
        &self,
        key: usize,
        scheme: SignatureScheme,
        message: &[u8],
        reply: SignatureReply,
    ) {
        let number = self.last.fetch_add(1, Relaxed) + 1;
        let packet = TokenRequest::packet(number, key, scheme, message);
        let mut state = self.lock();
        let signs = state.keys.get(&key).is_some_and(|key| key.proved.is_ok());
        let agent = state.agent.as_ref().ok().filter(|_| signs);
        if agent.is_some_and(|agent| agent.socket.send(&packet, None).is_ok()) {
            state.pending.insert(number, (reply, Stopwatch::start()));
        } else {
            drop(state);
            self.fail(reply);
        }
    }

    fn fail(&self, SignatureReply(reply): SignatureReply) {
        self.known.failures.fetch_add(1, Relaxed);
        reply(Err(Error::General("the token did not sign".into())));
    }

    fn take(&self, answer: TokenAnswer) -> Result<(), TokenFault> {
        let TokenAnswer::Signed { number, signature } = answer else {
            return Err(TokenFault::unexpected());
        };
        let pending = self.lock().pending.remove(&number);
        let (reply, _) = pending.ok_or_else(TokenFault::unexpected)?;
        match signature {
            Ok(signature) => {
                self.known.signatures.fetch_add(1, Relaxed);
                (reply.0)(Ok(signature));
                Ok(())
            }
            Err(fault) => {
                self.fail(reply);
                Err(fault)
            }
        }
    }

    /// Drops the agent. All requests in flight fail with `fault`.
    fn abandon(&self, fault: TokenFault) {
        let mut state = self.lock();
        let keys = state.keys.values_mut();
        keys.for_each(|key| key.proved = Err(fault.clone()));
        state.agent = Err(fault);
        state.is_lost = true;
        let pending = mem::take(&mut state.pending);
        drop(state);
        self.log_availability();
        pending
            .into_values()
            .for_each(|(reply, _)| self.fail(reply));
    }

    fn log_availability(&self) {
        let status = self.status();
        let (module, token) = (status.module, status.token);
        let was_away = self.known.is_away.swap(!status.available, Relaxed);
        if status.available && was_away {
            tracing::info!(name: "token-available", module, token, "PKCS#11 token available");
        } else if !status.available && !was_away {
            let error = status.fault;
            tracing::error!(name: "token-unavailable", module, token, error, "PKCS#11 token not available");
        }
    }

    pub(super) fn status(&self) -> TokenStatus {
        let state = self.lock();
        let mut keys = state.keys.values();
        let fault = keys.find_map(|key| key.proved.as_ref().err());
        TokenStatus {
            module: self.id.module.to_string_lossy().into_owned(),
            token: self.id.name(),
            available: fault.is_none(),
            fault: fault.map(ToString::to_string).unwrap_or_default(),
            signatures: self.known.signatures.load(Relaxed),
            failures: self.known.failures.load(Relaxed),
            in_flight: state.pending.len(),
            starts: self.known.starts.load(Relaxed),
        }
    }

    fn lock(&self) -> MutexGuard<'_, LinkState> {
        // The state is valid even after a panic: requests without an answer time out.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for TokenLink {
    fn drop(&mut self) {
        // No request is in flight here, because each request holds its key, and the key holds the
        // link.
        if let Ok(agent) = &self.lock().agent {
            agent.socket.end();
        }
    }
}

/// Receives the answers of the agent and of its replacements. Returns `None` after the link was
/// dropped.
fn run(link: &Weak<TokenLink>, replacements: &Receiver<Seqpacket>) -> Option<()> {
    loop {
        let agent = link.upgrade()?.lock().agent.clone();
        let fault = match agent {
            Ok(agent) => receive_answers(link, &agent.socket)?,
            Err(fault) => fault,
        };
        link.upgrade()?.abandon(fault);
        let opened = OpenedAgent::by(replacements.recv().ok()?);
        match opened {
            Ok(agent) => link.upgrade()?.adopt(agent),
            Err(fault) => link.upgrade()?.lock().agent = Err(fault),
        }
    }
}

/// Receives answers until the agent fails. Returns `None` after the link was dropped.
fn receive_answers(link: &Weak<TokenLink>, socket: &Seqpacket) -> Option<TokenFault> {
    let time_out = link.upgrade()?.time_out;
    let is_late = |(_, since): &(SignatureReply, Stopwatch)| since.elapsed() > time_out;
    let mut room = vec![0; LONGEST];
    loop {
        let is_ready = socket.wait(time_out / 4);
        let link = link.upgrade()?;
        let received = match is_ready {
            Ok(false) => Ok(()),
            Ok(true) => receive(socket, &mut room).and_then(|answer| link.take(answer)),
            Err(error) => Err(error.into()),
        };
        if let Err(fault) = received {
            return Some(fault);
        } else if link.lock().pending.values().any(is_late) {
            return Some(TokenFault::silent());
        }
    }
}

impl TokenFault {
    fn unexpected() -> Self {
        Self::Away("the token agent sent an unexpected message".to_owned())
    }

    fn silent() -> Self {
        Self::Away("the token did not answer in time".to_owned())
    }
}

impl fmt::Display for TokenFault {
    /// Writes the reason without control characters and with a bounded length, which is safe for a
    /// log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Away(why) | Self::Refused(why)) = self;
        let plain = why.chars().filter(|c| !c.is_control());
        f.write_str(&plain.take(LONGEST_REASON).collect::<String>())
    }
}

impl From<io::Error> for TokenFault {
    fn from(error: io::Error) -> Self {
        Self::Away(error.to_string())
    }
}

/// Waits for the first answer of an agent, for at most `STARTS`.
fn first_answer(socket: &Seqpacket) -> Result<TokenAnswer, TokenFault> {
    if socket.wait(STARTS)? {
        receive(socket, &mut vec![0; LONGEST])
    } else {
        Err(TokenFault::silent())
    }
}

fn receive(socket: &Seqpacket, room: &mut [u8]) -> Result<TokenAnswer, TokenFault> {
    match wire::receive(socket, room)? {
        Some((answer, None)) => Ok(answer),
        Some(_) => Err(TokenFault::unexpected()),
        None => Err(TokenFault::Away("the token agent exited".to_owned())),
    }
}

/// Time limit for loading a module, logging in, finding a key, and signing once. Network tokens
/// need seconds.
const STARTS: Duration = Duration::from_secs(20);
/// Maximum length of a logged reason in characters.
const LONGEST_REASON: usize = 300;
const OTHER: &str = "the key on the token belongs to another certificate";

#[cfg(test)]
mod tests;
