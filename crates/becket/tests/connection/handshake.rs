//! Tests of failed handshakes, and of the alerts that clients receive.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use crate::script::link::End;
use crate::script::stage::Stage;
use becket_proto::close_reason::CloseReason;
use rustls::AlertDescription as Alert;
use rustls::Error::AlertReceived;
use rustls::version::{TLS12, TLS13};

use crate::common::{BACKEND, Client, House, house, server_got};

/// Sends raw bytes, and returns stage, end and answer.
fn send(house: &House, bytes: &[u8]) -> (Stage, End, Vec<u8>) {
    let mut stage = house.stage();
    let mut end = stage.admit(house.listener(0), []);
    end.write_all(bytes).unwrap();
    assert!(stage.settle());
    let answer = end.receive_all();
    (stage, end, answer)
}

#[test]
fn plain_http_is_answered_in_clear_and_the_socket_lingers() {
    let (mut stage, end, answer) = send(&house(""), b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(answer.starts_with(b"HTTP/1.1 400 "), "{answer:?}");
    assert!(end.watch().is_ended());
    assert_eq!(stage.closed(), None, "the client may still be sending");
    drop(end);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::PlainHttp));
}

#[test]
fn garbage_is_closed_as_not_tls() {
    let (mut stage, end, answer) = send(&house(""), b"SSH-2.0-x\r\n");
    drop(end);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::NotTls));
    assert!(answer.len() <= 7);
}

#[test]
fn a_client_that_closes_during_the_hello_has_aborted() {
    for bytes in [&b"\x16\x03"[..], b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"] {
        let (mut stage, end, _) = send(&house(""), bytes);
        drop(end);
        stage.settle();
        assert_eq!(stage.closed(), Some(CloseReason::HandshakeAborted));
    }
    let said_and_left = [
        (&b"\x16\x03"[..], CloseReason::HandshakeAborted),
        (b"", CloseReason::HealthCheck),
    ];
    for (said, reason) in said_and_left {
        for leave in [|mut end: End| end.reset(), drop] {
            let (mut stage, end, _) = send(&house(""), said);
            leave(end);
            stage.settle();
            assert_eq!(stage.closed(), Some(reason));
        }
    }
}

#[test]
fn no_signature_is_made_for_a_client_that_closed_after_its_hello() {
    let house = house("");
    for version in [&TLS12, &TLS13] {
        for leave in [|mut end: End| end.reset(), drop] {
            let mut stage = house.stage();
            let config = Arc::new(house.client(version));
            let mut client = Client::enter(&mut stage, house.listener(0), &config, "a.test");
            client.flush();
            leave(client.end);
            stage.settle();
            assert_eq!(stage.closed(), Some(CloseReason::HandshakeAborted));
            assert_eq!(stage.counters.signatures_skipped.value(), 1);
            assert_eq!(stage.counters.handshakes_ended.value(), 1);
            assert_eq!(stage.counters.client_bytes_out.value(), 0);
        }
    }
}

#[test]
fn no_signature_is_made_for_a_client_that_closed_after_a_second_hello() {
    let house = house("");
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    // The client sends a key share of a group that the server does not have, and has to retry.
    provider.kx_groups = vec![
        rustls::crypto::aws_lc_rs::kx_group::MLKEM768,
        rustls::crypto::aws_lc_rs::kx_group::SECP256R1,
    ];
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_root_certificates(house.roots.clone())
        .with_no_client_auth();
    let mut stage = house.stage();
    let mut client = Client::enter(&mut stage, house.listener(0), &Arc::new(config), "a.test");
    client.flush();
    stage.settle();
    while client.bite() {}
    assert!(client.flush(), "it was asked for another key");
    drop(client.end);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::HandshakeAborted));
    assert_eq!(stage.counters.signatures_skipped.value(), 1);
}

#[test]
fn an_endless_hello_is_rejected_at_the_limit() {
    let house = house("");
    let limit = house.config.file.limits.client_hello;
    let mut stage = house.stage();
    let mut end = stage.admit(house.listener(0), []);
    let mut hello = Vec::new();
    // One message of 64 KiB, spread over several records.
    let mut message = vec![1, 0, 0xff, 0xff, 3, 3];
    message.resize(60_000, 0);
    for part in message.chunks(16_000) {
        hello.extend([22, 3, 1, (part.len() >> 8) as u8, part.len() as u8]);
        hello.extend(part);
    }
    let mut sent = 0;
    while stage.is_handshaking() && sent < hello.len() {
        sent += end
            .write(&hello[sent..hello.len().min(sent + 500)])
            .unwrap();
        stage.settle();
    }
    assert!((limit..limit + 500).contains(&sent), "{sent} of {limit}");
    assert_eq!(end.receive_all(), [21, 3, 3, 0, 2, 2, 50], "decode_error");
    drop(end);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::HelloTooLarge));
}

#[test]
fn a_complete_hello_above_the_limit_receives_decode_error() {
    let house = house("");
    let hello = include_bytes!("../../../proto/testdata/client_hello_long/padded-17k.bin");
    assert!(hello.len() > house.config.file.limits.client_hello);
    let (mut stage, end, answer) = send(&house, hello);
    assert_eq!(answer, [21, 3, 3, 0, 2, 2, 50], "decode_error");
    drop(end);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::HelloTooLarge));
}

/// The hello is of a TLS 1.2 client that supports only ecdsa+sha384, for which rustls sends no
/// alert.
#[test]
fn a_client_without_a_suitable_key_receives_handshake_failure() {
    let house = house("");
    let hello =
        include_bytes!("../../../proto/testdata/client_hello/openssl-tls12-ecdsa-sha384-alone.bin");
    let (mut stage, end, answer) = send(&house, hello);
    assert_eq!(answer, [21, 3, 3, 0, 2, 2, 40], "handshake_failure");
    drop(end);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::HandshakeFailed));
}

#[test]
fn a_slow_client_is_closed_at_the_hello_timeout() {
    let house = house("");
    let (mut stage, _end, _) = send(&house, b"\x16\x03\x01");
    stage.wait(house.config.file.timeouts.hello - Duration::from_millis(1));
    stage.settle();
    assert!(stage.is_handshaking());
    stage.wait(Duration::from_millis(1));
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::HelloTimeout));
}

#[test]
fn the_handshake_timeout_applies_after_a_complete_hello() {
    let house = house("");
    let mut stage = house.stage();
    let config = Arc::new(house.client(&TLS13));
    let mut client = Client::enter(&mut stage, house.listener(0), &config, "a.test");
    client.flush();
    stage.settle();
    stage.wait(house.config.file.timeouts.handshake - Duration::from_millis(1));
    stage.settle();
    assert!(stage.is_handshaking());
    stage.wait(Duration::from_millis(1));
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::HandshakeTimeout));
}

#[test]
fn the_hello_timeout_is_capped_by_the_handshake_timeout() {
    let house = house("[timeouts]\nhandshake = '1s'");
    let (mut stage, _end, _) = send(&house, b"\x16\x03\x01");
    stage.wait(Duration::from_secs(1));
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::HelloTimeout));
}

#[test]
fn a_hello_may_arrive_one_byte_at_a_time() {
    let house = house("");
    for version in [&TLS12, &TLS13] {
        let mut stage = house.stage();
        let config = Arc::new(house.client(version));
        let mut client = Client::enter(&mut stage, house.listener(0), &config, "a.test");
        let near = client.end.watch_peer();
        near.hold();
        client.bite = 1;
        for _ in 0..20_000 {
            client.flush();
            near.deliver(1);
            stage.settle();
            while client.bite() {}
            if !client.tls.is_handshaking() && !client.flush() && near.on_the_way() == 0 {
                break;
            }
        }
        stage.settle();
        assert!(!client.tls.is_handshaking(), "{:?}", client.fault);
        assert!(stage.record().unwrap().facts.tls.is_some());
        assert_eq!(stage.net.dialled.len(), 1);
    }
}

#[test]
fn a_name_selects_its_certificate_and_wildcards_match_one_label() {
    let house = house("");
    for (name, trusted) in [("a.test", true), ("x.b.test", true), ("x.y.b.test", false)] {
        let mut stage = house.stage();
        let config = Arc::new(house.client(&TLS13));
        let mut client = Client::enter(&mut stage, house.listener(0), &config, name);
        client.talk(&mut stage);
        assert_eq!(
            client.fault.is_none(),
            trusted,
            "{name}: {:?}",
            client.fault
        );
        let sni = stage.record().unwrap().facts.server_name;
        assert_eq!(sni.as_deref(), Some(name));
    }
}

#[test]
fn unknown_and_missing_names_can_be_rejected() {
    for (setting, name, is_refused) in [
        ("refuse", Some("c.test"), true),
        ("refuse", None, false),
        ("strict", Some("c.test"), true),
        ("strict", None, true),
        ("strict", Some("a.test"), false),
    ] {
        let house = house(&format!("unknown-names = '{setting}'"));
        let mut stage = house.stage();
        let mut config = house.client(&TLS13);
        config.enable_sni = name.is_some();
        let name = name.unwrap_or("a.test");
        let mut client = Client::enter(&mut stage, house.listener(0), &Arc::new(config), name);
        client.talk(&mut stage);
        let alert = Some(AlertReceived(Alert::UnrecognisedName));
        assert_eq!(client.fault == alert, is_refused, "{setting} {name}");
        drop(client);
        stage.settle();
        assert_eq!(stage.closed() == Some(CloseReason::UnknownName), is_refused);
    }
}

#[test]
fn an_alpn_mismatch_continues_or_is_rejected() {
    for (setting, alert) in [
        ("continue", None),
        ("refuse", Some(AlertReceived(Alert::NoApplicationProtocol))),
    ] {
        let house = house(&format!("alpn = ['h2']\nalpn-mismatch = '{setting}'"));
        let mut stage = house.stage();
        let mut config = house.client(&TLS13);
        config.alpn_protocols = vec![b"h3".to_vec()];
        let config = Arc::new(config);
        let mut client = Client::enter(&mut stage, house.listener(0), &config, "a.test");
        client.talk(&mut stage);
        assert_eq!(client.fault, alert);
        assert_eq!(client.tls.alpn_protocol(), None);
        drop(client);
        stage.settle();
        let expected = match setting {
            "refuse" => CloseReason::AlpnMismatch,
            _ => CloseReason::ClientTruncated,
        };
        if setting == "continue" {
            stage.net.dialled[0].far.receive_all();
            becket_proxy::socket::StreamSocket::finish(&mut stage.net.dialled[0].far);
            stage.settle();
        }
        assert_eq!(stage.closed(), Some(expected));
    }
}

#[test]
fn a_handshake_without_a_common_version_fails() {
    let house = House::new(&format!(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:443']\nbackend = 'app'\n\
         certificates = ['a.pem']\npolicy = 'new'\n[[policy]]\nname = 'new'\n\
         versions = ['1.3']\n{BACKEND}"
    ));
    let mut stage = house.stage();
    let config = Arc::new(house.client(&TLS12));
    let mut client = Client::enter(&mut stage, house.listener(0), &config, "a.test");
    client.talk(&mut stage);
    assert_eq!(client.fault, Some(AlertReceived(Alert::ProtocolVersion)));
    drop(client);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::HandshakeFailed));
}

#[test]
fn a_client_without_the_required_certificate_is_rejected() {
    let house = House::new(&format!(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:443']\nbackend = 'app'\n\
         certificates = ['a.pem']\npolicy = 'known'\n[[policy]]\nname = 'known'\n\
         client-certificates = 'required'\nclient-ca = 'ca.pem'\n{BACKEND}"
    ));
    for version in [&TLS12, &TLS13] {
        let mut stage = house.stage();
        let config = Arc::new(house.client(version));
        let mut client = Client::enter(&mut stage, house.listener(0), &config, "a.test");
        client.talk(&mut stage);
        assert!(
            matches!(client.fault, Some(AlertReceived(_))),
            "{:?}",
            client.fault
        );
        assert!(stage.net.dialled.is_empty(), "no server hears of it");
        drop(client);
        stage.settle();
        assert_eq!(stage.closed(), Some(CloseReason::ClientCertificate));
    }
}

#[test]
fn data_sent_with_finished_reaches_the_server() {
    let house = house("");
    for version in [&TLS12, &TLS13] {
        let mut stage = house.stage();
        let config = Arc::new(house.client(version));
        let mut client = Client::enter(&mut stage, house.listener(0), &config, "a.test");
        client.say(b"early");
        client.talk(&mut stage);
        assert_eq!(server_got(&mut stage), b"early");
    }
}
