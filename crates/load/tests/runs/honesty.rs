//! Reports are accurate: stalls are visible, rates are kept, and limits of the tool are reported.

use std::time::Duration;

use becket_load::report::Summary;

use super::server::{Server, config, serve_in_parts};
use super::{Responder, load, not_started, report, shown, signal};

fn above(summary: &Summary, us: f64) -> u64 {
    summary
        .buckets
        .iter()
        .filter(|bucket| bucket.up_to_us > us * 1.25)
        .map(|bucket| bucket.count)
        .sum()
}

#[test]
fn corrected_latencies_show_a_stall_of_the_server_in_full() {
    let responder = Responder::start(&[]);
    let pid = responder.child.id();
    let stalls = std::thread::spawn(move || {
        // Stop the server in the middle of the run, regardless of the time it takes to start.
        std::thread::park_timeout(Duration::from_millis(1500));
        // From outside, this looks like a garbage collection or a slow disk.
        signal("-STOP", pid);
        std::thread::park_timeout(Duration::from_millis(100));
        signal("-CONT", pid);
    });
    // With only two connections, most transactions that are due during the stall wait in the client.
    let report = report(
        &responder.url(),
        "-R 1000 -d 3s -c 2 -t 1 --keepalive 100000",
    );
    stalls.join().unwrap();
    let step = &report.steps[0];
    let corrected = step.latency.whole_corrected.as_ref().unwrap();
    let due = step.attempted - not_started(step);
    assert_eq!(step.succeeded, due, "{:?}", step.failures);
    assert!(
        corrected.p999_us > 80_000.0,
        "corrected p99.9 {} us",
        corrected.p999_us
    );
    // 1000 per second for 100 ms: half of these waited more than 50 ms. Uncorrected latencies show the stall only for the two
    // transactions in progress. This holds on a busy machine as well.
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
fn a_nagle_stall_is_reported() {
    // Without tickets the server sends nothing after the client's Finished, so its kernel delays the acknowledgement.
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
fn a_slow_server_shows_in_the_first_byte_latency_and_its_cpu_time_is_read() {
    let responder = Responder::start(&["--service-time", "20ms"]);
    let (url, pid) = (responder.url(), responder.child.id());
    let report = report(&url, &format!("-c 4 -n 40 -t 1 --pid {pid} --since-queued"));
    let step = &report.steps[0];
    assert!(step.latency.first_byte.p50_us >= 20_000.0 && step.server.is_some());
    let queued = step
        .latency
        .since_queued
        .as_ref()
        .expect("the option --since-queued");
    assert_eq!(queued.count, step.latency.whole.count);
    // The exact value depends on when the kernel sends the acknowledgement.
    assert!(0.0 < queued.p50_us && queued.p50_us <= step.latency.whole.p50_us);
}

#[test]
fn a_ramp_beyond_the_capacity_is_not_reported_as_sustained() {
    // Two connections with 20 ms per request can do 100 requests per second.
    let responder = Responder::start(&["--service-time", "20ms"]);
    let args = "-c 2 -t 1 --keepalive 100000 --ramp 40..240/100,1s";
    let ramp = report(&responder.url(), args);
    let asked = ramp.steps.iter().map(|step| step.rate_asked_per_s.unwrap());
    assert_eq!(asked.collect::<Vec<_>>(), [40.0, 140.0, 240.0]);
    // On a busy machine, even the first rate may not hold.
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

#[test]
fn a_client_answers_only_the_whole_flight_of_the_server() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("its address").port();
    let server = std::thread::spawn(move || serve_in_parts(&listener));
    let report = report(&format!("https://localhost:{port}/"), "-n 1 -c 1 --tls 1.3");
    let step = &report.steps[0];
    assert_eq!(step.succeeded, 1, "{:?}", step.failures);
    let early = server.join().expect("no panic").expect("a request");
    assert_eq!(early, 0, "a ChangeCipherSpec alone delays the Finished");
}
