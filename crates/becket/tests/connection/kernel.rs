//! Tests of kernel TLS that begins in the middle of a connection, with a scripted kernel and real
//! peers.

use std::io::Write;
use std::sync::Arc;

use crate::common::{BACKEND, Client, House, house, pattern, server_got, server_says};
use crate::onward::{Host, server};
use crate::script::kernel::Refused;
use crate::script::link::pair;
use crate::script::net::Plan;
use crate::script::stage::Stage;
use becket_proto::close_reason::CloseReason;
use becket_proxy::metrics::KernelTlsRefusal;
use becket_sys::kernel_tls::{Direction, Support};
use proptest::prelude::*;
use rustls::SupportedProtocolVersion;
use rustls::crypto::aws_lc_rs;
use rustls::version::{TLS12, TLS13};

/// A current kernel, and an old one.
pub(crate) const NEW: Support = Support {
    tls: true,
    rekey: true,
    ciphers: [[true; 3]; 2],
};
const OLD: Support = Support {
    rekey: false,
    ..NEW
};
/// Bytes after which the kernel takes over.
const AFTER: usize = 20_000;

fn bulk() -> House {
    bulk_with("")
}

fn bulk_with(limits: &str) -> House {
    House::new(&format!(
        "[limits]\nkernel-tls-after = {AFTER}\n{limits}\n\
         [[listener]]\nname = 'web'\nbind = ['127.0.0.1:443']\nbackend = 'app'\n\
         certificates = ['a.pem', 'b.pem']\nkernel-tls = 'bulk'\n{BACKEND}"
    ))
}

/// Returns a client with keys, its server, and a kernel at the client's side.
fn joined(
    house: &House,
    version: &'static SupportedProtocolVersion,
    kernel: (Support, Option<Refused>),
) -> (Stage, Client) {
    let config = Arc::new(house.client(version));
    let mut stage = house.stage();
    stage.splice(2);
    let client = Client::enter(&mut stage, house.listener(0), &config, "a.test");
    client.end.watch_peer().give_kernel(kernel.0, kernel.1);
    (stage, client)
}

/// Sends `len` bytes from the server to the client.
fn download(stage: &mut Stage, client: &mut Client, len: usize) {
    let (from, mut said) = (client.received.len(), 0);
    while client.received.len() < from + len {
        let piece = pattern(from + said, (len - said).min(7000));
        server_says(stage, &piece);
        said += piece.len();
        assert_eq!(client.talk(stage), None);
    }
    assert_eq!(client.received[from..], pattern(from, len));
}

fn is_in_kernel(client: &Client) -> bool {
    client.end.watch_peer().is_in_kernel()
}

/// Returns the close reason of a connection whose client saw no clean end.
fn ended(stage: &mut Stage, client: Client) -> Option<CloseReason> {
    assert!(!client.closed);
    drop(client);
    stage.settle();
    stage.closed()
}

fn refusals(stage: &Stage, why: KernelTlsRefusal) -> u64 {
    stage.counters.kernel_tls_refusals[why as usize].value()
}

#[test]
fn tickets_are_sent_before_kernel_tls_starts() {
    let house = bulk();
    let (mut stage, mut client) = joined(&house, &TLS13, (NEW, None));
    let mut got = Vec::new();
    for at in (0..2 * AFTER).step_by(5000) {
        assert_eq!(
            client.tls.tls13_tickets_received() > 0,
            is_in_kernel(&client)
        );
        client.say(&pattern(at, 5000));
        assert_eq!(client.talk(&mut stage), None);
        got.extend(server_got(&mut stage));
    }
    assert!(is_in_kernel(&client));
    assert_eq!(got, pattern(0, 2 * AFTER));
    download(&mut stage, &mut client, 5000);
}

#[test]
fn bulk_connections_switch_to_kernel_tls_and_splice() {
    for version in [&TLS12, &TLS13] {
        let house = bulk();
        let (mut stage, mut client) = joined(&house, version, (NEW, None));
        client.say(b"question");
        client.talk(&mut stage);
        assert_eq!(server_got(&mut stage), b"question");
        download(&mut stage, &mut client, AFTER / 2);
        assert!(!is_in_kernel(&client), "it has not carried bulk");
        download(&mut stage, &mut client, 100_000);
        assert!(is_in_kernel(&client));
        assert!(stage.counters.spliced_bytes.value() > 50_000);
        assert_eq!(stage.counters.kernel_tls_legs.value(), 1);
        // And in the other direction.
        let mut got = Vec::new();
        for at in (0..50_000).step_by(5000) {
            client.say(&pattern(at, 5000));
            assert_eq!(client.talk(&mut stage), None);
            got.extend(server_got(&mut stage));
        }
        assert_eq!(got, pattern(0, 50_000));
        client.tls.send_close_notify();
        client.talk(&mut stage);
        let server = &mut stage.net.dialled[0].far;
        assert!(server.watch().is_ended());
        server.write_all(b"last").unwrap();
        drop(std::mem::replace(server, pair(1).0));
        client.talk(&mut stage);
        assert_eq!(stage.closed(), Some(CloseReason::Finished));
        assert!(client.closed && client.received.ends_with(b"last"));
        let counters = &stage.counters;
        assert_eq!(counters.pipes_lent.value(), counters.pipes_returned.value());
    }
}

#[test]
fn kernel_tls_supports_every_cipher() {
    for suite in aws_lc_rs::ALL_CIPHER_SUITES {
        let version = match suite.tls13() {
            Some(_) => &TLS13,
            None => &TLS12,
        };
        if format!("{:?}", suite.suite()).contains("RSA") {
            continue;
        }
        let house = bulk();
        let provider = rustls::crypto::CryptoProvider {
            cipher_suites: vec![*suite],
            ..aws_lc_rs::default_provider()
        };
        let config = rustls::ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(house.roots.clone())
            .with_no_client_auth();
        let mut stage = house.stage();
        let mut client = Client::enter(&mut stage, house.listener(0), &Arc::new(config), "a.test");
        client.end.watch_peer().give_kernel(NEW, None);
        client.talk(&mut stage);
        download(&mut stage, &mut client, 60_000);
        assert!(is_in_kernel(&client), "{suite:?}");
        client.say(&pattern(0, 20_000));
        client.talk(&mut stage);
        assert_eq!(server_got(&mut stage), pattern(0, 20_000));
    }
}

#[test]
fn kernel_tls_is_not_used_if_disabled() {
    let house = house("");
    let (mut stage, mut client) = joined(&house, &TLS13, (NEW, None));
    client.talk(&mut stage);
    download(&mut stage, &mut client, 2 << 20);
    assert!(!is_in_kernel(&client));
}

#[test]
fn an_unsuitable_kernel_is_not_used() {
    let without_aes = Support {
        ciphers: [[false, false, true]; 2],
        ..NEW
    };
    for (kernel, refuses, why) in [
        (Support::default(), None, KernelTlsRefusal::Unsupported),
        (without_aes, None, KernelTlsRefusal::Unsupported),
        (OLD, None, KernelTlsRefusal::Unsupported),
        (NEW, Some(Refused::Layer), KernelTlsRefusal::Layer),
    ] {
        let house = bulk();
        let (mut stage, mut client) = joined(&house, &TLS13, (kernel, refuses));
        client.talk(&mut stage);
        download(&mut stage, &mut client, 100_000);
        assert!(!is_in_kernel(&client));
        assert_eq!(refusals(&stage, why), 1, "asked once");
        client.say(b"goes on");
        client.talk(&mut stage);
        assert_eq!(server_got(&mut stage), b"goes on");
    }
}

#[test]
fn an_old_kernel_is_used_for_tls_1_2_and_for_tls_1_3_if_configured() {
    let house = bulk();
    let (mut stage, mut client) = joined(&house, &TLS12, (OLD, None));
    client.talk(&mut stage);
    download(&mut stage, &mut client, 100_000);
    assert!(is_in_kernel(&client));
    let house = bulk_with("kernel-tls-without-rekey = true");
    let (mut stage, mut client) = joined(&house, &TLS13, (OLD, None));
    client.talk(&mut stage);
    download(&mut stage, &mut client, 100_000);
    assert!(is_in_kernel(&client));
    client.tls.refresh_traffic_keys().unwrap();
    client.talk(&mut stage);
    assert!(stage.net.dialled[0].far.watch().is_broken());
    assert_eq!(ended(&mut stage, client), Some(CloseReason::KeyUpdate));
}

#[test]
fn a_key_rejected_by_the_kernel_ends_the_connection() {
    for direction in [Direction::Send, Direction::Receive] {
        let house = bulk();
        let (mut stage, mut client) = joined(&house, &TLS13, (NEW, Some(Refused::Key(direction))));
        client.talk(&mut stage);
        server_says(&mut stage, &pattern(0, AFTER));
        client.talk(&mut stage);
        server_says(&mut stage, b"more");
        client.talk(&mut stage);
        assert!(stage.net.dialled[0].far.watch().is_broken());
        assert_eq!(ended(&mut stage, client), Some(CloseReason::KernelTls));
        assert_eq!(refusals(&stage, KernelTlsRefusal::Key), 1);
    }
}

#[test]
fn key_updates_of_the_client_replace_the_kernel_keys() {
    let house = bulk();
    let (mut stage, mut client) = joined(&house, &TLS13, (NEW, None));
    client.talk(&mut stage);
    download(&mut stage, &mut client, 100_000);
    assert!(is_in_kernel(&client));
    for _ in 0..3 {
        client.tls.refresh_traffic_keys().unwrap();
        client.say(b"under a new key");
        client.talk(&mut stage);
        assert_eq!(server_got(&mut stage), b"under a new key");
        // The client requests a KeyUpdate from becket, too.
        download(&mut stage, &mut client, 30_000);
    }
    assert_eq!(client.fault, None);
}

#[test]
fn a_pending_key_update_is_answered_before_kernel_tls_starts() {
    let house = bulk();
    let (mut stage, mut client) = joined(&house, &TLS13, (NEW, None));
    client.talk(&mut stage);
    client.say(&pattern(0, AFTER / 2));
    client.talk(&mut stage);
    client.tls.refresh_traffic_keys().unwrap();
    client.say(&pattern(AFTER / 2, AFTER));
    client.talk(&mut stage);
    client.say(b"more");
    client.talk(&mut stage);
    assert!(!is_in_kernel(&client), "rustls has an answer to send");
    let got = server_got(&mut stage);
    assert_eq!(got, [&pattern(0, AFTER / 2 * 3), &b"more"[..]].concat());
    download(&mut stage, &mut client, 50_000);
    assert!(is_in_kernel(&client));
}

#[test]
fn repeated_key_updates_without_data_end_the_connection() {
    let house = bulk();
    let (mut stage, mut client) = joined(&house, &TLS13, (NEW, None));
    client.talk(&mut stage);
    download(&mut stage, &mut client, 100_000);
    let told = (0..1000).find(|_| {
        let renewed = client.tls.refresh_traffic_keys();
        client.talk(&mut stage);
        renewed.is_err()
    });
    assert!(told.is_some_and(|count| count > 50));
    let reason = ended(&mut stage, client);
    assert_eq!(reason, Some(CloseReason::RecordsWithoutData));
}

#[test]
fn a_fin_without_close_notify_and_a_cut_record_are_truncation() {
    for cut in [false, true] {
        let house = bulk();
        let (mut stage, mut client) = joined(&house, &TLS13, (NEW, None));
        client.talk(&mut stage);
        download(&mut stage, &mut client, 100_000);
        assert!(is_in_kernel(&client));
        if cut {
            client.end.write_all(&[23, 3, 3, 1, 0, 7, 7]).unwrap();
        }
        drop(client);
        stage.settle();
        let server = &mut stage.net.dialled[0].far;
        assert!(server.watch().is_ended());
        drop(std::mem::replace(server, pair(1).0));
        stage.settle();
        assert_eq!(stage.closed(), Some(CloseReason::ClientTruncated));
    }
}

#[test]
fn an_undecryptable_record_is_answered_with_bad_record_mac() {
    for record in [
        &[23, 3, 3, 0, 20][..],
        &[21, 3, 3, 0, 20],
        &[22, 3, 3, 0, 20],
    ] {
        let house = bulk();
        let (mut stage, mut client) = joined(&house, &TLS13, (NEW, None));
        client.talk(&mut stage);
        download(&mut stage, &mut client, 100_000);
        client.end.write_all(record).unwrap();
        client.end.write_all(&[7; 20]).unwrap();
        stage.settle();
        client.talk(&mut stage);
        let told = rustls::Error::AlertReceived(rustls::AlertDescription::BadRecordMac);
        assert_eq!(client.fault, Some(told));
        let reason = ended(&mut stage, client);
        assert_eq!(reason, Some(CloseReason::ClientTlsError));
    }
}

#[test]
fn a_server_reset_sends_no_close_notify_under_kernel_tls() {
    let house = bulk();
    let (mut stage, mut client) = joined(&house, &TLS13, (NEW, None));
    client.talk(&mut stage);
    download(&mut stage, &mut client, 100_000);
    stage.net.dialled[0].far.reset();
    client.talk(&mut stage);
    let reason = ended(&mut stage, client);
    assert_eq!(reason, Some(CloseReason::ServerReset));
}

#[test]
fn close_notify_waits_for_buffer_space_and_is_sent_completely() {
    let house = bulk();
    let mut stage = house.stage_of(24_000);
    let config = Arc::new(house.client(&TLS13));
    let mut client = Client::enter(&mut stage, house.listener(0), &config, "a.test");
    client.end.watch_peer().give_kernel(NEW, None);
    client.talk(&mut stage);
    download(&mut stage, &mut client, 100_000);
    assert!(is_in_kernel(&client));
    // As much as fits.
    let mut said = 0;
    loop {
        let server = &mut stage.net.dialled[0].far;
        match server.write(&pattern(100_000 + said, 1000)) {
            Ok(n) => said += n,
            Err(_) => break,
        }
        stage.settle();
    }
    let server = &mut stage.net.dialled[0].far;
    drop(std::mem::replace(server, pair(1).0));
    stage.settle();
    client.talk(&mut stage);
    assert_eq!(client.received, pattern(0, 100_000 + said));
    assert!(client.closed);
    drop(client);
    stage.settle();
    assert!(stage.closed().is_some());
}

#[test]
fn a_client_that_only_sends_switches_to_kernel_tls() {
    let house = bulk();
    let (mut stage, mut client) = joined(&house, &TLS13, (NEW, None));
    let mut got = Vec::new();
    for at in (0..100_000).step_by(10_000) {
        client.say(&pattern(at, 10_000));
        assert_eq!(client.talk(&mut stage), None);
        got.extend(server_got(&mut stage));
    }
    assert_eq!(got, pattern(0, 100_000));
    assert!(is_in_kernel(&client));
}

/// Next event.
#[derive(Clone, Debug)]
enum Event {
    Server(usize),
    Client(usize),
    Deliver(usize),
    Update,
    Read(usize),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (1..40_000_usize).prop_map(Event::Server),
        8 => (1..40_000_usize).prop_map(Event::Client),
        4 => (1..30_000_usize).prop_map(Event::Deliver),
        1 => Just(Event::Update),
        4 => (1..50_000_usize).prop_map(Event::Read),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Records arrive in arbitrary pieces, both sides send, and the client changes keys. No byte is
    /// lost, doubled or moved, whenever the kernel takes over.
    #[test]
    fn kernel_tls_loses_no_byte_wherever_it_starts(
        tls13 in any::<bool>(),
        pipes in 0..3_usize,
        events in prop::collection::vec(event(), 1..60),
    ) {
        let house = bulk();
        let version = if tls13 { &TLS13 } else { &TLS12 };
        let mut stage = house.stage_of(50_000);
        if pipes > 0 {
            stage.splice(pipes);
        }
        let config = Arc::new(house.client(version));
        let mut client = Client::enter(&mut stage, house.listener(0), &config, "a.test");
        client.end.watch_peer().give_kernel(NEW, None);
        client.talk(&mut stage);
        let near = client.end.watch_peer();
        near.hold();
        let (mut server_said, mut client_said, mut got) = (0, 0, Vec::new());
        for event in events {
            match event {
                Event::Server(n) => {
                    let bytes = pattern(server_said, n);
                    server_said += stage.net.dialled[0].far.write(&bytes).unwrap_or(0);
                }
                Event::Client(n) => {
                    if client.tls.wants_write() {
                        client.flush();
                    } else {
                        client.say(&pattern(client_said, n));
                        client_said += n;
                    }
                }
                Event::Deliver(n) => near.deliver(n),
                Event::Update if tls13 => client.tls.refresh_traffic_keys().unwrap(),
                Event::Update => {}
                Event::Read(n) => {
                    client.bite = n;
                    client.bite();
                }
            }
            client.flush();
            stage.settle();
            got.extend(server_got(&mut stage));
            prop_assert_eq!(stage.closed(), None);
            prop_assert_eq!(&got, &pattern(0, got.len()));
        }
        client.bite = usize::MAX;
        while got.len() < client_said || client.received.len() < server_said {
            client.flush();
            near.deliver(usize::MAX);
            stage.settle();
            while client.bite() {}
            let before = got.len();
            got.extend(server_got(&mut stage));
            let moved = stage.turn() || got.len() > before || near.on_the_way() > 0;
            prop_assert!(moved || client.tls.wants_write() || client.received.len() == server_said);
        }
        prop_assert_eq!(got, pattern(0, client_said));
        prop_assert_eq!(&client.received, &pattern(0, server_said));
        prop_assert_eq!(&client.fault, &None);
    }
}

#[test]
fn both_legs_use_kernel_tls_with_server_tickets_and_key_updates() {
    let house = House::new(&format!(
        "[limits]\nkernel-tls-after = {AFTER}\n\
         [[listener]]\nname = 'web'\nbind = ['127.0.0.1:443']\nbackend = 'app'\n\
         certificates = ['a.pem']\nkernel-tls = 'bulk'\n\
         [[backend]]\nname = 'app'\n[backend.tls]\nca = 'a.pem'\nname = 'a.test'\nkernel-tls = 'bulk'\n\
         [[backend.server]]\naddress = '127.0.0.1:81'\n"
    ));
    for version in [&TLS12, &TLS13] {
        let (mut stage, mut client) = joined(&house, version, (NEW, None));
        client.talk(&mut stage);
        let mut host = Host::new(&Arc::new(server(&house, "a.pem", &[version])));
        stage.net.dialled[0].near.give_kernel(NEW, None);
        host.talk(&mut client, &mut stage);
        let tls13 = version.version == TLS13.version;
        let mut said = 0;
        for round in 0..20 {
            if tls13 && round == 12 {
                host.tls.refresh_traffic_keys().unwrap();
            }
            if tls13 && round == 15 {
                client.tls.refresh_traffic_keys().unwrap();
            }
            host.say(&pattern(said, 6000));
            client.say(&pattern(said, 6000));
            said += 6000;
            assert_eq!(host.talk(&mut client, &mut stage), None);
        }
        assert!(is_in_kernel(&client) && stage.net.dialled[0].near.is_in_kernel());
        assert_eq!(stage.counters.kernel_tls_legs.value(), 2);
        assert!(stage.counters.spliced_bytes.value() > 50_000);
        host.tls.send_close_notify();
        client.tls.send_close_notify();
        host.talk(&mut client, &mut stage);
        assert_eq!(
            (client.received, host.received),
            (pattern(0, said), pattern(0, said))
        );
        assert!(client.closed && host.closed);
        assert_eq!((client.fault, host.fault), (None, None));
        drop(client.end);
        stage.settle();
        assert_eq!(stage.closed(), Some(CloseReason::Finished));
    }
}

#[test]
fn kernel_tls_detects_a_server_end_without_close_notify() {
    let house = House::new(&format!(
        "[limits]\nkernel-tls-after = {AFTER}\n\
         [[listener]]\nname = 'web'\nbind = ['127.0.0.1:443']\nbackend = 'app'\ntls = false\n\
         [[backend]]\nname = 'app'\n[backend.tls]\nca = 'a.pem'\nname = 'a.test'\nkernel-tls = 'bulk'\n\
         [[backend.server]]\naddress = '127.0.0.1:81'\n"
    ));
    let mut stage = house.stage();
    stage.splice(2);
    let mut client = stage.admit(house.listener(0), [Plan::Accept]);
    stage.settle();
    stage.net.dialled[0].near.give_kernel(NEW, None);
    let mut host = Host::new(&Arc::new(server(&house, "a.pem", &[&TLS13])));
    host.settle(&mut stage);
    let mut got = Vec::new();
    for at in (0..60_000).step_by(6000) {
        host.say(&pattern(at, 6000));
        host.settle(&mut stage);
        got.extend(client.receive_all());
    }
    assert_eq!(got, pattern(0, 60_000));
    assert!(stage.net.dialled[0].near.is_in_kernel());
    let far = &mut stage.net.dialled[0].far;
    drop(std::mem::replace(far, pair(1).0));
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::ServerTruncated));
    assert!(client.watch().is_broken(), "FIN would be an end");
}
