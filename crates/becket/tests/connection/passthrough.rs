//! Tests of TLS passthrough: routing by the hello, unchanged bytes, and stickiness by session.

use std::io::Write;
use std::sync::Arc;

use crate::script::stage::Stage;
use becket_proto::close_reason::CloseReason;
use becket_proto::proxy_header::{Accept, decode};
use becket_proto::ticket::{Epoch, KeyId, NodeId, SecretId, TicketHeader, TicketPolicy};
use rustls::server::ProducesTickets;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, HandshakeKind, ServerConfig};

use crate::common::{Client, House, without_tickets};
use crate::onward::{Host, server};

fn house(listener: &str, backend: &str) -> House {
    House::new(&format!(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:443']\nbackend = 'app'\n\
         mode = 'passthrough'\n{listener}\n\
         [[backend]]\nname = 'app'\n{backend}\n\
         [[backend.server]]\naddress = '127.0.0.1:81'\nnode = 1\n\
         [[backend.server]]\naddress = '127.0.0.1:82'\nnode = 2\n\
         [[backend.server]]\naddress = '127.0.0.1:83'\n\
         [[backend]]\nname = 'b'\n[[backend.server]]\naddress = '127.0.0.1:91'\n"
    ))
}

/// Connects a client for `name` to a server with `host`. Returns the server's address and the kind
/// of the handshake.
fn visit(
    house: &House,
    config: &Arc<ClientConfig>,
    host: &Arc<ServerConfig>,
    name: &str,
) -> (String, HandshakeKind) {
    let mut stage = house.stage();
    let mut client = Client::enter(&mut stage, house.listener(0), config, name);
    client.say(b"question");
    client.talk(&mut stage);
    let mut host = Host::new(host);
    host.talk(&mut client, &mut stage);
    host.say(b"answer");
    host.talk(&mut client, &mut stage);
    assert_eq!(
        host.received,
        b"question",
        "{:?} {:?}",
        client.fault,
        stage.closed()
    );
    assert_eq!(client.received, b"answer");
    client.tls.send_close_notify();
    host.tls.send_close_notify();
    host.talk(&mut client, &mut stage);
    let led = format!("{:?}", stage.net.dialled[0].address);
    (led, client.tls.handshake_kind().unwrap())
}

#[test]
fn passthrough_bytes_are_routed_unchanged_by_name_and_protocol() {
    let routes = "[[listener.route]]\nnames = ['*.b.test']\nbackend = 'b'\n\
                  [[listener.route]]\nalpn = ['acme-tls/1']\nbackend = 'b'";
    let house = house(routes, "");
    for version in [&TLS12, &TLS13] {
        let host = Arc::new(server(&house, "a.pem", &[version]));
        let config = Arc::new(house.client(version));
        let (led, _) = visit(&house, &config, &host, "a.test");
        assert!(led.contains(":8"), "{led}");
        let mut config = house.client(version);
        config.alpn_protocols = vec![b"acme-tls/1".to_vec()];
        let (led, _) = visit(&house, &Arc::new(config), &host, "a.test");
        assert!(led.contains(":91"), "{led}");
        let host = Arc::new(server(&house, "b.pem", &[version]));
        let config = Arc::new(house.client(version));
        let (led, _) = visit(&house, &config, &host, "x.b.test");
        assert!(led.contains(":91"), "{led}");
    }
}

#[test]
fn a_hello_may_arrive_one_byte_at_a_time() {
    let house = house("", "");
    let mut stage = house.stage();
    let config = Arc::new(house.client(&TLS13));
    let mut client = Client::enter(&mut stage, house.listener(0), &config, "a.test");
    let mut hello = Vec::new();
    client.tls.write_tls(&mut hello).unwrap();
    for byte in &hello {
        assert!(stage.is_handshaking() && stage.net.dialled.is_empty());
        client.end.write_all(&[*byte]).unwrap();
        stage.settle();
    }
    assert_eq!(stage.net.dialled[0].far.receive_all(), hello);
    assert_eq!(stage.counters.handshakes_ended.value(), 1);
}

#[test]
fn passthrough_rejects_invalid_hellos_like_a_terminating_listener() {
    let house = house("", "");
    for (bytes, reason, answer) in [
        (
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            CloseReason::PlainHttp,
            &b"HTTP/1.1 400 "[..],
        ),
        (b"SSH-2.0-x\r\n", CloseReason::NotTls, b""),
        (
            &[22, 3, 1, 0, 4, 2, 0, 0, 0],
            CloseReason::HandshakeFailed,
            &[21, 3, 3],
        ),
    ] {
        let mut stage = house.stage();
        let mut end = stage.admit(house.listener(0), []);
        end.write_all(bytes).unwrap();
        stage.settle();
        assert!(end.receive_all().starts_with(answer));
        drop(end);
        stage.settle();
        assert_eq!(stage.closed(), Some(reason));
    }
}

#[test]
fn names_without_a_route_can_be_rejected() {
    let routes = "unknown-names = 'refuse'\n[[listener.route]]\nnames = ['a.test']";
    let house = house(routes, "");
    for (name, led) in [("a.test", true), ("c.test", false)] {
        let mut stage = house.stage();
        let config = Arc::new(house.client(&TLS13));
        let mut client = Client::enter(&mut stage, house.listener(0), &config, name);
        client.talk(&mut stage);
        assert_eq!(stage.net.dialled.len(), usize::from(led), "{name}");
        drop(client);
        stage.settle();
        assert_eq!(stage.closed() == Some(CloseReason::UnknownName), !led);
    }
}

/// TLS for one name is passed through; TLS for all others is terminated.
fn both_on_one_port(listener: &str) -> House {
    House::new(&format!(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:443']\nbackend = 'own'\n\
         certificates = ['a.pem']\nalpn = ['h2']\nalpn-mismatch = 'refuse'\n{listener}\n\
         [[listener.route]]\nnames = ['*.b.test']\nmode = 'passthrough'\nbackend = 'farm'\n\
         [[backend]]\nname = 'own'\nproxy-header = 'v2'\n[[backend.server]]\naddress = '127.0.0.1:81'\n\
         [[backend]]\nname = 'farm'\n[[backend.server]]\naddress = '127.0.0.1:91'\n"
    ))
}

#[test]
fn one_port_can_terminate_one_name_and_pass_another_through() {
    let house = both_on_one_port("");
    for version in [&TLS12, &TLS13] {
        let config = Arc::new(house.client(version));
        let host = Arc::new(server(&house, "b.pem", &[version]));
        let (led, _) = visit(&house, &config, &host, "x.b.test");
        assert!(led.contains(":91"), "{led}");
        let mut stage = house.stage();
        let mut client = Client::enter(&mut stage, house.listener(0), &config, "a.test");
        client.say(b"question");
        client.talk(&mut stage);
        assert!(!client.tls.is_handshaking(), "{:?}", stage.closed());
        let got = stage.net.dialled[0].far.receive_all();
        let Ok(Some((header, len))) = decode(&got, Accept::Either) else {
            panic!("{got:?}");
        };
        assert!(header.tlvs.ssl.is_some(), "becket knows what was agreed on");
        assert_eq!(&got[len..], b"question");
    }
}

#[test]
fn tls_settings_of_a_route_do_not_affect_the_names_of_another_route() {
    let house = both_on_one_port("unknown-names = 'refuse'");
    // The TLS server decides about protocols: becket for one name, the farm for the other.
    let mut config = house.client(&TLS13);
    config.alpn_protocols = vec![b"acme-tls/1".to_vec()];
    let config = Arc::new(config);
    for (name, reason) in [
        ("x.b.test", None),
        ("a.test", Some(CloseReason::AlpnMismatch)),
        ("b.test", Some(CloseReason::UnknownName)),
    ] {
        let mut stage = house.stage();
        let mut client = Client::enter(&mut stage, house.listener(0), &config, name);
        client.talk(&mut stage);
        drop(client);
        stage.settle();
        let led = stage.net.dialled.len() == 1;
        assert_eq!(led, reason.is_none(), "{name}");
        assert!(reason.is_none() || stage.closed() == reason, "{name}");
    }
}

#[test]
fn the_proxy_header_contains_the_server_name() {
    let house = house("", "proxy-header = 'v2'");
    let mut stage = house.stage();
    let config = Arc::new(house.client(&TLS13));
    let mut client = Client::enter(&mut stage, house.listener(0), &config, "a.test");
    client.talk(&mut stage);
    let got = stage.net.dialled[0].far.receive_all();
    let Ok(Some((header, len))) = decode(&got, Accept::Either) else {
        panic!("{got:?}");
    };
    assert_eq!(header.tlvs.authority, Some("a.test"));
    assert_eq!(
        header.tlvs.ssl, None,
        "nothing is known of what will be agreed on"
    );
    assert_eq!(got[len], 22, "then the hello");
}

#[test]
fn a_session_id_is_routed_to_the_server_that_issued_it() {
    let house = house("", "stick = 'tls-session'");
    // Any server uses this configuration, so the session belongs to the server that is dialled.
    let host = Arc::new(server(&house, "a.pem", &[&TLS12]));
    let config = Arc::new(without_tickets(house.client(&TLS12)));
    let (home, kind) = visit(&house, &config, &host, "a.test");
    assert_eq!(kind, HandshakeKind::Full);
    for _ in 0..4 {
        let (led, kind) = visit(&house, &config, &host, "a.test");
        assert_eq!((led, kind), (home.clone(), HandshakeKind::Resumed));
    }
}

#[test]
fn a_session_id_chosen_by_the_client_is_not_learnt() {
    let house = house("", "stick = 'tls-session'");
    let host = Arc::new(server(&house, "a.pem", &[&TLS13]));
    // The client's TLS 1.3 hello has an ID that the server must send back.
    let mut stage = house.stage();
    let config = Arc::new(house.client(&TLS13));
    let mut led = Vec::new();
    let mut client = Client::enter(&mut stage, house.listener(0), &config, "a.test");
    let mut hello = Vec::new();
    client.tls.write_tls(&mut hello).unwrap();
    for _ in 0..6 {
        let mut stage = house.stage();
        let mut end = stage.admit(house.listener(0), [crate::script::net::Plan::Accept]);
        end.write_all(&hello).unwrap();
        let mut host = Host::new(&host);
        host.settle(&mut stage);
        led.push(format!("{:?}", stage.net.dialled[0].address));
    }
    led.sort();
    led.dedup();
    assert_eq!(led.len(), 3, "all servers in turn");
}

/// Tickets in the format of a becket with node 2, but without its seal.
#[derive(Debug)]
struct NodeTwo;

impl ProducesTickets for NodeTwo {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        3600
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let header = TicketHeader {
            version: TicketHeader::VERSION,
            key: KeyId {
                secret: SecretId(1),
                epoch: Epoch(2),
            },
            policy: TicketPolicy(3),
            node: NodeId(2),
            nonce: [4; 12],
        };
        Some([&header.encode()[..], plain].concat())
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        ticket.get(TicketHeader::LEN..).map(<[u8]>::to_vec)
    }
}

#[test]
fn a_ticket_is_routed_to_the_node_that_issued_it() {
    let house = house("", "");
    for version in [&TLS12, &TLS13] {
        let mut host = server(&house, "a.pem", &[version]);
        host.ticketer = Arc::new(NodeTwo);
        let host = Arc::new(host);
        let config = Arc::new(house.client(version));
        visit(&house, &config, &host, "a.test");
        for _ in 0..4 {
            let (led, kind) = visit(&house, &config, &host, "a.test");
            assert!(led.contains(":82"), "{led}");
            assert_eq!(kind, HandshakeKind::Resumed);
        }
    }
}

#[test]
fn a_sticky_server_that_refuses_connections_is_skipped() {
    let house = house("", "stick = 'tls-session'");
    let host = Arc::new(server(&house, "a.pem", &[&TLS12]));
    let config = Arc::new(without_tickets(house.client(&TLS12)));
    visit(&house, &config, &host, "a.test");
    let mut stage: Stage = house.stage();
    let refuse = crate::script::net::Plan::Refuse(std::io::ErrorKind::ConnectionRefused);
    let plans = [refuse, crate::script::net::Plan::Accept];
    let mut client = Client::enter_before(&mut stage, house.listener(0), &config, "a.test", plans);
    client.talk(&mut stage);
    let mut host = Host::new(&host);
    host.talk(&mut client, &mut stage);
    assert!(!client.tls.is_handshaking());
}
