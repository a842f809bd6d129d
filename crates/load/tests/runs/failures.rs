//! Every failure has a name, and a failed run prints no result.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Command, Stdio};

use becket_load::report::LoadReport;

use super::server::{Server, USUAL, config};
use super::{Responder, load, report, shown, signal};

#[test]
fn incomplete_and_wrong_responses_are_failures() {
    let until_close = b"HTTP/1.0 200 OK\r\n\r\nhello";
    let cases: [(&[u8], bool, &str, &str); 8] = [
        (USUAL, false, "--expect-body 5", ""),
        (USUAL, false, "--expect-body 6", "wrong body length"),
        (
            USUAL,
            false,
            "--tls 1.2 --suite TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            "alert 40",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello",
            false,
            "",
            "short body",
        ),
        (
            b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n",
            false,
            "",
            "status 503",
        ),
        (b"220 mail ready\r\n\r\n", false, "", "not HTTP/1"),
        (until_close, false, "", ""),
        // Without close_notify the end of the body may be a truncation.
        (until_close, true, "", "short body"),
    ];
    for (response, cut, args, failure) in cases {
        let server = Server::start(config(), response, cut);
        let report = report(&server.url(), &format!("-n 3 -c 1 {args}"));
        let failures: Vec<_> = report.steps[0].failures.iter().collect();
        if failure.is_empty() {
            assert_eq!(report.steps[0].succeeded, 3, "{failures:?}");
        } else {
            assert_eq!(failures, [(&failure.to_owned(), &3)]);
        }
    }
}

#[test]
fn a_server_without_tls_makes_all_transactions_fail() {
    let responder = Responder::start(&[]);
    let url = format!("https://{}/", responder.address);
    let output = load(&format!("-q {url} -n 3 -c 1 --time-out 1s"));
    assert_eq!(output.status.code(), Some(1), "{}", shown(&output));
    let said = shown(&output);
    assert!(said.contains("no transaction succeeded"), "{said}");
}

#[test]
fn a_silent_server_causes_a_handshake_time_out() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    let report = report(&url, "-n 2 -c 2 --time-out 300ms");
    assert_eq!(report.steps[0].failures["time-out: handshake"], 2);
}

#[test]
fn invalid_command_lines_and_unreachable_targets_print_a_message_and_set_the_exit_code() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("--serve {}", taken.local_addr().unwrap());
    let cases = [
        ("https://127.87.6.5:1/", 3, "cannot connect"),
        ("https://nowhere.invalid/", 3, "does not resolve"),
        ("https://192.0.2.1/", 2, "--i-own-this-target"),
        (
            "https://127.0.0.1/ --suite DES",
            2,
            "unknown cipher suite `DES`",
        ),
        ("https://127.0.0.1/ -c 0", 2, "-c"),
        ("https://127.0.0.1/ -d ten", 2, "not a duration"),
        ("https://127.0.0.1/ --pid 4294967295", 2, "no such process"),
        (&taken, 4, "cannot listen on 127.0.0.1:"),
    ];
    for (args, code, sentence) in cases {
        let output = load(args);
        let said = shown(&output);
        assert_eq!(output.status.code(), Some(code), "{args}: {said}");
        assert!(said.contains(sentence), "{args}: {said}");
        assert!(
            output.stdout.is_empty(),
            "standard output is not empty: {said}"
        );
    }
}

#[test]
fn an_interrupted_run_prints_a_report() {
    let responder = Responder::start(&[]);
    let mut child = Command::new(env!("CARGO_BIN_EXE_becket-load"))
        .args([&*responder.url(), "-d60s", "--warm-up=0s", "-c2"])
        .args(["--keepalive=100000", "--json"])
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The first line of progress shows that the run has started.
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.contains("/s"), "{line}");
    signal("-INT", child.id());
    let rest: Vec<String> = said.lines().map_while(Result::ok).collect();
    assert!(rest.join("\n").contains("interrupted"), "{rest:?}");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", shown(&output));
    let report: LoadReport =
        serde_json::from_str(&String::from_utf8_lossy(&output.stdout)).unwrap();
    assert!(report.interrupted && report.steps[0].succeeded > 0);
    assert!(report.steps[0].seconds < 30.0);
}
