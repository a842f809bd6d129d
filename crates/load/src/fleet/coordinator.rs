//! The coordinator: starts one run on all agents at the same time and merges their outcomes.
//!
//! One thread talks to all agents, because nothing here is urgent: they start at a time agreed before.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustls::{ClientConfig, ClientConnection, Connection};
use rustls_pki_types::ServerName;

use super::channel::{Channel, unexpected};
use super::identity;
use super::protocol::{Answer, MOST_ANSWER, Order, RunOrder};
use crate::cpu::{self, Spent};
use crate::fleet_options::{DEFAULT_PORT, FleetOptions, MOST_AGENTS};
use crate::outcome::Outcome;
use crate::plan::{Load, Plan};
use crate::report::{AgentRecord, LoadReport};
use crate::schedule::Portion;
use crate::{Error, clock, summary};

/// Runs the plan on the agents and returns the report. `stop` ends the run early.
///
/// # Errors
/// [`Error::Agent`] if an agent cannot be reached, refuses the run or fails. The others then stop.
pub fn run(plan: &Plan, options: &FleetOptions, stop: &AtomicBool) -> Result<LoadReport, Error> {
    cpu::of_processes(&plan.options.measuring.pid)?;
    let config = configure(options)?;
    let of = options.agents.len();
    let mut members = Vec::new();
    for (index, agent) in options.agents.iter().enumerate() {
        let share = Portion { index, of };
        plan.clone().divided(Portion { index: of - 1, of })?;
        let member = Member::prepare(agent, &config, plan, share);
        members.push(member.map_err(|e| failed(agent, &e))?);
    }
    let begin = clock::now() + LEAD + members.iter().map(|it| it.within * 2).sum::<Duration>();
    for member in &mut members {
        let started = member.start(begin, plan);
        started.map_err(|e| failed(member.agent, &e))?;
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let readings = scope.spawn(|| read_server(plan, begin, &is_over));
        let stopped = await_outcomes(&mut members, plan, begin, stop);
        is_over.store(true, Ordering::Relaxed);
        let readings = readings.join().unwrap_or_default();
        let interrupted = stopped?;
        Ok(LoadReport {
            interrupted,
            ..merge(plan, members, &readings)
        })
    })
}

/// Checks the options, and returns the TLS configuration.
///
/// # Errors
/// [`Error::Plan`] for too many agents, or files that are missing or invalid.
pub fn configure(options: &FleetOptions) -> Result<Arc<ClientConfig>, Error> {
    let of = options.agents.len();
    if of > MOST_AGENTS {
        let why = format!("--agents: {of} agents (accepted: at most {MOST_AGENTS})");
        return Err(Error::Plan(why));
    }
    identity::of_coordinator(&options.files)
}

/// Waits for all outcomes. Returns whether `stop` ended the run.
fn await_outcomes(
    members: &mut [Member<'_>],
    plan: &Plan,
    begin: Instant,
    stop: &AtomicBool,
) -> Result<bool, Error> {
    let until = begin + plan.length().unwrap_or(LONGEST) + plan.options.load.time_out + TRANSFER;
    let mut is_stopped = false;
    while members.iter().any(|member| member.outcome.is_none()) {
        let stops = !is_stopped && stop.load(Ordering::Relaxed);
        is_stopped |= stops;
        for member in &mut *members {
            let turned = member.turn(stops, until);
            turned.map_err(|e| failed(member.agent, &e))?;
        }
    }
    Ok(is_stopped)
}

/// Reads the CPU time of the server's processes on this machine at the boundaries of the steps, and after the end of a
/// run without them.
fn read_server(plan: &Plan, begin: Instant, is_over: &AtomicBool) -> Vec<(Instant, Spent)> {
    let pids = &plan.options.measuring.pid;
    let mut readings = Vec::new();
    if pids.is_empty() {
        return readings;
    }
    let mut read = || {
        // A server that exits during the run has no more CPU time.
        let spent = cpu::of_processes(pids).unwrap_or_default();
        readings.push((clock::now(), spent));
    };
    let mut boundary = begin + plan.warm_up;
    let steps = plan.steps();
    let lengths = if steps.is_empty() {
        vec![LONGEST]
    } else {
        steps
    };
    for length in std::iter::once(Duration::ZERO).chain(lengths) {
        boundary += length;
        while clock::now() < boundary && !is_over.load(Ordering::Relaxed) {
            let left = boundary.saturating_duration_since(clock::now());
            thread::sleep(left.min(READING_INTERVAL));
        }
        read();
    }
    readings
}

fn failed(agent: &str, error: &io::Error) -> Error {
    let (agent, why) = (agent.to_owned(), error.to_string());
    Error::Agent { agent, why }
}

struct Member<'a> {
    agent: &'a str,
    channel: Channel,
    /// Half of the shortest round trip; after [`Self::start`], the largest error of the start.
    within: Duration,
    outcome: Option<Outcome>,
}

impl<'a> Member<'a> {
    /// Connects, sends the run, and measures the round trip.
    fn prepare(
        agent: &'a str,
        config: &Arc<ClientConfig>,
        plan: &Plan,
        share: Portion,
    ) -> io::Result<Self> {
        let mut channel = connect(agent, config)?;
        let until = clock::now() + PREPARATION;
        let own = env!("CARGO_PKG_VERSION");
        match channel.receive(until)? {
            Answer::Welcome { version } if version == own => {}
            other => {
                return Err(io::Error::other(format!(
                    "this is {own}, received {other:?}"
                )));
            }
        }
        let order = RunOrder {
            arguments: plan.command.iter().skip(1).cloned().collect(),
            connections: plan.connections,
            load: plan.load.clone(),
            warm_up: plan.warm_up,
            share,
        };
        channel.send(&Order::Run(order), until)?;
        match channel.receive(until)? {
            Answer::Ready => {}
            Answer::Refused { why } => {
                return Err(io::Error::other(format!("refused the run: {why}")));
            }
            _ => return Err(unexpected()),
        }
        let mut round_trip = Duration::MAX;
        for _ in 0..PINGS {
            let sent = clock::now();
            channel.send(&Order::Ping, until)?;
            let Answer::Pong = channel.receive(until)? else {
                return Err(unexpected());
            };
            round_trip = round_trip.min(clock::now() - sent);
        }
        Ok(Self {
            agent,
            channel,
            within: round_trip / 2,
            outcome: None,
        })
    }

    fn start(&mut self, begin: Instant, plan: &Plan) -> io::Result<()> {
        let (sent, until) = (clock::now(), clock::now() + PREPARATION);
        let wait = begin.saturating_duration_since(sent + self.within);
        let in_us = u32::try_from(wait.as_micros()).unwrap_or(0);
        self.channel.send(&Order::Start { in_us }, until)?;
        let Answer::Starting = self.channel.receive(until)? else {
            return Err(unexpected());
        };
        // The message arrived within this round trip, instead of after half of the shortest one.
        let latest = (clock::now() - sent).saturating_sub(self.within);
        self.within = self.within.max(latest);
        if !plan.options.measuring.quiet {
            eprintln!("agent {}: starts within {:.1?}", self.agent, self.within);
        }
        Ok(())
    }

    /// Waits briefly for the outcome.
    fn turn(&mut self, stops: bool, until: Instant) -> io::Result<()> {
        if self.outcome.is_some() {
            return Ok(());
        }
        if stops {
            self.channel.send(&Order::Stop, until)?;
        }
        match self.channel.poll(until)? {
            None => {}
            Some(Answer::Done(outcome)) => self.outcome = Some(*outcome),
            Some(Answer::Failed { why }) => return Err(io::Error::other(why)),
            Some(_) => return Err(unexpected()),
        }
        Ok(())
    }
}

/// Connects to an agent, given as `HOST` or `HOST:PORT`.
fn connect(agent: &str, config: &Arc<ClientConfig>) -> io::Result<Channel> {
    let has_port = agent.contains(':') && !agent.ends_with(']');
    let port = format!(":{DEFAULT_PORT}");
    let address = format!("{agent}{}", if has_port { "" } else { &port });
    let host = address.rsplit_once(':').map_or("", |(host, _)| host);
    let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned());
    let name = name.map_err(io::Error::other)?;
    let mut failure = io::Error::other("the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(socket) => {
                let tls = ClientConnection::new(Arc::clone(config), name);
                let tls = Connection::Client(tls.map_err(io::Error::other)?);
                return Channel::establish(tls, socket, MOST_ANSWER);
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Merges the outcomes. A step is bound by its clients if one agent is: then it did not start its share.
fn merge(plan: &Plan, members: Vec<Member<'_>>, readings: &[(Instant, Spent)]) -> LoadReport {
    let mut whole = Outcome::default();
    let mut agents = Vec::new();
    for member in members {
        let outcome = member.outcome.unwrap_or_default();
        let own = outcome.clone().report(plan);
        agents.push(AgentRecord {
            agent: member.agent.to_owned(),
            start_within_us: member.within.as_secs_f64() * 1e6,
            conditions: own.conditions,
            steps: own.steps,
        });
        whole.merge(outcome);
    }
    for (step, pair) in whole.steps.iter_mut().zip(readings.windows(2)) {
        if let [(from, before), (to, after)] = pair {
            let read = (*to - *from).as_secs_f64().max(1e-9);
            // A number of transactions ends some time before the last reading, and the server is idle in between.
            let is_timed = !matches!(plan.load, Load::ClosedCount(_));
            let factor = if is_timed {
                step.around.seconds / read
            } else {
                1.0
            };
            step.around.server = Some(after.since(*before).scaled(factor));
        }
    }
    let mut report = whole.report(plan);
    for (index, step) in report.steps.iter_mut().enumerate() {
        let mut parts = agents.iter().filter_map(|agent| agent.steps.get(index));
        step.generator.bound |= parts.any(|part| part.generator.bound);
    }
    report.verdict = summary::verdict(&report.steps);
    report.agents = agents;
    report
}

/// Time from the last preparation to the start: threads and slots of all agents must be ready.
const LEAD: Duration = Duration::from_millis(500);
const PINGS: usize = 5;
/// Interval of the look whether the run is over.
const READING_INTERVAL: Duration = Duration::from_millis(20);
const CONNECT: Duration = Duration::from_secs(10);
/// Maximum time for an agent to accept the run. It connects to the target first.
const PREPARATION: Duration = Duration::from_secs(30);
/// Maximum time after a run for the last responses and the transfer of the outcome.
const TRANSFER: Duration = Duration::from_secs(60);
/// Limit for a run of a number of transactions.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
