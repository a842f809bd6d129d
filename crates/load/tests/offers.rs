//! What the client offers is what the server sees: resumption, early data, names, certificates,
//! PROXY headers and uploads, each against a server of this repository's own making.

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use support::server::{Manners, Server, config};
use support::{Identity, report, text};

#[test]
fn asked_and_observed_resumption_agree_with_the_server() {
    let identity = Identity::new();
    for (version, kind) in [("1.2", "id"), ("1.3", "psk")] {
        let server = Server::start(config(&identity), Manners::default());
        let report = report(
            &server.url(),
            &format!(
                "-n 80 -c 4 -t 1 --resume every=4 --tls {} --resume-kind {}",
                version, kind
            ),
        );
        let step = &report.steps[0];
        let h = &step.handshakes;
        assert_eq!(
            (step.succeeded, step.failed),
            (80, 0),
            "{:?}",
            step.failures
        );
        assert_eq!(
            (h.full, h.resumed()),
            (h.asked_full, h.asked_resumed),
            "{h:?}"
        );
        // Each of the four slots begins with a full handshake, and may end short of its fourth.
        assert!((57..=60).contains(&h.resumed()), "{h:?}");
        assert_eq!(
            server.seen.resumed.load(Ordering::Relaxed) as u64,
            h.resumed()
        );
        assert_eq!(server.seen.full.load(Ordering::Relaxed) as u64, h.full);
        let by_kind = if kind == "id" {
            h.resumed_by_id
        } else {
            h.resumed_by_psk
        };
        assert_eq!(by_kind, h.resumed());
    }
}

#[test]
fn tickets_of_tls12_are_told_from_identifiers() {
    let identity = Identity::new();
    let mut config = config(&identity);
    config.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new().unwrap();
    let server = Server::start(config, Manners::default());
    let report = report(
        &server.url(),
        "-n 40 -c 2 -t 1 --resume always --resume-kind ticket",
    );
    let h = &report.steps[0].handshakes;
    assert_eq!(
        (h.full, h.resumed_by_ticket, h.resumed_by_id),
        (2, 38, 0),
        "{h:?}"
    );
}

#[test]
fn a_session_without_a_ticket_is_not_offered_when_tickets_are_asked_for() {
    let identity = Identity::new();
    let server = Server::start(config(&identity), Manners::default());
    let report = report(
        &server.url(),
        "-n 20 -c 1 -t 1 --resume always --resume-kind ticket",
    );
    let h = &report.steps[0].handshakes;
    assert_eq!((h.resumed(), h.nothing_to_offer), (0, 19), "{h:?}");
    assert!(
        report.steps[0]
            .findings
            .iter()
            .any(|f| f.contains("nothing to resume with"))
    );
}

#[test]
fn a_server_that_declines_is_counted_as_declining() {
    let identity = Identity::new();
    // A store that forgets: each put pushes out what was there.
    let mut config = config(&identity);
    config.session_storage = Arc::new(Forgetful);
    let server = Server::start(config, Manners::default());
    let report = report(&server.url(), "-n 20 -c 1 -t 1 --resume always --tls 1.3");
    let h = &report.steps[0].handshakes;
    assert_eq!((h.full, h.declined), (20, 19), "{h:?}");
}

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
fn early_data_is_sent_and_counted_as_the_server_takes_it() {
    let identity = Identity::new();
    let mut with = config(&identity);
    with.max_early_data_size = 4096;
    let server = Server::start(with, Manners::default());
    let taken = report(
        &server.url(),
        "-n 20 -c 1 -t 1 --resume always --early-data",
    );
    let h = &taken.steps[0].handshakes;
    assert_eq!(
        (
            h.resumed_by_psk,
            h.early_data_accepted,
            h.early_data_rejected
        ),
        (19, 19, 0),
        "{h:?}"
    );
    assert_eq!(taken.steps[0].succeeded, 20);
    assert_eq!(server.seen.early.load(Ordering::Relaxed), 19);
}

#[test]
fn refused_early_data_is_sent_again() {
    let identity = Identity::new();
    let mut with = config(&identity);
    with.max_early_data_size = 4096;
    // Early data is refused when the ALPN protocol differs; a store that declines has the same effect.
    with.session_storage = Arc::new(Forgetful);
    let server = Server::start(with, Manners::default());
    let report = report(
        &server.url(),
        "-n 10 -c 1 -t 1 --resume always --early-data",
    );
    let step = &report.steps[0];
    assert_eq!(
        (step.succeeded, step.handshakes.early_data_rejected),
        (10, 9),
        "{:?} {:?}",
        step.failures,
        step.handshakes
    );
}

#[test]
fn names_protocols_and_certificates_arrive() {
    let identity = Identity::new();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(identity.chain[0].clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let clients = rustls::server::WebPkiClientVerifier::builder_with_provider(
        Arc::new(roots),
        Arc::clone(&provider),
    )
    .build()
    .unwrap();
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(identity.chain.clone(), identity.key.clone_key())
        .unwrap();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let server = Server::start(config, Manners::default());
    let (cert, key) = (identity.path("cert.pem"), identity.path("key.pem"));
    let args = format!(
        "-n 4 -c 1 --sni other.example --alpn h2,http/1.1 --client-cert {} --client-key {}",
        text(&cert),
        text(&key)
    );
    let report = report(&server.url(), &args);
    let words = server.words();
    assert!(
        words.iter().any(|w| w == "sni=other.example")
            && words.iter().any(|w| w == "alpn=http/1.1"),
        "{words:?}"
    );
    assert_eq!(report.negotiated.unwrap().alpn.as_deref(), Some("http/1.1"));
    // Self-signed end entities are refused by some verifiers: then the alert is counted by number.
    let step = &report.steps[0];
    assert_eq!(step.succeeded + step.failed, 4);
    assert_eq!(
        server.seen.client_certificates.load(Ordering::Relaxed) as u64,
        step.succeeded
    );
}

#[test]
fn a_proxy_header_comes_first_with_the_clients_own_address() {
    let identity = Identity::new();
    let server = Server::start(
        config(&identity),
        Manners {
            proxy_v1: true,
            ..Manners::default()
        },
    );
    let report = report(
        &server.url(),
        "-n 3 -c 1 --proxy-header v1 --source 127.0.0.7-127.0.0.8",
    );
    assert_eq!(
        report.steps[0].succeeded, 3,
        "{:?}",
        report.steps[0].failures
    );
    let lines: Vec<String> = server
        .words()
        .into_iter()
        .filter(|w| w.starts_with("PROXY TCP4 127.0.0."))
        .collect();
    assert!(
        lines.iter().any(|l| l.contains(" 127.0.0.7 "))
            && lines.iter().any(|l| l.contains(" 127.0.0.8 ")),
        "{lines:?}"
    );
}
