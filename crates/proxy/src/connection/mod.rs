//! One connection, from accept to close: client side and server side, whole life.
//!
//! A connection is in exactly one [`Phase`]. A phase is advanced by value and returns how far it came; if it is over, it returns what it
//! [`Reached`], and [`Phase::after`] alone makes the next phase of that. The worker owns the loop. Phases see sockets through [`Net`], so
//! the same code runs on real sockets and on scripted ones (tests, fuzzing).
//!
//! ```text
//! phase         reached         next phase
//!
//! (accepted)    Client ───────► Hello; Entering, if clients do not begin with TLS
//! Greeting      Client ───────► as above
//! Entering      Cleartext ────► Serving, if all clients are redirected; Conversing, if they speak first
//!               Pending ──────► see below
//! Hello         Hello ────────► Negotiating
//!               Pending ──────► see below: TLS passes
//! Negotiating   Pending ──────► see below
//!               Joined ───────► Relaying: the server was connected first
//! Queued        Pending, NoServer
//!               Pending ──────► Serving, if files are served; Connecting; Queued, if every server is full
//! Connecting    Pending ──────► Connecting or Queued: another server is tried
//!               Dialog ───────► Conversing
//!               Joined ───────► Relaying
//!               NoServer ─────► Closing
//! Conversing    Upgrade ──────► Hello
//!               Cancel ───────► Cancelling
//! any           Close ────────► Closing
//!               End ──────────► (closed)
//! ```
//!
//! A connection begins in Greeting if a PROXY header is expected. Relaying, Serving and Cancelling lead to Closing or the end.

mod cancelling;
mod closing;
mod completed;
mod connected;
mod connecting;
mod context;
mod conversing;
mod decision;
pub mod facts;
pub mod failure_log;
pub mod glance;
mod greeting;
mod half;
mod handshake_refusal;
mod hello;
mod introduction;
pub mod kernel_tls;
mod learner;
pub mod listener;
mod negotiating;
mod pending;
mod queued;
mod reached;
mod relaying;
mod resting;
mod server_tls;
mod serving;
mod signing;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use becket_config::listener::ListenMode;
use becket_config::process::Timeouts;
use becket_proto::{half_pipe::HalfPipe, session::SessionName};

use self::cancelling::Cancelling;
use self::closing::Closing;
use self::connecting::Connecting;
use self::context::{Context, Core, EarlyBytes};
pub use self::context::{Net, Side, Turn};
use self::conversing::Conversing;
use self::facts::Facts;
use self::greeting::Greeting;
use self::hello::Hello;
use self::listener::ListenerState;
use self::negotiating::Negotiating;
use self::pending::{Pending, Purpose};
use self::queued::Queued;
use self::reached::{Advance, Reached};
use self::relaying::Relaying;
use self::serving::{ServingFiles, Site};
use crate::backend::backend_state::Pick;
use crate::backend::inbox::Grant;
use crate::backend::server_state::ServerState;
use crate::backend::slot::ServerSlot;
use crate::leg::Leg;
use crate::metrics::Counters;
use crate::socket::{Ready, StreamSocket};
use becket_keys::signing::Offload;
use becket_keys::signing::queue::Signed;
use becket_log::access::AccessRecord;
use becket_proto::close_reason::CloseReason;
use becket_sys::clock::Now;
use becket_tls::admission::Admitted;
use becket_tls::scratch::Scratch;

/// One connection.
#[derive(Debug)]
pub struct Connection<N: Net> {
    core: Core<N>,
    /// `None` only while it is being advanced.
    phase: Option<Phase<N>>,
}

/// The phases of a connection.
#[derive(Debug)]
enum Phase<N: Net> {
    /// Until a PROXY header, if one is expected.
    Greeting(Greeting),
    /// Until the first turn, if the client does not begin with TLS. In some protocols the server speaks first, so nothing is waited for;
    /// what the client has sent already is read by a later phase.
    Entering(Rc<ListenerState>),
    /// Until the client asks for TLS, if it begins in clear.
    Conversing(Conversing<N>),
    /// Until the servers were told of a cancel, if the client asks for that.
    Cancelling(Cancelling),
    /// Until the hello is whole.
    Hello(Hello<N>),
    /// Until traffic keys.
    Negotiating(Negotiating<N>),
    /// Until a server has a slot. On the heap: connections that relay, of which there are many, keep no room for it.
    Queued(Box<Queued>),
    /// Until a server answers, with traffic keys if the backend has TLS.
    Connecting(Connecting<N>),
    /// Until both directions have ended.
    Relaying(Relaying<N>),
    /// Until all requests for files are answered. On the heap, as above.
    Serving(Box<ServingFiles>),
    /// Until the client has taken the last bytes.
    Closing(Closing),
}

/// The outcome of [`Connection::advance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advanced {
    /// Nothing to do before the next event or deadline.
    Waiting,
    /// More to do, in the next turn.
    Unfinished,
    Ended(CloseReason),
}

impl<N: Net> Phase<N> {
    /// The next phase: the diagram above.
    fn after(reached: Reached<N>, cx: &mut Context<'_, '_, N>) -> Advance<Self, N> {
        Advance::Go(match reached {
            Reached::Client(listener) => Self::first(listener, cx.turn.counters),
            Reached::Cleartext(listener) => match listener.config().keys.redirect {
                Some(redirect) => {
                    let plain = (None, HalfPipe::default());
                    let site = Site::Https(redirect.port);
                    Self::Serving(ServingFiles::new(site, plain, HalfPipe::default(), cx))
                }
                None => return Advance::Reached(need_server(listener, cx)),
            },
            Reached::Hello(decision) => Self::Negotiating(Negotiating::new(decision)),
            Reached::Pending(pending, _) if pending.pool.files().is_some() => {
                let keys = (pending.client_tls, pending.to_client);
                let site = Site::Files(pending.pool);
                Self::Serving(ServingFiles::new(site, keys, pending.to_server, cx))
            }
            Reached::Pending(mut pending, slot) => match pending.choose(slot, cx) {
                Pick::Slot(slot) => Self::Connecting(Connecting::new(pending, slot, cx)),
                Pick::Full => return Queued::join(pending, cx).map(Self::Queued),
                Pick::Nobody => return Advance::Reached(Reached::NoServer(pending)),
            },
            Reached::NoServer(pending) => {
                let (reason, detail) = pending.failure();
                cx.note(reason, &detail);
                // No close_notify: the client must not take nothing for a whole answer.
                return Closing::begin(reason, pending.to_client, cx).map(Self::Closing);
            }
            Reached::Dialog(listener, protocol, server) => {
                Self::Conversing(Conversing::new(listener, protocol, server, cx))
            }
            Reached::Upgrade(listener, server, insists_on) => {
                Self::Hello(Hello::after_dialog(listener, server, insists_on))
            }
            Reached::Cancel(outcome) => Self::Cancelling(Cancelling::new(outcome, cx)),
            Reached::Joined(joined) => Self::Relaying(Relaying::new(joined, cx)),
            Reached::Close(reason, last) => {
                return Closing::begin(reason, last, cx).map(Self::Closing);
            }
            Reached::End(reason) => return Advance::end(reason),
        })
    }

    /// The first phase of a client that needs no PROXY header, or has sent one.
    fn first(listener: Rc<ListenerState>, counters: &Counters) -> Self {
        match listener.mode {
            ListenMode::Tls => {
                counters.handshakes_begun.add(1);
                Self::Hello(Hello::new(listener))
            }
            ListenMode::Plain | ListenMode::StartTls(_) => Self::Entering(listener),
        }
    }

    fn advance(self, cx: &mut Context<'_, '_, N>, scratch: &mut Scratch) -> Advance<Self, N> {
        match self {
            Self::Greeting(phase) => phase.advance(cx, scratch).map(Self::Greeting),
            Self::Entering(listener) => Advance::Reached(Reached::Cleartext(listener)),
            Self::Conversing(phase) => phase.advance(cx, scratch).map(Self::Conversing),
            Self::Cancelling(phase) => phase.advance(cx).map(Self::Cancelling),
            Self::Hello(phase) => phase.advance(cx, scratch).map(Self::Hello),
            Self::Negotiating(phase) => phase.advance(cx, scratch).map(Self::Negotiating),
            Self::Queued(phase) => phase.advance(cx).map(Self::Queued),
            Self::Connecting(phase) => phase.advance(cx, scratch).map(Self::Connecting),
            Self::Relaying(mut phase) => phase.advance(cx, scratch).map(|()| Self::Relaying(phase)),
            Self::Serving(phase) => phase.advance(cx, scratch).map(Self::Serving),
            Self::Closing(phase) => phase.advance(cx, scratch).map(Self::Closing),
        }
    }

    fn expire(self, cx: &mut Context<'_, '_, N>, scratch: &mut Scratch) -> Advance<Self, N> {
        match self {
            Self::Greeting(phase) => phase.expire(cx).map(Self::Greeting),
            Self::Entering(_) => Advance::Go(self),
            Self::Conversing(phase) => phase.expire(cx).map(Self::Conversing),
            Self::Cancelling(phase) => phase.expire().map(Self::Cancelling),
            Self::Hello(phase) => phase.expire(cx).map(Self::Hello),
            Self::Negotiating(phase) => phase.expire(cx).map(Self::Negotiating),
            Self::Queued(phase) => phase.expire(cx).map(Self::Queued),
            Self::Connecting(phase) => phase.expire(cx).map(Self::Connecting),
            Self::Relaying(mut phase) => phase.expire(cx).map(|()| Self::Relaying(phase)),
            Self::Serving(phase) => phase.expire(cx, scratch).map(Self::Serving),
            Self::Closing(phase) => phase.expire().map(Self::Closing),
        }
    }

    fn leave_server(self, cx: &mut Context<'_, '_, N>, _: &mut Scratch) -> Advance<Self, N> {
        let reason = CloseReason::ServerDown;
        match self {
            Self::Connecting(phase) => phase.leave_server(cx).map(Self::Connecting),
            Self::Relaying(mut phase) => Advance::Reached(phase.abort(reason)),
            // The slot of the server is free at once: the phase ends here.
            Self::Conversing(_) | Self::Hello(_) | Self::Negotiating(_) => {
                let last = HalfPipe::default();
                Advance::Reached(Reached::no_handshake_but(reason, last, cx))
            }
            phase => Advance::Go(phase),
        }
    }

    fn sign(self, cx: &mut Context<'_, '_, N>, scratch: &mut Scratch) -> Advance<Self, N> {
        match self {
            Self::Negotiating(phase) => phase.sign(cx, scratch).map(Self::Negotiating),
            phase => Advance::Go(phase),
        }
    }

    /// Returns whether a handshake has begun and not come to its end.
    fn lacks_keys(&self) -> bool {
        matches!(
            self,
            Self::Conversing(_) | Self::Hello(_) | Self::Negotiating(_)
        )
    }

    /// The socket towards the server, if there is one.
    fn server(&mut self) -> Option<&mut Leg<N::Server>> {
        let connected = match self {
            Self::Connecting(phase) => return phase.server(),
            Self::Relaying(phase) => &mut phase.server,
            Self::Conversing(phase) => phase.server.as_deref_mut()?,
            Self::Hello(phase) => phase.server.as_deref_mut()?,
            Self::Negotiating(phase) => phase.client.server.as_deref_mut()?,
            _ => return None,
        };
        Some(&mut connected.leg)
    }

    /// The slot of the server that is connected, or being connected.
    fn slot(&self) -> Option<&ServerSlot> {
        let connected = match self {
            Self::Connecting(phase) => return Some(&phase.slot),
            Self::Relaying(phase) => &phase.server,
            Self::Conversing(phase) => phase.server.as_deref()?,
            Self::Hello(phase) => phase.server.as_deref()?,
            Self::Negotiating(phase) => phase.client.server.as_deref()?,
            _ => return None,
        };
        Some(&connected.slot)
    }

    /// Returns whether this readiness of the client's socket can change anything.
    fn cares_for(&self, ready: Ready) -> bool {
        match self {
            Self::Greeting(_) | Self::Hello(_) => ready.readable || ready.ended,
            Self::Negotiating(phase) => phase.cares_for(ready),
            Self::Queued(phase) => phase.cares_for(ready),
            // Bytes wait until there is a server; a client that has left does not.
            Self::Connecting(_) | Self::Cancelling(_) => ready.failed,
            _ => true,
        }
    }
}

/// Needs a server for a client that does not begin with TLS, unless the client speaks first.
fn need_server<N: Net>(listener: Rc<ListenerState>, cx: &mut Context<'_, '_, N>) -> Reached<N> {
    if let ListenMode::StartTls(protocol) = listener.mode
        && !listener.mode.connects_first()
    {
        return Reached::Dialog(listener, protocol, None);
    }
    // There is no hello to choose by yet, and so only the listener's own route.
    let Some(pool) = listener.pool(0).cloned() else {
        return Reached::End(CloseReason::Internal);
    };
    let purpose = match listener.mode {
        ListenMode::StartTls(protocol) => Purpose::Converse(listener, protocol),
        _ => Purpose::Relay,
    };
    Reached::pending(Pending::new(pool, purpose), EarlyBytes::default(), cx)
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
        // A server that waits for a handshake has its turn after that.
        !matches!(phase, Phase::Hello(_) | Phase::Negotiating(_))
    }

    /// Ends the wait for a slot if this connection waits by this grant. Returns whether the connection
    /// should be advanced for it; if not, the slot goes to the next.
    pub fn handle_grant(&mut self, grant: Grant) -> bool {
        match &mut self.phase {
            Some(Phase::Queued(phase)) => phase.handle_grant(grant),
            _ => false,
        }
    }

    /// Returns whether this server is connected, or being connected.
    pub fn is_at(&self, server: &Arc<ServerState>) -> bool {
        let slot = self.phase.as_ref().and_then(Phase::slot);
        slot.is_some_and(|slot| Arc::ptr_eq(slot.server(), server))
    }

    /// Leaves the server, which went out of service; see [`Self::is_at`].
    pub fn leave_server(&mut self, turn: &mut Turn<'_, N>, scratch: &mut Scratch) -> Advanced {
        self.drive(Phase::leave_server, turn, scratch)
    }

    /// Does all that can be done now.
    pub fn advance(&mut self, turn: &mut Turn<'_, N>, scratch: &mut Scratch) -> Advanced {
        self.drive(Phase::advance, turn, scratch)
    }

    /// The deadline has passed: gives up, or tries the next server.
    pub fn expire(&mut self, turn: &mut Turn<'_, N>, scratch: &mut Scratch) -> Advanced {
        self.drive(Phase::expire, turn, scratch)
    }

    /// Takes the expensive step that [`Self::wants_signature`] tells of.
    pub fn sign(&mut self, turn: &mut Turn<'_, N>, scratch: &mut Scratch) -> Advanced {
        self.drive(Phase::sign, turn, scratch)
    }

    /// How the signature is made that comes next, if one does: the worker chooses when.
    pub fn wants_signature(&self) -> Option<Offload> {
        match &self.phase {
            Some(Phase::Negotiating(phase)) => phase.wants_signature(self.core.client.ready),
            _ => None,
        }
    }

    /// Takes a signature if this connection waits for it. Returns whether the connection should be advanced for it.
    pub fn handle_signed(&mut self, signed: Signed) -> bool {
        match &mut self.phase {
            Some(Phase::Negotiating(phase)) => phase.handle_signed(signed),
            _ => false,
        }
    }

    /// Takes a first step and all that follow from it. The traffic that the worker counts meanwhile is the
    /// connection's own: so both are one number, whatever becomes of a server's socket.
    fn drive(
        &mut self,
        first: impl FnOnce(Phase<N>, &mut Context<'_, '_, N>, &mut Scratch) -> Advance<Phase<N>, N>,
        turn: &mut Turn<'_, N>,
        scratch: &mut Scratch,
    ) -> Advanced {
        let Some(phase) = self.phase.take() else {
            return Advanced::Ended(CloseReason::Internal);
        };
        let before = turn.counters.server_traffic();
        let core = &mut self.core;
        let mut cx = Context { core, turn };
        let mut advance = first(phase, &mut cx, scratch);
        let (phase, advanced) = loop {
            advance = match advance {
                Advance::Go(phase) => phase.advance(&mut cx, scratch),
                Advance::Wait(phase) => break (Some(phase), Advanced::Waiting),
                Advance::Yield(phase) => break (Some(phase), Advanced::Unfinished),
                Advance::Reached(Reached::End(reason)) => break (None, Advanced::Ended(reason)),
                Advance::Reached(reached) => Phase::after(reached, &mut cx),
            };
        };
        self.phase = phase;
        let after = turn.counters.server_traffic();
        let traffic = &mut self.core.facts.server_traffic;
        traffic.received += after.received - before.received;
        traffic.sent += after.sent - before.sent;
        advanced
    }

    /// When [`Self::expire`] is due.
    pub fn deadline(&self) -> Duration {
        self.core.deadline
    }

    /// Returns whether the handshake continues, or has still to begin.
    pub fn is_handshaking(&self) -> bool {
        match &self.phase {
            Some(Phase::Greeting(_)) => true,
            Some(phase) => phase.lacks_keys(),
            None => false,
        }
    }

    /// Returns whether the client has not even sent a whole hello, which is all that it could do at once.
    pub fn lacks_hello(&self) -> bool {
        matches!(
            &self.phase,
            Some(Phase::Greeting(_) | Phase::Conversing(_) | Phase::Hello(_))
        )
    }

    /// The session in the table that must be forgotten when the connection ended like this.
    ///
    /// RFC 5246, section 7.2.2: after a fatal alert "servers and clients MUST forget any
    /// session-identifiers, keys, and secrets associated with a failed connection". Only of
    /// clients that proved to hold the session: an ID travels in clear, and an observer must
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
