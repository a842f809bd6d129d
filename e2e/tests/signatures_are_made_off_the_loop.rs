//! Signatures with long keys are made by crypto threads, and nobody notices: every way to shake hands works, clients that
//! leave cost nothing, a reload and a drain wait.

use std::io::Write;
use std::thread;

use becket_e2e::{Backend, Becket, Client, Key, Place, REQUEST, Shape, Signal, Trust, eventually};
use rustls::SupportedProtocolVersion;
use rustls::version::{TLS12, TLS13};

const VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];

/// A place whose site has a long key.
fn place() -> Place {
    let place = Place::new();
    place.issue("site.pem", &["www.example.org"], Key::LongRsa);
    place
}

fn shape(backend: &Backend, threads: &str) -> Shape {
    Shape::new(backend.address).process(&format!("workers = 2\ncrypto-threads = {threads}"))
}

fn signed(becket: &Becket) -> u64 {
    becket.metrics().sum("becket_signature_seconds_count", &[]) as u64
}

#[track_caller]
fn visit(becket: &Becket, trust: &Trust) -> String {
    let mut client = Client::connect(becket.web, trust).expect("a handshake");
    client.ask(REQUEST).expect("an answer");
    drop(client);
    let line = becket.next_access();
    line["handshake"].as_str().expect("a kind").to_owned()
}

#[test]
fn clients_of_every_kind_are_served() {
    let place = place();
    let backend = Backend::http("well met");
    let policy =
        "[[policy]]\nname = \"web\"\nclient-certificates = \"optional\"\nclient-ca = \"ca.pem\"";
    let becket = Becket::start(&place, &shape(&backend, "2").section(policy));
    let mut full = 0;
    let alice = place.authority.issue(&["alice"], Key::Ecdsa);
    for own in [None, Some(&alice)] {
        for version in VERSIONS {
            for trust in [
                Trust::with(&place, &[version], own),
                Trust::with(&place, &[version], own).without_tickets(),
            ] {
                assert_eq!(visit(&becket, &trust), "full");
                full += 1;
                let again = visit(&becket, &trust);
                full += u64::from(again == "full");
            }
        }
    }
    // The exchange of keys that needs most of a stack.
    assert_eq!(visit(&becket, &Trust::post_quantum(&place)), "full");
    assert_eq!(signed(&becket), full + 1);
    let metrics = becket.metrics();
    assert_eq!(metrics.sum("becket_crypto_threads", &[]), 2.0);
    assert_eq!(metrics.sum("becket_signatures_failed_total", &[]), 0.0);
    becket.says("\"crypto_threads\":2");
}

#[test]
fn short_keys_and_workers_without_crypto_threads_sign_at_once() {
    let backend = Backend::http("well met");
    let short = Place::new();
    for (place, threads) in [(short, "\"auto\""), (place(), "0")] {
        let becket = Becket::start(&place, &shape(&backend, threads));
        for version in VERSIONS {
            assert_eq!(visit(&becket, &Trust::only(&place, version)), "full");
        }
        assert_eq!(signed(&becket), 0);
        assert_eq!(becket.metrics().sum("becket_crypto_threads", &[]), 0.0);
    }
}

#[test]
fn threads_come_with_the_first_expensive_key() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let becket = Becket::start(&place, &shape(&backend, "2"));
    assert!(!becket.log().contains("crypto_threads"));
    place.issue("site.pem", &["www.example.org"], Key::LongRsa);
    assert!(becket.reload());
    assert_eq!(becket.metrics().sum("becket_crypto_threads", &[]), 2.0);
    becket.says("\"crypto_threads\":2");
    assert_eq!(visit(&becket, &Trust::only(&place, &TLS13)), "full");
    assert_eq!(signed(&becket), 1);
}

#[test]
fn clients_that_leave_while_theirs_is_made_leave_nothing_behind() {
    let place = place();
    let backend = Backend::http("well met");
    let becket = Becket::start(&place, &shape(&backend, "1"));
    let descriptors = becket.descriptors();
    for version in VERSIONS {
        let trust = Trust::only(&place, version);
        for round in 0..100 {
            let mut client = Client::begin(becket.web, &trust, "www.example.org").unwrap();
            let mut hello = Vec::new();
            client.tls.write_tls(&mut hello).unwrap();
            client.socket.write_all(&hello).unwrap();
            if round % 2 == 0 {
                client.reset();
            }
        }
        eventually("a client gets in", || {
            Client::connect(becket.web, &trust).is_ok()
        });
    }
    becket.idle();
    eventually("no signature is under way", || {
        becket.metrics().sum("becket_signatures_in_flight", &[]) == 0.0
    });
    eventually("descriptors are back", || {
        becket.descriptors() <= descriptors
    });
    assert_eq!(becket.metrics().closed("internal"), 0);
}

#[test]
fn a_reload_and_a_drain_end_nobodys_handshake() {
    let place = place();
    let backend = Backend::http("well met");
    let mut becket = Becket::start(&place, &shape(&backend, "1"));
    let web = becket.web;
    let crowd = || -> Vec<_> {
        let trusts = VERSIONS.map(|version| Trust::only(&place, version));
        // As many as may be under way in one worker: who waits before that is reset where the machine is slow.
        let all = (0..CROWD).map(|i| trusts[i % 2].clone());
        // The hello of each is on its way when this returns.
        let clients: Vec<_> = all
            .map(|trust| {
                let mut client = Client::begin(web, &trust, "www.example.org").unwrap();
                let mut hello = Vec::new();
                client.tls.write_tls(&mut hello).unwrap();
                client.socket.write_all(&hello).unwrap();
                client
            })
            .collect();
        let ask = |mut client: Client| thread::spawn(move || client.ask(REQUEST));
        clients.into_iter().map(ask).collect()
    };
    let reloaded = crowd();
    place.issue("site.pem", &["www.example.org"], Key::Rsa);
    assert!(becket.reload(), "{}", becket.log());
    for client in reloaded {
        client.join().unwrap().expect("an answer");
    }
    let drained = crowd();
    eventually("all are in", || {
        let accepted = becket.metrics();
        accepted.sum("becket_connections_accepted_total", &[]) >= 2.0 * CROWD as f64
    });
    becket.signal(Signal::TERM);
    for client in drained {
        client.join().unwrap().expect("an answer");
    }
    assert_eq!(becket.ended(), Some(0));
}

/// Signatures that are under way in one of two workers with one crypto thread.
const CROWD: usize = 8;
