//! From a whole hello to traffic keys.
//!
//! 1. What the hello decided is answered: its bytes, and all that
//!    follow, go to the [`Engine`]; each flight leaves in one send.
//! 2. When keys are ready (or early data has come, which is before that), the connection goes on to
//!    its server with whatever plaintext has come already.
//!
//! Where the client's first request comes with its Finished, tickets of TLS 1.3 leave with the answer, with the end, or after
//! [`TICKETS_WAIT`]: a send of their own costs as much as one with an answer. Else they leave at once, and with them the acknowledgement for
//! which Nagle's algorithm (RFC 896) has the request wait.
//!
//! Where an expensive key is to sign, the step of rustls may wait for a crypto thread (`signing.rs`).
//!
//! A client that is asked for a second hello waits for its turn to be signed for, as it would have
//! with the first.
//!
//! What a client can make us hold: a record of whatever is unfinished, `timeouts.handshake` long in
//! all; where client certificates are asked for, as much as a chain of `limits.certificate-chain` needs.
//!
//! Source: RFC 8446 section 4, RFC 5246 section 7.

use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use becket_proto::half_pipe::HalfPipe;
use rustls::{CertificateError, HandshakeKind, ProtocolVersion};

use super::answering::Unanswered;
use super::connect::{Pending, Purpose};
use super::facts::Agreed;
use super::hearing::Hello;
use super::hello::Refusal;
use super::relay::Relaying;
use super::resumed;
use super::signing::{self, Signing};
use super::{Context, Net, Next, Phase, Said, Turn};
use crate::backend::pool::Pool;
use crate::backend::slot::Slot;
use crate::connection::listener::ListenerState;
use crate::leg::Got;
use crate::pipes::Lent;
use crate::socket::Ready;
use becket_config::choices::Introduction;
use becket_keys::presented::Presented;
use becket_keys::signing::Offload;
use becket_keys::signing::queue::Signed;
use becket_keys::signing::worker::WorkerSigning;
use becket_proto::close_reason::CloseReason;
use becket_tls::chain;
use becket_tls::engine::{self, Engine, Received};
use becket_tls::resumption::Offer;
use becket_tls::scratch::{Buffer, READ, Scratch};
use becket_tls::sessions::context::{self, Resuming};
use becket_tls::trial::Evaluated;

/// A client whose handshake is not complete.
#[derive(Debug)]
pub(super) enum Handshaking<N: Net> {
    /// Its hello is not whole.
    Hello(Hello<N>),
    /// It is, and is answered by a signature, for which there is a queue.
    Unsigned(Box<Unanswered<N>>),
    /// rustls answers.
    Flights(Flights<N>),
    /// rustls waits for a signature.
    Signing(Box<Signing<N>>),
}

/// A client whose hello was understood.
#[derive(Debug)]
pub(super) struct Flights<N: Net> {
    /// On the heap: an established connection, which is what there are many of, keeps no room for it.
    pub(super) chosen: Box<Chosen>,
    pub(super) ahead: Ahead<N>,
}

/// What goes with a client through its handshake, and rustls does not see.
#[derive(Debug)]
pub(super) struct Ahead<N: Net> {
    listener: Rc<ListenerState>,
    pub(super) reserved: Reserved<N>,
    /// What the socket did not take of a flight.
    flight: HalfPipe<Lent>,
}

/// What a client has of a server before its handshake is done.
#[derive(Debug)]
pub(super) enum Reserved<N: Net> {
    Nothing,
    /// Where the backend wants that.
    Slot(Slot),
    /// Where clients ask for TLS in clear.
    Server(Box<Relaying<N>>),
}

/// What the hello decided.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) pool: Rc<Pool>,
    pub(super) engine: Engine,
    /// Lent to the thread while rustls runs.
    pub(super) resuming: Option<Resuming>,
    /// The client announced early data.
    pub(super) offers_early: bool,
    /// The step that is taken, or was taken last, is the first.
    pub(super) begins: bool,
    /// Whether the signature is handed over that the next step may need: the first one, or that by which a second hello is answered.
    pub(super) signs: Option<Offload>,
    /// By what the client may have offered to resume.
    pub(super) offer: Offer,
    /// How much early data the policy takes.
    pub(super) early_data: u32,
    /// The client is asked for a certificate.
    pub(super) asks: bool,
    /// The client, as the trial of the policy evaluates its hello.
    pub(super) trial: Option<Evaluated>,
}

/// How long tickets wait for an answer with which they leave. Most servers answer sooner, and a client that wants to resume before that, or the rest
/// of whose request waits for an acknowledgement, is not kept for long.
pub(super) const TICKETS_WAIT: Duration = Duration::from_millis(50);

impl<N: Net> Handshaking<N> {
    pub(super) fn new(listener: Rc<ListenerState>) -> Self {
        Self::Hello(Hello::new(listener))
    }

    /// What begins behind the handshake, where the server was connected before it.
    pub(super) fn relay(&self) -> Option<&Relaying<N>> {
        match self {
            Self::Hello(hello) => hello.relay.as_deref(),
            Self::Unsigned(unanswered) => unanswered.ahead.relay(),
            Self::Flights(flights) => flights.ahead.relay(),
            Self::Signing(signing) => signing.ahead().relay(),
        }
    }

    pub(super) fn relay_mut(&mut self) -> Option<&mut Relaying<N>> {
        match self {
            Self::Hello(hello) => hello.relay.as_deref_mut(),
            Self::Unsigned(unanswered) => unanswered.ahead.relay_mut(),
            Self::Flights(flights) => flights.ahead.relay_mut(),
            Self::Signing(signing) => signing.ahead_mut().relay_mut(),
        }
    }

    /// Whether this readiness can move the handshake. A fresh socket always reports that it is
    /// writable; to look for bytes then would cost a system call for nothing.
    pub(super) fn cares_for(&self, ready: Ready) -> bool {
        let waits = match self {
            Self::Unsigned(_) => return ready.ended,
            Self::Signing(_) => return Signing::<N>::cares_for(ready),
            Self::Hello(_) => false,
            Self::Flights(flights) => !flights.ahead.flight.waiting().is_empty(),
        };
        ready.readable || ready.ended || (ready.writable && waits)
    }

    pub(super) fn advance(self, cx: &mut Context<'_, '_, N>, scratch: &mut Scratch) -> Next<N> {
        match self {
            Self::Hello(hello) => hello.advance(cx, scratch),
            Self::Unsigned(_) if cx.core.client.ready.ended => spare(cx),
            Self::Flights(flights) if flights.wants_signature(cx.core.client.ready).is_none() => {
                flights.advance(cx, scratch)
            }
            Self::Signing(signing) => signing.advance(cx),
            waiting => Next::Wait(Phase::Handshaking(waiting)),
        }
    }

    /// Whether the next step is a signature and could be made, and whether that is handed over.
    pub(super) fn wants_signature(&self, ready: Ready) -> Option<Offload> {
        match self {
            Self::Hello(_) | Self::Signing(_) => None,
            Self::Unsigned(unanswered) => Some(unanswered.offload()),
            Self::Flights(flights) => flights.wants_signature(ready),
        }
    }

    /// Takes the step that waited for its turn.
    pub(super) fn sign(self, cx: &mut Context<'_, '_, N>, scratch: &mut Scratch) -> Next<N> {
        match self {
            Self::Hello(_) | Self::Signing(_) => Next::Go(Phase::Handshaking(self)),
            Self::Unsigned(_) | Self::Flights(_) if cx.client_is_gone() => spare(cx),
            Self::Unsigned(unanswered) => unanswered.sign(cx, scratch),
            Self::Flights(flights) => flights.advance(cx, scratch),
        }
    }

    pub(super) fn handle_signed(&mut self, signed: Signed) -> bool {
        match self {
            Self::Signing(signing) => signing.handle_signed(signed),
            _ => false,
        }
    }

    pub(super) fn expire(self, cx: &mut Context<'_, '_, N>) -> Next<N> {
        let reason = match self {
            Self::Hello(_) => CloseReason::HelloTimeout,
            Self::Unsigned(_) | Self::Flights(_) | Self::Signing(_) => {
                CloseReason::HandshakeTimeout
            }
        };
        let detail = format!("{} bytes received", cx.core.client.traffic.received);
        cx.note(reason, &detail);
        cx.end_handshake(reason)
    }
}

impl<N: Net> Ahead<N> {
    pub(super) fn new(listener: Rc<ListenerState>, reserved: Reserved<N>) -> Self {
        Self {
            listener,
            reserved,
            flight: HalfPipe::default(),
        }
    }

    pub(super) fn relay(&self) -> Option<&Relaying<N>> {
        match &self.reserved {
            Reserved::Server(relay) => Some(relay),
            _ => None,
        }
    }

    pub(super) fn relay_mut(&mut self) -> Option<&mut Relaying<N>> {
        match &mut self.reserved {
            Reserved::Server(relay) => Some(relay),
            _ => None,
        }
    }
}

impl<N: Net> Flights<N> {
    /// Answers the hello that is in the buffer.
    pub(super) fn begin(self, cx: &mut Context<'_, '_, N>, scratch: &mut Scratch) -> Next<N> {
        let Scratch {
            sealed_in,
            plain,
            sealed_out,
        } = scratch;
        match self.take_in(sealed_in.filled_mut(), (plain, sealed_out), cx) {
            ControlFlow::Continue(flights) => {
                Next::Go(Phase::Handshaking(Handshaking::Flights(flights)))
            }
            ControlFlow::Break(next) => next,
        }
    }

    fn advance(mut self, cx: &mut Context<'_, '_, N>, scratch: &mut Scratch) -> Next<N> {
        if cx.flush(&mut self.ahead.flight).is_err() {
            return cx.end_handshake(CloseReason::HandshakeAborted);
        }
        while self.ahead.flight.waiting().is_empty() && cx.core.client.ready.readable {
            scratch.clear();
            let Scratch {
                sealed_in,
                plain,
                sealed_out,
            } = &mut *scratch;
            sealed_in.push(self.chosen.engine.held());
            match cx.receive(sealed_in, READ) {
                Ok(Got::Bytes(_)) => {}
                Ok(Got::Nothing) => break,
                Ok(Got::End) | Err(_) => {
                    resumed::count_offer(&self.chosen, cx.turn.counters);
                    return abandon(cx);
                }
            }
            match self.take_in(sealed_in.filled_mut(), (plain, sealed_out), cx) {
                ControlFlow::Continue(flights) => self = flights,
                ControlFlow::Break(next) => return next,
            }
        }
        Next::Wait(Phase::Handshaking(Handshaking::Flights(self)))
    }

    /// Whether a second hello has come: that is the one which is answered by a signature.
    fn wants_signature(&self, ready: Ready) -> Option<Offload> {
        self.chosen.signs.filter(|_| ready.readable)
    }

    /// Gives what came to TLS, and sends what that answers.
    fn take_in(
        mut self,
        input: &mut [u8],
        (plain, out): (&mut Buffer, &mut Buffer),
        cx: &mut Context<'_, '_, N>,
    ) -> ControlFlow<Next<N>, Self> {
        let offload = self.chosen.signs;
        let takes = |signing: &&WorkerSigning| offload.is_some_and(|it| signing.takes(it));
        if let Some(signing) = cx.turn.signing.filter(takes) {
            return signing::begin(self, input, signing, cx);
        }
        let chosen = &mut self.chosen;
        chosen.tell_time(cx.turn);
        let engine = &mut chosen.engine;
        let received = context::lend(&mut chosen.resuming, || engine.receive(input, plain, out));
        let received = chosen.judge(received);
        self.settle(received, (plain, out), cx)
    }

    /// Sends what TLS answers, and goes on to a server once there are keys.
    pub(super) fn settle(
        mut self,
        received: Result<Received, Refusal>,
        (plain, out): (&Buffer, &mut Buffer),
        cx: &mut Context<'_, '_, N>,
    ) -> ControlFlow<Next<N>, Self> {
        match received {
            Ok(received) if received.ready => {
                let said = Said {
                    bytes: plain.filled(),
                    ended: received.ended,
                };
                self.note_completion(received, cx);
                if !said.bytes.is_empty() && self.chosen.has_only_tickets_to_send(received) {
                    self.ahead.flight.hold(out.filled());
                } else if cx.push(out.filled(), &mut self.ahead.flight).is_err() {
                    return ControlFlow::Break(Next::End(CloseReason::ClientReset));
                }
                ControlFlow::Break(self.leave(said, out, cx))
            }
            Ok(received) if received.ended => {
                ControlFlow::Break(cx.end_handshake(CloseReason::HandshakeAborted))
            }
            Ok(_) => match cx.push(out.filled(), &mut self.ahead.flight) {
                Ok(()) => ControlFlow::Continue(self),
                Err(_) => ControlFlow::Break(cx.end_handshake(CloseReason::HandshakeAborted)),
            },
            Err(refusal) => {
                resumed::count_offer(&self.chosen, cx.turn.counters);
                let refusal = match refusal.reason {
                    CloseReason::Token => refusal,
                    _ => refusal.answering(out.filled()),
                };
                ControlFlow::Break(refusal.close(cx))
            }
        }
    }

    /// Keys are ready: writes down what was agreed on.
    fn note_completion(&mut self, received: Received, cx: &mut Context<'_, '_, N>) {
        let chosen = &mut self.chosen;
        let took = cx.turn.now.mono.saturating_sub(cx.core.facts.accepted);
        let took = took.saturating_sub(cx.core.facts.queued);
        let mut agreed = Agreed {
            presented: chosen.presented(&self.ahead.listener, cx.core.facts.server_name.as_deref()),
            early_data: received.early.then_some(chosen.early_data),
            ..resumed::agreed(chosen, took)
        };
        cx.turn.counters.handshakes_ended.add(1);
        resumed::count(&agreed, cx.turn.counters);
        resumed::count_offer(chosen, cx.turn.counters);
        resumed::count_early(chosen, received.early, cx.turn.counters);
        let trial = chosen.trial.take();
        agreed.would_refuse = trial.and_then(|trial| trial.count(agreed.client_verified));
        cx.core.facts.tls = Some(agreed);
        cx.core.half_open = None;
    }

    /// Goes on to a server.
    fn leave(self, said: Said<'_>, out: &mut Buffer, cx: &mut Context<'_, '_, N>) -> Next<N> {
        let Chosen {
            pool,
            mut engine,
            mut resuming,
            ..
        } = *self.chosen;
        let origin = resuming.as_ref().and_then(Resuming::origin_id);
        if engine.is_unfinished() {
            engine.keep(resuming.take());
        }
        let session = resuming.and_then(|resuming| resuming.session);
        cx.core.session = session.map(Box::new);
        let slot = match self.ahead.reserved {
            Reserved::Server(relay) => {
                return relay.admit((engine, self.ahead.flight), said, out, cx);
            }
            Reserved::Slot(slot) => Some(slot),
            Reserved::Nothing => None,
        };
        let mut pending = Pending::new(pool, Purpose::Relay);
        pending.client_tls = Some(engine);
        pending.origin = origin;
        pending.to_client = self.ahead.flight;
        pending.begin(slot, said, cx)
    }
}

impl Chosen {
    /// Whether what TLS answers to the client's Finished is not what the client waits for.
    fn has_only_tickets_to_send(&self, received: Received) -> bool {
        let version = self.engine.facts().protocol_version();
        version == Some(ProtocolVersion::TLSv1_3) && !received.early
    }

    /// Before anything is given to TLS.
    pub(super) fn tell_time<N: Net>(&mut self, turn: &Turn<'_, N>) {
        let kind = self.engine.handshake_kind();
        self.begins = kind.is_none();
        let Some(resuming) = &mut self.resuming else {
            return;
        };
        resuming.unix_now = turn.now.unix.into();
        resuming.mono_now = turn.now.mono;
        if !matches!(kind, None | Some(HandshakeKind::Resumed)) {
            resuming.forget_opened();
        }
    }

    /// What TLS has made of what it was given.
    pub(super) fn judge(
        &mut self,
        received: Result<Received, rustls::Error>,
    ) -> Result<Received, Refusal> {
        // RFC 8446, section 4.1.4: the second hello is the one that is answered in full.
        let again = Some(HandshakeKind::FullWithHelloRetryRequest);
        let signs = self.begins && self.engine.handshake_kind() == again;
        self.signs = self.signs.filter(|_| signs);
        received.map_err(
            |error| match self.resuming.as_ref().and_then(Resuming::shed) {
                Some(reason) => Refusal::shed(reason),
                // What rustls has answered with is thrown away: to the client this is the answer to its hello.
                None if self.resuming.as_ref().is_some_and(|it| it.token_failed) => {
                    Refusal::by_alert(INTERNAL_ERROR, CloseReason::Token)
                }
                None => Refusal::new(reason_of_error(&error, self.asks), chain::explain(&error)),
            },
        )
    }

    /// What there is to say of our certificate, where the server is told of it.
    fn presented(&self, listener: &ListenerState, name: Option<&str>) -> Option<Arc<Presented>> {
        let version = self.pool.backend().keys.proxy_header;
        version.filter(|version| *version == Introduction::V2)?;
        let place = self.resuming.as_ref()?.presented?;
        let certificates = &listener.config().certificates;
        certificates.keys_for(name).presented(place).cloned()
    }
}

/// The client has gone before it was signed for.
fn spare<N: Net>(cx: &mut Context<'_, '_, N>) -> Next<N> {
    cx.turn.counters.signatures_skipped.add(1);
    abandon(cx)
}

/// The client has gone.
pub(super) fn abandon<N: Net>(cx: &mut Context<'_, '_, N>) -> Next<N> {
    let reason = cx.core.left_early();
    if reason != CloseReason::HealthCheck {
        cx.note(reason, "");
    }
    cx.end_handshake(reason)
}

/// `asks` says whether the client has to show a certificate: nothing else that it sends behind its
/// hello is as long.
fn reason_of_error(error: &rustls::Error, asks: bool) -> CloseReason {
    match error {
        _ if asks && chain::is_excess(error) => CloseReason::ClientChain,
        rustls::Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure) => {
            CloseReason::ClientName
        }
        rustls::Error::InvalidCertificate(_)
        | rustls::Error::InvalidCertRevocationList(_)
        | rustls::Error::NoCertificatesPresented => CloseReason::ClientCertificate,
        rustls::Error::NoApplicationProtocol => CloseReason::AlpnMismatch,
        error if engine::is_without_data(error) => CloseReason::RecordsWithoutData,
        _ => CloseReason::HandshakeFailed,
    }
}

/// RFC 8446, section 6.2.
const INTERNAL_ERROR: u8 = 80;
