//! Reads the ClientHello and makes the routing decision.
//!
//! 1. Bytes are collected until `proto::client_hello` finds a whole ClientHello. Plaintext HTTP is
//!    answered with status 400, malformed TLS with a fatal alert.
//! 2. The [`ListenerState`] chooses route, policy and configuration, or rejects the client with one
//!    alert. If the route passes TLS through, the ClientHello and all following bytes go to the
//!    server unchanged.
//!
//! Until the ClientHello is whole, a client can occupy `limits.client-hello` bytes of memory for
//! `timeouts.hello`.

use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;

use becket_config::choices::ProxyTlv;
use becket_config::listener::ListenMode;
use becket_proto::client_hello::{ClientHello, Malformed, NotHello, peek};
use becket_proto::plain_http::PLAIN_HTTP_ANSWER;
use rustls::ServerConfig;

use super::connected::Connected;
use super::context::{Context, EarlyBytes, Net};
use super::decision::HelloDecision;
use super::handshake_refusal::{DECODE_ERROR, HandshakeRefusal, fatal_alert};
use super::learner::{Learner, home};
use super::listener::ListenerState;
use super::pending::{Pending, Purpose};
use super::reached::{Advance, Reached};
use crate::backend::pool::Pool;
use crate::leg::Got;
use becket_keys::signing::Offload;
use becket_proto::close_reason::CloseReason;
use becket_tls::challenges::is_of_authority;
use becket_tls::hello_router::{Choice, Served, server_name};
use becket_tls::ja4::Ja4;
use becket_tls::names;
use becket_tls::scratch::{READ, Scratch};
use becket_tls::sessions::context::{HandshakeContext, ServerCertificate};

/// A client whose ClientHello is not complete.
#[derive(Debug)]
pub(super) struct Hello<N: Net> {
    listener: Rc<ListenerState>,
    held: Vec<u8>,
    /// The connected server, in protocols in which the server speaks first.
    pub(super) server: Option<Box<Connected<N>>>,
    /// ALPN protocol that the client must offer, if any.
    insists_on: Option<&'static [u8]>,
}

#[expect(
    clippy::large_enum_variant,
    reason = "it lives for one call; a box would be an allocation for each client"
)]
enum HelloAnswer<N: Net> {
    Here(Box<HelloDecision<N>>),
    /// The server terminates TLS, so the bytes pass through.
    Passing(Pending),
}

impl<N: Net> Hello<N> {
    pub(super) fn new(listener: Rc<ListenerState>) -> Self {
        Self {
            listener,
            held: Vec::new(),
            server: None,
            insists_on: None,
        }
    }

    /// Creates the phase for a client that requested TLS in plaintext. `server` is the connected
    /// server, in protocols in which the server speaks first.
    pub(super) fn after_dialog(
        listener: Rc<ListenerState>,
        server: Option<Box<Connected<N>>>,
        insists_on: Option<&'static [u8]>,
    ) -> Self {
        Self {
            server,
            insists_on,
            ..Self::new(listener)
        }
    }

    pub(super) fn advance(
        mut self,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Advance<Self, N> {
        while cx.core.client.ready.readable {
            scratch.clear();
            let input = &mut scratch.sealed_in;
            input.push(&self.held);
            match cx.receive(input, READ) {
                Ok(Got::Bytes(_)) => {}
                Ok(Got::Nothing) => break,
                Ok(Got::End) | Err(_) => return Advance::Reached(Reached::abandoned(cx)),
            }
            match self.handle(scratch.sealed_in.filled(), cx) {
                ControlFlow::Continue(hello) => self = hello,
                ControlFlow::Break(reached) => return Advance::Reached(reached),
            }
        }
        Advance::Wait(self)
    }

    pub(super) fn expire(self, cx: &mut Context<'_, '_, N>) -> Advance<Self, N> {
        Advance::Reached(Reached::late_handshake(CloseReason::HelloTimeout, cx))
    }

    /// Makes the routing decision for a whole ClientHello in `input`, or stores a partial
    /// ClientHello.
    fn handle(
        mut self,
        input: &[u8],
        cx: &mut Context<'_, '_, N>,
    ) -> ControlFlow<Reached<N>, Self> {
        let answer = match look(input, cx.turn.limits.client_hello) {
            Ok(Some(hello)) => self.decide(&hello, cx),
            Ok(None) => {
                self.held = input.to_vec();
                return ControlFlow::Continue(self);
            }
            Err(refusal) => Err(refusal),
        };
        ControlFlow::Break(match answer {
            Ok(HelloAnswer::Here(decision)) => Reached::Hello(decision),
            Ok(HelloAnswer::Passing(pending)) => {
                let said = EarlyBytes {
                    bytes: input,
                    ended: false,
                };
                cx.turn.counters.handshakes_ended.add(1);
                cx.core.half_open = None;
                Reached::pending(pending, said, cx)
            }
            Err(refusal) => Reached::refused(refusal, cx),
        })
    }

    fn decide(
        &mut self,
        hello: &ClientHello<'_>,
        cx: &mut Context<'_, '_, N>,
    ) -> Result<HelloAnswer<N>, HandshakeRefusal> {
        cx.core.deadline = cx.core.handshake_until;
        let name = server_name(hello);
        cx.core.facts.server_name.clone_from(&name);
        let certificates = &self.listener.config().certificates;
        let address = match name {
            Some(_) => None,
            None => certificates.name_by_address(|| cx.core.arrived_at()),
        };
        let certificate = ServerCertificate {
            server_name: name,
            address,
            presented: None,
        };
        if let Some(config) = self.challenge(hello, certificate.name(), cx) {
            return self.answer_challenge(config, certificate);
        }
        let choice = self.listener.router.choose(hello, certificate.name());
        let route = match &choice {
            Choice::Serve(served) => served.route,
            Choice::Pass(route) => *route,
            Choice::Refuse { alert, reason } => {
                if *reason == CloseReason::UnknownName {
                    self.note_wanted(&certificate, cx);
                }
                if cx.turn.access.is_some() {
                    cx.core.facts.ja4 = Ja4::of(hello);
                }
                return Err(HandshakeRefusal::by_alert(*alert, *reason));
            }
        };
        let Some(pool) = self.listener.pool(route).cloned() else {
            return Err(HandshakeRefusal::new(CloseReason::Internal, String::new()));
        };
        if needs_ja4(&pool, cx) {
            cx.core.facts.ja4 = Ja4::of(hello);
        }
        let (asked, ja4) = (certificate.name(), cx.core.facts.ja4);
        let admission = cx.turn.admission;
        let keys = admission.keys_of_hello(self.listener.config(), asked, ja4);
        let keys = keys.map_err(HandshakeRefusal::shed)?;
        for key in &keys {
            let entered = admission.enter(key.clone(), &mut cx.core.permit, cx.turn.now.mono);
            entered.map_err(HandshakeRefusal::shed)?;
        }
        if let Choice::Serve(served) = choice {
            self.note_wanted(&certificate, cx);
            let handshake = HandshakeContext {
                permit: admission.handshake_permit(cx.core.facts.client.ip(), keys),
                certificate,
                ..HandshakeContext::new(None)
            };
            let decision = self.serve(served, pool, (hello, handshake), cx)?;
            return Ok(HelloAnswer::Here(Box::new(decision)));
        }
        let learner = Learner::new(hello, &pool).map(Box::new);
        let home = home(hello, &pool, cx.turn.now.mono);
        let mut pending = Pending::new(pool, Purpose::Pass(learner));
        pending.home = home;
        Ok(HelloAnswer::Passing(pending))
    }

    /// Returns the configuration that answers the challenge of an ACME authority, if one is pending
    /// for this name. Authorities never ask for TLS in plaintext first.
    fn challenge(
        &self,
        hello: &ClientHello<'_>,
        name: Option<&str>,
        cx: &Context<'_, '_, N>,
    ) -> Option<Arc<ServerConfig>> {
        let is_direct = self.listener.config().keys.speaks() == ListenMode::Tls;
        if !is_direct || !is_of_authority(hello) {
            return None;
        }
        cx.turn.challenges.config(name?, cx.turn.now.mono)
    }

    /// Notes a name for which a certificate can be ordered.
    fn note_wanted(&self, certificate: &ServerCertificate, cx: &Context<'_, '_, N>) {
        let config = self.listener.config();
        if let (Some(on_demand), Some(name)) = (&config.on_demand, &certificate.server_name)
            && config.certificates.named(name).is_none()
            && on_demand.lists(name)
        {
            let wanted = &cx.turn.challenges.wanted_names;
            wanted.note(name, cx.turn.now.mono);
        }
    }

    fn answer_challenge(
        &self,
        config: Arc<ServerConfig>,
        certificate: ServerCertificate,
    ) -> Result<HelloAnswer<N>, HandshakeRefusal> {
        let served = Served::challenge(config);
        let Some(pool) = self.listener.pool(served.route).cloned() else {
            return Err(HandshakeRefusal::new(CloseReason::Internal, String::new()));
        };
        let handshake = HandshakeContext {
            certificate,
            ..HandshakeContext::new(None)
        };
        Ok(HelloAnswer::Here(Box::new(HelloDecision {
            listener: Rc::clone(&self.listener),
            pool,
            served,
            server: None,
            handshake: Some(handshake),
            offers_early: false,
            offload: Some(Offload::Pointless),
            held: Vec::new(),
        })))
    }

    fn serve(
        &mut self,
        served: Served,
        pool: Rc<Pool>,
        (hello, mut handshake): (&ClientHello<'_>, HandshakeContext),
        cx: &Context<'_, '_, N>,
    ) -> Result<HelloDecision<N>, HandshakeRefusal> {
        let lacks = |protocol| !hello.alpn().any(|offer| offer == protocol);
        if self.insists_on.is_some_and(lacks) {
            return Err(
                HandshakeRefusal::new(CloseReason::AlpnMismatch, String::new())
                    .answering(&fatal_alert(NO_APPLICATION_PROTOCOL)),
            );
        }
        let certificates = &self.listener.config().certificates;
        let name = handshake.certificate.name();
        let offload = certificates.keys_for(name).offload();
        let offload = match cx.turn.signing {
            Some(signing) => signing.limit(offload),
            None => offload.min(Offload::Never),
        };
        let offers_early = hello.offers_early_data();
        handshake.secrets = offers_early.then(Box::default);
        let decision = HelloDecision {
            listener: Rc::clone(&self.listener),
            pool,
            served,
            server: self.server.take(),
            handshake: Some(handshake),
            offers_early,
            offload: Some(offload),
            held: Vec::new(),
        };
        decision.look_for_token(cx.turn.now.mono)?;
        Ok(decision)
    }
}

/// Returns `true` if the access log, a server or a limit needs the client's fingerprint.
fn needs_ja4<N: Net>(pool: &Pool, cx: &Context<'_, '_, N>) -> bool {
    cx.turn.access.is_some()
        || cx.turn.admission.needs_ja4()
        || pool.backend().keys.proxy_tlvs.contains(&ProxyTlv::Ja4)
}

/// Parses a whole ClientHello of at most `limit` bytes. Returns `None` if more bytes are needed.
///
/// # Errors
///
/// Fails if the data is not a ClientHello, or if it is too long.
fn look(input: &[u8], limit: usize) -> Result<Option<ClientHello<'_>>, HandshakeRefusal> {
    match peek(input) {
        Ok(Some(hello)) if hello.wire_len() <= limit => Ok(Some(hello)),
        Ok(None) if input.len() < limit => Ok(None),
        Ok(_) => {
            let detail = format!("larger than the limit of {limit} bytes");
            Err(HandshakeRefusal::new(CloseReason::HelloTooLarge, detail)
                .answering(&fatal_alert(DECODE_ERROR)))
        }
        Err(other) => {
            let detail = match other {
                NotHello::Alert { description, .. } => {
                    format!("the client sent alert {}", names::alert(description.into()))
                }
                other => other.to_string(),
            };
            let refusal = HandshakeRefusal::new(reason_of(other), detail);
            Err(match other.alert() {
                Some(alert) => refusal.answering(&fatal_alert(alert)),
                None if other == NotHello::PlainHttp => refusal.answering(PLAIN_HTTP_ANSWER),
                None => refusal,
            })
        }
    }
}

fn reason_of(other: NotHello) -> CloseReason {
    match other {
        NotHello::PlainHttp => CloseReason::PlainHttp,
        NotHello::NotTls | NotHello::ProxyHeader => CloseReason::NotTls,
        NotHello::Malformed(Malformed::OversizedHello) => CloseReason::HelloTooLarge,
        _ => CloseReason::HandshakeFailed,
    }
}

/// Alert `no_application_protocol` (RFC 7301, section 3.2).
const NO_APPLICATION_PROTOCOL: u8 = 120;
