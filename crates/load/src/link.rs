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
//! is an `Err(Failure)`, which its slot counts. What is to be sent gathers in the outbox and goes out in one write per flight.
//!
//! The server closes first where it can: after the last response the link waits for its FIN, so that
//! TIME_WAIT stays with the server and the client keeps its ports.

use std::io::{BufRead, ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use becket_sys::socket::{acknowledged_ago, note_acknowledgements};
use rustls::client::{ClientConfig, ClientConnection};
use rustls::{HandshakeKind, ProtocolVersion};

use crate::clock;
use crate::env::Env;
use crate::failure::Failure;
use crate::hello::Offered;
use crate::negotiated;
use crate::preface::PrefaceState;
use crate::response::Response;
use crate::tls::Tls;
use crate::wire::Wire;

/// A connection at work.
pub struct LoadConnection {
    wire: Wire,
    tls: Option<ClientConnection>,
    phase: Phase,
    /// What is said before a plain request, until it is over.
    preface: Option<PrefaceState>,
    response: Response,
    /// When the request was given to the socket.
    asked: Instant,
    /// When the first byte of the response came.
    answered: Option<Instant>,
    times: Times,
    requests_left: u64,
    /// The plan asks for a resumed handshake.
    resumes: bool,
    offered: Offered,
    /// The request left as early data.
    early: bool,
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

impl LoadConnection {
    /// Makes a link whose first flight is ready to go. `wire` is connecting, `resumes` says what the plan asks of the
    /// handshake.
    ///
    /// # Errors
    /// [`Failure::Tls`] when the library cannot make a ClientHello.
    pub fn open(
        wire: Wire,
        config: Option<Arc<ClientConfig>>,
        resumes: bool,
        times: Times,
        env: &Env,
    ) -> Result<Self, Failure> {
        let plan = &env.plan;
        let tls = match config.zip(plan.server_name.clone()) {
            None => None,
            Some((config, name)) => {
                Some(ClientConnection::new(config, name).map_err(|e| Failure::from_tls(&e))?)
            }
        };
        let mut link = Self {
            wire,
            tls,
            phase: Phase::Connecting,
            preface: plan.preface.as_ref().map(|preface| {
                PrefaceState::new(if resumes {
                    &preface.resumed
                } else {
                    &preface.full
                })
            }),
            response: Response::default(),
            asked: times.started,
            answered: None,
            times,
            requests_left: plan.options.connection.keepalive,
            resumes,
            offered: Offered::Nothing,
            early: false,
            peer_closed: false,
            ready: false,
            deadline: times.started + plan.options.load.time_out,
        };
        if link.preface.is_some() {
            link.talk(env, 0, times.started)?;
        } else if link.tls.is_some() {
            link.ask_early(env)?;
            link.collect()?;
            link.offered = Offered::of(&link.wire.outbox);
        } else {
            link.ask(env, times.started)?;
        }
        Ok(link)
    }

    /// Returns what the first flight offers to resume.
    pub fn offered(&self) -> Offered {
        self.offered
    }

    pub fn times(&self) -> Times {
        self.times
    }

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
        self.response = Response::default();
        self.answered = None;
        self.times = times;
        self.deadline = times.started + env.plan.options.load.time_out;
        self.phase = Phase::Exchanging;
        self.ask(env, times.started)?;
        self.turn(env, false)
    }

    /// Does all that can be done without waiting. `hung_up` says that the event told of the peer's FIN.
    ///
    /// # Errors
    /// What ends the transaction.
    pub fn turn(&mut self, env: &mut Env, hung_up: bool) -> Result<Turn, Failure> {
        self.flush(env)?;
        if self.phase == Phase::Connecting {
            return Ok(Turn::Waiting);
        }
        for _ in 0..READS_PER_TURN {
            let count = match self.wire.socket.read(&mut env.input) {
                Ok(0) => return self.on_end(env),
                Ok(count) => count,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(self.rest()),
                Err(_) if self.is_idle() => return self.on_end(env),
                Err(e) => return Err(Failure::from_io(&e)),
            };
            env.samples(self.times.step).traffic.bytes_in += count as u64;
            self.take_in(env, count)?;
            self.flush(env)?;
            if count < env.input.len() {
                return if hung_up {
                    self.on_end(env)
                } else {
                    Ok(self.rest())
                };
            }
        }
        Ok(Turn::Again)
    }

    /// Returns what to do when there is no more to read.
    fn rest(&mut self) -> Turn {
        if self.phase == Phase::Closing && self.peer_closed {
            // RFC 5246, section 7.2.1: a close_notify is answered by closing. Some servers wait
            // for that before they send FIN.
            Turn::Free
        } else if std::mem::take(&mut self.ready) {
            Turn::Answered
        } else {
            Turn::Waiting
        }
    }

    /// Gives up on the connection: its time is over.
    ///
    /// # Errors
    /// [`Failure::TimeOut`], unless the transaction had ended before.
    pub fn expire(&self, env: &mut Env) -> Result<(), Failure> {
        match self.phase {
            Phase::Connecting => Err(Failure::TimeOut("connect")),
            Phase::Handshaking => Err(Failure::TimeOut("handshake")),
            Phase::Exchanging if self.answered.is_none() => Err(Failure::TimeOut("first byte")),
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
            let samples = env.samples(self.times.step);
            let counter = if tls.handshake_kind() == Some(HandshakeKind::Resumed) {
                &mut samples.tickets_resumed
            } else {
                &mut samples.tickets_full
            };
            *counter += u64::from(tls.tls13_tickets_received());
        }
    }

    /// No transaction is on its way: what happens to the connection is no failure.
    fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Parked | Phase::Closing)
    }

    /// Sends what is due. The connection stands when something went.
    fn flush(&mut self, env: &mut Env) -> Result<(), Failure> {
        let sent = match self.wire.flush() {
            Err(_) if self.is_idle() => return Ok(()),
            flushed => flushed.map_err(|e| Failure::from_io(&e))?,
        };
        env.samples(self.times.step).traffic.bytes_out += sent as u64;
        if self.phase == Phase::Connecting && sent > 0 {
            self.on_connected(env);
        }
        Ok(())
    }

    fn on_connected(&mut self, env: &mut Env) {
        let now = clock::now();
        let took = now - self.times.mark;
        env.samples(self.times.step).latency.connect.record(took);
        (self.times.mark, self.asked) = (now, now);
        if env.plan.options.connection.since_queued {
            // What follows the first bytes is not asked for. Where this is refused, more is noted than is read.
            let _refused = note_acknowledgements(&self.wire.socket, false);
        }
        if self.tls.is_some() || self.preface.is_some() {
            self.phase = Phase::Handshaking;
        } else {
            self.phase = Phase::Exchanging;
        }
    }

    /// Gives the request to TLS as early data, where the session that is offered has room for it.
    fn ask_early(&mut self, env: &Env) -> Result<(), Failure> {
        let request = env.request(self.requests_left);
        let data = self.tls.as_mut().and_then(ClientConnection::early_data);
        if let Some(mut data) = data.filter(|data| data.bytes_left() >= request.len()) {
            let written = data.write_all(request);
            written.map_err(|e| Failure::from_io(&e))?;
            self.early = true;
        }
        Ok(())
    }

    /// Puts the request in the outbox.
    fn ask(&mut self, env: &Env, now: Instant) -> Result<(), Failure> {
        let request = env.request(self.requests_left);
        self.asked = now;
        match &mut self.tls {
            None => self.wire.outbox.extend_from_slice(request),
            Some(tls) => {
                let written = tls.writer().write_all(request);
                written.map_err(|e| Failure::from_io(&e))?;
                self.collect()?;
            }
        }
        Ok(())
    }

    /// Collects what TLS wants to send.
    fn collect(&mut self) -> Result<(), Failure> {
        let Some(tls) = &mut self.tls else {
            return Ok(());
        };
        while tls.wants_write() {
            let written = tls.write_tls(&mut self.wire.outbox);
            written.map_err(|e| Failure::from_io(&e))?;
        }
        Ok(())
    }

    /// Takes what was read.
    fn take_in(&mut self, env: &mut Env, count: usize) -> Result<(), Failure> {
        let now = clock::now();
        if self.tls.is_some() {
            self.take_records(env, count, now)?;
        } else if self.preface.is_some() {
            self.talk(env, count, now)?;
        } else {
            self.answered.get_or_insert(now);
            let bytes = env.input.get(..count).unwrap_or(&[]);
            self.response.feed(bytes)?;
        }
        if self.phase == Phase::Exchanging && self.response.is_whole() {
            self.on_whole(env, now)?;
        }
        Ok(())
    }

    fn take_records(&mut self, env: &mut Env, count: usize, now: Instant) -> Result<(), Failure> {
        let mut taken = 0;
        while taken < count {
            let Some(tls) = &mut self.tls else {
                return Ok(());
            };
            let mut records = env.input.get(taken..count).unwrap_or(&[]);
            let read = tls.read_tls(&mut records);
            taken += read.map_err(|e| Failure::from_io(&e))?;
            let state = tls
                .process_new_packets()
                .map_err(|e| Failure::from_tls(&e))?;
            self.peer_closed |= state.peer_has_closed();
            if self.phase == Phase::Handshaking && !tls.is_handshaking() {
                self.on_handshake(env, now)?;
            }
            self.collect()?;
            self.take_plaintext(now)?;
        }
        Ok(())
    }

    fn take_plaintext(&mut self, now: Instant) -> Result<(), Failure> {
        let Some(tls) = &mut self.tls else {
            return Ok(());
        };
        let mut reader = tls.reader();
        // It would block where there is no more for now.
        while let Ok(bytes) = reader.fill_buf()
            && !bytes.is_empty()
        {
            self.answered.get_or_insert(now);
            self.response.feed(bytes)?;
            let count = bytes.len();
            reader.consume(count);
        }
        Ok(())
    }

    fn on_handshake(&mut self, env: &mut Env, now: Instant) -> Result<(), Failure> {
        let Some(tls) = &self.tls else { return Ok(()) };
        let kind = tls.handshake_kind();
        let resumed = kind == Some(HandshakeKind::Resumed);
        let known = env.negotiated.as_ref();
        if known.is_none_or(|known| !resumed && known.signature.is_none()) {
            let signature = env.tls.as_ref().filter(|_| !resumed);
            let signature = signature.and_then(Tls::signature);
            env.negotiated = Some(negotiated::of(tls, signature));
        }
        let alpn = tls.alpn_protocol();
        let refuses_http = alpn.is_some_and(|alpn| !alpn.starts_with(b"http/1."));
        let tls12 = tls.protocol_version() == Some(ProtocolVersion::TLSv1_2);
        let accepted = self.early && tls.is_early_data_accepted();
        self.count_handshake(env, kind, tls12);
        let took = now - self.times.mark;
        let samples = env.samples(self.times.step);
        samples.handshakes.early_data_accepted += u64::from(accepted);
        samples.handshakes.early_data_rejected += u64::from(self.early && !accepted);
        if resumed {
            samples.latency.handshake_resumed.record(took);
        } else {
            samples.latency.handshake_full.record(took);
        }
        self.times.mark = now;
        self.phase = Phase::Exchanging;
        if refuses_http {
            return Err(Failure::Alpn);
        }
        if accepted {
            return Ok(());
        }
        if env.plan.options.connection.nagle {
            self.collect()?;
            self.flush(env)?;
        }
        self.ask(env, now)
    }

    /// Counts what was asked for and what happened.
    fn count_handshake(&self, env: &mut Env, kind: Option<HandshakeKind>, tls12: bool) {
        let resumed = kind == Some(HandshakeKind::Resumed);
        let counts = &mut env.samples(self.times.step).handshakes;
        if self.resumes {
            counts.asked_resumed += 1;
        } else {
            counts.asked_full += 1;
        }
        match (resumed, tls12, self.offered) {
            (false, ..) => counts.full += 1,
            (true, false, _) => counts.resumed_by_psk += 1,
            (true, true, Offered::Ticket) => counts.resumed_by_ticket += 1,
            (true, true, _) => counts.resumed_by_id += 1,
        }
        let offered = self.offered != Offered::Nothing;
        counts.full_with_retry += u64::from(kind == Some(HandshakeKind::FullWithHelloRetryRequest));
        counts.declined += u64::from(!resumed && offered);
        counts.nothing_to_offer += u64::from(self.resumes && !offered && !resumed);
    }

    /// Continues the preface; the request follows it at once. Answers come only to flights, so that all
    /// bytes received are its own.
    fn talk(&mut self, env: &Env, received: usize, now: Instant) -> Result<(), Failure> {
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
            self.ask(env, now)?;
        }
        Ok(())
    }

    fn on_whole(&mut self, env: &mut Env, now: Instant) -> Result<(), Failure> {
        let status = self.response.status();
        if !(200..300).contains(&status) {
            return Err(Failure::Status(status));
        }
        let expected = env.plan.options.connection.expect_body;
        if expected.is_some_and(|expected| expected != self.response.body()) {
            return Err(Failure::WrongBody);
        }
        if let Some(first) = self.answered {
            let since = |begin| first.saturating_duration_since(begin);
            let (asked, started) = (since(self.asked), since(self.times.started));
            let latency = &mut env.samples(self.times.step).latency;
            latency.first_byte.record(asked);
            latency.answered.record(started);
        }
        self.succeed(env, now);
        self.requests_left = self.requests_left.saturating_sub(1);
        if self.requests_left > 0 && self.response.keep_alive() {
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
        env.live.completed.fetch_add(1, Ordering::Relaxed);
        let ended_in = env.timeline.step_of(now);
        env.samples(ended_in).completed += 1;
        let whole = now.saturating_duration_since(self.times.started);
        let corrected = now.saturating_duration_since(self.times.intended);
        let since_queued = env.plan.options.connection.since_queued;
        let samples = env.samples(self.times.step);
        samples.succeeded += 1;
        samples.latency.whole.record(whole);
        samples.latency.corrected.record(corrected);
        if since_queued && let Ok(Some(since)) = acknowledged_ago(&self.wire.socket) {
            // It is read after the whole was.
            samples.latency.since_queued.record(since.min(whole));
        }
    }

    /// The peer has closed.
    fn on_end(&mut self, env: &mut Env) -> Result<Turn, Failure> {
        match self.phase {
            Phase::Connecting | Phase::Handshaking => return Err(Failure::ClosedEarly),
            Phase::Exchanging => {
                // Without close_notify the end may be an attacker's (RFC 8446, 6.1).
                let cut = self.tls.is_some() && !self.peer_closed && self.answered.is_some();
                if cut && !self.response.is_whole() {
                    return Err(Failure::ShortBody);
                }
                self.response.end()?;
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
