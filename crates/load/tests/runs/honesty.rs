//! The tool does not flatter: stalls show, rates are kept, its own limits are said.

use std::time::Duration;

use becket_stats::report::Summary;

use super::server::{Server, config};
use super::{Responder, load, report, shown, signal};

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
    let responder = Responder::start(&[]);
    let pid = responder.child.id();
    let stalls = std::thread::spawn(move || {
        // In the middle, however long it takes to begin.
        std::thread::park_timeout(Duration::from_millis(1500));
        // What a garbage collection or a disk looks like from outside.
        signal("-STOP", pid);
        std::thread::park_timeout(Duration::from_millis(100));
        signal("-CONT", pid);
    });
    // Two connections only: the rest of what was due in the stall waits in the client.
    let report = report(
        &responder.url(),
        "-R 1000 -d 3s -c 2 -t 1 --keepalive 100000",
    );
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
    let mut without_tickets = config();
    without_tickets.send_tls13_tickets = 0;
    let server = Server::usual(without_tickets);
    let step = report(&server.url(), "-n 30 -c 1 -t 1 --nagle")
        .steps
        .swap_remove(0);
    let mut findings = step.findings.iter();
    assert!(
        findings.any(|f| f.starts_with("Nagle stall")),
        "{:?}",
        step.latency.first_byte
    );
}

#[test]
fn a_slow_server_shows_in_the_first_byte_and_its_cpu_is_read() {
    let responder = Responder::start(&["--service-time", "20ms"]);
    let (url, pid) = (responder.url(), responder.child.id());
    let report = report(&url, &format!("-c 4 -n 40 -t 1 --pid {pid} --since-queued"));
    let step = &report.steps[0];
    assert!(step.latency.first_byte.p50_us >= 20_000.0 && step.server.is_some());
    let queued = step
        .latency
        .since_queued
        .as_ref()
        .expect("what was asked for");
    assert_eq!(queued.count, step.latency.whole.count);
    // How much of it: that depends on when the kernel came to the acknowledgement.
    assert!(0.0 < queued.p50_us && queued.p50_us <= step.latency.whole.p50_us);
}

#[test]
fn a_ramp_ends_its_praise_at_the_rate_that_does_not_hold() {
    // Two requests at a time that take 20 ms each are a hundred in a second.
    let responder = Responder::start(&["--service-time", "20ms"]);
    let args = "-c 2 -t 1 --keepalive 100000 --ramp 40..240/100,1s";
    let ramp = report(&responder.url(), args);
    let asked = ramp.steps.iter().map(|step| step.rate_asked_per_s.unwrap());
    assert_eq!(asked.collect::<Vec<_>>(), [40.0, 140.0, 240.0]);
    // Where the machine is busy, even the first may not hold.
    let praise = ["holds 140", "holds 240", "holds at least"];
    let praised = praise.iter().any(|words| ramp.verdict.contains(words));
    assert!(
        !praised && ramp.verdict.contains("hold"),
        "{}",
        ramp.verdict
    );
    let page = load(&format!("-q {} --ramp 40..60/20,200ms", responder.url()));
    let page = shown(&page);
    let rows = page.lines().filter(|row| row.ends_with('%'));
    assert_eq!(rows.count(), 2, "{page}");
}
