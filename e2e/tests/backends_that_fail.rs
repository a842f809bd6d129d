//! Servers that refuse, hang, or go away: the next one is tried, and where there is none the
//! client can tell that it got nothing.

use std::io::Write;

use becket_e2e::{
    Backend, Becket, Client, Place, REQUEST, Shape, Trust, fresh_address, read_to_end,
};
use rustls::version::{TLS12, TLS13};

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
#[ignore = "slow: .ci/run test"]
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
