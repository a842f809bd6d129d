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

use super::closing::Closing;
use super::connect::Caller;
use super::handshake::Handshaking;
use super::{Core, Net, Next, Phase, Turn};
use crate::backend::backend_state::Wait;
use crate::backend::inbox::Grant;
use crate::backend::pool::Pool;
use crate::close_reason::CloseReason;
use crate::leg::Ready;
use crate::socket::Socket;

/// A client without a slot.
#[derive(Debug)]
pub struct Queued {
    wait: Option<Wait>,
    grant: Option<Grant>,
    since: Duration,
    pool: Rc<Pool>,
    then: Then,
}

/// What is done with the slot.
#[derive(Debug)]
pub enum Then {
    /// The handshake goes on.
    Handshake(Handshaking),
    /// The server is connected.
    Connect(Caller),
}

impl Queued {
    /// Joins the queue, or refuses the client if that is full.
    pub fn begin<N: Net>(then: Then, core: &mut Core<N>, turn: &mut Turn<'_, N>) -> Next<N> {
        let (pool, tried, before) = match &then {
            Then::Connect(caller) => (Some(caller.pool()), caller.tried(), caller.arrival()),
            Then::Handshake(handshaking) => (handshaking.wanted(), [].as_slice(), None),
        };
        let Some(pool) = pool.cloned() else {
            return then.refuse(CloseReason::Internal, core, turn);
        };
        let Ok(wait) = pool.wait(turn.place, tried, before) else {
            turn.failures.note(
                &core.facts,
                CloseReason::QueueFull,
                &format!("backend {}", pool.name()),
                turn.now,
            );
            return then.refuse(CloseReason::QueueFull, core, turn);
        };
        // One whom a server failed has waited for that one, too.
        let left = pool
            .backend()
            .queue_timeout
            .saturating_sub(core.facts.queued);
        core.deadline = turn.now.mono + left;
        // On the heap: those who relay, of whom there are many, keep no room for it.
        Next::Go(Phase::Queued(Box::new(Self {
            wait: Some(wait),
            grant: None,
            since: turn.now.mono,
            pool,
            then,
        })))
    }

    /// Takes the grant if it is this one's; else it is dropped, and passes its slot on.
    pub fn handle_grant(&mut self, grant: Grant) -> bool {
        let mine = self.wait.take_if(|wait| wait.is_over_by(&grant));
        let Some(wait) = mine else {
            return false;
        };
        wait.end();
        self.grant = Some(grant);
        true
    }

    /// Whether this readiness can change anything.
    pub fn cares_for(&self, ready: Ready) -> bool {
        let gone = ready.failed || (ready.ended && self.pool.backend().abort_on_half_close);
        gone || (ready.writable && matches!(self.then, Then::Connect(_)))
    }

    /// Whether a handshake goes on when this is advanced.
    pub fn is_handshaking(&self) -> bool {
        self.grant.is_some() && self.has_no_keys()
    }

    /// Whether the handshake is not complete.
    pub fn has_no_keys(&self) -> bool {
        matches!(self.then, Then::Handshake(_))
    }

    /// Does what can be done now.
    pub fn advance<N: Net>(
        mut self: Box<Self>,
        core: &mut Core<N>,
        turn: &mut Turn<'_, N>,
    ) -> Next<N> {
        let ready = core.client.ready;
        let abandons = ready.ended && self.pool.backend().abort_on_half_close;
        if ready.failed || abandons {
            return self.leave(turn);
        }
        if let Then::Connect(caller) = &mut self.then
            && caller.send_flight(core, turn).is_err()
        {
            return self.leave(turn);
        }
        let Some(grant) = self.grant.take() else {
            return Next::Wait(Phase::Queued(self));
        };
        let waited = turn.now.mono.saturating_sub(self.since);
        let Some(slot) = grant.slot else {
            return match self.then {
                Then::Connect(caller) => caller.give_up(core, turn),
                then => then.refuse(CloseReason::NoServer, core, turn),
            };
        };
        core.facts.queued += waited;
        turn.counters.queue_waited.record(waited);
        turn.counters.hand_over.record(grant.begun.elapsed());
        core.handshake_until = turn.now.mono + turn.timeouts.handshake;
        match self.then {
            Then::Connect(caller) => caller.connect(slot, core, turn),
            Then::Handshake(handshaking) => {
                core.deadline = core.handshake_until;
                Next::Go(Phase::Handshaking(handshaking.go_on(slot)))
            }
        }
    }

    /// No slot came in time.
    pub fn expire<N: Net>(self: Box<Self>, core: &mut Core<N>, turn: &mut Turn<'_, N>) -> Next<N> {
        if self.grant.is_some() {
            return Next::Go(Phase::Queued(self));
        }
        let reason = CloseReason::QueueTimeout;
        let detail = format!("backend {}", self.pool.name());
        turn.failures.note(&core.facts, reason, &detail, turn.now);
        self.then.refuse(reason, core, turn)
    }

    /// The client has gone.
    fn leave<N: Net>(self, turn: &Turn<'_, N>) -> Next<N> {
        if self.has_no_keys() {
            turn.counters.handshakes_ended.add(1);
        }
        Next::End(CloseReason::LeftQueue)
    }
}

impl Then {
    /// Turns the client away. Before the handshake there is nothing to say to it that it would
    /// understand sooner than a reset, which costs the least.
    pub fn refuse<N: Net>(
        self,
        reason: CloseReason,
        core: &mut Core<N>,
        turn: &Turn<'_, N>,
    ) -> Next<N> {
        match self {
            // No close_notify: the client must not take nothing for a whole answer.
            Self::Connect(_) => Closing::begin(reason, Vec::new(), core, turn),
            Self::Handshake(_) => {
                core.client.socket.reset_on_close();
                turn.counters.handshakes_ended.add(1);
                Next::End(reason)
            }
        }
    }
}
