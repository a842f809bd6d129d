//! Tests of the way from keys to a server: the next server after a failure, and which side sends
//! first.

use std::io::ErrorKind;
use std::sync::Arc;

use crate::script::net::Plan;
use crate::script::stage::Stage;
use becket_proto::close_reason::CloseReason;
use becket_proto::proxy_header::{Accept, decode};
use rustls::version::{TLS12, TLS13};

use crate::common::{BACKEND, Client, House, house, server_got, server_says};

fn enter(house: &House, plans: impl IntoIterator<Item = Plan>) -> (Stage, Client) {
    let mut stage = house.stage();
    let config = Arc::new(house.client(&TLS13));
    let mut client = Client::enter_before(&mut stage, house.listener(0), &config, "a.test", plans);
    client.say(b"hello");
    client.talk(&mut stage);
    (stage, client)
}

#[test]
fn a_server_that_refuses_at_once_is_skipped() {
    let refuse = Plan::Refuse(ErrorKind::ConnectionRefused);
    let (mut stage, _client) = enter(&house(""), [refuse, Plan::Accept]);
    assert_eq!(server_got(&mut stage), b"hello");
    assert_eq!(stage.counters.connect_failures.value(), 1);
    let server = stage.record().unwrap().facts.server;
    assert_eq!(server.as_deref(), Some("127.0.0.1:82"));
}

#[test]
fn a_server_that_refuses_later_is_skipped_without_data_loss() {
    let (mut stage, mut client) = enter(&house(""), [Plan::Later, Plan::Accept]);
    assert_eq!(stage.net.dialled.len(), 1);
    stage.net.dialled[0].near.fail(ErrorKind::ConnectionRefused);
    client.talk(&mut stage);
    assert_eq!(stage.net.dialled.len(), 2);
    assert_eq!(server_got(&mut stage), b"hello");
}

#[test]
fn a_server_that_hangs_is_skipped_at_the_connect_timeout() {
    let house = house("");
    let (mut stage, mut client) = enter(&house, [Plan::Later, Plan::Accept]);
    stage.wait(house.config.file.timeouts.connect);
    client.talk(&mut stage);
    assert_eq!(server_got(&mut stage), b"hello");
}

#[test]
fn a_client_without_a_reachable_server_receives_no_close_notify() {
    let house = house("");
    let refuse = Plan::Refuse(ErrorKind::ConnectionRefused);
    let (mut stage, client) = enter(&house, [refuse, refuse]);
    assert!(!client.closed && client.end.watch().is_ended());
    drop(client);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::ConnectFailed));

    let (mut stage, client) = enter(&house, [Plan::Later, Plan::Later]);
    for _ in 0..2 {
        stage.wait(house.config.file.timeouts.connect);
        stage.settle();
    }
    assert!(!client.closed && client.end.watch().is_ended());
    drop(client);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::ConnectTimeout));
}

#[test]
fn a_server_may_send_first() {
    let house = house("");
    for version in [&TLS12, &TLS13] {
        let mut stage = house.stage();
        let config = Arc::new(house.client(version));
        let plans = [Plan::Later];
        let mut client =
            Client::enter_before(&mut stage, house.listener(0), &config, "a.test", plans);
        client.talk(&mut stage);
        stage.net.dialled[0].near.establish();
        server_says(&mut stage, b"220 ready\r\n");
        client.talk(&mut stage);
        assert_eq!(client.received, b"220 ready\r\n");
    }
}

#[test]
fn a_proxy_header_comes_before_everything_else() {
    for version in ["v1", "v2"] {
        let backend = BACKEND.replacen(
            "name = 'app'",
            &format!("name = 'app'\nproxy-header = '{version}'"),
            1,
        );
        let house = House::new(&format!(
            "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:443']\nbackend = 'app'\n\
             certificates = ['a.pem']\n{backend}"
        ));
        for plan in [Plan::Accept, Plan::Later] {
            let (mut stage, mut client) = enter(&house, [plan]);
            stage.net.dialled[0].near.establish();
            client.talk(&mut stage);
            let got = server_got(&mut stage);
            let Ok(Some((header, len))) = decode(&got, Accept::Either) else {
                panic!("{version}: {got:?}");
            };
            let shown = format!("{:?}", header.endpoints);
            assert!(
                shown.contains("192.0.2.1") && shown.contains("443"),
                "{shown}"
            );
            assert_eq!(&got[len..], b"hello");
        }
    }
}

#[test]
fn source_addresses_alternate_and_exhausted_ones_are_skipped() {
    let backend = BACKEND.replacen(
        "name = 'app'",
        "name = 'app'\nsource = ['127.0.0.1', '127.0.0.2']",
        1,
    );
    let house = House::new(&format!(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:443']\nbackend = 'app'\n\
         certificates = ['a.pem']\n{backend}"
    ));
    let source = |stage: &Stage| stage.net.dialled[0].source.unwrap().to_string();
    let (stage, _client) = enter(&house, [Plan::Accept]);
    assert_eq!(source(&stage), "127.0.0.1");
    let used_up = Plan::Refuse(ErrorKind::AddrNotAvailable);
    let (stage, _client) = enter(&house, [used_up, Plan::Accept]);
    assert_eq!(source(&stage), "127.0.0.1");
    assert_eq!(stage.counters.connect_failures.value(), 0);
    let (stage, _client) = enter(&house, [used_up, used_up, Plan::Accept]);
    assert_eq!(stage.counters.connect_failures.value(), 1);
}
