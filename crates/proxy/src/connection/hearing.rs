//! From the first byte to what the hello decides.
//!
//! 1. Bytes gather until `proto::client_hello` sees a whole ClientHello.
//! 2. The [`ListenerState`] chooses route, policy and configuration by it; a refusal is one alert. Where TLS passes,
//!    the connection goes on to its server as it is (`passing.rs`).
//!
//! What was decided is answered once nothing has to be waited for (`answering.rs`). What a client can make us hold
//! meanwhile: `limits.client-hello` bytes for `timeouts.hello`.

use std::ops::ControlFlow;
use std::rc::Rc;

use becket_config::choices::ProxyTlv;
use becket_proto::client_hello::ClientHello;

use super::answering::{Decided, Unanswered};
use super::handshake::{Ahead, Handshaking, Reserved, abandon};
use super::hello::{self, Refusal, fatal_alert};
use super::passing::Passing;
use super::relay::Relaying;
use super::{Context, Net, Next, Phase, Said};
use crate::backend::pool::Pool;
use crate::connection::listener::ListenerState;
use crate::leg::Got;
use becket_keys::signing::Offload;
use becket_log::access_log::AccessSender;
use becket_proto::close_reason::CloseReason;
use becket_tls::hello_router::{Choice, Served, server_name};
use becket_tls::ja4::Ja4;
use becket_tls::scratch::{READ, Scratch};

/// A client of whom a hello is awaited.
#[derive(Debug)]
pub(super) struct Hello<N: Net> {
    listener: Rc<ListenerState>,
    held: Vec<u8>,
    /// Waits for the client to have keys, where it asked for TLS in clear.
    pub(super) relay: Option<Box<Relaying<N>>>,
    /// The protocol that the client must offer.
    insists_on: Option<&'static [u8]>,
}

/// What a hello leads to.
enum Heard {
    /// TLS ends behind us.
    Passing(Passing),
    /// It is answered here.
    Decided(Decided),
}

impl<N: Net> Hello<N> {
    pub(super) fn new(listener: Rc<ListenerState>) -> Self {
        Self {
            listener,
            held: Vec::new(),
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
            match self.hear(cx, scratch) {
                ControlFlow::Continue(hello) => self = hello,
                ControlFlow::Break(next) => return next,
            }
        }
        Next::Wait(Phase::Handshaking(Handshaking::Hello(self)))
    }

    /// Does what the hello in the buffer decides, and keeps it where it is not whole.
    fn hear(
        mut self,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> ControlFlow<Next<N>, Self> {
        let input = scratch.sealed_in.filled();
        let heard = match hello::look(input, cx.turn.limits.client_hello) {
            Ok(Some(hello)) => self.decide(&hello, cx),
            Ok(None) => {
                self.held = input.to_vec();
                return ControlFlow::Continue(self);
            }
            Err(refusal) => Err(refusal),
        };
        ControlFlow::Break(match heard {
            Ok(Heard::Decided(decided)) => {
                let reserved = self.relay.map_or(Reserved::Nothing, Reserved::Server);
                let ahead = Ahead::new(self.listener, reserved);
                Unanswered::new(decided, ahead).begin(cx, scratch)
            }
            Ok(Heard::Passing(passing)) => {
                let said = Said {
                    bytes: input,
                    ended: false,
                };
                passing.begin(said, cx)
            }
            Err(refusal) => refusal.close(cx),
        })
    }

    fn decide(
        &self,
        hello: &ClientHello<'_>,
        cx: &mut Context<'_, '_, N>,
    ) -> Result<Heard, Refusal> {
        cx.core.deadline = cx.core.handshake_until;
        let name = server_name(hello);
        cx.core.facts.server_name.clone_from(&name);
        let choice = self.listener.router.choose(hello, name.as_deref());
        if self.tells_ja4(&choice, cx) {
            cx.core.facts.ja4 = Ja4::of(hello);
        }
        match choice {
            Choice::Serve(served) => self.serve(served, hello, name, cx).map(Heard::Decided),
            Choice::Pass(route) => {
                let pool = self.listener.pool(route);
                let passing = pool.map(|pool| Passing::new(hello, pool, cx.turn.now.mono));
                let passing = passing.map(Heard::Passing);
                passing.ok_or_else(|| Refusal::new(CloseReason::Internal, String::new()))
            }
            Choice::Refuse { alert, reason } => Err(Refusal::by_alert(alert, reason)),
        }
    }

    /// Whether the access log or the server is told the client's fingerprint.
    fn tells_ja4(&self, choice: &Choice, cx: &Context<'_, '_, N>) -> bool {
        let route = match choice {
            Choice::Serve(served) => Some(served.route),
            Choice::Pass(route) => Some(*route),
            Choice::Refuse { .. } => None,
        };
        let pool = route.and_then(|route| self.listener.pool(route));
        let tells = |pool: &Rc<Pool>| pool.backend().keys.proxy_tlvs.contains(&ProxyTlv::Ja4);
        cx.turn.access.is_some_and(AccessSender::has_ja4) || pool.is_some_and(tells)
    }

    fn serve(
        &self,
        served: Served,
        hello: &ClientHello<'_>,
        name: Option<Box<str>>,
        cx: &Context<'_, '_, N>,
    ) -> Result<Decided, Refusal> {
        let lacks = |protocol| !hello.alpn().any(|offer| offer == protocol);
        if self.insists_on.is_some_and(lacks) {
            return Err(Refusal::new(CloseReason::AlpnMismatch, String::new())
                .answering(&fatal_alert(NO_APPLICATION_PROTOCOL)));
        }
        let Some(pool) = self.listener.pool(served.route) else {
            return Err(Refusal::new(CloseReason::Internal, String::new()));
        };
        let client = cx.core.facts.client.ip();
        let certificates = &self.listener.config().certificates;
        let offload = certificates.keys_for(name.as_deref()).offload();
        let offload = match cx.turn.signing {
            Some(signing) => signing.limit(offload),
            None => offload.min(Offload::Never),
        };
        let decided = Decided {
            pool: Rc::clone(pool),
            served,
            name,
            offers_early: hello.offers_early_data(),
            permit: cx.turn.admission.handshake_permit(client),
            offload,
        };
        decided.look_for_token(cx.turn.now.mono)?;
        Ok(decided)
    }
}

/// RFC 7301, section 3.2.
const NO_APPLICATION_PROTOCOL: u8 = 120;
