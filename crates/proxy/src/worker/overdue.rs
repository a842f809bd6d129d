//! Work that no socket event starts: expired deadlines, connections of a failed server, and idle
//! connections under memory pressure.
//!
//! Such work may affect all connections of a worker, so a turn does only a bounded part of it. If
//! work remains, the next turn starts without sleeping.

use std::sync::Arc;
use std::time::Duration;

use super::event_loop::{Age, Worker};
use super::sweep::{Sweep, SweepCause};
use crate::connection::{Advanced, Connection};
use crate::memory::IdleReclaim;
use becket_proto::close_reason::CloseReason;

impl Worker {
    /// Advances connections whose deadline has expired. Sets a new alarm for connections whose
    /// deadline is now later.
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
                steps += usize::from(self.outlive(index));
                if steps == STEPS_PER_TURN {
                    return;
                }
                continue;
            }
            // Received data is processed first, because it may have arrived before the deadline,
            // while this thread was not running.
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

    /// Sets a new alarm for a connection whose alarm has expired before its deadline. From the
    /// second time on, takes its records from rustls to free memory, and returns `true` if that was
    /// possible. Few connections live so long.
    fn outlive(&mut self, index: usize) -> bool {
        let Some(entry) = self.connections.get_mut(index) else {
            return false;
        };
        let left = match entry.age {
            _ if entry.handshaking => Ok(false),
            Age::New => {
                entry.age = Age::Survivor;
                Ok(false)
            }
            Age::Survivor | Age::Old => {
                entry.age = Age::Old;
                entry.connection.leave_rustls()
            }
        };
        match left {
            Ok(_) => self.set_alarm(index),
            Err(reason) => self.advance(index, |connection, turn, _| {
                connection.stop(turn);
                Advanced::Ended(reason)
            }),
        }
        left.is_ok_and(|left| left)
    }

    /// Closes connections that have been idle for at least `rest`: up to the fraction `share` of
    /// all connections, and at least one.
    pub(super) fn end_idle(&mut self, IdleReclaim { rest, share }: IdleReclaim) {
        let left = (self.connections.len() as f64 * share).ceil() as usize;
        let left = left.max(1);
        self.sweep(SweepCause::EndIdle { rest, left });
    }

    pub(super) fn sweep(&mut self, cause: SweepCause) {
        // The new sweep replaces an unfinished sweep with the same cause, because connections have
        // been added since that sweep began.
        self.sweeps.retain(|sweep| match (&sweep.cause, &cause) {
            (SweepCause::ServerFailed(one), SweepCause::ServerFailed(other)) => {
                !Arc::ptr_eq(one, other)
            }
            (SweepCause::EndIdle { .. }, SweepCause::EndIdle { .. }) => false,
            _ => true,
        });
        self.sweeps.push_back(Sweep { cause, at: 0 });
    }

    /// Continues the sweeps until the limits of this turn are reached.
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

    /// Checks one connection in a sweep. Returns `true` if the connection was closed or moved to
    /// another server.
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

/// Maximum number of alarms that a turn checks, and of connections that its sweeps check. A check
/// costs about 100 ns or less.
const LOOKS_PER_TURN: usize = 4096;
/// Maximum number of connections that one turn closes, moves to another server or takes from
/// rustls. Each takes about 10 us, so the turn takes less than 1 ms longer.
pub(super) const STEPS_PER_TURN: usize = 64;
