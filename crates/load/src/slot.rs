//! A place for one connection after the other: keeps the sessions and the resumption plan between them.

use std::sync::Arc;
use std::time::Instant;

use becket_sys::socket::note_acknowledgements;
use mio::{Interest, Token};
use rustls::client::ClientConfig;

use crate::clock;
use crate::env::Env;
use crate::failure::Failure;
use crate::hello::Offered;
use crate::link::{LoadConnection, Opening, Phase, Times, Turn};
use crate::resume::{Ask, Sequence};
use crate::sessions::Sessions;
use crate::tls::ResumeKind;
use crate::wire::Wire;

/// A place for one connection after the other.
pub struct ClientSlot {
    token: Token,
    sessions: Arc<Sessions>,
    config: Option<Arc<ClientConfig>>,
    sequence: Sequence,
    link: Option<LoadConnection>,
}

/// What became of a slot's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// Nothing until the next event.
    Waiting,
    /// More to do at once.
    Again,
    /// Ready for the next transaction.
    Ready,
    /// Ready, but the last transaction failed.
    Failed,
}

impl ClientSlot {
    /// Makes slot number `index` of this thread; `position` is its number among all threads' slots.
    pub fn new(index: usize, position: usize, env: &Env) -> Self {
        let sessions = Arc::new(Sessions::new(env.plan.resumes()));
        Self {
            token: Token(index),
            config: env.tls.as_ref().map(|tls| tls.slot(&sessions)),
            sessions,
            sequence: Sequence::new(env.plan.resume, position),
            link: None,
        }
    }

    /// Starts a transaction that was meant to start at `intended`.
    pub fn start(&mut self, intended: Instant, env: &mut Env) -> SlotState {
        let started = clock::now();
        let step = env.timeline.step_of(intended);
        let times = Times {
            step,
            intended,
            started,
            mark: started,
        };
        let samples = env.samples(step);
        samples.attempted += 1;
        samples
            .latency
            .late
            .record(started.saturating_duration_since(intended));
        let turn = match &mut self.link {
            Some(link) => link.ask_again(times, env),
            None => self.open(times, env),
        };
        self.settle(turn, step, env)
    }

    /// Turns the connection after an event.
    pub fn turn(&mut self, env: &mut Env, hung_up: bool) -> SlotState {
        let Some(link) = &mut self.link else {
            return SlotState::Waiting;
        };
        let parked = link.phase() == Phase::Parked;
        let step = link.times().step;
        let turn = link.turn(env, hung_up);
        match self.settle(turn, step, env) {
            // It was free for the next transaction before: nothing has become ready.
            SlotState::Ready | SlotState::Failed if parked => SlotState::Waiting,
            outcome => outcome,
        }
    }

    /// Gives up on a connection whose time is over.
    pub fn expire(&mut self, now: Instant, env: &mut Env) -> SlotState {
        let Some(link) = self.link.as_ref().filter(|link| link.deadline <= now) else {
            return SlotState::Waiting;
        };
        let step = link.times().step;
        let turn = link.expire(env).map(|()| Turn::Free);
        self.settle(turn, step, env)
    }

    /// Returns whether a transaction is on its way.
    pub fn is_busy(&self) -> bool {
        self.link
            .as_ref()
            .is_some_and(|link| !matches!(link.phase(), Phase::Parked | Phase::Closing))
    }

    fn open(&mut self, times: Times, env: &mut Env) -> Result<Turn, Failure> {
        let ask = self.sequence.next_ask();
        match ask {
            Ask::Full => self.sessions.forget(),
            Ask::Resumed => {
                self.sessions.offer();
            }
        }
        let mut link = self.connect(ask, times, env)?;
        if link.offered() == Offered::Id && only_tickets(env) {
            // The session has no ticket, and identifiers are not wanted: make a full handshake of it.
            self.sessions.forget();
            link = self.connect(ask, times, env)?;
        }
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registered = env.registry.register(link.socket(), self.token, interest);
        registered.map_err(|e| Failure::from_io(&e))?;
        self.link.insert(link).turn(env, false)
    }

    fn connect(
        &self,
        ask: Ask,
        mut times: Times,
        env: &mut Env,
    ) -> Result<LoadConnection, Failure> {
        let source = env
            .plan
            .network
            .source
            .map(|sources| sources.pick(env.opened));
        env.opened += 1;
        env.samples(times.step).traffic.connections += 1;
        times.mark = clock::now();
        let wire = Wire::connect(env.plan.address(), source);
        let wire = wire.map_err(|e| Failure::from_io(&e))?;
        if env.plan.options.since_queued {
            let noted = note_acknowledgements(&wire.socket, true);
            noted.map_err(|e| Failure::from_io(&e))?;
        }
        LoadConnection::open(
            Opening {
                wire,
                tls: self.config.clone(),
                ask,
                times,
            },
            env,
        )
    }

    /// Drops the connection, if there is one; its transaction counts as unfinished.
    pub fn close(&mut self, env: &mut Env) {
        self.drop_link(env);
    }

    fn settle(
        &mut self,
        turn: Result<Turn, Failure>,
        step: Option<usize>,
        env: &mut Env,
    ) -> SlotState {
        match turn {
            Ok(Turn::Waiting) => SlotState::Waiting,
            Ok(Turn::Again) => SlotState::Again,
            Ok(Turn::Answered) => SlotState::Ready,
            Ok(Turn::Free) => {
                self.drop_link(env);
                SlotState::Ready
            }
            Err(failure) => {
                env.samples(step).fail(failure);
                env.live.fail();
                self.drop_link(env);
                SlotState::Failed
            }
        }
    }

    fn drop_link(&mut self, env: &mut Env) {
        if let Some(link) = self.link.take() {
            link.count_tickets(env);
        }
    }
}

fn only_tickets(env: &Env) -> bool {
    env.plan
        .tls
        .as_ref()
        .is_some_and(|tls| tls.resume_kind == ResumeKind::Ticket)
}
