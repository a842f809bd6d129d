//! Tests of admission: a full handshake costs a token when the private key would be used; a
//! resumption costs none.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::script::stage::Stage;
use becket_proto::close_reason::CloseReason;
use becket_tls::admission::{SharedAdmission, WorkerAdmission};
use rustls::ClientConfig;
use rustls::version::{TLS12, TLS13};

use crate::common::{BACKEND, Client, House, without_tickets};

const TWO_POLICIES: &str = "[[listener]]\nname = 'one'\nbind = ['127.0.0.1:443']\n\
     backend = 'app'\ncertificates = ['a.pem']\npolicy = 'one'\n\
     [[listener]]\nname = 'two'\nbind = ['127.0.0.1:444']\n\
     backend = 'app'\ncertificates = ['a.pem']\npolicy = 'two'\n\
     [[policy]]\nname = 'one'\n[[policy]]\nname = 'two'\n";

fn house(admission: &str) -> (House, Stage, Arc<SharedAdmission>) {
    let house = House::new(&format!(
        "{TWO_POLICIES}{BACKEND}[admission]\n{admission}\n"
    ));
    let admission = Arc::new(SharedAdmission::new(1));
    let mut stage = house.stage();
    stage.admission = WorkerAdmission::new(&admission, &house.config.file.admission, None);
    (house, stage, admission)
}

fn enter(house: &House, stage: &mut Stage, listener: usize, config: &Arc<ClientConfig>) -> Client {
    let mut client = Client::enter(stage, house.listener(listener), config, "a.test");
    client.talk(stage);
    client
}

#[track_caller]
fn comes_in(house: &House, stage: &mut Stage, listener: usize, config: &Arc<ClientConfig>) -> bool {
    let client = enter(house, stage, listener, config);
    assert_eq!(stage.closed(), None);
    assert!(!client.tls.is_handshaking());
    stage.resumed_by().is_some()
}

#[track_caller]
fn is_shed(
    house: &House,
    stage: &mut Stage,
    listener: usize,
    config: &Arc<ClientConfig>,
) -> CloseReason {
    let client = enter(house, stage, listener, config);
    assert!(client.tls.is_handshaking());
    assert!(client.end.watch().is_broken(), "it is reset");
    assert_eq!(stage.net.dialled.len(), 0);
    stage.closed().unwrap()
}

fn kinds(house: &House) -> [Arc<ClientConfig>; 3] {
    [
        house.client(&TLS13),
        house.client(&TLS12),
        without_tickets(house.client(&TLS12)),
    ]
    .map(Arc::new)
}

#[test]
fn resuming_clients_are_admitted_when_no_token_is_left() {
    let (house, mut stage, admission) = house("full-handshakes-per-second = 3\n");
    let old = kinds(&house);
    for config in &old {
        assert!(!comes_in(&house, &mut stage, 0, config));
    }
    for config in kinds(&house) {
        let reason = is_shed(&house, &mut stage, 0, &config);
        assert_eq!(reason, CloseReason::AdmissionRate);
    }
    for config in &old {
        assert!(comes_in(&house, &mut stage, 0, config));
    }
    stage.wait(Duration::from_secs(1));
    for config in kinds(&house) {
        assert!(!comes_in(&house, &mut stage, 0, &config));
    }
    assert_eq!(admission.in_flight(), 0);
}

#[test]
fn a_failed_resumption_requires_a_token() {
    let (house, mut stage, _) = house("full-handshakes-per-second = 3\n");
    let configs = kinds(&house);
    for config in &configs {
        assert!(!comes_in(&house, &mut stage, 0, config));
    }
    // Tickets and IDs of one policy are not valid under the other.
    for config in &configs {
        let reason = is_shed(&house, &mut stage, 1, config);
        assert_eq!(reason, CloseReason::AdmissionRate);
    }
}

#[test]
fn a_resumption_with_an_expired_ticket_needs_a_token() {
    let (house, mut stage, _) = house("full-handshakes-per-second = 1\nburst = 1\n");
    let config = Arc::new(house.client(&TLS13));
    assert!(!comes_in(&house, &mut stage, 0, &config));
    stage.now.unix += house.config.file.session_max_age();
    assert_eq!(
        is_shed(&house, &mut stage, 0, &config),
        CloseReason::AdmissionRate
    );
    let ended = stage.counters.handshakes_ended.value();
    assert_eq!(ended, stage.counters.handshakes_begun.value());
}

#[test]
fn a_full_handshake_is_counted_as_in_flight_until_it_ends() {
    let (house, mut stage, admission) = house("full-handshakes-in-flight = 1\n");
    for version in [&TLS12, &TLS13] {
        let config = Arc::new(house.client(version));
        let mut client = Client::enter(&mut stage, house.listener(0), &config, "a.test");
        client.flush();
        assert!(stage.settle());
        assert_eq!(admission.in_flight(), 1);
        // A stage has only one connection, so another stage acts as another worker.
        let mut other = house.stage();
        other.admission = Rc::clone(&stage.admission);
        let fresh = Arc::new(house.client(version));
        let reason = is_shed(&house, &mut other, 0, &fresh);
        assert_eq!(reason, CloseReason::AdmissionInFlight);
        assert_eq!(admission.in_flight(), 1);
        client.talk(&mut stage);
        assert!(!client.tls.is_handshaking());
        assert_eq!(admission.in_flight(), 0);
        assert!(!comes_in(&house, &mut other, 0, &fresh));
    }
}

#[test]
fn a_handshake_that_times_out_is_no_longer_in_flight() {
    let (house, mut stage, admission) = house("full-handshakes-in-flight = 1\n");
    let config = Arc::new(house.client(&TLS13));
    let mut client = Client::enter(&mut stage, house.listener(0), &config, "a.test");
    client.flush();
    assert!(stage.settle());
    assert_eq!(admission.in_flight(), 1);
    stage.wait(stage.timeouts.handshake);
    assert!(stage.settle());
    assert_eq!(stage.closed(), Some(CloseReason::HandshakeTimeout));
    assert_eq!(admission.in_flight(), 0);
}

#[test]
fn each_source_has_its_own_handshake_limit() {
    let (house, mut stage, _) =
        house("full-handshakes-per-second = 1000\nsource-full-handshakes-per-second = 2\n");
    for _ in 0..2 {
        let config = Arc::new(house.client(&TLS13));
        assert!(!comes_in(&house, &mut stage, 0, &config));
        assert!(comes_in(&house, &mut stage, 0, &config));
    }
    let config = Arc::new(house.client(&TLS13));
    assert_eq!(
        is_shed(&house, &mut stage, 0, &config),
        CloseReason::AdmissionSource
    );
}
