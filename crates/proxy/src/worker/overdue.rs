//! What has to end or go on without an event: deadlines that have passed, connections whose server
//! went out of service, and those at rest where memory is short. Each may concern all connections of a
//! worker at once, so each turn does a bounded part, and the rest is for the next, which then does not sleep.

use std::sync::Arc;
use std::time::Duration;

use super::event_loop::Worker;
use super::sweep::{Sweep, SweepCause};
use crate::connection::{Advanced, Connection};
use crate::memory::IdleReclaim;
use becket_proto::close_reason::CloseReason;

impl Worker {
    /// Looks at alarms that ring, and advances connections whose deadline has passed.
    pub(super) fn expire(&mut self) {
        let (mut looks, mut steps) = (LOOKS_PER_TURN, 0);
        while let Some(alarm) = self
            .alarms
            .timers
            .poll_expired(self.clocks.now.running, &mut looks)
        {
            let index = alarm.index as usize;
            let Some(entry) = self.connections.get_mut(index) else {
                continue;
            };
            if entry.alarm != alarm.number {
                continue;
            }
            entry.alarm_at = Duration::MAX;
            if entry.connection.deadline() > self.clocks.now.running {
                self.set_alarm(index);
                continue;
            }
            // What has come while this thread did not run came in time.
            if entry.queued && !entry.handshaking {
                self.advance(index, Connection::advance);
            }
            let left = self.connections.get(index);
            if left.is_some_and(|entry| entry.connection.deadline() <= self.clocks.now.running) {
                self.advance(index, Connection::expire);
            }
            self.look_for_mail();
            steps += 1;
            if steps == STEPS_PER_TURN {
                return;
            }
        }
    }

    /// Ends a share of the connections, at least one.
    pub(super) fn end_idle(&mut self, IdleReclaim { rest, share }: IdleReclaim) {
        let left = (self.connections.len() as f64 * share).ceil() as usize;
        let left = left.max(1);
        self.sweep(SweepCause::EndIdle { rest, left });
    }

    /// Begins to look at all connections.
    pub(super) fn sweep(&mut self, cause: SweepCause) {
        // Whoever came since the last time is behind the places that were looked at, or before them.
        self.sweeps.retain(|sweep| match (&sweep.cause, &cause) {
            (SweepCause::ServerFailed(one), SweepCause::ServerFailed(other)) => {
                !Arc::ptr_eq(one, other)
            }
            (SweepCause::EndIdle { .. }, SweepCause::EndIdle { .. }) => false,
            _ => true,
        });
        self.sweeps.push_back(Sweep { cause, at: 0 });
    }

    /// Goes on looking.
    pub(super) fn advance_sweeps(&mut self) {
        let (mut looks, mut steps) = (0, 0);
        while let Some(Sweep { mut cause, at }) = self.sweeps.pop_front() {
            for index in at..self.connections.capacity() {
                if looks == LOOKS_PER_TURN || steps == STEPS_PER_TURN {
                    self.sweeps.push_front(Sweep { cause, at: index });
                    return;
                }
                looks += 1;
                steps += usize::from(self.look_at(index, &mut cause));
            }
            if let SweepCause::Killed(killing) = cause {
                killing.reply.send(killing.count);
            }
        }
    }

    /// Does with one connection what the cause asks for. Returns whether that took a step of it.
    fn look_at(&mut self, index: usize, cause: &mut SweepCause) -> bool {
        let Some(entry) = self.connections.get(index) else {
            return false;
        };
        let connection = &entry.connection;
        match cause {
            SweepCause::ServerFailed(server) if connection.is_at(server) => {
                self.advance(index, Connection::leave_server);
            }
            SweepCause::EndIdle { rest, left } => {
                let rested =
                    connection.rested(self.clocks.now.running, &self.served.config.file.timeouts);
                if *left == 0 || rested.is_none_or(|rested| rested < *rest) {
                    return false;
                }
                *left -= 1;
                self.advance(index, |connection, turn, scratch| {
                    connection.end_rest(CloseReason::MemoryRest, turn, scratch)
                });
            }
            SweepCause::Killed(killing) if self.is_meant(index, &killing.filter) => {
                killing.count += 1;
                self.advance(index, |connection, turn, _| {
                    connection.stop(turn);
                    Advanced::Ended(CloseReason::Killed)
                });
            }
            SweepCause::FindRests => {
                let moved = connection.moved();
                self.note_rest(index, moved);
                return false;
            }
            SweepCause::Drain => {
                self.advance(index, Connection::drain);
                return false;
            }
            SweepCause::ServerFailed(_) | SweepCause::Killed(_) => return false,
        }
        true
    }
}

/// Alarms looked at in one turn, and places for the connections of a server. Most alarms find a deadline
/// that has moved, which costs some 100 ns; a place costs no more.
const LOOKS_PER_TURN: usize = 4096;
/// Connections that one turn ends, or moves on to another server: some
/// 10 us each, so that a turn grows by less than a millisecond.
pub(super) const STEPS_PER_TURN: usize = 64;
