//! `idle-reclaim`: closes idle connections while clients wait for a slot of their backend.
//!
//! A worker tracks its connections that are idle after a response, only for backends with this key.
//! While clients wait and their servers have no free slot, it closes the connection that has been
//! idle longest, if the time is long enough. Each worker closes its own connections; all together
//! close no more at a time than clients wait
//! ([`BackendState::reclaim`](crate::backend::backend_state::BackendState::reclaim)). The slot goes
//! to the longest waiter as usual.
//!
//! The first waiting client wakes all workers with
//! [`BackendEvent::Awaited`](crate::backend::inbox::BackendEvent::Awaited). Each worker then sleeps
//! until its next connection is due, at most 100 ms, because no message reports servers that become
//! full or eligible. Nothing is checked while no client waits.

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
    /// Updates the list of backends with the key. A sweep finds connections that are idle already.
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

    /// Updates the idle state of a connection after a step. `moved` is its byte count before the
    /// step.
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

    /// Closes idle connections whose slots are needed.
    pub(super) fn reclaim(&mut self) {
        let mut steps = 0;
        for pool in &*Rc::clone(&self.served.reclaiming) {
            while steps < STEPS_PER_TURN && self.reclaim_one(pool) {
                steps += 1;
            }
        }
    }

    /// Handles the connection that is due first. Returns `true` if another one may be due.
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
            // Received data is read first, in the connection's turn.
            self.alarms.rests.stir(index);
            return true;
        }
        if !entry.connection.is_acknowledged() {
            // The idle time starts when the client has received the whole response.
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
        // A due connection that was not closed depends on another worker.
        let due = due.map(|(_, due)| due.saturating_sub(now).max(AGAIN));
        // No message reports that a server has become full or eligible.
        let is_awaited = pools.iter().any(|pool| pool.state().waiting() > 0);
        let look = (is_awaited && !self.alarms.rests.is_empty()).then_some(LOOK);
        due.into_iter().chain(look).min()
    }

    /// Returns the connection that has been idle longest at a server with waiting clients, and when
    /// it may be closed.
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

/// Returns the server's group in the queue. Its address is unique while a connection refers to it.
fn group_of(server: &Arc<ServerState>) -> usize {
    Arc::as_ptr(server).addr()
}

/// Time until a due connection is checked again.
const AGAIN: Duration = Duration::from_millis(10);
/// Time until the servers with waiting clients are checked again.
const LOOK: Duration = Duration::from_millis(100);
