//! One connection, from accept to close: client side and server side, whole life.
//!
//! A connection is in exactly one [`Phase`]. A phase is advanced by value and answers with what
//! comes [`Next`]; the worker owns the loop. Phases see sockets through [`Net`], so the same code
//! runs on real sockets and on scripted ones (tests, fuzzing).
//!
//! ```text
//! [Greeting] ──► Handshaking ──► Connecting ──► [Securing] ──► Relaying ──► (gone)
//!     ├────────► Peeking ─────────┤  │              │             │
//!     └────────► Entering ────────┘  │              │             │
//!                     └──────────────┴──────────────┴─────────────┴──► Closing ──► (gone)
//!
//! Queued: on the way from Handshaking or Entering to Connecting, or within Handshaking, and back
//! from Connecting or Securing when another server has to be found.
//! ```
//!
//! Greeting is left out unless a PROXY header is expected. Where clients ask for TLS in clear, the
//! server comes first: Entering, Connecting, Conversing, Handshaking, Relaying; or, behind Conversing,
//! Cancelling and no server.

pub mod cancelling;
pub mod closing;
pub mod connect;
pub mod conversing;
pub mod entering;
pub mod facts;
pub mod greeting;
pub mod handshake;
mod hello;
pub mod introduction;
pub mod listener;
pub mod peeking;
pub mod queued;
pub mod relay;
pub mod resumed;
pub mod securing;

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use self::cancelling::Cancelling;
use self::closing::Closing;
use self::connect::Connecting;
use self::conversing::Conversing;
use self::entering::Entering;
use self::facts::Facts;
use self::greeting::Greeting;
use self::handshake::Handshaking;
use self::peeking::Peeking;
use self::queued::Queued;
use self::relay::{Joined, Relaying};
use self::securing::Securing;
use becket_proto::session_name::SessionName;

use crate::admission::{Admission, Admitted, HalfOpen, SourcePermit};
use crate::backend::cancel::Cancels;
use crate::backend::inbox::Grant;
use crate::backend::server_state::ServerState;
use crate::clock::Now;
use crate::close_reason::CloseReason;
use crate::config::{Face, Limits, ServerAddress, Timeouts};
use crate::connection::listener::ListenerState;
use crate::failure_log::FailureLog;
use crate::leg::{Leg, Ready};
use crate::log::access::AccessRecord;
use crate::metrics::Counters;
use crate::scratch::Scratch;
use crate::socket::{Peek, Socket};

/// The sockets that connections run on.
pub trait Net {
    /// Towards clients.
    type Client: Socket + Peek + fmt::Debug;
    /// Towards servers.
    type Server: Socket + fmt::Debug;

    /// Starts to connect, from a source address if one is given; readiness will be reported for the connection that is being advanced.
    ///
    /// # Errors
    ///
    /// When it failed at once: no such socket, no descriptor, refused.
    fn connect(
        &mut self,
        address: &ServerAddress,
        source: Option<IpAddr>,
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
    /// Buffers in transit.
    pub scratch: &'a mut Scratch,
    /// The worker's numbers.
    pub counters: &'a Counters,
    /// Bounds of the current configuration.
    pub limits: &'a Limits,
    /// Time-outs of the current configuration.
    pub timeouts: &'a Timeouts,
    /// Where failures are told, at a bounded rate.
    pub failures: &'a mut FailureLog,
    /// Who is let in.
    pub admission: &'a Rc<Admission>,
    /// Where cancels are left.
    pub cancels: &'a Cancels,
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
pub struct Core<N: Net> {
    /// Towards the client.
    pub client: Leg<N::Client>,
    /// What the log and the metrics want to know.
    pub facts: Facts,
    /// When to give up, if nothing happens.
    pub deadline: Duration,
    /// When the handshake is to be done. To wait for a slot is no part of it.
    pub handshake_until: Duration,
    /// The session in the table that the client made or proved to hold: TLS 1.2 by ID only.
    pub session: Option<Box<SessionName>>,
    /// The client takes FIN for the end of a whole stream: it speaks no TLS that would tell a cut
    /// from an end.
    pub fin_is_an_end: bool,
    /// A server that waits for the handshake to be done, where it was connected before.
    pub joined: Option<Box<Joined<N>>>,
    /// Counts it for its source until it is gone, where that is limited.
    pub permit: Option<Box<SourcePermit>>,
    /// Counts it for its source until it has keys.
    pub half_open: Option<Box<HalfOpen>>,
}

/// Where a connection is in its life.
#[derive(Debug)]
pub enum Phase<N: Net> {
    /// Until the first turn, where no TLS ends.
    Entering(Entering),
    /// Until a PROXY header, where one is expected.
    Greeting(Greeting),
    /// Until the hello is whole, where TLS ends behind us.
    Peeking(Peeking),
    /// Until the client asks for TLS, where it begins in clear.
    Conversing(Conversing<N>),
    /// Until the servers were told of a cancel, where that is what the client asks for.
    Cancelling(Cancelling),
    /// Until traffic keys.
    Handshaking(Handshaking),
    /// Until a server has a slot.
    Queued(Box<Queued>),
    /// Until a server answers.
    Connecting(Connecting<N>),
    /// Until traffic keys towards the server, where the backend has TLS.
    Securing(Securing<N>),
    /// Until both directions have ended.
    Relaying(Relaying<N>),
    /// Until the client has taken the last bytes.
    Closing(Closing),
}

/// What an advanced phase wants.
#[derive(Debug)]
pub enum Next<N: Net> {
    /// To be advanced at the next readiness or at the deadline.
    Wait(Phase<N>),
    /// To be advanced again in the next turn: its budget is spent.
    Yield(Phase<N>),
    /// To be advanced at once: another phase began.
    Go(Phase<N>),
    /// To be dropped.
    End(CloseReason),
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

impl<N: Net> Core<N> {
    /// Counts the connection for its source.
    fn count(&mut self, admitted: Admitted) {
        self.permit = admitted.permit;
        self.half_open = admitted.half_open;
    }
}

impl<N: Net> Phase<N> {
    /// Where a client begins who needs no introduction, or has had one.
    fn first(listener: Rc<ListenerState>, counters: &Counters) -> Self {
        match listener.face {
            Face::Tls => {
                counters.handshakes_begun.add(1);
                Self::Handshaking(Handshaking::new(listener))
            }
            Face::Passthrough => {
                counters.handshakes_begun.add(1);
                Self::Peeking(Peeking::new(listener))
            }
            Face::Plain | Face::StartTls(_) => Self::Entering(Entering::new(listener)),
        }
    }
}

impl<N: Net> Connection<N> {
    /// Starts a connection that was just accepted through `listener`.
    pub fn new(
        client: N::Client,
        listener: Rc<ListenerState>,
        facts: Facts,
        timeouts: &Timeouts,
        counters: &Counters,
    ) -> Self {
        let handshake_until = facts.accepted + timeouts.handshake;
        let deadline = handshake_until.min(facts.accepted + timeouts.hello);
        let config = listener.config();
        let face = listener.face;
        let phase = match config.accept_proxy {
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
                session: None,
                fin_is_an_end: face == Face::Plain,
                joined: None,
                permit: None,
                half_open: None,
            },
            phase: Some(phase),
        }
    }

    /// Goes on as if no PROXY header were expected: for a rehearsal, which has nobody in front.
    pub fn skip_greeting(&mut self, counters: &Counters) {
        self.phase = match self.phase.take() {
            Some(Phase::Greeting(greeting)) => {
                Some(Phase::first(greeting.into_listener(), counters))
            }
            phase => phase,
        };
    }

    /// Counts the connection for its source.
    pub fn count(&mut self, admitted: Admitted) {
        self.core.count(admitted);
    }

    /// Takes note of readiness. Returns whether the connection should be advanced for it.
    pub fn handle_ready(&mut self, side: Side, ready: Ready) -> bool {
        match (side, &mut self.phase) {
            (Side::Client, Some(phase)) => {
                self.core.client.ready.add(ready);
                match phase {
                    Phase::Greeting(phase) => phase.cares_for(ready),
                    Phase::Handshaking(phase) => phase.cares_for(ready),
                    Phase::Peeking(phase) => phase.cares_for(ready),
                    Phase::Queued(phase) => phase.cares_for(ready),
                    // Bytes wait until there is a server; a client that is gone does not.
                    Phase::Connecting(_) | Phase::Securing(_) | Phase::Cancelling(_) => {
                        ready.failed
                    }
                    Phase::Entering(_)
                    | Phase::Conversing(_)
                    | Phase::Relaying(_)
                    | Phase::Closing(_) => true,
                }
            }
            (Side::Server, Some(Phase::Connecting(phase))) => {
                phase.handle_ready(ready);
                true
            }
            (Side::Server, Some(Phase::Securing(phase))) => {
                phase.handle_ready(ready);
                true
            }
            (Side::Server, Some(Phase::Relaying(phase))) => {
                phase.handle_ready(ready);
                true
            }
            (Side::Server, Some(Phase::Conversing(phase))) => {
                phase.handle_ready(ready);
                true
            }
            (Side::Server, Some(_)) => {
                if let Some(joined) = &mut self.core.joined {
                    joined.server.ready.add(ready);
                }
                false
            }
            (_, None) => false,
        }
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
        match &self.phase {
            Some(Phase::Connecting(phase)) => phase.is_at(server),
            Some(Phase::Securing(phase)) => phase.is_at(server),
            Some(Phase::Relaying(phase)) => phase.is_at(server),
            Some(Phase::Conversing(phase)) => phase.joined().is_at(server),
            Some(_) => {
                let joined = self.core.joined.as_ref();
                joined.is_some_and(|joined| joined.is_at(server))
            }
            None => false,
        }
    }

    /// Ends what goes on with the server, which went out of service; see [`Self::is_at`].
    pub fn leave_server(&mut self, turn: &mut Turn<'_, N>) -> Advanced {
        self.metered(turn, Self::go_without_server)
    }

    /// Does all that can be done now.
    pub fn advance(&mut self, turn: &mut Turn<'_, N>) -> Advanced {
        self.metered(turn, Self::go_on)
    }

    /// The deadline has passed: gives up, or tries the next server.
    pub fn expire(&mut self, turn: &mut Turn<'_, N>) -> Advanced {
        self.metered(turn, Self::go_overdue)
    }

    /// Does a step, and takes for the connection's own what the worker counted meanwhile: so both
    /// are one number, whatever becomes of a server's socket.
    fn metered(
        &mut self,
        turn: &mut Turn<'_, N>,
        step: impl FnOnce(&mut Self, &mut Turn<'_, N>) -> Advanced,
    ) -> Advanced {
        let before = turn.counters.server_traffic();
        let advanced = step(self, turn);
        let after = turn.counters.server_traffic();
        let traffic = &mut self.core.facts.server_traffic;
        traffic.received += after.received - before.received;
        traffic.sent += after.sent - before.sent;
        advanced
    }

    fn go_without_server(&mut self, turn: &mut Turn<'_, N>) -> Advanced {
        let next = match self.phase.take() {
            Some(Phase::Connecting(phase)) => phase.leave_server(&mut self.core, turn),
            Some(Phase::Securing(phase)) => phase.leave_server(&mut self.core, turn),
            Some(Phase::Relaying(phase)) => phase.leave_server(&mut self.core, turn),
            Some(Phase::Conversing(_) | Phase::Handshaking(_)) => {
                turn.counters.handshakes_ended.add(1);
                Closing::begin(CloseReason::ServerDown, Vec::new(), &mut self.core, turn)
            }
            Some(phase) => Next::Go(phase),
            None => Next::End(CloseReason::Internal),
        };
        self.follow(next, turn)
    }

    fn go_on(&mut self, turn: &mut Turn<'_, N>) -> Advanced {
        while let Some(phase) = self.phase.take() {
            let next = match phase {
                Phase::Entering(phase) => phase.advance(&mut self.core, turn),
                Phase::Greeting(phase) => phase.advance(&mut self.core, turn),
                Phase::Peeking(phase) => phase.advance(&mut self.core, turn),
                Phase::Conversing(phase) => phase.advance(&mut self.core, turn),
                Phase::Cancelling(phase) => phase.advance(&mut self.core, turn),
                Phase::Handshaking(phase) => phase.advance(&mut self.core, turn),
                Phase::Queued(phase) => phase.advance(&mut self.core, turn),
                Phase::Connecting(phase) => phase.advance(&mut self.core, turn),
                Phase::Securing(phase) => phase.advance(&mut self.core, turn),
                Phase::Relaying(phase) => phase.advance(&mut self.core, turn),
                Phase::Closing(phase) => phase.advance(&mut self.core, turn),
            };
            match next {
                Next::Go(phase) => self.phase = Some(phase),
                Next::Wait(phase) => {
                    self.phase = Some(phase);
                    return Advanced::Waiting;
                }
                Next::Yield(phase) => {
                    self.phase = Some(phase);
                    return Advanced::Unfinished;
                }
                Next::End(reason) => return Advanced::Ended(reason),
            }
        }
        Advanced::Ended(CloseReason::Internal)
    }

    fn go_overdue(&mut self, turn: &mut Turn<'_, N>) -> Advanced {
        let next = match self.phase.take() {
            Some(Phase::Entering(phase)) => phase.advance(&mut self.core, turn),
            Some(Phase::Greeting(phase)) => phase.expire(&mut self.core, turn),
            Some(Phase::Peeking(phase)) => phase.expire(&self.core, turn),
            Some(Phase::Conversing(phase)) => phase.expire(&self.core, turn),
            Some(Phase::Cancelling(phase)) => phase.expire(&mut self.core, turn),
            Some(Phase::Handshaking(phase)) => phase.expire(&self.core, turn),
            Some(Phase::Queued(phase)) => phase.expire(&mut self.core, turn),
            Some(Phase::Connecting(phase)) => phase.expire(&mut self.core, turn),
            Some(Phase::Securing(phase)) => phase.expire(&mut self.core, turn),
            Some(Phase::Relaying(phase)) => phase.expire(&mut self.core, turn),
            Some(Phase::Closing(phase)) => phase.expire(),
            None => Next::End(CloseReason::Internal),
        };
        self.follow(next, turn)
    }

    fn follow(&mut self, next: Next<N>, turn: &mut Turn<'_, N>) -> Advanced {
        match next {
            Next::End(reason) => Advanced::Ended(reason),
            Next::Go(phase) | Next::Wait(phase) | Next::Yield(phase) => {
                self.phase = Some(phase);
                self.go_on(turn)
            }
        }
    }

    /// When [`Self::expire`] is due.
    pub fn deadline(&self) -> Duration {
        self.core.deadline
    }

    /// Whether the handshake is still going on, or has still to begin. One that waits for a slot
    /// does not go on.
    pub fn is_handshaking(&self) -> bool {
        match &self.phase {
            Some(
                Phase::Greeting(_)
                | Phase::Peeking(_)
                | Phase::Conversing(_)
                | Phase::Handshaking(_),
            ) => true,
            Some(Phase::Queued(phase)) => phase.is_handshaking(),
            _ => false,
        }
    }

    /// Whether the client has not even said a whole hello, which is all that it could do at once.
    pub fn lacks_hello(&self) -> bool {
        match &self.phase {
            Some(Phase::Greeting(_) | Phase::Peeking(_) | Phase::Conversing(_)) => true,
            Some(Phase::Handshaking(phase)) => phase.lacks_hello(),
            _ => false,
        }
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

    /// Goes, so that a newcomer can be served: a reset costs the least on both sides.
    pub fn displace(&mut self, turn: &Turn<'_, N>) -> CloseReason {
        self.core.client.socket.reset_on_close();
        self.stop(turn);
        CloseReason::HandshakeDisplaced
    }

    /// The process stops: counts what is being cut off. Who would take FIN for an end is reset.
    pub fn stop(&mut self, turn: &Turn<'_, N>) -> CloseReason {
        let without_keys = match &self.phase {
            Some(Phase::Peeking(_) | Phase::Conversing(_) | Phase::Handshaking(_)) => true,
            Some(Phase::Queued(phase)) => phase.has_no_keys(),
            _ => false,
        };
        if without_keys {
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
