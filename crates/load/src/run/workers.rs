//! Starts the threads of a run and watches them from the main thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use becket_stats::units::{show_count, show_rate};

use crate::Error;
use crate::clock;
use crate::cpu::{self, Spent};
use crate::env::{Live, Timeline};
use crate::plan::{Load, Plan};
use crate::worker::{Harvest, ThreadTask, Worker};

pub(super) struct Workers {
    threads: Vec<JoinHandle<()>>,
    lives: Vec<Arc<Live>>,
    results: mpsc::Receiver<Result<Harvest, Error>>,
    timeline: Timeline,
    begin: Instant,
}

#[derive(Clone, Debug)]
pub(super) struct Mark {
    pub(super) at: Instant,
    /// Time at which the main thread read the CPU times, slightly after `at`.
    pub(super) read: Instant,
    pub(super) server: Spent,
}

impl Workers {
    pub(super) fn start(
        plan: &Arc<Plan>,
        begin: Instant,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self, Error> {
        let timeline = Timeline::new(begin + plan.warm_up, &plan.steps());
        let budget = match plan.load {
            Load::ClosedCount(count) => count,
            _ => 0,
        };
        let budget = Arc::new(AtomicU64::new(budget));
        let (sender, results) = mpsc::channel();
        let mut workers = Self {
            threads: vec![],
            lives: vec![],
            results,
            timeline,
            begin,
        };
        for thread in 0..plan.threads {
            let live = Arc::new(Live::default());
            workers.lives.push(Arc::clone(&live));
            let task = ThreadTask {
                thread,
                plan: Arc::clone(plan),
                begin,
                timeline: workers.timeline.clone(),
                budget: Arc::clone(&budget),
                stop: Arc::clone(stop),
                live,
            };
            let sender = sender.clone();
            let cpu = plan.cpu(thread);
            let spawned = std::thread::Builder::new()
                .name(format!("load-{thread}"))
                .spawn(move || {
                    let result = pin(cpu)
                        .and_then(|()| Worker::new(task))
                        .and_then(Worker::run);
                    // The receiver is closed if the main thread has already returned an error.
                    drop(sender.send(result));
                });
            workers
                .threads
                .push(spawned.map_err(|e| Error::os("cannot start a thread", e))?);
        }
        Ok(workers)
    }

    /// Waits for the end of the run and reads the CPU times at each step boundary.
    pub(super) fn watch(
        mut self,
        plan: &Plan,
        stop: &AtomicBool,
    ) -> Result<(Vec<Mark>, Vec<Harvest>), Error> {
        let mut boundaries = vec![self.timeline.begin];
        boundaries.extend_from_slice(&self.timeline.ends);
        let mut boundaries = boundaries.into_iter().peekable();
        let mut before = [0; 3];
        let mut tick = self.begin + SECOND;
        let (mut marks, mut harvests) = (Vec::new(), Vec::new());
        while harvests.len() < plan.threads {
            let next = boundaries
                .peek()
                .map_or(tick, |boundary| tick.min(*boundary));
            match self
                .results
                .recv_timeout(next.saturating_duration_since(clock::now()))
            {
                Ok(harvest) => {
                    if harvest.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    harvests.push(harvest);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let now = clock::now();
            while let Some(boundary) = boundaries.next_if(|boundary| *boundary <= now) {
                marks.push(Mark::now(plan, boundary));
            }
            if now >= tick {
                tick += SECOND;
                if !plan.options.measuring.quiet {
                    let elapsed = now.saturating_duration_since(self.begin);
                    before = show_progress(&self.lives, elapsed, before);
                }
            }
        }
        if marks.len() <= self.timeline.ends.len().max(1) {
            // If a transaction count or a signal ends the run, the end of the last transaction is
            // the last step boundary.
            let ended = harvests.iter().flatten().map(|harvest| harvest.ended).max();
            marks.push(Mark::now(plan, ended.unwrap_or_else(clock::now)));
        }
        let harvests = harvests.into_iter().collect::<Result<Vec<Harvest>, _>>()?;
        self.threads
            .drain(..)
            .for_each(|thread| drop(thread.join()));
        Ok((marks, harvests))
    }
}

impl Mark {
    fn now(plan: &Plan, at: Instant) -> Self {
        Self {
            at,
            read: clock::now(),
            server: cpu::of_processes(&plan.options.measuring.pid).unwrap_or_default(),
        }
    }
}

fn show_progress(lives: &[Arc<Live>], elapsed: Duration, before: [u64; 3]) -> [u64; 3] {
    let sum = |counter: fn(&Live) -> &AtomicU64| -> u64 {
        let counters = lives.iter().map(|live| counter(live));
        counters
            .map(|counter| counter.load(Ordering::Relaxed))
            .sum()
    };
    let sums = [
        sum(|it| &it.completed),
        sum(|it| &it.failed),
        sum(|it| &it.busy),
    ];
    let [completed, failed, busy] = sums;
    eprintln!(
        "{:>5.0} s  {:>12}  failed {:>8}  busy {busy:>6}",
        elapsed.as_secs_f64(),
        show_rate(completed.saturating_sub(before[0]) as f64),
        show_count(failed.saturating_sub(before[1])),
    );
    sums
}

fn pin(cpu: Option<usize>) -> Result<(), Error> {
    let Some(cpu) = cpu else { return Ok(()) };
    let finest = std::num::NonZeroU64::new(1);
    // Best effort: a larger timer slack only reduces precision.
    rustix::thread::set_current_timer_slack(finest).unwrap_or(());
    becket_sys::affinity::pin_current_thread(cpu)
        .map_err(|e| Error::os(format!("cannot pin a thread to CPU {cpu}"), e))
}

/// Time for the threads to create their configurations and slots before the run begins.
pub(super) const SETTLE: Duration = Duration::from_millis(50);
const SECOND: Duration = Duration::from_secs(1);
