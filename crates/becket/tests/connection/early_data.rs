//! Tests of early data (0-RTT): which servers get it, how it is marked, and that it is never
//! accepted twice.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use crate::script::stage::Stage;
use becket_keys::signing::SignatureRequest;
use becket_log::facts::ResumedBy;
use becket_proto::close_reason::CloseReason;
use becket_proxy::backend::backend_state::Pick;
use becket_proxy::backend::pool::PickHint;
use becket_proxy::backend::slot::ServerSlot;
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::aws_lc_rs::kx_group::{SECP256R1, SECP384R1, X25519};
use rustls::version::TLS13;
use rustls::{AlertDescription, ClientConfig};

use crate::common::{COSTLY, Client, House, server_got, server_says};

fn early_house(more: &str) -> House {
    House::new(&early_text(more))
}

fn early_text(more: &str) -> String {
    format!(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:443']\nbackend = 'app'\n\
         certificates = ['a.pem', 'b.pem']\n\
         [[policy]]\nname = 'web'\nversions = ['1.3']\nearly-data = '17KiB'\n{more}\n\
         [[backend]]\nname = 'app'\nproxy-header = 'v2'\n\
         [[backend.server]]\naddress = '127.0.0.1:81'\n"
    )
}

fn early_client(house: &House) -> Arc<ClientConfig> {
    let mut config = house.client(&TLS13);
    config.enable_early_data = true;
    Arc::new(config)
}

/// As `early_house`, with a key that does not sign at once.
fn costly_early_house(more: &str) -> House {
    House::new(&early_text(more).replace("'a.pem', 'b.pem'", &format!("'{COSTLY}'")))
}

/// Exchanges data, and makes every pending signature.
fn talk(client: &mut Client, stage: &mut Stage) {
    client.talk(stage);
    while stage.sign(SignatureRequest::sign) {
        client.talk(stage);
    }
}

/// Connects once, so that the client has two sessions to use.
fn first_visit(house: &House, stage: &mut Stage, config: &Arc<ClientConfig>) {
    let mut client = Client::enter(stage, house.listener(0), config, "a.test");
    assert!(client.tls.early_data().is_none(), "there is no session yet");
    talk(&mut client, stage);
    assert!(!client.tls.is_handshaking());
    assert_eq!(mark(&server_got(stage)), None);
}

/// Returns the value of the TLV that marks early data, and the bytes after the header.
fn split(got: &[u8]) -> (Option<Vec<u8>>, Vec<u8>) {
    assert!(got.starts_with(b"\r\n\r\n\0\r\nQUIT\n"), "{got:?}");
    let length = 16 + usize::from(u16::from_be_bytes([got[14], got[15]]));
    let mut tlvs = &got[28..length];
    let mut found = None;
    while let [kind, high, low, rest @ ..] = tlvs {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        if *kind == 0xed {
            found = Some(rest[..length].to_vec());
        }
        tlvs = &rest[length..];
    }
    (found, got[length..].to_vec())
}

fn mark(got: &[u8]) -> Option<Vec<u8>> {
    split(got).0
}

/// Starts a connection with `early` as early data, and returns its first flight.
fn first_flight(
    house: &House,
    stage: &mut Stage,
    config: &Arc<ClientConfig>,
    early: &[u8],
) -> (Client, Vec<u8>) {
    let mut client = Client::enter(stage, house.listener(0), config, "a.test");
    let mut writer = client
        .tls
        .early_data()
        .expect("a session admits early data");
    assert_eq!(writer.write(early).unwrap(), early.len());
    let mut flight = Vec::new();
    while client.tls.wants_write() {
        client.tls.write_tls(&mut flight).unwrap();
    }
    (client, flight)
}

#[test]
fn marked_early_data_is_answered_before_the_handshake_finishes() {
    let house = early_house("");
    let (mut stage, config) = (house.stage(), early_client(&house));
    first_visit(&house, &mut stage, &config);
    let (mut client, flight) = first_flight(&house, &mut stage, &config, b"GET /");
    client.end.write_all(&flight).unwrap();
    assert!(stage.settle());
    let limit = 17_408_u32.to_be_bytes().to_vec();
    assert_eq!(
        split(&server_got(&mut stage)),
        (Some(limit), b"GET /".to_vec())
    );
    server_says(&mut stage, b"answer");
    assert!(stage.settle());
    while client.bite() {}
    assert_eq!(
        client.received, b"answer",
        "before the client said Finished"
    );
    assert!(client.tls.is_early_data_accepted());
    client.say(b" and more");
    client.talk(&mut stage);
    assert_eq!(server_got(&mut stage), b" and more");
    server_says(&mut stage, b"!");
    client.talk(&mut stage);
    assert_eq!(client.received, b"answer!");
    assert_eq!(client.fault, None);
    assert_eq!(stage.resumed_by(), Some(ResumedBy::Early));
    assert_eq!(stage.counters.early_accepted.value(), 1);
    assert_eq!(stage.counters.early_rejected.value(), 0);
}

#[test]
fn early_data_does_not_wait_for_signatures() {
    let house = costly_early_house("");
    let (mut stage, config) = (house.stage(), early_client(&house));
    stage.defer();
    first_visit(&house, &mut stage, &config);
    let (mut client, flight) = first_flight(&house, &mut stage, &config, b"GET /");
    client.end.write_all(&flight).unwrap();
    assert!(stage.settle());
    assert_eq!(split(&server_got(&mut stage)).1, b"GET /");
    assert_eq!(
        stage.counters.signatures_begun.value(),
        1,
        "the first visit"
    );
}

#[test]
fn a_replayed_first_flight_delivers_nothing() {
    let house = early_house("");
    let (mut stage, config) = (house.stage(), early_client(&house));
    first_visit(&house, &mut stage, &config);
    let (mut client, flight) = first_flight(&house, &mut stage, &config, b"pay 100");
    client.end.write_all(&flight).unwrap();
    assert!(stage.settle());
    assert_eq!(split(&server_got(&mut stage)).1, b"pay 100", "shown first");
    for _ in 0..3 {
        let mut replayer = Client::enter(&mut stage, house.listener(0), &config, "a.test");
        replayer.end.write_all(&flight).unwrap();
        assert!(stage.settle());
        assert!(
            stage.net.dialled.is_empty(),
            "no server was so much as connected"
        );
        assert!(stage.is_handshaking());
    }
    assert_eq!(stage.counters.early_accepted.value(), 1);
}

#[test]
fn early_data_that_arrives_after_the_hello_is_marked() {
    let house = early_house("");
    let (mut stage, config) = (house.stage(), early_client(&house));
    first_visit(&house, &mut stage, &config);
    let (mut client, flight) = first_flight(&house, &mut stage, &config, b"GET /");
    // Byte by byte: the server must receive nothing before the first byte of early data has
    // arrived.
    for byte in flight {
        client.end.write_all(&[byte]).unwrap();
        assert!(stage.settle());
    }
    let (mark, said) = split(&server_got(&mut stage));
    assert!(mark.is_some());
    assert_eq!(said, b"GET /");
    client.talk(&mut stage);
    assert_eq!(client.fault, None);
    assert!(!client.tls.is_handshaking());
}

#[test]
fn announced_but_unsent_early_data_leaves_no_mark() {
    let house = early_house("");
    let (mut stage, config) = (house.stage(), early_client(&house));
    first_visit(&house, &mut stage, &config);
    let mut client = Client::enter(&mut stage, house.listener(0), &config, "a.test");
    assert!(client.tls.early_data().is_some());
    client.flush();
    assert!(stage.settle());
    assert!(stage.is_handshaking(), "a hello alone admits nobody");
    client.talk(&mut stage);
    client.say(b"GET /");
    client.talk(&mut stage);
    assert_eq!(split(&server_got(&mut stage)), (None, b"GET /".to_vec()));
    assert_eq!(stage.resumed_by(), Some(ResumedBy::Psk));
}

#[test]
fn a_client_that_sends_early_data_each_time_never_runs_out_of_sessions() {
    let house = early_house("");
    let (mut stage, config) = (house.stage(), early_client(&house));
    first_visit(&house, &mut stage, &config);
    for visit in 0..8 {
        let (mut client, flight) = first_flight(&house, &mut stage, &config, b"GET /");
        client.end.write_all(&flight).unwrap();
        client.talk(&mut stage);
        assert_eq!(stage.resumed_by(), Some(ResumedBy::Early), "{visit}");
    }
    // Two from the full handshake, and one for each used session.
    assert_eq!(house.early.entries(), 2);
    assert_eq!(house.table.entries(), 0);
}

#[test]
fn early_data_of_a_dropped_session_is_rejected_and_resent_unmarked() {
    let house = early_house("");
    let (mut stage, config) = (house.stage(), early_client(&house));
    first_visit(&house, &mut stage, &config);
    house.early.set_limits(0, 0);
    house.early.set_limits(1000, 1 << 20);
    let (mut client, flight) = first_flight(&house, &mut stage, &config, b"GET /");
    client.end.write_all(&flight).unwrap();
    client.talk(&mut stage);
    assert!(!client.tls.is_early_data_accepted());
    client.say(b"GET /");
    client.talk(&mut stage);
    assert_eq!(split(&server_got(&mut stage)), (None, b"GET /".to_vec()));
    assert_eq!(stage.resumed_by(), None);
    assert_eq!(stage.counters.early_rejected.value(), 1);
}

/// Reason why early data is rejected.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    /// The session does not exist any more.
    Unknown,
    /// No policy allows early data.
    Never,
    /// The session resumes, but with another protocol.
    Protocol,
    /// The client has to send another hello.
    Retry,
}

/// Returns the configuration of the first visit and that of the visit with early data.
fn visitors(house: &House, refusal: Refusal) -> [Arc<ClientConfig>; 2] {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let roots = Arc::new(house.roots.clone());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::new(provider.clone()));
    let verifier = verifier.build().unwrap();
    let config = |groups: &[_]| {
        let mut provider = provider.clone();
        provider.kx_groups = groups.to_vec();
        ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(verifier.clone())
            .with_no_client_auth()
    };
    let mut first = config(&[X25519]);
    first.enable_early_data = true;
    first.alpn_protocols = vec![b"http/1.1".to_vec()];
    let mut second = match refusal {
        Refusal::Retry => config(&[SECP384R1, SECP256R1]),
        _ => config(&[X25519]),
    };
    second.enable_early_data = true;
    second.alpn_protocols.clone_from(&first.alpn_protocols);
    if let Refusal::Protocol = refusal {
        second.alpn_protocols = vec![b"h2".to_vec()];
    }
    second.resumption = first.resumption.clone();
    second.client_auth_cert_resolver = Arc::clone(&first.client_auth_cert_resolver);
    [first, second].map(Arc::new)
}

/// Sends `amount` bytes of early data in records of `record` bytes, which arrive in pieces of
/// `piece` bytes. If the key is `deferred`, data arrives while the signature is pending.
fn refuse(refusal: Refusal, (amount, record): (usize, usize), piece: usize, deferred: bool) {
    let groups = "groups = ['X25519', 'P-256']";
    let mut house = if deferred {
        costly_early_house(groups)
    } else {
        early_house(groups)
    };
    let listener = Arc::get_mut(&mut house.config.listeners[0]).expect("not shared");
    for route in &mut listener.routes {
        route.alpn = vec![b"http/1.1".to_vec(), b"h2".to_vec()];
    }
    let mut stage = house.stage_of(1 << 20);
    stage.defer();
    let [config, later] = visitors(&house, refusal);
    first_visit(&house, &mut stage, &config);
    match refusal {
        Refusal::Unknown => {
            house.early.set_limits(0, 0);
            house.early.set_limits(1000, 1 << 20);
        }
        Refusal::Never => lower_early_data(&mut house, None),
        Refusal::Protocol | Refusal::Retry => {}
    }
    let mut client = Client::enter(&mut stage, house.listener(0), &later, "a.test");
    let mut flight = Vec::new();
    for from in (0..amount).step_by(record) {
        let data = vec![7; record.min(amount - from)];
        let mut writer = client.tls.early_data().unwrap();
        assert_eq!(writer.write(&data).unwrap(), data.len());
        while client.tls.wants_write() {
            client.tls.write_tls(&mut flight).unwrap();
        }
    }
    for piece in flight.chunks(piece) {
        client.end.write_all(piece).unwrap();
        assert!(stage.settle());
    }
    talk(&mut client, &mut stage);
    let case = format!(
        "{refusal:?}: {amount} bytes in {record}, arriving in {piece}, deferred {deferred}"
    );
    assert_eq!(client.fault, None, "{case}");
    assert!(!client.tls.is_early_data_accepted(), "{case}");
    client.say(b"GET /");
    client.talk(&mut stage);
    assert_eq!(
        split(&server_got(&mut stage)),
        (None, b"GET /".to_vec()),
        "{case}"
    );
}

#[test]
fn rejected_early_data_is_skipped_in_pieces_of_any_size() {
    const ALL: usize = 17 * 1024;
    for refusal in [
        Refusal::Unknown,
        Refusal::Never,
        Refusal::Protocol,
        Refusal::Retry,
    ] {
        for early in [(5461, ALL), (5462, ALL), (ALL, ALL), (ALL, 100)] {
            for piece in [1 << 20, 1400, 7] {
                for deferred in [false, true] {
                    refuse(refusal, early, piece, deferred);
                }
            }
        }
    }
}

/// RFC 8446, section 4.1.2: "Early data is not permitted after a HelloRetryRequest."
#[test]
fn no_record_is_skipped_after_the_second_hello() {
    for resumes in [true, false] {
        let house = early_house("groups = ['X25519', 'P-256']");
        let mut stage = house.stage_of(1 << 20);
        let [config, later] = visitors(&house, Refusal::Retry);
        first_visit(&house, &mut stage, &config);
        if !resumes {
            house.early.set_limits(0, 0);
            house.early.set_limits(1000, 1 << 20);
        }
        let (mut client, flight) = first_flight(&house, &mut stage, &later, b"GET /");
        client.end.write_all(&flight).unwrap();
        assert!(stage.settle());
        while client.bite() {}
        client.flush();
        let undecryptable = [&[23, 3, 3, 0, 64][..], &[7; 64]].concat();
        client.end.write_all(&undecryptable).unwrap();
        client.talk(&mut stage);
        let refused = rustls::Error::AlertReceived(AlertDescription::BadRecordMac);
        assert_eq!(client.fault, Some(refused), "resumes: {resumes}");
        assert!(stage.net.dialled.is_empty());
    }
}

#[test]
fn the_skipping_of_rejected_early_data_is_bounded() {
    let house = early_house("");
    let (mut stage, config) = (house.stage_of(1 << 20), early_client(&house));
    first_visit(&house, &mut stage, &config);
    house.early.set_limits(0, 0);
    house.early.set_limits(1000, 1 << 20);
    let (mut client, flight) = first_flight(&house, &mut stage, &config, b"GET /");
    client.end.write_all(&flight).unwrap();
    assert!(stage.settle());
    let garbage = [&[23, 3, 3, 0x40, 0x11][..], &[7; 0x4011]].concat();
    for _ in 0..4 {
        client.end.write_all(&garbage).unwrap();
        assert!(stage.settle());
    }
    drop(client);
    assert!(stage.settle());
    assert_eq!(stage.closed(), Some(CloseReason::HandshakeFailed));
}

/// Changes the policy without the client's knowledge.
fn lower_early_data(house: &mut House, early_data: Option<u32>) {
    let listener = Arc::get_mut(&mut house.config.listeners[0]).expect("not shared");
    for route in &mut listener.routes {
        if let Some(policy) = route.policy.as_mut().and_then(Arc::get_mut) {
            policy.keys.early_data = early_data;
        }
    }
}

#[test]
fn early_data_beyond_the_policy_limit_ends_the_connection() {
    let house = early_house("");
    let (mut stage, config) = (house.stage(), early_client(&house));
    first_visit(&house, &mut stage, &config);
    let large = vec![7; 17 * 1024];
    let (mut client, flight) = first_flight(&house, &mut stage, &config, &large);
    client.end.write_all(&flight).unwrap();
    client.talk(&mut stage);
    assert_eq!(
        split(&server_got(&mut stage)).1,
        large,
        "as much as is allowed"
    );
    // rustls does not let a client exceed the announced limit, so the limit is lowered afterwards.
    let mut smaller = early_house("");
    smaller.early = Arc::clone(&house.early);
    lower_early_data(&mut smaller, Some(1024));
    let (mut client, flight) = first_flight(&smaller, &mut stage, &config, &large);
    client.end.write_all(&flight).unwrap();
    client.talk(&mut stage);
    assert!(client.fault.is_some());
    assert!(stage.net.dialled.is_empty());
    drop(client);
    assert!(stage.settle());
    assert_eq!(stage.closed(), Some(CloseReason::HandshakeFailed));
}

#[test]
fn an_unfinished_early_data_handshake_ends_at_the_handshake_timeout() {
    let house = early_house("");
    let (mut stage, config) = (house.stage(), early_client(&house));
    first_visit(&house, &mut stage, &config);
    let (mut client, flight) = first_flight(&house, &mut stage, &config, b"GET /");
    client.end.write_all(&flight).unwrap();
    assert!(stage.settle());
    server_says(&mut stage, b"answer");
    assert!(stage.settle());
    let limit = stage.timeouts.handshake;
    stage.wait(limit.saturating_sub(Duration::from_secs(1)));
    stage.settle();
    assert_eq!(stage.closed(), None);
    stage.wait(Duration::from_secs(1));
    stage.settle();
    let linger = stage.timeouts.linger;
    stage.wait(linger);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::HandshakeTimeout));
}

#[test]
fn queue_time_is_excluded_from_the_handshake_timeout() {
    let queue = early_text("").replace("proxy-header", "queue-timeout = '1m'\nproxy-header");
    let house = House::new(&format!("{queue}maxconn = 1\n"));
    let (mut stage, config) = (house.stage(), early_client(&house));
    first_visit(&house, &mut stage, &config);
    let (mut client, flight) = first_flight(&house, &mut stage, &config, b"GET /");
    assert!(stage.settle());
    let held = take(&house);
    client.end.write_all(&flight).unwrap();
    assert!(stage.settle());
    let limit = stage.timeouts.handshake;
    stage.wait(limit + Duration::from_secs(1));
    assert!(stage.settle());
    drop(held);
    assert!(stage.settle());
    assert_eq!(stage.closed(), None);
    assert_eq!(split(&server_got(&mut stage)).1, b"GET /");
    // After the wait, the handshake has its full time limit.
    stage.wait(limit.saturating_sub(Duration::from_secs(1)));
    assert!(stage.settle());
    server_says(&mut stage, b"answer");
    assert!(stage.settle());
    while client.bite() {}
    assert_eq!(client.received, b"answer");
    stage.wait(Duration::from_secs(1));
    stage.settle();
    let linger = stage.timeouts.linger;
    stage.wait(linger);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::HandshakeTimeout));
}

#[test]
fn a_policy_without_early_data_accepts_none() {
    let with = early_house("");
    let without = crate::common::house("");
    let mut config = without.client(&TLS13);
    config.enable_early_data = true;
    let config = Arc::new(config);
    let mut stage = without.stage();
    let mut client = Client::enter(&mut stage, without.listener(0), &config, "a.test");
    client.talk(&mut stage);
    let mut client = Client::enter(&mut stage, without.listener(0), &config, "a.test");
    assert!(
        client.tls.early_data().is_none(),
        "the session does not admit it"
    );
    client.talk(&mut stage);
    assert_eq!(with.early.entries() + without.early.entries(), 0);
}

/// Takes the only slot, as another connection would.
fn take(house: &House) -> ServerSlot {
    let hint = PickHint {
        source: [192, 0, 2, 9].into(),
        name: None,
        origin: None,
    };
    match house.pool(0).pick(&hint, None, &[]) {
        Pick::Slot(slot) => slot,
        other => panic!("{other:?}"),
    }
}

#[test]
fn queued_early_data_keeps_its_mark() {
    for early in [&b"GET /"[..], &[7; 17 * 1024]] {
        let house = House::new(&format!("{}maxconn = 1\n", early_text("")));
        let (mut stage, config) = (house.stage(), early_client(&house));
        first_visit(&house, &mut stage, &config);
        let (mut client, flight) = first_flight(&house, &mut stage, &config, early);
        assert!(stage.settle());
        let held = take(&house);
        client.end.write_all(&flight).unwrap();
        assert!(stage.settle());
        assert!(stage.net.dialled.is_empty(), "{:?}", stage.closed());
        drop(held);
        client.talk(&mut stage);
        let (mark, said) = split(&server_got(&mut stage));
        assert!(mark.is_some());
        assert_eq!(said, early);
        server_says(&mut stage, b"answer");
        client.talk(&mut stage);
        assert_eq!(client.received, b"answer");
        assert_eq!(client.fault, None);
    }
}
