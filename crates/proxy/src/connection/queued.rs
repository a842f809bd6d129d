//! A client that waits for a server slot.
//!
//! The slot arrives as a message from the thread that returned the slot.
//!
//! A client that resets the connection leaves the queue at once. A client that only closes its
//! sending side may still read the response, so it stays queued, unless the backend has
//! `abort-on-close`. Dropping a [`Queued`] removes the client from the queue; a slot that was
//! already granted goes to the next waiter.
//!
//! A waiting client occupies only the memory of this phase, because its data stays in the kernel.

use std::time::Duration;

use super::context::{Context, Net};
use super::pending::Pending;
use super::reached::{Advance, Reached};
use crate::backend::backend_state::Wait;
use crate::backend::inbox::Grant;
use crate::socket::Ready;
use becket_proto::close_reason::CloseReason;
use becket_tls::admission::ConnectionPermit;

#[derive(Debug)]
pub(super) struct Queued {
    wait: Option<Wait>,
    grant: Option<Grant>,
    /// Counts the client towards the queue limit of its server name, if there is one.
    _share: Option<Box<ConnectionPermit>>,
    since: Duration,
    client: Pending,
}

impl Queued {
    /// Joins the queue, or rejects the client if the queue is full.
    pub(super) fn join<N: Net>(
        mut client: Pending,
        cx: &mut Context<'_, '_, N>,
    ) -> Advance<Box<Self>, N> {
        // Held tickets are sent now, because the client may wait long for the response.
        client.to_client.release();
        let share = match client.arrival {
            // A client that rejoins was already counted when it first joined.
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
        // If the client rejoins after a failed connect, the time limit includes its earlier wait.
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

    /// Stores the grant and returns `true` if it is for this client. Otherwise, drops the grant,
    /// which passes its slot to the next waiter.
    pub(super) fn handle_grant(&mut self, grant: Grant) -> bool {
        let mine = self.wait.take_if(|wait| wait.is_over_by(&grant));
        let Some(wait) = mine else {
            return false;
        };
        wait.end();
        self.grant = Some(grant);
        true
    }

    pub(super) fn cares_for(&self, ready: Ready) -> bool {
        self.has_left(ready) || ready.writable
    }

    fn has_left(&self, ready: Ready) -> bool {
        ready.failed || (ready.ended && self.client.pool.backend().keys.abort_on_close)
    }

    /// Adds the time in the queue to the connection's facts. Returns that time.
    fn note_wait<N: Net>(&self, cx: &mut Context<'_, '_, N>) -> Duration {
        let waited = cx.turn.now.running.saturating_sub(self.since);
        cx.core.facts.queued += waited;
        waited
    }

    pub(super) fn advance<N: Net>(
        mut self: Box<Self>,
        cx: &mut Context<'_, '_, N>,
    ) -> Advance<Box<Self>, N> {
        let waits = cx.core.client.ready.writable && self.client.to_client.waits();
        let is_lost = waits && cx.flush(&mut self.client.to_client).is_err();
        if is_lost || self.has_left(cx.core.client.ready) {
            self.note_wait(cx);
            return Advance::end(CloseReason::LeftQueue);
        }
        let Some(grant) = self.grant.take() else {
            return Advance::Wait(self);
        };
        let waited = self.note_wait(cx);
        let Some(slot) = grant.slot else {
            return Advance::Reached(Reached::NoServer(self.client));
        };
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
        self.note_wait(cx);
        refuse(self.client, CloseReason::QueueTimeout, cx)
    }
}

/// Rejects a client without close_notify, so that it does not mistake an empty response for a
/// complete one.
fn refuse<N: Net>(
    client: Pending,
    reason: CloseReason,
    cx: &mut Context<'_, '_, N>,
) -> Advance<Box<Queued>, N> {
    let name = &*client.pool.backend().keys.name;
    cx.note(reason, &format!("backend {name}"));
    Advance::close(reason, client.to_client)
}
