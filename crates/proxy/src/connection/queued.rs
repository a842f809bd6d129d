//! A client that waits for a slot of a server.
//!
//! It waits at one of two places: when its handshake is complete, or, with `queue =
//! "before-handshake"`, when its hello was read, so that nothing is signed for a client that will be
//! turned away. The slot comes by mail, from whichever thread gave it back.
//!
//! A client that resets the connection leaves the queue at once. One that only ends its stream may
//! still read the answer, and stays, unless the backend has `abort-on-half-close`. Whoever leaves, for
//! whatever reason, is taken out of the queue when this is dropped; a slot that was on its way goes to
//! the next.
//!
//! While it waits it costs memory and nothing else: what the client sends stays in the kernel.

use std::rc::Rc;
use std::time::Duration;

use super::answering::Unanswered;
use super::closing::Closing;
use super::connect::Pending;
use super::{Context, Net, Next, Phase};
use crate::backend::backend_state::Wait;
use crate::backend::inbox::Grant;
use crate::backend::pool::Pool;
use crate::socket::Ready;
use crate::socket::Socket;
use becket_proto::close_reason::CloseReason;
use becket_tls::scratch::Scratch;

/// A client without a slot.
#[derive(Debug)]
pub(super) struct Queued<N: Net> {
    wait: Option<Wait>,
    grant: Option<Grant>,
    since: Duration,
    pool: Rc<Pool>,
    then: AfterQueue<N>,
}

/// What is done with the slot.
#[derive(Debug)]
pub(super) enum AfterQueue<N: Net> {
    /// The hello is answered.
    Handshake(Unanswered<N>),
    /// The server is connected.
    Connect(Pending),
}

impl<N: Net> Queued<N> {
    /// Joins the queue, or refuses the client if that is full.
    pub(super) fn begin(mut then: AfterQueue<N>, cx: &mut Context<'_, '_, N>) -> Next<N> {
        let (pool, tried, before) = match &mut then {
            AfterQueue::Handshake(unanswered) => {
                (Rc::clone(unanswered.pool()), [].as_slice(), None)
            }
            AfterQueue::Connect(pending) => {
                // An answer is not near.
                pending.to_client.release();
                let pool = Rc::clone(&pending.pool);
                (pool, pending.tried(), pending.arrival())
            }
        };
        let Ok(wait) = pool.wait(cx.turn.place, tried, before) else {
            let detail = format!("backend {}", &*pool.backend().keys.name);
            let reason = CloseReason::QueueFull;
            cx.note(reason, &detail);
            return then.refuse(reason, cx);
        };
        // One whom a server failed has waited for that one, too.
        let timeout = pool.backend().queue_timeout;
        cx.core.deadline = cx.turn.now.running + timeout.saturating_sub(cx.core.facts.queued);
        Next::Go(Phase::Queued(Box::new(Self {
            wait: Some(wait),
            grant: None,
            since: cx.turn.now.running,
            pool,
            then,
        })))
    }

    /// Takes the grant if it is this one's; else it is dropped, and passes its slot on.
    pub(super) fn handle_grant(&mut self, grant: Grant) -> bool {
        let mine = self.wait.take_if(|wait| wait.is_over_by(&grant));
        let Some(wait) = mine else {
            return false;
        };
        wait.end();
        self.grant = Some(grant);
        true
    }

    /// Whether this readiness can change anything.
    pub(super) fn cares_for(&self, ready: Ready) -> bool {
        let gone = ready.failed || (ready.ended && self.pool.backend().keys.abort_on_half_close);
        gone || (ready.writable && !self.lacks_keys())
    }

    /// Whether a handshake goes on when this is advanced.
    pub(super) fn is_handshaking(&self) -> bool {
        self.grant.is_some() && self.lacks_keys()
    }

    /// Whether it waits within its handshake.
    pub(super) fn lacks_keys(&self) -> bool {
        matches!(self.then, AfterQueue::Handshake(..))
    }

    pub(super) fn advance(
        mut self: Box<Self>,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Next<N> {
        let ready = cx.core.client.ready;
        let abandons = ready.ended && self.pool.backend().keys.abort_on_half_close;
        if ready.failed || abandons {
            return self.leave(cx);
        }
        if let AfterQueue::Connect(pending) = &mut self.then
            && pending.send_flight(cx).is_err()
        {
            return self.leave(cx);
        }
        let Some(grant) = self.grant.take() else {
            return Next::Wait(Phase::Queued(self));
        };
        let waited = cx.turn.now.running.saturating_sub(self.since);
        let Some(slot) = grant.slot else {
            return match self.then {
                AfterQueue::Connect(pending) => pending.give_up(cx),
                then => then.refuse(CloseReason::NoServer, cx),
            };
        };
        cx.core.facts.queued += waited;
        cx.turn.counters.queue_waited.record(waited);
        cx.turn.counters.hand_over.record(grant.begun.elapsed());
        cx.core.handshake_until = cx.turn.now.running + cx.turn.timeouts.handshake;
        match self.then {
            AfterQueue::Connect(pending) => pending.connect(slot, cx),
            AfterQueue::Handshake(unanswered) => unanswered.begin_with(slot, cx, scratch),
        }
    }

    pub(super) fn expire(self: Box<Self>, cx: &mut Context<'_, '_, N>) -> Next<N> {
        if self.grant.is_some() {
            return Next::Go(Phase::Queued(self));
        }
        let reason = CloseReason::QueueTimeout;
        let detail = format!("backend {}", &*self.pool.backend().keys.name);
        cx.note(reason, &detail);
        self.then.refuse(reason, cx)
    }

    /// The client has gone.
    fn leave(self, cx: &Context<'_, '_, N>) -> Next<N> {
        match self.then {
            AfterQueue::Handshake(..) => cx.end_handshake(CloseReason::LeftQueue),
            AfterQueue::Connect(_) => Next::End(CloseReason::LeftQueue),
        }
    }
}

impl<N: Net> AfterQueue<N> {
    /// Turns the client away. Before the handshake there is nothing to say to it that it would
    /// understand sooner than a reset, which costs the least.
    fn refuse(self, reason: CloseReason, cx: &mut Context<'_, '_, N>) -> Next<N> {
        match self {
            // No close_notify: the client must not take nothing for a whole answer.
            Self::Connect(pending) => Closing::begin(reason, pending.to_client, cx),
            Self::Handshake(..) => {
                cx.core.client.socket.reset_on_close();
                cx.end_handshake(reason)
            }
        }
    }
}
