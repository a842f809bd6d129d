//! The coordinator: starts one run on all agents at the same time and merges their outcomes.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustls::{ClientConfig, ClientConnection, Connection};
use rustls_pki_types::ServerName;

use super::channel::{Channel, TURN};
use super::identity;
use super::protocol::{Answer, MOST_ANSWER, Order, Ready, RunOrder};
use crate::fleet_options::{DEFAULT_PORT, FleetOptions, MOST_AGENTS};
use crate::outcome::Outcome;
use crate::plan::Plan;
use crate::report::{AgentRecord, AgentStep, LoadReport, LoadStep};
use crate::schedule::Portion;
use crate::{Error, clock, run, summary};

/// Runs the plan on the agents and returns the report. `stop` ends the run early.
///
/// # Errors
/// [`Error::Agent`] if an agent cannot be reached, refuses the run or fails. The others then stop.
pub fn run(plan: &Plan, options: &FleetOptions, stop: &AtomicBool) -> Result<LoadReport, Error> {
    let config = identity::of_coordinator(&options.files)?;
    let of = options.agents.len();
    if of > MOST_AGENTS {
        let why = format!("--agents: {of} agents (accepted: at most {MOST_AGENTS})");
        return Err(Error::Plan(why));
    }
    let last = Portion { index: of - 1, of };
    plan.clone().divided(last)?;
    let mut conditions = run::conditions(plan);
    conditions.pinned_to.clear();
    let abort = AtomicBool::new(false);
    let agents: Vec<(usize, &String)> = options.agents.iter().enumerate().collect();
    let members = in_parallel(agents, &abort, |(index, agent)| {
        let share = Portion { index, of };
        let member = Member::prepare(agent, &config, plan, share);
        member.map_err(|why| failed(agent, why))
    })?;
    let begin = clock::now() + LEAD;
    let ended = in_parallel(members, &abort, |mut member| {
        let outcome = member.run(plan, begin, stop, &abort);
        outcome.map_err(|why| failed(member.agent, why))
    })?;
    Ok(merge(plan, ended, conditions, stop))
}

fn failed(agent: &str, why: String) -> Error {
    Error::Agent {
        agent: agent.to_owned(),
        why,
    }
}

/// Calls `work` for each item in a thread of its own. Sets `abort` at the first failure, which it returns.
fn in_parallel<I: Send, T: Send>(
    items: Vec<I>,
    abort: &AtomicBool,
    work: impl Fn(I) -> Result<T, Error> + Sync,
) -> Result<Vec<T>, Error> {
    let (sender, failures) = mpsc::channel();
    let done = thread::scope(|scope| {
        let work = &work;
        let threads = items.into_iter().map(|item| {
            let sender = sender.clone();
            scope.spawn(move || {
                let fail = |error| {
                    abort.store(true, Ordering::Relaxed);
                    // The receiver outlives the threads.
                    drop(sender.send(error));
                };
                work(item).map_err(fail).ok()
            })
        });
        let threads: Vec<_> = threads.collect();
        let done = threads.into_iter().map(|thread| thread.join().ok()?);
        done.collect::<Option<Vec<T>>>()
    });
    drop(sender);
    let panicked = || Error::Plan("a thread of the coordinator panicked".to_owned());
    done.ok_or_else(|| failures.recv().unwrap_or_else(|_| panicked()))
}

struct Member<'a> {
    agent: &'a String,
    channel: Channel,
    ready: Ready,
    /// Shortest round trip.
    round_trip: Duration,
}

struct Ended {
    record: AgentRecord,
    outcome: Outcome,
}

impl<'a> Member<'a> {
    /// Connects, sends the run, and measures the round trip.
    fn prepare(
        agent: &'a String,
        config: &Arc<ClientConfig>,
        plan: &Plan,
        share: Portion,
    ) -> Result<Self, String> {
        let until = clock::now() + PREPARATION;
        let mut channel = connect(agent, config)?;
        let own = env!("CARGO_PKG_VERSION");
        match receive(&mut channel, until)? {
            Answer::Welcome { version } if version == own => {}
            Answer::Welcome { version } => {
                return Err(format!("has version {version:?}, this is {own}"));
            }
            _ => return Err(UNEXPECTED.to_owned()),
        }
        let order = RunOrder {
            arguments: plan.command.iter().skip(1).cloned().collect(),
            connections: plan.connections,
            share,
        };
        send(&mut channel, &Order::Run(order), until)?;
        let ready = match receive(&mut channel, until)? {
            Answer::Ready(ready) => ready,
            Answer::Refused { why } => return Err(format!("refused the run: {why}")),
            _ => return Err(UNEXPECTED.to_owned()),
        };
        let mut round_trip = Duration::MAX;
        for _ in 0..PINGS {
            let sent = clock::now();
            send(&mut channel, &Order::Ping, until)?;
            let Answer::Pong = receive(&mut channel, until)? else {
                return Err(UNEXPECTED.to_owned());
            };
            round_trip = round_trip.min(clock::now() - sent);
        }
        Ok(Self {
            agent,
            channel,
            ready,
            round_trip,
        })
    }

    /// Starts the run at `begin` and waits for the outcome.
    fn run(
        &mut self,
        plan: &Plan,
        begin: Instant,
        stop: &AtomicBool,
        abort: &AtomicBool,
    ) -> Result<Ended, String> {
        let until = clock::now() + PREPARATION;
        let sent = clock::now();
        let wait = begin.saturating_duration_since(sent + self.round_trip / 2);
        let in_us = u32::try_from(wait.as_micros()).unwrap_or(0);
        send(&mut self.channel, &Order::Start { in_us }, until)?;
        let Answer::Starting = receive(&mut self.channel, until)? else {
            return Err(UNEXPECTED.to_owned());
        };
        let error = (clock::now() - sent).max(self.round_trip) / 2;
        if !plan.options.measuring.quiet {
            let (agent, cpus) = (self.agent, self.ready.conditions.cpus);
            eprintln!("agent {agent}: ready, {cpus} CPUs, starts within {error:.1?}");
        }
        let outcome = self.result(plan, begin, stop, abort)?;
        outcome.check(plan.steps().len().max(1))?;
        let record = AgentRecord {
            agent: self.agent.clone(),
            conditions: self.ready.conditions.clone(),
            threads: self.ready.threads,
            start_within_us: error.as_secs_f64() * 1e6,
            steps: Vec::new(),
        };
        Ok(Ended { record, outcome })
    }

    fn result(
        &mut self,
        plan: &Plan,
        begin: Instant,
        stop: &AtomicBool,
        abort: &AtomicBool,
    ) -> Result<Outcome, String> {
        let longest = Duration::try_from_secs_f64(self.ready.longest_s).unwrap_or_default();
        let length = plan.length().unwrap_or(longest.min(LONGEST));
        let until = begin + length + plan.options.load.time_out + TRANSFER;
        let mut stopped = false;
        loop {
            if abort.load(Ordering::Relaxed) {
                return Err("stopped, because another agent failed".to_owned());
            }
            if !stopped && stop.load(Ordering::Relaxed) {
                stopped = true;
                send(&mut self.channel, &Order::Stop, clock::now() + TURN * 10)?;
            }
            match self.channel.poll(until).map_err(|e| e.to_string())? {
                None => {}
                Some(Answer::Done(outcome)) => return Ok(*outcome),
                Some(Answer::Failed { why }) => return Err(why),
                Some(_) => return Err(UNEXPECTED.to_owned()),
            }
        }
    }
}

/// Connects to an agent, given as `HOST` or `HOST:PORT`.
fn connect(agent: &str, config: &Arc<ClientConfig>) -> Result<Channel, String> {
    let with_port = if agent.starts_with('[') && agent.ends_with(']') || !agent.contains(':') {
        format!("{agent}:{DEFAULT_PORT}")
    } else {
        agent.to_owned()
    };
    let host = with_port.rsplit_once(':').map_or("", |(host, _)| host);
    let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned());
    let name =
        name.map_err(|_| "invalid name (accepted: HOST, HOST:PORT, [::1]:PORT)".to_owned())?;
    let addresses = with_port.to_socket_addrs();
    let mut why = "the name has no address".to_owned();
    for address in addresses.map_err(|e| format!("does not resolve: {e}"))? {
        let socket = match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(socket) => socket,
            Err(error) => {
                why = format!("cannot connect to {address}: {error}");
                continue;
            }
        };
        let tls = ClientConnection::new(Arc::clone(config), name).map_err(|e| e.to_string())?;
        let until = clock::now() + CONNECT;
        return Channel::establish(Connection::Client(tls), socket, MOST_ANSWER, until)
            .map_err(|e| format!("handshake failed: {e}"));
    }
    Err(why)
}

fn send(channel: &mut Channel, order: &Order, until: Instant) -> Result<(), String> {
    channel
        .send(order, until)
        .map_err(|e: io::Error| e.to_string())
}

fn receive(channel: &mut Channel, until: Instant) -> Result<Answer, String> {
    channel.receive(until).map_err(|e| e.to_string())
}

/// Merges the outcomes. A step is bound by its clients if one agent is: then it did not send its share.
fn merge(
    plan: &Plan,
    ended: Vec<Ended>,
    conditions: crate::report::Conditions,
    stop: &AtomicBool,
) -> LoadReport {
    let mut whole = Outcome::default();
    let mut agents = Vec::new();
    for Ended {
        mut record,
        outcome,
    } in ended
    {
        let steps = outcome.steps.iter().enumerate();
        let steps = steps.map(|(at, step)| summary::step(plan, at, &step.samples, &step.around));
        record.steps = steps.map(part).collect();
        agents.push(record);
        whole.merge(outcome);
    }
    let mut report = whole.report(plan, conditions);
    for (index, step) in report.steps.iter_mut().enumerate() {
        let parts = agents.iter().filter_map(|agent| agent.steps.get(index));
        step.generator.bound |= parts
            .map(|part| part.generator.bound)
            .fold(false, |a, b| a | b);
    }
    report.verdict = summary::verdict(&report.steps);
    report.plan.threads = agents.iter().map(|agent| agent.threads).sum();
    report.interrupted = stop.load(Ordering::Relaxed);
    report.agents = agents;
    report
}

fn part(step: LoadStep) -> AgentStep {
    AgentStep {
        attempted: step.attempted,
        succeeded: step.succeeded,
        failed: step.failed,
        generator: step.generator,
    }
}

const UNEXPECTED: &str = "unexpected message";
/// Time from the last preparation to the start: threads and slots of all agents must be ready.
const LEAD: Duration = Duration::from_millis(500);
const PINGS: usize = 5;
const CONNECT: Duration = Duration::from_secs(10);
/// Maximum time for an agent to accept the run. It connects to the target first.
const PREPARATION: Duration = Duration::from_secs(60);
/// Maximum time after a run for the last responses and the transfer of the outcome.
const TRANSFER: Duration = Duration::from_secs(60);
/// Limit for a run of a number of transactions.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
