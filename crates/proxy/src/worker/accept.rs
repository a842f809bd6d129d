//! Accepts new clients for a bounded time per turn, and resets clients above the limits.
//!
//! The first step of a handshake runs immediately after the accept, because the ClientHello has
//! probably arrived. A client that needs a signature then joins a queue. The worker stops accepting
//! while the connection limit or the descriptor limit is reached.
//!
//! A listening socket that was removed from the configuration is closed after a grace period. If
//! the grace period has expired, the worker accepts the whole queue of this socket even at a limit,
//! and resets clients above the limit: while the socket is open, the next process cannot bind the
//! address.

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use becket_proto::fresh_queue::LIMIT;
use mio::net::TcpStream;

use super::event_loop::{Age, ConnectionEntry, Worker, token_of};
use super::shares::{GATHER, SLICE};
use crate::connection::listener::ListenerState;
use crate::connection::{Advanced, Connection, Side};
use crate::socket::KernelSocket;
use crate::worker::acceptor::{Accepted, Acceptor};
use crate::worker::net::BOTH;
use becket_log::access::{AccessLine, AccessRecord};
use becket_log::facts::{ByteCounts, Facts};
use becket_proto::close_reason::CloseReason;
use becket_tls::admission::Admitted;

impl Worker {
    /// Accepts clients from every ready socket until `end`, but at least one client. Returns the
    /// current time.
    pub(super) fn accept(&mut self, mut now: Duration, end: Duration) -> Duration {
        let pauses = self.acceptors.paused_until.is_some_and(|until| now < until);
        let mut acceptors = self.acceptors.sockets.iter();
        if self.acceptors.is_parked || pauses && !acceptors.any(|(_, one)| one.is_overdue(now)) {
            return now;
        }
        if !pauses {
            self.acceptors.paused_until = None;
        }
        if now >= self.acceptors.quiet_until {
            self.acceptors.quiet_until = now + GATHER;
            let quiet = self
                .acceptors
                .sockets
                .iter_mut()
                .filter(|(_, one)| one.is_quiet());
            quiet.for_each(|(_, acceptor)| acceptor.ready = true);
        }
        if !self.acceptors.reserve.is_held() {
            // Fails if another thread has taken the last descriptor. A later turn tries again.
            let _later = self.acceptors.reserve.restore();
        }
        let accepted = self.counters.accepted.value();
        now = self.accept_until(now, end);
        let accepted = self.counters.accepted.value() - accepted;
        let mut serving = self
            .acceptors
            .sockets
            .iter()
            .filter(|(_, one)| !one.is_retiring());
        // While accepting is paused, the backlogs count as empty, because a full backlog is not
        // overload then.
        let pauses = self.acceptors.paused_until.is_some();
        let emptied = pauses || serving.all(|(_, acceptor)| !acceptor.ready);
        self.acceptors.backlog.handle_look(now, accepted, emptied);
        now
    }

    fn accept_until(&mut self, mut now: Duration, end: Duration) -> Duration {
        let keys = self.acceptors.sockets.capacity().max(1);
        // Each turn begins with another socket, so that a busy address does not starve the other
        // addresses.
        self.acceptors.first = (self.acceptors.first + 1) % keys;
        let first = self.acceptors.first;
        for key in (first..keys).chain(0..first) {
            while !self.acceptors.is_parked {
                let acceptor = self.acceptors.sockets.get(key).filter(|one| one.ready);
                let Some(is_overdue) = acceptor.map(|one| one.is_overdue(now)) else {
                    break;
                };
                if self.acceptors.paused_until.is_some() && !is_overdue {
                    break;
                }
                let has_room = self.shared.claim_connection(self.served.config.connections);
                if !has_room && !is_overdue {
                    if !self.acceptors.sockets[key].has_client() {
                        break;
                    }
                    self.counters.connection_limit_pauses.add(1);
                    self.rest(&"limits.connections is reached");
                    break;
                }
                let accepted = self.acceptors.sockets[key].accept();
                if has_room && !matches!(accepted, Accepted::Client(..)) {
                    self.shared.release_connection();
                }
                let mut is_served = true;
                match accepted {
                    Accepted::Client(socket, address) => {
                        // Pending messages are applied before the accept, because a client may rely
                        // on them. For example, it may connect after a reload was reported as
                        // complete.
                        self.look_for_mail();
                        let waited = self.waited_in_kernel(key, &socket);
                        // The entry exists, because acceptors are removed only at the end of a
                        // turn.
                        let listener = Rc::clone(&self.acceptors.sockets[key].listener);
                        is_served = self.admit(socket, (address, waited), listener, has_room);
                    }
                    Accepted::Nothing | Accepted::Lost => {}
                    Accepted::Exhausted(error) => self.pause(key, &error),
                }
                let took = self.time().saturating_sub(now);
                now += took;
                // Rejected and queued clients use up the reserved time. A served client counts only
                // if it took longer than a slice, which means that the worker made its signature.
                if !is_served || took > SLICE {
                    self.newcomers.shares.arrivals.spend(took);
                }
                if now >= end {
                    return now;
                }
            }
        }
        now
    }

    /// Returns how long a client waited in the kernel's accept queue while this worker was running.
    /// Without overload, returns 0, to save a system call.
    fn waited_in_kernel(&mut self, key: usize, socket: &TcpStream) -> Duration {
        let now = self.clocks.now.running;
        if !self.is_overloaded(now) {
            return Duration::ZERO;
        }
        let acceptor = self.acceptors.sockets.get_mut(key);
        let waited = acceptor.map(|acceptor| acceptor.waited(socket, now));
        let since = self
            .acceptors
            .accepts_since
            .max(Some(self.clocks.running.since()));
        let busy = now.saturating_sub(since.unwrap_or_default());
        waited.unwrap_or_default().min(busy)
    }

    /// Admits a client or resets it. Returns `true` if the client is served, `false` if it waits
    /// for a signature or its connection is closed.
    fn admit(
        &mut self,
        mut socket: TcpStream,
        (address, waited): (SocketAddr, Duration),
        listener: Rc<ListenerState>,
        has_room: bool,
    ) -> bool {
        self.counters.accepted.add(1);
        let config = listener.config();
        let facts = Facts::new(address, Arc::clone(&listener.name), self.clocks.now);
        if !has_room {
            return self.reset(&socket, facts, CloseReason::ConnectionLimit);
        }
        if self.shared.memory.refuses() {
            return self.turn_away(&socket, facts, CloseReason::MemoryLimit);
        }
        if waited > LIMIT {
            return self.turn_away(&socket, facts, CloseReason::Overload);
        }
        let entered = match config.keys.accept_proxy {
            // The PROXY header contains the client's address, so the limits per source are checked
            // after the header is read.
            Some(_) => Ok(Admitted::default()),
            None => self
                .served
                .admission
                .admit(config, address.ip(), self.clocks.now.mono),
        };
        let counted = match entered {
            Ok(counted) => counted,
            Err(reason) => return self.turn_away(&socket, facts, reason),
        };
        let share = self
            .served
            .config
            .file
            .limits
            .handshakes
            .div_ceil(self.shared.workers);
        if self.newcomers.handshakes >= share && !self.displace() {
            return self.turn_away(&socket, facts, CloseReason::HandshakeLimit);
        }
        let vacant = self.connections.vacant_entry();
        let index = vacant.key();
        let token = token_of(index, Side::Client);
        if self
            .poll
            .registry()
            .register(&mut socket, token, BOTH)
            .is_err()
        {
            return self.turn_away(&socket, facts, CloseReason::NoDescriptor);
        }
        let timeouts = &self.served.config.file.timeouts;
        let counters = &self.counters;
        let mut connection = Connection::new(
            KernelSocket::prompt(socket),
            listener,
            facts,
            self.clocks.now,
            timeouts,
            counters,
        );
        connection.count(counted);
        if connection.lacks_hello() {
            self.newcomers.without_hello.push(index);
        }
        vacant.insert(Box::new(ConnectionEntry {
            connection,
            queued: false,
            handshaking: true,
            alarm_at: Duration::MAX,
            alarm: 0,
            age: Age::New,
        }));
        self.newcomers.handshakes += 1;
        self.advance_newcomer(index);
        let waits = self.newcomers.unsigned.came_before(index, waited);
        self.connections.contains(index) && !waits
    }

    /// Closes the oldest connection that has not sent a complete ClientHello. Returns `false` if
    /// there is no such connection.
    fn displace(&mut self) -> bool {
        let Some(oldest) = self.newcomers.without_hello.first() else {
            return false;
        };
        self.advance(oldest, |connection, turn, _| {
            connection.make_room(turn);
            Advanced::Ended(CloseReason::HandshakeDisplaced)
        });
        true
    }

    /// Resets a client that cannot be served, and decrements the number of open connections.
    /// Returns `false`, as [`Self::admit`] does.
    fn turn_away(&mut self, socket: &TcpStream, facts: Facts, reason: CloseReason) -> bool {
        self.shared.release_connection();
        self.reset(socket, facts, reason)
    }

    /// Resets a client, which needs no further packets or state. Returns `false`, as
    /// [`Self::admit`] does.
    fn reset(&mut self, socket: &TcpStream, facts: Facts, reason: CloseReason) -> bool {
        let _gone = becket_sys::socket::reset_on_close(socket);
        self.counters.closed.of(reason).add(1);
        let now = self.clocks.now;
        self.resources.failures.refuse(&facts, reason, now);
        if let Some(access) = &self.resources.access {
            let record = AccessRecord::new(facts, ByteCounts::default(), reason, now);
            access.send(AccessLine::Connection(Box::new(record)));
        }
        false
    }

    /// Pauses accepting because no descriptor is free. The reserved descriptor is first used to
    /// accept and reset one client, so that this client does not wait for a timeout.
    fn pause(&mut self, key: usize, error: &io::Error) {
        self.counters.accept_pauses.add(1);
        if self.acceptors.reserve.release() {
            if let Some(Accepted::Client(socket, _)) =
                self.acceptors.sockets.get_mut(key).map(Acceptor::accept)
            {
                self.counters.accepted.add(1);
                let _gone = becket_sys::socket::reset_on_close(&socket);
                self.counters.closed.of(CloseReason::NoDescriptor).add(1);
            }
            // The descriptor of the reset client is free again and becomes the reserve. If another
            // thread has taken it, a later turn tries again.
            let _later = self.acceptors.reserve.restore();
        }
        self.rest(error);
    }

    fn rest(&mut self, why: &dyn Display) {
        self.acceptors.paused_until = Some(self.clocks.now.running + PAUSE);
        if let Some(suppressed) = self.acceptors.pauses.admit(self.clocks.now.instant) {
            tracing::error!(name: "accepting-paused", error = %why, suppressed, "accepting connections paused");
        }
    }

    /// Closes each retiring socket whose queue is empty and whose grace period has expired.
    pub(super) fn close_retired(&mut self) {
        let now = self.clocks.now.running;
        let registry = self.poll.registry();
        self.acceptors.sockets.retain(|_, acceptor| {
            if acceptor.is_retiring() {
                if acceptor.is_overdue(now) && !acceptor.ready {
                    acceptor.leave(registry);
                    return false;
                }
                acceptor.look_again();
            }
            true
        });
    }
}

/// Duration of a pause at the connection or descriptor limit.
const PAUSE: Duration = Duration::from_millis(100);
