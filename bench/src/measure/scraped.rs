//! Measures the effect of monitoring on client traffic: the same load with and without requests to the admin socket.
//!
//! Thousands of connections stay open, and new ones start at a share of the capacity. A client called the probe sends
//! requests on connections that are already open.
//!
//! The load runs twice in each round. The admin socket receives requests once a second during one of the two runs:
//! metrics, status, all connections, and a change of a server. The main CPU figure counts only the worker threads; the
//! CPU time of all other threads is a separate figure.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use becket_load::{clock, cpu};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::stage::Stage;
use super::{capacity, client, rounds, transactions};
use crate::peer::Server;
use crate::result::{Column, Sample};
use crate::{Error, figures, load, place, spread};

pub(super) fn run(stage: &mut Stage<'_>) -> Result<Vec<Column>, Error> {
    let both = |column: Column| {
        let alone = Column::new(column.peer.clone() + ALONE);
        [column, alone]
    };
    let columns = stage.columns().into_iter().flat_map(both).collect();
    for index in 0..stage.servers.len() {
        capacity::of(stage, index)?;
    }
    let count = stage.held();
    let held = stage.servers.iter();
    let held =
        held.map(|server| client::hold(stage, server.address, count, |client| client.ask(stage)));
    let held = held.collect::<Result<Vec<_>, _>>()?;
    rounds::each(stage, columns, |stage, index, column, sample| {
        let found = capacity::of(stage, index / 2)?;
        column.negotiated.clone_from(&found.negotiated);
        let load = Loaded {
            server: &stage.servers[index / 2],
            rate: found.rate * SHARE,
            held: held[index / 2].len(),
            scraped: !column.peer.ends_with(ALONE),
        };
        load.measure(stage, column, sample)
    })
}

struct Loaded<'a> {
    server: &'a Server,
    rate: f64,
    held: usize,
    scraped: bool,
}

impl Loaded<'_> {
    fn measure(
        &self,
        stage: &Stage<'_>,
        column: &mut Column,
        sample: &mut Sample,
    ) -> Result<(), Error> {
        let time = stage.effort.time * LONG;
        let new = stage.ask(self.server.address, None);
        // Use more source addresses, because the open connections have used all ports of the first one.
        let new = new.with("--source", SOURCES);
        let probe = stage.ask(self.server.address, None);
        let probe = probe.with("--keepalive", 1_000_000);
        let (end, ended) = mpsc::channel();
        let (step, probed, scrapes, used) = thread::scope(|scope| {
            let scraper = self
                .scraped
                .then(|| scope.spawn(move || self.scrape(stage, &ended)));
            let probe = scope.spawn(move || capacity::at_rate(probe, stage, PROBES, time));
            let before = self.used();
            let begun = clock::now();
            let step = capacity::at_rate(new, stage, self.rate, time);
            let seconds = (clock::now() - begun).as_secs_f64();
            let after = self.used();
            drop(end);
            let lost = || Error::Asked("a load thread panicked".to_owned());
            let probed = probe.join().unwrap_or_else(|_| Err(lost()));
            let scrapes = scraper.map(|it| it.join().unwrap_or_else(|_| Err(lost())));
            let used = before.and_then(|before| {
                let after = after?;
                let used = [after.0 - before.0, after.1 - before.1];
                Ok(used.map(|used| used / seconds))
            });
            (step, probed, scrapes.transpose(), used)
        });
        let (step, probed, scrapes, used) = (step?, probed?, scrapes?, used?);
        sample.put(figures::HELD, self.held as f64);
        sample.put(figures::OTHER_THREADS, used[1]);
        transactions::remark(column, &step);
        sample.put(figures::CPU, used[0] / step.rate_succeeded_per_s);
        load::latencies(sample, &step, str::to_owned);
        load::latencies(sample, &probed, |name| format!("{}{name}", figures::PROBE));
        if let Some(scrapes) = scrapes {
            let median = spread::median(&scrapes.took_us);
            sample.put(figures::SCRAPE, median.unwrap_or(f64::NAN));
            sample.put(figures::SCRAPE_BYTES, scrapes.bytes as f64);
        }
        Ok(())
    }

    /// Returns the CPU time in microseconds of the worker threads, and that of all other threads including ended ones.
    fn used(&self) -> Result<(f64, f64), Error> {
        let process = &self.server.process;
        let workers = process.worker_time().as_secs_f64() * 1e6;
        let all = cpu::of_processes(&[process.pid()])?.total();
        Ok((workers, all.as_secs_f64() * 1e6 - workers))
    }

    /// Sends all admin requests once a second until the load has ended.
    fn scrape(&self, stage: &Stage<'_>, ended: &Receiver<()>) -> Result<Scrapes, Error> {
        let socket = socket(stage.directory, self.server.address);
        let mut scrapes = Scrapes::default();
        place::on(stage.client, || {
            loop {
                let begun = clock::now();
                scrapes.bytes = self
                    .ask_all(&socket, stage.backend, scrapes.took_us.len())
                    .map_err(|e| Error::os(format!("cannot query {}", socket.display()), e))?;
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

    /// Requests every admin page and changes a server. Returns the number of received bytes.
    fn ask_all(&self, socket: &Path, backend: SocketAddr, number: usize) -> io::Result<usize> {
        let mut bytes =
            ask(socket, "GET /metrics", "")?.len() + ask(socket, "GET /status", "")?.len();
        let page = ask(socket, "GET /connections?limit=10000", "")?;
        bytes += page.len();
        let listed: Listed = serde_json::from_slice(&page)?;
        let rows = listed.connections.len();
        if rows < self.held {
            let said = format!(
                "only {rows} connections are listed, but {} are open",
                self.held
            );
            return Err(io::Error::other(said));
        }
        let weight = 100 + number % 2;
        let change = format!(r#"{{"backend":"bench","server":"{backend}","weight":{weight}}}"#);
        Ok(bytes + ask(socket, "PATCH /servers", &change)?.len())
    }
}

/// Sends a request to the admin socket and returns the body of the response.
fn ask(socket: &Path, page: &str, body: &str) -> io::Result<Vec<u8>> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // An HTTP/1.0 response is not chunked and ends when the connection closes.
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
            Err(io::Error::other(format!("{page} failed: {line}")))
        }
    }
}

#[derive(Default)]
struct Scrapes {
    took_us: Vec<f64>,
    bytes: usize,
}

#[derive(Deserialize)]
struct Listed {
    connections: Vec<IgnoredAny>,
}

fn socket(directory: &Path, address: SocketAddr) -> PathBuf {
    directory.join(format!("admin-{}.sock", address.port()))
}

/// Returns becket's configuration sections for the admin socket. The idle time-out exceeds the duration of a case.
pub(crate) fn sections(directory: &Path, address: SocketAddr) -> String {
    format!(
        "\n[admin]\nsocket = \"{}\"\n\n[timeouts]\nidle = \"1d\"\n",
        socket(directory, address).display()
    )
}

/// Suffix of the column that is measured without admin requests.
const ALONE: &str = ", not scraped";
const EVERY: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(60);
/// Load as a share of the capacity. The unused CPU time is available for the admin requests.
const SHARE: f64 = 0.5;
/// Rate of the probe in requests per second.
const PROBES: f64 = 200.0;
const SOURCES: &str = "127.0.0.2-127.0.0.9";
/// Factor for the usual duration, so that each measurement includes several scrapes.
pub(crate) const LONG: u32 = 5;
