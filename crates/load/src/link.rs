//! One connection, from `connect` to the server's FIN: the state machine of the load tool.
//!
//! ```text
//! Connecting ─► Handshaking ─► Exchanging ─► Closing ─► gone
//!       └────────(plain)──────────▲  │ keep-alive
//!                                 └─ Parked
//! ```
//!
//! A link is turned by every readiness event: it sends what is due, reads what has come, feeds TLS
//! and HTTP, and writes down latencies. It never blocks. Whatever ends a transaction other than well
//! is an `Err(Failure)`, which its slot counts.
//!
//! The server closes first where it can: after the last response the link waits for its FIN, so that
//! TIME_WAIT stays with the server and the client keeps its ports.

mod records;

use std::sync::Arc;
use std::time::{Duration, Instant};

use becket_proto::proxy_header::{Endpoints, ProxyHeader, Tlvs};
use becket_sys::socket::{acknowledged_ago, note_acknowledgements};
use rustls::client::{ClientConfig, UnbufferedClientConnection};

use crate::clock;
use crate::env::Env;
use crate::exchange::Exchange;
use crate::failure::Failure;
use crate::hello::Offered;
use crate::preface::PrefaceState;
use crate::resume::Ask;
use crate::wire::{Received, Wire};

/// A connection at work.
pub struct LoadConnection {
    wire: Wire,
    tls: Option<UnbufferedClientConnection>,
    phase: Phase,
    /// What is said before a plain request, until it is over.
    preface: Option<PrefaceState>,
    exchange: Exchange,
    times: Times,
    requests_left: u64,
    ask: Ask,
    offered: Offered,
    resumed: bool,
    peer_closed: bool,
    /// The response is whole, and the slot has not been told yet.
    ready: bool,
    /// When the slot gives up on it.
    pub deadline: Instant,
}

/// When one transaction was to start and did, and which step it counts for.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// The step of the intended start.
    pub step: Option<usize>,
    /// When it was meant to start.
    pub intended: Instant,
    /// When it did.
    pub started: Instant,
    /// When its current phase began.
    pub mark: Instant,
}

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The connection does not stand yet.
    Connecting,
    /// TLS has no traffic keys yet.
    Handshaking,
    /// A request is out, or going.
    Exchanging,
    /// The response has come; another request may follow.
    Parked,
    /// All is done; the server is to close.
    Closing,
}

/// What a turn led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nothing to do until the next event.
    Waiting,
    /// There is more to read; turn again without waiting.
    Again,
    /// The transaction succeeded; the connection takes another.
    Answered,
    /// The connection is over.
    Free,
}

/// What a new link is made for.
pub struct Opening {
    /// Its socket, connecting.
    pub wire: Wire,
    /// The TLS configuration of the slot.
    pub tls: Option<Arc<ClientConfig>>,
    /// What the plan asks of the handshake.
    pub ask: Ask,
    /// Its first transaction.
    pub times: Times,
}

impl LoadConnection {
    /// Makes a link whose first flight is ready to go.
    ///
    /// # Errors
    /// [`Failure::Tls`] when the library cannot make a ClientHello.
    pub fn open(opening: Opening, env: &mut Env) -> Result<Self, Failure> {
        let Opening {
            wire,
            tls,
            ask,
            times,
        } = opening;
        let plan = Arc::clone(&env.plan);
        let tls = match (tls, &plan.tls) {
            (Some(config), Some(plan)) => Some(
                UnbufferedClientConnection::new(config, plan.server_name.clone())
                    .map_err(|e| Failure::from_tls(&e))?,
            ),
            _ => None,
        };
        let last = plan.options.keepalive <= 1;
        let mut link = Self {
            wire,
            tls,
            phase: Phase::Connecting,
            preface: plan.network.preface.as_ref().map(|preface| {
                PrefaceState::new(match ask {
                    Ask::Full => &preface.full,
                    Ask::Resumed => &preface.resumed,
                })
            }),
            exchange: Exchange::new(last, times.started),
            times,
            requests_left: plan.options.keepalive,
            ask,
            offered: Offered::Nothing,
            resumed: false,
            peer_closed: false,
            ready: false,
            deadline: times.started + plan.time_out,
        };
        std::mem::swap(&mut link.wire.outbox, &mut env.spare);
        link.first_flight(env)?;
        Ok(link)
    }

    /// Returns what the first flight offers to resume.
    pub fn offered(&self) -> Offered {
        self.offered
    }

    /// Returns the transaction's times.
    pub fn times(&self) -> Times {
        self.times
    }

    /// Returns where the connection is in its life.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns the socket, for registering it.
    pub fn socket(&mut self) -> &mut mio::net::TcpStream {
        &mut self.wire.socket
    }

    /// Starts the next transaction on a parked connection.
    ///
    /// # Errors
    /// What ends the transaction.
    pub fn ask_again(&mut self, times: Times, env: &mut Env) -> Result<Turn, Failure> {
        let plan = Arc::clone(&env.plan);
        self.exchange
            .restart(self.requests_left <= 1, times.started);
        self.times = times;
        self.deadline = times.started + plan.time_out;
        self.phase = Phase::Exchanging;
        self.produce(env, times.started)?;
        self.turn(env, false)
    }

    /// Does all that can be done without waiting. `hung_up` says that the event told of the peer's FIN.
    ///
    /// # Errors
    /// What ends the transaction.
    pub fn turn(&mut self, env: &mut Env, hung_up: bool) -> Result<Turn, Failure> {
        if self.wire.outbox.capacity() == 0 {
            std::mem::swap(&mut self.wire.outbox, &mut env.spare);
        }
        let turn = self.work(env, hung_up);
        if self.wire.outbox.is_empty() && self.wire.outbox.capacity() > env.spare.capacity() {
            std::mem::swap(&mut self.wire.outbox, &mut env.spare);
        }
        turn
    }

    fn work(&mut self, env: &mut Env, hung_up: bool) -> Result<Turn, Failure> {
        let flushed = self.push_out(env)?;
        if self.phase == Phase::Connecting && !flushed {
            return Ok(Turn::Waiting);
        }
        let mut more = true;
        for _ in 0..READS_PER_TURN {
            let received = match self.wire.receive(&mut env.input) {
                Err(_) if matches!(self.phase, Phase::Parked | Phase::Closing) => Received::End,
                received => received.map_err(|e| Failure::from_io(&e))?,
            };
            more = match received {
                Received::Nothing => false,
                Received::End => return self.on_end(env),
                Received::Bytes {
                    filled,
                    fresh,
                    drained,
                } => {
                    env.samples(self.times.step).traffic.bytes_in += fresh as u64;
                    self.take_in(env, filled)?;
                    self.push_out(env)?;
                    if drained && hung_up {
                        return self.on_end(env);
                    }
                    !drained
                }
            };
            if !more {
                break;
            }
        }
        Ok(if more {
            Turn::Again
        } else if self.phase == Phase::Closing && self.peer_closed {
            // RFC 5246, section 7.2.1: a close_notify is answered by closing. Some servers wait
            // for that before they send FIN.
            Turn::Free
        } else if std::mem::take(&mut self.ready) {
            Turn::Answered
        } else {
            Turn::Waiting
        })
    }

    /// Gives up on the connection: its time is over.
    ///
    /// # Errors
    /// [`Failure::TimeOut`], unless the transaction had ended before.
    pub fn expire(&self, env: &mut Env) -> Result<(), Failure> {
        match self.phase {
            Phase::Connecting => Err(Failure::TimeOut("connect")),
            Phase::Handshaking => Err(Failure::TimeOut("handshake")),
            Phase::Exchanging if self.exchange.answered.is_none() => {
                Err(Failure::TimeOut("first byte"))
            }
            Phase::Exchanging => Err(Failure::TimeOut("body")),
            Phase::Parked => Ok(()),
            Phase::Closing => {
                env.samples(self.times.step).lingered += 1;
                Ok(())
            }
        }
    }

    /// Writes down the tickets that came, when the connection is over.
    pub fn count_tickets(&self, env: &mut Env) {
        if let Some(tls) = &self.tls {
            let tickets = u64::from(tls.tls13_tickets_received());
            let samples = env.samples(self.times.step);
            let counter = if self.resumed {
                &mut samples.tickets_resumed
            } else {
                &mut samples.tickets_full
            };
            *counter += tickets;
        }
    }

    /// Puts the PROXY header and the ClientHello, or the plain request, in the outbox.
    fn first_flight(&mut self, env: &mut Env) -> Result<(), Failure> {
        if let Some(version) = env.plan.network.proxy_header {
            let local = self
                .wire
                .socket
                .local_addr()
                .map_err(|e| Failure::from_io(&e))?;
            let header = ProxyHeader {
                endpoints: Endpoints::tcp(local, env.plan.address()),
                tlvs: Tlvs::default(),
            };
            header
                .encode(version.format(), &mut self.wire.outbox)
                .map_err(|_| Failure::Tls("proxy header"))?;
        }
        if self.preface.is_some() {
            return self.talk(env, 0, self.times.started);
        }
        if self.tls.is_none() {
            return self.produce(env, self.times.started);
        }
        let hello = self.wire.outbox.len();
        self.drive(env, 0, self.times.started)?;
        self.offered = Offered::of(self.wire.outbox.get(hello..).unwrap_or(&[]));
        Ok(())
    }

    /// Sends until all has gone or the socket is full; makes more of the request as room allows.
    fn push_out(&mut self, env: &mut Env) -> Result<bool, Failure> {
        loop {
            let (sent, all) = match self.wire.flush() {
                Err(_) if matches!(self.phase, Phase::Parked | Phase::Closing) => return Ok(true),
                flushed => flushed.map_err(|e| Failure::from_io(&e))?,
            };
            env.samples(self.times.step).traffic.bytes_out += sent as u64;
            if self.phase == Phase::Connecting {
                if !self.stands(sent, all) {
                    return Ok(false);
                }
                self.on_connected(env);
            }
            if !all {
                return Ok(false);
            }
            if self.phase != Phase::Exchanging {
                return Ok(true);
            }
            if !self.exchange.wants_write() {
                return Ok(true);
            }
            self.produce(env, clock::now())?;
            if self.wire.outbox.is_empty() {
                return Ok(true);
            }
        }
    }

    /// Whether the connection stands: something was sent, or there was nothing to send and it has a peer.
    fn stands(&self, sent: usize, all: bool) -> bool {
        sent > 0 || (all && self.wire.socket.peer_addr().is_ok())
    }

    fn on_connected(&mut self, env: &mut Env) {
        let now = clock::now();
        env.samples(self.times.step)
            .latency
            .connect
            .record(now - self.times.mark);
        self.times.mark = now;
        if env.plan.options.since_queued {
            // What follows the first bytes is not asked for. Where this is refused, more is noted than is read.
            let _refused = note_acknowledgements(&self.wire.socket, false);
        }
        self.phase = if self.tls.is_some() || self.preface.is_some() {
            Phase::Handshaking
        } else {
            Phase::Exchanging
        };
        if self.phase == Phase::Exchanging {
            self.exchange.asked = now;
        }
    }

    fn produce(&mut self, env: &mut Env, now: Instant) -> Result<(), Failure> {
        if self.tls.is_some() {
            let kept = self.wire.restore(&mut env.input);
            return self.drive(env, kept, now);
        }
        let plan = Arc::clone(&env.plan);
        self.exchange
            .produce_plain(&plan.request, &mut self.wire.outbox, now);
        Ok(())
    }

    fn take_in(&mut self, env: &mut Env, filled: usize) -> Result<(), Failure> {
        let now = clock::now();
        if self.tls.is_some() {
            self.drive(env, filled, now)?;
        } else if self.preface.is_some() {
            self.talk(env, filled, now)?;
        } else {
            let bytes = env.input.get(..filled).unwrap_or(&[]);
            self.exchange.feed(bytes, now)?;
        }
        if self.phase == Phase::Exchanging && self.exchange.response.is_whole() {
            self.on_whole(env, now)?;
        }
        Ok(())
    }

    /// Goes on with the preface; the request follows it at once. Answers come only to flights, so that all
    /// bytes received are its own.
    fn talk(&mut self, env: &mut Env, received: usize, now: Instant) -> Result<(), Failure> {
        let Some(preface) = &mut self.preface else {
            return Ok(());
        };
        let (over, own) = preface.advance(received, &mut self.wire.outbox);
        if own < received {
            return Err(Failure::Tls("preface"));
        }
        if over {
            self.preface = None;
            self.times.mark = now;
            if self.phase == Phase::Handshaking {
                self.phase = Phase::Exchanging;
            }
            self.produce(env, now)?;
        }
        Ok(())
    }

    fn on_whole(&mut self, env: &mut Env, now: Instant) -> Result<(), Failure> {
        let response = &self.exchange.response;
        let (status, body) = (response.status(), response.body());
        if !(200..300).contains(&status) {
            return Err(Failure::Status(status));
        }
        if env
            .plan
            .options
            .expect_body
            .is_some_and(|expected| expected != body)
        {
            return Err(Failure::WrongBody);
        }
        if let Some(first) = self.exchange.answered {
            let took = first.saturating_duration_since(self.exchange.asked);
            env.samples(self.times.step).latency.first_byte.record(took);
        }
        self.succeed(env, now);
        self.requests_left = self.requests_left.saturating_sub(1);
        if self.requests_left > 0 && self.exchange.response.keep_alive() {
            self.phase = Phase::Parked;
            self.ready = true;
            self.deadline = now + FOREVER;
        } else {
            self.phase = Phase::Closing;
            self.deadline = now + LINGER;
        }
        Ok(())
    }

    fn succeed(&self, env: &mut Env, now: Instant) {
        env.live.complete();
        let ended_in = env.timeline.step_of(now);
        env.samples(ended_in).completed += 1;
        let Times {
            step,
            intended,
            started,
            ..
        } = self.times;
        let whole = now.saturating_duration_since(started);
        let corrected = now.saturating_duration_since(intended);
        env.samples(step).succeed(whole, corrected);
        if env.plan.options.since_queued
            && let Ok(Some(since)) = acknowledged_ago(&self.wire.socket)
        {
            // It is read after the whole was.
            env.samples(step)
                .latency
                .since_queued
                .record(since.min(whole));
        }
    }

    /// The peer has closed.
    fn on_end(&mut self, env: &mut Env) -> Result<Turn, Failure> {
        match self.phase {
            Phase::Connecting | Phase::Handshaking => return Err(Failure::ClosedEarly),
            Phase::Exchanging => {
                // Without close_notify the end may be an attacker's (RFC 8446, 6.1).
                let cut =
                    self.tls.is_some() && !self.peer_closed && self.exchange.answered.is_some();
                if cut && !self.exchange.response.is_whole() {
                    return Err(Failure::ShortBody);
                }
                self.exchange.response.end()?;
                self.on_whole(env, clock::now())?;
            }
            Phase::Parked => env.samples(self.times.step).traffic.closed_while_idle += 1,
            Phase::Closing => {}
        }
        Ok(Turn::Free)
    }
}

/// Bounds what one bulk download takes of a loop turn: 16 reads of up to 128 KiB.
const READS_PER_TURN: usize = 16;
/// How long the server may take to close what it was asked to close.
const LINGER: Duration = Duration::from_secs(1);
/// A parked connection has no deadline.
const FOREVER: Duration = Duration::from_secs(86_400 * 365);
