//! The server receives what the client reports to have offered.

use std::sync::Arc;

use super::report;
use super::server::{Server, config};

/// A session store that accepts every session and returns none.
#[derive(Debug)]
struct Forgetful;
impl rustls::server::StoresServerSessions for Forgetful {
    fn put(&self, _: Vec<u8>, _: Vec<u8>) -> bool {
        true
    }
    fn get(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }
    fn take(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }
    fn can_cache(&self) -> bool {
        true
    }
}

#[test]
fn asked_and_observed_resumption_agree_with_the_server() {
    for kind in ["id", "ticket", "psk"] {
        let mut config = config();
        if kind == "ticket" {
            config.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new().unwrap();
        }
        let server = Server::usual(config);
        let args = format!("-n 80 -c 4 -t 1 --resume every=4 --resume-kind {kind}");
        let report = report(&server.url(), &args);
        let step = &report.steps[0];
        let h = &step.handshakes;
        assert_eq!((step.succeeded, step.failed), (80, 0), "{step:?}");
        assert_eq!(
            (h.full, h.resumed()),
            (h.asked_full, h.asked_resumed),
            "{h:?}"
        );
        // Each slot makes every fourth handshake full, and up to two more because its first one is always full.
        assert!((52..=60).contains(&h.resumed()), "{h:?}");
        let resumed = server.seen().iter().filter(|seen| seen.resumed).count();
        assert_eq!(resumed as u64, h.resumed());
        let by_kind = match kind {
            "id" => h.resumed_by_id,
            "ticket" => h.resumed_by_ticket,
            _ => h.resumed_by_psk,
        };
        assert_eq!(by_kind, h.resumed());
    }
}

#[test]
fn a_session_without_a_ticket_is_not_offered_if_tickets_are_required() {
    let server = Server::usual(config());
    let args = "-n 20 -c 1 -t 1 --resume always --resume-kind ticket";
    let step = report(&server.url(), args).steps.swap_remove(0);
    let h = &step.handshakes;
    assert_eq!((h.resumed(), h.nothing_to_offer), (0, 19), "{h:?}");
    let mut findings = step.findings.iter();
    assert!(findings.any(|f| f.contains("no session of the requested kind")));
}

#[test]
fn a_session_that_the_server_declines_is_counted_as_declined() {
    let mut config = config();
    config.session_storage = Arc::new(Forgetful);
    let server = Server::usual(config);
    let report = report(&server.url(), "-n 20 -c 1 -t 1 --resume always --tls 1.3");
    let h = &report.steps[0].handshakes;
    assert_eq!((h.full, h.declined), (20, 19), "{h:?}");
}

#[test]
fn the_server_receives_server_names_protocols_and_source_addresses() {
    let mut config = config();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let server = Server::usual(config);
    let args = "-n 4 -c 1 --sni other.example --alpn h2,http/1.1 --source 127.0.0.7-127.0.0.8";
    let report = report(&server.url(), args);
    assert_eq!(report.steps[0].succeeded, 4, "{:?}", report.steps[0]);
    for seen in server.seen() {
        assert_eq!(seen.server_name.as_deref(), Some("other.example"));
        assert_eq!(seen.alpn.as_deref(), Some(&b"http/1.1"[..]));
    }
    assert_eq!(report.negotiated.unwrap().alpn.as_deref(), Some("http/1.1"));
}

#[test]
fn accepted_early_data_is_counted_and_rejected_early_data_is_sent_again() {
    for taken in [true, false] {
        let mut config = config();
        config.max_early_data_size = 4096;
        if !taken {
            config.session_storage = Arc::new(Forgetful);
        }
        let server = Server::usual(config);
        let args = "-n 20 -c 1 -t 1 --resume always --early-data";
        let step = report(&server.url(), args).steps.swap_remove(0);
        let h = &step.handshakes;
        let (accepted, rejected) = if taken { (19, 0) } else { (0, 19) };
        assert_eq!(step.succeeded, 20, "{:?}", step.failures);
        assert_eq!(h.early_data_accepted, accepted, "{h:?}");
        assert_eq!(h.early_data_rejected, rejected, "{h:?}");
        let seen = server.seen();
        let early = seen.iter().filter(|seen| seen.early == seen.request.len());
        assert_eq!(early.count() as u64, accepted);
    }
}

#[test]
fn resume_every_8_with_http_1_0_makes_one_full_and_seven_resumed_handshakes() {
    let server = Server::usual(config());
    let args = "-n 64 -c 1 -t 1 --http10 --resume every=8";
    let step = report(&server.url(), args).steps.swap_remove(0);
    let h = &step.handshakes;
    assert_eq!((h.full, h.resumed()), (8, 56), "{h:?}");
    assert_eq!((step.succeeded, step.traffic.connections), (64, 64));
    for seen in server.seen() {
        assert!(
            seen.request.starts_with("GET / HTTP/1.0\r\nHost: "),
            "{seen:?}"
        );
        assert!(!seen.request.contains("Connection"), "{seen:?}");
    }
}

#[test]
fn header_lines_are_sent_unchanged() {
    let server = Server::usual(config());
    let report = report(&server.url(), "-n 2 -c 1 -H X-One:1 --header Cookie:a=b");
    assert_eq!(report.steps[0].succeeded, 2, "{:?}", report.steps[0]);
    for seen in server.seen() {
        assert!(
            seen.request.contains("\r\nX-One: 1\r\nCookie: a=b\r\n"),
            "{seen:?}"
        );
    }
}
