//! The decision of a hello, from then to traffic keys.

use std::rc::Rc;
use std::time::Duration;

use becket_config::choices::QueuePlace;

use super::connected::Connected;
use super::context::{Context, Net};
use super::handshake_refusal::{DECODE_ERROR, HandshakeRefusal, fatal_alert};
use super::listener::ListenerState;
use super::pending::pick_hint;
use crate::backend::backend_state::Pick;
use crate::backend::pool::Pool;
use crate::backend::slot::ServerSlot;
use becket_config::process::LimitsSection;
use becket_keys::signing::Offload;
use becket_keys::signing::worker::WorkerSigning;
use becket_proto::close_reason::CloseReason;
use becket_tls::chain;
use becket_tls::engine::Engine;
use becket_tls::hello_router::Served;
use becket_tls::scratch::Scratch;
use becket_tls::sessions::context::HandshakeContext;

#[derive(Debug)]
pub(super) struct HelloDecision<N: Net> {
    pub(super) listener: Rc<ListenerState>,
    pub(super) pool: Rc<Pool>,
    pub(super) served: Served,
    pub(super) reserved: Reserved<N>,
    /// Lent to the thread while rustls runs.
    pub(super) handshake: Option<HandshakeContext>,
    /// The client announced early data.
    pub(super) offers_early: bool,
    /// How the signature is made that the next step may need; `None` if it needs none.
    pub(super) offload: Option<Offload>,
    /// The hello, and what came with it, while the client waits.
    pub(super) held: Vec<u8>,
}

/// The part of a server that a client has before its handshake is done.
#[derive(Debug)]
pub(super) enum Reserved<N: Net> {
    Nothing,
    /// With `queue = "before-handshake"`.
    Slot(ServerSlot),
    /// If clients ask for TLS in clear.
    Server(Box<Connected<N>>),
}

impl<N: Net> HelloDecision<N> {
    /// The server that was connected before the handshake.
    pub(super) fn server(&self) -> Option<&Connected<N>> {
        match &self.reserved {
            Reserved::Server(server) => Some(server),
            Reserved::Nothing | Reserved::Slot(_) => None,
        }
    }

    pub(super) fn server_mut(&mut self) -> Option<&mut Connected<N>> {
        match &mut self.reserved {
            Reserved::Server(server) => Some(server),
            Reserved::Nothing | Reserved::Slot(_) => None,
        }
    }

    /// Looks whether there is a token for a handshake that can only be a full one.
    pub(super) fn look_for_token(&self, now: Duration) -> Result<(), HandshakeRefusal> {
        let permit = self.handshake.as_ref().and_then(|it| it.permit.as_ref());
        match permit {
            Some(permit) if !self.served.may_resume => {
                permit.look(now).map_err(HandshakeRefusal::shed)
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the client waits for its turn: it needs a signature for sure, or might need one while too many are under way.
    pub(super) fn waits_for_turn(&self, signing: Option<&WorkerSigning>) -> bool {
        let crowded = |(signing, offload): (&WorkerSigning, Offload)| {
            signing.takes(offload) && signing.is_crowded(offload)
        };
        !self.served.may_resume || signing.zip(self.offload).is_some_and(crowded)
    }

    /// Keeps the hello that is in the worker's buffers.
    pub(super) fn hold(&mut self, scratch: &Scratch) {
        self.held = scratch.sealed_in.filled().to_vec();
    }

    /// Puts the hello back into the worker's buffers.
    pub(super) fn restore(&mut self, scratch: &mut Scratch) {
        scratch.clear();
        scratch.sealed_in.push(&std::mem::take(&mut self.held));
    }

    /// Claims a slot of a server if the backend wants that before the handshake. `held` bytes have come. False if every server is full.
    pub(super) fn claim(
        &mut self,
        held: usize,
        cx: &Context<'_, '_, N>,
    ) -> Result<bool, HandshakeRefusal> {
        let has_one = !matches!(self.reserved, Reserved::Nothing);
        if has_one || self.pool.backend().keys.queue != QueuePlace::BeforeHandshake {
            return Ok(true);
        }
        let hint = pick_hint(None, cx.core);
        let had = self.pool.recall(&hint, cx.turn.now.mono);
        match self.pool.pick(&hint, had, &[]) {
            Pick::Slot(slot) => {
                self.reserved = Reserved::Slot(slot);
                return Ok(true);
            }
            Pick::Nobody => {
                let detail = format!("backend {}", &*self.pool.backend().keys.name);
                return Err(HandshakeRefusal::new(CloseReason::NoServer, detail));
            }
            Pick::Full => {}
        }
        // A client has nothing to send behind a hello before it is answered, but early data, which may be
        // meant for another policy; small records double it at most, or are not worth a place.
        let early = USUAL_EARLY_DATA.max(self.served.early_data as usize);
        if held > cx.turn.limits.client_hello + 2 * early {
            let alert = fatal_alert(DECODE_ERROR);
            return Err(
                HandshakeRefusal::new(CloseReason::HelloTooLarge, String::new()).answering(&alert),
            );
        }
        Ok(false)
    }

    /// Makes the engine that answers the hello.
    pub(super) fn engine(&self, limits: &LimitsSection) -> Result<Engine, HandshakeRefusal> {
        let most_held = if self.served.asks {
            chain::most_held(limits.certificate_chain)
        } else {
            limits.client_hello
        };
        let config = std::sync::Arc::clone(&self.served.config);
        let may_take_early = config.max_early_data_size > 0;
        let engine = Engine::new(config, most_held);
        let engine = engine
            .map_err(|error| HandshakeRefusal::new(CloseReason::Internal, error.to_string()))?;
        Ok(if self.offers_early {
            engine.expecting_early_data(may_take_early)
        } else {
            engine
        })
    }
}

/// Early data that OpenSSL and nginx let clients send by default.
const USUAL_EARLY_DATA: usize = 16 * 1024;
