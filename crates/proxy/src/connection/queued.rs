//! A client that waits for a slot of a server.
//!
//! It waits at one of two places: when its handshake is complete, or, with `queue =
//! "before-handshake"`, when its hello was read, so that nothing is signed for a client that will be
//! turned away. The slot comes by mail, from whichever thread gave it back.
//!
//! A client that resets the connection leaves the queue at once. One that only ends its stream may
//! still read the answer, and stays, unless the backend has `abort-on-close`. A client that leaves is taken out of the queue when this
//! is dropped; a slot that was on its way goes to the next.
//!
//! While it waits it costs memory and nothing else: what the client sends stays in the kernel.

use std::rc::Rc;
use std::time::Duration;

use super::context::{Context, Net};
use super::decision::{HelloDecision, Reserved};
use super::pending::Pending;
use super::reached::{Advance, Reached};
use crate::backend::backend_state::Wait;
use crate::backend::inbox::Grant;
use crate::backend::pool::Pool;
use crate::socket::{Ready, StreamSocket};
use becket_proto::close_reason::CloseReason;
use becket_tls::scratch::Scratch;

/// A client without a slot.
#[derive(Debug)]
pub(super) struct Queued<N: Net> {
    wait: Option<Wait>,
    grant: Option<Grant>,
    since: Duration,
    pool: Rc<Pool>,
    client: QueuedClient<N>,
}

/// The client, by the use that it has for the slot.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a queued client is on the heap already"
)]
pub(super) enum QueuedClient<N: Net> {
    /// The hello is answered.
    Hello(Box<HelloDecision<N>>),
    /// The server is connected.
    Pending(Pending),
}

impl<N: Net> Queued<N> {
    /// Joins the queue, or refuses the client if that is full.
    pub(super) fn join(
        mut client: QueuedClient<N>,
        cx: &mut Context<'_, '_, N>,
    ) -> Advance<Box<Self>, N> {
        let (pool, tried, before) = match &mut client {
            QueuedClient::Hello(decision) => (Rc::clone(&decision.pool), [].as_slice(), None),
            QueuedClient::Pending(pending) => {
                // An answer is not near.
                pending.to_client.release();
                let pool = Rc::clone(&pending.pool);
                (pool, pending.tried(), pending.arrival)
            }
        };
        let Ok(wait) = pool.wait(cx.turn.place, tried, before) else {
            return client.refuse_and_note(CloseReason::QueueFull, &pool, cx);
        };
        // A client that a server failed has waited for that one, too.
        let timeout = pool.backend().queue_timeout;
        cx.core.deadline = cx.turn.now.running + timeout.saturating_sub(cx.core.facts.queued);
        Advance::Go(Box::new(Self {
            wait: Some(wait),
            grant: None,
            since: cx.turn.now.running,
            pool,
            client,
        }))
    }

    /// Takes the grant if it is this one's; otherwise it is dropped, and passes its slot on.
    pub(super) fn handle_grant(&mut self, grant: Grant) -> bool {
        let mine = self.wait.take_if(|wait| wait.is_over_by(&grant));
        let Some(wait) = mine else {
            return false;
        };
        wait.end();
        self.grant = Some(grant);
        true
    }

    /// Returns whether this readiness can change anything.
    pub(super) fn cares_for(&self, ready: Ready) -> bool {
        self.has_left(ready) || (ready.writable && !self.lacks_keys())
    }

    fn has_left(&self, ready: Ready) -> bool {
        ready.failed || (ready.ended && self.pool.backend().keys.abort_on_close)
    }

    /// Returns whether a handshake continues when this is advanced.
    pub(super) fn is_handshaking(&self) -> bool {
        self.grant.is_some() && self.lacks_keys()
    }

    /// Returns whether it waits within its handshake.
    pub(super) fn lacks_keys(&self) -> bool {
        matches!(self.client, QueuedClient::Hello(..))
    }

    pub(super) fn advance(
        mut self: Box<Self>,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Advance<Box<Self>, N> {
        if self.has_left(cx.core.client.ready) || self.flush(cx).is_err() {
            return Advance::Reached(if self.lacks_keys() {
                Reached::no_handshake(CloseReason::LeftQueue, cx)
            } else {
                Reached::End(CloseReason::LeftQueue)
            });
        }
        let Some(grant) = self.grant.take() else {
            return Advance::Wait(self);
        };
        let waited = cx.turn.now.running.saturating_sub(self.since);
        let Some(slot) = grant.slot else {
            return match self.client {
                QueuedClient::Pending(pending) => Advance::Reached(Reached::NoServer(pending)),
                client => client.refuse(CloseReason::NoServer, cx),
            };
        };
        cx.core.facts.queued += waited;
        cx.turn.counters.queue_waited.record(waited);
        cx.turn.counters.hand_over.record(grant.begun.elapsed());
        cx.core.handshake_until = cx.turn.now.running + cx.turn.timeouts.handshake;
        Advance::Reached(match self.client {
            QueuedClient::Pending(pending) => Reached::Pending(pending, Some(slot)),
            QueuedClient::Hello(mut decision) => {
                cx.core.deadline = cx.core.handshake_until;
                decision.reserved = Reserved::Slot(slot);
                decision.restore(scratch);
                Reached::Hello(decision)
            }
        })
    }

    /// Sends what is left of the handshake's last flight.
    fn flush(&mut self, cx: &mut Context<'_, '_, N>) -> Result<(), crate::socket::SocketError> {
        match &mut self.client {
            QueuedClient::Pending(pending)
                if cx.core.client.ready.writable && pending.to_client.waits() =>
            {
                cx.flush(&mut pending.to_client)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn expire(self: Box<Self>, cx: &mut Context<'_, '_, N>) -> Advance<Box<Self>, N> {
        if self.grant.is_some() {
            return Advance::Go(self);
        }
        self.client
            .refuse_and_note(CloseReason::QueueTimeout, &self.pool, cx)
    }
}

impl<N: Net> QueuedClient<N> {
    fn refuse_and_note(
        self,
        reason: CloseReason,
        pool: &Pool,
        cx: &mut Context<'_, '_, N>,
    ) -> Advance<Box<Queued<N>>, N> {
        cx.note(reason, &format!("backend {}", &*pool.backend().keys.name));
        self.refuse(reason, cx)
    }

    /// Turns the client away. Before the handshake there is nothing to send that it would
    /// understand sooner than a reset, which costs the least.
    fn refuse(
        self,
        reason: CloseReason,
        cx: &mut Context<'_, '_, N>,
    ) -> Advance<Box<Queued<N>>, N> {
        match self {
            // No close_notify: the client must not take nothing for a whole answer.
            Self::Pending(pending) => Advance::close(reason, pending.to_client),
            Self::Hello(..) => {
                cx.core.client.socket.reset_on_close();
                Advance::Reached(Reached::no_handshake(reason, cx))
            }
        }
    }
}
