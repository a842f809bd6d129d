//! One client thread: starts due transactions, processes events and expires late connections.
//!
//! The order of a loop turn is: starts (so that an open loop is on time), waiting, events, time-outs.
//! Threads share only the plan, the number of remaining transactions (with `-n`) and the stop flag.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::report::Negotiated;
use mio::{Events, Poll};

use crate::Error;
use crate::clock;
use crate::cpu;
use crate::env::{Env, Live, Timeline};
use crate::failure::Failure;
use crate::plan::{Load, Plan};
use crate::sample::Samples;
use crate::schedule::{Portion, Schedule, Stretch};
use crate::slot::{ClientSlot, SlotState};
use crate::tls::Tls;
use crate::wait;

#[derive(Clone, Debug)]
pub struct ThreadTask {
    pub thread: usize,
    pub plan: Arc<Plan>,
    /// Start of the run, including the warm-up.
    pub begin: Instant,
    pub timeline: Timeline,
    /// Number of transactions that may still start (with `-n`).
    pub budget: Arc<AtomicU64>,
    /// Set to end the run immediately.
    pub stop: Arc<AtomicBool>,
    pub live: Arc<Live>,
}

#[derive(Debug)]
pub struct Harvest {
    /// Samples of each step. Transactions outside all steps are not sampled.
    pub samples: Vec<Samples>,
    /// Parameters negotiated by the last full handshake.
    pub negotiated: Option<Negotiated>,
    /// Time at which the last transaction ended.
    pub ended: Instant,
    /// CPU time of the thread, and its time waiting for a CPU, at each step boundary.
    pub spent: Vec<(Duration, Duration)>,
}

pub struct Worker {
    task: ThreadTask,
    env: Env,
    poll: Poll,
    events: Events,
    slots: Vec<ClientSlot>,
    free: Vec<usize>,
    /// Slots whose last transaction failed, each with the time of its next attempt (closed loop
    /// only).
    resting: VecDeque<(Instant, usize)>,
    /// Slots that may have unread data and must run before the next wait.
    again: Vec<usize>,
    schedule: Option<Schedule>,
    next_sweep: Instant,
    spent: Vec<(Duration, Duration)>,
}

impl Worker {
    /// Creates the poll, TLS client and slots of the thread.
    ///
    /// # Errors
    /// [`Error::Os`] if the poll cannot be created, [`Error::Plan`] from [`Tls::new`].
    pub fn new(task: ThreadTask) -> Result<Self, Error> {
        let plan = Arc::clone(&task.plan);
        let poll = Poll::new().map_err(|e| Error::os("cannot create an epoll instance", e))?;
        let registry = poll
            .registry()
            .try_clone()
            .map_err(|e| Error::os("cannot clone the epoll descriptor", e))?;
        let steps = task.timeline.ends.len().max(1);
        let env = Env {
            tls: match plan.server_name {
                Some(_) => Some(Tls::new(&plan.options.tls)?),
                None => None,
            },
            registry,
            timeline: task.timeline.clone(),
            samples: vec![Samples::default(); steps + 1],
            live: Arc::clone(&task.live),
            input: vec![0; INPUT_BYTES],
            requests: [false, true].map(|last| plan.request(last).into_bytes()),
            opened: task.thread,
            negotiated: None,
            plan,
        };
        let own = Portion {
            index: task.thread,
            of: env.plan.threads,
        };
        let slots = own.part(env.plan.connections as u64) as usize;
        let slots: Vec<ClientSlot> = (0..slots)
            .map(|index| ClientSlot::new(index, index * env.plan.threads + task.thread))
            .collect();
        Ok(Self {
            free: (0..slots.len()).rev().collect(),
            events: Events::with_capacity(EVENTS),
            schedule: schedule(&task),
            next_sweep: task.begin,
            slots,
            resting: VecDeque::new(),
            spent: Vec::new(),
            again: Vec::new(),
            task,
            env,
            poll,
        })
    }

    /// Runs until the plan is complete and all transactions in progress have ended.
    ///
    /// # Errors
    /// [`Error::Os`] if waiting for events fails.
    pub fn run(mut self) -> Result<Harvest, Error> {
        let mut now = clock::now();
        while !self.is_over(now) {
            self.start_due(now);
            self.turn_again();
            self.wait()
                .map_err(|e| Error::os("cannot wait for events", e))?;
            now = clock::now();
            self.note_spent(now);
            self.turn_ready();
            self.sweep(now);
        }
        self.drain()?;
        let ended = clock::now();
        if self.spent.len() <= self.env.timeline.ends.len().max(1) {
            // A run that a transaction count or a signal ends has no CPU time yet for its last step
            // boundary.
            self.spent.push(cpu::of_own_thread().unwrap_or_default());
        }
        for slot in &mut self.slots {
            slot.close(&mut self.env);
        }
        self.env.samples.pop();
        Ok(Harvest {
            samples: self.env.samples,
            negotiated: self.env.negotiated,
            ended,
            spent: self.spent,
        })
    }

    fn note_spent(&mut self, now: Instant) {
        let timeline = &self.env.timeline;
        let past = 1 + timeline.ends.iter().filter(|end| **end <= now).count();
        while now >= timeline.begin && self.spent.len() < past {
            self.spent.push(cpu::of_own_thread().unwrap_or_default());
        }
    }

    fn is_over(&self, now: Instant) -> bool {
        let stopped = self.task.stop.load(Ordering::Relaxed);
        let past = self.env.timeline.end().is_some_and(|end| now >= end);
        let counted = matches!(self.env.plan.load, Load::ClosedCount(_));
        stopped || past || (counted && self.task.budget.load(Ordering::Relaxed) == 0)
    }

    fn start_due(&mut self, now: Instant) {
        while let Some((_, slot)) = self.resting.front().copied().filter(|(at, _)| *at <= now) {
            self.resting.pop_front();
            self.free.push(slot);
        }
        match self.schedule {
            Some(_) => self.start_scheduled(now),
            None => self.start_free(now),
        }
        let busy = self.slots.len() - self.free.len();
        self.env.live.busy.store(busy as u64, Ordering::Relaxed);
    }

    /// Starts transactions in a closed loop: one per free slot, up to a limit per turn.
    fn start_free(&mut self, now: Instant) {
        if now < self.task.begin {
            return;
        }
        for _ in 0..STARTS_PER_TURN {
            let Some(slot) = self.free.pop() else { return };
            if !self.take_budget() {
                self.free.push(slot);
                return;
            }
            let intended = clock::now();
            self.start(slot, intended);
        }
    }

    fn start_scheduled(&mut self, now: Instant) {
        self.skip_warm_up(now);
        for _ in 0..STARTS_PER_TURN {
            let Some(intended) = self.next_start().filter(|intended| *intended <= now) else {
                return;
            };
            let Some(slot) = self.free.pop() else { return };
            self.advance();
            self.start(slot, intended);
        }
    }

    /// Drops the starts that were due during the warm-up but have not happened, because they would delay the first
    /// step.
    fn skip_warm_up(&mut self, now: Instant) {
        let begin = self.env.timeline.begin;
        while now >= begin && self.next_start().is_some_and(|intended| intended < begin) {
            self.advance();
        }
    }

    fn advance(&mut self) {
        if let Some(schedule) = &mut self.schedule {
            schedule.advance();
        }
    }

    fn next_start(&self) -> Option<Instant> {
        let offset = self.schedule.as_ref()?.peek()?;
        Some(self.task.begin + offset)
    }

    fn take_budget(&self) -> bool {
        if !matches!(self.env.plan.load, Load::ClosedCount(_)) {
            return true;
        }
        let take = |left: u64| left.checked_sub(1);
        self.task
            .budget
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok()
    }

    fn start(&mut self, slot: usize, intended: Instant) {
        let outcome = self.slots[slot].start(intended, &mut self.env);
        self.settle(slot, outcome);
    }

    fn settle(&mut self, slot: usize, outcome: SlotState) {
        match outcome {
            SlotState::Waiting => {}
            SlotState::Again => self.again.push(slot),
            SlotState::Ready => self.free.push(slot),
            SlotState::Failed if self.schedule.is_some() => self.free.push(slot),
            // Without this delay, a closed loop would spin on a server that refuses connections.
            SlotState::Failed => self.resting.push_back((clock::now() + REST, slot)),
        }
    }

    fn turn_again(&mut self) {
        for slot in std::mem::take(&mut self.again) {
            let outcome = self.slots[slot].turn(&mut self.env, false);
            self.settle(slot, outcome);
        }
    }

    fn turn_ready(&mut self) {
        let events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        for event in &events {
            let slot = event.token().0;
            let outcome = self.slots[slot].turn(&mut self.env, event.is_read_closed());
            self.settle(slot, outcome);
        }
        self.events = events;
    }

    fn sweep(&mut self, now: Instant) {
        if now < self.next_sweep {
            return;
        }
        self.next_sweep = now + SWEEP;
        for slot in 0..self.slots.len() {
            let outcome = self.slots[slot].expire(now, &mut self.env);
            self.settle(slot, outcome);
        }
    }

    fn wait(&mut self) -> io::Result<()> {
        let now = clock::now();
        let mut due = self.next_sweep.max(now);
        if !self.again.is_empty() {
            due = now;
        }
        if let Some((at, _)) = self.resting.front() {
            due = due.min(*at);
        }
        if !self.free.is_empty() {
            let begin = self.task.begin;
            let start = if self.schedule.is_some() {
                self.next_start()
            } else {
                Some(begin)
            };
            let none_left = matches!(self.env.plan.load, Load::ClosedCount(_))
                && self.task.budget.load(Ordering::Relaxed) == 0;
            due = start
                .filter(|_| !none_left)
                .map_or(due, |start| due.min(start));
        }
        if let Some(end) = self.env.timeline.end() {
            due = due.min(end);
        }
        let time = due.saturating_duration_since(now);
        if self.schedule.is_some() {
            wait::precisely(&mut self.poll, &mut self.events, time)
        } else {
            wait::coarsely(&mut self.poll, &mut self.events, time)
        }
    }

    fn drain(&mut self) -> Result<(), Error> {
        let end = clock::now();
        let stopped = self.task.stop.load(Ordering::Relaxed);
        let limit = match self.env.plan.load {
            // A run with `-n` ends only after all requested transactions.
            Load::ClosedCount(_) if !stopped => Duration::MAX,
            _ => DRAIN_LIMIT,
        };
        let give_up = end + self.env.plan.options.load.time_out.min(limit) + SWEEP * 2;
        if !stopped {
            // Fail all starts that are overdue by more than MISSED, because a backlog must not start as one burst.
            self.refuse_until(end.checked_sub(MISSED));
        }
        loop {
            if !stopped {
                self.start_scheduled(end);
            }
            let due = !stopped && self.next_start().is_some_and(|intended| intended <= end);
            let busy = due || self.slots.iter().any(ClientSlot::is_busy);
            if !busy || clock::now() >= give_up {
                break;
            }
            self.turn_again();
            let wait = if self.again.is_empty() {
                Duration::from_millis(10)
            } else {
                Duration::ZERO
            };
            wait::coarsely(&mut self.poll, &mut self.events, wait)
                .map_err(|e| Error::os("cannot wait for events", e))?;
            self.turn_ready();
            self.sweep(clock::now());
        }
        if !stopped {
            self.refuse_until(Some(end));
        }
        Ok(())
    }

    /// Records a failure for each transaction that was due before `until` and has not started.
    fn refuse_until(&mut self, until: Option<Instant>) {
        self.skip_warm_up(clock::now());
        while let Some(intended) = self
            .next_start()
            .filter(|intended| Some(*intended) <= until)
            && !self.task.stop.load(Ordering::Relaxed)
        {
            self.advance();
            let step = self.env.timeline.step_of(intended);
            let samples = self.env.samples(step);
            samples.attempted += 1;
            samples.fail(Failure::NotStarted);
        }
    }
}

/// Returns the thread's schedule in an open loop. The warm-up has the rate of the first step.
fn schedule(task: &ThreadTask) -> Option<Schedule> {
    let Load::Open(stretches) = &task.plan.load else {
        return None;
    };
    let warm_up = Stretch {
        rate: stretches.first()?.rate,
        length: task.plan.warm_up,
    };
    let all = [&[warm_up], &stretches[..]].concat();
    // The threads of all agents take turns: the first thread of each agent, then the second one of each.
    let Portion { index, of } = task.plan.share;
    let (thread, threads) = (task.thread * of + index, task.plan.threads * of);
    Some(Schedule::new(all, thread, threads))
}

/// Size of the input buffer in bytes: more than a socket's receive buffer usually holds.
const INPUT_BYTES: usize = 128 * 1024;
const EVENTS: usize = 1024;
/// Maximum starts per loop turn, so that a thousand connections do not overflow the server's listen queue.
const STARTS_PER_TURN: usize = 64;
/// Delay before a slot retries after a failure in a closed loop.
const REST: Duration = Duration::from_millis(10);
/// Interval between checks for expired connections.
const SWEEP: Duration = Duration::from_millis(50);
/// Maximum delay of a start at the end of the run. A longer delay counts as a failure.
const MISSED: Duration = Duration::from_millis(20);
/// Maximum time to wait for transactions in progress at the end of the run.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);
