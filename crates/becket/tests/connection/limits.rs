//! Back-pressure and budgets: what a slow or a greedy peer can make grow.

use std::io::Write;
use std::sync::Arc;

use rustls::version::TLS13;

use crate::common::{Client, House, house, server_got, server_says};

const CAPACITY: usize = 64 * 1024;

fn relaying(house: &House, capacity: usize) -> (becket::script::stage::Stage, Client) {
    let mut stage = house.stage_of(capacity);
    let config = Arc::new(house.client(&TLS13));
    let mut client = Client::enter(&mut stage, house.door(0), &config, "a.test");
    client.talk(&mut stage);
    client.tls.set_buffer_limit(None);
    (stage, client)
}

#[test]
fn a_client_that_does_not_read_stops_the_server() {
    let house = house("");
    let (mut stage, mut client) = relaying(&house, CAPACITY);
    let chunk = [5; 8192];
    let mut taken = 0;
    for _ in 0..1000 {
        let far = &mut stage.net.dialled[0].far;
        taken += far.write(&chunk).unwrap_or(0);
        stage.settle();
    }
    // Unread at both sockets, and what one read has put behind the client's.
    assert!(taken <= 3 * CAPACITY + 8192, "{taken} bytes are held");
    client.talk(&mut stage);
    assert_eq!(client.received.len(), taken);
    server_says(&mut stage, b"more");
    client.talk(&mut stage);
    assert!(client.received.ends_with(b"more"));
}

#[test]
fn a_server_that_does_not_read_stops_the_client() {
    let house = house("");
    let (mut stage, mut client) = relaying(&house, CAPACITY);
    client.say(&[5; 1_000_000]);
    client.talk(&mut stage);
    let record = stage.record().unwrap();
    assert!(
        record.client_bytes_in <= 3 * CAPACITY as u64,
        "{}",
        record.client_bytes_in
    );
    assert!(client.tls.wants_write());
    let mut got = 0;
    loop {
        let more = server_got(&mut stage).len();
        got += more;
        client.talk(&mut stage);
        if more == 0 {
            break;
        }
    }
    assert_eq!(got, 1_000_000);
}

#[test]
fn a_turn_moves_no_more_than_its_budget() {
    let house = house("");
    let (mut stage, mut client) = relaying(&house, 1 << 20);
    stage.limits.bytes_per_turn = 64 * 1024;
    server_says(&mut stage, &[5; 1_000_000]);
    let before = stage.record().unwrap().client_bytes_out;
    assert!(stage.turn());
    assert!(stage.is_unfinished(), "there is more to do");
    let moved = stage.record().unwrap().client_bytes_out - before;
    assert!((64 * 1024..130 * 1024).contains(&moved), "{moved}");
    client.talk(&mut stage);
    assert_eq!(client.received.len(), 1_000_000);
    assert!(!stage.is_unfinished());
}

#[test]
fn records_count_by_what_they_weigh_not_by_what_they_hold() {
    let house = house("");
    let (mut stage, mut client) = relaying(&house, 1 << 20);
    stage.limits.bytes_per_turn = 64 * 1024;
    for _ in 0..20_000 {
        client.say(&[5]);
    }
    client.flush();
    assert!(stage.turn());
    assert!(stage.is_unfinished(), "there is more to do");
    assert!(server_got(&mut stage).len() <= 4096);
    client.talk(&mut stage);
    assert!(!stage.is_unfinished());
}

#[test]
fn key_updates_do_not_grow_what_waits() {
    let house = house("");
    let (mut stage, mut client) = relaying(&house, CAPACITY);
    for round in 0..200 {
        client.tls.refresh_traffic_keys().unwrap();
        client.say(&[round]);
        client.flush();
        stage.settle();
    }
    client.talk(&mut stage);
    assert_eq!(server_got(&mut stage).len(), 200);
    server_says(&mut stage, b"still here");
    client.talk(&mut stage);
    assert_eq!(client.received, b"still here");
}
