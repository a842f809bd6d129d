//! `idle-reclaim`: connections at rest end while clients wait for a slot of their backend.
//!
//! A worker lists its connections that rest after an answer, of backends with this key alone. While clients wait, and the servers for which
//! they wait have no slot, it ends the connection that has rested longest, if that is long enough: each worker its own,
//! and all together no more at a time than clients wait ([`BackendState::reclaim`](crate::backend::backend_state::BackendState::reclaim)). The slot goes to the
//! longest waiter, as any other.
//!
//! The first client that waits wakes all workers by [`BackendEvent::Awaited`](crate::backend::inbox::BackendEvent::Awaited). After that each one sleeps no longer than
//! until its next connection is due, and 100 ms at most, since servers become full or eligible without a message. While none waits nothing is looked at.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::event_loop::Worker;
use super::overdue::STEPS_PER_TURN;
use super::sweep::SweepCause;
use crate::backend::pool::Pool;
use crate::backend::server_state::ServerState;
use becket_proto::close_reason::CloseReason;
use becket_proto::rest_queue::RestQueue;

impl Worker {
    /// Takes over which backends have the key. Connections that rest already are found by a sweep.
    pub(super) fn find_rests(&mut self) {
        let pools = self.served.pools.iter();
        let has_key = |pool: &&Rc<Pool>| pool.backend().keys.idle_reclaim.is_some();
        self.served.reclaiming = pools.filter(has_key).cloned().collect();
        if self.served.reclaiming.is_empty() {
            self.alarms.rests = RestQueue::default();
        } else {
            self.sweep(SweepCause::FindRests);
        }
    }

    /// Notes whether a connection rests after a step; `moved` are the bytes that it had moved before.
    pub(super) fn note_rest(&mut self, index: usize, moved: u64) {
        if self.served.reclaiming.is_empty() {
            return;
        }
        let Some(entry) = self.connections.get(index) else {
            return;
        };
        let rests = &mut self.alarms.rests;
        let server = entry.connection.rests_at();
        match server.filter(|server| server.backend().idle_reclaim().is_some()) {
            None => rests.stir(index),
            Some(server) if entry.connection.moved() != moved || !rests.rests(index) => {
                rests.rest(index, group_of(server), self.clocks.now.running);
            }
            Some(_) => {}
        }
    }

    /// Ends connections at rest whose slots are waited for.
    pub(super) fn reclaim(&mut self) {
        let mut steps = 0;
        for pool in &*Rc::clone(&self.served.reclaiming) {
            while steps < STEPS_PER_TURN && self.reclaim_one(pool) {
                steps += 1;
            }
        }
    }

    /// Looks at the connection that is due first. Returns whether another one may be due.
    fn reclaim_one(&mut self, pool: &Pool) -> bool {
        let now = self.clocks.now.running;
        let due = self.next_due(pool).filter(|(_, due)| *due <= now);
        let Some((index, _)) = due else {
            return false;
        };
        let entry = self.connections.get(index);
        let server = entry.and_then(|entry| entry.connection.rests_at());
        let (Some(entry), Some(server)) = (entry, server) else {
            self.alarms.rests.remove(index);
            return true;
        };
        if entry.queued {
            // Bytes that have come are read first, in its turn.
            self.alarms.rests.stir(index);
            return true;
        }
        if !entry.connection.is_acknowledged() {
            // The client's rest begins when it has the whole answer.
            self.alarms.rests.rest(index, group_of(server), now);
            return true;
        }
        pool.state().reclaim(|| {
            self.advance(index, |connection, turn, scratch| {
                connection.end_rest(CloseReason::IdleTimeout, turn, scratch)
            });
        })
    }

    /// Returns how long the worker may sleep before the next connection is due.
    pub(super) fn next_reclaim(&mut self) -> Option<Duration> {
        let now = self.clocks.now.running;
        let pools = Rc::clone(&self.served.reclaiming);
        let due = pools
            .iter()
            .filter_map(|pool| self.next_due(pool))
            .min_by_key(|(_, due)| *due);
        // One that is due and was not ended waits for another worker.
        let due = due.map(|(_, due)| due.saturating_sub(now).max(AGAIN));
        // No message tells that a server has become full or eligible.
        let is_awaited = pools.iter().any(|pool| pool.state().waiting() > 0);
        let look = (is_awaited && !self.alarms.rests.is_empty()).then_some(LOOK);
        due.into_iter().chain(look).min()
    }

    /// Returns the connection that has rested longest at a server for whose slots clients wait, and when it may be ended.
    fn next_due(&mut self, pool: &Pool) -> Option<(usize, Duration)> {
        if pool.state().waiting() == 0 {
            return None;
        }
        let after = pool.state().idle_reclaim()?;
        let rests = &mut self.alarms.rests;
        let longest = pool
            .full_servers()
            .filter_map(|server| rests.longest(group_of(server)));
        let (index, since) = longest.min_by_key(|(_, since)| *since)?;
        Some((index, since + after))
    }
}

/// The server's group in the queue. Its address is the server's alone as long as a connection is there.
fn group_of(server: &Arc<ServerState>) -> usize {
    Arc::as_ptr(server).addr()
}

/// Time until a connection that is due is looked at again.
const AGAIN: Duration = Duration::from_millis(10);
/// Time until the servers for which clients wait are looked at again.
const LOOK: Duration = Duration::from_millis(100);
