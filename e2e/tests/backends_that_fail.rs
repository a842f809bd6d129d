//! Servers that refuse, hang, or go away: the next one is tried, and where there is none the
//! client can tell that it got nothing.

use std::io::{Read, Write};
use std::net::SocketAddr;

use becket_e2e::{
    Backend, Becket, Client, Place, REQUEST, Shape, Trust, fresh_address, read_to_end, reset, until,
};
use rustls::version::{TLS12, TLS13};
use socket2::{Domain, Socket, Type};

/// A listening socket whose queue is full: a SYN to it is dropped.
fn hanging() -> (SocketAddr, Vec<Socket>) {
    let address = fresh_address();
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    listener.bind(&address.into()).unwrap();
    listener.listen(0).unwrap();
    let mut kept = vec![listener];
    until("the queue is full", || {
        let probe = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let patience = std::time::Duration::from_millis(300);
        let is_full = probe.connect_timeout(&address.into(), patience).is_err();
        kept.push(probe);
        is_full.then_some(())
    });
    (address, kept)
}

#[track_caller]
fn refused(becket: &Becket, place: &Place, reason: &str) {
    for version in [&TLS12, &TLS13] {
        let mut client = Client::connect(becket.web, &Trust::only(place, version)).unwrap();
        // It may be over before the request is out.
        let _sent = client.write_all(REQUEST);
        let (answer, end) = read_to_end(&mut client);
        assert!(answer.is_empty());
        assert!(end.is_err(), "nothing passed for a whole answer");
        drop(client);
        assert_eq!(becket.next_reason(), reason);
    }
}

#[test]
fn a_server_that_refuses_gives_way_to_the_next() {
    let place = Place::new();
    let (dead, backend) = (fresh_address(), Backend::http("alive"));
    let becket = Becket::start(&place, &Shape::new(dead).server(backend.address));
    let trust = Trust::new(&place);
    for _ in 0..6 {
        let answer = Client::connect(becket.web, &trust).unwrap().ask(REQUEST);
        assert!(answer.unwrap().ends_with(b"alive"));
        let line = becket.next_access();
        assert_eq!(line["server"], backend.address.to_string());
    }
    assert!(becket.metrics().sum("becket_connect_failures_total", &[]) > 0.0);
}

#[test]
fn when_every_server_refuses_the_client_sees_no_clean_end() {
    let place = Place::new();
    let shape = Shape::new(fresh_address()).server(fresh_address());
    let becket = Becket::start(&place, &shape);
    refused(&becket, &place, "connect-failed");
    becket.says("refused");
    becket.idle();
}

#[test]
fn a_unix_socket_that_is_not_there_is_a_refusal() {
    let place = Place::new();
    let becket = Becket::start(&place, &Shape::new(place.text("nobody.sock")));
    refused(&becket, &place, "connect-failed");
}

#[test]
fn a_server_that_hangs_costs_the_connect_timeout() {
    let place = Place::new();
    let (hangs, _kept) = hanging();
    let shape = Shape::new(hangs).timeouts("connect = \"500ms\"");
    let becket = Becket::start(&place, &shape);
    refused(&becket, &place, "connect-timeout");
    for line in becket.access() {
        let total = line["total_us"].as_u64().unwrap();
        assert!(total >= 450_000, "{line}");
    }
}

#[test]
fn a_server_that_hangs_gives_way_to_the_next() {
    let place = Place::new();
    let ((hangs, _kept), backend) = (hanging(), Backend::http("alive"));
    let shape = Shape::new(hangs)
        .server(backend.address)
        .timeouts("connect = \"1s\"");
    let becket = Becket::start(&place, &shape);
    let trust = Trust::new(&place);
    for _ in 0..4 {
        let answer = Client::connect(becket.web, &trust).unwrap().ask(REQUEST);
        assert!(answer.unwrap().ends_with(b"alive"));
    }
}

#[test]
fn a_server_that_accepts_and_resets_is_a_reset() {
    let place = Place::new();
    let backend = Backend::new(|mut stream| {
        stream.read_exact(&mut [0; REQUEST.len()])?;
        reset(stream);
        Ok(())
    });
    let becket = Becket::start(&place, &Shape::new(backend.address));
    refused(&becket, &place, "server-reset");
    becket.idle();
}

#[test]
fn a_server_that_closes_at_once_is_an_empty_answer_with_a_clean_end() {
    let place = Place::new();
    let backend = Backend::new(|mut stream| {
        stream.read_exact(&mut [0; REQUEST.len()])?;
        Ok(())
    });
    let becket = Becket::start(&place, &Shape::new(backend.address));
    let mut client = Client::connect(becket.web, &Trust::new(&place)).unwrap();
    assert_eq!(client.ask(REQUEST).unwrap(), b"");
    drop(client);
    assert_eq!(becket.next_reason(), "finished");
}

#[test]
fn a_server_that_comes_back_is_used_again() {
    let place = Place::new();
    let at = fresh_address();
    let becket = Becket::start(&place, &Shape::new(at));
    refused(&becket, &place, "connect-failed");
    let backend = Backend::at(at, |stream| becket_e2e::answer_all(stream, "back"));
    let answer = Client::connect(becket.web, &Trust::new(&place))
        .unwrap()
        .ask(REQUEST);
    assert!(answer.unwrap().ends_with(b"back"));
    drop(backend);
}
