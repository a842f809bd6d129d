//! The agent: accepts coordinators and generates load for one of them at a time.
//!
//! Each connection has a thread, and their number is limited. A run ends when its coordinator's connection ends, at
//! `--longest`, and when the agent stops. A line on standard error reports each run and, at most once per second,
//! rejected connections.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use clap::Parser;
use rustls::{Connection, ServerConfig, ServerConnection};

use super::channel::{Channel, TURN};
use super::identity;
use super::protocol::{Answer, MOST_ORDER, Order, Ready, RunOrder};
use crate::cli::Cli;
use crate::fleet_options::{AgentOptions, MOST_AGENTS};
use crate::outcome::Outcome;
use crate::plan::{Load, Plan};
use crate::{Error, clock, run};

/// Serves coordinators until `stop` is set. Returns `false` with `--once` if the run was not complete.
///
/// # Errors
/// [`Error::Plan`] for an invalid option, [`Error::Os`] if the address cannot be bound.
pub fn serve(options: &AgentOptions, stop: &AtomicBool) -> Result<bool, Error> {
    let config = identity::of_agent(&options.files)?;
    let bound = TcpListener::bind(&options.listen).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok((listener.local_addr()?, listener))
    });
    let bound = bound.map_err(|e| Error::os(format!("cannot listen on {}", options.listen), e));
    let (address, listener) = bound?;
    if options.allow.is_empty() {
        eprintln!("becket-load: no target is allowed, so every run will be refused; see --allow");
    }
    println!("listening on {address}");
    let agent = Agent {
        options,
        config,
        stop,
        runs: Mutex::new(None),
        connections: AtomicUsize::new(0),
        rejections: Mutex::new((None, 0)),
    };
    thread::scope(|scope| {
        let ended = || options.once && agent.runs.try_lock().is_ok_and(|runs| runs.is_some());
        while !stop.load(Ordering::Relaxed) && !ended() {
            match listener.accept() {
                Ok((socket, peer)) => agent.accept(scope, socket, peer),
                Err(_) => thread::sleep(ACCEPT_INTERVAL),
            }
        }
    });
    let last = agent.runs.lock().is_ok_and(|last| *last == Some(true));
    Ok(last || !options.once)
}

struct Agent<'a> {
    options: &'a AgentOptions,
    config: Arc<ServerConfig>,
    stop: &'a AtomicBool,
    /// Locked during a run. Holds whether the last run was complete; `None` before it.
    runs: Mutex<Option<bool>>,
    connections: AtomicUsize,
    /// Time of the last line about a rejected connection, and the number of rejections since.
    rejections: Mutex<(Option<Instant>, u64)>,
}

impl Agent<'_> {
    fn accept<'s>(&'s self, scope: &'s thread::Scope<'s, '_>, socket: TcpStream, peer: SocketAddr) {
        if self.connections.fetch_add(1, Ordering::Relaxed) >= MOST_CONNECTIONS {
            self.connections.fetch_sub(1, Ordering::Relaxed);
            return self.reject(peer, &"too many connections");
        }
        scope.spawn(move || {
            if let Err(error) = self.converse(socket, peer) {
                self.reject(peer, &error);
            }
            self.connections.fetch_sub(1, Ordering::Relaxed);
        });
    }

    fn reject(&self, peer: SocketAddr, why: &dyn std::fmt::Display) {
        let Ok(mut rejections) = self.rejections.lock() else {
            return;
        };
        let (last, since) = &mut *rejections;
        *since += 1;
        let now = clock::now();
        if last.is_none_or(|last| now >= last + LOG_INTERVAL) {
            eprintln!(
                "becket-load: connection of {peer} ended: {why} ({since} since the last line)"
            );
            (*last, *since) = (Some(now), 0);
        }
    }

    /// Serves one coordinator. Returns an error if the connection ends before a run.
    fn converse(&self, socket: TcpStream, peer: SocketAddr) -> io::Result<()> {
        let until = clock::now() + PREPARATION;
        let tls = ServerConnection::new(Arc::clone(&self.config)).map_err(io::Error::other)?;
        let patience = clock::now() + HANDSHAKE;
        let tls = Connection::Server(tls);
        let mut channel = Channel::establish(tls, socket, MOST_ORDER, patience)?;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        channel.send(&Answer::Welcome { version }, until)?;
        let Order::Run(order) = channel.receive(until)? else {
            return Err(unexpected());
        };
        let mut runs = match self.runs.try_lock() {
            Ok(runs) => runs,
            Err(TryLockError::WouldBlock) => {
                return refuse(&mut channel, peer, "another run is in progress", until);
            }
            Err(TryLockError::Poisoned(_)) => return Err(io::Error::other("a run panicked")),
        };
        let share = order.share;
        let prepared = plan_of(self.options, order).and_then(run::prepare);
        let plan = match prepared {
            Ok(plan) => Arc::new(plan),
            Err(error) => return refuse(&mut channel, peer, &error.to_string(), until),
        };
        let ready = Ready {
            threads: plan.threads,
            longest_s: self.options.longest.as_secs_f64(),
            conditions: run::conditions(&plan),
        };
        channel.send(&Answer::Ready(ready), until)?;
        let begin = agree(&mut channel, until)?;
        let (number, of) = (share.index + 1, share.of);
        let (target, connections) = (&plan.target, plan.connections);
        eprintln!(
            "becket-load: run of {peer} begins: {target}, {connections} connections, agent {number} of {of}"
        );
        let outcome = self.generate(&plan, begin, &mut channel);
        match &outcome {
            Ok(outcome) => {
                let counts = outcome.steps.iter().map(|step| step.samples.succeeded);
                let succeeded: u64 = counts.sum();
                eprintln!("becket-load: run of {peer} ended: {succeeded} transactions succeeded");
            }
            Err(why) => eprintln!("becket-load: run of {peer} aborted: {why}"),
        }
        let complete = outcome.is_ok();
        let answer =
            outcome.map_or_else(|why| Answer::Failed { why }, |it| Answer::Done(it.into()));
        let sent = channel.send(&answer, clock::now() + TRANSFER);
        if self.options.once || sent.is_ok() {
            *runs = Some(complete && sent.is_ok());
        }
        sent
    }

    /// Runs the plan in another thread, and watches the coordinator in this one.
    fn generate(
        &self,
        plan: &Arc<Plan>,
        begin: Instant,
        channel: &mut Channel,
    ) -> Result<Outcome, String> {
        let stop = Arc::new(AtomicBool::new(false));
        thread::scope(|scope| {
            let run = scope.spawn(|| run::measure(plan, begin, &stop));
            let watched = self.watch(&run, begin + self.options.longest, channel, &stop);
            stop.store(true, Ordering::Relaxed);
            let outcome = run.join().map_err(|_| "the run panicked".to_owned())?;
            watched.and(outcome.map_err(|e| e.to_string()))
        })
    }

    fn watch<T>(
        &self,
        run: &ScopedJoinHandle<'_, T>,
        limit: Instant,
        channel: &mut Channel,
        stop: &AtomicBool,
    ) -> Result<(), String> {
        while !run.is_finished() {
            if self.stop.load(Ordering::Relaxed) {
                return Err("the agent was stopped".to_owned());
            }
            let now = clock::now();
            // Responses to the last transactions may arrive after the end of the last step.
            if now >= limit + LAST_RESPONSES {
                let longest = self.options.longest;
                return Err(format!("longer than --longest of this agent ({longest:?})"));
            }
            match channel.poll(now + TURN * 2) {
                Ok(None) => {}
                Ok(Some(Order::Stop)) => stop.store(true, Ordering::Relaxed),
                Ok(Some(_)) => return Err(unexpected().to_string()),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                Err(error) => return Err(format!("lost the coordinator: {error}")),
            }
        }
        Ok(())
    }
}

/// Checks an order against the options of the agent, and returns the plan of its share.
///
/// # Errors
/// [`Error::Plan`] with the reason why the run is refused.
pub fn plan_of(options: &AgentOptions, order: RunOrder) -> Result<Plan, Error> {
    let wrong = |why: String| Err(Error::Plan(why));
    let RunOrder {
        arguments,
        connections,
        share,
    } = order;
    if share.of > MOST_AGENTS || share.index >= share.of {
        return wrong(format!("invalid share {} of {}", share.index, share.of));
    }
    let words = [&["becket-load".to_owned()], &arguments[..]].concat();
    let cli = Cli::try_parse_from(&words);
    let mut cli =
        cli.map_err(|e| Error::Plan(e.to_string().chars().take(MOST_REASON).collect()))?;
    if cli.instead.is_some() || cli.responder.serve.is_some() || !cli.measuring.pid.is_empty() {
        return wrong("only load is accepted: no subcommand, --serve or --pid".to_owned());
    }
    // The agent's list of allowed targets replaces the question to the operator.
    cli.connection.i_own_this_target = true;
    cli.measuring.quiet = true;
    let mut plan = cli.plan(words)?;
    let host = &plan.target.host;
    let is_allowed = |address| options.allow.iter().any(|rule| rule.covers(host, address));
    if let Some(address) = plan.addresses.iter().find(|at| !is_allowed(**at)) {
        return wrong(format!(
            "{host} ({address}) is not allowed; see --allow of this agent"
        ));
    }
    plan.connections = connections;
    let plan = plan.divided(share)?;
    let longest = options.longest;
    if plan.length().is_some_and(|length| length > longest) {
        return wrong(format!("longer than --longest of this agent ({longest:?})"));
    }
    if plan.options.load.time_out > longest {
        return wrong(format!("--time-out is above --longest ({longest:?})"));
    }
    if let Some(most) = options.most_rate {
        let rates = match &plan.load {
            Load::Open(stretches) => stretches.iter().map(|stretch| stretch.rate),
            _ => return wrong("this agent has a --most-rate, so use -R or --ramp".to_owned()),
        };
        let rate = rates.fold(0.0, f64::max) / share.of as f64;
        if rate > most {
            return wrong(format!(
                "{rate:.0}/s is above --most-rate of this agent ({most:.0}/s)"
            ));
        }
    }
    let most = MOST_THREADS_PER_CPU * becket_sys::affinity::allowed_cpus().map_or(1, |it| it.len());
    if plan.threads > most {
        return wrong(format!(
            "{} threads (accepted: at most {most})",
            plan.threads
        ));
    }
    Ok(plan)
}

/// Answers pings until the coordinator sends the start, and returns its time.
fn agree(channel: &mut Channel, until: Instant) -> io::Result<Instant> {
    loop {
        match channel.receive(until)? {
            Order::Ping => channel.send(&Answer::Pong, until)?,
            Order::Start { in_us } => {
                let wait = Duration::from_micros(in_us.into()).min(PREPARATION);
                let begin = clock::now() + wait;
                channel.send(&Answer::Starting, until)?;
                return Ok(begin);
            }
            _ => return Err(unexpected()),
        }
    }
}

fn refuse(channel: &mut Channel, peer: SocketAddr, why: &str, until: Instant) -> io::Result<()> {
    eprintln!("becket-load: run of {peer} refused: {why:?}");
    channel.send(
        &Answer::Refused {
            why: why.to_owned(),
        },
        until,
    )
}

fn unexpected() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "unexpected message")
}

const ACCEPT_INTERVAL: Duration = Duration::from_millis(20);
const LOG_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of open connections: one coordinator, and others that are refused.
const MOST_CONNECTIONS: usize = 16;
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Maximum time from the handshake to the start.
const PREPARATION: Duration = Duration::from_secs(60);
/// Maximum time to send the outcome.
const TRANSFER: Duration = Duration::from_secs(60);
/// Time after `--longest` for responses, more than a run waits for them.
const LAST_RESPONSES: Duration = Duration::from_secs(15);
/// Maximum length of a refusal, in characters.
const MOST_REASON: usize = 500;
/// Limits memory, because each thread has histograms for each step.
const MOST_THREADS_PER_CPU: usize = 4;
