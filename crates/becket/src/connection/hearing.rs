//! From the first byte to what the hello decides.
//!
//! 1. Bytes gather until `proto::client_hello` sees a whole ClientHello.
//! 2. The [`ListenerState`] chooses route, policy and configuration by it; a refusal is one alert. Where TLS passes,
//!    the connection goes on to its server as it is (`passing.rs`). Where the backend
//!    asks for that, a slot of a server is claimed now, or waited for (`queued.rs`).
//! 3. Where the answer needs a signature, the client waits for its turn: the worker signs for one at a
//!    time, and looks at its sockets in between. A client that has gone by then is not signed for.
//!
//! What follows is the handshake itself (`handshake.rs`). What a client can make us hold meanwhile:
//! `limits.client-hello` bytes for `timeouts.hello`.

use std::mem;
use std::ops::ControlFlow;
use std::rc::Rc;

use becket_config::choices::QueuePlace;
use becket_proto::client_hello::ClientHello;

use super::connect::pick_hint;
use super::handshake::{Chosen, Flights, Handshaking, Reserved, abandon};
use super::hello::{self, DECODE_ERROR, Refusal, fatal_alert};
use super::passing::Passing;
use super::queued::{AfterQueue, Queued};
use super::relay::Relaying;
use super::{Context, Net, Next, Phase, Said};
use crate::backend::pool::{Pick, Pool};
use crate::backend::slot::Slot;
use crate::close_reason::CloseReason;
use crate::connection::listener::ListenerState;
use crate::leg::Got;
use crate::scratch::{READ, Scratch};
use crate::sessions::context::Resuming;
use crate::signing::worker::WorkerSigning;
use crate::tls::chain;
use crate::tls::engine::Engine;
use crate::tls::hello_router::{Choice, Served, server_name};

/// A client of whom a hello is awaited.
#[derive(Debug)]
pub(super) struct Hello<N: Net> {
    listener: Rc<ListenerState>,
    held: Vec<u8>,
    /// One that the client has waited for.
    slot: Option<Slot>,
    /// Waits for the client to have keys, where it asked for TLS in clear.
    pub(super) relay: Option<Box<Relaying<N>>>,
    /// The protocol that the client must offer.
    insists_on: Option<&'static [u8]>,
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

impl<N: Net> Hello<N> {
    pub(super) fn new(listener: Rc<ListenerState>) -> Self {
        Self {
            listener,
            held: Vec::new(),
            slot: None,
            relay: None,
            insists_on: None,
        }
    }

    /// Starts for a client that has asked for TLS in clear, and whose server is connected.
    pub(super) fn behind_talk(
        listener: Rc<ListenerState>,
        relay: Box<Relaying<N>>,
        insists_on: Option<&'static [u8]>,
    ) -> Self {
        Self {
            relay: Some(relay),
            insists_on,
            ..Self::new(listener)
        }
    }

    pub(super) fn advance(mut self, cx: &mut Context<'_, '_, N>, scratch: &mut Scratch) -> Next<N> {
        while cx.core.client.ready.readable {
            scratch.clear();
            let input = &mut scratch.sealed_in;
            input.push(&self.held);
            match cx.receive(input, READ) {
                Ok(Got::Bytes(_)) => {}
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
        let reserved = match (self.relay, self.slot) {
            (Some(relay), _) => Reserved::Server(relay),
            (None, Some(slot)) => Reserved::Slot(slot),
            (None, None) => Reserved::Nothing,
        };
        Flights::new(self.listener, chosen, reserved)
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
        let signing = cx.turn.signing.filter(|signing| {
            let certificates = &self.listener.config().certificates;
            signing.takes(certificates.keys_for(name.as_deref()).offload())
        });
        let crowded = signing.is_some_and(WorkerSigning::is_crowded);
        if !may_sign && (!served.may_resume || crowded) {
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
            begins: true,
            signs: false,
            offer: served.offer,
            early_data,
            asks: served.asks,
            defers: signing.is_some(),
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

/// What OpenSSL and nginx let clients send early if nobody says otherwise.
const USUAL_EARLY_DATA: usize = 16 * 1024;
/// RFC 7301, section 3.2.
const NO_APPLICATION_PROTOCOL: u8 = 120;
