//! From the first byte to traffic keys.
//!
//! 1. Bytes gather until `proto::client_hello` sees a whole ClientHello.
//! 2. The [`ListenerState`] chooses route, policy and configuration by it; a refusal is one alert. Where the backend
//!    asks for that, a slot of a server is claimed now, or waited for (`queued.rs`).
//! 3. The same bytes, and all that follow, go to the [`Engine`]; each flight leaves in one send.
//! 4. When keys are ready (or early data has come, which is before that), the connection goes on to
//!    its server with whatever plaintext has come already.
//!
//! What a client can make us hold: `limits.client-hello` bytes of whatever is unfinished, the hello
//! for `timeouts.hello` or a record after it, `timeouts.handshake` long in all; where client
//! certificates are asked for, as much as a chain of `limits.certificate-chain` needs.
//!
//! Source: RFC 8446 section 4, RFC 5246 section 7.

use std::rc::Rc;
use std::sync::Arc;

use rustls::HandshakeKind;

use super::closing::Closing;
use super::connect::{Connecting, Errand, Established};
use super::conversing::rejoin;
use super::facts::Agreed;
use super::hello::{self, DECODE_ERROR, NoHello, fatal_alert};
use super::queued::{Queued, Then};
use super::resumed;
use super::{Core, Net, Next, Phase, Turn};
use crate::backend::pool::{Guest, Pick, Pool};
use crate::backend::slot::Slot;
use crate::close_reason::CloseReason;
use crate::config::ProxyVersion;
use crate::config::QueuePlace;
use crate::connection::listener::ListenerState;
use crate::leg::{Got, Ready};
use crate::metrics::Offer;
use crate::pki::presented::Presented;
use crate::scratch::READ;
use crate::sessions::context::{self, Resuming};
use crate::socket::Socket;
use crate::tls::chain;
use crate::tls::engine::{self, Engine, Received};
use crate::tls::hello_router::{Choice, server_name};

/// A client whose handshake is not complete.
#[derive(Debug)]
pub struct Handshaking {
    listener: Rc<ListenerState>,
    /// Set once the hello was understood. On the heap: an established connection, which is what
    /// there are many of, does not keep room for it.
    chosen: Option<Box<Chosen>>,
    /// A hello that is not whole.
    held: Vec<u8>,
    /// What the socket did not take of a flight.
    flight: Vec<u8>,
    /// Of the server, where it is claimed before the handshake.
    slot: Option<Slot>,
    /// Where the client is to wait for a slot.
    wanted: Option<Rc<Pool>>,
    /// The protocol that the client must offer.
    insists_on: Option<&'static [u8]>,
}

/// What the hello decided.
#[derive(Debug)]
pub struct Chosen {
    /// Index of the route in its listener.
    pub route: usize,
    /// Keys and handshake state.
    pub engine: Engine,
    /// Lent to the thread while rustls runs.
    pub resuming: Option<Resuming>,
    /// The client announced early data.
    pub offers_early: bool,
    /// By what the client may have offered to resume.
    pub offer: Offer,
}

/// Why a handshake fails; the answer to the client, if any, is in `scratch.sealed_out`.
#[derive(Debug)]
struct Failed {
    reason: CloseReason,
    detail: String,
    /// Turned away so that others can be served: no answer, and the connection is reset.
    shed: bool,
}

impl Handshaking {
    /// Starts for a client that came through `listener`.
    pub fn new(listener: Rc<ListenerState>) -> Self {
        Self {
            listener,
            chosen: None,
            held: Vec::new(),
            flight: Vec::new(),
            slot: None,
            wanted: None,
            insists_on: None,
        }
    }

    /// Refuses clients that do not offer this protocol.
    pub fn insisting_on(mut self, protocol: &'static [u8]) -> Self {
        self.insists_on = Some(protocol);
        self
    }

    /// Where the client is to wait for a slot.
    pub fn wanted(&self) -> Option<&Rc<Pool>> {
        self.wanted.as_ref()
    }

    /// Goes on with the hello that was held while the client waited for this slot.
    pub fn go_on(mut self, slot: Slot) -> Self {
        self.slot = Some(slot);
        self.wanted = None;
        self
    }

    /// Whether no whole hello has come.
    pub fn lacks_hello(&self) -> bool {
        self.chosen.is_none() && self.slot.is_none()
    }

    /// Whether a whole hello is held, and a slot has come for it.
    fn has_waited(&self) -> bool {
        self.slot.is_some() && self.chosen.is_none()
    }

    /// Whether this readiness can move the handshake. A fresh socket always reports that it is
    /// writable; to look for bytes then would cost a system call for nothing.
    pub fn cares_for(&self, ready: Ready) -> bool {
        ready.readable || ready.ended || (ready.writable && !self.flight.is_empty())
    }

    /// Does what can be done now.
    pub fn advance<N: Net>(mut self, core: &mut Core<N>, turn: &mut Turn<'_, N>) -> Next<N> {
        turn.scratch.clear();
        turn.scratch.sealed_out.push(&self.flight);
        loop {
            if self.send_flight(core, turn).is_err() {
                return end(CloseReason::HandshakeAborted, turn);
            }
            let can_take = core.client.ready.readable || self.has_waited();
            if !self.flight.is_empty() || !can_take {
                return Next::Wait(Phase::Handshaking(self));
            }
            match self.take_in(core, turn) {
                Ok(_) if self.wanted.is_some() => {
                    return Queued::begin(Then::Handshake(self), core, turn);
                }
                Ok(received) if received.ready => return self.leave(received, core, turn),
                Ok(received) if received.ended => return end(CloseReason::HandshakeAborted, turn),
                Ok(_) => {}
                Err(failed) => return self.fail(&failed, core, turn),
            }
        }
    }

    /// The handshake took too long.
    pub fn expire<N: Net>(self, core: &Core<N>, turn: &mut Turn<'_, N>) -> Next<N> {
        let reason = match self.lacks_hello() {
            true => CloseReason::HelloTimeout,
            false => CloseReason::HandshakeTimeout,
        };
        let detail = format!("{} bytes received", core.client.traffic.received);
        turn.failures.note(&core.facts, reason, &detail, turn.now);
        end(reason, turn)
    }

    /// Sends what is in `scratch.sealed_out`, and keeps what the socket does not take.
    fn send_flight<N: Net>(&mut self, core: &mut Core<N>, turn: &Turn<'_, N>) -> Result<(), ()> {
        let flight = turn.scratch.sealed_out.filled();
        let sent = core
            .client
            .send(flight, &turn.counters.client_bytes_out)
            .map_err(drop)?;
        self.flight = flight.get(sent..).unwrap_or_default().to_vec();
        Ok(())
    }

    /// Receives once and gives what came to whoever is to understand it.
    fn take_in<N: Net>(
        &mut self,
        core: &mut Core<N>,
        turn: &mut Turn<'_, N>,
    ) -> Result<Received, Failed> {
        turn.scratch.clear();
        let input = &mut turn.scratch.sealed_in;
        input.push(match &self.chosen {
            Some(chosen) => chosen.engine.held(),
            None => &self.held,
        });
        let counter = &turn.counters.client_bytes_in;
        if !self.has_waited() {
            match core.client.receive(input, READ, counter) {
                Ok(Got::Bytes) => {}
                Ok(Got::Nothing) => return Ok(Received::default()),
                Ok(Got::End) | Err(_) => {
                    return Err(Failed::quietly(CloseReason::HandshakeAborted));
                }
            }
        }
        if self.chosen.is_none() && !self.understand(core, turn)? {
            return Ok(Received::default());
        }
        self.converse(turn)
    }

    /// Looks for the hello. False when it is not whole yet, or has to wait for a slot.
    fn understand<N: Net>(
        &mut self,
        core: &mut Core<N>,
        turn: &mut Turn<'_, N>,
    ) -> Result<bool, Failed> {
        let input = turn.scratch.sealed_in.filled();
        let out = &mut turn.scratch.sealed_out;
        let Some(hello) = hello::look(input, turn.limits.client_hello, out)? else {
            self.held = input.to_vec();
            return Ok(false);
        };
        core.deadline = core.handshake_until;
        let name = server_name(&hello);
        core.facts.server_name.clone_from(&name);
        let served = match self.listener.router.choose(&hello, name.as_deref()) {
            Choice::Serve(served) => served,
            Choice::Refuse { alert, reason } => {
                out.push(&fatal_alert(alert));
                return Err(Failed::new(reason, format!("answered with alert {alert}")));
            }
        };
        let lacks = |protocol| !hello.alpn().any(|offer| offer == protocol);
        if self.insists_on.is_some_and(lacks) {
            out.push(&fatal_alert(NO_APPLICATION_PROTOCOL));
            return Err(Failed::quietly(CloseReason::AlpnMismatch));
        }
        let permit = turn.admission.handshake_permit(core.facts.client.ip());
        if let Some(permit) = permit.as_ref().filter(|_| !served.may_resume) {
            permit.look(turn.now.mono).map_err(Failed::shed)?;
        }
        let slot = self.has_slot(served.route, core, turn);
        if matches!(&slot, Err(failed) if failed.reason == CloseReason::HelloTooLarge) {
            turn.scratch.sealed_out.push(&fatal_alert(DECODE_ERROR));
        }
        if !slot? {
            return Ok(false);
        }
        let most_held = match self.asks_for_certificate(served.route) {
            true => chain::most_held(turn.limits.certificate_chain),
            false => turn.limits.client_hello,
        };
        self.held = Vec::new();
        let may_take_early = served.config.max_early_data_size > 0;
        let mut engine = Engine::new(served.config, most_held)
            .map_err(|error| Failed::new(CloseReason::Internal, error.to_string()))?;
        let mut resuming = Resuming::new(name).with_permit(permit);
        let offers_early = hello.offers_early_data();
        if offers_early {
            engine = engine.expecting_early_data(may_take_early);
            resuming.secrets = Some(Box::default());
        }
        self.chosen = Some(Box::new(Chosen {
            route: served.route,
            engine,
            resuming: Some(resuming),
            offers_early,
            offer: served.offer,
        }));
        Ok(true)
    }

    /// Claims a slot where the backend wants one before the handshake. False when the client has to
    /// wait for it; then the hello is held.
    fn has_slot<N: Net>(
        &mut self,
        route: usize,
        core: &Core<N>,
        turn: &Turn<'_, N>,
    ) -> Result<bool, Failed> {
        let Some(pool) = self.listener.pool(route) else {
            return Err(Failed::quietly(CloseReason::Internal));
        };
        let has_one = self.slot.is_some() || core.joined.is_some();
        if pool.backend().queue == QueuePlace::AfterHandshake || has_one {
            return Ok(true);
        }
        let guest = Guest {
            source: core.facts.client.ip(),
            name: core.facts.server_name.as_deref(),
            origin: None,
        };
        let had = pool.recall(&guest, turn.now.mono);
        match pool.pick(&guest, had, &[]) {
            Pick::Slot(slot) => {
                self.slot = Some(slot);
                return Ok(true);
            }
            Pick::Nobody => {
                let detail = format!("backend {}", pool.name());
                return Err(Failed::new(CloseReason::NoServer, detail));
            }
            Pick::Full => {}
        }
        let input = turn.scratch.sealed_in.filled();
        // Nobody has anything to say behind a hello before it is answered, but early data, which
        // may be meant for another policy; small records double it at most, or are not worth a place.
        let early = self.listener.router.route(route);
        let early = early.map_or(0, |(route, _)| route.policy.early_data as usize);
        let early = early.max(USUAL_EARLY_DATA);
        if input.len() > turn.limits.client_hello + 2 * early {
            return Err(Failed::quietly(CloseReason::HelloTooLarge));
        }
        self.held = input.to_vec();
        self.wanted = Some(Rc::clone(pool));
        Ok(false)
    }

    /// Gives what came to TLS, which leaves plaintext and its answer in the scratch buffers.
    fn converse<N: Net>(&mut self, turn: &mut Turn<'_, N>) -> Result<Received, Failed> {
        let route = self.chosen.as_ref().map(|chosen| chosen.route);
        let asks = route.is_some_and(|route| self.asks_for_certificate(route));
        let Some(chosen) = &mut self.chosen else {
            return Err(Failed::quietly(CloseReason::Internal));
        };
        let engine = &mut chosen.engine;
        if let Some(resuming) = &mut chosen.resuming {
            resuming.unix_now = turn.now.unix.into();
            resuming.mono_now = turn.now.mono;
            if !matches!(engine.handshake_kind(), None | Some(HandshakeKind::Resumed)) {
                resuming.forget_opened();
            }
        }
        let scratch = &mut *turn.scratch;
        let input = scratch.sealed_in.filled_mut();
        context::lend(&mut chosen.resuming, || {
            engine.receive(input, &mut scratch.plain, &mut scratch.sealed_out)
        })
        .map_err(
            |error| match chosen.resuming.as_ref().and_then(Resuming::shed) {
                Some(reason) => Failed::shed(reason),
                None => Failed::new(reason_of_error(&error, asks), chain::explain(&error)),
            },
        )
    }

    fn asks_for_certificate(&self, route: usize) -> bool {
        let route = self.listener.router.route(route);
        route.is_some_and(|(_, configs)| configs.verifier().is_some())
    }

    /// Keys are ready: counts, and goes on to a server.
    fn leave<N: Net>(
        self,
        received: Received,
        core: &mut Core<N>,
        turn: &mut Turn<'_, N>,
    ) -> Next<N> {
        let early_data = self.early_data(received);
        let presented = self.presented(core.facts.server_name.as_deref());
        let (Some(pool), Some(mut chosen)) = (self.pool(), self.chosen) else {
            return end(CloseReason::Internal, turn);
        };
        let took = turn.now.mono.saturating_sub(core.facts.accepted);
        let took = took.saturating_sub(core.facts.queued);
        let agreed = Agreed {
            presented,
            early_data,
            ..resumed::agreed(&chosen, took)
        };
        turn.counters.handshakes_ended.add(1);
        resumed::count(&agreed, turn.counters);
        resumed::count_offer(&chosen, turn.counters);
        resumed::count_early(&chosen, received.early, turn.counters);
        let origin = chosen.resuming.as_ref().and_then(Resuming::origin_id);
        if chosen.engine.is_unfinished() {
            chosen.engine.keep(chosen.resuming.take());
        }
        core.facts.tls = Some(agreed);
        core.half_open = None;
        let session = chosen.resuming.and_then(|resuming| resuming.session);
        core.session = session.map(Box::new);
        if let Some(joined) = core.joined.take() {
            return rejoin(*joined, chosen.engine, received.ended, core, turn);
        }
        let established = Established {
            client_tls: Some(chosen.engine),
            origin,
            pool,
            client_ended: received.ended,
            slot: self.slot,
            home: None,
            errand: Errand::Relay,
        };
        Connecting::begin(established, core, turn)
    }

    /// How much early data the policy takes, if some has come.
    fn early_data(&self, received: Received) -> Option<u32> {
        let chosen = self.chosen.as_ref().filter(|_| received.early)?;
        let (route, _) = self.listener.router.route(chosen.route)?;
        Some(route.policy.early_data)
    }

    /// What there is to say of our certificate, where the server is told of it.
    fn presented(&self, name: Option<&str>) -> Option<Arc<Presented>> {
        self.pool()?
            .proxy_header()
            .filter(|version| *version == ProxyVersion::V2)?;
        let place = self.chosen.as_ref()?.resuming.as_ref()?.presented?;
        let certificates = &self.listener.config().certificates;
        certificates.keys_for(name).presented(place).cloned()
    }

    fn pool(&self) -> Option<Rc<Pool>> {
        let route = self.chosen.as_ref()?.route;
        self.listener.pool(route).cloned()
    }

    /// Tells the client why, if there is a way to, and closes.
    fn fail<N: Net>(self, failed: &Failed, core: &mut Core<N>, turn: &mut Turn<'_, N>) -> Next<N> {
        // A connect without a byte is a look whether we are there.
        if core.client.traffic.received > 0 {
            turn.failures
                .note(&core.facts, failed.reason, &failed.detail, turn.now);
        }
        if let Some(chosen) = &self.chosen {
            resumed::count_offer(chosen, turn.counters);
        }
        if failed.shed {
            core.client.socket.reset_on_close();
        }
        if failed.shed || failed.reason == CloseReason::HandshakeAborted {
            return end(failed.reason, turn);
        }
        turn.counters.handshakes_ended.add(1);
        let last = turn.scratch.sealed_out.filled().to_vec();
        Closing::begin(failed.reason, last, core, turn)
    }
}

impl From<NoHello> for Failed {
    fn from(found: NoHello) -> Self {
        Self::new(found.reason, found.detail)
    }
}

impl Failed {
    fn new(reason: CloseReason, detail: String) -> Self {
        Self {
            reason,
            detail,
            shed: false,
        }
    }

    fn shed(reason: CloseReason) -> Self {
        Self {
            shed: true,
            ..Self::quietly(reason)
        }
    }

    /// What the reason alone says is enough.
    fn quietly(reason: CloseReason) -> Self {
        Self::new(reason, String::new())
    }
}

/// Counts the end of a handshake that leads to nothing.
fn end<N: Net>(reason: CloseReason, turn: &Turn<'_, N>) -> Next<N> {
    turn.counters.handshakes_ended.add(1);
    Next::End(reason)
}

/// `asks` says whether the client has to show a certificate: nothing else that it sends behind its
/// hello is as long.
fn reason_of_error(error: &rustls::Error, asks: bool) -> CloseReason {
    match error {
        _ if asks && chain::is_excess(error) => CloseReason::ClientChain,
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
