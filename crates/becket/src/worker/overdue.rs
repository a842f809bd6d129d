//! What has to end or go on without an event: deadlines that have passed, and connections whose server
//! went out of service. Both may concern all connections of a worker at once, so each turn does a
//! bounded part, and the rest is for the next, which then does not sleep.

use std::sync::Arc;

use super::Worker;
use super::listing::Killing;
use crate::backend::server_state::ServerState;
use crate::close_reason::CloseReason;
use crate::connection::{Advanced, Connection};

/// A look at every connection, of which each turn does a part.
#[derive(Debug)]
pub(super) struct Sweep {
    cause: Cause,
    /// The first place that was not looked at yet.
    at: usize,
}

/// Why connections are looked at.
#[derive(Debug)]
pub(super) enum Cause {
    /// A server went out of service, and its connections are to end.
    ServerFailed(Arc<ServerState>),
    /// The process drains, and connections at rest get less time.
    Drain,
    /// An operator wants some to end.
    Killed(Killing),
}

impl Worker {
    /// Looks at alarms that ring, and advances connections whose deadline has passed.
    pub(super) fn expire(&mut self) {
        let (mut looks, mut steps) = (LOOKS_PER_TURN, 0);
        while let Some(alarm) = self.timers.poll_expired(self.now.mono, &mut looks) {
            let index = alarm.index as usize;
            let Some(entry) = self.connections.get_mut(index) else {
                continue;
            };
            if entry.alarm != alarm.number {
                continue;
            }
            entry.alarm_at = std::time::Duration::MAX;
            if entry.connection.deadline() > self.now.mono {
                self.set_alarm(index);
                continue;
            }
            self.advance(index, Connection::expire);
            self.look_for_mail();
            steps += 1;
            if steps == STEPS_PER_TURN {
                return;
            }
        }
    }

    /// Begins to look at all connections.
    pub(super) fn sweep(&mut self, cause: Cause) {
        // Whoever came since the last time is behind the places that were looked at, or before them.
        self.sweeps.retain(|sweep| match (&sweep.cause, &cause) {
            (Cause::ServerFailed(one), Cause::ServerFailed(other)) => !Arc::ptr_eq(one, other),
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
                match &mut cause {
                    Cause::ServerFailed(server) => {
                        let entry = self.connections.get(index);
                        if entry.is_some_and(|entry| entry.connection.is_at(server)) {
                            steps += 1;
                            self.advance(index, Connection::leave_server);
                        }
                    }
                    Cause::Drain => self.advance(index, Connection::drain),
                    Cause::Killed(killing) => {
                        if self.is_meant(index, &killing.filter) {
                            steps += 1;
                            killing.count += 1;
                            self.advance(index, |connection, turn, _| {
                                connection.stop(turn);
                                Advanced::Ended(CloseReason::Killed)
                            });
                        }
                    }
                }
            }
            if let Cause::Killed(killing) = cause {
                // Whoever asked may have left.
                killing.reply.send(killing.count).ok();
            }
        }
    }
}

/// Alarms looked at in one turn, and places for the connections of a server. Most alarms find a deadline
/// that has moved, which costs some 100 ns; a place costs no more.
const LOOKS_PER_TURN: usize = 4096;
/// Connections that one turn ends, or moves on to another server, for each of the two causes: some
/// 10 us each, so that a turn grows by less than a millisecond.
const STEPS_PER_TURN: usize = 64;
