//! Performs the TLS handshake with a client, from its whole ClientHello to traffic keys.
//!
//! 1. If only a store may have the TLS 1.2 session that the client offers, the client waits until
//!    the store has answered or the request has expired. The handshake then finds the session in the
//!    table, or it is a full one.
//! 2. If the answer needs a signature, the client waits in a queue: the worker makes a few
//!    signatures at a time and checks its sockets in between. No signature is made for a client
//!    that has closed its connection.
//! 3. The ClientHello and all following data are passed to the [`Engine`], and each flight is sent
//!    immediately. For an expensive key, a crypto thread makes the signature, and the step of
//!    rustls is
//!    suspended meanwhile (`signing.rs`). Nothing is received during this wait, because a client
//!    sends
//!    nothing before it gets the signature. A client that must send a second ClientHello waits in
//!    the
//!    queue again.
//! 4. When traffic keys are ready (or earlier, with early data), a server is chosen for the client.
//!    The client's plaintext so far is the first data for that server.
//!
//! While the client waits, its [`HelloDecision`] is stored, so the ClientHello is not parsed again.
//! Only the admission token is checked again.
//!
//! TLS 1.3 tickets are usually sent at once, because their packet also acknowledges the client's
//! Finished: a client with Nagle's algorithm (RFC 896) may delay its request until that
//! acknowledgement. If the first request arrives together with the Finished, a separate send would
//! only add cost. The tickets are then sent with the response, with the end of the stream, or after
//! [`TICKETS_WAIT`](super::context::TICKETS_WAIT).
//!
//! The memory for a client is limited. Before the answer to the ClientHello, it includes
//! `limits.client-hello` bytes and the data that arrived with them, such as early data. After that,
//! it
//! includes one partial record, or a certificate chain of `limits.certificate-chain`, for at most
//! `timeouts.handshake`.
//!
//! Source: RFC 8446 section 4, RFC 5246 section 7.

use std::mem;
use std::ops::ControlFlow;

use becket_config::choices::Introduction;
use becket_proto::half_pipe::HalfPipe;
use rustls::{CertificateError, HandshakeKind, ProtocolVersion};

use super::completed;
use super::context::{Context, EarlyBytes, Net};
use super::decision::HelloDecision;
use super::handshake_refusal::HandshakeRefusal;
use super::pending::{Pending, Purpose};
use super::reached::{Advance, Joined, Reached};
use super::signing::{self, Signature, Signing};
use crate::backend::awaited::{Awaited, AwaitedAnswer};
use crate::leg::Got;
use crate::pipes::Lent;
use crate::socket::Ready;
use becket_keys::presented::Presented;
use becket_keys::signing::Offload;
use becket_keys::signing::queue::Signed;
use becket_keys::signing::worker::WorkerSigning;
use becket_log::facts::Agreed;
use becket_proto::close_reason::CloseReason;
use becket_tls::chain;
use becket_tls::engine::{self, Engine, Received};
use becket_tls::scratch::{Buffer, READ, Scratch};
use becket_tls::sessions::context::{self, HandshakeClock};

/// A client with a whole ClientHello and without traffic keys.
#[derive(Debug)]
pub(super) struct Negotiating<N: Net> {
    /// Boxed, so that the many established connections take less memory.
    pub(super) client: Box<HelloDecision<N>>,
    stage: HandshakeStage,
    /// `true` if the first ClientHello was still unanswered when the latest step of rustls started.
    is_first: bool,
    /// Unsent bytes of the last flight.
    flight: HalfPipe<Lent>,
}

#[derive(Debug)]
enum HandshakeStage {
    /// The ClientHello is in the worker's buffers.
    Hello,
    /// A store may have the offered session.
    LookingUp(Awaited<()>),
    /// The answer needs a signature, and the client waits in a queue for it.
    AwaitsTurn,
    /// rustls has answered the ClientHello and exchanges further flights.
    Flights(Engine),
    /// The step of rustls is suspended until a signature arrives.
    Signing(Box<Signing>),
}

impl<N: Net> Negotiating<N> {
    pub(super) fn new(client: Box<HelloDecision<N>>) -> Self {
        Self {
            client,
            stage: HandshakeStage::Hello,
            is_first: true,
            flight: HalfPipe::default(),
        }
    }

    /// Returns `true` if this readiness can advance the handshake. The first writable event of a
    /// new socket is ignored, because a receive for that event would waste a system call.
    pub(super) fn cares_for(&self, ready: Ready) -> bool {
        match self.stage {
            HandshakeStage::AwaitsTurn => ready.ended,
            HandshakeStage::Signing(_) | HandshakeStage::LookingUp(_) => {
                ready.ended || ready.failed
            }
            HandshakeStage::Hello | HandshakeStage::Flights(_) => {
                let waits = !self.flight.waiting().is_empty();
                ready.readable || ready.ended || (ready.writable && waits)
            }
        }
    }

    pub(super) fn advance(
        mut self,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Advance<Self, N> {
        let ready = cx.core.client.ready;
        match mem::replace(&mut self.stage, HandshakeStage::Hello) {
            HandshakeStage::Hello => self.begin(cx, scratch),
            HandshakeStage::AwaitsTurn if ready.ended => Self::spare(cx),
            HandshakeStage::Flights(engine) if self.client.wants_signature(ready).is_none() => {
                self.exchange(engine, cx, scratch)
            }
            HandshakeStage::Signing(_) | HandshakeStage::LookingUp(_)
                if ready.ended || ready.failed =>
            {
                Advance::Reached(Reached::abandoned(cx))
            }
            HandshakeStage::Signing(signing) if signing.has_answer() => {
                let signature = signing.resume(&mut self.client.handshake, cx.turn);
                match self.handle_signature(signature, cx) {
                    ControlFlow::Continue(this) => Advance::Go(this),
                    ControlFlow::Break(advance) => advance,
                }
            }
            HandshakeStage::LookingUp(awaited) => match awaited.take() {
                AwaitedAnswer::Waiting => self.wait_as(HandshakeStage::LookingUp(awaited)),
                AwaitedAnswer::Done(()) | AwaitedAnswer::Lost => {
                    self.client.restore(scratch);
                    self.begin(cx, scratch)
                }
            },
            stage => self.wait_as(stage),
        }
    }

    /// Answers the whole ClientHello in the worker's buffers, or stores it while the client waits.
    fn begin(mut self, cx: &mut Context<'_, '_, N>, scratch: &mut Scratch) -> Advance<Self, N> {
        let stage = if let Some(awaited) = self.client.look_up(cx.turn.place) {
            HandshakeStage::LookingUp(awaited)
        } else if self.client.waits_for_turn(cx.core.client.ready, cx.turn) {
            HandshakeStage::AwaitsTurn
        } else {
            return self.answer(cx, scratch);
        };
        self.client.hold(scratch);
        self.wait_as(stage)
    }

    fn wait_as(mut self, stage: HandshakeStage) -> Advance<Self, N> {
        self.stage = stage;
        Advance::Wait(self)
    }

    /// Returns how the next signature is made, or `None` if the next step needs no signature.
    pub(super) fn wants_signature(&self, ready: Ready) -> Option<Offload> {
        match self.stage {
            HandshakeStage::Hello | HandshakeStage::LookingUp(_) | HandshakeStage::Signing(_) => {
                None
            }
            HandshakeStage::AwaitsTurn => self.client.offload,
            HandshakeStage::Flights(_) => self.client.wants_signature(ready),
        }
    }

    /// Runs the step that needs a signature, after the client has waited in the queue.
    pub(super) fn sign(
        mut self,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Advance<Self, N> {
        match mem::replace(&mut self.stage, HandshakeStage::Hello) {
            HandshakeStage::AwaitsTurn | HandshakeStage::Flights(_) if cx.client_is_gone() => {
                Self::spare(cx)
            }
            HandshakeStage::AwaitsTurn => {
                // While this client waited, other clients may have used up the admission tokens.
                if let Err(refusal) = self.client.look_for_token(cx.turn.now.mono) {
                    return Advance::Reached(Reached::refused(refusal, cx));
                }
                self.client.restore(scratch);
                self.answer(cx, scratch)
            }
            HandshakeStage::Flights(engine) => self.exchange(engine, cx, scratch),
            stage => {
                self.stage = stage;
                Advance::Go(self)
            }
        }
    }

    /// Stores the signature and returns `true` if this client requested it.
    pub(super) fn handle_signed(&mut self, signed: Signed) -> bool {
        match &mut self.stage {
            HandshakeStage::Signing(signing) => signing.handle_signed(signed),
            _ => false,
        }
    }

    pub(super) fn expire(self, cx: &mut Context<'_, '_, N>) -> Advance<Self, N> {
        Advance::Reached(Reached::late_handshake(CloseReason::HandshakeTimeout, cx))
    }

    /// Ends the handshake of a client that closed its connection before its signature was made.
    fn spare(cx: &mut Context<'_, '_, N>) -> Advance<Self, N> {
        cx.turn.counters.signatures_skipped.add(1);
        Advance::Reached(Reached::abandoned(cx))
    }

    fn answer(self, cx: &mut Context<'_, '_, N>, scratch: &mut Scratch) -> Advance<Self, N> {
        let engine = match self.client.engine(cx.turn.limits) {
            Ok(engine) => engine,
            Err(refusal) => return Advance::Reached(Reached::refused(refusal, cx)),
        };
        let Scratch {
            sealed_in,
            plain,
            sealed_out,
        } = scratch;
        match self.take_in(engine, sealed_in.filled_mut(), (plain, sealed_out), cx) {
            ControlFlow::Continue(this) => Advance::Go(this),
            ControlFlow::Break(advance) => advance,
        }
    }

    /// Sends the pending bytes of the last flight, then receives data and answers it.
    fn exchange(
        mut self,
        engine: Engine,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Advance<Self, N> {
        if cx.flush(&mut self.flight).is_err() {
            let reason = CloseReason::HandshakeAborted;
            return Advance::Reached(Reached::no_handshake(reason, cx));
        }
        self.stage = HandshakeStage::Flights(engine);
        while self.flight.waiting().is_empty() && cx.core.client.ready.readable {
            let engine = match mem::replace(&mut self.stage, HandshakeStage::Hello) {
                HandshakeStage::Flights(engine) => engine,
                stage => return self.wait_as(stage),
            };
            scratch.clear();
            let Scratch {
                sealed_in,
                plain,
                sealed_out,
            } = &mut *scratch;
            sealed_in.push(engine.held());
            match cx.receive(sealed_in, READ) {
                Ok(Got::Bytes(_)) => {}
                Ok(Got::Nothing) => return self.wait_as(HandshakeStage::Flights(engine)),
                Ok(Got::End) | Err(_) => {
                    completed::count_offer(&self.client, cx.turn.counters);
                    return Advance::Reached(Reached::abandoned(cx));
                }
            }
            match self.take_in(engine, sealed_in.filled_mut(), (plain, sealed_out), cx) {
                ControlFlow::Continue(this) => self = this,
                ControlFlow::Break(advance) => return advance,
            }
        }
        Advance::Wait(self)
    }

    /// Passes input to rustls and sends the output. The step is suspended if it needs a signature
    /// of a crypto thread.
    fn take_in(
        mut self,
        mut engine: Engine,
        input: &mut [u8],
        (plain, out): (&mut Buffer, &mut Buffer),
        cx: &mut Context<'_, '_, N>,
    ) -> ControlFlow<Advance<Self, N>, Self> {
        self.note_time(&engine, cx);
        let offload = self.client.offload;
        let takes = |signing: &&WorkerSigning| offload.is_some_and(|it| signing.takes(it));
        let handshake = &mut self.client.handshake;
        if let Some(signing) = cx.turn.signing.filter(takes) {
            let signature = signing::begin(engine, input, handshake, (signing, cx.turn));
            return self.handle_signature(signature, cx);
        }
        let received = context::lend(handshake, || engine.receive(input, plain, out));
        self.settle(engine, received, (plain, out), cx)
    }

    fn handle_signature(
        mut self,
        signature: Signature,
        cx: &mut Context<'_, '_, N>,
    ) -> ControlFlow<Advance<Self, N>, Self> {
        match signature {
            Signature::Done(step) => {
                let (plain, mut out) = (step.plain, step.out);
                self.settle(step.engine, step.received, (&plain, &mut out), cx)
            }
            Signature::Awaited(signing) => {
                self.stage = HandshakeStage::Signing(Box::new(signing));
                ControlFlow::Break(Advance::Wait(self))
            }
            Signature::Failed(detail) => {
                let reason = CloseReason::Internal;
                if !detail.is_empty() {
                    cx.note(reason, &detail);
                }
                ControlFlow::Break(Advance::Reached(Reached::no_handshake(reason, cx)))
            }
        }
    }

    /// Sends the output of a rustls step. Finishes the phase if there are traffic keys or the
    /// handshake failed.
    fn settle(
        mut self,
        engine: Engine,
        received: Result<Received, rustls::Error>,
        (plain, out): (&Buffer, &mut Buffer),
        cx: &mut Context<'_, '_, N>,
    ) -> ControlFlow<Advance<Self, N>, Self> {
        // After the first flight, a signature is needed only to answer the second ClientHello,
        // which follows a HelloRetryRequest (RFC 8446, section 4.1.4).
        let again = Some(HandshakeKind::FullWithHelloRetryRequest);
        let is_second = self.is_first && engine.handshake_kind() == again;
        self.client.offload = self.client.offload.filter(|_| is_second);
        let reached = match received {
            Ok(received) if received.ready && self.client.served.is_challenge => {
                cx.turn.counters.handshakes_ended.add(1);
                cx.core.half_open = None;
                match cx.push(out.filled(), &mut self.flight) {
                    Ok(()) => Reached::Close(CloseReason::AcmeChallenge, self.flight),
                    Err(_) => Reached::End(CloseReason::AcmeChallenge),
                }
            }
            Ok(received) if received.ready => {
                let said = EarlyBytes {
                    bytes: plain.filled(),
                    ended: received.ended,
                };
                self.note_completion(&engine, received, cx);
                if !said.bytes.is_empty() && has_only_tickets_to_send(&engine, received) {
                    self.flight.hold(out.filled());
                    self.leave(engine, said, out, cx)
                } else if cx.push(out.filled(), &mut self.flight).is_err() {
                    Reached::End(CloseReason::ClientReset)
                } else {
                    self.leave(engine, said, out, cx)
                }
            }
            Ok(received) => {
                let is_cut = received.ended || cx.push(out.filled(), &mut self.flight).is_err();
                if !is_cut {
                    self.stage = HandshakeStage::Flights(engine);
                    return ControlFlow::Continue(self);
                }
                Reached::no_handshake(CloseReason::HandshakeAborted, cx)
            }
            Err(error) => {
                completed::count_offer(&self.client, cx.turn.counters);
                let refusal = self.client.refusal(&error);
                Reached::refused(
                    match refusal.reason {
                        CloseReason::Token => refusal,
                        _ => refusal.answering(out.filled()),
                    },
                    cx,
                )
            }
        };
        ControlFlow::Break(Advance::Reached(reached))
    }

    /// Sets the time that the callbacks from rustls use as the current time.
    fn note_time(&mut self, engine: &Engine, cx: &Context<'_, '_, N>) {
        let kind = engine.handshake_kind();
        self.is_first = kind.is_none();
        if let Some(handshake) = &mut self.client.handshake {
            handshake.clock = HandshakeClock {
                unix: cx.turn.now.unix.into(),
                mono: cx.turn.now.mono,
            };
            if !matches!(kind, None | Some(HandshakeKind::Resumed)) {
                handshake.resumption.forget_opened();
            }
        }
    }

    fn note_completion(
        &mut self,
        engine: &Engine,
        received: Received,
        cx: &mut Context<'_, '_, N>,
    ) {
        let client = &mut self.client;
        let took = cx.turn.now.mono.saturating_sub(cx.core.facts.accepted);
        let took = took.saturating_sub(cx.core.facts.queued);
        let mut agreed = Agreed {
            presented: client.presented(),
            early_data: received.early.then_some(client.served.early_data),
            ..completed::agreed(engine, client, took)
        };
        cx.turn.counters.handshakes_ended.add(1);
        completed::count(&agreed, cx.turn.counters);
        if let Some(handshake) = &client.handshake {
            let certificates = &client.listener.config().certificates;
            certificates
                .keys_for(handshake.certificate.name())
                .count_handshake();
        }
        completed::count_offer(client, cx.turn.counters);
        completed::count_early(client, received.early, cx.turn.counters);
        let trial = client.served.trial.take();
        agreed.would_refuse = trial.and_then(|trial| trial.count(agreed.client_verified));
        cx.core.facts.tls = Some(agreed);
        cx.core.half_open = None;
    }

    /// Requests a server, or joins the client with the server that is already connected.
    fn leave(
        self,
        mut engine: Engine,
        said: EarlyBytes<'_>,
        out: &mut Buffer,
        cx: &mut Context<'_, '_, N>,
    ) -> Reached<N> {
        let HelloDecision {
            pool,
            mut handshake,
            server,
            ..
        } = *self.client;
        let origin = handshake.as_ref().and_then(|it| it.resumption.origin_id());
        if engine.is_unfinished() {
            engine.keep(handshake.take());
        }
        let session = handshake.and_then(|handshake| handshake.resumption.session);
        cx.core.session = session.map(Box::new);
        if let Some(mut server) = server {
            return match server.admit((&mut engine, self.flight), said, out) {
                Ok(()) => Reached::Joined(Joined {
                    client_tls: Some(engine),
                    server: *server,
                    learner: None,
                    asks: !said.bytes.is_empty(),
                }),
                Err(reason) => Reached::End(reason),
            };
        }
        let mut pending = Pending::new(pool, Purpose::Relay);
        pending.client_tls = Some(engine);
        pending.origin = origin;
        pending.to_client = self.flight;
        Reached::pending(pending, said, cx)
    }
}

impl<N: Net> HelloDecision<N> {
    /// Returns how a signature is made, if a second ClientHello that needs it may have arrived.
    fn wants_signature(&self, ready: Ready) -> Option<Offload> {
        self.offload.filter(|_| ready.readable)
    }

    fn refusal(&self, error: &rustls::Error) -> HandshakeRefusal {
        let handshake = self.handshake.as_ref();
        if let Some(reason) = handshake.and_then(|it| it.shed()) {
            return HandshakeRefusal::shed(reason);
        }
        // The client receives only this plaintext alert. The output of rustls is discarded.
        if handshake.is_some_and(|it| it.signature.token_failed) {
            return HandshakeRefusal::by_alert(INTERNAL_ERROR, CloseReason::Token);
        }
        let mut detail = chain::explain(error);
        if let Some(refused) = handshake.and_then(|it| it.client.refused.as_deref()) {
            detail = format!("{detail}; {refused}");
        }
        HandshakeRefusal::new(reason_of_error(error, self.served.asks), detail)
    }

    /// Returns the algorithms of becket's own certificate, if the PROXY header to the backend
    /// contains them.
    fn presented(&self) -> Option<Presented> {
        let version = self.pool.backend().keys.proxy_header;
        version.filter(|version| *version == Introduction::V2)?;
        let certificate = &self.handshake.as_ref()?.certificate;
        let keys = self
            .listener
            .config()
            .certificates
            .keys_for(certificate.name());
        let chain = keys.chains().get(certificate.presented?)?;
        Some(chain.presented())
    }
}

/// Returns `true` if the answer to the client's Finished contains only tickets.
fn has_only_tickets_to_send(engine: &Engine, received: Received) -> bool {
    let version = engine.facts().and_then(|facts| facts.protocol_version());
    version == Some(ProtocolVersion::TLSv1_3) && !received.early
}

/// Returns the close reason of a TLS error. `asks` is `true` if a client certificate was requested:
/// a message that is too long is then assumed to be the certificate chain.
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

/// Alert `internal_error` (RFC 8446, section 6.2).
const INTERNAL_ERROR: u8 = 80;
