//! The agent: accepts coordinators and generates load for one of them at a time.
//!
//! Each connection has a thread, and their number is limited. A run ends when its coordinator's connection ends, at
//! `--longest`, and when the agent stops. Lines on standard error report runs; nothing is logged before a coordinator
//! has proved its certificate.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use rustls::{Connection, ServerConfig, ServerConnection};

use super::channel::{Channel, unexpected};
use super::identity;
use super::protocol::{Answer, MOST_ORDER, Order, RunOrder};
use crate::cli::Cli;
use crate::fleet_options::{AgentOptions, MOST_AGENTS};
use crate::outcome::Outcome;
use crate::plan::{Load, Plan};
use crate::{Error, clock, run};

/// Serves coordinators until `stop` is set.
///
/// # Errors
/// [`Error::Plan`] for an invalid option, [`Error::Os`] if the address cannot be bound.
pub fn serve(options: &AgentOptions, stop: &AtomicBool) -> Result<(), Error> {
    let config = identity::of_agent(&options.files)?;
    let listener = TcpListener::bind(&options.listen).and_then(|listener| {
        listener.set_nonblocking(true)?;
        println!("listening on {}", listener.local_addr()?);
        Ok(listener)
    });
    let what = || format!("cannot listen on {}", options.listen);
    let listener = listener.map_err(|e| Error::os(what(), e))?;
    let is_done = Mutex::new(false);
    let agent = Agent {
        options,
        config,
        stop,
        is_done,
    };
    let (agent, open) = (&agent, &AtomicUsize::new(0));
    thread::scope(|scope| {
        let is_done = || options.once && agent.is_done.try_lock().is_ok_and(|it| *it);
        while !stop.load(Ordering::Relaxed) && !is_done() {
            let free = open.load(Ordering::Relaxed) < MOST_CONNECTIONS;
            match listener.accept() {
                Ok((socket, peer)) if free => {
                    open.fetch_add(1, Ordering::Relaxed);
                    scope.spawn(move || {
                        // The coordinator reports what is wrong with its connection.
                        agent.converse(socket, peer).unwrap_or(());
                        open.fetch_sub(1, Ordering::Relaxed);
                    });
                }
                Ok(_) => {}
                Err(_) => thread::sleep(ACCEPT_INTERVAL),
            }
        }
    });
    Ok(())
}

struct Agent<'a> {
    options: &'a AgentOptions,
    config: Arc<ServerConfig>,
    stop: &'a AtomicBool,
    /// Locked during a run. `true` after a complete run.
    is_done: Mutex<bool>,
}

impl Agent<'_> {
    fn converse(&self, socket: TcpStream, peer: SocketAddr) -> io::Result<()> {
        let until = clock::now() + PREPARATION;
        let tls = ServerConnection::new(Arc::clone(&self.config)).map_err(io::Error::other)?;
        let mut channel = Channel::establish(Connection::Server(tls), socket, MOST_ORDER)?;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        channel.send(&Answer::Welcome { version }, until)?;
        let Order::Run(order) = channel.receive(until)? else {
            return Err(unexpected());
        };
        let running = self.is_done.try_lock();
        let prepared = match &running {
            Ok(_) => plan_of(self.options, order).and_then(run::prepare),
            Err(_) => Err(Error::Plan("another run is in progress".to_owned())),
        };
        let (plan, mut is_done) = match (prepared, running) {
            (Ok(plan), Ok(running)) => (Arc::new(plan), running),
            (prepared, _) => {
                let why = prepared.err().map_or(String::new(), |e| e.to_string());
                eprintln!("becket-load: run of {peer} refused: {why:?}");
                return channel.send(&Answer::Refused { why }, until);
            }
        };
        channel.send(&Answer::Ready, until)?;
        let begin = agree(&mut channel, until)?;
        let (target, n) = (&plan.target, plan.connections);
        eprintln!("becket-load: run of {peer} begins: {target}, {n} connections");
        let answer = match self.generate(&plan, begin, &mut channel) {
            Ok(outcome) => Answer::Done(outcome.into()),
            Err(why) => Answer::Failed { why },
        };
        // The next run may begin, also while this answer is sent.
        *is_done = matches!(answer, Answer::Done(_));
        drop(is_done);
        match &answer {
            Answer::Failed { why } => eprintln!("becket-load: run of {peer} aborted: {why}"),
            _ => eprintln!("becket-load: run of {peer} complete"),
        }
        channel.send(&answer, clock::now() + TRANSFER)
    }

    /// Runs the plan in another thread, and watches the coordinator in this one.
    fn generate(
        &self,
        plan: &Arc<Plan>,
        begin: Instant,
        channel: &mut Channel,
    ) -> Result<Outcome, String> {
        let stop = Arc::new(AtomicBool::new(false));
        let until = begin + self.options.longest + LAST_RESPONSES;
        thread::scope(|scope| {
            let run = scope.spawn(|| run::measure(plan, begin, &stop));
            let mut watched = Ok(());
            while watched.is_ok() && !run.is_finished() {
                watched = match channel.poll(until) {
                    _ if self.stop.load(Ordering::Relaxed) => Err("the agent was stopped".into()),
                    Ok(None) => Ok(()),
                    Ok(Some(Order::Stop)) => {
                        stop.store(true, Ordering::Relaxed);
                        Ok(())
                    }
                    Ok(Some(_)) => Err(unexpected().to_string()),
                    Err(_) if clock::now() >= until => Err("longer than --longest".to_owned()),
                    Err(error) => Err(format!("lost the coordinator: {error}")),
                };
            }
            stop.store(
                watched.is_err() || stop.load(Ordering::Relaxed),
                Ordering::Relaxed,
            );
            let outcome = run.join().map_err(|_| "the run panicked".to_owned())?;
            watched.and(outcome.map_err(|e| e.to_string()))
        })
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
        load,
        warm_up,
        share,
    } = order;
    if share.of > MOST_AGENTS || share.index >= share.of {
        return wrong(format!("invalid share {} of {}", share.index, share.of));
    }
    let words = [&["becket-load".to_owned()], &arguments[..]].concat();
    let cli = Cli::try_parse_from(&words);
    let mut cli =
        cli.map_err(|e| Error::Plan(e.to_string().chars().take(MOST_REASON).collect()))?;
    if cli.instead.is_some() || cli.responder.serve.is_some() {
        return wrong("only load is accepted: no subcommand or --serve".to_owned());
    }
    // These processes run on the machine of the coordinator, which reads their CPU time.
    cli.measuring.pid.clear();
    // The agent's list of allowed targets replaces the question to the operator.
    cli.connection.i_own_this_target = true;
    cli.measuring.quiet = true;
    // A client next to its server leaves half of the CPUs to it.
    let all = becket_sys::affinity::allowed_cpus().map_or(1, |it| it.len());
    cli.load.threads = cli.load.threads.or(NonZeroUsize::new(all));
    let mut plan = cli.plan(words)?;
    let host = &plan.target.host;
    let is_allowed = |address| options.allow.iter().any(|rule| rule.covers(host, address));
    if let Some(address) = plan.addresses.iter().find(|at| !is_allowed(**at)) {
        return wrong(format!(
            "{host} ({address}) is not allowed; see --allow of this agent"
        ));
    }
    let longest = options.longest;
    load.check()?;
    if connections > MOST_CLIENTS {
        return wrong(format!(
            "{connections} connections (accepted: at most {MOST_CLIENTS})"
        ));
    }
    if warm_up > longest {
        return wrong(format!(
            "a warm-up longer than --longest of this agent ({longest:?})"
        ));
    }
    plan.connections = connections;
    plan.load = load;
    plan.warm_up = warm_up;
    let plan = plan.divided(share)?;
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
    let most = MOST_THREADS_PER_CPU * all;
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

const ACCEPT_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of open connections: one coordinator, and others that are refused.
const MOST_CONNECTIONS: usize = 16;
/// Maximum number of clients of all agents.
const MOST_CLIENTS: usize = 10_000_000;
/// Maximum time from the handshake to the start.
const PREPARATION: Duration = Duration::from_secs(30);
/// Maximum time to send the outcome.
const TRANSFER: Duration = Duration::from_secs(60);
/// Time after `--longest` for responses, more than a run waits for them.
const LAST_RESPONSES: Duration = Duration::from_secs(15);
/// Maximum length of a refusal, in characters.
const MOST_REASON: usize = 500;
/// Limits memory, because each thread has histograms for each step.
const MOST_THREADS_PER_CPU: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Instead;
    use crate::schedule::{Portion, Stretch};

    #[test]
    fn only_loads_of_a_bounded_length_and_number_of_steps_are_accepted() {
        let words = "becket-load agent --listen 127.0.0.1:0 --allow 127.0.0.1:* --longest 10s";
        let cli = Cli::try_parse_from(words.split(' ')).unwrap();
        let Some(Instead::Agent(options)) = cli.instead else {
            panic!("an agent")
        };
        let is_accepted = |load, warm_up| {
            let order = RunOrder {
                arguments: vec!["http://127.0.0.1:1/".to_owned()],
                connections: 1,
                load,
                warm_up,
                share: Portion::WHOLE,
            };
            plan_of(&options, order).is_ok()
        };
        let second = Duration::from_secs(1);
        let open = |count, rate, length| Load::Open(vec![Stretch { rate, length }; count]);
        for (load, accepted) in [
            (Load::ClosedFor(second), true),
            (Load::ClosedFor(Duration::ZERO), false),
            (Load::ClosedFor(Duration::MAX), false),
            (Load::ClosedCount(1), true),
            (Load::ClosedCount(0), false),
            (open(9, 1.0, second), true),
            (open(10, 1.0, second), false),
            (open(1, 0.0, second), false),
            (open(1, 1e-30, second), false),
            (open(1, 1e300, second), false),
            (open(1, -1.0, second), false),
            (open(1, 1.0, Duration::ZERO), false),
            (open(2, 1.0, Duration::MAX), false),
            (open(200, 1.0, second / 100), true),
            (open(201, 1.0, second / 100), false),
            (open(0, 1.0, second), false),
        ] {
            assert_eq!(is_accepted(load.clone(), second), accepted, "{load:?}");
            assert!(!is_accepted(load, Duration::MAX), "an endless warm-up");
        }
    }
}
