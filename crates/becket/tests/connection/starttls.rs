//! Tests of STARTTLS: answers to clients, and what never reaches the server.

use std::io::{Read, Write};
use std::sync::Arc;

use crate::script::link::End;
use crate::script::net::Plan;
use crate::script::stage::Stage;
use becket_proto::close_reason::CloseReason;
use becket_proxy::socket::StreamSocket;
use rustls::pki_types::ServerName;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConnection, ProtocolVersion, SupportedProtocolVersion};

use crate::common::{Client, House, server_got, server_says};
use crate::onward::{Host, server};

pub(crate) fn house(protocol: &str, backend: &str) -> House {
    House::new(&format!(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:25']\nbackend = 'app'\n\
         certificates = ['b.pem', 'a.pem']\nstarttls = '{protocol}'\n\
         [[backend]]\nname = 'app'\n{backend}\n[[backend.server]]\naddress = '127.0.0.1:81'\n"
    ))
}

/// Begins TLS on the stream of a client that has finished its unencrypted part.
pub(crate) fn begin_tls(house: &House, end: End, alpn: &[&[u8]]) -> Client {
    begin_tls_as(house, end, Some("a.test"), alpn)
}

/// As [`begin_tls`], with another name or without one.
pub(crate) fn begin_tls_as(house: &House, end: End, name: Option<&str>, alpn: &[&[u8]]) -> Client {
    let mut config = house.client(&TLS13);
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    config.enable_sni = name.is_some();
    let name = name.unwrap_or("a.test").to_owned();
    let name = ServerName::try_from(name).unwrap();
    Client {
        tls: ClientConnection::new(Arc::new(config), name).unwrap(),
        end,
        received: Vec::new(),
        fault: None,
        closed: false,
        bite: usize::MAX,
    }
}

/// Connects a client, and returns what it received.
pub(crate) fn enter(house: &House, greeting: &[u8]) -> (Stage, End, Vec<u8>) {
    let mut stage = house.stage();
    let mut end = stage.admit(house.listener(0), [Plan::Accept]);
    stage.settle();
    if !greeting.is_empty() {
        server_says(&mut stage, greeting);
    }
    stage.settle();
    let told = end.receive_all();
    (stage, end, told)
}

pub(crate) fn say(stage: &mut Stage, end: &mut End, words: &[u8]) -> String {
    end.write_all(words).unwrap();
    stage.settle();
    String::from_utf8(end.receive_all()).unwrap()
}

#[test]
fn mail_protocols_switch_to_tls_on_request() {
    for (protocol, greeting, clear, asks, says_go) in [
        (
            "smtp",
            "220 mx.test ESMTP\r\n",
            "EHLO me\r\n",
            "STARTTLS\r\n",
            "220 ",
        ),
        (
            "imap",
            "* OK hello\r\n",
            "a NOOP\r\n",
            "b STARTTLS\r\n",
            "b OK",
        ),
        ("pop3", "+OK <1@mx.test>\r\n", "CAPA\r\n", "STLS\r\n", "+OK"),
    ] {
        let house = house(protocol, "");
        let (mut stage, mut end, told) = enter(&house, greeting.as_bytes());
        assert_eq!(told, greeting.as_bytes(), "{protocol}");
        assert!(!say(&mut stage, &mut end, clear.as_bytes()).is_empty());
        assert!(stage.is_handshaking());
        let go = say(&mut stage, &mut end, asks.as_bytes());
        assert!(go.starts_with(says_go), "{protocol}: {go}");
        assert_eq!(
            server_got(&mut stage),
            b"",
            "nothing in clear reaches the server"
        );
        let mut client = begin_tls(&house, end, &[]);
        client.say(b"EHLO again\r\n");
        client.talk(&mut stage);
        assert_eq!(
            server_got(&mut stage),
            b"EHLO again\r\n",
            "{:?}",
            client.fault
        );
        server_says(&mut stage, b"250 mx.test\r\n");
        client.talk(&mut stage);
        assert_eq!(client.received, b"250 mx.test\r\n");
        client.tls.send_close_notify();
        client.talk(&mut stage);
        stage.net.dialled[0].far.finish();
        assert_eq!(client.talk(&mut stage), Some(CloseReason::Finished));
        assert!(client.closed);
        assert_eq!(stage.counters.handshakes_begun.value(), 1);
        assert_eq!(stage.counters.handshakes_ended.value(), 1);
    }
}

#[test]
fn commands_may_arrive_one_byte_at_a_time() {
    let house = house("smtp", "");
    let mut stage = house.stage();
    let mut end = stage.admit(house.listener(0), [Plan::Later]);
    stage.settle();
    stage.net.dialled[0].near.establish();
    for byte in b"220 mx\r\n" {
        server_says(&mut stage, &[*byte]);
        stage.settle();
    }
    for byte in b"STARTTLS\r\n" {
        end.write_all(&[*byte]).unwrap();
        stage.settle();
    }
    assert!(
        end.receive_all()
            .ends_with(b"220 2.0.0 ready to start TLS\r\n")
    );
    let mut client = begin_tls(&house, end, &[]);
    client.talk(&mut stage);
    assert!(!client.tls.is_handshaking(), "{:?}", client.fault);
}

#[test]
fn plaintext_after_starttls_closes_the_connection() {
    let postgresql = [0, 0, 0, 8, 4, 0xd2, 0x16, 0x2f, 1];
    for (protocol, greeting, words) in [
        (
            "smtp",
            &b"220 mx\r\n"[..],
            &b"STARTTLS\r\nMAIL FROM:<evil@a>\r\n"[..],
        ),
        (
            "imap",
            b"* OK hi\r\n",
            b"a STARTTLS\r\nb LOGIN evil evil\r\n",
        ),
        ("pop3", b"+OK\r\n", b"STLS\r\nUSER evil\r\n"),
        ("postgresql", b"", &postgresql),
    ] {
        let house = house(protocol, "");
        let (mut stage, mut end, _) = enter(&house, greeting);
        say(&mut stage, &mut end, words);
        assert!(end.watch().is_ended(), "{protocol}");
        let got = server_got(&mut stage);
        assert_eq!(got, b"", "{protocol}");
        drop(end);
        stage.settle();
        assert_eq!(
            stage.closed(),
            Some(CloseReason::StarttlsInjected),
            "{protocol}"
        );
        assert_eq!(stage.counters.handshakes_ended.value(), 1);
    }
}

#[test]
fn plaintext_instead_of_a_hello_is_closed_as_not_tls() {
    let house = house("smtp", "");
    let (mut stage, mut end, _) = enter(&house, b"220 mx\r\n");
    say(&mut stage, &mut end, b"STARTTLS\r\n");
    say(&mut stage, &mut end, b"MAIL FROM:<evil@a>\r\n");
    assert_eq!(server_got(&mut stage), b"");
    drop(end);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::NotTls));
}

#[test]
fn a_failed_handshake_releases_the_server_at_once() {
    let house = house("smtp", "");
    let (mut stage, mut end, _) = enter(&house, b"220 mx\r\n");
    say(&mut stage, &mut end, b"STARTTLS\r\n");
    say(&mut stage, &mut end, b"GET / HTTP/1.1\r\n\r\n");
    assert_eq!(stage.closed(), None, "the client is still there");
    assert!(stage.net.dialled[0].far.watch().is_ended());
}

#[test]
fn a_valid_refusal_by_the_server_is_forwarded_and_garbage_is_not() {
    let house = house("smtp", "");
    for greeting in [&b"554 no service\r\n"[..], b"HTTP/1.1 400 Bad Request\r\n"] {
        let (mut stage, end, told) = enter(&house, greeting);
        assert_eq!(told == greeting, greeting.starts_with(b"554"));
        drop(end);
        stage.settle();
        assert_eq!(stage.closed(), Some(CloseReason::ServerGreeting));
    }
    let (mut stage, mut end, _) = enter(&house, b"220 m");
    stage.net.dialled[0].far.finish();
    stage.settle();
    assert_eq!(end.receive_all(), b"");
    drop(end);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::ServerGreeting));
}

#[test]
fn early_closes_have_their_own_close_reasons() {
    let house = house("imap", "");
    let (mut stage, mut end, _) = enter(&house, b"* OK hi\r\n");
    assert_eq!(
        say(&mut stage, &mut end, b"a LOGOUT\r\n"),
        "* BYE\r\na OK bye\r\n"
    );
    drop(end);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::Cleartext));

    for (said, reason) in [
        (&b""[..], CloseReason::HealthCheck),
        (b"a NOOP\r\n", CloseReason::HandshakeAborted),
    ] {
        let (mut stage, mut end, _) = enter(&house, b"* OK hi\r\n");
        say(&mut stage, &mut end, said);
        drop(end);
        stage.settle();
        assert_eq!(stage.closed(), Some(reason));
    }

    let (mut stage, mut end, _) = enter(&house, b"* OK hi\r\n");
    say(&mut stage, &mut end, b"a STARTTLS\r\n");
    stage.wait(house.config.file.timeouts.hello);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::HelloTimeout));
    assert_eq!(stage.counters.handshakes_ended.value(), 1);
}

#[test]
fn postgresql_supports_ssl_requests_and_direct_tls() {
    let house = house("postgresql", "");
    let request = [0, 0, 0, 8, 4, 0xd2, 0x16, 0x2f];
    let (mut stage, mut end, _) = enter(&house, b"");
    assert_eq!(say(&mut stage, &mut end, &request), "S");
    let mut client = begin_tls(&house, end, &[]);
    client.say(b"startup");
    client.talk(&mut stage);
    assert_eq!(server_got(&mut stage), b"startup", "{:?}", client.fault);

    for (alpn, goes_on) in [(&[&b"postgresql"[..]][..], true), (&[], false)] {
        let (mut stage, end, _) = enter(&house, b"");
        let mut client = begin_tls(&house, end, alpn);
        client.say(b"startup");
        client.talk(&mut stage);
        assert_eq!(
            server_got(&mut stage) == b"startup",
            goes_on,
            "{:?}",
            client.fault
        );
        drop(client);
        stage.settle();
        assert_eq!(stage.closed() == Some(CloseReason::AlpnMismatch), !goes_on);
    }

    let (mut stage, mut end, _) = enter(&house, b"");
    end.write_all(&[0, 0, 0, 9, 0, 3, 0, 0, 0]).unwrap();
    stage.settle();
    assert!(end.receive_all().starts_with(b"E"));
    drop(end);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::Cleartext));
}

#[test]
fn starttls_clients_are_forwarded_to_tls_servers() {
    let house = house("smtp", "tls = { ca = 'a.pem', name = 'a.test' }");
    for version in [&TLS12, &TLS13] {
        let mut stage = house.stage();
        let mut end = stage.admit(house.listener(0), [Plan::Accept]);
        stage.settle();
        let mut host = Host::new(&Arc::new(server(&house, "a.pem", &[version])));
        host.say(b"220 mx\r\n");
        host.settle(&mut stage);
        assert_eq!(end.receive_all(), b"220 mx\r\n");
        assert!(say(&mut stage, &mut end, b"STARTTLS\r\n").starts_with("220 "));
        let mut client = begin_tls(&house, end, &[]);
        client.say(b"EHLO me\r\n");
        host.talk(&mut client, &mut stage);
        assert_eq!(host.received, b"EHLO me\r\n", "{:?}", host.fault);
        host.say(b"250 mx\r\n");
        host.talk(&mut client, &mut stage);
        assert_eq!(client.received, b"250 mx\r\n");
    }
}

/// A TLS server that sends its last words and then nothing.
struct LastWords {
    house: House,
    stage: Stage,
    end: End,
    host: Host,
}

impl LastWords {
    /// `at_once` sends the words in the flight that ends the server's part of the handshake.
    fn say(version: &'static SupportedProtocolVersion, words: &[u8], at_once: bool) -> Self {
        let house = house("smtp", "tls = { ca = 'a.pem', name = 'a.test' }");
        let mut stage = house.stage();
        let end = stage.admit(house.listener(0), [Plan::Accept]);
        stage.settle();
        let mut config = server(&house, "a.pem", &[version]);
        config.send_half_rtt_data = at_once;
        let mut host = Host::new(&Arc::new(config));
        if at_once {
            host.take_until_keys(&mut stage);
        } else {
            assert_eq!(host.settle(&mut stage), None);
        }
        host.say(words);
        host.tls.send_close_notify();
        host.settle(&mut stage);
        Self {
            house,
            stage,
            end,
            host,
        }
    }
}

impl Host {
    /// Exchanges flights until the server may send data; its own data is not sent yet.
    fn take_until_keys(&mut self, stage: &mut Stage) {
        let has_keys = |host: &Self| match host.tls.protocol_version() {
            Some(ProtocolVersion::TLSv1_3) => true,
            _ => !host.tls.is_handshaking(),
        };
        while !has_keys(self) {
            while self.tls.wants_write() {
                self.tls.write_tls(&mut stage.net.dialled[0].far).unwrap();
            }
            stage.settle();
            self.tls.read_tls(&mut stage.net.dialled[0].far).unwrap();
            self.tls.process_new_packets().unwrap();
        }
    }
}

#[test]
fn a_server_that_closes_after_its_greeting_still_receives_data() {
    for (version, at_once) in [
        (&TLS12, true),
        (&TLS12, false),
        (&TLS13, true),
        (&TLS13, false),
    ] {
        let LastWords {
            house,
            mut stage,
            mut end,
            mut host,
        } = LastWords::say(version, b"220 mx\r\n", at_once);
        assert_eq!(end.receive_all(), b"220 mx\r\n");
        assert!(say(&mut stage, &mut end, b"STARTTLS\r\n").starts_with("220 "));
        let mut client = begin_tls(&house, end, &[]);
        client.say(b"QUIT\r\n");
        stage.net.dialled[0].far.finish();
        host.talk(&mut client, &mut stage);
        assert_eq!(host.received, b"QUIT\r\n", "{:?}", host.fault);
        assert!(
            client.closed && client.fault.is_none(),
            "{:?}",
            client.fault
        );
        client.tls.send_close_notify();
        let reason = host.talk(&mut client, &mut stage);
        assert_eq!(reason, Some(CloseReason::Finished), "{version:?} {at_once}");
    }
}

#[test]
fn a_refusal_of_a_tls_server_is_forwarded_even_if_the_server_closes() {
    for (version, at_once) in [
        (&TLS12, true),
        (&TLS12, false),
        (&TLS13, true),
        (&TLS13, false),
    ] {
        for (words, told) in [
            (&b"554 no service\r\n"[..], true),
            (b"554 no", false),
            (b"", false),
        ] {
            let mut last = LastWords::say(version, words, at_once);
            let heard = last.end.receive_all();
            assert_eq!(heard, if told { words } else { b"" });
            drop(last.end);
            last.stage.settle();
            let reason = last.stage.closed();
            assert_eq!(
                reason,
                Some(CloseReason::ServerGreeting),
                "{version:?} {at_once}"
            );
        }
    }
}

#[test]
fn a_starttls_client_without_a_reachable_server_is_closed() {
    let house = house("smtp", "");
    let mut stage = house.stage();
    let mut end = stage.admit(house.listener(0), []);
    stage.settle();
    assert_eq!(end.read(&mut [0]).unwrap(), 0);
    drop(end);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::ConnectFailed));
    assert_eq!(stage.counters.handshakes_begun.value(), 0);
}

#[test]
fn unknown_alpn_protocols_and_names_are_rejected_unless_allowed() {
    let protocols: [&[&[u8]]; 3] = [&[b"h2", b"http/1.1"], &[b"http/1.1", b"imap"], &[]];
    let outcome = |more: &str, name: Option<&str>, alpn: &[&[u8]]| {
        let house = House::new(&format!(
            "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:143']\nbackend = 'app'\n\
             certificates = ['b.pem', 'a.pem']\nstarttls = 'imap'\n{more}\n\
             [[backend]]\nname = 'app'\n[[backend.server]]\naddress = '127.0.0.1:81'\n"
        ));
        let (mut stage, mut end, _) = enter(&house, b"* OK hi\r\n");
        say(&mut stage, &mut end, b"a STARTTLS\r\n");
        let mut client = begin_tls_as(&house, end, name, alpn);
        client.talk(&mut stage);
        drop(client);
        stage.settle();
        stage.closed()
    };
    let refused = |more: &str, name: Option<&str>, alpn: &[&[u8]]| {
        let reason = outcome(more, name, alpn);
        reason
            .filter(|reason| [CloseReason::AlpnMismatch, CloseReason::UnknownName].contains(reason))
    };
    let found = protocols.map(|alpn| refused("", Some("a.test"), alpn));
    assert_eq!(found, [Some(CloseReason::AlpnMismatch), None, None]);
    let found = refused("", Some("web.test"), protocols[1]);
    assert_eq!(found, Some(CloseReason::UnknownName));
    assert_eq!(
        refused("", None, protocols[1]),
        None,
        "no name is no wrong one"
    );
    let allowed = "alpn-mismatch = 'continue'\nunknown-names = 'default'";
    for alpn in protocols {
        assert_eq!(refused(allowed, Some("web.test"), alpn), None);
    }
}

#[test]
fn many_records_sent_with_finished_reach_the_server() {
    let house = house("postgresql", "");
    let (mut stage, mut end, _) = enter(&house, b"");
    let asks = [0, 0, 0, 8, 4, 0xd2, 0x16, 0x2f];
    assert_eq!(say(&mut stage, &mut end, &asks), "S");
    let mut client = begin_tls(&house, end, &[b"postgresql"]);
    client.tls.set_buffer_limit(None);
    client.flush();
    stage.settle();
    while client.bite() {}
    assert!(!client.tls.is_handshaking());
    for _ in 0..2000 {
        client.say(&[5]);
    }
    client.tls.send_close_notify();
    client.flush();
    client.end.finish();
    assert!(stage.settle());
    assert_eq!(server_got(&mut stage).len(), 2000);
    assert!(stage.net.dialled[0].far.watch().is_ended());
}
