//! Every failure has a name, and nothing that failed looks like a result.

mod support;

use std::process::{Command, Stdio};

use becket_stats::report::{LoadReport, LoadStep};
use support::peer::{Peer, free_address};
use support::server::{Manners, Server, config};
use support::{Identity, load, report, shown};

fn against(manners: Manners, args: &str) -> LoadStep {
    let identity = Identity::new();
    let server = Server::start(config(&identity), manners);
    report(&server.url(), &format!("-n 3 -c 1 {args}"))
        .steps
        .swap_remove(0)
}

fn only_failure(step: &LoadStep) -> (&str, u64) {
    assert_eq!(
        (step.succeeded, step.failures.len()),
        (0, 1),
        "{:?}",
        step.failures
    );
    step.failures
        .iter()
        .next()
        .map(|(kind, count)| (kind.as_str(), *count))
        .expect("one")
}

#[test]
fn responses_that_are_not_whole_or_not_right_are_failures() {
    let response = |response| Manners {
        response,
        ..Manners::default()
    };
    let short = response(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello");
    assert_eq!(only_failure(&against(short, "")), ("short body", 3));
    let error = response(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(only_failure(&against(error, "")), ("status 503", 3));
    let alien = response(b"220 mail ready\r\n\r\n");
    assert_eq!(only_failure(&against(alien, "")), ("not HTTP/1", 3));
    assert_eq!(
        only_failure(&against(Manners::default(), "--expect-body 6")),
        ("wrong body length", 3)
    );
    assert_eq!(against(Manners::default(), "--expect-body 5").succeeded, 3);
    let cut = Manners {
        response: b"HTTP/1.0 200 OK\r\n\r\nhello",
        cut: true,
        ..Manners::default()
    };
    assert_eq!(
        only_failure(&against(cut, "")),
        ("short body", 3),
        "an end without close_notify proves nothing"
    );
    assert_eq!(against(Manners { cut: false, ..cut }, "").succeeded, 3);
}

#[test]
fn a_server_with_nothing_in_common_answers_with_an_alert_by_number() {
    let step = against(
        Manners::default(),
        "--tls 1.2 --suite ECDHE-RSA-AES128-GCM-SHA256",
    );
    assert_eq!(only_failure(&step), ("alert 40", 3));
    assert_eq!(step.handshakes.full, 0);
}

#[test]
fn a_server_that_does_not_speak_tls_is_named() {
    let (_responder, address) = Peer::responder(&[]);
    let output = load(&format!("-q https://{address}/ -n 3 -c 1 --time-out 1s"));
    assert_eq!(output.status.code(), Some(1), "{}", shown(&output));
    assert!(
        shown(&output).contains("no transaction succeeded"),
        "{}",
        shown(&output)
    );
}

#[test]
fn a_silent_server_is_a_time_out_in_its_phase() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    let step = report(&url, "-n 2 -c 2 --time-out 300ms")
        .steps
        .swap_remove(0);
    assert_eq!(only_failure(&step), ("time-out: handshake", 2));
}

#[test]
fn wrong_command_lines_and_unreachable_targets_are_a_sentence_and_a_code() {
    let nobody = format!("https://{}/", free_address());
    let cases = [
        (&*nobody, 3, "cannot connect"),
        ("https://nowhere.invalid/", 3, "does not resolve"),
        ("https://192.0.2.1/", 2, "--i-own-this-target"),
        ("https://127.0.0.1/ --suite DES", 2, "unknown suite `DES`"),
        ("https://127.0.0.1/ -c 0", 2, "-c"),
        ("https://127.0.0.1/ -d ten", 2, "not a duration"),
        ("https://127.0.0.1/ --pid 4294967295", 2, "no such process"),
    ];
    for (args, code, sentence) in cases {
        let output = load(args);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{args}: {}",
            shown(&output)
        );
        assert!(
            shown(&output).contains(sentence),
            "{args}: {}",
            shown(&output)
        );
        assert!(
            output.stdout.is_empty(),
            "nothing that looks like a result: {}",
            shown(&output)
        );
    }
}

#[test]
fn a_report_on_standard_output_is_alone_there() {
    let (_responder, address) = Peer::responder(&[]);
    let output = load(&format!("-q http://{address}/ -n 2 --json -"));
    assert_eq!(output.status.code(), Some(0), "{}", shown(&output));
    let report = LoadReport::from_json(&String::from_utf8_lossy(&output.stdout)).unwrap();
    assert_eq!(report.steps[0].succeeded, 2);
    assert!(!output.stderr.is_empty(), "the text is there");
}

#[test]
fn a_report_that_cannot_be_stored_is_an_error_and_leaves_nothing() {
    let (_responder, address) = Peer::responder(&[]);
    let url = format!("http://{address}/");
    let output = load(&format!("-q {} -n 2 --json /nonexistent/report.json", url));
    assert_eq!(output.status.code(), Some(4), "{}", shown(&output));
    assert!(
        shown(&output).contains("storing /nonexistent/report.json"),
        "{}",
        shown(&output)
    );
}

#[test]
fn a_port_in_use_is_said_by_the_responder() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = load(&format!("--serve {}", address));
    assert_eq!(output.status.code(), Some(4), "{}", shown(&output));
    assert!(shown(&output).contains(&address), "{}", shown(&output));
}

#[test]
fn an_interrupt_still_gives_the_report_of_what_was_done() {
    let (_responder, address) = Peer::responder(&[]);
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("report.json");
    let mut child = Command::new(env!("CARGO_BIN_EXE_becket-load"))
        .args([
            &format!("http://{address}/"),
            "-d60s",
            "--warm-up=0s",
            "-c2",
            "--keepalive=100000",
        ])
        .args(["--json", support::text(&json)])
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The first line of progress says that it runs.
    let mut line = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(child.stderr.take().unwrap()),
        &mut line,
    )
    .unwrap();
    assert!(line.contains("/s"), "{line}");
    assert!(
        Command::new("kill")
            .args(["-INT", &child.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", shown(&output));
    assert!(shown(&output).contains("interrupted"), "{}", shown(&output));
    let report = LoadReport::from_json(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert!(report.interrupted && report.steps[0].succeeded > 0);
    assert!(report.steps[0].seconds < 30.0);
}
