//! From what a hello decided to its answer.
//!
//! 1. Where the answer needs a signature, the client waits for its turn: the worker signs for some at a
//!    time, and looks at its sockets in between. A client that has gone by then is not signed for.
//! 2. Where the backend asks for that, a slot of a server is claimed now, or waited for (`queued.rs`).
//!
//! What was decided is kept meanwhile, and nothing of the hello is looked at again, but whether there is still a token
//! for it. What follows is the handshake itself (`handshake.rs`). What a client can make us hold: `limits.client-hello` bytes
//! and what came with them, early data at most.

use std::mem;
use std::rc::Rc;
use std::time::Duration;

use becket_config::choices::QueuePlace;

use super::connect::pick_hint;
use super::handshake::{Ahead, Chosen, Flights, Handshaking, Reserved};
use super::hello::{DECODE_ERROR, Refusal, fatal_alert};
use super::queued::{AfterQueue, Queued};
use super::{Context, Net, Next, Phase};
use crate::backend::pool::{Pick, Pool};
use crate::backend::slot::Slot;
use becket_keys::signing::Offload;
use becket_keys::signing::worker::WorkerSigning;
use becket_proto::close_reason::CloseReason;
use becket_tls::admission::HandshakePermit;
use becket_tls::chain;
use becket_tls::engine::Engine;
use becket_tls::hello_router::Served;
use becket_tls::scratch::Scratch;
use becket_tls::sessions::context::Resuming;

/// What a hello decided.
#[derive(Debug)]
pub(super) struct Decided {
    pub(super) pool: Rc<Pool>,
    pub(super) served: Served,
    pub(super) name: Option<Box<str>>,
    /// The client announced early data.
    pub(super) offers_early: bool,
    /// What a full handshake has to pay; nothing where those are not limited.
    pub(super) permit: Option<HandshakePermit>,
    /// Whether its signature is handed over.
    pub(super) offload: Offload,
}

/// A client whose hello is whole, and is not answered yet.
#[derive(Debug)]
pub(super) struct Unanswered<N: Net> {
    decided: Decided,
    /// All that has come, while the client waits.
    held: Vec<u8>,
    pub(super) ahead: Ahead<N>,
}

/// Whether there is a server for a client.
enum Claimed {
    /// Or none is needed before the handshake.
    Yes,
    /// All have as many connections as they may have.
    Full,
}

impl Decided {
    /// Looks whether there is a token for a handshake that can only be a full one.
    pub(super) fn look_for_token(&self, now: Duration) -> Result<(), Refusal> {
        match &self.permit {
            Some(permit) if !self.served.may_resume => permit.look(now).map_err(Refusal::shed),
            _ => Ok(()),
        }
    }

    /// Whether the client waits for its turn: it needs a signature for sure, or might need one where too many are under way.
    fn waits(&self, signing: Option<&WorkerSigning>) -> bool {
        let crowded = |signing: &WorkerSigning| {
            signing.takes(self.offload) && signing.is_crowded(self.offload)
        };
        !self.served.may_resume || signing.is_some_and(crowded)
    }

    fn choose(self, client_hello: usize, certificate_chain: usize) -> Result<Box<Chosen>, Refusal> {
        let served = self.served;
        let most_held = if served.asks {
            chain::most_held(certificate_chain)
        } else {
            client_hello
        };
        let may_take_early = served.config.max_early_data_size > 0;
        let engine = Engine::new(served.config, most_held);
        let mut engine =
            engine.map_err(|error| Refusal::new(CloseReason::Internal, error.to_string()))?;
        let mut resuming = Resuming::new(self.name).with_permit(self.permit);
        if self.offers_early {
            engine = engine.expecting_early_data(may_take_early);
            resuming.secrets = Some(Box::default());
        }
        Ok(Box::new(Chosen {
            pool: self.pool,
            engine,
            resuming: Some(resuming),
            offers_early: self.offers_early,
            begins: true,
            signs: Some(self.offload),
            offer: served.offer,
            early_data: served.early_data,
            asks: served.asks,
            trial: served.trial,
        }))
    }
}

impl<N: Net> Unanswered<N> {
    pub(super) fn new(decided: Decided, ahead: Ahead<N>) -> Self {
        Self {
            decided,
            held: Vec::new(),
            ahead,
        }
    }

    pub(super) fn pool(&self) -> &Rc<Pool> {
        &self.decided.pool
    }

    pub(super) fn offload(&self) -> Offload {
        self.decided.offload
    }

    /// Answers the hello that is in the buffer, or has the client wait for its turn.
    pub(super) fn begin(self, cx: &mut Context<'_, '_, N>, scratch: &mut Scratch) -> Next<N> {
        if self.decided.waits(cx.turn.signing) {
            let waiting = Handshaking::Unsigned(Box::new(self.keeping(scratch)));
            Next::Wait(Phase::Handshaking(waiting))
        } else {
            self.answer(cx, scratch)
        }
    }

    /// Goes on with a slot, for which the client has waited.
    pub(super) fn begin_with(
        mut self,
        slot: Slot,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Next<N> {
        self.ahead.reserved = Reserved::Slot(slot);
        self.restore(scratch);
        self.begin(cx, scratch)
    }

    /// Goes on with a signature: it is the client's turn.
    pub(super) fn sign(
        mut self: Box<Self>,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Next<N> {
        // It may have been somebody else's meanwhile.
        if let Err(refusal) = self.decided.look_for_token(cx.turn.now.mono) {
            return refusal.close(cx);
        }
        self.restore(scratch);
        self.answer(cx, scratch)
    }

    fn keeping(mut self, scratch: &Scratch) -> Self {
        self.held = scratch.sealed_in.filled().to_vec();
        self
    }

    fn restore(&mut self, scratch: &mut Scratch) {
        scratch.clear();
        scratch.sealed_in.push(&mem::take(&mut self.held));
    }

    fn answer(mut self, cx: &mut Context<'_, '_, N>, scratch: &mut Scratch) -> Next<N> {
        match self.claim(scratch.sealed_in.filled().len(), cx) {
            Ok(Claimed::Yes) => {}
            Ok(Claimed::Full) => {
                return Queued::begin(AfterQueue::Handshake(self.keeping(scratch)), cx);
            }
            Err(refusal) => return refusal.close(cx),
        }
        let limits = cx.turn.limits;
        let chosen = (self.decided).choose(limits.client_hello, limits.certificate_chain);
        let chosen = match chosen {
            Ok(chosen) => chosen,
            Err(refusal) => return refusal.close(cx),
        };
        let flights = Flights {
            chosen,
            ahead: self.ahead,
        };
        flights.begin(cx, scratch)
    }

    /// Claims a slot of a server where the backend wants that before the handshake. `held` bytes have come.
    fn claim(&mut self, held: usize, cx: &Context<'_, '_, N>) -> Result<Claimed, Refusal> {
        let pool = &self.decided.pool;
        let has_one = !matches!(self.ahead.reserved, Reserved::Nothing);
        if has_one || pool.backend().keys.queue != QueuePlace::BeforeHandshake {
            return Ok(Claimed::Yes);
        }
        let hint = pick_hint(None, cx.core);
        let had = pool.recall(&hint, cx.turn.now.mono);
        match pool.pick(&hint, had, &[]) {
            Pick::Slot(slot) => {
                self.ahead.reserved = Reserved::Slot(slot);
                return Ok(Claimed::Yes);
            }
            Pick::Nobody => {
                let detail = format!("backend {}", &*pool.backend().keys.name);
                return Err(Refusal::new(CloseReason::NoServer, detail));
            }
            Pick::Full => {}
        }
        // Nobody has anything to say behind a hello before it is answered, but early data, which may be
        // meant for another policy; small records double it at most, or are not worth a place.
        let early = USUAL_EARLY_DATA.max(self.decided.served.early_data as usize);
        if held > cx.turn.limits.client_hello + 2 * early {
            let alert = fatal_alert(DECODE_ERROR);
            return Err(Refusal::new(CloseReason::HelloTooLarge, String::new()).answering(&alert));
        }
        Ok(Claimed::Full)
    }
}

/// What OpenSSL and nginx let clients send early if nobody says otherwise.
const USUAL_EARLY_DATA: usize = 16 * 1024;
