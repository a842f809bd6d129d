//! One connection from accept to close: client side and server side.
//!
//! A connection is in exactly one [`Phase`]. Advancing consumes the phase and returns its progress.
//! A finished phase returns a [`Reached`], from which only [`Phase::after`] creates the next phase.
//! The worker advances connections. Phases access sockets through [`Net`], so the same code runs on
//! real sockets and on simulated ones (tests, fuzzing).
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
//! A connection starts in Greeting if a PROXY header is expected. Relaying, Serving and Cancelling
//! are followed by Closing or the end.

mod cancelling;
mod closing;
mod completed;
mod connected;
mod connecting;
mod context;
mod conversing;
mod decision;
mod entering;
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
use self::entering::Entering;
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
use becket_log::facts::Facts;
use becket_proto::close_reason::CloseReason;
use becket_sys::clock::Now;
use becket_tls::admission::Admitted;
use becket_tls::scratch::Scratch;

#[derive(Debug)]
pub struct Connection<N: Net> {
    core: Core<N>,
    /// Current phase; `None` during a step and after the connection has ended.
    phase: Option<Phase<N>>,
}

#[derive(Debug)]
enum Phase<N: Net> {
    Greeting(Greeting),
    Entering(Entering),
    /// Plaintext dialog until the client requests TLS.
    Conversing(Conversing<N>),
    /// Waits until becket has sent a PostgreSQL cancel request to the servers.
    Cancelling(Cancelling),
    Hello(Hello<N>),
    /// Runs the handshake until traffic keys.
    Negotiating(Negotiating<N>),
    /// Waits for a server slot. Boxed, so that the many relaying connections take less memory.
    Queued(Box<Queued>),
    /// Connects to a server, including the TLS handshake if the backend has TLS.
    Connecting(Connecting<N>),
    /// Relays until both directions have ended.
    Relaying(Relaying<N>),
    /// Answers requests for files. Boxed, so that the many relaying connections take less memory.
    Serving(Box<ServingFiles>),
    /// Sends the last bytes and FIN, and waits until the client closes its side.
    Closing(Closing),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advanced {
    /// The connection needs no step before the next event or deadline.
    Waiting,
    /// The connection needs another step in the next turn.
    Unfinished,
    Ended(CloseReason),
}

impl<N: Net> Phase<N> {
    /// Returns the phase that follows a result; see the diagram in the module documentation.
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
                // No close_notify is sent, so that the client does not mistake an empty response
                // for a complete one.
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

    /// Returns the first phase of a client after its PROXY header, if one is expected.
    fn first(listener: Rc<ListenerState>, counters: &Counters) -> Self {
        match listener.mode {
            ListenMode::Tls => {
                counters.handshakes_begun.add(1);
                Self::Hello(Hello::new(listener))
            }
            ListenMode::Plain | ListenMode::StartTls(_) => Self::Entering(Entering::new(listener)),
        }
    }

    fn advance(self, cx: &mut Context<'_, '_, N>, scratch: &mut Scratch) -> Advance<Self, N> {
        match self {
            Self::Greeting(phase) => phase.advance(cx, scratch).map(Self::Greeting),
            Self::Entering(phase) => phase.advance(cx, scratch).map(Self::Entering),
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
            Self::Entering(phase) => phase.expire(cx).map(Self::Entering),
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
            // In these phases the connection is closed, which frees the slot of the failed server
            // immediately.
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

    /// Returns `true` during a handshake, including the plaintext dialog that precedes it.
    fn lacks_keys(&self) -> bool {
        matches!(
            self,
            Self::Conversing(_) | Self::Hello(_) | Self::Negotiating(_)
        )
    }

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

    /// Returns the slot of the connected server, or of the server to which becket is connecting.
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

    /// Returns `true` if this readiness of the client's socket may allow a step. Otherwise the
    /// worker does not advance the connection.
    fn cares_for(&self, ready: Ready) -> bool {
        match self {
            Self::Greeting(_) | Self::Hello(_) => ready.readable || ready.ended,
            Self::Negotiating(phase) => phase.cares_for(ready),
            Self::Queued(phase) => phase.cares_for(ready),
            // Client data stays in the socket during this phase, so only a reset matters.
            Self::Connecting(_) | Self::Cancelling(_) => ready.failed,
            _ => true,
        }
    }
}

/// Requests a server for a client that does not start with TLS. In protocols in which the client
/// speaks first, the dialog starts without a server.
fn need_server<N: Net>(listener: Rc<ListenerState>, cx: &mut Context<'_, '_, N>) -> Reached<N> {
    if let ListenMode::StartTls(protocol) = listener.mode
        && !listener.mode.connects_first()
    {
        return Reached::Dialog(listener, protocol, None);
    }
    // There is no ClientHello to select a route, so the first route applies.
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
        // The socket counts as readable without an event, because the ClientHello has probably
        // arrived.
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

    /// Stores an event's readiness. Returns `true` if the connection must be advanced.
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
        // In these phases, data from the server is not read, so an event of its socket changes
        // nothing.
        !matches!(phase, Phase::Hello(_) | Phase::Negotiating(_))
    }

    /// Ends the wait for a slot if the grant is for this connection. Returns `true` if the
    /// connection must be advanced. Otherwise, the slot goes to the next waiter.
    pub fn handle_grant(&mut self, grant: Grant) -> bool {
        match &mut self.phase {
            Some(Phase::Queued(phase)) => phase.handle_grant(grant),
            _ => false,
        }
    }

    /// Returns `true` if the connection has a slot of this server.
    pub fn is_at(&self, server: &Arc<ServerState>) -> bool {
        let slot = self.phase.as_ref().and_then(Phase::slot);
        slot.is_some_and(|slot| Arc::ptr_eq(slot.server(), server))
    }

    /// Disconnects from a server that went out of service. Connects to another server if no client
    /// data was sent, otherwise closes the connection.
    pub fn leave_server(&mut self, turn: &mut Turn<'_, N>, scratch: &mut Scratch) -> Advanced {
        self.drive(Phase::leave_server, turn, scratch)
    }

    pub fn advance(&mut self, turn: &mut Turn<'_, N>, scratch: &mut Scratch) -> Advanced {
        self.drive(Phase::advance, turn, scratch)
    }

    /// Applies an expired deadline, for example closes the connection or tries the next server.
    pub fn expire(&mut self, turn: &mut Turn<'_, N>, scratch: &mut Scratch) -> Advanced {
        self.drive(Phase::expire, turn, scratch)
    }

    /// Runs the step that needs a signature; see [`Self::wants_signature`].
    pub fn sign(&mut self, turn: &mut Turn<'_, N>, scratch: &mut Scratch) -> Advanced {
        self.drive(Phase::sign, turn, scratch)
    }

    /// Returns how the signature of the next step is made, or `None` if the step needs none. The
    /// worker calls [`Self::sign`] when it has time for a signature.
    pub fn wants_signature(&self) -> Option<Offload> {
        match &self.phase {
            Some(Phase::Negotiating(phase)) => phase.wants_signature(self.core.client.ready),
            _ => None,
        }
    }

    /// Stores a signature if this connection requested it. Returns `true` if the connection can
    /// then be advanced.
    pub fn handle_signed(&mut self, signed: Signed) -> bool {
        match &mut self.phase {
            Some(Phase::Negotiating(phase)) => phase.handle_signed(signed),
            _ => false,
        }
    }

    /// Runs `first` and then all steps that are possible. During this call, only this connection
    /// changes the worker's counters of server traffic, so their increase is added to the
    /// connection's counts.
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

    /// Returns the time at which the worker must call [`Self::expire`].
    pub fn deadline(&self) -> Duration {
        self.core.deadline
    }

    /// Returns `true` if the connection waits for the PROXY header, the STARTTLS dialog or the
    /// handshake.
    pub fn is_handshaking(&self) -> bool {
        match &self.phase {
            Some(Phase::Greeting(_)) => true,
            Some(phase) => phase.lacks_keys(),
            None => false,
        }
    }

    /// Returns `true` until a whole ClientHello has arrived.
    pub fn lacks_hello(&self) -> bool {
        matches!(
            &self.phase,
            Some(Phase::Greeting(_) | Phase::Conversing(_) | Phase::Hello(_))
        )
    }

    /// Returns the name of the session that must be removed from the session table because of this
    /// close reason.
    ///
    /// RFC 5246, section 7.2.2: after a fatal alert "servers and clients MUST forget any
    /// session-identifiers, keys, and secrets associated with a failed connection". This function
    /// applies the rule only to clients that proved to have the session. IDs are sent in plaintext,
    /// and an observer of an ID must not be able to end the session.
    pub fn failed_session(&self, reason: CloseReason) -> Option<SessionName> {
        let failed = reason == CloseReason::ClientTlsError;
        self.core.session.as_deref().copied().filter(|_| failed)
    }

    pub fn into_record(self, reason: CloseReason, now: Now) -> AccessRecord {
        AccessRecord::new(self.core.facts, self.core.client.traffic, reason, now)
    }

    /// Resets the connection, to free resources under overload. A reset costs both sides the least
    /// work.
    pub fn make_room(&mut self, turn: &Turn<'_, N>) {
        self.core.client.socket.reset_on_close();
        self.stop(turn);
    }

    /// Closes the connection when the process exits, and returns the close reason. Resets the
    /// client if it would mistake FIN for the end of complete data.
    pub fn stop(&mut self, turn: &Turn<'_, N>) -> CloseReason {
        if self.phase.as_ref().is_some_and(Phase::lacks_keys) {
            turn.counters.handshakes_ended.add(1);
        }
        match &mut self.phase {
            Some(Phase::Relaying(phase)) => phase.cut_off(&mut self.core),
            // The last bytes and FIN are being sent. A reset could discard data that the client has
            // not received yet.
            Some(Phase::Closing(_)) => {}
            _ if self.core.fin_is_an_end => self.core.client.socket.reset_on_close(),
            _ => {}
        }
        CloseReason::Stopped
    }
}
