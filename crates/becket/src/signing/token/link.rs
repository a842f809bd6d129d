//! The way to one token: the agent that speaks with it, what it was asked, and what is known of its keys.
//!
//! A thread for each token ([`Link::run`]) starts the agent, hears its answers, and starts another when it ends, answers what was not
//! asked, does not answer in time, or fails to sign: a call of a module cannot be broken off, and one that has lost its token
//! often does not find it again. Requests are sent by whoever has one, on the same socket, without waiting. An agent that is new is asked for
//! every key, and has to sign a challenge with each: what it cannot prove is *lost*, and costs a handshake nothing but an error.
//!
//! The agent may be in another's hands: nothing that it sends is believed beyond its form, and it can end handshakes, not more.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use becket_config::key_source::{KeyUri, TokenId};
use becket_proto::token::{Answer, LONGEST, Mechanisms, Request};
use becket_sys::clock::Stopwatch;
use becket_sys::file_reach;
use becket_sys::seqpacket::{Packet, Seqpacket};

use self::state::{Asked, Key, Pending, Standing, State};
use super::public::{PublicKey, input};
use super::starter::Started;
use crate::signing::queue::{Job, answer};

mod state;

/// Starts an agent.
pub(super) type Start = Box<dyn Fn() -> io::Result<Agent> + Send + Sync>;

/// An agent that runs, until this is dropped.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) socket: Arc<Seqpacket>,
    /// Absent in tests.
    pub(super) process: Option<Started>,
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.socket.end();
        self.process.iter().for_each(Started::end);
    }
}

/// What the thread of a token and its users share.
pub(super) struct Link {
    pub(super) id: TokenId,
    start: Start,
    confined: Confined,
    state: Mutex<State>,
    changed: Condvar,
    /// Milliseconds that a signature may take.
    pub(super) time_out: AtomicU64,
    pub(super) signatures: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(super) starts: AtomicU64,
}

/// Whether the process that serves is sandboxed, and so are this thread and the agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Confined {
    No,
    /// It enters one later, which does not reach threads that are there.
    Later,
    /// A thread begins in the one that the process is in, where it cannot enter another.
    Already,
}

/// Why an agent is not heard any more.
enum Ended {
    /// Nobody needs it.
    Closed,
    /// It failed; another may do better.
    Failed(String),
    /// It was not let in: another one would lock the token.
    Refused(String),
}

/// How a token is.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub(crate) struct TokenStatus {
    /// The library that speaks with it.
    pub module: String,
    /// What tells it from others of its module.
    pub token: String,
    /// Every key that is in use signs.
    pub available: bool,
    /// Why not.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fault: String,
    /// Signatures that it made.
    pub signatures: u64,
    /// Signatures that it did not make, or not in time.
    pub failures: u64,
    /// Signatures asked of it and not answered yet.
    pub in_flight: usize,
    /// Agents started for it.
    pub starts: u64,
}

impl Link {
    pub(super) fn new(id: TokenId, start: Start, confined: Confined) -> Self {
        Self {
            id,
            start,
            confined,
            state: Mutex::default(),
            changed: Condvar::new(),
            time_out: AtomicU64::new(0),
            signatures: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            starts: AtomicU64::new(0),
        }
    }

    /// How it is.
    pub(super) fn status(&self) -> TokenStatus {
        let state = self.lock();
        let available = state.is_available();
        let jobs = state.pending.values();
        TokenStatus {
            module: self.id.module.to_string_lossy().into_owned(),
            token: self.id.name(),
            available,
            fault: if available {
                String::new()
            } else {
                state.fault.clone()
            },
            signatures: self.signatures.load(Relaxed),
            failures: self.failures.load(Relaxed),
            in_flight: jobs.filter(|it| matches!(it.what, Asked::Job(_))).count(),
            starts: self.starts.load(Relaxed),
        }
    }

    /// The file of the PIN, for agents that are started from now on.
    pub(super) fn set_pin(&self, pin: Option<File>, sessions: u16) {
        let mut state = self.lock();
        if state.pin.as_ref().map(version) != pin.as_ref().map(version) {
            state.refused = false;
        }
        (state.pin, state.sessions) = (pin, sessions);
    }

    /// Nobody needs the token any more.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        if let Some(socket) = &state.socket {
            socket.end();
        }
        self.changed.notify_all();
    }

    /// Has the token prove that it has a key. Waits. Returns the key's number, and what the token can do.
    ///
    /// # Errors
    /// Why it has not. One that had it before is believed while it is away.
    pub(super) fn prove(
        &self,
        uri: &KeyUri,
        public: PublicKey,
    ) -> Result<(u32, Mechanisms), String> {
        let mut state = self.lock();
        let same = |key: &&Key| key.uri == *uri && key.public == public;
        let before = state.keys.values().filter(same).find_map(|key| key.proved);
        state.last_key += 1;
        let number = state.last_key;
        let key = Key {
            uri: uri.clone(),
            public,
            standing: if state.refused {
                Standing::Lost(state.fault.clone())
            } else {
                Standing::Asked
            },
            proved: None,
        };
        state.keys.insert(number, key);
        state.hurries = !state.refused;
        self.changed.notify_all();
        if state.is_open {
            state.find(number);
        }
        let clock = Stopwatch::start();
        loop {
            let standing = state.keys.get(&number).map(|key| key.standing.clone());
            let left = PATIENCE.saturating_sub(clock.elapsed());
            let why = match standing {
                Some(Standing::Asked) if !left.is_zero() => {
                    let waited = self.changed.wait_timeout(state, left);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                    continue;
                }
                Some(Standing::Ready) => String::new(),
                Some(Standing::Lost(why)) => why,
                Some(Standing::Asked) | None => "the token does not answer".to_owned(),
            };
            let key = state.keys.get_mut(&number).ok_or("forgotten")?;
            if let (false, Some(before)) = (why.is_empty(), before) {
                key.proved = Some(before);
                key.standing = Standing::Lost(why.clone());
            }
            return match key.proved {
                Some(mechanisms) => Ok((number, mechanisms)),
                None => {
                    state.keys.remove(&number);
                    Err(why)
                }
            };
        }
    }

    /// Nobody signs with this key any more.
    pub(super) fn forget(&self, number: u32) {
        self.lock().keys.remove(&number);
    }

    /// Asks for a signature. It fails at once where the token does not have the key now.
    pub(super) fn ask(&self, key: u32, job: Job) {
        let scheme = job.request.scheme;
        let input = input(scheme, &job.request.message);
        let request = Request::Sign {
            key,
            scheme: scheme.into(),
            input: &input,
        };
        let mut state = self.lock();
        let standing = state.keys.get(&key).map(|key| &key.standing);
        let refused = match standing {
            Some(Standing::Ready) => state.send(&request, Asked::Job(job)).err(),
            _ => Some(Asked::Job(job)),
        };
        drop(state);
        if let Some(Asked::Job(job)) = refused {
            self.fail(job);
        }
    }

    fn fail(&self, job: Job) {
        self.failures.fetch_add(1, Relaxed);
        answer(vec![job], |_| {
            vec![Err(rustls::Error::General("the token did not sign".into()))]
        });
    }

    /// Serves the token until it is closed. A sandbox that the process enters later does not reach this thread, so it begins with one of
    /// its own, which has no file at all.
    pub(super) fn run(&self) {
        if self.confined == Confined::Later
            && let Err(error) = file_reach::confine::<&Path>([], [])
        {
            tracing::warn!(%error, "the thread of a token is not sandboxed");
        }
        let mut failures = 0_usize;
        while self.is_needed() {
            let clock = Stopwatch::start();
            self.starts.fetch_add(1, Relaxed);
            let ended = match (self.start)() {
                Ok(agent) => self.serve(&agent),
                Err(error) => Ended::Failed(format!("no process for it: {error}")),
            };
            let (why, pause) = match ended {
                Ended::Closed => return self.abandon(String::new()),
                Ended::Refused(why) => {
                    self.lock().refused = true;
                    (why, Duration::MAX)
                }
                Ended::Failed(why) => {
                    failures = if clock.elapsed() > LONG {
                        0
                    } else {
                        failures + 1
                    };
                    let index = usize::min(failures, PAUSES.len() - 1);
                    (why, PAUSES[index])
                }
            };
            self.abandon(why);
            self.pause(pause);
        }
    }

    /// Waits for somebody who has a key on the token. False when nobody will.
    fn is_needed(&self) -> bool {
        let mut state = self.lock();
        while state.keys.is_empty() && !state.is_closed {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.hurries = false;
        !state.is_closed
    }

    /// Waits until another agent may be started.
    fn pause(&self, pause: Duration) {
        let clock = Stopwatch::start();
        let mut state = self.lock();
        while !state.hurries && !state.is_closed {
            let left = pause.saturating_sub(clock.elapsed());
            if left.is_zero() {
                return;
            }
            let waited = self.changed.wait_timeout(state, left.min(LONG));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Nothing that was asked will be answered.
    fn abandon(&self, why: String) {
        let mut state = self.lock();
        (state.socket, state.is_open) = (None, false);
        for key in state.keys.values_mut() {
            key.standing = Standing::Lost(why.clone());
        }
        state.fault = why;
        let pending = std::mem::take(&mut state.pending);
        self.settle(&mut state);
        drop(state);
        for (_, pending) in pending {
            if let Asked::Job(job) = pending.what {
                self.fail(job);
            }
        }
    }

    /// Wakes those who wait for a key, and tells the log when it is another story.
    fn settle(&self, state: &mut State) {
        self.changed.notify_all();
        let asked = |key: &Key| key.standing == Standing::Asked;
        if state.is_closed || state.keys.values().any(asked) {
            return;
        }
        let is = state.is_available();
        let was = state.said.replace(is);
        let (module, token) = (self.id.module.display(), self.id.name());
        match (was, is) {
            (Some(true), false) => {
                let why = &state.fault;
                tracing::error!(%module, token, why, "token not available");
            }
            (Some(false), true) => tracing::info!(%module, token, "token available"),
            _ => {}
        }
    }

    /// Hears an agent until it ends, or is to.
    fn serve(&self, agent: &Agent) -> Ended {
        let socket = &agent.socket;
        if let Err(ended) = self.open(socket) {
            return ended;
        }
        let mut room = [0; LONGEST];
        let mut retried = Stopwatch::start();
        loop {
            let heard = match socket.wait(self.patience() / 4) {
                Ok(false) => Ok(()),
                Ok(true) => match socket.receive(&mut room) {
                    Ok(Packet::Message(length, None)) => {
                        self.hear(room.get(..length).unwrap_or_default())
                    }
                    Ok(Packet::Message(_, Some(_))) => Err(Ended::unasked()),
                    Ok(Packet::End) => Err(Ended::Failed("its process ended".to_owned())),
                    Err(error) => Err(Ended::Failed(error.to_string())),
                },
                Err(error) => Err(Ended::Failed(error.to_string())),
            };
            let ended = heard.and_then(|()| self.look_after(&mut retried)).err();
            if let Some(ended) = ended {
                return if self.lock().is_closed {
                    Ended::Closed
                } else {
                    ended
                };
            }
        }
    }

    fn open(&self, socket: &Arc<Seqpacket>) -> Result<(), Ended> {
        let mut state = self.lock();
        if state.is_closed {
            return Err(Ended::Closed);
        }
        // Any key's: it is asked for its token only.
        let uri = state.keys.values().next().map(|key| key.uri.to_string());
        let uri = uri.ok_or(Ended::Failed("nobody needs it".to_owned()))?;
        let (sessions, pin) = (state.sessions, state.pin.as_ref().map(File::try_clone));
        let request = Request::Open {
            sessions,
            is_confined: self.confined != Confined::No,
            uri: &uri,
        };
        let refused = |error: io::Error| Ended::Failed(error.to_string());
        let pin = pin.transpose().map_err(refused)?;
        let number = state.note(Asked::Open);
        let sent = socket.send(&request.write(number), pin.as_ref().map(AsFd::as_fd));
        state.socket = Some(Arc::clone(socket));
        sent.map_err(refused)
    }

    /// Looks whether answers are overdue, and asks again for keys that were lost.
    fn look_after(&self, retried: &mut Stopwatch) -> Result<(), Ended> {
        let time_out = self.patience();
        let mut state = self.lock();
        let is_overdue = |pending: &Pending| {
            let most = if matches!(pending.what, Asked::Job(_)) {
                time_out
            } else {
                STARTS
            };
            pending.since.elapsed() > most
        };
        if state.pending.values().any(is_overdue) {
            return Err(Ended::Failed("it does not answer".to_owned()));
        }
        let needed = || state.keys.values().filter(|key| key.proved.is_some());
        let is_lost = |key: &&Key| matches!(key.standing, Standing::Lost(_));
        let Some(Standing::Lost(why)) = needed().find(is_lost).map(|key| key.standing.clone())
        else {
            return Ok(());
        };
        if needed().all(|key| is_lost(&key)) {
            return Err(Ended::Failed(why));
        }
        if retried.elapsed() > RETRY {
            *retried = Stopwatch::start();
            let lost = state.keys.iter().filter(|(_, key)| is_lost(key));
            let lost: Vec<u32> = lost.map(|(number, _)| *number).collect();
            lost.into_iter().for_each(|number| state.find(number));
        }
        Ok(())
    }

    /// Takes an answer.
    fn hear(&self, packet: &[u8]) -> Result<(), Ended> {
        let mut state = self.lock();
        let (number, said) = Answer::read(packet).ok_or_else(Ended::unasked)?;
        let asked = state.pending.remove(&number).ok_or_else(Ended::unasked)?;
        match (asked.what, said) {
            (Asked::Open, Answer::Opened) => {
                state.is_open = true;
                let keys: Vec<u32> = state.keys.keys().copied().collect();
                keys.into_iter().for_each(|number| state.find(number));
            }
            (Asked::Open, Answer::Failed(why)) => return Err(Ended::Failed(clean(why))),
            (Asked::Open, Answer::Refused(why)) => return Err(Ended::Refused(clean(why))),
            (Asked::Find(key), Answer::Found(mechanisms)) => state.challenge(key, mechanisms),
            (Asked::Proof(key, challenge), Answer::Signed(signature)) => {
                state.judge(key, &challenge, signature);
            }
            (Asked::Find(key) | Asked::Proof(key, _), Answer::Failed(why)) => {
                state.lose(key, clean(why));
            }
            (Asked::Job(job), Answer::Signed(signature)) => {
                drop(state);
                self.signatures.fetch_add(1, Relaxed);
                answer(vec![job], |_| vec![Ok(signature.to_vec())]);
                return Ok(());
            }
            (Asked::Job(job), Answer::Failed(why)) => {
                drop(state);
                self.fail(job);
                return Err(Ended::Failed(clean(why)));
            }
            (what, _) => {
                // With what is asked, so that nobody waits for it.
                state.pending.insert(
                    number,
                    Pending {
                        what,
                        since: asked.since,
                    },
                );
                return Err(Ended::unasked());
            }
        }
        self.settle(&mut state);
        Ok(())
    }

    /// Keys that are in use.
    #[cfg(test)]
    pub(super) fn keys(&self) -> usize {
        self.lock().keys.len()
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(self.time_out.load(Relaxed))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A poisoned state is still one: what panicked has answered nobody, and they time out.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ended {
    fn unasked() -> Self {
        Self::Failed("it answered what it was not asked".to_owned())
    }
}

/// What tells a file from what it was before.
fn version(file: &File) -> Option<(u64, i64, i64, u64)> {
    let of = file.metadata().ok()?;
    Some((of.ino(), of.mtime(), of.mtime_nsec(), of.size()))
}

/// What may go to a log.
fn clean(why: &str) -> String {
    why.chars().filter(|c| !c.is_control()).collect()
}

/// To load a module, log in, find a key, and sign once. Tokens behind a network take seconds.
const STARTS: Duration = Duration::from_secs(20);
/// How long a reload waits for a key: a start, and a proof.
const PATIENCE: Duration = Duration::from_secs(45);
/// Between two questions for a key that was lost while others are there.
const RETRY: Duration = Duration::from_secs(10);
/// An agent that has served for so long did not die of its start.
const LONG: Duration = Duration::from_secs(10);
/// Between agents that fail: the first is followed at once.
const PAUSES: [Duration; 6] = [
    Duration::ZERO,
    Duration::ZERO,
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
];

#[cfg(test)]
mod tests;
