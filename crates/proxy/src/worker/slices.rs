//! Divides the time of a turn between established connections and new clients.
//!
//! Established connections are advanced first, each within its byte budget, for at most
//! [`ESTABLISHED`]. Then one [`SLICE`] is for new clients and one for signatures. If no client
//! waits for a signature, both slices are for new clients. Each turn makes at least one pending
//! signature, and a signature cannot be interrupted. So an established connection waits for at most
//! two slices and one signature.
//!
//! `shares.rs` reserves time. If established connections have work all the time, new clients still
//! get a fifth of the time. While signatures are pending, clients that can only be queued or
//! rejected get a tenth, so that rejections do not prevent signatures.
//!
//! A cheap signature is made in the first step of a handshake if no other client waits. Clients
//! that need another signature wait in a queue ([`Unsigned`](super::unsigned::Unsigned)). A long
//! queue serves the newest client first and resets clients that have waited too long.
//!
//! The accept queue of the kernel is limited in the same way
//! ([`Backlog`](becket_proto::backlog::Backlog)). Under overload, it has room only for clients that
//! can be accepted within the target time. The worker then checks it every `GATHER`, and new
//! clients do not wake the worker.

use std::time::Duration;

use mio::Token;

use super::event_loop::{FIRST_ACCEPTOR, Worker};
use super::shares::SLICE;
use crate::connection::{Advanced, Connection};
use becket_keys::signing::Offload;
use becket_proto::close_reason::CloseReason;

impl Worker {
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

    /// Advances established connections that have work, each at most once. Returns the current
    /// time.
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

    /// Spends up to two slices on new clients. If signatures are pending, the second slice is for
    /// signatures. Returns the current time.
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

    /// Makes or requests pending signatures, at least one. Returns the current time.
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

    /// Returns `true` if a pending signature can be made or requested now. If `false`, the answer
    /// to an earlier request wakes the worker.
    fn signs(&self) -> bool {
        self.newcomers
            .unsigned
            .can_go(self.newcomers.signing.room())
    }

    /// Advances a handshaking connection. If it needs a cheap signature and no other client waits,
    /// the signature is made immediately.
    pub(super) fn advance_newcomer(&mut self, index: usize) {
        let backlog = &self.acceptors.backlog;
        let is_first = self.newcomers.unsigned.is_empty_here();
        let is_calm = is_first && !backlog.is_falling_behind(self.clocks.now.running);
        self.newcomers.is_alone = is_first && backlog.is_emptied();
        let before = self.connections.get(index);
        let is_new = before.is_some_and(|entry| entry.connection.lacks_hello());
        self.advance(index, Connection::advance);
        self.newcomers.is_alone = false;
        let entry = self.connections.get(index);
        let offload = entry.and_then(|entry| entry.connection.wants_signature());
        match offload {
            Some(Offload::Pointless) if is_calm => self.advance(index, Connection::sign),
            // The client has just joined the queue, so the queue may now be too long.
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

    /// Advances started handshakes until `end`. Returns the current time.
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

    /// Resets clients that have waited too long for a signature, until `end`. Returns the current
    /// time.
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

    /// Returns `true` if clients wait longer than the target time, in this worker or in the
    /// backlog.
    pub(super) fn is_overloaded(&self, now: Duration) -> bool {
        self.newcomers.unsigned.is_over_target(now) || self.acceptors.backlog.is_behind(now)
    }

    /// Limits the accept queues of the listening sockets under overload, and restores the
    /// configured backlog afterwards.
    pub(super) fn bound_queues(&mut self, now: Duration) {
        // While this worker is parked, another process accepts from these sockets, so their backlog
        // must not change.
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

    /// Returns `true` if a handshake can continue or a signature can be made.
    pub(super) fn has_newcomers(&self) -> bool {
        !self.newcomers.handshaking.is_empty() || self.signs()
    }
}

/// Maximum time for established connections while new clients wait: four times a slice.
const ESTABLISHED: Duration = SLICE.saturating_mul(4);
