//! Measures a store of TLS 1.2 sessions: a resumption on another host, the loss of the store, and the cost of writing.
//!
//! In each round, two hosts with a redis-server and two without one run side by side. Three loads follow:
//!
//! 1. a closed loop with about one full handshake in seven, whose sessions are written;
//! 2. clients that return with a session once to its host and once to the other one;
//! 3. clients that return to the other host after the store was killed, and to one that never had a store. Both make
//!    full handshakes.
//!
//! Hosts that are compared take turns: for a quarter of a second in the closed loop, otherwise visit by visit. The
//! machine changes its speed within seconds, which would otherwise affect only one of them. The visits are made by one
//! blocking loop, so their times contain no queues.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use becket_load::clock;
use becket_load::plan::Load;
use rustls::{ClientConfig, HandshakeKind};
use serde_json::Value;

use super::client::Client;
use super::rounds::Rounds;
use super::stage::Stage;
use super::{rounds, scraped, transactions};
use crate::peer::{Peer, Server, Site};
use crate::process::{Process, free_address};
use crate::result::{Column, Sample};
use crate::{Error, farm, figures, load, place, spread, turns};

pub(super) fn run(stage: &mut Stage<'_>) -> Result<Vec<Column>, Error> {
    let Some((peer, site)) = stage.farm else {
        return Ok(Vec::new());
    };
    let names = ["becket", "becket, no store"];
    if Command::new(REDIS).arg("--version").output().is_err() {
        let column = |name| Column::not_measured(name, format!("needs {REDIS}"));
        return Ok(names.map(column).into());
    }
    let mut columns = names.map(Column::new);
    let mut rounds = Rounds::of(stage);
    while let Some(round) = rounds.next(stage, &columns)? {
        let mut samples = [Sample::of(round), Sample::of(round)];
        measure(stage, (peer, site), &mut columns, &mut samples)?;
        for (column, sample) in columns.iter_mut().zip(samples) {
            column.samples.push(sample);
        }
    }
    let [with, without] = &mut columns;
    note_marks(with, without);
    Ok(columns.into())
}

/// Measures one round. The first column and sample are those of the hosts with a store.
fn measure(
    stage: &Stage<'_>,
    program: (&Peer, &Site<'_>),
    columns: &mut [Column; 2],
    samples: &mut [Sample; 2],
) -> Result<(), Error> {
    let start = |has_store| StoreHosts::start(stage, program, has_store);
    let farms = [start(true)?, start(false)?];
    write(stage, &farms, columns, samples)?;
    // Fills caches and pools of the second hosts like those of the first ones.
    for hosts in &farms {
        hosts.clients(stage, 1)?;
    }
    let phases = [(0, figures::SAME_HOST), (1, figures::OTHER_HOST)];
    let clients = farms[0].clients(stage, 0)?;
    let targets = phases.map(|(node, phase)| Target::new(&farms[0].nodes[node], &clients, phase));
    for seen in visit(stage, &targets)? {
        samples[0].figures.extend(seen.figures);
    }
    let p99 = phases.map(|(_, phase)| samples[0].get(&figures::at(figures::P99, phase)));
    if let [Some(same), Some(other)] = p99 {
        samples[0].put(figures::ADDED, other - same);
    }
    for hosts in &farms {
        if let Some(redis) = &hosts.redis {
            redis.kill();
        }
        hosts.wait_until(stage, false)?;
    }
    let clients = [farms[0].clients(stage, 0)?, farms[1].clients(stage, 0)?];
    let target = |index: usize| Target::new(&farms[index].nodes[1], &clients[index], figures::GONE);
    let seen = visit(stage, &[target(0), target(1)])?;
    for (sample, seen) in samples.iter_mut().zip(seen) {
        sample.figures.extend(seen.figures);
    }
    Ok(())
}

struct StoreHosts {
    nodes: Vec<Server>,
    /// Admin sockets of the nodes.
    sockets: Vec<PathBuf>,
    redis: Option<Process>,
}

impl StoreHosts {
    fn start(
        stage: &Stage<'_>,
        (peer, site): (&Peer, &Site<'_>),
        has_store: bool,
    ) -> Result<Self, Error> {
        let redis = has_store.then(|| redis(stage)).transpose()?;
        let store = redis
            .as_ref()
            .map(|(_, at)| format!("store = \"redis://{at}\"\n"));
        let store = store.unwrap_or_default();
        let secret = farm::secret(peer, stage.directory)?;
        let kind = if has_store { "store" } else { "alone" };
        let peer = peer.renamed(format!("{}-{kind}", peer.name));
        let sockets = [1, 2].map(|node| stage.directory.join(format!("{kind}-{node}.sock")));
        let section = |(node, socket): (usize, &PathBuf)| {
            format!(
                "\n[admin]\nsocket = \"{}\"\n\n[cluster]\nsecret = \"{}\"\nnode = {node}\n{store}",
                socket.display(),
                secret.display()
            )
        };
        let sections: Vec<String> = (1..).zip(&sockets).map(section).collect();
        let hosts = Self {
            nodes: farm::start_with(&peer, site, &sections)?,
            sockets: sockets.into(),
            redis: redis.map(|(process, _)| process),
        };
        hosts.wait_until(stage, true)?;
        Ok(hosts)
    }

    /// Waits until both nodes use the store, or do not use it any more.
    fn wait_until(&self, stage: &Stage<'_>, available: bool) -> Result<(), Error> {
        let deadline = clock::now() + PATIENCE;
        for socket in self.sockets.iter().filter(|_| self.redis.is_some()) {
            while store(socket)?["available"] != available {
                stage.check_signal()?;
                if clock::now() > deadline {
                    return Err(Error::Peer(format!("store.available is not {available}")));
                }
                thread::sleep(PAUSE / 10);
            }
        }
        Ok(())
    }

    /// Returns a counter of the first node's store.
    fn count(&self, name: &str) -> Result<f64, Error> {
        Ok(store(&self.sockets[0])?[name].as_f64().unwrap_or_default())
    }

    /// Creates clients with a session of this node each.
    fn clients(&self, stage: &Stage<'_>, node: usize) -> Result<Vec<Arc<ClientConfig>>, Error> {
        let tls = stage.tls()?;
        let clients = (0..CLIENTS.min(stage.effort.idle)).map(|_| tls.config());
        let clients: Vec<_> = clients.collect();
        let target = Target::new(&self.nodes[node], &clients, figures::SAME_HOST);
        visit(stage, &[target])?;
        thread::sleep(PAUSE);
        Ok(clients)
    }
}

/// Runs closed loops on the first node of each farm, in turns.
fn write(
    stage: &Stage<'_>,
    farms: &[StoreHosts; 2],
    columns: &mut [Column; 2],
    samples: &mut [Sample; 2],
) -> Result<(), Error> {
    let cpu = |index: usize, is_meant: fn(&str) -> bool| {
        let process = &farms[index].nodes[0].process;
        process.cpu_time(is_meant).as_secs_f64() * 1e6
    };
    let of_store = || cpu(0, |name| name == "becket-store");
    let (store_before, written_before) = (of_store(), farms[0].count("written")?);
    let (mut workers, mut completed, mut seconds) = ([0.0; 2], [0; 2], 0.0);
    let whole = stage.effort.time * LONG;
    let turns = turns::of_round(whole, f64::INFINITY, 1);
    for turn in 0..turns {
        for index in rounds::order(farms.len(), turn) {
            stage.check_signal()?;
            let ask = stage
                .ask(farms[index].nodes[0].address, None)
                .with("-c", stage.settings.connections)
                .with("--warm-up", "0s");
            let before = cpu(index, scraped::is_worker);
            let report = ask.run(Load::ClosedFor(whole / turns), stage.stop)?;
            workers[index] += cpu(index, scraped::is_worker) - before;
            columns[index].negotiated.clone_from(&report.negotiated);
            let step = load::only_step(report)?;
            // Findings about stalls of clients are omitted: each turn begins with many handshakes at once.
            transactions::remark_failures(&mut columns[index], &step);
            completed[index] += step.completed;
            if index == 0 {
                seconds += step.seconds;
            }
        }
    }
    for (sample, (workers, completed)) in samples.iter_mut().zip(workers.iter().zip(completed)) {
        sample.put(figures::CPU, workers / completed as f64);
    }
    thread::sleep(PAUSE);
    let written = farms[0].count("written")? - written_before;
    samples[0].put(figures::WRITTEN, written / seconds);
    samples[0].put(figures::STORE_CPU, (of_store() - store_before) / written);
    let lost: f64 = ["dropped", "overflowed", "refused"]
        .into_iter()
        .map(|name| farms[0].count(name))
        .sum::<Result<_, _>>()?;
    if lost > 0.0 {
        columns[0].note(format!("{lost} sessions were not written in a round"));
    }
    Ok(())
}

/// A node, the clients that visit it, and the name of their visits in the figures.
struct Target<'a> {
    node: &'a Server,
    clients: &'a [Arc<ClientConfig>],
    phase: &'a str,
}

impl<'a> Target<'a> {
    fn new(node: &'a Server, clients: &'a [Arc<ClientConfig>], phase: &'a str) -> Self {
        Self {
            node,
            clients,
            phase,
        }
    }

    /// Returns the CPU time of the node in microseconds.
    fn cpu(&self) -> f64 {
        self.node.process.cpu_time(|_| true).as_secs_f64() * 1e6
    }
}

/// Makes one visit of each client to each target, in changing order. Returns the figures of each target.
fn visit(stage: &Stage<'_>, targets: &[Target<'_>]) -> Result<Vec<Sample>, Error> {
    let mut seen: Vec<Visits> = targets.iter().map(|_| Visits::default()).collect();
    let before: Vec<f64> = targets.iter().map(Target::cpu).collect();
    let count = targets.iter().map(|it| it.clients.len()).min().unwrap_or(0);
    place::on(stage.client, || {
        for number in 0..count {
            stage.check_signal()?;
            for index in rounds::order(targets.len(), number as u32) {
                let target = &targets[index];
                match one(stage, target.node.address, &target.clients[number]) {
                    Err(_) => seen[index].failed += 1,
                    Ok((took, is_resumed)) => {
                        seen[index].handshakes_us.push(took.as_secs_f64() * 1e6);
                        seen[index].resumed += usize::from(is_resumed);
                    }
                }
            }
        }
        Ok::<_, Error>(())
    })?;
    let seen = seen.into_iter().zip(targets).zip(before);
    let figures = seen.map(|((mut seen, target), before)| {
        let (mut sample, count) = (Sample::default(), count as f64);
        let mut put = |name, value| sample.put(&figures::at(name, target.phase), value);
        put(figures::RESUMED, seen.resumed as f64 / count);
        put(figures::FAILED, seen.failed as f64 / count);
        put(figures::CPU, (target.cpu() - before) / count);
        seen.handshakes_us.sort_by(f64::total_cmp);
        let p99 = seen.handshakes_us.get(seen.handshakes_us.len() * 99 / 100);
        let p50 = spread::median(&seen.handshakes_us);
        put(figures::P99, p99.copied().unwrap_or(f64::NAN));
        put(figures::P50, p50.unwrap_or(f64::NAN));
        sample
    });
    Ok(figures.collect())
}

#[derive(Default)]
struct Visits {
    handshakes_us: Vec<f64>,
    resumed: usize,
    failed: usize,
}

/// Makes a handshake and a request. Returns the time from the connection to the end of the handshake, and whether it
/// resumed.
fn one(
    stage: &Stage<'_>,
    node: SocketAddr,
    config: &Arc<ClientConfig>,
) -> std::io::Result<(Duration, bool)> {
    let begun = clock::now();
    let mut client = Client::open(stage, node, config)?;
    client.shake_hands()?;
    let took = clock::now() - begun;
    client.ask(stage)?;
    let is_resumed = client.tls.handshake_kind() == Some(HandshakeKind::Resumed);
    Ok((took, is_resumed))
}

fn redis(stage: &Stage<'_>) -> Result<(Process, SocketAddr), Error> {
    let address = free_address()?;
    let mut command = Command::new(REDIS);
    command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string()]);
    command.args(["--save", "", "--appendonly", "no"]);
    let log = stage.directory.join("redis.log");
    let mut process = Process::start(REDIS.to_owned(), command, stage.client, log)?;
    process.wait_for(address)?;
    Ok((process, address))
}

/// Returns the store's part of a node's status.
fn store(socket: &Path) -> Result<Value, Error> {
    let failed = |e| Error::os(format!("cannot query {}", socket.display()), e);
    let page = scraped::ask(socket, "GET /status", "").map_err(failed)?;
    let mut status: Value = serde_json::from_slice(&page).map_err(|e| failed(e.into()))?;
    Ok(status["store"].take())
}

/// Notes the marks: medians over all rounds, relative to a host that has no store.
fn note_marks(with: &mut Column, without: &Column) {
    let ratio = |name: &str| {
        let pairs = with.pairs(without, name).into_iter();
        spread::median(&pairs.map(|(a, b)| a / b).collect::<Vec<_>>())
    };
    let gone = |name| figures::at(name, figures::GONE);
    let added = with.median(figures::ADDED).map(|us| us / 1000.0);
    let (cpu, p50) = (ratio(&gone(figures::CPU)), ratio(&gone(figures::P50)));
    let failed = with.values(&gone(figures::FAILED)).into_iter();
    let marks = [
        ("ms more at p99 on another host", added, 2.0),
        ("CPU of a visit without the store", cpu, 1.05),
        ("its median handshake", p50, 1.05),
        ("share of failed visits", failed.reduce(f64::max), 0.0),
        ("workers' CPU while writing", ratio(figures::CPU), 1.03),
    ];
    for (what, value, most) in marks {
        let Some(value) = value else { continue };
        let word = if value <= most { "met" } else { "missed" };
        with.note(format!("mark {word}: {what} {value:.2} (at most {most})"));
    }
}

const REDIS: &str = "redis-server";
/// Number of visits to a node in a round, which suffice for a p99.
const CLIENTS: usize = 1_000;
/// Factor for the usual duration, so that the ratio of the CPU times is precise.
const LONG: u32 = 2;
/// Pause in which new sessions reach the store, many times longer than they need.
const PAUSE: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(20);
