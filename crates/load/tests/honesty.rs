//! The tool does not flatter: stalls show, rates are kept, its own limits are said.

mod support;

use std::io::{Read, Write};
use std::process::Command;
use std::time::Duration;

use becket_stats::report::{Report, Summary};
use support::peer::{Peer, alone, now};
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
    let _alone = alone();
    let (responder, address) = Peer::responder(&[]);
    let url = format!("http://{address}/");
    let pid = responder.pid();
    let stalls = std::thread::spawn(move || {
        std::thread::park_timeout(Duration::from_millis(700));
        stall(&pid, Duration::from_millis(100));
    });
    // Two connections only: the rest of what was due in the stall waits in the client.
    let report = report(&[
        &url,
        "-R",
        "1000",
        "-d",
        "1500ms",
        "-c",
        "2",
        "-t",
        "1",
        "--keepalive",
        "100000",
    ]);
    stalls.join().unwrap();
    let step = &report.steps[0];
    let corrected = step.latency.whole_corrected.as_ref().unwrap();
    assert_eq!(step.succeeded, step.attempted, "{:?}", step.failures);
    assert!(
        corrected.p999_us > 80_000.0,
        "corrected p99.9 {} us",
        corrected.p999_us
    );
    // A thousand per second for a tenth of a second: half of those waited more than 50 ms.
    let waited = above(corrected, 10_000.0);
    assert!(
        (60..=200).contains(&waited),
        "{waited} of {} waited",
        corrected.count
    );
    let uncorrected = above(&step.latency.whole, 10_000.0);
    assert!(
        uncorrected <= 20,
        "only {uncorrected} show it uncorrected: that is what correction is for"
    );
}

#[test]
fn the_forty_milliseconds_of_nagle_are_named() {
    let _alone = alone();
    // Without tickets the server has nothing to say after the client's Finished, and acknowledges late.
    let mut without_tickets = config(&Identity::new());
    without_tickets.send_tls13_tickets = 0;
    let server = Server::start(without_tickets, Manners::default());
    let url = server.url();
    let named = |report: &Report| {
        report.steps[0]
            .findings
            .iter()
            .any(|f| f.starts_with("Nagle stall"))
    };
    let with = report(&[&url, "-n", "30", "-c", "1", "-t", "1", "--nagle"]);
    assert!(
        named(&with),
        "{:?} {:?}",
        with.steps[0].findings,
        with.steps[0].latency.first_byte
    );
    let without = report(&[&url, "-n", "30", "-c", "1", "-t", "1"]);
    assert!(!named(&without), "{:?}", without.steps[0].findings);
}

#[test]
fn the_rate_is_kept_within_one_percent_for_both_kinds_of_arrivals() {
    let _alone = alone();
    let (_responder, address) = Peer::responder(&[]);
    let url = format!("http://{address}/");
    for (arrivals, tolerance) in [("constant", 0.01), ("poisson", 0.05)] {
        let args = [
            "-R",
            "3000",
            "-d",
            "1s",
            "-t",
            "1",
            "--keepalive",
            "100000",
            "--arrivals",
            arrivals,
            &url,
        ];
        // Another program may take the machine for a moment; it does not do so every time.
        let mut seen = Vec::new();
        let kept = (0..4).any(|_| {
            let step = report(&args).steps.swap_remove(0);
            seen.push((step.rate_succeeded_per_s, step.failures));
            step.failed == 0 && (step.rate_succeeded_per_s / 3000.0 - 1.0).abs() < tolerance
        });
        assert!(kept, "{arrivals}: {seen:?}");
    }
}

#[test]
fn a_ramp_reports_each_step_at_its_own_rate() {
    let _alone = alone();
    let (_responder, address) = Peer::responder(&[]);
    let url = format!("http://{address}/");
    let report = report(&[
        &url,
        "--ramp",
        "500..1500/500",
        "-d",
        "400ms",
        "-t",
        "1",
        "--keepalive",
        "100000",
    ]);
    let attempted: Vec<u64> = report.steps.iter().map(|step| step.attempted).collect();
    assert_eq!(attempted, [200, 400, 600]);
}

#[test]
fn a_client_that_is_the_bottleneck_says_so_in_place_of_a_capacity() {
    let _alone = alone();
    let url = format!("http://{}/", serve_crumbs());
    let report = report(&["-c", "4", "-d", "1s", "-t", "1", &url]);
    assert!(
        report.steps[0].generator.bound,
        "{:?}",
        report.steps[0].generator
    );
    assert!(
        report.verdict.starts_with("generator-bound, at least"),
        "{}",
        report.verdict
    );
}

/// Serves a body in a hundred thousand chunks of one byte: a copy for the server, toil for the client.
/// The thread ends with the test program.
fn serve_crumbs() -> std::net::SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("its address");
    let mut response =
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n".to_vec();
    (0..100_000).for_each(|_| response.extend_from_slice(b"1\r\nx\r\n"));
    response.extend_from_slice(b"0\r\n\r\n");
    let response = std::sync::Arc::new(response);
    std::thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            let response = std::sync::Arc::clone(&response);
            std::thread::spawn(move || {
                let read = socket.read(&mut [0; 4096]);
                drop(read.and_then(|_| socket.write_all(&response)));
            });
        }
    });
    address
}

#[test]
fn a_server_that_is_slow_is_not_called_the_generators_fault() {
    let _alone = alone();
    let (responder, address) = Peer::responder(&["--service-time", "20ms"]);
    let url = format!("http://{address}/");
    let report = report(&[
        &url,
        "-c",
        "4",
        "-d",
        "500ms",
        "-t",
        "1",
        "--pid",
        &responder.pid(),
    ]);
    let step = &report.steps[0];
    assert!(!step.generator.bound, "{:?}", step.generator);
    assert!(step.latency.first_byte.p50_us >= 20_000.0 && step.server.is_some());
}
