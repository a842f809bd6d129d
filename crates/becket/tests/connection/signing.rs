//! Tests of handshakes that wait for a signature: nothing is left behind in any case.

use std::sync::Arc;

use crate::common::{BACKEND, COSTLY, Client, House, house, server_got};
use crate::script::link::End;
use crate::script::stage::Stage;
use becket_keys::signing::SignatureRequest;
use becket_log::facts::ResumedBy;
use becket_proto::close_reason::CloseReason;
use becket_proxy::socket::StreamSocket;
use rustls::crypto::aws_lc_rs::kx_group::{SECP256R1, SECP384R1};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, SignatureScheme, SupportedProtocolVersion};

/// A listener with an expensive key.
fn costly(more: &str) -> House {
    House::new(&format!(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:443']\nbackend = 'app'\n\
         certificates = ['{COSTLY}']\n{more}\n{BACKEND}"
    ))
}

fn stage(house: &House) -> Stage {
    let mut stage = house.stage();
    stage.defer();
    stage
}

fn enter(house: &House, stage: &mut Stage, config: &Arc<ClientConfig>) -> Client {
    let mut client = Client::enter(stage, house.listener(0), config, "a.test");
    client.talk(stage);
    client
}

fn under_way(stage: &Stage) -> u64 {
    let counters = &stage.counters;
    counters.signatures_begun.value() - counters.signatures_ended.value()
}

/// Returns a client whose handshake waits for a signature.
fn waiting(house: &House, version: &'static SupportedProtocolVersion) -> (Stage, Client) {
    let mut stage = stage(house);
    let client = enter(house, &mut stage, &Arc::new(house.client(version)));
    assert_eq!((under_way(&stage), stage.closed()), (1, None));
    assert!(stage.is_handshaking());
    (stage, client)
}

/// Asserts that all requests are answered, and that every handshake that began has ended.
fn nothing_is_left(stage: &mut Stage) {
    while stage.sign(|_| panic!("signs for nobody")) {}
    stage.settle();
    assert_eq!(under_way(stage), 0);
    let counters = &stage.counters;
    let (begun, ended) = (&counters.handshakes_begun, &counters.handshakes_ended);
    assert_eq!(begun.value(), ended.value());
}

#[test]
fn a_handshake_continues_when_its_signature_arrives() {
    for version in [&TLS12, &TLS13] {
        let house = costly("");
        let (mut stage, mut client) = waiting(&house, version);
        assert!(stage.sign(SignatureRequest::sign));
        assert_eq!(client.talk(&mut stage), None);
        assert!(!client.tls.is_handshaking());
        client.say(b"hello");
        client.talk(&mut stage);
        assert_eq!(server_got(&mut stage), b"hello");
        nothing_is_left(&mut stage);
    }
}

#[test]
fn only_full_handshakes_with_expensive_keys_use_crypto_threads() {
    for version in [&TLS12, &TLS13] {
        let cheap = house("");
        let mut at_cheap = stage(&cheap);
        let client = enter(&cheap, &mut at_cheap, &Arc::new(cheap.client(version)));
        assert!(!client.tls.is_handshaking());
        assert_eq!(at_cheap.counters.signatures_begun.value(), 0);

        let house = costly("");
        let config = Arc::new(house.client(version));
        let mut stage = stage(&house);
        let mut client = enter(&house, &mut stage, &config);
        stage.sign(SignatureRequest::sign);
        client.talk(&mut stage);
        let again = enter(&house, &mut stage, &config);
        assert!(!again.tls.is_handshaking());
        assert!(stage.resumed_by().is_some());
        assert_eq!(stage.counters.signatures_begun.value(), 1);
    }
}

#[test]
fn the_signature_of_a_disconnected_client_is_abandoned() {
    for version in [&TLS12, &TLS13] {
        for leave in [End::reset, End::finish] {
            let house = costly("");
            let (mut stage, mut client) = waiting(&house, version);
            leave(&mut client.end);
            stage.settle();
            assert_eq!(stage.closed(), Some(CloseReason::HandshakeAborted));
            nothing_is_left(&mut stage);
            assert_eq!(stage.counters.signatures_abandoned.value(), 1);
        }
    }
}

#[test]
fn the_handshake_timeout_applies_while_a_signature_is_pending() {
    let house = costly("");
    let (mut stage, _client) = waiting(&house, &TLS13);
    stage.wait(house.config.file.timeouts.handshake);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::HandshakeTimeout));
    nothing_is_left(&mut stage);
}

#[test]
fn a_drain_waits_for_the_signature_and_a_stop_does_not() {
    let house = costly("");
    let (mut stage, mut client) = waiting(&house, &TLS13);
    stage.drain();
    assert_eq!(stage.closed(), None);
    stage.sign(SignatureRequest::sign);
    client.talk(&mut stage);
    assert!(!client.tls.is_handshaking());

    let (mut stage, _client) = waiting(&house, &TLS12);
    stage.stop();
    assert_eq!(stage.closed(), Some(CloseReason::Stopped));
    nothing_is_left(&mut stage);
}

#[test]
fn a_key_that_fails_ends_the_handshake_with_an_alert() {
    for version in [&TLS12, &TLS13] {
        let house = costly("");
        let (mut stage, mut client) = waiting(&house, version);
        assert!(stage.sign(|_| Err(rustls::Error::General("the token is gone".into()))));
        client.talk(&mut stage);
        assert!(
            matches!(client.fault, Some(rustls::Error::AlertReceived(_))),
            "{:?}",
            client.fault
        );
        drop(client);
        stage.settle();
        assert_eq!(stage.closed(), Some(CloseReason::HandshakeFailed));
        assert_eq!(stage.counters.signatures_failed.value(), 1);
        nothing_is_left(&mut stage);
    }
}

#[test]
fn a_late_signature_is_not_used_for_the_next_client() {
    let house = costly("");
    let (mut stage, client) = waiting(&house, &TLS13);
    drop(client);
    stage.settle();
    let mut next = enter(&house, &mut stage, &Arc::new(house.client(&TLS13)));
    assert_eq!(under_way(&stage), 2);
    assert!(stage.sign(|_| panic!("signs for nobody")));
    next.talk(&mut stage);
    assert!(next.tls.is_handshaking());
    assert!(stage.sign(SignatureRequest::sign));
    next.talk(&mut stage);
    assert!(!next.tls.is_handshaking());
    nothing_is_left(&mut stage);
}

/// Requests signatures for others until `many` are in flight.
fn crowd(house: &House, stage: &Stage, many: u64) {
    let keys = house.config.listeners[0].certificates.default_keys();
    let key = keys.chains()[0].key().signing_key();
    while under_way(stage) < many {
        stage.ask_in_vain(SignatureRequest {
            key: Arc::clone(&key),
            batch_key: None,
            token: None,
            scheme: SignatureScheme::ECDSA_NISTP384_SHA384,
            message: Vec::new(),
        });
    }
}

#[test]
fn a_handshake_is_postponed_while_the_signature_queue_is_full() {
    let house = costly("");
    let mut stage = stage(&house);
    crowd(&house, &stage, MOST);
    let mut client = enter(&house, &mut stage, &Arc::new(house.client(&TLS13)));
    assert!(stage.is_postponed());
    assert_eq!(under_way(&stage), MOST);
    stage.sign(|_| panic!("signs for nobody"));
    client.talk(&mut stage);
    assert_eq!(under_way(&stage), MOST, "it has the place of one that left");
    while under_way(&stage) > 0 && stage.sign(SignatureRequest::sign) {
        client.talk(&mut stage);
    }
    assert!(!client.tls.is_handshaking());
    nothing_is_left(&mut stage);
}

#[test]
fn a_postponed_client_may_disconnect_and_times_out() {
    let house = costly("");
    let mut stage = stage(&house);
    crowd(&house, &stage, MOST);
    let config = Arc::new(house.client(&TLS12));
    drop(enter(&house, &mut stage, &config));
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::HandshakeAborted));
    let _client = enter(&house, &mut stage, &config);
    stage.wait(house.config.file.timeouts.handshake);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::HandshakeTimeout));
    nothing_is_left(&mut stage);
}

#[test]
fn a_resuming_client_does_not_wait_for_pending_signatures() {
    let house = costly("");
    let config = Arc::new(house.client(&TLS13));
    let mut stage = stage(&house);
    let mut client = enter(&house, &mut stage, &config);
    stage.sign(SignatureRequest::sign);
    client.talk(&mut stage);
    crowd(&house, &stage, MOST);
    let again = enter(&house, &mut stage, &config);
    assert!(!again.tls.is_handshaking());
    assert_eq!(stage.resumed_by(), Some(ResumedBy::Psk));
}

#[test]
fn a_second_hello_waits_while_the_signature_queue_is_full() {
    let house = costly("policy = 'p'\n[[policy]]\nname = 'p'\ngroups = ['secp384r1']");
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.kx_groups = vec![SECP256R1, SECP384R1];
    let config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_root_certificates(house.roots.clone())
        .with_no_client_auth();
    let mut stage = stage(&house);
    let mut client = Client::enter(&mut stage, house.listener(0), &Arc::new(config), "a.test");
    client.flush();
    stage.settle();
    assert_eq!((under_way(&stage), stage.closed()), (0, None));
    crowd(&house, &stage, 2 * MOST);
    client.talk(&mut stage);
    assert!(stage.is_postponed());
    assert_eq!(under_way(&stage), 2 * MOST);
    for _ in 0..2 * MOST {
        assert!(stage.sign(|_| panic!("signs for nobody")));
    }
    client.talk(&mut stage);
    assert_eq!(under_way(&stage), 1);
    assert!(stage.sign(SignatureRequest::sign));
    client.talk(&mut stage);
    assert!(!client.tls.is_handshaking());
    nothing_is_left(&mut stage);
}

/// Maximum number of signatures in flight of a single worker without threads.
const MOST: u64 = 4;
