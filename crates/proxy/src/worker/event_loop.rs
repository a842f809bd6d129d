//! The event loop of a worker, which runs on one thread.
//!
//! A worker owns its poll, listening sockets, connections, timers, buffers and counters. Each turn
//! of the loop serves established connections first, then handshakes, then new clients. `slices.rs`
//! bounds the time of each part, so that no part starves another. If work remains, the next turn
//! does not sleep.
//!
//! Each socket is registered once, edge-triggered. The registration never changes and ends when the
//! descriptor is closed.

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use becket_cluster::{Outbox, SessionEvent};
use becket_proto::backlog::Backlog;
use becket_proto::index_queue::IndexQueue;
use becket_proto::rest_queue::RestQueue;
use becket_proto::running_time::RunningTime;
use becket_proto::session::SessionName;
use becket_proto::timers::Timers;
use becket_sys::clock::{Clock, Now};
use becket_sys::reserve::ReserveFd;
use mio::event::Event;
use mio::{Events, Poll, Token};
use slab::Slab;

use super::shares::{GATHER, Shares};
use super::start::{Common, Start};
use super::sweep::Sweep;
use super::unsigned::Unsigned;
use crate::backend::pool::Pool;
use crate::connection::failure_log::FailureLog;
use crate::connection::{Advanced, Connection, Side, Turn};
use crate::metrics::Counters;
use crate::pipes::{BULK, Pipes};
use crate::shared::SharedState;
use crate::socket::Ready;
use crate::worker::acceptor::Acceptor;
use crate::worker::mailbox::Mailbox;
use crate::worker::net::RealNet;
use becket_keys::signing::queue::Answers;
use becket_keys::signing::worker::WorkerSigning;
use becket_log::RateLimit;
use becket_log::access::AccessLine;
use becket_log::access_log::AccessSender;
use becket_proto::close_reason::CloseReason;
use becket_tls::admission::WorkerAdmission;
use becket_tls::config::Config;
use becket_tls::scratch::Scratch;
use becket_tls::sessions::tickets::TicketSecrets;

#[derive(Debug)]
pub struct Worker {
    pub(super) number: usize,
    pub(super) poll: Poll,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) shared: Arc<SharedState>,
    pub(super) counters: Arc<Counters>,
    pub(super) clocks: Clocks,
    pub(super) served: ServedConfig,
    pub(super) acceptors: Acceptors,
    pub(super) newcomers: Newcomers,
    /// Connections are boxed, so that growing the slab moves pointers instead of connections.
    pub(super) connections: Slab<Box<ConnectionEntry>>,
    pub(super) established: VecDeque<usize>,
    pub(super) alarms: Alarms,
    pub(super) sweeps: VecDeque<Sweep>,
    pub(super) resources: StepResources,
    pub(super) shutdown: Shutdown,
}

#[derive(Debug)]
pub(super) struct Clocks {
    pub(super) clock: Clock,
    pub(super) running: RunningTime,
    pub(super) now: Now,
}

#[derive(Debug)]
pub(super) struct ServedConfig {
    pub(super) config: Arc<Config>,
    pub(super) secrets: Arc<TicketSecrets>,
    pub(super) outbox: Option<Outbox>,
    pub(super) admission: Rc<WorkerAdmission>,
    pub(super) pools: Rc<[Rc<Pool>]>,
    pub(super) reclaiming: Rc<[Rc<Pool>]>,
}

#[derive(Debug)]
pub(super) struct Acceptors {
    pub(super) sockets: Slab<Acceptor>,
    /// Index of the socket from which the latest turn accepted first. The next turn starts at the
    /// following index.
    pub(super) first: usize,
    pub(super) backlog: Backlog,
    pub(super) reserve: ReserveFd,
    pub(super) paused_until: Option<Duration>,
    /// Time of the next check of sockets that are not in the poll.
    pub(super) quiet_until: Duration,
    pub(super) pauses: RateLimit,
    /// `true` while accepting is paused because another process accepts from these sockets.
    pub(super) is_parked: bool,
    pub(super) accepts_since: Option<Duration>,
}

/// Clients whose handshake is not complete.
#[derive(Debug)]
pub(super) struct Newcomers {
    /// Handshaking connections that have received data or need a step for another reason.
    pub(super) handshaking: VecDeque<usize>,
    pub(super) handshakes: usize,
    pub(super) unsigned: Unsigned,
    /// Connections that have not sent a complete ClientHello, oldest first.
    pub(super) without_hello: IndexQueue,
    pub(super) shares: Shares,
    /// Value of [`Turn::is_alone`]; `true` only during the step of a handshake.
    pub(super) is_alone: bool,
    pub(super) signing: WorkerSigning,
}

#[derive(Debug)]
pub(super) struct Alarms {
    pub(super) timers: Timers<Alarm>,
    pub(super) last: u32,
    /// Idle connections that the worker may close, because their backends have `idle-reclaim`.
    pub(super) rests: RestQueue,
}

#[derive(Debug)]
pub(super) struct StepResources {
    pub(super) net: RealNet,
    pub(super) scratch: Scratch,
    pub(super) pipes: Rc<Pipes>,
    pub(super) failures: FailureLog,
    pub(super) access: Option<AccessSender>,
}

#[derive(Debug)]
pub(super) struct ConnectionEntry {
    pub(super) connection: Connection<RealNet>,
    pub(super) queued: bool,
    pub(super) handshaking: bool,
    pub(super) alarm_at: Duration,
    pub(super) alarm: u32,
    pub(super) age: Age,
}

/// Age of a connection, by the alarms that expired before its deadline. Until it is old, they
/// follow each other within `timeouts.connect`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Age {
    New,
    /// One alarm has expired since the handshake.
    Survivor,
    /// Another alarm has expired.
    Old,
}

/// Timer entry of a connection. The entry is obsolete unless its number equals the connection's
/// [`ConnectionEntry::alarm`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Alarm {
    pub(super) index: u32,
    pub(super) number: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shutdown {
    No,
    Draining,
    Now,
}

impl Worker {
    /// Creates a worker from its poll and sockets, and builds the state of each configured
    /// listener.
    ///
    /// # Errors
    ///
    /// Fails if a TLS configuration cannot be built or no descriptor is free.
    pub fn new(start: Start) -> io::Result<Self> {
        let Common {
            shared,
            adopted,
            secrets,
            outboxes,
            is_parked,
        } = start.common;
        let clock = shared.clock;
        let now = clock.now();
        let net = RealNet::new(start.poll.registry().try_clone()?);
        let rules = &adopted.config().file.admission;
        let admission = WorkerAdmission::new(&shared.admission, rules, None);
        let pipes = Pipes::new(BULK, Arc::clone(&shared.counters[start.number]));
        let answers = Arc::clone(&start.mailbox) as Arc<dyn Answers>;
        let queue = Arc::clone(&shared.signatures);
        let sessions = adopted.config().file.process.pkcs11_sessions;
        let signing = WorkerSigning::new(queue, shared.workers, answers)
            .with_sessions(sessions, shared.workers);
        let mut worker = Self {
            number: start.number,
            poll: start.poll,
            mailbox: start.mailbox,
            counters: Arc::clone(&shared.counters[start.number]),
            shared,
            clocks: Clocks {
                clock,
                running: RunningTime::new(now.mono),
                now,
            },
            served: ServedConfig {
                config: Arc::clone(adopted.config()),
                secrets,
                outbox: outboxes.get(start.number).cloned(),
                admission,
                pools: Rc::new([]),
                reclaiming: Rc::new([]),
            },
            acceptors: Acceptors {
                sockets: Slab::new(),
                first: 0,
                backlog: Backlog::default(),
                reserve: ReserveFd::new()?,
                paused_until: None,
                quiet_until: Duration::ZERO,
                pauses: RateLimit::per_second(1),
                is_parked,
                accepts_since: (!is_parked).then_some(now.running),
            },
            newcomers: Newcomers {
                handshaking: VecDeque::new(),
                handshakes: 0,
                unsigned: Unsigned::default(),
                without_hello: IndexQueue::default(),
                shares: Shares::new(),
                is_alone: false,
                signing,
            },
            connections: Slab::new(),
            established: VecDeque::new(),
            alarms: Alarms {
                timers: Timers::new(now.running, TICK),
                last: 0,
                rests: RestQueue::default(),
            },
            sweeps: VecDeque::new(),
            resources: StepResources {
                net,
                scratch: Scratch::default(),
                pipes,
                failures: FailureLog::default(),
                access: start.access,
            },
            shutdown: Shutdown::No,
        };
        worker.take_over(&adopted, start.sockets)?;
        Ok(worker)
    }

    /// Serves connections until a message ends the worker.
    ///
    /// # Errors
    ///
    /// Fails if epoll_wait(2) fails, which indicates an error of the system or a bug.
    pub fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS);
        while !self.is_over() {
            let timeout = self.timeout();
            match self.mailbox.wait(&mut self.poll, &mut events, timeout) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            self.turn(&events, timeout);
        }
        self.cut_off();
        Ok(())
    }

    /// Runs one turn after a poll that slept for at most `sleep`.
    pub(super) fn turn(&mut self, events: &Events, sleep: Option<Duration>) {
        let now = self.clocks.clock.now();
        let sleep = sleep.unwrap_or(Duration::MAX);
        let running = self.clocks.running.advance(now.mono, sleep);
        self.clocks.now = Now { running, ..now };
        self.counters.turns.add(1);
        for event in events {
            match event.token() {
                Token(MAILBOX) => {}
                Token(token) => self.note(token, event),
            }
        }
        // Messages are read after the socket events, because a message may close a connection. A
        // pending event could then reach a new connection with the same index.
        self.look_for_mail();
        self.expire();
        self.advance_sweeps();
        self.reclaim();
        self.share_time();
        self.close_retired();
    }

    fn note(&mut self, token: usize, event: &Event) {
        if token >= FIRST_ACCEPTOR {
            if let Some(acceptor) = self.acceptors.sockets.get_mut(token - FIRST_ACCEPTOR) {
                acceptor.ready = true;
            }
            return;
        }
        let (index, side) = address_of(token);
        // The poll may report an event for a connection that is already closed.
        let Some(entry) = self.connections.get_mut(index) else {
            return;
        };
        if entry.connection.handle_ready(side, readiness(event)) {
            self.enqueue(index);
        }
    }

    pub(super) fn enqueue(&mut self, index: usize) {
        let Some(entry) = self.connections.get_mut(index) else {
            return;
        };
        if entry.queued {
            return;
        }
        entry.queued = true;
        if entry.handshaking {
            self.newcomers.handshaking.push_back(index);
        } else {
            self.established.push_back(index);
        }
    }

    /// Runs one step of a connection, then updates its queues and alarm, or closes it.
    pub(super) fn advance(
        &mut self,
        index: usize,
        step: impl FnOnce(&mut Connection<RealNet>, &mut Turn<'_, RealNet>, &mut Scratch) -> Advanced,
    ) {
        let Some(entry) = self.connections.get_mut(index) else {
            return;
        };
        entry.queued = false;
        let moved = entry.connection.moved();
        self.resources.net.serve(token_of(index, Side::Server));
        let mut turn = Turn {
            net: &mut self.resources.net,
            place: index,
            now: self.clocks.now,
            counters: &self.counters,
            limits: &self.served.config.file.limits,
            timeouts: &self.served.config.file.timeouts,
            failures: &mut self.resources.failures,
            admission: &self.served.admission,
            cancels: &self.shared.cancels,
            challenges: &self.shared.challenges,
            pipes: &self.resources.pipes,
            signing: Some(&self.newcomers.signing),
            access: self.resources.access.as_ref(),
            is_alone: self.newcomers.is_alone,
            draining: self.shutdown == Shutdown::Draining,
        };
        let advanced = step(
            &mut entry.connection,
            &mut turn,
            &mut self.resources.scratch,
        );
        self.count_handshake(index);
        self.note_rest(index, moved);
        match advanced {
            Advanced::Ended(reason) => self.close(index, reason),
            Advanced::Waiting => self.set_alarm(index),
            Advanced::Unfinished => {
                self.set_alarm(index);
                self.enqueue(index);
            }
        }
    }

    /// Updates the handshake count and the queues of handshaking clients after a step of this
    /// connection.
    pub(super) fn count_handshake(&mut self, index: usize) {
        let Some(entry) = self.connections.get_mut(index) else {
            return;
        };
        let handshaking = entry.connection.is_handshaking();
        if !entry.handshaking && !handshaking {
            return;
        }
        if handshaking && !entry.handshaking {
            self.newcomers.handshakes += 1;
        } else if entry.handshaking && !handshaking {
            self.newcomers.handshakes -= 1;
        }
        entry.handshaking = handshaking;
        if entry.connection.lacks_hello() {
            self.newcomers.without_hello.push(index);
        } else {
            self.newcomers.without_hello.remove(index);
        }
        match entry.connection.wants_signature() {
            Some(offload) => self
                .newcomers
                .unsigned
                .push(index, offload, self.clocks.now.running),
            None => self.newcomers.unsigned.remove(index),
        }
    }

    /// Ensures that an alarm expires no later than the connection's deadline. A deadline that moves
    /// to a later time needs no new alarm, because [`Self::expire`] reads the deadline again.
    pub(super) fn set_alarm(&mut self, index: usize) {
        let Some(entry) = self.connections.get_mut(index) else {
            return;
        };
        let mut deadline = entry.connection.deadline();
        if deadline >= entry.alarm_at {
            return;
        }
        if entry.handshaking || entry.age != Age::Old {
            // The deadline of the following connect phase is no earlier than this time, so that
            // phase needs no new alarm. Connections that are not old need this alarm; see [`Age`].
            deadline =
                deadline.min(self.clocks.now.running + self.served.config.file.timeouts.connect);
        }
        deadline = deadline.min(self.clocks.now.running + FARTHEST_ALARM);
        self.alarms.last = self.alarms.last.wrapping_add(1);
        entry.alarm_at = deadline;
        entry.alarm = self.alarms.last;
        let alarm = Alarm {
            // The index fits, because a worker has fewer connections than descriptors, and
            // descriptor numbers fit into an `i32`.
            index: index as u32,
            number: self.alarms.last,
        };
        self.alarms.timers.insert(deadline, alarm);
    }

    pub(super) fn close(&mut self, index: usize, reason: CloseReason) {
        let entry = self.connections.remove(index);
        if entry.handshaking {
            self.newcomers.handshakes -= 1;
        }
        self.newcomers.without_hello.remove(index);
        self.newcomers.unsigned.remove(index);
        self.alarms.rests.remove(index);
        self.counters.closed.of(reason).add(1);
        if reason.may_be_our_fault() && entry.connection.asked_for_ours(&self.served.config) {
            self.counters.handshakes_failed_by_name.add(1);
        }
        self.shared.release_connection();
        self.acceptors.paused_until = None;
        if let Some(session) = entry.connection.failed_session(reason) {
            self.forget(session);
        }
        if let Some(access) = &self.resources.access {
            let record = entry.connection.into_record(reason, self.clocks.now);
            access.send(AccessLine::Connection(Box::new(record)));
        }
    }

    /// Removes a session from the session table, and sends the removal to the peers of the cluster.
    pub(super) fn forget(&self, session: SessionName) {
        self.shared.table.remove(session.policy(), session.id());
        if let Some(outbox) = &self.served.outbox {
            outbox.leave(SessionEvent::Ended(session));
        }
    }

    /// Returns how long the poll may sleep, or `None` if it may sleep until the next event.
    pub(super) fn timeout(&mut self) -> Option<Duration> {
        if !self.established.is_empty() || self.has_newcomers() || !self.sweeps.is_empty() {
            return Some(Duration::ZERO);
        }
        let reclaim = self.next_reclaim();
        let until = |at: Duration| at.saturating_sub(self.clocks.now.running);
        let (mut waiting, mut quiet) = (false, false);
        let mut look = self.newcomers.unsigned.waits().then_some(TICK);
        for (_, acceptor) in &self.acceptors.sockets {
            if acceptor.is_overdue(self.clocks.now.running) {
                look = Some(GATHER);
            } else if acceptor.is_retiring() {
                look = look.or(Some(TICK));
            }
            quiet |= acceptor.is_quiet() && !self.acceptors.is_parked;
            waiting |= acceptor.ready && !acceptor.is_retiring() && !self.acceptors.is_parked;
        }
        let accept = match self.acceptors.paused_until {
            Some(at) => Some(until(at).max(Duration::from_millis(1))),
            None if waiting => Some(Duration::ZERO),
            None => quiet.then(|| until(self.acceptors.quiet_until)),
        };
        let alarm = self.alarms.timers.next_deadline().map(until);
        let bound = self
            .acceptors
            .backlog
            .deadline()
            .filter(|_| !self.acceptors.is_parked);
        let bound = bound.map(until);
        [accept, look, alarm, bound, reclaim]
            .into_iter()
            .flatten()
            .min()
    }

    fn is_over(&self) -> bool {
        match self.shutdown {
            Shutdown::No => false,
            Shutdown::Draining => self.connections.is_empty() && self.acceptors.sockets.is_empty(),
            Shutdown::Now => true,
        }
    }

    pub(super) fn time(&mut self) -> Duration {
        self.clocks
            .running
            .advance(self.clocks.clock.mono(), Duration::ZERO)
    }

    fn cut_off(&mut self) {
        let rest: Vec<usize> = self.connections.iter().map(|(index, _)| index).collect();
        for index in rest {
            self.advance(index, |connection, turn, _| {
                Advanced::Ended(connection.stop(turn))
            });
        }
        // Dropping a message with a granted slot passes the slot to a connection of another worker.
        drop(self.mailbox.close());
    }
}

fn readiness(event: &Event) -> Ready {
    let failed = event.is_error();
    Ready {
        readable: event.is_readable() || event.is_read_closed() || failed,
        writable: event.is_writable() || event.is_write_closed() || failed,
        ended: event.is_read_closed() || failed,
        failed,
    }
}

pub(super) fn token_of(index: usize, side: Side) -> Token {
    Token(index * 2 + usize::from(side == Side::Server))
}

fn address_of(token: usize) -> (usize, Side) {
    let sides = [Side::Client, Side::Server];
    (token / 2, sides[token % 2])
}

pub const MAILBOX: usize = usize::MAX - 1;
/// First token of listening sockets. Their last token is below [`MAILBOX`].
pub(super) const FIRST_ACCEPTOR: usize = usize::MAX / 2 + 1;
/// Maximum number of events per poll call. A larger number only delays the first event.
const EVENTS: usize = 256;
const TICK: Duration = Duration::from_millis(50);
/// Longest time for which an alarm is set; the alarm then checks the deadline and is set again. An
/// alarm remains in the timers after its connection is closed, so long alarms of closed connections
/// would accumulate.
const FARTHEST_ALARM: Duration = Duration::from_secs(50);

#[cfg(test)]
mod tests;
