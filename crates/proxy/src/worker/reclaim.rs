//! `idle-reclaim`: closes idle connections while clients wait for a slot of their backend.
//!
//! A worker registers its connections that are idle after a response, but only those to backends
//! with `idle-reclaim`. While clients wait and the servers have no free slot, the worker closes the
//! connection that has been idle longest, if its idle time has reached `idle-reclaim`. Each worker
//! closes its own connections. All workers together never close more connections at a time than
//! there are waiting clients
//! ([`BackendState::reclaim`](crate::backend::backend_state::BackendState::reclaim)). The slot goes
//! to the longest waiter as usual.
//!
//! The first waiting client wakes all workers with
//! [`BackendEvent::Awaited`](crate::backend::inbox::BackendEvent::Awaited). Each worker then sleeps
//! until its next connection may be closed, but at most 100 ms, because no message reports that a
//! server has become full or eligible. While no client waits, workers check nothing.

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
    /// Updates the list of pools with `idle-reclaim`. A sweep registers connections that are
    /// already idle.
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

    /// Registers a connection that is idle after a step, or removes it if it is not idle. `moved`
    /// is the byte count of the connection before the step.
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

    pub(super) fn reclaim(&mut self) {
        let mut steps = 0;
        for pool in &*Rc::clone(&self.served.reclaiming) {
            while steps < STEPS_PER_TURN && self.reclaim_one(pool) {
                steps += 1;
            }
        }
    }

    /// Closes the connection that has been idle longest, if it may be closed. Returns `true` if
    /// another connection may also be due.
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
            // The connection has received data, so it is not idle.
            self.alarms.rests.stir(index);
            return true;
        }
        if !entry.connection.is_acknowledged() {
            // The client has not received the whole response, so the idle time of the connection
            // starts again.
            self.alarms.rests.rest(index, group_of(server), now);
            return true;
        }
        pool.state().reclaim(|| {
            self.advance(index, |connection, turn, scratch| {
                connection.end_rest(CloseReason::IdleTimeout, turn, scratch)
            });
        })
    }

    /// Returns the time until this worker must check its idle connections again, or `None` if no
    /// check is needed.
    pub(super) fn next_reclaim(&mut self) -> Option<Duration> {
        let now = self.clocks.now.running;
        let pools = Rc::clone(&self.served.reclaiming);
        let due = pools
            .iter()
            .filter_map(|pool| self.next_due(pool))
            .min_by_key(|(_, due)| *due);
        // A due connection was kept open because other workers close enough connections. It is
        // checked again after `AGAIN`.
        let due = due.map(|(_, due)| due.saturating_sub(now).max(AGAIN));
        // No message reports that a server has become full or eligible.
        let is_awaited = pools.iter().any(|pool| pool.state().waiting() > 0);
        let look = (is_awaited && !self.alarms.rests.is_empty()).then_some(LOOK);
        due.into_iter().chain(look).min()
    }

    /// Returns the index of the connection that has been idle longest at a full server with waiting
    /// clients, and the time from which it may be closed.
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

/// Returns the key of a server in the [`RestQueue`]: the address of its state in memory, which is
/// unique while a connection refers to it.
fn group_of(server: &Arc<ServerState>) -> usize {
    Arc::as_ptr(server).addr()
}

/// Time until a connection that is due but was not closed is checked again.
const AGAIN: Duration = Duration::from_millis(10);
/// Interval at which a worker checks whether the servers of a backend with waiting clients are
/// full.
const LOOK: Duration = Duration::from_millis(100);
