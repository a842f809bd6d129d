//! Measures the CPU cost of each kind of message from a peer: per message, per byte, and relative
//! to a byte of bulk data.
//!
//! Run with `cargo bench -p becket --bench peer_costs`; the bench prints the table of
//! docs/security-analysis.md. Without `--bench`, as in CI, it sends each message once or twice.
//!
//! The bench starts becket with one worker. It reads the CPU time of the threads that handle the
//! message, as the scheduler counts it, including system calls. The result therefore excludes the
//! CPU time of clients and servers.
//!
//! A second table has the first flights of becket (`flights.rs`); `-- flights` measures only these.
//!
//! A message that begins a connection includes the cost of accept and close. The cost of a message
//! within a connection is the difference from connections without it (`meter.rs`). Bytes are TCP or
//! UDP payload.

mod cases;
mod clients;
mod files;
mod flights;
mod meter;
mod sealer;
mod servers;
#[path = "../shared/supervised.rs"]
mod supervised;
#[path = "../../tests/connection/tangle.rs"]
#[expect(clippy::unwrap_used, reason = "a bench fails by panicking")]
mod tangle;
mod terminator;

use std::fs;
use std::net::SocketAddr;

use becket_sys::affinity::allowed_cpus;

use self::cases::Cases;
use self::meter::Meter;
use self::terminator::{Places, SERVERS, Terminator};

fn main() {
    let is_asked = |what| std::env::args().any(|argument| argument == what);
    let (rounds, times) = if is_asked("--bench") {
        (15, 100)
    } else {
        (1, 2)
    };
    let folder = tempfile::tempdir().expect("a folder");
    let identities = files::write(folder.path());
    // Start the servers first, because they could otherwise bind the ports that becket will use.
    let servers = start_servers(&identities.server);
    let places = Places::find();
    let greeting = places.greeting_of_another(folder.path(), servers);
    let terminator = Terminator::start(folder.path(), &places.text(1, servers));
    let mut cases = Cases {
        meter: Meter::new(terminator, rounds, times),
        places,
        identities,
    };
    let cpus = allowed_cpus().map_or(0, |cpus| cpus.len());
    println!(
        "Measured on {cpus} CPUs ({}), Linux {}, by `cargo bench -p becket --bench peer_costs`: medians of\n\
         {rounds} rounds of {times}.\n",
        line_of("/proc/cpuinfo", "model name"),
        line_of("/proc/sys/kernel/osrelease", ""),
    );
    if !is_asked("flights") {
        cases.records();
        cases.clear();
        cases.hellos();
        cases.handshakes();
        cases.datagrams(&greeting);
        cases.files();
        cases.pages();
        println!("{}", cases.meter.table());
    }
    println!("{}", cases.flights());
}

/// Starts the servers, in the order of the configuration.
fn start_servers(tls: &rustls::ServerConfig) -> [SocketAddr; SERVERS] {
    let mut servers = [(); SERVERS].map(|()| servers::once());
    servers[..4].copy_from_slice(&[
        servers::sink(),
        servers::says(b"220 a.test ESMTP\r\n"),
        servers::tls(tls, 1),
        servers::tls(tls, 1 + cases::TICKETS),
    ]);
    servers
}

/// Finds the first line that starts with `begins`, and returns the text after it.
fn line_of(file: &str, begins: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(begins));
    let said = line.map(|line| line.trim_start_matches([' ', '\t', ':']).trim());
    said.unwrap_or("unknown").to_owned()
}
