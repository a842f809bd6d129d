//! From the first byte to traffic keys.
//!
//! 1. Bytes gather until `proto::client_hello` sees a whole ClientHello.
//! 2. The [`ListenerState`] chooses route, policy and configuration by it; a refusal is one alert. Where TLS passes,
//!    the connection goes on to its server as it is (`passing.rs`). Where the backend
//!    asks for that, a slot of a server is claimed now, or waited for (`queued.rs`).
//! 3. Where the answer needs a signature, the client waits for its turn: the worker signs for one at a
//!    time, and looks at its sockets in between. A client that has gone by then is not signed for.
//! 4. The same bytes, and all that follow, go to the [`Engine`]; each flight leaves in one send.
//! 5. When keys are ready (or early data has come, which is before that), the connection goes on to
//!    its server with whatever plaintext has come already.
//!
//! 1 to 3 are [`Hello`], which is kept by whoever waits for a slot; 4 and 5 are [`Flights`].
//!
//! What a client can make us hold: `limits.client-hello` bytes of whatever is unfinished, the hello
//! for `timeouts.hello` or a record after it, `timeouts.handshake` long in all; where client
//! certificates are asked for, as much as a chain of `limits.certificate-chain` needs.
//!
//! Source: RFC 8446 section 4, RFC 5246 section 7.

use std::mem;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;

use becket_config::choices::{ProxyVersion, QueuePlace};
use becket_proto::client_hello::ClientHello;
use becket_proto::half_pipe::HalfPipe;
use rustls::{CertificateError, HandshakeKind};

use super::connect::{Pending, Purpose, pick_hint};
use super::facts::Agreed;
use super::hello::{self, DECODE_ERROR, Refusal, fatal_alert};
use super::passing::Passing;
use super::queued::{AfterQueue, Queued};
use super::relay::Relaying;
use super::resumed;
use super::{Context, Net, Next, Phase, Said, Turn};
use crate::backend::pool::{Pick, Pool};
use crate::backend::slot::Slot;
use crate::close_reason::CloseReason;
use crate::connection::listener::ListenerState;
use crate::leg::Got;
use crate::metrics::Offer;
use crate::pki::presented::Presented;
use crate::scratch::{Buffer, READ, Scratch};
use crate::sessions::context::{self, Resuming};
use crate::socket::Ready;
use crate::tls::chain;
use crate::tls::engine::{self, Engine, Received};
use crate::tls::hello_router::{Choice, Served, server_name};

/// A client whose handshake is not complete.
#[derive(Debug)]
pub(super) enum Handshaking<N: Net> {
    /// Its hello is not whole.
    Hello(Hello<N>),
    /// It is, and is answered by a signature, for which there is a queue.
    Unsigned(Hello<N>),
    /// rustls answers.
    Flights(Flights<N>),
}

/// A client of whom a hello is awaited.
#[derive(Debug)]
pub(super) struct Hello<N: Net> {
    listener: Rc<ListenerState>,
    held: Vec<u8>,
    /// One that the client has waited for.
    slot: Option<Slot>,
    /// Waits for the client to have keys, where it asked for TLS in clear.
    relay: Option<Box<Relaying<N>>>,
    /// The protocol that the client must offer.
    insists_on: Option<&'static [u8]>,
}

/// A client whose hello was understood.
#[derive(Debug)]
pub(super) struct Flights<N: Net> {
    listener: Rc<ListenerState>,
    /// On the heap: an established connection, which is what there are many of, keeps no room for it.
    chosen: Box<Chosen>,
    reserved: Reserved<N>,
    /// What the socket did not take of a flight.
    flight: HalfPipe,
}

/// What a client has of a server before its handshake is done.
#[derive(Debug)]
enum Reserved<N: Net> {
    Nothing,
    /// Where the backend wants that.
    Slot(Slot),
    /// Where clients ask for TLS in clear.
    Server(Box<Relaying<N>>),
}

/// What the hello decided.
#[derive(Debug)]
pub(super) struct Chosen {
    pool: Rc<Pool>,
    pub(super) engine: Engine,
    /// Lent to the thread while rustls runs.
    pub(super) resuming: Option<Resuming>,
    /// The client announced early data.
    pub(super) offers_early: bool,
    /// The client was asked for a second hello, and it has to be signed for.
    signs: bool,
    /// By what the client may have offered to resume.
    pub(super) offer: Offer,
    /// How much early data the policy takes.
    early_data: u32,
    /// The client is asked for a certificate.
    asks: bool,
}

/// Whether a hello is whole, and what it leads to.
enum Heard {
    Part,
    /// TLS ends behind us.
    Passing(Passing),
    /// It asks for a signature, and has to wait for that.
    Unsigned,
    /// No server of the pool has a slot.
    Full(Rc<Pool>),
    Whole(Box<Chosen>),
}

impl<N: Net> Handshaking<N> {
    pub(super) fn new(listener: Rc<ListenerState>) -> Self {
        Self::Hello(Hello {
            listener,
            held: Vec::new(),
            slot: None,
            relay: None,
            insists_on: None,
        })
    }

    /// What begins behind the handshake, where the server was connected before it.
    pub(super) fn relay(&self) -> Option<&Relaying<N>> {
        match self {
            Self::Hello(hello) | Self::Unsigned(hello) => hello.relay.as_deref(),
            Self::Flights(flights) => match &flights.reserved {
                Reserved::Server(relay) => Some(relay),
                _ => None,
            },
        }
    }

    pub(super) fn relay_mut(&mut self) -> Option<&mut Relaying<N>> {
        match self {
            Self::Hello(hello) | Self::Unsigned(hello) => hello.relay.as_deref_mut(),
            Self::Flights(flights) => match &mut flights.reserved {
                Reserved::Server(relay) => Some(relay),
                _ => None,
            },
        }
    }

    /// Whether this readiness can move the handshake. A fresh socket always reports that it is
    /// writable; to look for bytes then would cost a system call for nothing.
    pub(super) fn cares_for(&self, ready: Ready) -> bool {
        let waits = match self {
            Self::Unsigned(_) => return ready.ended,
            Self::Hello(_) => false,
            Self::Flights(flights) => !flights.flight.waiting().is_empty(),
        };
        ready.readable || ready.ended || (ready.writable && waits)
    }

    pub(super) fn advance(self, cx: &mut Context<'_, '_, N>, scratch: &mut Scratch) -> Next<N> {
        match self {
            Self::Hello(hello) => hello.advance(cx, scratch),
            Self::Unsigned(_) if cx.core.client.ready.ended => spare(cx),
            Self::Flights(flights) if !flights.wants_signature(cx.core.client.ready) => {
                flights.advance(cx, scratch)
            }
            waiting => Next::Wait(Phase::Handshaking(waiting)),
        }
    }

    /// Whether the next step is a signature, and could be made.
    pub(super) fn wants_signature(&self, ready: Ready) -> bool {
        match self {
            Self::Hello(_) => false,
            Self::Unsigned(_) => true,
            Self::Flights(flights) => flights.wants_signature(ready),
        }
    }

    /// Takes the step that waited for its turn.
    pub(super) fn sign(self, cx: &mut Context<'_, '_, N>, scratch: &mut Scratch) -> Next<N> {
        match self {
            Self::Hello(_) => Next::Go(Phase::Handshaking(self)),
            Self::Unsigned(_) | Self::Flights(_) if cx.client_is_gone() => spare(cx),
            Self::Unsigned(hello) => hello.go_on(true, cx, scratch),
            Self::Flights(flights) => flights.advance(cx, scratch),
        }
    }

    pub(super) fn expire(self, cx: &mut Context<'_, '_, N>) -> Next<N> {
        let reason = match self {
            Self::Hello(_) => CloseReason::HelloTimeout,
            Self::Unsigned(_) | Self::Flights(_) => CloseReason::HandshakeTimeout,
        };
        let detail = format!("{} bytes received", cx.core.client.traffic.received);
        cx.note(reason, &detail);
        cx.end_handshake(reason)
    }
}

impl<N: Net> Hello<N> {
    /// Starts for a client that has asked for TLS in clear, and whose server is connected.
    pub(super) fn behind_talk(
        listener: Rc<ListenerState>,
        relay: Box<Relaying<N>>,
        insists_on: Option<&'static [u8]>,
    ) -> Self {
        Self {
            listener,
            held: Vec::new(),
            slot: None,
            relay: Some(relay),
            insists_on,
        }
    }

    fn advance(mut self, cx: &mut Context<'_, '_, N>, scratch: &mut Scratch) -> Next<N> {
        while cx.core.client.ready.readable {
            scratch.clear();
            let input = &mut scratch.sealed_in;
            input.push(&self.held);
            match cx.receive(input, READ) {
                Ok(Got::Bytes) => {}
                Ok(Got::Nothing) => break,
                Ok(Got::End) | Err(_) => return abandon(cx),
            }
            match self.decide(false, cx, scratch) {
                ControlFlow::Continue(hello) => self = hello,
                ControlFlow::Break(next) => return next,
            }
        }
        Next::Wait(Phase::Handshaking(Handshaking::Hello(self)))
    }

    /// Goes on with the whole hello that was held while the client waited, for a slot or for its turn.
    pub(super) fn go_on(
        mut self,
        may_sign: bool,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Next<N> {
        scratch.clear();
        scratch.sealed_in.push(&mem::take(&mut self.held));
        match self.decide(may_sign, cx, scratch) {
            ControlFlow::Continue(_) => cx.end_handshake(CloseReason::Internal),
            ControlFlow::Break(next) => next,
        }
    }

    /// The same with a slot.
    pub(super) fn go_on_with(
        mut self,
        slot: Slot,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Next<N> {
        self.slot = Some(slot);
        self.go_on(false, cx, scratch)
    }

    /// Answers the hello that is in the buffer, or keeps it until that can be done. Goes on when
    /// it is not whole.
    fn decide(
        mut self,
        may_sign: bool,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> ControlFlow<Next<N>, Self> {
        let Scratch {
            sealed_in,
            plain,
            sealed_out,
        } = scratch;
        let input = sealed_in.filled_mut();
        ControlFlow::Break(match self.understand(input, may_sign, cx) {
            Ok(Heard::Part) => {
                self.held = input.to_vec();
                return ControlFlow::Continue(self);
            }
            Ok(Heard::Unsigned) => {
                self.held = input.to_vec();
                Next::Wait(Phase::Handshaking(Handshaking::Unsigned(self)))
            }
            Ok(Heard::Full(pool)) => {
                self.held = input.to_vec();
                Queued::begin(AfterQueue::Handshake(self, pool), cx)
            }
            Ok(Heard::Passing(passing)) => {
                let said = Said {
                    bytes: input,
                    ended: false,
                };
                passing.begin(said, cx)
            }
            Ok(Heard::Whole(chosen)) => self.answer(chosen).begin(input, (plain, sealed_out), cx),
            Err(refusal) => refusal.close(cx),
        })
    }

    fn answer(self, chosen: Box<Chosen>) -> Flights<N> {
        Flights {
            listener: self.listener,
            chosen,
            reserved: match (self.relay, self.slot) {
                (Some(relay), _) => Reserved::Server(relay),
                (None, Some(slot)) => Reserved::Slot(slot),
                (None, None) => Reserved::Nothing,
            },
            flight: HalfPipe::default(),
        }
    }

    /// Looks for the hello. A slot that it leads to is kept.
    fn understand(
        &mut self,
        input: &[u8],
        may_sign: bool,
        cx: &mut Context<'_, '_, N>,
    ) -> Result<Heard, Refusal> {
        let Some(hello) = hello::look(input, cx.turn.limits.client_hello)? else {
            return Ok(Heard::Part);
        };
        cx.core.deadline = cx.core.handshake_until;
        let name = server_name(&hello);
        match self.listener.router.choose(&hello, name.as_deref()) {
            Choice::Serve(served) => {
                cx.core.facts.server_name.clone_from(&name);
                self.serve(served, (&hello, name), (may_sign, input.len()), cx)
            }
            Choice::Pass(route) => {
                cx.core.facts.server_name = name;
                let pool = self.listener.pool(route);
                let passing = pool.map(|pool| Passing::new(&hello, pool, cx.turn.now.mono));
                let passing = passing.map(Heard::Passing);
                passing.ok_or_else(|| Refusal::new(CloseReason::Internal, String::new()))
            }
            Choice::Refuse { alert, reason } => {
                cx.core.facts.server_name = name;
                Err(Refusal::by_alert(alert, reason))
            }
        }
    }

    /// Makes what answers a hello. `held` bytes have come.
    fn serve(
        &mut self,
        served: Served,
        (hello, name): (&ClientHello<'_>, Option<Box<str>>),
        (may_sign, held): (bool, usize),
        cx: &Context<'_, '_, N>,
    ) -> Result<Heard, Refusal> {
        let lacks = |protocol| !hello.alpn().any(|offer| offer == protocol);
        if self.insists_on.is_some_and(lacks) {
            return Err(Refusal::new(CloseReason::AlpnMismatch, String::new())
                .answering(&fatal_alert(NO_APPLICATION_PROTOCOL)));
        }
        let permit = cx
            .turn
            .admission
            .handshake_permit(cx.core.facts.client.ip());
        if let Some(permit) = permit.as_ref().filter(|_| !served.may_resume) {
            permit.look(cx.turn.now.mono).map_err(Refusal::shed)?;
        }
        if !served.may_resume && !may_sign {
            return Ok(Heard::Unsigned);
        }
        let Some(pool) = self.listener.pool(served.route) else {
            return Err(Refusal::new(CloseReason::Internal, String::new()));
        };
        let early_data = served.early_data;
        let has_one = self.slot.is_some() || self.relay.is_some();
        if pool.backend().keys.queue == QueuePlace::BeforeHandshake && !has_one {
            self.slot = claim(pool, (held, early_data), cx)?;
            if self.slot.is_none() {
                return Ok(Heard::Full(Rc::clone(pool)));
            }
        }
        let most_held = if served.asks {
            chain::most_held(cx.turn.limits.certificate_chain)
        } else {
            cx.turn.limits.client_hello
        };
        let may_take_early = served.config.max_early_data_size > 0;
        let engine = Engine::new(served.config, most_held);
        let mut engine =
            engine.map_err(|error| Refusal::new(CloseReason::Internal, error.to_string()))?;
        let mut resuming = Resuming::new(name).with_permit(permit);
        let offers_early = hello.offers_early_data();
        if offers_early {
            engine = engine.expecting_early_data(may_take_early);
            resuming.secrets = Some(Box::default());
        }
        let chosen = Box::new(Chosen {
            pool: Rc::clone(pool),
            engine,
            resuming: Some(resuming),
            offers_early,
            signs: false,
            offer: served.offer,
            early_data,
            asks: served.asks,
        });
        Ok(Heard::Whole(chosen))
    }
}

/// Claims a slot of a server before the handshake; nothing when the client has to wait for it.
fn claim<N: Net>(
    pool: &Pool,
    (held, early_data): (usize, u32),
    cx: &Context<'_, '_, N>,
) -> Result<Option<Slot>, Refusal> {
    let hint = pick_hint(None, cx.core);
    let had = pool.recall(&hint, cx.turn.now.mono);
    match pool.pick(&hint, had, &[]) {
        Pick::Slot(slot) => return Ok(Some(slot)),
        Pick::Nobody => {
            let detail = format!("backend {}", &*pool.backend().keys.name);
            return Err(Refusal::new(CloseReason::NoServer, detail));
        }
        Pick::Full => {}
    }
    // Nobody has anything to say behind a hello before it is answered, but early data, which may be
    // meant for another policy; small records double it at most, or are not worth a place.
    let early = USUAL_EARLY_DATA.max(early_data as usize);
    if held > cx.turn.limits.client_hello + 2 * early {
        let alert = fatal_alert(DECODE_ERROR);
        return Err(Refusal::new(CloseReason::HelloTooLarge, String::new()).answering(&alert));
    }
    Ok(None)
}

impl<N: Net> Flights<N> {
    /// Answers the hello.
    fn begin(
        self,
        hello: &mut [u8],
        buffers: (&mut Buffer, &mut Buffer),
        cx: &mut Context<'_, '_, N>,
    ) -> Next<N> {
        match self.take_in(hello, buffers, cx) {
            ControlFlow::Continue(flights) => {
                Next::Go(Phase::Handshaking(Handshaking::Flights(flights)))
            }
            ControlFlow::Break(next) => next,
        }
    }

    fn advance(mut self, cx: &mut Context<'_, '_, N>, scratch: &mut Scratch) -> Next<N> {
        if cx.flush(&mut self.flight).is_err() {
            return cx.end_handshake(CloseReason::HandshakeAborted);
        }
        while self.flight.waiting().is_empty() && cx.core.client.ready.readable {
            scratch.clear();
            let Scratch {
                sealed_in,
                plain,
                sealed_out,
            } = &mut *scratch;
            sealed_in.push(self.chosen.engine.held());
            match cx.receive(sealed_in, READ) {
                Ok(Got::Bytes) => {}
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
    fn wants_signature(&self, ready: Ready) -> bool {
        self.chosen.signs && ready.readable
    }

    /// Gives what came to TLS, and sends what that answers.
    fn take_in(
        mut self,
        input: &mut [u8],
        (plain, out): (&mut Buffer, &mut Buffer),
        cx: &mut Context<'_, '_, N>,
    ) -> ControlFlow<Next<N>, Self> {
        match self.chosen.receive(input, (plain, out), cx.turn) {
            Ok(received) if received.ready => {
                let said = Said {
                    bytes: plain.filled(),
                    ended: received.ended,
                };
                self.note_completion(received, cx);
                if cx.push(out.filled(), &mut self.flight).is_err() {
                    return ControlFlow::Break(Next::End(CloseReason::ClientReset));
                }
                ControlFlow::Break(self.leave(said, out, cx))
            }
            Ok(received) if received.ended => {
                ControlFlow::Break(cx.end_handshake(CloseReason::HandshakeAborted))
            }
            Ok(_) => match cx.push(out.filled(), &mut self.flight) {
                Ok(()) => ControlFlow::Continue(self),
                Err(_) => ControlFlow::Break(cx.end_handshake(CloseReason::HandshakeAborted)),
            },
            Err(refusal) => {
                resumed::count_offer(&self.chosen, cx.turn.counters);
                ControlFlow::Break(refusal.answering(out.filled()).close(cx))
            }
        }
    }

    /// Keys are ready: writes down what was agreed on.
    fn note_completion(&mut self, received: Received, cx: &mut Context<'_, '_, N>) {
        let chosen = &mut self.chosen;
        let took = cx.turn.now.mono.saturating_sub(cx.core.facts.accepted);
        let took = took.saturating_sub(cx.core.facts.queued);
        let agreed = Agreed {
            presented: chosen.presented(&self.listener, cx.core.facts.server_name.as_deref()),
            early_data: received.early.then_some(chosen.early_data),
            ..resumed::agreed(chosen, took)
        };
        cx.turn.counters.handshakes_ended.add(1);
        resumed::count(&agreed, cx.turn.counters);
        resumed::count_offer(chosen, cx.turn.counters);
        resumed::count_early(chosen, received.early, cx.turn.counters);
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
        let slot = match self.reserved {
            Reserved::Server(relay) => {
                return relay.admit((engine, self.flight), said, out, cx);
            }
            Reserved::Slot(slot) => Some(slot),
            Reserved::Nothing => None,
        };
        let mut pending = Pending::new(pool, Purpose::Relay);
        pending.client_tls = Some(engine);
        pending.origin = origin;
        pending.to_client = self.flight;
        pending.begin(slot, said, cx)
    }
}

impl Chosen {
    /// Gives what came to TLS, which leaves plaintext and its answer in the buffers.
    fn receive<N: Net>(
        &mut self,
        input: &mut [u8],
        (plain, out): (&mut Buffer, &mut Buffer),
        turn: &Turn<'_, N>,
    ) -> Result<Received, Refusal> {
        let engine = &mut self.engine;
        if let Some(resuming) = &mut self.resuming {
            resuming.unix_now = turn.now.unix.into();
            resuming.mono_now = turn.now.mono;
            if !matches!(engine.handshake_kind(), None | Some(HandshakeKind::Resumed)) {
                resuming.forget_opened();
            }
        }
        let begins = engine.handshake_kind().is_none();
        let received = context::lend(&mut self.resuming, || engine.receive(input, plain, out));
        // RFC 8446, section 4.1.4.
        let again = Some(HandshakeKind::FullWithHelloRetryRequest);
        self.signs = begins && engine.handshake_kind() == again;
        received.map_err(
            |error| match self.resuming.as_ref().and_then(Resuming::shed) {
                Some(reason) => Refusal::shed(reason),
                None => Refusal::new(reason_of_error(&error, self.asks), chain::explain(&error)),
            },
        )
    }

    /// What there is to say of our certificate, where the server is told of it.
    fn presented(&self, listener: &ListenerState, name: Option<&str>) -> Option<Arc<Presented>> {
        let version = self.pool.backend().keys.proxy_header;
        version.filter(|version| *version == ProxyVersion::V2)?;
        let place = self.resuming.as_ref()?.presented?;
        let certificates = &listener.config().certificates;
        certificates.keys_for(name).presented(place).cloned()
    }
}

/// The client has gone before it was signed for.
fn spare<N: Net>(cx: &mut Context<'_, '_, N>) -> Next<N> {
    cx.turn.counters.signatures_spared.add(1);
    abandon(cx)
}

/// The client has gone.
fn abandon<N: Net>(cx: &mut Context<'_, '_, N>) -> Next<N> {
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

/// What OpenSSL and nginx let clients send early if nobody says otherwise.
const USUAL_EARLY_DATA: usize = 16 * 1024;
/// RFC 7301, section 3.2.
const NO_APPLICATION_PROTOCOL: u8 = 120;
