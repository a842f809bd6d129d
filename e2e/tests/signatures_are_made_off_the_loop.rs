//! Signatures with long keys are made by crypto threads, and nobody notices: every way to shake hands works, clients that
//! leave cost nothing, a reload and a drain wait.

use becket_e2e::{Backend, Becket, Client, Key, Place, REQUEST, Shape, Trust};
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
#[ignore = "slow: .ci/run test"]
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
#[ignore = "slow: .ci/run test"]
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
