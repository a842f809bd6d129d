//! A client that waits for a slot of a server.
//!
//! The slot comes by mail, from whichever thread gave it back.
//!
//! A client that resets the connection leaves the queue at once. One that only ends its stream may
//! still read the answer, and stays, unless the backend has `abort-on-close`. A client that leaves is taken out of the queue when this
//! is dropped; a slot that was on its way goes to the next.
//!
//! While it waits it costs memory and nothing else: what the client sends stays in the kernel.

use std::time::Duration;

use super::context::{Context, Net};
use super::pending::Pending;
use super::reached::{Advance, Reached};
use crate::backend::backend_state::Wait;
use crate::backend::inbox::Grant;
use crate::socket::Ready;
use becket_proto::close_reason::CloseReason;
use becket_tls::admission::ConnectionPermit;

/// A client without a slot.
#[derive(Debug)]
pub(super) struct Queued {
    wait: Option<Wait>,
    grant: Option<Grant>,
    /// Counts it for the share of its name, if there is one.
    _share: Option<Box<ConnectionPermit>>,
    since: Duration,
    client: Pending,
}

impl Queued {
    /// Joins the queue, or refuses the client if that is full.
    pub(super) fn join<N: Net>(
        mut client: Pending,
        cx: &mut Context<'_, '_, N>,
    ) -> Advance<Box<Self>, N> {
        // An answer is not near.
        client.to_client.release();
        let share = match client.arrival {
            // It was let in before.
            Some(_) => Ok(None),
            None => {
                let keys = &client.pool.backend().keys;
                let queue = (&*keys.name, keys.queue_length);
                let permit = cx.core.permit.as_deref();
                cx.turn.admission.wait(queue, permit, cx.turn.now.mono)
            }
        };
        let share = match share {
            Ok(share) => share,
            Err(reason) => return refuse(client, reason, cx),
        };
        let wait = client
            .pool
            .wait(cx.turn.place, client.tried(), client.arrival);
        let Ok(wait) = wait else {
            return refuse(client, CloseReason::QueueFull, cx);
        };
        // A client that a server failed has waited for that one, too.
        let timeout = client.pool.backend().queue_timeout;
        cx.core.deadline = cx.turn.now.running + timeout.saturating_sub(cx.core.facts.queued);
        Advance::Go(Box::new(Self {
            wait: Some(wait),
            grant: None,
            _share: share,
            since: cx.turn.now.running,
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
        self.has_left(ready) || ready.writable
    }

    fn has_left(&self, ready: Ready) -> bool {
        ready.failed || (ready.ended && self.client.pool.backend().keys.abort_on_close)
    }

    pub(super) fn advance<N: Net>(
        mut self: Box<Self>,
        cx: &mut Context<'_, '_, N>,
    ) -> Advance<Box<Self>, N> {
        // The rest of the handshake's last flight.
        let waits = cx.core.client.ready.writable && self.client.to_client.waits();
        let is_lost = waits && cx.flush(&mut self.client.to_client).is_err();
        if is_lost || self.has_left(cx.core.client.ready) {
            return Advance::end(CloseReason::LeftQueue);
        }
        let Some(grant) = self.grant.take() else {
            return Advance::Wait(self);
        };
        let Some(slot) = grant.slot else {
            return Advance::Reached(Reached::NoServer(self.client));
        };
        let waited = cx.turn.now.running.saturating_sub(self.since);
        cx.core.facts.queued += waited;
        cx.turn.counters.queue_waited.record(waited);
        cx.core.handshake_until = cx.turn.now.running + cx.turn.timeouts.handshake;
        Advance::Reached(Reached::Pending(self.client, Some(slot)))
    }

    pub(super) fn expire<N: Net>(
        self: Box<Self>,
        cx: &mut Context<'_, '_, N>,
    ) -> Advance<Box<Self>, N> {
        if self.grant.is_some() {
            return Advance::Go(self);
        }
        refuse(self.client, CloseReason::QueueTimeout, cx)
    }
}

/// Turns a client away, without close_notify: it must not take nothing for a whole answer.
fn refuse<N: Net>(
    client: Pending,
    reason: CloseReason,
    cx: &mut Context<'_, '_, N>,
) -> Advance<Box<Queued>, N> {
    let name = &*client.pool.backend().keys.name;
    cx.note(reason, &format!("backend {name}"));
    Advance::close(reason, client.to_client)
}
