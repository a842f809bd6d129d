//! Crypto threads sign with long keys. Every kind of handshake works, clients that leave cost nothing, and a reload
//! and a drain wait for signatures in progress.

use becket_e2e::{Backend, Becket, Client, Key, Place, REQUEST, Shape, Trust};
use rustls::version::TLS13;

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
fn crypto_threads_start_with_the_first_expensive_key() {
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
