//! Measures a store of TLS 1.2 sessions: a resumption on another host, the loss of the store, and the cost of writing.
//!
//! Two hosts share a secret, in one column also a redis-server on the clients' CPUs. Three loads follow:
//!
//! 1. a closed loop with one full handshake in eight, whose sessions are written;
//! 2. clients that return with a session once to its host and once to the other one, in changing order;
//! 3. the same after the store was killed, only to the other host, which then makes full handshakes.
//!
//! The last two are made by one blocking loop, so they have times without queues.

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
use super::stage::Stage;
use super::{rounds, scraped, transactions};
use crate::peer::{Peer, Server, Site};
use crate::process::{Process, free_address};
use crate::result::{Column, Sample};
use crate::{Error, farm, figures, load, place, spread};

pub(super) fn run(stage: &mut Stage<'_>) -> Result<Vec<Column>, Error> {
    let Some((peer, site)) = stage.farm else {
        return Ok(Vec::new());
    };
    let names = ["becket", "becket, no store"];
    if Command::new(REDIS).arg("--version").output().is_err() {
        let column = |name| Column::not_measured(name, format!("needs {REDIS}"));
        return Ok(names.map(column).into());
    }
    let columns = names.map(Column::new).into();
    let mut columns = rounds::each(stage, columns, |stage, index, column, sample| {
        let hosts = StoreHosts::start(stage, (peer, site), index == 0)?;
        hosts.write(stage, column, sample)?;
        // Fills caches and pools of the second host like those of the first one.
        hosts.clients(stage, 1)?;
        if index == 0 {
            let clients = hosts.clients(stage, 0)?;
            let phases = [(0, figures::SAME_HOST), (1, figures::OTHER_HOST)];
            hosts.visit(stage, &clients, &phases, sample)?;
            let p99 = phases.map(|(_, phase)| sample.get(&figures::at(figures::P99, phase)));
            if let [Some(same), Some(other)] = p99 {
                sample.put(figures::ADDED, other - same);
            }
        }
        if let Some(redis) = &hosts.redis {
            redis.kill();
        }
        hosts.wait_until(stage, false)?;
        let clients = hosts.clients(stage, 0)?;
        hosts.visit(stage, &clients, &[(1, figures::GONE)], sample)?;
        Ok(())
    })?;
    if let [with, without] = &mut columns[..] {
        note_marks(with, without);
    }
    Ok(columns)
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
        let sockets = [1, 2].map(|node| stage.directory.join(format!("admin-{node}.sock")));
        let section = |(node, socket): (usize, &PathBuf)| {
            format!(
                "\n[admin]\nsocket = \"{}\"\n\n[cluster]\nsecret = \"{}\"\nnode = {node}\n{store}",
                socket.display(),
                secret.display()
            )
        };
        let sections: Vec<String> = (1..).zip(&sockets).map(section).collect();
        let hosts = Self {
            nodes: farm::start_with(peer, site, &sections)?,
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

    /// Runs a closed loop on the first node.
    fn write(
        &self,
        stage: &Stage<'_>,
        column: &mut Column,
        sample: &mut Sample,
    ) -> Result<(), Error> {
        let (server, socket) = (&self.nodes[0], &self.sockets[0]);
        let count = |name| Ok::<_, Error>(store(socket)?[name].as_f64().unwrap_or_default());
        let ask = stage
            .ask(server.address, None)
            .with("-c", stage.settings.connections)
            .with("--warm-up", "0s");
        let cpu =
            |is_meant: fn(&str) -> bool| server.process.cpu_time(is_meant).as_secs_f64() * 1e6;
        let used = || [cpu(scraped::is_worker), cpu(|name| name == "becket-store")];
        let (before, begun) = ((used(), count("written")?), clock::now());
        let report = ask.run(Load::ClosedFor(stage.effort.time * LONG), stage.stop)?;
        let seconds = (clock::now() - begun).as_secs_f64();
        let after = used();
        column.negotiated.clone_from(&report.negotiated);
        let step = load::only_step(report)?;
        transactions::remark(column, &step);
        let workers = after[0] - before.0[0];
        sample.put(figures::CPU, workers / step.completed as f64);
        if self.redis.is_some() {
            thread::sleep(PAUSE);
            let written = count("written")? - before.1;
            sample.put(figures::WRITTEN, written / seconds);
            sample.put(figures::STORE_CPU, (after[1] - before.0[1]) / written);
            let lost = count("dropped")? + count("overflowed")? + count("refused")?;
            if lost > 0.0 {
                column.note(format!("{lost} sessions were not written in a round"));
            }
        }
        Ok(())
    }

    /// Creates clients with a session of this node each.
    fn clients(&self, stage: &Stage<'_>, node: usize) -> Result<Vec<Arc<ClientConfig>>, Error> {
        let tls = stage.tls()?;
        let clients = (0..CLIENTS.min(stage.effort.idle)).map(|_| tls.config());
        let clients: Vec<_> = clients.collect();
        self.visit(
            stage,
            &clients,
            &[(node, figures::SAME_HOST)],
            &mut Sample::default(),
        )?;
        thread::sleep(PAUSE);
        Ok(clients)
    }

    /// Makes one visit of each client to each of the nodes, which have a phase each.
    fn visit(
        &self,
        stage: &Stage<'_>,
        clients: &[Arc<ClientConfig>],
        nodes: &[(usize, &str)],
        sample: &mut Sample,
    ) -> Result<(), Error> {
        let mut seen: Vec<Visits> = nodes.iter().map(|_| Visits::default()).collect();
        let cpu = |node: usize| self.nodes[node].process.cpu_time(|_| true).as_secs_f64() * 1e6;
        let before: Vec<f64> = nodes.iter().map(|(node, _)| cpu(*node)).collect();
        place::on(stage.client, || {
            for (client, number) in clients.iter().zip(0..) {
                stage.check_signal()?;
                for index in rounds::order(nodes.len(), number) {
                    let address = self.nodes[nodes[index].0].address;
                    match visit(stage, address, client) {
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
        for ((mut seen, (node, phase)), before) in seen.into_iter().zip(nodes).zip(before) {
            let mut put = |name, value| sample.put(&figures::at(name, phase), value);
            let count = clients.len() as f64;
            put(figures::RESUMED, seen.resumed as f64 / count);
            put(figures::FAILED, seen.failed as f64 / count);
            put(figures::CPU, (cpu(*node) - before) / count);
            seen.handshakes_us.sort_by(f64::total_cmp);
            let p99 = seen.handshakes_us.get(seen.handshakes_us.len() * 99 / 100);
            let p50 = spread::median(&seen.handshakes_us);
            put(figures::P99, p99.copied().unwrap_or(f64::NAN));
            put(figures::P50, p50.unwrap_or(f64::NAN));
        }
        Ok(())
    }
}

#[derive(Default)]
struct Visits {
    handshakes_us: Vec<f64>,
    resumed: usize,
    failed: usize,
}

/// Makes a handshake and a request. Returns the time from the connection to the end of the handshake, and whether it
/// resumed.
fn visit(
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
