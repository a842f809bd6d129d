//! What it costs the data path that somebody looks and changes things: the same load with scrapes and without.
//!
//! Thousands of connections are held. New ones come at a share of the capacity, and a probe asks on its open
//! connections. In each round the load runs twice: while the admin socket is asked every second for the metrics, the status and
//! all connections, with a change of a server behind them, and while nobody asks. The CPU time is that of the workers' threads alone;
//! what all others use stands beside it.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use becket_load::{clock, cpu};
use becket_stats::report::Step;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{Capacities, Stage, capacity, idle, order, transactions};
use crate::peer::Server;
use crate::result::{Column, Sample, figures};
use crate::{Error, place, spread};

pub(super) fn run(stage: &mut Stage<'_>) -> Result<Vec<Column>, Error> {
    let both = |column: Column| {
        let alone = Column {
            peer: column.peer.clone() + ALONE,
            ..Column::default()
        };
        [column, alone]
    };
    let mut columns: Vec<Column> = stage.columns().into_iter().flat_map(both).collect();
    let found = (0..stage.servers.len()).map(|index| Capacities::of(stage, index));
    let found = found.collect::<Result<Vec<_>, _>>()?;
    let config = idle::client(stage)?;
    let count = stage.settings.connections.min(stage.effort.most_idle());
    let held = stage.servers.iter();
    let held = held.map(|server| idle::hold(stage, server.address, &config, count));
    let held = held.collect::<Result<Vec<_>, _>>()?;
    let mut rounds = stage.rounds();
    while let Some(round) = rounds.next(stage, &columns)? {
        for index in order(columns.len(), round) {
            stage.check_signal()?;
            let known = (stage.servers.get(index / 2), found.get(index / 2));
            let ((Some(server), Some(found)), Some(column)) = (known, columns.get_mut(index))
            else {
                continue;
            };
            let load = Loaded {
                server,
                rate: found.rate * SHARE,
                held: held.get(index / 2).map_or(0, Vec::len),
                scraped: !column.peer.ends_with(ALONE),
            };
            column.negotiated.clone_from(&found.negotiated);
            let sample = load.measure(stage, round, column)?;
            column.samples.push(sample);
        }
    }
    Ok(columns)
}

/// A server under the load, with what it holds besides.
struct Loaded<'a> {
    server: &'a Server,
    rate: f64,
    held: usize,
    scraped: bool,
}

impl Loaded<'_> {
    fn measure(&self, stage: &Stage<'_>, round: u32, column: &mut Column) -> Result<Sample, Error> {
        let time = stage.effort.time * LONG;
        let new = stage.ask(self.server.address, None);
        // The held ones have used up ports of the first address.
        let new = new.with("--source", SOURCES);
        let probe = stage.ask(self.server.address, None);
        let probe = probe.with("--keepalive", 1_000_000);
        let (end, ended) = mpsc::channel();
        let (load, probed, scrapes, used) = thread::scope(|scope| {
            let scraper = self
                .scraped
                .then(|| scope.spawn(move || self.scrape(stage, &ended)));
            let probe = scope.spawn(move || capacity::climb(probe, stage, &[PROBES], time));
            let before = self.used();
            let begun = clock::now();
            let load = capacity::climb(new, stage, &[self.rate], time);
            let seconds = (clock::now() - begun).as_secs_f64();
            let after = self.used();
            drop(end);
            let lost = || Error::Asked("a thread of the load ended".to_owned());
            let probed = probe.join().unwrap_or_else(|_| Err(lost()));
            let scrapes = scraper.map(|it| it.join().unwrap_or_else(|_| Err(lost())));
            let used = before.and_then(|before| {
                let after = after?;
                let used = [after.0 - before.0, after.1 - before.1];
                Ok(used.map(|used| used / seconds))
            });
            (load, probed, scrapes.transpose(), used)
        });
        let (load, probed, scrapes, used) = (load?, probed?, scrapes?, used?);
        let mut sample = Sample {
            round,
            ..Sample::default()
        };
        sample.put(figures::HELD, self.held as f64);
        sample.put(REST, used[1]);
        if let Some(step) = load.steps.first() {
            transactions::remark(column, step);
            sample.put(figures::CPU, used[0] / step.rate_succeeded_per_s);
            latencies(&mut sample, "", step);
        }
        if let Some(step) = probed.steps.first() {
            latencies(&mut sample, PROBE, step);
        }
        if let Some(scrapes) = scrapes {
            if let Some(median) = spread::median(&scrapes.took_us) {
                sample.put(SCRAPE, median);
            }
            sample.put(BYTES, scrapes.bytes as f64);
        }
        Ok(sample)
    }

    /// Microseconds of CPU time of the workers, and of all other threads, also of those that have ended.
    fn used(&self) -> Result<(f64, f64), Error> {
        let worker = |name: &str| {
            let number = name.strip_prefix("becket-");
            number.is_some_and(|number| number.parse::<u32>().is_ok())
        };
        let process = &self.server.process;
        let workers = process.cpu_time(worker).as_secs_f64() * 1e6;
        let all = cpu::of_processes(&[process.pid()])?.total();
        Ok((workers, all.as_secs_f64() * 1e6 - workers))
    }

    /// Asks for everything once a second, until the load has ended.
    fn scrape(&self, stage: &Stage<'_>, ended: &Receiver<()>) -> Result<Scrapes, Error> {
        let socket = socket(stage.directory, self.server.address);
        let mut scrapes = Scrapes::default();
        place::on(stage.client, || {
            loop {
                let begun = clock::now();
                scrapes.bytes = self
                    .ask_all(&socket, stage.backend, scrapes.took_us.len())
                    .map_err(|e| Error::os(format!("asking {}", socket.display()), e))?;
                let took = clock::now() - begun;
                scrapes.took_us.push(took.as_secs_f64() * 1e6);
                match ended.recv_timeout(EVERY.saturating_sub(took)) {
                    Err(RecvTimeoutError::Timeout) => {}
                    _ => return Ok(()),
                }
            }
        })?;
        Ok(scrapes)
    }

    /// Asks for every page and changes a server; returns how many bytes came.
    fn ask_all(&self, socket: &Path, backend: SocketAddr, number: usize) -> io::Result<usize> {
        let mut bytes =
            ask(socket, "GET /metrics", "")?.len() + ask(socket, "GET /status", "")?.len();
        let (mut rows, mut cursor) = (0, String::new());
        loop {
            let page = format!("GET /connections?limit=1000{cursor}");
            let page = ask(socket, &page, "")?;
            bytes += page.len();
            let listed: Listed = serde_json::from_slice(&page)?;
            rows += listed.connections.len();
            match listed.next {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        if rows < self.held {
            let said = format!("{rows} connections are listed where {} are held", self.held);
            return Err(io::Error::other(said));
        }
        let weight = 100 + number % 2;
        let change = format!(r#"{{"backend":"bench","server":"{backend}","weight":{weight}}}"#);
        Ok(bytes + ask(socket, "PATCH /servers", &change)?.len())
    }
}

fn latencies(sample: &mut Sample, of: &str, step: &Step) {
    let latency = &step.latency;
    let whole = latency.whole_corrected.as_ref().unwrap_or(&latency.whole);
    // Where nobody was served, nobody was served soon.
    if whole.count > 0 {
        sample.put(&format!("{of}{}", figures::P50), whole.p50_us);
        sample.put(&format!("{of}{}", figures::P99), whole.p99_us);
    }
    let failed = step.failed as f64 / step.attempted.max(1) as f64;
    sample.put(&format!("{of}{}", figures::FAILED), failed);
}

/// Asks for a page and returns its body.
fn ask(socket: &Path, page: &str, body: &str) -> io::Result<Vec<u8>> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // HTTP/1.0, so that the answer ends with the connection and has no chunks.
    write!(
        stream,
        "{page} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let said = String::from_utf8_lossy(answer.get(..head.unwrap_or(0)).unwrap_or(&[]));
    match (said.split(' ').nth(1), head) {
        (Some("200"), Some(head)) => Ok(answer.split_off(head + 4)),
        _ => {
            let line = said.lines().next().unwrap_or("nothing");
            Err(io::Error::other(format!("{page} was answered with {line}")))
        }
    }
}

/// What came of asking.
#[derive(Default)]
struct Scrapes {
    took_us: Vec<f64>,
    /// Of the last time.
    bytes: usize,
}

/// A page of `/connections`.
#[derive(Deserialize)]
struct Listed {
    connections: Vec<IgnoredAny>,
    next: Option<String>,
}

fn socket(directory: &Path, address: SocketAddr) -> PathBuf {
    directory.join(format!("admin-{}.sock", address.port()))
}

/// Sections of becket's for the socket. Who is held says nothing for as long as the case takes.
pub(crate) fn sections(directory: &Path, address: SocketAddr) -> String {
    format!(
        "\n[admin]\nsocket = \"{}\"\n\n[timeouts]\nidle = \"1d\"\n",
        socket(directory, address).display()
    )
}

/// What the column without scrapes has behind the server's name.
const ALONE: &str = ", not scraped";
/// Before the figures of the probe.
pub(crate) const PROBE: &str = "probe_";
/// Microseconds of CPU time in a second, of threads that are no workers.
pub(crate) const REST: &str = "other_threads_us_per_s";
/// From the first question of a scrape to its last answer.
pub(crate) const SCRAPE: &str = "scrape_us";
pub(crate) const BYTES: &str = "scrape_bytes";
const EVERY: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(60);
/// What of the capacity is asked for: what the rest costs must find room beside it.
const SHARE: f64 = 0.5;
/// Requests of the probe in a second.
const PROBES: f64 = 200.0;
const SOURCES: &str = "127.0.0.2-127.0.0.9";
/// Times the length of a measurement: it must hold several scrapes.
pub(crate) const LONG: u32 = 5;
