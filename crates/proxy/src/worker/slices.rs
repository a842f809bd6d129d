//! How the time of a turn is shared, so that nobody waits for somebody else's handshake.
//!
//! Between two looks at the sockets there is a bounded time of work, whatever it consists of:
//! established connections first, each within its budget of bytes, for [`ESTABLISHED`] at most; then
//! newcomers for a [`SLICE`]; then signatures for another, one at least, which cannot be divided. Where nobody
//! waits for one, newcomers have both. So whoever is inside waits for two slices and one signature at most.
//!
//! Where established connections leave no time, newcomers have a fifth of it all the same. Within
//! their slice those who have begun go first, since what they have cost would be lost; then
//! newcomers are accepted and take their first steps, one in each slice at least. While signatures
//! wait, a tenth of the time goes to clients who can only join them or be turned away: to look at
//! everybody who comes must not keep becket from serving somebody. Who is served at once, by a
//! resumption, is not counted there.
//!
//! A signature that costs as little as to wait for it is made with the first step, while nobody waits for the worker and
//! the kernel's queue is empty now and then. Who waits for another is in a queue ([`Unsigned`](super::unsigned::Unsigned)): the newest goes first once there are too many,
//! and who has waited for too long is reset. What has waited in the kernel counts, and that queue is
//! bounded ([`Backlog`](becket_proto::backlog::Backlog)): while clients wait for too long, it holds what
//! is accepted within the target, and is looked at every `GATHER`: nobody who comes wakes the worker then, which takes
//! the core from a crypto thread each time. The shares are in `shares.rs`.

use std::time::Duration;

use mio::Token;

use super::event_loop::{FIRST_ACCEPTOR, Worker};
use super::shares::SLICE;
use crate::connection::{Advanced, Connection};
use becket_keys::signing::Offload;
use becket_proto::close_reason::CloseReason;

impl Worker {
    /// Does what there is to do, until it is time to look at the sockets again.
    pub(super) fn share_time(&mut self) {
        let began = self.clocks.now.running;
        let now = self.advance_established(began + ESTABLISHED);
        let waits = !self.established.is_empty();
        if self
            .newcomers
            .shares
            .newcomers
            .pay(now.saturating_sub(began), waits)
        {
            let spent = self.serve_newcomers(now).saturating_sub(now);
            self.newcomers.shares.newcomers.spend(spent);
        }
        if !self
            .newcomers
            .unsigned
            .can_ask(self.newcomers.signing.room())
        {
            self.newcomers.signing.flush();
        }
    }

    /// Advances established connections that have something to do, each once at most. Returns the time.
    fn advance_established(&mut self, end: Duration) -> Duration {
        let mut now = self.clocks.now.running;
        for _ in 0..self.established.len() {
            if let Some(index) = self.established.pop_front() {
                self.advance(index, Connection::advance);
                self.look_for_mail();
                now = self.time();
                if now >= end {
                    break;
                }
            }
        }
        now
    }

    /// Two slices for those who are not in yet, of which signatures have the second if somebody waits for them. Returns the time.
    fn serve_newcomers(&mut self, began: Duration) -> Duration {
        let both = began + 2 * SLICE;
        let end = if self.signs() { began + SLICE } else { both };
        let mut now = self.advance_handshakes(began, end);
        let signs = self.signs();
        if self.newcomers.shares.arrivals.pay(Duration::ZERO, signs) {
            let began = now;
            now = self.give_up_overdue(now, end);
            self.newcomers
                .shares
                .arrivals
                .spend(now.saturating_sub(began));
            now = self.accept(now, end);
        }
        self.bound_queues(now);
        let began = now;
        now = self.sign(began, both);
        self.newcomers
            .shares
            .arrivals
            .pay(now.saturating_sub(began), true);
        now
    }

    /// Signs for those who wait for that, one at least. Returns the time.
    fn sign(&mut self, mut now: Duration, end: Duration) -> Duration {
        while let Some(index) = self
            .newcomers
            .unsigned
            .pop(self.newcomers.signing.room(), now)
        {
            self.newcomers
                .signing
                .note_waiting(self.newcomers.unsigned.len_elsewhere());
            self.advance(index, Connection::sign);
            self.look_for_mail();
            now = self.time();
            if now >= end {
                break;
            }
        }
        now
    }

    /// Whether somebody waits for a signature, and it can be made, or asked for: an answer wakes us otherwise.
    fn signs(&self) -> bool {
        self.newcomers
            .unsigned
            .can_go(self.newcomers.signing.room())
    }

    /// Takes a step of somebody who is not in yet, and signs at once where that costs little and keeps nobody waiting.
    pub(super) fn advance_newcomer(&mut self, index: usize) {
        let is_behind = self
            .acceptors
            .backlog
            .is_falling_behind(self.clocks.now.running);
        let is_calm = self.newcomers.unsigned.is_empty_here() && !is_behind;
        let before = self.connections.get(index);
        let is_new = before.is_some_and(|entry| entry.connection.lacks_hello());
        self.advance(index, Connection::advance);
        let entry = self.connections.get(index);
        let offload = entry.and_then(|entry| entry.connection.wants_signature());
        match offload {
            Some(Offload::Pointless) if is_calm => self.advance(index, Connection::sign),
            // Who has been in the queue before, and has a slot since, is no newcomer.
            Some(_) if is_new => {
                if let Some(one_too_many) =
                    self.newcomers.unsigned.pop_excess(self.clocks.now.running)
                {
                    self.give_up(one_too_many);
                }
            }
            _ => {}
        }
    }

    /// Advances those who have begun. Returns the time.
    fn advance_handshakes(&mut self, mut now: Duration, end: Duration) -> Duration {
        while now < end
            && let Some(index) = self.newcomers.handshaking.pop_front()
        {
            self.advance_newcomer(index);
            self.look_for_mail();
            now = self.time();
        }
        now
    }

    /// Resets those who have waited too long for a signature. Returns the time.
    pub(super) fn give_up_overdue(&mut self, now: Duration, end: Duration) -> Duration {
        let mut at = now;
        while at < end
            && let Some(index) = self.newcomers.unsigned.pop_overdue(now)
        {
            self.give_up(index);
            at = self.time();
        }
        at
    }

    fn give_up(&mut self, index: usize) {
        self.advance(index, |connection, turn, _| {
            connection.make_room(turn);
            Advanced::Ended(CloseReason::Overload)
        });
    }

    /// Whether clients wait for longer than they should, here or in the kernel's queue.
    pub(super) fn is_overloaded(&self, now: Duration) -> bool {
        self.newcomers.unsigned.is_over_target(now) || self.acceptors.backlog.is_behind(now)
    }

    /// Bounds the kernel's queues in overload, and has them as configured in calm.
    pub(super) fn bound_queues(&mut self, now: Duration) {
        // Others serve the queues.
        if self.acceptors.is_parked {
            return;
        }
        let over = self.is_overloaded(now);
        if !self.acceptors.backlog.poll(now, over) {
            return;
        }
        let bound = self.acceptors.backlog.bound();
        self.counters.backlog_changes.add(1);
        let registry = self.poll.registry();
        for (key, acceptor) in &mut self.acceptors.sockets {
            acceptor.bound_queue(bound);
            match bound {
                Some(_) => acceptor.leave(registry),
                None => acceptor.join(registry, Token(FIRST_ACCEPTOR + key)),
            }
        }
    }

    /// Whether somebody waits who is not in yet.
    pub(super) fn has_newcomers(&self) -> bool {
        !self.newcomers.handshaking.is_empty() || self.signs()
    }
}

/// For established connections, while newcomers wait: so that these have a fifth of the time.
const ESTABLISHED: Duration = SLICE.saturating_mul(4);
