//! The decision of a hello, from then to traffic keys.

use std::rc::Rc;
use std::time::Duration;

use super::connected::Connected;
use super::context::Net;
use super::handshake_refusal::HandshakeRefusal;
use super::listener::ListenerState;
use crate::backend::pool::Pool;
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
    /// The server that was connected before, if the client asked for TLS in clear.
    pub(super) server: Option<Box<Connected<N>>>,
    /// Lent to the thread while rustls runs.
    pub(super) handshake: Option<HandshakeContext>,
    /// The client announced early data.
    pub(super) offers_early: bool,
    /// How the signature is made that the next step may need; `None` if it needs none.
    pub(super) offload: Option<Offload>,
    /// The hello, and what came with it, while the client waits.
    pub(super) held: Vec<u8>,
}

impl<N: Net> HelloDecision<N> {
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
