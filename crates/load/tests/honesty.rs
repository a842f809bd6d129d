//! The tool does not flatter: stalls show, rates are kept, its own limits are said.

mod support;

use std::process::Command;
use std::time::Duration;

use becket_stats::report::{LoadReport, Summary};
use support::peer::{Peer, now};
use support::server::{Manners, Server, config};
use support::{Identity, report};

/// Stops a process for this long: what a garbage collection or a disk looks like from outside.
fn stall(pid: &str, time: Duration) {
    let signal = |name: &str| {
        let status = Command::new("kill").args([name, pid]).status();
        assert!(
            status.is_ok_and(|status| status.success()),
            "kill {name} {pid}"
        );
    };
    signal("-STOP");
    let until = now() + time;
    while let Some(left) = until.checked_duration_since(now()) {
        std::thread::park_timeout(left);
    }
    signal("-CONT");
}

fn above(summary: &Summary, us: f64) -> u64 {
    summary
        .buckets
        .iter()
        .filter(|bucket| bucket.up_to_us > us * 1.25)
        .map(|bucket| bucket.count)
        .sum()
}

#[test]
fn a_stall_of_the_server_shows_in_the_corrected_latencies_in_full() {
    let (responder, address) = Peer::responder(&[]);
    let url = format!("http://{address}/");
    let pid = responder.pid();
    let stalls = std::thread::spawn(move || {
        // In the middle, however long it takes to begin.
        std::thread::park_timeout(Duration::from_millis(1500));
        stall(&pid, Duration::from_millis(100));
    });
    // Two connections only: the rest of what was due in the stall waits in the client.
    let report = report(&url, "-R 1000 -d 3s -c 2 -t 1 --keepalive 100000");
    stalls.join().unwrap();
    let step = &report.steps[0];
    let corrected = step.latency.whole_corrected.as_ref().unwrap();
    assert_eq!(step.succeeded, step.attempted, "{:?}", step.failures);
    assert!(
        corrected.p999_us > 80_000.0,
        "corrected p99.9 {} us",
        corrected.p999_us
    );
    // A thousand per second for a tenth of a second: half of those waited more than 50 ms. Uncorrected only those show it that
    // were under way, two at a time; that is what correction is for, however busy the machine is besides.
    let (waited, shown) = (
        above(corrected, 40_000.0),
        above(&step.latency.whole, 40_000.0),
    );
    assert!(waited >= 30, "{waited} of {} waited", corrected.count);
    assert!(
        shown * 2 <= waited,
        "{shown} show it uncorrected, {waited} corrected"
    );
}

#[test]
fn the_forty_milliseconds_of_nagle_are_named() {
    // Without tickets the server has nothing to say after the client's Finished, and acknowledges late.
    let mut without_tickets = config(&Identity::new());
    without_tickets.send_tls13_tickets = 0;
    let server = Server::start(without_tickets, Manners::default());
    let url = server.url();
    let named = |report: &LoadReport| {
        report.steps[0]
            .findings
            .iter()
            .any(|f| f.starts_with("Nagle stall"))
    };
    let with = report(&url, "-n 30 -c 1 -t 1 --nagle");
    assert!(
        named(&with),
        "{:?} {:?}",
        with.steps[0].findings,
        with.steps[0].latency.first_byte
    );
}

#[test]
fn a_slow_server_shows_in_the_first_byte_and_its_cpu_is_read() {
    let (responder, address) = Peer::responder(&["--service-time", "20ms"]);
    let url = format!("http://{address}/");
    let report = report(&url, &format!("-c 4 -n 40 -t 1 --pid {}", responder.pid()));
    let step = &report.steps[0];
    assert!(step.latency.first_byte.p50_us >= 20_000.0 && step.server.is_some());
}

#[test]
fn what_is_measured_since_the_accept_queue_is_part_of_the_whole() {
    let (_responder, address) = Peer::responder(&["--service-time", "20ms"]);
    let url = format!("http://{address}/");
    let args = "-c 4 -n 40 -t 1";
    assert!(report(&url, args).steps[0].latency.since_queued.is_none());
    let report = report(&url, &format!("{args} --since-queued"));
    let latency = &report.steps[0].latency;
    let queued = latency.since_queued.as_ref().expect("what was asked for");
    assert_eq!(queued.count, latency.whole.count);
    // How much of it: that depends on when the kernel came to the acknowledgement.
    assert!(0.0 < queued.p50_us && queued.p50_us <= latency.whole.p50_us);
}
