//! A client slot opens one connection after another. Between connections it keeps the TLS sessions and the number of
//! handshakes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use becket_sys::socket::note_acknowledgements;
use mio::{Interest, Token};
use rustls::client::ClientConfig;

use crate::clock;
use crate::env::Env;
use crate::failure::Failure;
use crate::hello::Offered;
use crate::link::{LoadConnection, Phase, Times, Turn};
use crate::tls::{ResumeKind, Tls};
use crate::wire::Wire;

pub struct ClientSlot {
    token: Token,
    /// TLS configuration created for the last full handshake. It stores the sessions of that
    /// handshake.
    config: Option<Arc<ClientConfig>>,
    /// Index of this slot across all threads. Slots with different indices make their full
    /// handshakes at different times.
    position: u64,
    count: u64,
    link: Option<LoadConnection>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    Waiting,
    /// The slot may have unread data and must run again before the thread waits.
    Again,
    Ready,
    /// The slot is ready, but the last transaction failed.
    Failed,
}

impl ClientSlot {
    /// Creates slot number `index` of this thread. `position` is its index across all threads.
    pub fn new(index: usize, position: usize) -> Self {
        Self {
            token: Token(index),
            config: None,
            position: position as u64,
            count: 0,
            link: None,
        }
    }

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

    pub fn turn(&mut self, env: &mut Env, hung_up: bool) -> SlotState {
        let Some(link) = &mut self.link else {
            return SlotState::Waiting;
        };
        let parked = link.phase == Phase::Parked;
        let step = link.times.step;
        let turn = link.turn(env, hung_up);
        match self.settle(turn, step, env) {
            // A parked connection has already added its slot to the list of free slots.
            // Closing it must not add the slot again.
            SlotState::Ready | SlotState::Failed if parked => SlotState::Waiting,
            outcome => outcome,
        }
    }

    pub fn expire(&mut self, now: Instant, env: &mut Env) -> SlotState {
        let Some(link) = self.link.as_ref().filter(|link| link.deadline <= now) else {
            return SlotState::Waiting;
        };
        let step = link.times.step;
        let turn = link.expire(env).map(|()| Turn::Free);
        self.settle(turn, step, env)
    }

    pub fn is_busy(&self) -> bool {
        self.link
            .as_ref()
            .is_some_and(|link| !matches!(link.phase, Phase::Parked | Phase::Closing))
    }

    fn open(&mut self, times: Times, env: &mut Env) -> Result<Turn, Failure> {
        let resumes = env.plan.options.tls.resume;
        let resumes = resumes.resumes(self.position, self.count);
        self.count += 1;
        if !resumes {
            self.config = env.tls.as_ref().map(Tls::config);
        }
        let mut link = self.connect(resumes, times, env)?;
        if link.offered == Offered::Id && env.plan.options.tls.resume_kind == ResumeKind::Ticket {
            // The session has no ticket, and session IDs are not allowed: make a full handshake.
            self.config = env.tls.as_ref().map(Tls::config);
            link = self.connect(resumes, times, env)?;
        }
        let interest = Interest::READABLE | Interest::WRITABLE;
        env.registry
            .register(&mut link.wire.socket, self.token, interest)?;
        self.link.insert(link).turn(env, false)
    }

    fn connect(
        &self,
        resumes: bool,
        mut times: Times,
        env: &mut Env,
    ) -> Result<LoadConnection, Failure> {
        let options = &env.plan.options.connection;
        let source = options.source.map(|sources| sources.pick(env.opened));
        let since_queued = options.since_queued;
        env.opened += 1;
        env.samples(times.step).traffic.connections += 1;
        times.mark = clock::now();
        let wire = Wire::connect(env.plan.address(), source)?;
        if since_queued {
            note_acknowledgements(&wire.socket, true)?;
        }
        LoadConnection::open(wire, self.config.clone(), resumes, times, env)
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
                self.close(env);
                SlotState::Ready
            }
            Err(failure) => {
                env.samples(step).fail(failure);
                env.live.failed.fetch_add(1, Ordering::Relaxed);
                self.close(env);
                SlotState::Failed
            }
        }
    }

    /// Drops the connection, if there is one. A transaction in progress counts as unfinished.
    pub fn close(&mut self, env: &mut Env) {
        if let Some(link) = self.link.take() {
            link.count_tickets(env);
        }
    }
}
