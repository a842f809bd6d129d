//! One connection, from accept to close: client side and server side, whole life.
//!
//! A connection is in exactly one [`Phase`]. A phase is advanced by value and answers with what
//! comes [`Next`]; the worker owns the loop. Phases see sockets through [`Net`], so the same code
//! runs on real sockets and on scripted ones (tests, fuzzing).
//!
//! ```text
//! [Greeting] ──► Handshaking ──► Connecting ──► [Securing] ──► Relaying ──► (gone)
//!     └────────► Entering ────────┘  │              │             │
//!                     └──────────────┴──────────────┴─────────────┴──► Closing ──► (gone)
//!
//! Serving: in place of Connecting, Securing and Relaying, where files are served.
//! Queued: on the way from Handshaking or Entering to Connecting, or within Handshaking, and back
//! from Connecting or Securing when another server has to be found.
//! ```
//!
//! Greeting is left out unless a PROXY header is expected. Where TLS passes, Handshaking ends with the
//! hello. Where clients ask for TLS in clear, the server comes first: Entering, Connecting,
//! Conversing, Handshaking, Relaying; or, behind Conversing, Cancelling and no server.

mod answering;
mod cancelling;
mod closing;
mod connect;
mod conversing;
mod entering;
pub mod facts;
pub mod failure_log;
pub mod glance;
mod greeting;
mod handshake;
mod hearing;
mod hello;
mod introduction;
pub mod kernel_tls;
pub mod listener;
mod passing;
mod queued;
mod relay;
mod resting;
mod resumed;
mod securing;
mod serving;
mod signing;

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use becket_config::listener::ListenMode;
use becket_config::process::{Limits, Timeouts};
use becket_proto::{half_pipe::HalfPipe, session_name::SessionName};

use self::cancelling::Cancelling;
use self::closing::Closing;
use self::connect::Connecting;
use self::conversing::Conversing;
use self::entering::Entering;
use self::facts::Facts;
use self::{greeting::Greeting, handshake::Handshaking};
use self::{queued::Queued, relay::Relaying, securing::Securing, serving::Serving};
use crate::backend::cancel::Cancels;
use crate::backend::inbox::Grant;
use crate::backend::server_state::ServerState;
use crate::backend::slot::Slot;
use crate::connection::failure_log::FailureLog;
use crate::connection::listener::ListenerState;
use crate::leg::{Got, Leg};
use crate::metrics::Counters;
use crate::pipes::{Lent, Pipes};
use crate::socket::{Fault, KernelTlsSocket, Peek, Ready, Socket};
use becket_keys::signing::worker::WorkerSigning;
use becket_log::{access::AccessRecord, access_log::AccessSender};
use becket_proto::close_reason::CloseReason;
use becket_sys::clock::Now;
use becket_tls::admission::{Admitted, HalfOpen, SourcePermit, WorkerAdmission};
use becket_tls::config::ServerAddress;
use becket_tls::scratch::{Buffer, Scratch};

/// The sockets that connections run on.
pub trait Net {
    /// Towards clients.
    type Client: KernelTlsSocket + Peek + fmt::Debug;
    /// Towards servers.
    type Server: KernelTlsSocket + fmt::Debug;

    /// Starts to connect, from a source address if one is given; readiness will be reported for the connection that is being advanced.
    /// With `fast_open` what is sent first may go with the SYN.
    ///
    /// # Errors
    ///
    /// When it failed at once: no such socket, no descriptor, refused.
    fn connect(
        &mut self,
        address: &ServerAddress,
        source: Option<IpAddr>,
        fast_open: bool,
    ) -> io::Result<Self::Server>;

    /// The outcome of a connect that has become writable.
    ///
    /// # Errors
    ///
    /// Why the connect failed.
    fn connected(server: &Self::Server) -> io::Result<()>;
}

/// What a worker lends to the connection that it advances.
#[derive(Debug)]
pub struct Turn<'a, N> {
    /// Where new sockets come from.
    pub net: &'a mut N,
    /// Where the connection lives in its worker.
    pub place: usize,
    /// Read once per loop turn.
    pub now: Now,
    /// The worker's numbers.
    pub counters: &'a Counters,
    /// Bounds of the current configuration.
    pub limits: &'a Limits,
    /// Time-outs of the current configuration.
    pub timeouts: &'a Timeouts,
    /// Where failures are told, at a bounded rate.
    pub failures: &'a mut FailureLog,
    /// Who is let in.
    pub admission: &'a Rc<WorkerAdmission>,
    /// Where cancels are left.
    pub cancels: &'a Cancels,
    /// Lent to directions that carry bulk.
    pub pipes: &'a Rc<Pipes>,
    /// Where signatures are asked for; `None` where they are made at once.
    pub signing: Option<&'a WorkerSigning>,
    /// For requests, if there is an access log.
    pub access: Option<&'a AccessSender>,
    /// The process takes no new clients, and ends when the last one has left.
    pub draining: bool,
}

/// One connection.
#[derive(Debug)]
pub struct Connection<N: Net> {
    core: Core<N>,
    /// `None` only while it is being advanced.
    phase: Option<Phase<N>>,
}

/// What outlives every phase.
#[derive(Debug)]
struct Core<N: Net> {
    client: Leg<N::Client>,
    facts: Facts,
    /// When to give up, if nothing happens.
    deadline: Duration,
    /// When the handshake is to be done. To wait for a slot is no part of it.
    handshake_until: Duration,
    /// Bytes of a PROXY header, which are not the client's.
    header: u64,
    /// The session in the table that the client made or proved to hold: TLS 1.2 by ID only.
    session: Option<Box<SessionName>>,
    /// The client takes FIN for the end of a whole stream: it speaks no TLS that would tell a cut
    /// from an end.
    fin_is_an_end: bool,
    /// Counts it for its source until it is gone, where that is limited.
    permit: Option<Box<SourcePermit>>,
    /// Counts it for its source until it has keys.
    half_open: Option<Box<HalfOpen>>,
}

/// Where a connection is in its life.
#[derive(Debug)]
enum Phase<N: Net> {
    /// Until the first turn, where no TLS ends.
    Entering(Entering),
    /// Until a PROXY header, where one is expected.
    Greeting(Greeting),
    /// Until the client asks for TLS, where it begins in clear.
    Conversing(Conversing<N>),
    /// Until the servers were told of a cancel, where that is what the client asks for.
    Cancelling(Cancelling),
    /// Until traffic keys; until the hello is whole, where TLS ends behind us.
    Handshaking(Handshaking<N>),
    /// Until a server has a slot. On the heap: those who relay, of whom there are many, keep no room for it.
    Queued(Box<Queued<N>>),
    /// Until a server answers.
    Connecting(Connecting<N>),
    /// Until traffic keys towards the server, where the backend has TLS.
    Securing(Securing<N>),
    /// Until both directions have ended.
    Relaying(Relaying<N>),
    /// Until all requests for files are answered. On the heap, as above.
    Serving(Box<Serving>),
    /// Until the client has taken the last bytes.
    Closing(Closing),
}

/// A connection and its turn, as phases are given them.
struct Context<'a, 't, N: Net> {
    core: &'a mut Core<N>,
    turn: &'a mut Turn<'t, N>,
}

/// What an advanced phase wants.
#[derive(Debug)]
enum Next<N: Net> {
    /// To be advanced at the next readiness or at the deadline.
    Wait(Phase<N>),
    /// To be advanced again in the next turn: its budget is spent.
    Yield(Phase<N>),
    /// To be advanced at once: another phase began.
    Go(Phase<N>),
    /// To be dropped.
    End(CloseReason),
}

/// What a client has said before there was somebody to hear it. It lies in the worker's buffers.
#[derive(Clone, Copy, Debug, Default)]
struct Said<'a> {
    bytes: &'a [u8],
    /// It was the last that the client will say.
    ended: bool,
}

/// What [`Connection::advance`] left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advanced {
    /// Nothing to do before the next event or deadline.
    Waiting,
    /// More to do, in the next turn.
    Unfinished,
    /// Over.
    Ended(CloseReason),
}

/// Which socket of a connection an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Who speaks TLS to us.
    Client,
    /// Whom we relay to.
    Server,
}

impl<N: Net> Phase<N> {
    /// Where a client begins who needs no introduction, or has had one.
    fn first(listener: Rc<ListenerState>, counters: &Counters) -> Self {
        match listener.mode {
            ListenMode::Tls => {
                counters.handshakes_begun.add(1);
                Self::Handshaking(Handshaking::new(listener))
            }
            ListenMode::Plain | ListenMode::StartTls(_) => Self::Entering(Entering::new(listener)),
        }
    }

    fn advance(self, cx: &mut Context<'_, '_, N>, scratch: &mut Scratch) -> Next<N> {
        match self {
            Self::Entering(phase) => phase.advance(cx),
            Self::Greeting(phase) => phase.advance(cx, scratch),
            Self::Conversing(phase) => phase.advance(cx, scratch),
            Self::Cancelling(phase) => phase.advance(cx),
            Self::Handshaking(phase) => phase.advance(cx, scratch),
            Self::Queued(phase) => phase.advance(cx, scratch),
            Self::Connecting(phase) => phase.advance(cx),
            Self::Securing(phase) => phase.advance(cx, scratch),
            Self::Relaying(phase) => phase.advance(cx, scratch),
            Self::Serving(phase) => phase.advance(cx, scratch),
            Self::Closing(phase) => phase.advance(cx, scratch),
        }
    }

    fn expire(self, cx: &mut Context<'_, '_, N>, scratch: &mut Scratch) -> Next<N> {
        match self {
            Self::Entering(phase) => phase.advance(cx),
            Self::Greeting(phase) => phase.expire(cx),
            Self::Conversing(phase) => phase.expire(cx),
            Self::Cancelling(phase) => phase.expire(cx),
            Self::Handshaking(phase) => phase.expire(cx),
            Self::Queued(phase) => phase.expire(cx),
            Self::Connecting(phase) => phase.expire(cx),
            Self::Securing(phase) => phase.expire(cx),
            Self::Relaying(phase) => phase.expire(cx),
            Self::Serving(phase) => phase.expire(cx, scratch),
            Self::Closing(phase) => phase.expire(),
        }
    }

    fn leave_server(self, cx: &mut Context<'_, '_, N>, _: &mut Scratch) -> Next<N> {
        match self {
            Self::Connecting(phase) => phase.leave_server(cx),
            Self::Securing(phase) => phase.leave_server(cx),
            Self::Relaying(phase) => phase.leave_server(cx),
            Self::Conversing(_) | Self::Handshaking(_) => {
                // Its slot is free at once, whoever still has to take the last bytes.
                drop(self);
                cx.turn.counters.handshakes_ended.add(1);
                Closing::begin(CloseReason::ServerDown, HalfPipe::default(), cx)
            }
            phase => Next::Go(phase),
        }
    }

    /// Whether a handshake has begun and not come to its end.
    fn lacks_keys(&self) -> bool {
        match self {
            Self::Conversing(_) | Self::Handshaking(_) => true,
            Self::Queued(phase) => phase.lacks_keys(),
            _ => false,
        }
    }

    /// The socket towards the server, if there is one.
    fn server(&mut self) -> Option<&mut Leg<N::Server>> {
        match self {
            Self::Connecting(phase) => phase.server.as_mut(),
            Self::Securing(phase) => Some(&mut phase.server),
            Self::Relaying(phase) => Some(&mut phase.server),
            Self::Conversing(phase) => Some(&mut phase.relay.server),
            Self::Handshaking(phase) => phase.relay_mut().map(|relay| &mut relay.server),
            _ => None,
        }
    }

    /// The slot of the server that is connected, or being connected.
    fn slot(&self) -> Option<&Slot> {
        match self {
            Self::Connecting(phase) => Some(&phase.attempt.slot),
            Self::Securing(phase) => Some(&phase.attempt.slot),
            Self::Relaying(phase) => Some(&phase.slot),
            Self::Conversing(phase) => Some(&phase.relay.slot),
            Self::Handshaking(phase) => phase.relay().map(|relay| &relay.slot),
            _ => None,
        }
    }

    /// Whether this readiness of the client's socket can change anything.
    fn cares_for(&self, ready: Ready) -> bool {
        match self {
            Self::Greeting(_) => ready.readable || ready.ended,
            Self::Handshaking(phase) => phase.cares_for(ready),
            Self::Queued(phase) => phase.cares_for(ready),
            // Bytes wait until there is a server; a client that is gone does not.
            Self::Connecting(_) | Self::Securing(_) | Self::Cancelling(_) => ready.failed,
            _ => true,
        }
    }
}

impl<N: Net> Connection<N> {
    /// Starts a connection that was just accepted through `listener`.
    pub fn new(
        client: N::Client,
        listener: Rc<ListenerState>,
        facts: Facts,
        now: Now,
        timeouts: &Timeouts,
        counters: &Counters,
    ) -> Self {
        let handshake_until = now.running + timeouts.handshake;
        let deadline = handshake_until.min(now.running + timeouts.hello);
        let mode = listener.mode;
        let phase = match listener.config().keys.accept_proxy {
            Some(_) => Phase::Greeting(Greeting::new(listener)),
            None => Phase::first(listener, counters),
        };
        // The hello is probably there: a first receive is worth a try.
        let ready = Ready {
            readable: true,
            ..Ready::default()
        };
        Self {
            core: Core {
                client: Leg::new(client, ready),
                facts,
                deadline,
                handshake_until,
                header: 0,
                session: None,
                fin_is_an_end: mode == ListenMode::Plain,
                permit: None,
                half_open: None,
            },
            phase: Some(phase),
        }
    }

    pub fn count(&mut self, admitted: Admitted) {
        self.core.count(admitted);
    }

    /// Takes note of readiness. Returns whether the connection should be advanced for it.
    pub fn handle_ready(&mut self, side: Side, ready: Ready) -> bool {
        let Some(phase) = &mut self.phase else {
            return false;
        };
        if side == Side::Client {
            self.core.client.ready.add(ready);
            return phase.cares_for(ready);
        }
        let Some(server) = phase.server() else {
            return false;
        };
        server.ready.add(ready);
        // A server that waits for a handshake has its turn behind that.
        !matches!(phase, Phase::Handshaking(_))
    }

    /// The wait for a slot is over, for whoever waits by this grant. Returns whether the connection
    /// should be advanced for it; if not, the slot goes to the next.
    pub fn handle_grant(&mut self, grant: Grant) -> bool {
        match &mut self.phase {
            Some(Phase::Queued(phase)) => phase.handle_grant(grant),
            _ => false,
        }
    }

    /// Whether this server is connected, or being connected.
    pub fn is_at(&self, server: &Arc<ServerState>) -> bool {
        let slot = self.phase.as_ref().and_then(Phase::slot);
        slot.is_some_and(|slot| Arc::ptr_eq(slot.server(), server))
    }

    /// Ends what goes on with the server, which went out of service; see [`Self::is_at`].
    pub fn leave_server(&mut self, turn: &mut Turn<'_, N>, scratch: &mut Scratch) -> Advanced {
        self.go_on(Phase::leave_server, turn, scratch)
    }

    /// Does all that can be done now.
    pub fn advance(&mut self, turn: &mut Turn<'_, N>, scratch: &mut Scratch) -> Advanced {
        self.go_on(Phase::advance, turn, scratch)
    }

    /// The deadline has passed: gives up, or tries the next server.
    pub fn expire(&mut self, turn: &mut Turn<'_, N>, scratch: &mut Scratch) -> Advanced {
        self.go_on(Phase::expire, turn, scratch)
    }

    /// Takes a first step and all that follow from it. What the worker counted meanwhile is the
    /// connection's own: so both are one number, whatever becomes of a server's socket.
    fn go_on(
        &mut self,
        first: impl FnOnce(Phase<N>, &mut Context<'_, '_, N>, &mut Scratch) -> Next<N>,
        turn: &mut Turn<'_, N>,
        scratch: &mut Scratch,
    ) -> Advanced {
        let Some(phase) = self.phase.take() else {
            return Advanced::Ended(CloseReason::Internal);
        };
        let before = turn.counters.server_traffic();
        let core = &mut self.core;
        let mut cx = Context { core, turn };
        let mut next = first(phase, &mut cx, scratch);
        while let Next::Go(phase) = next {
            next = phase.advance(&mut cx, scratch);
        }
        let after = turn.counters.server_traffic();
        let traffic = &mut self.core.facts.server_traffic;
        traffic.received += after.received - before.received;
        traffic.sent += after.sent - before.sent;
        let (phase, advanced) = match next {
            Next::Go(phase) | Next::Yield(phase) => (Some(phase), Advanced::Unfinished),
            Next::Wait(phase) => (Some(phase), Advanced::Waiting),
            Next::End(reason) => (None, Advanced::Ended(reason)),
        };
        self.phase = phase;
        advanced
    }

    /// When [`Self::expire`] is due.
    pub fn deadline(&self) -> Duration {
        self.core.deadline
    }

    /// Whether the handshake is still going on, or has still to begin. One that waits for a slot
    /// does not go on.
    pub fn is_handshaking(&self) -> bool {
        match &self.phase {
            Some(Phase::Queued(phase)) => phase.is_handshaking(),
            Some(Phase::Greeting(_)) => true,
            Some(phase) => phase.lacks_keys(),
            None => false,
        }
    }

    /// Whether the client has not even said a whole hello, which is all that it could do at once.
    pub fn lacks_hello(&self) -> bool {
        matches!(
            &self.phase,
            Some(
                Phase::Greeting(_)
                    | Phase::Conversing(_)
                    | Phase::Handshaking(Handshaking::Hello(_))
            )
        )
    }

    /// The session in the table that must be forgotten when the connection ended like this.
    ///
    /// RFC 5246, section 7.2.2: after a fatal alert "servers and clients MUST forget any
    /// session-identifiers, keys, and secrets associated with a failed connection". Only of
    /// clients that proved to hold the session: an ID travels in clear, and whoever saw one must
    /// not be able to end it for its owner.
    pub fn failed_session(&self, reason: CloseReason) -> Option<SessionName> {
        let failed = reason == CloseReason::ClientTlsError;
        self.core.session.as_deref().copied().filter(|_| failed)
    }

    /// The line of the access log.
    pub fn record(&self, reason: CloseReason, now: Now) -> AccessRecord {
        self.core
            .facts
            .record(self.core.client.traffic, reason, now)
    }

    /// Goes without an answer, so that others can be served: a reset costs the least on both sides.
    pub fn make_room(&mut self, turn: &Turn<'_, N>) {
        self.core.client.socket.reset_on_close();
        self.stop(turn);
    }

    /// The process stops: counts what is being cut off. Who would take FIN for an end is reset.
    pub fn stop(&mut self, turn: &Turn<'_, N>) -> CloseReason {
        if self.phase.as_ref().is_some_and(Phase::lacks_keys) {
            turn.counters.handshakes_ended.add(1);
        }
        match &mut self.phase {
            Some(Phase::Relaying(phase)) => phase.cut_off(&mut self.core),
            // It has had its end, and may not have taken it yet.
            Some(Phase::Closing(_)) => {}
            _ if self.core.fin_is_an_end => self.core.client.socket.reset_on_close(),
            _ => {}
        }
        CloseReason::Stopped
    }
}

impl<N: Net> Core<N> {
    fn count(&mut self, admitted: Admitted) {
        self.permit = admitted.permit;
        self.half_open = admitted.half_open;
    }

    /// Why a client left that has no keys yet: one that never said a word looked whether becket is there.
    fn left_early(&self) -> CloseReason {
        if self.client.traffic.received == self.header {
            CloseReason::HealthCheck
        } else {
            CloseReason::HandshakeAborted
        }
    }
}

impl<N: Net> Context<'_, '_, N> {
    /// Receives from the client; see [`Leg::receive`].
    fn receive(&mut self, buffer: &mut Buffer, most: usize) -> Result<Got, Fault> {
        let counter = &self.turn.counters.client_bytes_in;
        self.core.client.receive(buffer, most, counter)
    }

    /// Sends to the client what waits for it; see [`Leg::flush`].
    fn flush(&mut self, pipe: &mut HalfPipe<Lent>) -> Result<(), Fault> {
        let counter = &self.turn.counters.client_bytes_out;
        self.core.client.flush(pipe, counter)
    }

    /// Sends to the client behind what waits for it; see [`Leg::push`].
    fn push(&mut self, bytes: &[u8], pipe: &mut HalfPipe<Lent>) -> Result<(), Fault> {
        let counter = &self.turn.counters.client_bytes_out;
        self.core.client.push(bytes, pipe, counter)
    }

    /// Whether the client has ended its side; before a step that is worth the look.
    fn client_is_gone(&self) -> bool {
        let client = &self.core.client;
        client.ready.ended || client.socket.is_gone()
    }

    /// Writes a line about a failure.
    fn note(&mut self, reason: CloseReason, detail: &str) {
        let (failures, now) = (&mut self.turn.failures, self.turn.now);
        failures.note(&self.core.facts, reason, detail, now);
    }

    /// Counts the end of a handshake that leads to nothing.
    fn end_handshake(&self, reason: CloseReason) -> Next<N> {
        self.turn.counters.handshakes_ended.add(1);
        Next::End(reason)
    }
}
