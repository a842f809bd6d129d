//! Tests of the PROXY header before the hello: trusted senders, its effects, and rejected headers.

use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::script::net::Plan;
use crate::script::stage::Stage;
use becket_config::process::Admission;
use becket_proto::close_reason::CloseReason;
use becket_proto::networks::Network;
use becket_proto::proxy_header::{Accept, Endpoints, Format, ProxyHeader, Tlvs, decode};
use becket_tls::admission::{SharedAdmission, WorkerAdmission};
use rustls::version::{TLS12, TLS13};

use crate::common::{Client, House, server_got};

/// Returns a house; the scripted client connects from 192.0.2.1.
fn house(accept: &str, trusted: &str) -> House {
    House::new(&format!(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:443']\nbackend = 'app'\n\
         certificates = ['a.pem']\naccept-proxy = '{accept}'\ntrusted-networks = ['{trusted}']\n\
         [[backend]]\nname = 'app'\nproxy-header = 'v1'\n\
         [[backend.server]]\naddress = '127.0.0.1:81'\n"
    ))
}

fn enter(house: &House, stage: &mut Stage) -> Client {
    let config = Arc::new(house.client(&TLS13));
    Client::enter(stage, house.listener(0), &config, "a.test")
}

fn v2(endpoints: Endpoints) -> Vec<u8> {
    let header = ProxyHeader {
        endpoints,
        tlvs: Tlvs {
            unique_id: Some(b"one"),
            authority: Some("elsewhere"),
            ..Tlvs::default()
        },
    };
    let mut out = Vec::new();
    header.encode(Format::V2, &mut out).unwrap();
    out
}

fn claimed() -> Endpoints {
    let (client, becket) = ("[2001:db8::7]:4711", "[2001:db8::1]:443");
    Endpoints::tcp(client.parse().unwrap(), becket.parse().unwrap())
}

/// Returns the client's address in the log and the server's PROXY header, after the handshake.
fn served(stage: &mut Stage, client: &mut Client) -> (String, String) {
    client.talk(stage);
    assert!(!client.tls.is_handshaking(), "{:?}", stage.closed());
    let header = String::from_utf8(server_got(stage)).unwrap();
    (stage.record().unwrap().facts.client.to_string(), header)
}

#[test]
fn the_address_from_a_trusted_proxy_replaces_the_socket_address() {
    let onwards = "PROXY TCP6 2001:db8::7 2001:db8::1 4711 443\r\n";
    let text = onwards.as_bytes().to_vec();
    for (accept, header) in [
        ("v1", text.clone()),
        ("v2", v2(claimed())),
        ("any", text),
        ("any", v2(claimed())),
    ] {
        for piece in [1, 7, 10_000] {
            let house = house(accept, "192.0.2.0/24");
            let mut stage = house.stage();
            let mut client = enter(&house, &mut stage);
            for piece in header.chunks(piece) {
                assert!(stage.is_handshaking());
                client.end.write_all(piece).unwrap();
                assert!(stage.settle());
            }
            let seen = served(&mut stage, &mut client);
            assert_eq!(seen, ("[2001:db8::7]:4711".into(), onwards.into()));
        }
    }
}

#[test]
fn a_header_and_a_hello_may_arrive_together() {
    let house = house("v2", "192.0.2.1");
    let mut stage = house.stage();
    let mut client = enter(&house, &mut stage);
    let mut bytes = v2(claimed());
    client.tls.write_tls(&mut bytes).unwrap();
    client.end.write_all(&bytes).unwrap();
    let (seen, _) = served(&mut stage, &mut client);
    assert_eq!(seen, "[2001:db8::7]:4711");
    assert_eq!(
        stage.record().unwrap().facts.server_name.as_deref(),
        Some("a.test")
    );
}

#[test]
fn a_header_without_addresses_keeps_the_socket_addresses() {
    // Family and addresses of UDP over IPv4, and of unix sockets.
    let raw = |family: u8, addresses: &[u8]| {
        let mut header = v2(Endpoints::Local);
        header[12..16].copy_from_slice(&[0x21, family, 0, addresses.len() as u8]);
        [&header, addresses].concat()
    };
    let headers = [
        b"PROXY UNKNOWN\r\n".to_vec(),
        b"PROXY UNKNOWN ffff:f... whatever\r\n".to_vec(),
        v2(Endpoints::Local),
        v2(Endpoints::Unknown),
        raw(0x12, &[9; 12]),
        raw(0x31, &[9; 216]),
    ];
    for header in headers {
        let house = house("any", "192.0.2.1");
        let mut stage = house.stage();
        let mut client = enter(&house, &mut stage);
        client.end.write_all(&header).unwrap();
        let (seen, onwards) = served(&mut stage, &mut client);
        assert_eq!(seen, "192.0.2.1:50000");
        assert_eq!(onwards, "PROXY TCP4 192.0.2.1 127.0.0.1 50000 443\r\n");
    }
}

#[test]
fn untrusted_senders_and_missing_proxy_headers_are_rejected() {
    let strange = house("any", "198.51.100.0/24");
    let mut stage = strange.stage();
    let mut client = enter(&strange, &mut stage);
    client.end.write_all(&v2(claimed())).unwrap();
    client.talk(&mut stage);
    assert_eq!(stage.closed(), Some(CloseReason::UntrustedProxy));
    assert_eq!(
        stage.record().unwrap().client_traffic.received,
        0,
        "not a byte was read"
    );

    let trusted = house("any", "192.0.2.1");
    let mut client = enter(&trusted, &mut stage);
    client.talk(&mut stage);
    assert_eq!(
        stage.closed(),
        Some(CloseReason::ProxyHeader),
        "a hello is no header"
    );
    assert_eq!(
        stage.counters.handshakes_begun.value(),
        stage.counters.handshakes_ended.value()
    );
}

#[test]
fn an_invalid_header_is_rejected_at_once() {
    let other = v2(claimed());
    let [mut command, mut family] = [(); 2].map(|()| other.clone());
    command[12] = 0x2f;
    family[13] = 0x51;
    for (accept, header) in [
        ("v1", other),
        ("v2", b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n".to_vec()),
        ("any", b"PROXY TCP4 192.0.2.1 192.0.2.2 1\r\n".to_vec()),
        ("any", [b'P'; 200].to_vec()),
        ("any", [b"PROXY TCP4 ".to_vec(), vec![b'1'; 200]].concat()),
        ("any", b"GET / HTTP/1.0\r\n\r\n".to_vec()),
        ("any", vec![0; 64]),
        ("any", command),
        ("any", family),
    ] {
        let house = house(accept, "192.0.2.1");
        let mut stage = house.stage();
        let mut client = enter(&house, &mut stage);
        client.end.write_all(&header).unwrap();
        assert!(stage.settle());
        assert_eq!(
            stage.closed(),
            Some(CloseReason::ProxyHeader),
            "{accept} {header:?}"
        );
        assert!(stage.net.dialled.is_empty());
    }
}

#[test]
fn an_incomplete_header_ends_at_the_hello_timeout() {
    let house = house("any", "192.0.2.1");
    let mut stage = house.stage();
    let mut client = enter(&house, &mut stage);
    client.end.write_all(b"PROXY TCP4 192").unwrap();
    assert!(stage.settle());
    let limit = stage.timeouts.hello;
    stage.wait(limit - Duration::from_millis(1));
    stage.settle();
    assert_eq!(stage.closed(), None);
    stage.wait(Duration::from_millis(1));
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::HelloTimeout));
}

#[test]
fn an_early_close_is_classified_by_the_received_proxy_header() {
    for (sent, reason) in [
        (&b""[..], CloseReason::HealthCheck),
        (b"PROXY TCP4", CloseReason::ProxyHeader),
        (b"PROXY UNKNOWN\r\n", CloseReason::HealthCheck),
        (&v2(Endpoints::Local), CloseReason::HealthCheck),
        (&v2(claimed()), CloseReason::HealthCheck),
        (b"PROXY UNKNOWN\r\n\x16", CloseReason::HandshakeAborted),
    ] {
        let house = house("any", "192.0.2.1");
        let mut stage = house.stage();
        let mut client = enter(&house, &mut stage);
        client.end.write_all(sent).unwrap();
        assert!(stage.settle());
        drop(client);
        assert!(stage.settle());
        assert_eq!(stage.closed(), Some(reason));
    }
    let house = house("any", "192.0.2.1");
    let mut stage = house.stage();
    let mut client = enter(&house, &mut stage);
    client.end.write_all(b"PROXY TCP4").unwrap();
    assert!(stage.settle());
    client.end.reset();
    assert!(stage.settle());
    assert_eq!(stage.closed(), Some(CloseReason::ProxyHeader));
}

#[test]
fn network_lists_apply_to_the_address_in_the_header() {
    let deny = |network: &str| {
        let mut house = house("any", "192.0.2.1");
        let listener = Arc::get_mut(&mut house.config.listeners[0]).expect("not shared");
        let network: Network = network.parse().unwrap();
        listener.deny = [network].into_iter().collect();
        house
    };
    for (denied, header, is_served) in [
        ("2001:db8::/32", v2(claimed()), false),
        ("192.0.2.0/24", v2(claimed()), true),
        ("192.0.2.0/24", v2(Endpoints::Unknown), false),
        // The proxy itself, which checks whether becket is alive.
        ("192.0.2.0/24", v2(Endpoints::Local), true),
    ] {
        let house = deny(denied);
        let mut stage = house.stage();
        let mut client = enter(&house, &mut stage);
        client.end.write_all(&header).unwrap();
        client.talk(&mut stage);
        let reason = stage.closed();
        assert_eq!(reason.is_none(), is_served, "{denied}: {reason:?}");
        assert!(is_served || reason == Some(CloseReason::DeniedNetwork));
    }
}

#[test]
fn a_plain_listener_expects_the_header() {
    let house = House::new(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:443']\nbackend = 'app'\ntls = false\n\
         accept-proxy = 'v2'\ntrusted-networks = ['192.0.2.1']\n\
         [[backend]]\nname = 'app'\nproxy-header = 'v2'\nproxy-tlvs = ['unique-id']\n\
         [[backend.server]]\naddress = '127.0.0.1:81'\n",
    );
    let mut stage = house.stage();
    let mut client = stage.admit(house.listener(0), [Plan::Accept]);
    assert!(stage.settle());
    assert!(stage.net.dialled.is_empty(), "nobody is connected before");
    client.write_all(&v2(claimed())).unwrap();
    client.write_all(b"and this").unwrap();
    assert!(stage.settle());
    let got = server_got(&mut stage);
    let Ok(Some((header, len))) = decode(&got, Accept::V2) else {
        panic!("not a header");
    };
    assert_eq!(header.endpoints, claimed());
    assert_eq!(
        header.tlvs.unique_id,
        Some(&b"one"[..]),
        "the name that it came with"
    );
    assert_eq!(header.tlvs.ssl, None, "no TLS ended here");
    assert_eq!(&got[len..], b"and this");
    assert_eq!(stage.record().unwrap().facts.unique_id(), Some(&b"one"[..]));
    assert!(!stage.is_handshaking());
    assert_eq!(stage.counters.handshakes_begun.value(), 0);
}

#[test]
fn half_open_handshakes_are_counted_by_the_address_of_the_header() {
    let house = house("any", "192.0.2.1");
    let rules = Admission {
        half_open_per_source: 1,
        ..house.config.file.admission.clone()
    };
    let admission = WorkerAdmission::new(&Arc::new(SharedAdmission::new(1)), &rules, None);
    let come = |source: &str| {
        let mut stage = house.stage();
        stage.admission = Rc::clone(&admission);
        let mut client = enter(&house, &mut stage);
        let header = format!("PROXY TCP4 {source} 192.0.2.9 5 443\r\n");
        client.end.write_all(header.as_bytes()).unwrap();
        assert!(stage.settle());
        (stage.closed(), stage, client)
    };
    let (none, stage, client) = come("198.51.100.1");
    assert_eq!(none, None);
    assert_eq!(come("198.51.100.1").0, Some(CloseReason::SourceHalfOpen));
    assert_eq!(come("198.51.100.2").0, None);
    drop((stage, client));
    assert_eq!(come("198.51.100.1").0, None);
}

/// The certificate of the claimed address has its own policy, with TLS 1.2 only.
#[test]
fn clients_without_sni_get_the_certificate_of_the_destination_address() {
    let house = House::new(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:443']\nbackend = 'app'\n\
         certificates = [{ chain = 'address.pem', key = 'address.pem', policy = 'own' }, 'a.pem']\n\
         accept-proxy = 'v2'\ntrusted-networks = ['192.0.2.1']\n\
         [[policy]]\nname = 'own'\nversions = ['1.2']\n\
         [[backend]]\nname = 'app'\n[[backend.server]]\naddress = '127.0.0.1:81'\n",
    );
    let visit = |header: Vec<u8>, version, name: &str| {
        let mut config = house.client(version);
        config.enable_sni = false;
        let mut stage = house.stage();
        let mut client = Client::enter(&mut stage, house.listener(0), &Arc::new(config), name);
        client.end.write_all(&header).unwrap();
        client.talk(&mut stage);
        // The client has verified the name.
        !client.tls.is_handshaking()
    };
    assert!(visit(v2(claimed()), &TLS12, "2001:db8::1"));
    assert!(
        !visit(v2(claimed()), &TLS13, "2001:db8::1"),
        "another policy"
    );
    assert!(!visit(v2(claimed()), &TLS12, "a.test"));
    let elsewhere = Endpoints::tcp(
        "192.0.2.9:4711".parse().unwrap(),
        "192.0.2.8:443".parse().unwrap(),
    );
    for header in [v2(elsewhere), v2(Endpoints::Local)] {
        assert!(visit(header, &TLS13, "a.test"), "the default");
    }
}
