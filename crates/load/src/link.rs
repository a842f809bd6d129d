//! State machine of one connection of the load tool, from `connect` to the server's FIN.
//!
//! ```text
//! Connecting ─► Handshaking ─► Exchanging ─► Closing ─► closed
//!       └────────(plain)──────────▲  │ keep-alive
//!                                 └─ Parked
//! ```
//!
//! Each readiness event calls [`LoadConnection::turn`], which sends pending data, reads, passes the bytes to TLS and
//! HTTP, and records latencies. A connection never blocks. A failed transaction is an `Err(Failure)`, which the slot
//! counts. Outgoing data collects in the outbox and is sent with one write per flight.
//!
//! The server closes first if possible: after the last response the connection waits for the server's FIN. TIME_WAIT
//! then stays on the server's side, and the client can reuse its ports.

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

pub struct LoadConnection {
    pub wire: Wire,
    tls: Option<ClientConnection>,
    pub phase: Phase,
    /// State of the preface; `None` after it is complete, or without a preface.
    preface: Option<PrefaceState>,
    response: Response,
    /// Time at which the request was written to the socket.
    asked: Instant,
    /// Time of the first response byte; `None` before it.
    answered: Option<Instant>,
    pub times: Times,
    requests_left: u64,
    /// `true` if the plan requires a resumed handshake.
    resumes: bool,
    pub offered: Offered,
    /// `true` if the request was sent as early data.
    early: bool,
    peer_closed: bool,
    /// `true` if the response is complete, but `turn` has not returned [`Turn::Answered`] yet.
    ready: bool,
    /// Time at which the slot aborts the transaction.
    pub deadline: Instant,
}

/// Start times of a transaction, and the step of the run in which it counts.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Step that contains the intended start; `None` for discarded results.
    pub step: Option<usize>,
    pub intended: Instant,
    pub started: Instant,
    pub mark: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The TCP handshake is in progress.
    Connecting,
    /// The TLS handshake or the preface is in progress.
    Handshaking,
    /// A request is being sent, or its response is pending.
    Exchanging,
    /// The response is complete, and another request may follow.
    Parked,
    /// The last response is complete. The server is expected to close.
    Closing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    Waiting,
    /// More data may be readable; call `turn` again without waiting.
    Again,
    /// The transaction succeeded, and another may start on this connection.
    Answered,
    Free,
}

impl LoadConnection {
    /// Creates a connection and prepares its first flight. `wire` is still connecting; `resumes` is `true` if the plan
    /// requires a resumed handshake.
    ///
    /// # Errors
    /// [`Failure::Tls`] if rustls cannot create a ClientHello.
    pub fn open(
        wire: Wire,
        config: Option<Arc<ClientConfig>>,
        resumes: bool,
        times: Times,
        env: &Env,
    ) -> Result<Self, Failure> {
        let plan = &env.plan;
        let tls = config.zip(plan.server_name.clone());
        let tls = tls.map(|(config, name)| ClientConnection::new(config, name));
        let mut link = Self {
            wire,
            tls: tls.transpose()?,
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

    /// Starts the next transaction on a parked connection.
    ///
    /// # Errors
    /// Returns the failure of the new transaction.
    pub fn ask_again(&mut self, times: Times, env: &mut Env) -> Result<Turn, Failure> {
        self.response = Response::default();
        self.answered = None;
        self.times = times;
        self.deadline = times.started + env.plan.options.load.time_out;
        self.phase = Phase::Exchanging;
        self.ask(env, times.started)?;
        self.turn(env, false)
    }

    /// Sends and receives all that is possible without waiting. `hung_up` is `true` if the event reported the peer's
    /// FIN.
    ///
    /// # Errors
    /// Returns the failure of the transaction.
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
                Err(e) => return Err(e.into()),
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

    fn rest(&mut self) -> Turn {
        if self.phase == Phase::Closing && self.peer_closed {
            // Closes after a close_notify (RFC 5246, section 7.2.1), because some servers send FIN
            // only after the client has closed.
            Turn::Free
        } else if std::mem::take(&mut self.ready) {
            Turn::Answered
        } else {
            Turn::Waiting
        }
    }

    /// Ends a connection at its deadline.
    ///
    /// # Errors
    /// [`Failure::TimeOut`], unless the transaction had already ended.
    pub fn expire(&self, env: &mut Env) -> Result<(), Failure> {
        match self.phase {
            Phase::Connecting => Err(Failure::TimeOut("connect".into())),
            Phase::Handshaking => Err(Failure::TimeOut("handshake".into())),
            Phase::Exchanging if self.answered.is_none() => {
                Err(Failure::TimeOut("first byte".into()))
            }
            Phase::Exchanging => Err(Failure::TimeOut("body".into())),
            Phase::Parked => Ok(()),
            Phase::Closing => {
                env.samples(self.times.step).lingered += 1;
                Ok(())
            }
        }
    }

    /// Counts the TLS 1.3 tickets that the connection received. Called after its end.
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

    /// Returns `true` if no transaction is in progress; errors then do not count as failures.
    fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Parked | Phase::Closing)
    }

    /// Sends the outbox. The first successful send shows that the connection is established.
    fn flush(&mut self, env: &mut Env) -> Result<(), Failure> {
        // rustls sends this record as soon as it has the ServerHello. If the rest of the server's flight is in a later
        // packet, the record waits for the Finished, which Nagle's algorithm would otherwise delay.
        if self.phase == Phase::Handshaking && self.wire.outbox == CHANGE_CIPHER_SPEC {
            return Ok(());
        }
        let sent = match self.wire.flush() {
            Err(_) if self.is_idle() => return Ok(()),
            flushed => flushed?,
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
            // Stops timestamping after the first bytes. If this fails, the kernel records further timestamps, which are
            // not read.
            let _refused = note_acknowledgements(&self.wire.socket, false);
        }
        if self.tls.is_some() || self.preface.is_some() {
            self.phase = Phase::Handshaking;
        } else {
            self.phase = Phase::Exchanging;
        }
    }

    /// Sends the request as early data if it fits into the limit of the offered session.
    fn ask_early(&mut self, env: &Env) -> Result<(), Failure> {
        let request = env.request(self.requests_left);
        let data = self.tls.as_mut().and_then(ClientConnection::early_data);
        if let Some(mut data) = data.filter(|data| data.bytes_left() >= request.len()) {
            data.write_all(request)?;
            self.early = true;
        }
        Ok(())
    }

    fn ask(&mut self, env: &Env, now: Instant) -> Result<(), Failure> {
        let request = env.request(self.requests_left);
        self.asked = now;
        match &mut self.tls {
            None => self.wire.outbox.extend_from_slice(request),
            Some(tls) => {
                tls.writer().write_all(request)?;
                self.collect()?;
            }
        }
        Ok(())
    }

    fn collect(&mut self) -> Result<(), Failure> {
        let Some(tls) = &mut self.tls else {
            return Ok(());
        };
        while tls.wants_write() {
            tls.write_tls(&mut self.wire.outbox)?;
        }
        Ok(())
    }

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
            taken += tls.read_tls(&mut records)?;
            let state = tls.process_new_packets()?;
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
        // `fill_buf` returns `WouldBlock` if there is no more plaintext yet.
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

    /// Counts which kind of handshake was required and which kind occurred.
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

    /// Continues the preface, and adds the request to the outbox when the preface is complete. The server sends only
    /// answers to flights, so all received bytes belong to the preface.
    fn talk(&mut self, env: &Env, received: usize, now: Instant) -> Result<(), Failure> {
        let Some(preface) = &mut self.preface else {
            return Ok(());
        };
        let (over, own) = preface.advance(received, &mut self.wire.outbox);
        if own < received {
            return Err(Failure::Tls("preface".into()));
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
        let status = self.response.status;
        if !(200..300).contains(&status) {
            return Err(Failure::Status(status));
        }
        let expected = env.plan.options.connection.expect_body;
        if expected.is_some_and(|expected| expected != self.response.body) {
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
        if self.requests_left > 0 && self.response.keep_alive {
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
            // `since` was measured after `now`, so it may exceed `whole`.
            samples.latency.since_queued.record(since.min(whole));
        }
    }

    /// Ends the connection after the peer's FIN. An incomplete response counts as a failure.
    fn on_end(&mut self, env: &mut Env) -> Result<Turn, Failure> {
        match self.phase {
            Phase::Connecting | Phase::Handshaking => return Err(Failure::ClosedEarly),
            Phase::Exchanging => {
                // Without close_notify, an attacker may have truncated the response (RFC 8446,
                // section 6.1).
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

/// Maximum number of reads per connection and loop turn, up to 128 KiB each, so that a bulk download does not starve
/// other connections.
const READS_PER_TURN: usize = 16;
/// Record that makes TLS 1.3 look like a resumption (RFC 8446, appendix D.4).
const CHANGE_CIPHER_SPEC: &[u8] = &[20, 3, 3, 0, 1, 1];
/// Time within which the server must close after the last response.
const LINGER: Duration = Duration::from_secs(1);
/// Deadline of a parked connection: a year, in effect no deadline.
const FOREVER: Duration = Duration::from_secs(86_400 * 365);
