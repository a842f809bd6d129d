//! A run from beginning to end: threads, boundaries of steps, signals, the report.
//!
//! The main thread does no work of its own: it sleeps until the next boundary or the next second,
//! reads CPU times there, and collects what the threads give back.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use becket_stats::report::{Conditions, Negotiated, Report, Step};

use crate::Error;
use crate::clock;
use crate::cpu::{self, Spent};
use crate::env::{Live, Timeline};
use crate::plan::{Load, Plan};
use crate::progress::Progress;
use crate::sample::Samples;
use crate::summary::{self, Around};
use crate::worker::{Harvest, Task, Worker};

/// Does what the plan says, and reports. `stop` ends the run early; the report covers what was done.
///
/// # Errors
/// [`Error`]: nothing was measured then.
pub fn run(plan: Plan, stop: &Arc<AtomicBool>) -> Result<Report, Error> {
    let plan = prepare(plan)?;
    let conditions = conditions(&plan);
    let plan = Arc::new(plan);
    let crew = Crew::start(&plan, stop)?;
    let (marks, harvests) = crew.watch(&plan, stop)?;
    let mut report = assemble(&plan, &marks, harvests, conditions);
    report.interrupted = stop.load(Ordering::Relaxed);
    Ok(report)
}

/// Checks what would make the whole run void, and settles on an address that answers.
fn prepare(mut plan: Plan) -> Result<Plan, Error> {
    cpu::of_processes(&plan.pids)?;
    let wanted = plan.connections as u64 + DESCRIPTORS_BESIDE;
    becket_sys::rlimit::raise_open_files(wanted).map_err(|e| {
        let count = plan.connections;
        Error::os(format!("{count} connections need {wanted} file descriptors (raise `ulimit -n`, or lower -c)"), e)
    })?;
    let mut refusal = None;
    for address in std::mem::take(&mut plan.addresses) {
        match TcpStream::connect_timeout(&address, plan.time_out) {
            Ok(_) => {
                plan.addresses = vec![address];
                return Ok(plan);
            }
            Err(error) => {
                refusal = Some(format!(
                    "cannot connect to {} ({address}): {error}",
                    plan.target
                ))
            }
        }
    }
    Err(Error::Unreachable(refusal.unwrap_or_else(|| {
        format!("{} has no address", plan.target)
    })))
}

/// The threads at work.
struct Crew {
    threads: Vec<JoinHandle<()>>,
    tids: Vec<i32>,
    lives: Vec<Arc<Live>>,
    results: mpsc::Receiver<Result<Harvest, Error>>,
    timeline: Timeline,
    begin: Instant,
}

/// What was read at a boundary.
#[derive(Clone, Debug)]
struct Mark {
    /// Where the boundary lies.
    at: Instant,
    /// When the main thread came to read it, some time later.
    read: Instant,
    server: Spent,
    /// Running and waiting time of each thread.
    threads: Vec<(Duration, Duration)>,
}

impl Crew {
    fn start(plan: &Arc<Plan>, stop: &Arc<AtomicBool>) -> Result<Self, Error> {
        let begin = clock::now() + SETTLE;
        let timeline = Timeline::new(begin + plan.warm_up, &plan.steps());
        let budget = match plan.load {
            Load::ClosedCount(count) => count,
            _ => 0,
        };
        let budget = Arc::new(AtomicU64::new(budget));
        let (tid_sender, tid_receiver) = mpsc::channel();
        let (sender, results) = mpsc::channel();
        let mut crew = Self {
            threads: vec![],
            tids: vec![],
            lives: vec![],
            results,
            timeline,
            begin,
        };
        for thread in 0..plan.threads {
            let live = Arc::new(Live::default());
            crew.lives.push(Arc::clone(&live));
            let task = Task {
                thread,
                plan: Arc::clone(plan),
                begin,
                timeline: crew.timeline.clone(),
                budget: Arc::clone(&budget),
                stop: Arc::clone(stop),
                live,
            };
            let (sender, tids) = (sender.clone(), tid_sender.clone());
            let cpu = plan.cpus.get(thread % plan.cpus.len().max(1)).copied();
            let spawned = std::thread::Builder::new()
                .name(format!("load-{thread}"))
                .spawn(move || {
                    let told = tids.send(rustix::thread::gettid().as_raw_nonzero().get());
                    let result = pin(cpu)
                        .and_then(|()| Worker::new(task))
                        .and_then(Worker::run);
                    // The main thread may have given up: then nobody wants to know.
                    drop((told, sender.send(result)));
                });
            crew.threads
                .push(spawned.map_err(|e| Error::os("starting a thread", e))?);
        }
        drop(tid_sender);
        crew.tids = tid_receiver.iter().take(plan.threads).collect();
        Ok(crew)
    }

    /// Waits for the end, reading the CPU times at every boundary.
    fn watch(mut self, plan: &Plan, stop: &AtomicBool) -> Result<(Vec<Mark>, Vec<Harvest>), Error> {
        let mut boundaries = vec![self.timeline.begin()];
        boundaries.extend_from_slice(self.timeline.ends());
        let mut boundaries = boundaries.into_iter().peekable();
        let mut progress = Progress::new(self.lives.clone(), self.begin);
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
                marks.push(self.mark(plan, boundary, &harvests));
            }
            if now >= tick {
                tick += SECOND;
                if plan.progress {
                    eprintln!("{}", progress.line(now));
                }
            }
        }
        if marks.len() <= self.timeline.ends().len().max(1) {
            // The run ended by count or by signal: that is its last boundary.
            let ended = harvests.iter().flatten().map(|harvest| harvest.ended).max();
            marks.push(self.mark(plan, ended.unwrap_or_else(clock::now), &harvests));
        }
        let harvests = harvests.into_iter().collect::<Result<Vec<Harvest>, _>>()?;
        self.complete(&mut marks, &harvests);
        self.threads
            .drain(..)
            .for_each(|thread| drop(thread.join()));
        Ok((marks, harvests))
    }

    /// Reads all CPU times. A thread that is gone has told what it had spent.
    /// Fills in threads that had gone when a boundary was read and had not been heard of yet.
    fn complete(&self, marks: &mut [Mark], harvests: &[Harvest]) {
        for mark in marks.iter_mut().skip(1) {
            for (spent, tid) in mark.threads.iter_mut().zip(&self.tids) {
                let gone = *spent == Default::default();
                if let Some(harvest) = harvests.iter().find(|h| gone && h.tid == *tid) {
                    *spent = harvest.spent;
                }
            }
        }
    }

    fn mark(&self, plan: &Plan, at: Instant, harvests: &[Result<Harvest, Error>]) -> Mark {
        let told = |tid: i32| {
            harvests
                .iter()
                .flatten()
                .find(|h| h.tid == tid)
                .map(|h| h.spent)
        };
        let thread = |tid: &i32| {
            told(*tid)
                .or_else(|| cpu::of_own_thread(*tid))
                .unwrap_or_default()
        };
        Mark {
            at,
            read: clock::now(),
            server: cpu::of_processes(&plan.pids).unwrap_or_default(),
            threads: self.tids.iter().map(thread).collect(),
        }
    }
}

fn pin(cpu: Option<usize>) -> Result<(), Error> {
    let Some(cpu) = cpu else { return Ok(()) };
    let finest = std::num::NonZeroU64::new(1);
    // Only precision is lost without it.
    rustix::thread::set_current_timer_slack(finest).unwrap_or(());
    becket_sys::affinity::pin_current_thread(cpu)
        .map_err(|e| Error::os(format!("pinning to CPU {cpu}"), e))
}

fn assemble(plan: &Plan, marks: &[Mark], harvests: Vec<Harvest>, conditions: Conditions) -> Report {
    let mut negotiated: Option<Negotiated> = None;
    let mut merged: Vec<Samples> = Vec::new();
    for harvest in harvests {
        negotiated = negotiated.or(harvest.negotiated);
        merged.resize_with(merged.len().max(harvest.samples.len()), Samples::default);
        merged
            .iter_mut()
            .zip(&harvest.samples)
            .for_each(|(into, from)| into.merge(from));
    }
    if let Some(negotiated) = negotiated.as_mut().filter(|n| n.version == "TLSv1_3") {
        let each = |tickets: u64, handshakes: u64| {
            (handshakes > 0).then(|| tickets as f64 / handshakes as f64)
        };
        let sum = |of: fn(&Samples) -> u64| merged.iter().map(of).sum::<u64>();
        negotiated.tickets_per_full = each(sum(|s| s.tickets_full), sum(|s| s.handshakes.full));
        negotiated.tickets_per_resumed =
            each(sum(|s| s.tickets_resumed), sum(|s| s.handshakes.resumed()));
    }
    let steps: Vec<Step> = marks
        .windows(2)
        .zip(&merged)
        .enumerate()
        .map(|(index, (pair, samples))| summary::step(plan, index, samples, &around(plan, pair)))
        .collect();
    summary::report(plan, steps, negotiated, conditions)
}

/// What was spent between two boundaries. Rates go by where the boundaries lie; CPU times, which were
/// read a little later, are scaled to that.
fn around(plan: &Plan, pair: &[Mark]) -> Around {
    let [from, to] = pair else {
        return Around::default();
    };
    let seconds = to.at.saturating_duration_since(from.at).as_secs_f64();
    let read = to
        .read
        .saturating_duration_since(from.read)
        .as_secs_f64()
        .max(1e-9);
    let scale = |time: Duration| time.mul_f64(seconds / read);
    let spans = from.threads.iter().zip(&to.threads);
    let spans: Vec<(Duration, Duration)> = spans
        .map(|(from, to)| (to.0.saturating_sub(from.0), to.1.saturating_sub(from.1)))
        .collect();
    let busy = spans
        .iter()
        .map(|(ran, waited)| (*ran + *waited).as_secs_f64() / read);
    let server = to.server.since(from.server);
    Around {
        seconds,
        client: scale(spans.iter().map(|(ran, _)| *ran).sum()),
        busiest: busy.fold(0.0, f64::max).min(1.0),
        server: (!plan.pids.is_empty()).then(|| Spent {
            user: scale(server.user),
            system: scale(server.system),
        }),
    }
}

fn conditions(plan: &Plan) -> Conditions {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let model = read("/proc/cpuinfo");
    let model = model
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let pinned =
        (0..plan.threads).filter_map(|thread| plan.cpus.get(thread % plan.cpus.len().max(1)));
    Conditions {
        cpu: model.map_or("unknown", |(_, name)| name.trim()).to_owned(),
        cpus: becket_sys::affinity::allowed_cpus().map_or(0, |cpus| cpus.len()),
        pinned_to: pinned.copied().collect(),
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        started_unix_s: clock::unix_seconds(),
    }
}

/// Threads make their configurations and slots in this time.
const SETTLE: Duration = Duration::from_millis(50);
const SECOND: Duration = Duration::from_secs(1);
/// Polls, standard streams, libraries.
const DESCRIPTORS_BESIDE: u64 = 64;
