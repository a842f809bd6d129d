//! One worker: poll, mailbox, sockets, timers; one thread, one core, no lock shared with others.
//!
//! Owns its poll, its listening sockets, its slab of connections, its timers, its buffers and its
//! counters. The order of a turn is the order of what matters: established traffic first, then
//! handshakes, then new clients. A turn is bounded by time (`slices.rs`), and no kind of work starves
//! another; what is left over is continued in the next turn, which then does not sleep.
//!
//! Descriptors are registered once, edge-triggered, and never modified; closing deregisters.

mod accept;
mod acceptor;
pub mod bound;
pub mod listing;
pub mod mailbox;
mod messages;
pub mod net;
mod overdue;
mod slices;
mod unsigned;
pub mod workers;

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use becket_cluster::{Outbox, SessionEvent};
use becket_proto::backlog::Backlog;
use becket_proto::index_queue::IndexQueue;
use becket_proto::running_time::RunningTime;
use becket_proto::session_name::SessionName;
use becket_proto::timers::Timers;
use becket_sys::clock::{Clock, Now};
use becket_sys::reserve::ReserveFd;
use mio::event::Event;
use mio::{Events, Poll, Token};
use slab::Slab;

use self::overdue::Sweep;
use self::slices::{GATHER, Shares};
use self::unsigned::Unsigned;
use crate::backend::pool::Pool;
use crate::connection::failure_log::FailureLog;
use crate::connection::{Advanced, Connection, Side, Turn};
use crate::metrics::Counters;
use crate::pipes::{BULK, Pipes};
use crate::shared::Shared;
use crate::socket::Ready;
use crate::worker::acceptor::Acceptor;
use crate::worker::bound::BoundListener;
use crate::worker::mailbox::Mailbox;
use crate::worker::net::RealNet;
use crate::worker::workers::Common;
use becket_keys::signing::queue::Answers;
use becket_keys::signing::worker::WorkerSigning;
use becket_log::RateLimit;
use becket_log::access_log::AccessSender;
use becket_proto::close_reason::CloseReason;
use becket_tls::admission::WorkerAdmission;
use becket_tls::config::Config;
use becket_tls::scratch::Scratch;
use becket_tls::sessions::tickets::TicketSecrets;

/// A thread that serves connections.
#[derive(Debug)]
pub struct Worker {
    poll: Poll,
    shared: Arc<Shared>,
    mailbox: Arc<Mailbox>,
    counters: Arc<Counters>,
    access: Option<AccessSender>,
    outbox: Option<Outbox>,
    config: Arc<Config>,
    secrets: Arc<TicketSecrets>,
    number: usize,
    clock: Clock,
    running: RunningTime,
    now: Now,
    net: RealNet,
    scratch: Scratch,
    pipes: Rc<Pipes>,
    failures: FailureLog,
    acceptors: Slab<Acceptor>,
    first_acceptor: usize,
    /// Who is asked about new clients.
    admission: Rc<WorkerAdmission>,
    /// By backend index; kept when only ticket keys change.
    pools: Rc<[Rc<Pool>]>,
    /// On the heap each: growing the slab then moves pointers, not connections.
    connections: Slab<Box<Entry>>,
    /// Connections to advance, established ones apart from handshakes.
    established: VecDeque<usize>,
    handshaking: VecDeque<usize>,
    /// Where signatures are asked for that the worker does not make.
    signing: WorkerSigning,
    handshakes: usize,
    /// Those of them that wait for a signature.
    unsigned: Unsigned,
    shares: Shares,
    /// Of the kernel's queues.
    backlog: Backlog,
    /// Those of them without a whole hello, the oldest first.
    without_hello: IndexQueue,
    timers: Timers<Alarm>,
    sweeps: VecDeque<Sweep>,
    alarms: u32,
    reserve: ReserveFd,
    paused_until: Option<Duration>,
    /// When listening sockets are looked at of which the poll says nothing.
    quiet_until: Duration,
    pauses: RateLimit,
    /// Accepting is paused because another process serves these sockets.
    is_parked: bool,
    /// When this process began to accept clients, or to accept them again; nothing before it has.
    accepts_since: Option<Duration>,
    ending: Ending,
}

/// What a worker is started with.
#[derive(Debug)]
pub struct Start {
    pub number: usize,
    pub common: Common,
    /// The mailbox's waker belongs to it.
    pub poll: Poll,
    pub mailbox: Arc<Mailbox>,
    /// Where lines of the access log go; absent without one.
    pub access: Option<AccessSender>,
    pub sockets: Vec<BoundListener>,
}

/// A connection and its place in the worker's queues.
#[derive(Debug)]
struct Entry {
    connection: Connection<RealNet>,
    queued: bool,
    handshaking: bool,
    /// The earliest alarm that is set, and its number: a later one replaces it.
    alarm_at: Duration,
    alarm: u32,
}

/// A timer entry; stale when the slot has another alarm by now.
#[derive(Clone, Copy, Debug)]
struct Alarm {
    index: u32,
    number: u32,
}

/// Whether and how the worker is coming to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    No,
    Draining,
    Now,
}

impl Worker {
    /// Takes over poll and sockets, and builds the listeners.
    ///
    /// # Errors
    ///
    /// When TLS configurations cannot be built, or a descriptor is missing.
    pub fn new(start: Start) -> io::Result<Self> {
        let Common {
            shared,
            adopted,
            secrets,
            outboxes,
            is_parked,
            ..
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
            poll: start.poll,
            counters: Arc::clone(&shared.counters[start.number]),
            shared,
            mailbox: start.mailbox,
            access: start.access,
            outbox: outboxes.get(start.number).cloned(),
            config: Arc::clone(adopted.config()),
            secrets,
            number: start.number,
            clock,
            running: RunningTime::new(now.mono),
            now,
            net,
            scratch: Scratch::default(),
            pipes,
            failures: FailureLog::default(),
            acceptors: Slab::new(),
            first_acceptor: 0,
            admission,
            pools: Rc::new([]),
            connections: Slab::new(),
            established: VecDeque::new(),
            handshaking: VecDeque::new(),
            signing,
            handshakes: 0,
            unsigned: Unsigned::default(),
            shares: Shares::new(),
            backlog: Backlog::default(),
            without_hello: IndexQueue::new(),
            timers: Timers::new(now.running, TICK),
            sweeps: VecDeque::new(),
            alarms: 0,
            reserve: ReserveFd::new()?,
            paused_until: None,
            quiet_until: Duration::ZERO,
            pauses: RateLimit::per_second(1),
            is_parked,
            accepts_since: (!is_parked).then_some(now.running),
            ending: Ending::No,
        };
        worker.take_over(&adopted, start.sockets)?;
        Ok(worker)
    }

    /// Serves until told to end.
    ///
    /// # Errors
    ///
    /// When the poll fails, which is a fault of the system or ours.
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

    /// Does what there is to do after a sleep of at most `sleep`.
    fn turn(&mut self, events: &Events, sleep: Option<Duration>) {
        let now = self.clock.now();
        let sleep = sleep.unwrap_or(Duration::MAX);
        let running = self.running.advance(now.mono, sleep);
        self.now = Now { running, ..now };
        self.counters.turns.add(1);
        for event in events {
            match event.token() {
                Token(MAILBOX) => {}
                Token(token) => self.note(token, event),
            }
        }
        // After what is about sockets: a message may replace one, and the new one has not said a word.
        self.look_for_mail();
        self.expire();
        self.advance_sweeps();
        self.share_time();
        self.close_retired();
    }

    fn note(&mut self, token: usize, event: &Event) {
        if token >= FIRST_ACCEPTOR {
            if let Some(acceptor) = self.acceptors.get_mut(token - FIRST_ACCEPTOR) {
                acceptor.ready = true;
            }
        } else {
            self.note_connection(token, readiness(event));
        }
    }

    fn note_connection(&mut self, token: usize, ready: Ready) {
        let (index, side) = address_of(token);
        // A slot that was emptied in this turn may be reported once more.
        let Some(entry) = self.connections.get_mut(index) else {
            return;
        };
        if entry.connection.handle_ready(side, ready) {
            self.enqueue(index);
        }
    }

    fn enqueue(&mut self, index: usize) {
        let Some(entry) = self.connections.get_mut(index) else {
            return;
        };
        if entry.queued {
            return;
        }
        entry.queued = true;
        if entry.handshaking {
            self.handshaking.push_back(index);
        } else {
            self.established.push_back(index);
        }
    }

    /// Runs one step of a connection and deals with what it left behind.
    fn advance(
        &mut self,
        index: usize,
        step: impl FnOnce(&mut Connection<RealNet>, &mut Turn<'_, RealNet>, &mut Scratch) -> Advanced,
    ) {
        let Some(entry) = self.connections.get_mut(index) else {
            return;
        };
        entry.queued = false;
        self.net.serve(token_of(index, Side::Server));
        let mut turn = Turn {
            net: &mut self.net,
            place: index,
            now: self.now,
            counters: &self.counters,
            limits: &self.config.file.limits,
            timeouts: &self.config.file.timeouts,
            failures: &mut self.failures,
            admission: &self.admission,
            cancels: &self.shared.cancels,
            pipes: &self.pipes,
            signing: Some(&self.signing),
            access: self.access.as_ref(),
            draining: self.ending == Ending::Draining,
        };
        let advanced = step(&mut entry.connection, &mut turn, &mut self.scratch);
        self.count_handshake(index);
        match advanced {
            Advanced::Ended(reason) => self.close(index, reason),
            Advanced::Waiting => self.set_alarm(index),
            Advanced::Unfinished => {
                self.set_alarm(index);
                self.enqueue(index);
            }
        }
    }

    /// Keeps count of the handshakes under way; one that waits for a slot before its handshake is
    /// none until it has one.
    fn count_handshake(&mut self, index: usize) {
        let Some(entry) = self.connections.get_mut(index) else {
            return;
        };
        let handshaking = entry.connection.is_handshaking();
        if !entry.handshaking && !handshaking {
            return;
        }
        if handshaking && !entry.handshaking {
            self.handshakes += 1;
        } else if entry.handshaking && !handshaking {
            self.handshakes -= 1;
        }
        entry.handshaking = handshaking;
        if entry.connection.lacks_hello() {
            self.without_hello.push(index);
        } else {
            self.without_hello.remove(index);
        }
        match entry.connection.wants_signature() {
            Some(offload) => self.unsigned.push(index, offload, self.now.running),
            None => self.unsigned.remove(index),
        }
    }

    /// Makes sure that an alarm rings no later than the deadline. A later deadline needs none
    /// now: the alarm that is set will find it.
    fn set_alarm(&mut self, index: usize) {
        let Some(entry) = self.connections.get_mut(index) else {
            return;
        };
        let mut deadline = entry.connection.deadline();
        if deadline >= entry.alarm_at {
            return;
        }
        if entry.handshaking {
            // Soon enough for the phase after it, which then needs no alarm of its own.
            deadline = deadline.min(self.now.running + self.config.file.timeouts.connect);
        }
        deadline = deadline.min(self.now.running + FARTHEST_ALARM);
        self.alarms = self.alarms.wrapping_add(1);
        entry.alarm_at = deadline;
        entry.alarm = self.alarms;
        let alarm = Alarm {
            // A worker has fewer connections than descriptors, and those are counted by an i32.
            index: index as u32,
            number: self.alarms,
        };
        self.timers.insert(deadline, alarm);
    }

    fn close(&mut self, index: usize, reason: CloseReason) {
        let entry = self.connections.remove(index);
        if entry.handshaking {
            self.handshakes -= 1;
        }
        self.without_hello.remove(index);
        self.unsigned.remove(index);
        self.counters.closed.of(reason).add(1);
        if reason.may_be_our_fault() && entry.connection.asked_for_ours(&self.config) {
            self.counters.handshakes_failed_by_name.add(1);
        }
        self.shared.release_connection();
        self.paused_until = None;
        if let Some(session) = entry.connection.failed_session(reason) {
            self.forget(session);
        }
        if let Some(access) = &self.access {
            access.send(entry.connection.record(reason, self.now));
        }
    }

    /// Takes a session from the table, and has the peers do the same.
    fn forget(&self, session: SessionName) {
        self.shared.table.remove(session.policy(), session.id());
        if let Some(outbox) = &self.outbox {
            outbox.leave(SessionEvent::Ended(session));
        }
    }

    /// How long the poll may sleep.
    fn timeout(&self) -> Option<Duration> {
        if !self.established.is_empty() || self.has_newcomers() || !self.sweeps.is_empty() {
            return Some(Duration::ZERO);
        }
        let until = |at: Duration| at.saturating_sub(self.now.running);
        let (mut waiting, mut quiet) = (false, false);
        let mut look = self.unsigned.waits().then_some(TICK);
        for (_, acceptor) in &self.acceptors {
            if acceptor.is_overdue(self.now.running) {
                look = Some(GATHER);
            } else if acceptor.is_retiring() {
                look = look.or(Some(TICK));
            }
            quiet |= acceptor.is_quiet() && !self.is_parked;
            waiting |= acceptor.ready && !acceptor.is_retiring() && !self.is_parked;
        }
        let accept = match self.paused_until {
            Some(at) => Some(until(at).max(Duration::from_millis(1))),
            None if waiting => Some(Duration::ZERO),
            None => quiet.then(|| until(self.quiet_until)),
        };
        let alarm = self.timers.next_deadline().map(until);
        let bound = self.backlog.deadline().filter(|_| !self.is_parked);
        let bound = bound.map(until);
        [accept, look, alarm, bound].into_iter().flatten().min()
    }

    fn is_over(&self) -> bool {
        match self.ending {
            Ending::No => false,
            Ending::Draining => self.connections.is_empty() && self.acceptors.is_empty(),
            Ending::Now => true,
        }
    }

    /// Reads the clock: the time in which this thread has run.
    fn time(&mut self) -> Duration {
        self.running.advance(self.clock.mono(), Duration::ZERO)
    }

    /// Counts those who are still here as stopped; dropping the slab closes them.
    fn cut_off(&mut self) {
        let rest: Vec<usize> = self.connections.iter().map(|(index, _)| index).collect();
        for index in rest {
            self.advance(index, |connection, turn, _| {
                Advanced::Ended(connection.stop(turn))
            });
        }
        // Slots that come too late go to somebody else's connections.
        drop(self.mailbox.close());
    }
}

/// Events of a poll call that is not the mailbox's.
fn readiness(event: &Event) -> Ready {
    let failed = event.is_error();
    Ready {
        readable: event.is_readable() || event.is_read_closed() || failed,
        writable: event.is_writable() || event.is_write_closed() || failed,
        ended: event.is_read_closed() || failed,
        failed,
    }
}

/// The token of one socket of a connection.
fn token_of(index: usize, side: Side) -> Token {
    Token(index * 2 + usize::from(side == Side::Server))
}

fn address_of(token: usize) -> (usize, Side) {
    let sides = [Side::Client, Side::Server];
    (token / 2, sides[token % 2])
}

/// The mailbox's token.
pub const MAILBOX: usize = usize::MAX - 1;
/// Tokens from here to the mailbox's are listening sockets.
const FIRST_ACCEPTOR: usize = usize::MAX / 2 + 1;
/// Events taken from the kernel at once: more only delays the first.
const EVENTS: usize = 256;
/// How late a time-out may come.
const TICK: Duration = Duration::from_millis(50);
/// An alarm outlives its connection, and clients could leave those of `timeouts.idle` behind by the million. The wheel
/// would look at them once in 51 s anyway.
const FARTHEST_ALARM: Duration = Duration::from_secs(50);

#[cfg(test)]
mod tests;
