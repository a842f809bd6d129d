//! Measures a crowd of idle connections: their memory, the latency of the few active ones, and the time to open, reload,
//! upgrade and drain.
//!
//! The memory is read while the connections open; it must grow in a straight line. In each round, 1 % of the
//! connections make a request each second. The column [`EMPTY`] has the same load without the idle connections.
//!
//! The server then reloads its configuration and is upgraded, and all connections must answer a request after each of
//! the two. The drain is that of the new process, with as many new connections.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use becket_load::clock;
use rustix::process::Signal;

use super::client::{self, Client, WARM_UP};
use super::stage::Stage;
use super::{rounds, scraped};
use crate::peer::Server;
use crate::result::{Column, Growth, Sample};
use crate::{Error, figures, guard, kernel, place, spread, store};

pub(super) fn run(stage: &mut Stage<'_>) -> Result<Vec<Column>, Error> {
    let mut columns = stage.columns();
    let few = stage.crowd().div_ceil(ACTIVE);
    let mut crowds = Vec::new();
    for (server, column) in stage.servers.iter().zip(&mut columns) {
        let mut crowd = Crowd::default();
        if column.peer == EMPTY {
            client::gather(stage, &addresses(server), &mut crowd.clients, few)?;
        } else {
            crowd.settle(stage, server, column)?;
        }
        crowds.push(crowd);
    }
    let mut columns = rounds::each(stage, columns, |stage, index, _, sample| {
        let crowd = &mut crowds[index];
        sample.figures.append(&mut crowd.opened.figures);
        sample.put(figures::HELD, crowd.clients.len() as f64);
        crowd.request(stage, few as f64, sample)
    })?;
    for (index, crowd) in crowds.into_iter().enumerate() {
        let column = &mut columns[index];
        if let Some(first) = column.samples.first_mut().filter(|_| column.peer != EMPTY) {
            transitions(stage, index, crowd, first)?;
        }
    }
    Ok(columns)
}

#[derive(Default)]
struct Crowd {
    clients: Vec<Client>,
    next: usize,
    /// Figures of the opening.
    opened: Sample,
}

impl Crowd {
    fn settle(
        &mut self,
        stage: &Stage<'_>,
        server: &Server,
        column: &mut Column,
    ) -> Result<(), Error> {
        let (count, addresses) = (stage.crowd(), addresses(server));
        reserve(count);
        client::gather(stage, &addresses, &mut Vec::new(), WARM_UP.min(count))?;
        let process = &server.process;
        let (before, slab) = (process.weight(), kernel::slab());
        let cpu = process.cpu_time(|_| true);
        let (mut took, mut refused) = (Duration::ZERO, 0);
        let first = FIRST.min(count.div_ceil(PARTS));
        let tenths = (1..=PARTS).map(|part| count * part / PARTS);
        for upto in std::iter::once(first).chain(tenths) {
            if upto == self.clients.len() {
                continue;
            }
            let begun = clock::now();
            refused += client::gather(stage, &addresses, &mut self.clients, upto)?;
            took += clock::now() - begun;
            thread::sleep(stage.effort.rest);
            let bytes = process.weight().pss_bytes.saturating_sub(before.pss_bytes);
            column.growth.push(Growth {
                connections: upto as u64,
                pss_bytes: bytes,
                kernel_bytes: kernel::slab().saturating_sub(slab) / 2,
            });
            drop(writeln!(io::stderr(), "  {upto} connections open"));
        }
        if refused > 0 {
            column.note(format!(
                "{refused} clients were refused while the connections opened"
            ));
        }
        let cpu = process.cpu_time(|_| true).saturating_sub(cpu);
        let Some(last) = column.growth.last() else {
            return Ok(());
        };
        let each = |bytes: u64| bytes as f64 / count as f64;
        let mut put = |name, value: f64| self.opened.put(name, value);
        put(figures::PSS_PER_CONNECTION, each(last.pss_bytes).round());
        put(
            figures::KERNEL_PER_CONNECTION,
            each(last.kernel_bytes).round(),
        );
        put(figures::OPENED, count as f64 / took.as_secs_f64());
        put(figures::OPEN_CPU, cpu.as_secs_f64() * 1e6 / count as f64);
        let points = column.growth.iter();
        let points = points.map(|it| (it.connections as f64, it.pss_bytes as f64));
        let deviation = spread::from_line(&points.collect::<Vec<_>>());
        put(figures::DEVIATION, deviation.unwrap_or(f64::NAN));
        Ok(())
    }

    /// Makes `rate` requests per second, each on another connection. Latencies count from the intended start.
    fn request(&mut self, stage: &Stage<'_>, rate: f64, sample: &mut Sample) -> Result<(), Error> {
        let time = stage.effort.time * scraped::LONG;
        let mut latencies = Vec::new();
        place::on(stage.client, || {
            let begun = clock::now();
            for number in 0.. {
                let due = Duration::from_secs_f64(f64::from(number) / rate);
                if due > time {
                    break;
                }
                stage.check_signal()?;
                thread::sleep(due.saturating_sub(clock::now() - begun));
                self.next = (self.next + STRIDE) % self.clients.len();
                let answered = self.clients[self.next].ask(stage);
                answered.map_err(|e| Error::os("an idle connection did not answer", e))?;
                latencies.push((clock::now() - begun - due).as_secs_f64() * 1e6);
            }
            Ok(())
        })?;
        latencies.sort_by(f64::total_cmp);
        for (name, share) in [(figures::P50, 0.5), (figures::P99, 0.99)] {
            let rank = (latencies.len() as f64 * share) as usize;
            sample.put(name, latencies.get(rank).copied().unwrap_or(f64::NAN));
        }
        Ok(())
    }
}

/// Reloads, upgrades and drains a server, and records the connections that do not survive the first two.
fn transitions(
    stage: &mut Stage<'_>,
    index: usize,
    mut crowd: Crowd,
    sample: &mut Sample,
) -> Result<(), Error> {
    let server = &stage.servers[index];
    let (name, addresses) = (&server.name, addresses(server));
    let file = stage.directory.join(format!("{name}.conf"));
    let threads = server.process.weight().threads;
    command(server, "reload", &file, sample)?;
    let mut lost = client::ask_all(stage, &mut crowd.clients);
    // The old process of the upgrade keeps the long times.
    let text = fs::read_to_string(&file).map_err(|e| Error::os(file.display().to_string(), e))?;
    store::write(&file, &text.replace(PATIENT, IMPATIENT))?;
    command(server, "upgrade", &file, sample)?;
    lost += client::ask_all(stage, &mut crowd.clients);
    sample.put(figures::LOST, lost as f64);
    crowd.clients.clear();
    // The limit of connections counts both processes, so the old one must end first.
    while server.process.weight().threads > threads {
        stage.check_signal()?;
        thread::sleep(PAUSE);
    }
    client::gather(stage, &addresses, &mut crowd.clients, stage.crowd())?;
    let begun = clock::now();
    guard::kill(stage.servers[index].process.pid(), Signal::TERM);
    for mut client in crowd.clients {
        while client
            .receive(stage)
            .is_err_and(|e| e.kind() == ErrorKind::WouldBlock)
        {
            stage.check_signal()?;
        }
    }
    let process = &mut stage.servers[index].process;
    let ended = process.end_within(DRAIN_LIMIT);
    if !ended.is_some_and(|status| status.success()) {
        return Err(process.complain("did not drain"));
    }
    let took = clock::now() - begun;
    sample.put(figures::DRAIN, took.as_secs_f64() * 1e6);
    Ok(())
}

/// Runs `becket reload` or `becket upgrade`, and records its duration and the server's largest memory meanwhile.
fn command(server: &Server, verb: &str, file: &Path, sample: &mut Sample) -> Result<(), Error> {
    let process = &server.process;
    let failed = |e| Error::os(format!("cannot run `becket {verb}`"), e);
    let begun = clock::now();
    let mut child = Command::new(format!("/proc/{}/exe", process.pid()))
        .args([verb, "--config"])
        .arg(file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .map_err(failed)?;
    let mut most = process.weight().pss_bytes;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            break status;
        }
        most = most.max(process.weight().pss_bytes);
        thread::sleep(PAUSE);
    };
    let took = clock::now() - begun;
    if !status.success() {
        return Err(process.complain(&format!("failed to {verb}")));
    }
    sample.put(&format!("{verb}_us"), took.as_secs_f64() * 1e6);
    sample.put(&format!("{verb}_pss_bytes"), most as f64);
    Ok(())
}

/// Returns the addresses of the listener, which share the ports of the clients.
fn addresses(server: &Server) -> Vec<SocketAddr> {
    let port = server.address.port();
    (1..=ADDRESSES)
        .map(|last| ([127, 0, 0, last], port).into())
        .collect()
}

/// Makes the allocator reserve the memory of the clients in one piece.
///
/// The host of user-mode Linux maps each run of adjacent pages separately, at most `vm.max_map_count` for each process.
/// Pages of the clients between those of the server would exceed that.
fn reserve(count: usize) {
    let pieces = (0..count).map(|_| vec![1_u8; CLIENT]);
    drop(std::hint::black_box(pieces.collect::<Vec<_>>()));
}

/// Returns becket's configuration sections: the admin socket, and times that exceed the duration of a case.
pub(crate) fn sections(directory: &Path, address: SocketAddr) -> String {
    scraped::sections(directory, address) + PATIENT
}

const PATIENT: &str = "drain = \"1d\"\ndrain-idle = \"1d\"\n";
/// Times of the process that is drained.
const IMPATIENT: &str = "drain = \"1d\"\ndrain-idle = \"1s\"\n";
/// Column of the server without idle connections.
const EMPTY: &str = "becket@empty";
/// One of this number of connections makes a request each second.
const ACTIVE: usize = 100;
/// Largest first number of connections at which the memory is read.
const FIRST: usize = 1_000;
/// Number of further readings.
const PARTS: usize = 10;
/// Number of addresses of the listener. connect(2) prefers half of the ports (14 000 for a pair of addresses); when they
/// are used up, it scans them all each time.
const ADDRESSES: u8 = 16;
/// Distance between the connections of successive requests: a prime, so that all are used.
const STRIDE: usize = 7_919;
/// Memory of a client in bytes, about.
const CLIENT: usize = 16 * 1024;
const PAUSE: Duration = Duration::from_millis(10);
const DRAIN_LIMIT: Duration = Duration::from_secs(1_800);
