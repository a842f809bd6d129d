//! The routing decision for a ClientHello, used until the handshake has traffic keys.

use std::rc::Rc;
use std::time::Duration;

use super::connected::Connected;
use super::context::{Net, Turn};
use super::handshake_refusal::HandshakeRefusal;
use super::listener::ListenerState;
use crate::backend::awaited::Awaited;
use crate::backend::pool::Pool;
use crate::socket::Ready;
use becket_config::choices::KernelTls;
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
    /// Connected server, if the server speaks first in the plaintext dialog.
    pub(super) server: Option<Box<Connected<N>>>,
    /// Context for callbacks of rustls. `None` while rustls runs, because it is then in a
    /// thread-local variable.
    pub(super) handshake: Option<HandshakeContext>,
    pub(super) offers_early: bool,
    /// Way to make the signature for the next handshake step; `None` if that step needs no
    /// signature.
    pub(super) offload: Option<Offload>,
    /// Copy of the ClientHello and the following bytes, while the client waits for a signature.
    pub(super) held: Vec<u8>,
}

impl<N: Net> HelloDecision<N> {
    /// Fails if the client needs a full handshake and admission control does not permit one now.
    pub(super) fn look_for_token(&self, now: Duration) -> Result<(), HandshakeRefusal> {
        let permit = self.handshake.as_ref().and_then(|it| it.permit.as_ref());
        match permit {
            Some(permit) if !self.served.may_resume => {
                permit.look(now).map_err(HandshakeRefusal::shed)
            }
            _ => Ok(()),
        }
    }

    /// Returns `true` if the client must queue for its signature: it cannot resume a session, or it
    /// may need an offloaded signature while too many are in progress. A cheap signature is made at
    /// once if no other client waits and this one has not left.
    pub(super) fn waits_for_turn(&self, ready: Ready, turn: &Turn<'_, N>) -> bool {
        let crowded = |(signing, offload): (&WorkerSigning, Offload)| {
            signing.takes(offload) && signing.is_crowded(offload)
        };
        let is_cheap = self.offload == Some(Offload::Pointless);
        let is_next = is_cheap && turn.is_alone && !ready.ended;
        !(self.served.may_resume || is_next) || turn.signing.zip(self.offload).is_some_and(crowded)
    }

    /// Requests the session that the client offers from the store, unless this was done before.
    /// Returns `None` if there is nothing to wait for.
    pub(super) fn look_up(&mut self, place: usize) -> Option<Awaited<()>> {
        let missing = self.served.missing.take()?;
        let lookups = self.listener.router.lookups()?;
        self.pool.look_up(place, missing, lookups)
    }

    /// Copies the ClientHello from the worker's buffers into `held`.
    pub(super) fn hold(&mut self, scratch: &Scratch) {
        self.held = scratch.sealed_in.filled().to_vec();
    }

    /// Copies the ClientHello back into the worker's buffers.
    pub(super) fn restore(&mut self, scratch: &mut Scratch) {
        scratch.clear();
        scratch.sealed_in.push(&std::mem::take(&mut self.held));
    }

    pub(super) fn engine(&self, limits: &LimitsSection) -> Result<Engine, HandshakeRefusal> {
        let most_held = if self.served.asks {
            chain::most_held(limits.certificate_chain)
        } else {
            limits.client_hello
        };
        let config = std::sync::Arc::clone(&self.served.config);
        let may_take_early = config.max_early_data_size > 0;
        let movable = self.listener.config().keys.kernel_tls == KernelTls::Bulk;
        let engine = Engine::new(config, most_held, movable);
        let engine = engine
            .map_err(|error| HandshakeRefusal::new(CloseReason::Internal, error.to_string()))?;
        Ok(if self.offers_early {
            engine.expecting_early_data(may_take_early)
        } else {
            engine
        })
    }
}
