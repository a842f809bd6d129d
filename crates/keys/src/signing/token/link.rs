//! The way to one token: the agent that has it, what it was asked, and what is known of its keys.
//!
//! A link begins with an agent that opens its token, and proves the keys of certificates one after the other ([`Link::prove`]), on the thread
//! that loads the configuration. [`Link::serve`] starts a thread that receives answers. It drops an agent that ends, answers what was not asked,
//! does not answer in time or fails to sign: a call of a module cannot be broken off, and a module that has lost its token often
//! does not find it again. Then it waits for another one ([`Link::replace`]), which has to prove every key again. Requests are sent
//! by the workers, on the same socket, without waiting.
//!
//! The agent may be under foreign control: it can end handshakes, and nothing else.

use std::collections::BTreeMap;
use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use becket_config::key_source::TokenId;
use becket_sys::clock::Stopwatch;
use becket_sys::seqpacket::{Packet, Seqpacket};

use super::public::{PublicKey, input};
use super::wire::{LONGEST, Mechanisms, TokenAnswer, TokenFault, TokenRequest, read, write};
use crate::signing::queue::{Job, answer};

/// State that the thread of a token shares with workers.
pub(super) struct Link {
    pub(super) id: TokenId,
    /// URIs by index.
    pub(super) keys: Vec<String>,
    pub(super) known: Arc<Known>,
    /// How long a signature may take.
    time_out: Duration,
    /// The agent, until there is a thread.
    opened: Mutex<Option<Result<Opened, TokenFault>>>,
    /// Number of the last request.
    last: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

/// Facts about a token that outlive a configuration.
#[derive(Debug, Default)]
pub(super) struct Known {
    proved: Mutex<BTreeMap<String, (PublicKey, Mechanisms)>>,
    /// The log says that it is not available.
    is_away: AtomicBool,
    pub(super) signatures: AtomicU64,
    pub(super) failures: AtomicU64,
    starts: AtomicU64,
}

#[derive(Default)]
struct State {
    /// The agent that serves.
    socket: Option<Arc<Seqpacket>>,
    /// The agent that serves next.
    next: Option<Seqpacket>,
    /// The thread waits for another agent.
    is_lost: bool,
    /// Since an agent was last asked for.
    asked: Option<Stopwatch>,
    /// Keys that have certificates.
    keys: BTreeMap<usize, Key>,
    pending: BTreeMap<u64, (Job, Stopwatch)>,
    /// Why the token is not available; the last reason.
    fault: String,
    is_closed: bool,
}

#[derive(Clone)]
struct Key {
    public: PublicKey,
    /// The agent that serves has it.
    signs: bool,
}

/// Status of a token.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct TokenStatus {
    /// The module.
    pub module: String,
    /// The token's attributes.
    pub token: String,
    /// Every key that is in use signs.
    pub available: bool,
    /// Why it is not available.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fault: String,
    /// Signatures made.
    pub signatures: u64,
    /// Signatures not made, or not in time.
    pub failures: u64,
    /// Signatures asked of it and not answered yet.
    pub in_flight: usize,
    /// Agents started for it.
    pub starts: u64,
}

/// An agent that has opened its token. It is asked for one thing at a time, until it serves.
#[derive(Debug)]
struct Opened {
    socket: Arc<Seqpacket>,
    mechanisms: Mechanisms,
    /// For each key why it cannot be used.
    faults: Vec<Option<String>>,
}

impl Opened {
    /// Waits until an agent has opened its token.
    fn by(socket: Seqpacket) -> Result<Self, TokenFault> {
        let socket = Arc::new(socket);
        match receive(&socket)? {
            TokenAnswer::Opened { mechanisms, faults } => Ok(Self {
                socket,
                mechanisms,
                faults,
            }),
            TokenAnswer::Failed(fault) => Err(fault),
            TokenAnswer::Signed { .. } => Err(TokenFault::unasked()),
        }
    }

    /// Has a key sign a challenge.
    fn prove(&self, key: usize, public: &PublicKey) -> Result<Mechanisms, TokenFault> {
        let refused = |why: &str| Err(TokenFault::Refused(why.to_owned()));
        match self.faults.get(key) {
            Some(None) => {}
            Some(Some(why)) => return refused(why),
            None => return Err(TokenFault::unasked()),
        }
        let schemes = public.schemes(self.mechanisms);
        let Some(scheme) = schemes.first().copied() else {
            return refused("the token has no mechanism for the kind of key in the certificate");
        };
        let mut message = [0; 32];
        let random = aws_lc_rs::rand::fill(&mut message);
        random.map_err(|_| TokenFault::Away("no random numbers".to_owned()))?;
        let request = TokenRequest {
            number: 0,
            key,
            scheme: scheme.into(),
            input: input(scheme, &message),
        };
        self.socket.send(&write(&request), None)?;
        match receive(&self.socket)? {
            TokenAnswer::Signed {
                number: 0,
                signature: Ok(signature),
            } if public.verifies(scheme, &message, &signature) => Ok(self.mechanisms),
            TokenAnswer::Signed {
                number: 0,
                signature: Ok(_),
            } => refused(OTHER),
            TokenAnswer::Signed {
                number: 0,
                signature: Err(why),
            } => Err(TokenFault::Away(why)),
            _ => Err(TokenFault::unasked()),
        }
    }
}

impl Link {
    /// Waits until an agent has opened its token.
    pub(super) fn open(
        (id, keys): (TokenId, Vec<String>),
        time_out: Duration,
        socket: Seqpacket,
        known: Arc<Known>,
    ) -> Self {
        known.starts.fetch_add(1, Relaxed);
        Self {
            id,
            keys,
            known,
            time_out,
            opened: Mutex::new(Some(Opened::by(socket))),
            last: AtomicU64::new(0),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Proves that a key belongs to a certificate, and returns what the token can do. Blocks before [`Self::serve`]. A key that was
    /// proved by an earlier configuration is believed while its token is away.
    ///
    /// # Errors
    /// Why it is not proved.
    pub(super) fn prove(&self, key: usize, public: &PublicKey) -> Result<Mechanisms, String> {
        let mut known = self
            .known
            .proved
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let uri = self.keys.get(key).cloned().unwrap_or_default();
        let before = known
            .get(&uri)
            .filter(|(of, _)| of == public)
            .map(|it| it.1);
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let proved = match &*opened {
            Some(Ok(opened)) => opened.prove(key, public),
            Some(Err(fault)) => Err(fault.clone()),
            // A private key has one public key.
            None => {
                return before.ok_or_else(|| format!("{OTHER}; if it was replaced, reload becket"));
            }
        };
        let signs = proved.is_ok();
        let mechanisms = match (proved, before) {
            (Ok(mechanisms), _) | (Err(TokenFault::Away(_)), Some(mechanisms)) => mechanisms,
            (Err(fault), _) => return Err(fault.text()),
        };
        let public = public.clone();
        known.insert(uri, (public.clone(), mechanisms));
        self.lock().keys.insert(key, Key { public, signs });
        Ok(mechanisms)
    }

    /// Starts the thread that receives answers, once.
    ///
    /// # Errors
    /// When the system gives no more threads.
    pub(super) fn serve(self: &Arc<Self>) -> io::Result<()> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(first) = opened.take() else {
            return Ok(());
        };
        match &first {
            Ok(opened) => self.lock().socket = Some(Arc::clone(&opened.socket)),
            Err(fault) => self.lock().fault = fault.clone().text(),
        }
        self.tell();
        let link = Arc::clone(self);
        let thread = thread::Builder::new().name("becket-token".into());
        thread.spawn(move || link.run(first)).map(drop)
    }

    /// Serves by one agent after the other, until this is closed.
    fn run(&self, first: Result<Opened, TokenFault>) {
        let mut opened = first;
        loop {
            let fault = match opened {
                Ok(opened) => {
                    let fault = self.receive_answers(&opened.socket);
                    opened.socket.end();
                    fault
                }
                Err(fault) => fault,
            };
            self.abandon(fault);
            let Some(socket) = self.next_agent() else {
                return;
            };
            opened = Opened::by(socket).and_then(|opened| self.prove_again(opened));
        }
    }

    /// Has an agent that replaces another prove all keys. It serves if one of them signs.
    fn prove_again(&self, opened: Opened) -> Result<Opened, TokenFault> {
        let mut keys = self.lock().keys.clone();
        let mut fault = None;
        for (index, key) in &mut keys {
            let proved = opened.prove(*index, &key.public);
            key.signs = proved.is_ok();
            fault = proved.err().or(fault);
        }
        if let Some(fault) = &fault
            && keys.values().all(|key| !key.signs)
        {
            return Err(fault.clone());
        }
        let mut state = self.lock();
        if state.is_closed {
            return Err(TokenFault::silent());
        }
        state.keys = keys;
        state.fault = fault.map(TokenFault::text).unwrap_or_default();
        state.socket = Some(Arc::clone(&opened.socket));
        drop(state);
        self.tell();
        Ok(opened)
    }

    /// Waits for another agent; `None` when this is closed.
    fn next_agent(&self) -> Option<Seqpacket> {
        let mut state = self.lock();
        while !state.is_closed {
            if let Some(socket) = state.next.take() {
                (state.is_lost, state.asked) = (false, None);
                return Some(socket);
            }
            state.is_lost = true;
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    /// Returns `true` if another agent is to be asked for now.
    pub(super) fn needs_agent(&self) -> bool {
        let mut state = self.lock();
        let asked = state.asked.as_ref();
        let needs = state.is_lost && asked.is_none_or(|asked| asked.elapsed() > BETWEEN_ASKS);
        if needs {
            state.asked = Some(Stopwatch::start());
        }
        needs
    }

    /// Gives the token another agent, if it still lacks one: an agent that was asked for before a reload may come after it.
    pub(super) fn replace(&self, socket: Seqpacket) {
        let mut state = self.lock();
        if !state.is_lost {
            return;
        }
        self.known.starts.fetch_add(1, Relaxed);
        state.next = Some(socket);
        self.changed.notify_all();
    }

    /// Closes the way to the agent, by which that ends, and ends the thread.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        if let Some(socket) = &state.socket {
            socket.end();
        }
        self.changed.notify_all();
    }

    /// Asks for a signature. Fails at once if the token does not have the key now.
    pub(super) fn ask(&self, key: usize, job: Job) {
        let scheme = job.request.scheme;
        let number = self.last.fetch_add(1, Relaxed) + 1;
        let request = TokenRequest {
            number,
            key,
            scheme: scheme.into(),
            input: input(scheme, &job.request.message),
        };
        let packet = write(&request);
        let mut state = self.lock();
        let signs = state.keys.get(&key).is_some_and(|key| key.signs);
        let socket = state.socket.as_ref().filter(|_| signs);
        if socket.is_some_and(|socket| socket.send(&packet, None).is_ok()) {
            state.pending.insert(number, (job, Stopwatch::start()));
        } else {
            drop(state);
            self.fail(job);
        }
    }

    fn fail(&self, job: Job) {
        self.known.failures.fetch_add(1, Relaxed);
        answer(vec![job], |_| {
            vec![Err(rustls::Error::General("the token did not sign".into()))]
        });
    }

    /// Receives answers until the agent fails.
    fn receive_answers(&self, socket: &Seqpacket) -> TokenFault {
        let mut room = vec![0; LONGEST];
        loop {
            let received = match socket.wait(self.time_out / 4) {
                Ok(false) => Ok(()),
                Ok(true) => receive_into(socket, &mut room).and_then(|answer| self.take(answer)),
                Err(error) => Err(error.into()),
            };
            let is_late = |(_, since): &(Job, Stopwatch)| since.elapsed() > self.time_out;
            if let Err(fault) = received {
                return fault;
            } else if self.lock().pending.values().any(is_late) {
                return TokenFault::silent();
            }
        }
    }

    fn take(&self, said: TokenAnswer) -> Result<(), TokenFault> {
        let TokenAnswer::Signed { number, signature } = said else {
            return Err(TokenFault::unasked());
        };
        let pending = self.lock().pending.remove(&number);
        let (job, _) = pending.ok_or_else(TokenFault::unasked)?;
        match signature {
            Ok(signature) => {
                self.known.signatures.fetch_add(1, Relaxed);
                answer(vec![job], |_| vec![Ok(signature)]);
                Ok(())
            }
            Err(why) => {
                self.fail(job);
                Err(TokenFault::Away(why))
            }
        }
    }

    /// Fails whatever was asked and not answered.
    fn abandon(&self, fault: TokenFault) {
        let mut state = self.lock();
        state.socket = None;
        state.keys.values_mut().for_each(|key| key.signs = false);
        state.fault = fault.text();
        let pending = mem::take(&mut state.pending);
        let is_closed = state.is_closed;
        drop(state);
        if !is_closed {
            self.tell();
        }
        pending.into_values().for_each(|(job, _)| self.fail(job));
    }

    /// Logs that the token is available, or is not any more.
    fn tell(&self) {
        let status = self.status();
        let (module, token) = (status.module, status.token);
        let was_away = self.known.is_away.swap(!status.available, Relaxed);
        match (was_away, status.available) {
            (false, false) => {
                let error = status.fault;
                tracing::error!(module, token, error, "token not available");
            }
            (true, true) => tracing::info!(module, token, "token available"),
            _ => {}
        }
    }

    pub(super) fn status(&self) -> TokenStatus {
        let state = self.lock();
        let available = state.keys.values().all(|key| key.signs);
        TokenStatus {
            module: self.id.module.to_string_lossy().into_owned(),
            token: self.id.name(),
            available,
            fault: if available {
                String::new()
            } else {
                state.fault.clone()
            },
            signatures: self.known.signatures.load(Relaxed),
            failures: self.known.failures.load(Relaxed),
            in_flight: state.pending.len(),
            starts: self.known.starts.load(Relaxed),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A poisoned state is still one: what the panic left unanswered times out.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TokenFault {
    fn unasked() -> Self {
        Self::Away("its process answered what it was not asked".to_owned())
    }

    fn silent() -> Self {
        Self::Away("it does not answer".to_owned())
    }

    /// The reason, in a form that is safe for a log.
    fn text(self) -> String {
        let (Self::Away(why) | Self::Refused(why)) = self;
        let plain = why.chars().filter(|c| !c.is_control());
        plain.take(LONGEST_REASON).collect()
    }
}

impl From<io::Error> for TokenFault {
    fn from(error: io::Error) -> Self {
        Self::Away(error.to_string())
    }
}

/// Waits for a packet, for as long as a start may take.
fn receive(socket: &Seqpacket) -> Result<TokenAnswer, TokenFault> {
    let clock = Stopwatch::start();
    while !socket.wait(STARTS.saturating_sub(clock.elapsed()))? {
        if clock.elapsed() > STARTS {
            return Err(TokenFault::silent());
        }
    }
    receive_into(socket, &mut vec![0; LONGEST])
}

fn receive_into(socket: &Seqpacket, room: &mut [u8]) -> Result<TokenAnswer, TokenFault> {
    match socket.receive(room)? {
        Packet::Message(length, None) => {
            let answer = room.get(..length).and_then(read);
            answer.ok_or_else(TokenFault::unasked)
        }
        Packet::Message(_, Some(_)) => Err(TokenFault::unasked()),
        Packet::End => Err(TokenFault::Away("its process ended".to_owned())),
    }
}

/// To load a module, log in, find a key, and sign once. Tokens behind a network take seconds.
const STARTS: Duration = Duration::from_secs(20);
/// Between two requests for another agent.
const BETWEEN_ASKS: Duration = Duration::from_secs(1);
/// Maximum length of a reason in a log, in characters.
const LONGEST_REASON: usize = 300;
const OTHER: &str = "the key on the token belongs to another certificate";

#[cfg(test)]
mod tests;
