//! Tests of sessions: by ID, by ticket, by PSK, and never across policies.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use crate::script::net::Plan;
use crate::script::stage::Stage;
use becket_log::facts::ResumedBy;
use becket_proto::close_reason::CloseReason;
use becket_tls::resumption::{Offer, Resumption};
use rustls::ClientConfig;
use rustls::version::{TLS12, TLS13};

use crate::common::{BACKEND, Client, House, house, server_got, server_says, without_tickets};

/// Makes a handshake, and returns how it was resumed.
fn visit(
    house: &House,
    stage: &mut Stage,
    listener: usize,
    config: &Arc<ClientConfig>,
) -> Option<ResumedBy> {
    let mut client = Client::enter(stage, house.listener(listener), config, "a.test");
    client.talk(stage);
    assert_eq!(client.fault, None);
    assert!(!client.tls.is_handshaking());
    stage.resumed_by()
}

fn twice(house: &House, config: ClientConfig) -> (Option<ResumedBy>, Option<ResumedBy>) {
    let config = Arc::new(config);
    let mut stage = house.stage();
    let first = visit(house, &mut stage, 0, &config);
    (first, visit(house, &mut stage, 0, &config))
}

const TWO_POLICIES: &str = "[[listener]]\nname = 'one'\nbind = ['127.0.0.1:443']\n\
     backend = 'app'\ncertificates = ['a.pem']\npolicy = 'one'\n\
     [[listener]]\nname = 'two'\nbind = ['127.0.0.1:444']\n\
     backend = 'app'\ncertificates = ['a.pem']\npolicy = 'two'\n\
     [[policy]]\nname = 'one'\ntls12-tickets = true\n\
     [[policy]]\nname = 'two'\ntls12-tickets = true\n";

#[test]
fn tls12_resumes_by_id() {
    let policy = "[[policy]]\nname = 'p'\ntls12-tickets = false\n";
    let house = house(&format!("policy = 'p'\n{policy}"));
    for config in [house.client(&TLS12), without_tickets(house.client(&TLS12))] {
        assert_eq!(twice(&house, config), (None, Some(ResumedBy::Id)));
    }
}

#[test]
fn tls12_resumes_by_ticket_if_tickets_are_on() {
    let house = House::new(&format!("{TWO_POLICIES}{BACKEND}"));
    let config = house.client(&TLS12);
    assert_eq!(twice(&house, config), (None, Some(ResumedBy::Ticket)));
    let config = without_tickets(house.client(&TLS12));
    assert_eq!(twice(&house, config), (None, Some(ResumedBy::Id)));
}

#[test]
fn tls13_resumes_repeatedly_by_psk() {
    let house = house("");
    let config = Arc::new(house.client(&TLS13));
    let mut stage = house.stage();
    assert_eq!(visit(&house, &mut stage, 0, &config), None);
    for _ in 0..5 {
        assert_eq!(visit(&house, &mut stage, 0, &config), Some(ResumedBy::Psk));
    }
}

#[test]
fn a_session_is_not_resumed_under_another_policy() {
    let house = House::new(&format!("{TWO_POLICIES}{BACKEND}"));
    for (offer, config) in [
        (Offer::Psk, house.client(&TLS13)),
        (Offer::Ticket, house.client(&TLS12)),
        (Offer::Id, without_tickets(house.client(&TLS12))),
    ] {
        let config = Arc::new(config);
        let mut stage = house.stage();
        assert_eq!(visit(&house, &mut stage, 0, &config), None);
        assert_eq!(visit(&house, &mut stage, 1, &config), None);
        let others = stage
            .counters
            .resumptions
            .of(offer, Resumption::OtherPolicy);
        assert_eq!(others.value(), 1);
        assert!(
            visit(&house, &mut stage, 1, &config).is_some(),
            "its own does"
        );
    }
}

#[test]
fn sessions_older_than_max_age_are_not_resumed() {
    let mut house = house("");
    Arc::make_mut(&mut house.config.file).sessions.max_age = Some(Duration::from_secs(60));
    for config in [house.client(&TLS13), house.client(&TLS12)] {
        let config = Arc::new(config);
        let mut stage = house.stage();
        assert_eq!(visit(&house, &mut stage, 0, &config), None);
        stage.wait(Duration::from_secs(40));
        assert!(visit(&house, &mut stage, 0, &config).is_some());
        stage.wait(Duration::from_secs(40));
        // Tickets issued at the resumption are as old as the full handshake.
        assert_eq!(visit(&house, &mut stage, 0, &config), None);
    }
}

#[test]
fn a_ticket_survives_one_rotation_but_not_two() {
    let mut house = house("");
    let config = Arc::new(house.client(&TLS13));
    let mut stage = house.stage();
    visit(&house, &mut stage, 0, &config);
    let period = house.config.file.ticket_rotation();
    let rotate = |house: &mut House, stage: &mut Stage| {
        stage.wait(period);
        assert!(house.rotation.tick(period, stage.now).unwrap());
    };
    rotate(&mut house, &mut stage);
    assert_eq!(visit(&house, &mut stage, 0, &config), Some(ResumedBy::Psk));
    let config = Arc::new(house.client(&TLS13));
    visit(&house, &mut stage, 0, &config);
    rotate(&mut house, &mut stage);
    rotate(&mut house, &mut stage);
    assert_eq!(visit(&house, &mut stage, 0, &config), None);
}

#[test]
fn tls13_tickets_are_sent_with_the_answer_to_a_request() {
    let house = house("");
    let (mut stage, mut client) = asking(&house);
    assert_eq!(client.tls.tls13_tickets_received(), 0);
    server_says(&mut stage, b"answer");
    client.talk(&mut stage);
    assert_eq!(client.tls.tls13_tickets_received(), 2);
    assert_eq!(client.received, b"answer");
    // Nagle's algorithm may delay the request until they are sent, but no longer.
    let (_stage, client) = house.relaying(&TLS13);
    assert_eq!(client.tls.tls13_tickets_received(), 2);
}

/// Connects a client whose request arrives with its Finished.
fn asking(house: &House) -> (Stage, Client) {
    let mut stage = house.stage();
    let config = Arc::new(house.client(&TLS13));
    let mut client = Client::enter(&mut stage, house.listener(0), &config, "a.test");
    client.say(b"request");
    assert_eq!(client.talk(&mut stage), None);
    assert_eq!(server_got(&mut stage), b"request");
    (stage, client)
}

#[test]
fn tls13_tickets_are_sent_even_if_the_answer_is_late() {
    let house = house("");
    let (mut stage, mut client) = asking(&house);
    stage.wait(Duration::from_millis(50));
    assert_eq!(client.talk(&mut stage), None);
    assert_eq!(client.tls.tls13_tickets_received(), 2);
    // The connection is idle from now on.
    stage.wait(house.config.file.timeouts.idle);
    client.talk(&mut stage);
    drop(client);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::IdleTimeout));
}

#[test]
fn further_client_data_does_not_delay_tls13_tickets() {
    let house = house("");
    let (mut stage, mut client) = asking(&house);
    for _ in 0..2 {
        stage.wait(Duration::from_millis(30));
        client.say(b"more");
        assert_eq!(client.talk(&mut stage), None);
    }
    assert_eq!(client.tls.tls13_tickets_received(), 2);
}

#[test]
fn tls13_tickets_are_sent_before_the_end_if_all_connects_fail() {
    let house = house("");
    let mut stage = house.stage();
    let config = Arc::new(house.client(&TLS13));
    let mut client = Client::enter(&mut stage, house.listener(0), &config, "a.test");
    client.say(b"request");
    let refuse = Plan::Refuse(ErrorKind::ConnectionRefused);
    stage.net.plans = [refuse; 8].into();
    client.talk(&mut stage);
    assert_eq!(client.tls.tls13_tickets_received(), 2);
    assert!(client.end.watch().is_ended() && !client.closed);
}
