//! What the client offers is what the server sees.

use std::sync::Arc;

use super::report;
use super::server::{Server, config};

/// A server that has forgotten each session.
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
        // Each of the four slots begins with a full handshake, and may have two more than a fourth.
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
fn a_session_without_a_ticket_is_not_offered_when_tickets_are_asked_for() {
    let server = Server::usual(config());
    let args = "-n 20 -c 1 -t 1 --resume always --resume-kind ticket";
    let step = report(&server.url(), args).steps.swap_remove(0);
    let h = &step.handshakes;
    assert_eq!((h.resumed(), h.nothing_to_offer), (0, 19), "{h:?}");
    let mut findings = step.findings.iter();
    assert!(findings.any(|f| f.contains("nothing to resume with")));
}

#[test]
fn a_server_that_declines_is_counted_as_declining() {
    let mut config = config();
    config.session_storage = Arc::new(Forgetful);
    let server = Server::usual(config);
    let report = report(&server.url(), "-n 20 -c 1 -t 1 --resume always --tls 1.3");
    let h = &report.steps[0].handshakes;
    assert_eq!((h.full, h.declined), (20, 19), "{h:?}");
}

#[test]
fn names_protocols_and_sources_arrive() {
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
fn early_data_is_counted_as_the_server_takes_it_and_sent_again_where_it_is_refused() {
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
fn eight_requests_of_a_client_by_http_1_0_are_one_full_handshake_and_seven_resumed() {
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
fn header_lines_are_sent_as_they_are_given() {
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
