//! Measures many certificates: the start and the memory of each peer; for becket also a start that knows the checked
//! files, changes of files, and reloads.
//!
//! A start ends with the first completed handshake. A server with one certificate shows the memory that does not depend
//! on their number.

use std::fs;
use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use becket_load::{clock, cpu};

use super::client::Client;
use super::stage::Stage;
use super::{capacity, rounds};
use crate::bundles::{Bundles, CACHE};
use crate::peer::{Kind, Peer, Server, Site};
use crate::process::free_address;
use crate::result::{Column, Sample};
use crate::{Error, figures, load, place};

pub(super) fn run(stage: &mut Stage<'_>) -> Result<Vec<Column>, Error> {
    let (peers, site) = stage.starts;
    let count = stage.settings.certificates;
    let few = stage.directory.join("one-certificate");
    let many = stage.directory.join(format!("{count}-certificates"));
    note(&format!("creating {count} certificates"));
    Bundles::create(few.clone(), 1)?;
    let bundles = Bundles::create(many, count)?;
    let columns = peers.iter().map(|peer| Column::new(&peer.name)).collect();
    let cpus: Vec<usize> = [site.cpus, stage.client].concat();
    let columns = rounds::each(stage, columns, |stage, index, _, sample| {
        let peer = &peers[index];
        let with_one = Site {
            certificate: &few,
            settings: &site.settings.with_certificates(1),
            ..site.clone()
        };
        let alone = {
            let (server, _) = start(stage, peer, &with_one)?;
            thread::sleep(stage.effort.rest);
            server.process.weight()
        };
        let with_all = Site {
            certificate: &bundles.folder,
            ..site.clone()
        };
        // A start may use all CPUs, because no load runs.
        let on_all = Site {
            cpus: &cpus,
            ..with_all.clone()
        };
        let cache = stage.directory.join(CACHE);
        if cache.exists() {
            fs::remove_file(&cache).map_err(|e| Error::os("cannot remove the cache", e))?;
        }
        note(&format!("{}: first start", peer.name));
        let (server, first) = start(stage, peer, &on_all)?;
        sample.put(figures::START, first.wall_us);
        sample.put(figures::START_CPU, first.cpu_us);
        thread::sleep(stage.effort.rest);
        let each = server.process.weight().growth(alone, count);
        sample.put(figures::PSS_PER_CERTIFICATE, each);
        let above = each - bundles.der_bytes as f64;
        sample.put(figures::PSS_ABOVE_CERTIFICATE, above);
        if peer.kind != Kind::Becket {
            return Ok(());
        }
        drop(server);
        note(&format!("{}: further start", peer.name));
        let (server, again) = start(stage, peer, &on_all)?;
        sample.put(figures::RESTART, again.wall_us);
        sample.put(figures::RESTART_CPU, again.cpu_us);
        drop(server);
        if sample.round == 0 {
            let (server, _) = start(stage, peer, &with_all)?;
            thread::sleep(stage.effort.rest);
            changes(stage, &server, &bundles, sample)?;
            reloads(stage, &server, &bundles, sample)?;
        }
        Ok(())
    })?;
    fs::remove_dir_all(&bundles.folder).map_err(|e| Error::os("cannot remove certificates", e))?;
    Ok(columns)
}

struct Started {
    wall_us: f64,
    cpu_us: f64,
}

fn start(stage: &Stage<'_>, peer: &Peer, site: &Site<'_>) -> Result<(Server, Started), Error> {
    let address = free_address()?;
    let begun = clock::now();
    let mut server = peer.start(&Site {
        address,
        ..site.clone()
    })?;
    // The supervisor of becket listens before the process that it starts has loaded.
    let tls = stage.tls()?;
    loop {
        stage.check_signal()?;
        let client = Client::open(stage, address, &tls.config());
        if client.and_then(|mut client| client.shake_hands()).is_ok() {
            break;
        }
        if server.process.has_ended() || clock::now() - begun > START_LIMIT {
            return Err(server.process.complain("does not complete a handshake"));
        }
        thread::sleep(PAUSE);
    }
    let wall = clock::now() - begun;
    let cpu = cpu::of_processes(&[server.process.pid()])?.total();
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    let started = Started {
        wall_us: us(wall),
        cpu_us: us(cpu),
    };
    Ok((server, started))
}

/// Measures clients without changes, and while 1 % of the files change per minute: first full handshakes at a low rate,
/// then requests on an open connection. Last, the work of the workers for changes alone.
fn changes(
    stage: &Stage<'_>,
    server: &Server,
    bundles: &Bundles,
    sample: &mut Sample,
) -> Result<(), Error> {
    let time = stage.effort.time * CHANGES_LONG;
    let load = |rate, keepalive: Option<u32>| {
        let mut ask = stage.ask(server.address, None);
        if let Some(requests) = keepalive {
            ask = ask.with("--keepalive", requests);
        }
        let before = cpu::of_processes(&[server.process.pid()])?;
        let step = capacity::at_rate(ask, stage, rate, time)?;
        // The last changes settle.
        thread::sleep(stage.effort.rest);
        let cpu = cpu::of_processes(&[server.process.pid()])?.since(before);
        Ok::<_, Error>((step, cpu.total().as_secs_f64() * 1e6))
    };
    progress(server, "handshakes without and with changes");
    let shake = || load(HANDSHAKES, None);
    let (calm, _) = shake()?;
    let ((busy, _), _) = while_changing(stage, bundles, time, shake)?;
    load::latencies(sample, &calm, str::to_owned);
    load::latencies(sample, &busy, |name| format!("{}{name}", figures::CHANGING));
    progress(server, "requests without and with changes");
    let ask = || load(REQUESTS, Some(ENDLESS));
    let (calm, calm_cpu) = ask()?;
    let ((busy, busy_cpu), changed) = while_changing(stage, bundles, time, ask)?;
    for (prefix, step) in [("", &calm), (figures::CHANGING, &busy)] {
        let whole = step.latency.from_intended();
        let name = |figure| format!("{prefix}{}{figure}", figures::PROBE);
        sample.put(&name(figures::P999), whole.p999_us);
        sample.put(&name(figures::MAX), whole.max_us);
    }
    let each = (busy_cpu - calm_cpu).max(0.0) / changed as f64;
    sample.put(figures::CHANGE_CPU, each);
    progress(server, "work of the workers by changes, without clients");
    let end = clock::now() + time;
    let (longest, _) = while_changing(stage, bundles, time, || longest_work(stage, server, end))?;
    sample.put(figures::WORKER_LONGEST, longest.as_secs_f64() * 1e6);
    Ok(())
}

/// Returns the longest CPU time that all workers together use between two looks, each [`LOOK`] after the previous one.
/// Other processes can delay a worker for longer, but not add to this time.
fn longest_work(stage: &Stage<'_>, server: &Server, end: Instant) -> Result<Duration, Error> {
    let (mut before, mut longest) = (server.process.worker_time(), Duration::ZERO);
    while clock::now() < end {
        stage.check_signal()?;
        thread::sleep(LOOK);
        let now = server.process.worker_time();
        longest = longest.max(now.saturating_sub(before));
        before = now;
    }
    Ok(longest)
}

/// Runs a load of this duration while files change. Returns its result and the number of changed files.
fn while_changing<T>(
    stage: &Stage<'_>,
    bundles: &Bundles,
    time: Duration,
    run: impl Fn() -> Result<T, Error>,
) -> Result<(T, usize), Error> {
    let count = stage.settings.certificates;
    let per_s = count as f64 / 100.0 / 60.0;
    let changed = (per_s * time.as_secs_f64()).ceil().max(1.0) as usize;
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            place::on(stage.client, || {
                let begun = clock::now();
                for number in 0..changed {
                    let due = Duration::from_secs_f64(number as f64 / per_s);
                    thread::sleep(due.saturating_sub(clock::now() - begun));
                    bundles.write(1 + number * STRIDE % (count - 1).max(1))?;
                }
                Ok::<_, Error>(())
            })
        });
        let result = run();
        let lost = || Error::Asked("a thread panicked".to_owned());
        writer.join().map_err(|_| lost())??;
        Ok((result?, changed))
    })
}

/// Reloads many times, each with 1 % of the files changed, and records the memory.
fn reloads(
    stage: &Stage<'_>,
    server: &Server,
    bundles: &Bundles,
    sample: &mut Sample,
) -> Result<(), Error> {
    let count = stage.settings.certificates;
    let file = stage.directory.join(format!("{}.conf", server.name));
    let times = if stage.effort.few { 3 } else { RELOADS };
    let before = server.process.weight().pss_bytes;
    let (mut number, mut took) = (0, Duration::ZERO);
    for reload in 0..times {
        if reload % 10 == 0 {
            progress(server, &format!("reload {} of {times}", reload + 1));
        }
        stage.check_signal()?;
        for _ in 0..count.div_ceil(100) {
            number += 1;
            bundles.write(1 + number * STRIDE % (count - 1).max(1))?;
        }
        let begun = clock::now();
        let status = Command::new(format!("/proc/{}/exe", server.process.pid()))
            .args(["reload", "--config"])
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status();
        let status = status.map_err(|e| Error::os("cannot run `becket reload`", e))?;
        if !status.success() {
            return Err(server.process.complain("failed to reload"));
        }
        took += clock::now() - begun;
    }
    thread::sleep(stage.effort.rest);
    let after = server.process.weight().pss_bytes;
    sample.put(figures::RELOADED, after as f64 / before.max(1) as f64);
    let each = took.as_secs_f64() * 1e6 / f64::from(times);
    sample.put("reload_us", each);
    Ok(())
}

fn progress(server: &Server, what: &str) {
    note(&format!("{}: {what}", server.name));
}

fn note(text: &str) {
    drop(writeln!(io::stderr(), "  {text}"));
}

/// Returns becket's configuration sections: the admin socket, for reloads.
pub(crate) fn sections(site: &Site<'_>) -> String {
    format!(
        "\n[admin]\nsocket = \"{}\"\n",
        site.directory.join("admin.sock").display()
    )
}

/// Rate of full handshakes per second, which a core can make easily.
const HANDSHAKES: f64 = 500.0;
/// Rate of requests per second on an open connection.
const REQUESTS: f64 = 500.0;
/// Number of requests that a connection does not reach.
const ENDLESS: u32 = 1_000_000;
/// Interval of looks at the CPU time of workers.
const LOOK: Duration = Duration::from_millis(10);
/// Factor for the usual duration, so that changes are looked for several times.
const CHANGES_LONG: u32 = 30;
const RELOADS: u32 = 100;
/// Distance between successively changed files: a prime, so that all change.
const STRIDE: usize = 7_919;
const START_LIMIT: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(20);
