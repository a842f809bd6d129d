//! `source`: connections to servers use the configured source addresses in rotation.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use becket_e2e::{Backend, Becket, Client, Place, REQUEST, Shape, Trust, answer_all, fresh_host};

#[test]
#[ignore = "slow: .ci/run test"]
fn connections_use_the_source_addresses_in_rotation() {
    let place = Place::new();
    let (one, other) = (fresh_host(), fresh_host());
    let seen = Arc::new(Mutex::new(BTreeMap::<IpAddr, u32>::new()));
    let kept = Arc::clone(&seen);
    let backend = Backend::new(move |stream| {
        let from = stream.peer_addr()?.ip();
        *kept.lock().unwrap().entry(from).or_default() += 1;
        answer_all(stream, "well met")
    });
    let sources = format!("source = [\"{one}\", \"{other}\"]");
    let shape = Shape::new(backend.address)
        .backend(&sources)
        .process("workers = 1");
    let becket = Becket::start(&place, &shape);
    let trust = Trust::new(&place);
    for _ in 0..6 {
        let answer = Client::connect(becket.web, &trust).unwrap().ask(REQUEST);
        assert!(answer.unwrap().ends_with(b"well met"));
    }
    let expected = BTreeMap::from([(one.into(), 3), (other.into(), 3)]);
    assert_eq!(*seen.lock().unwrap(), expected);
}
