//! Tests of back-pressure and budgets: what a slow or a greedy peer can make grow.

use std::io::Write;
use std::sync::Arc;

use becket_proto::close_reason::CloseReason;
use rustls::version::TLS13;

use crate::common::{Client, House, house, server_got, server_says};

const CAPACITY: usize = 64 * 1024;

fn relaying(house: &House, capacity: usize) -> (crate::script::stage::Stage, Client) {
    let mut stage = house.stage_of(capacity);
    let config = Arc::new(house.client(&TLS13));
    let mut client = Client::enter(&mut stage, house.listener(0), &config, "a.test");
    client.talk(&mut stage);
    client.tls.set_buffer_limit(None);
    (stage, client)
}

#[test]
fn a_client_that_does_not_read_blocks_the_server() {
    let house = house("");
    let (mut stage, mut client) = relaying(&house, CAPACITY);
    let chunk = [5; 8192];
    let mut taken = 0;
    for _ in 0..1000 {
        let far = &mut stage.net.dialled[0].far;
        taken += far.write(&chunk).unwrap_or(0);
        stage.settle();
    }
    // Bytes unread at both sockets, and one read's worth of bytes queued for the client.
    assert!(taken <= 3 * CAPACITY + 8192, "{taken} bytes are held");
    client.talk(&mut stage);
    assert_eq!(client.received.len(), taken);
    server_says(&mut stage, b"more");
    client.talk(&mut stage);
    assert!(client.received.ends_with(b"more"));
}

#[test]
fn a_server_that_does_not_read_blocks_the_client() {
    let house = house("");
    let (mut stage, mut client) = relaying(&house, CAPACITY);
    client.say(&[5; 1_000_000]);
    client.talk(&mut stage);
    let record = stage.record().unwrap();
    assert!(
        record.client_traffic.received <= 3 * CAPACITY as u64,
        "{}",
        record.client_traffic.received
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
    let before = stage.record().unwrap().client_traffic.sent;
    assert!(stage.turn());
    assert!(stage.is_unfinished(), "there is more to do");
    let moved = stage.record().unwrap().client_traffic.sent - before;
    assert!((64 * 1024..130 * 1024).contains(&moved), "{moved}");
    client.talk(&mut stage);
    assert_eq!(client.received.len(), 1_000_000);
    assert!(!stage.is_unfinished());
}

#[test]
fn the_turn_budget_charges_a_minimum_cost_per_record() {
    let house = house("");
    let (mut stage, mut client) = relaying(&house, 1 << 20);
    stage.limits.bytes_per_turn = 64 * 1024;
    for _ in 0..20_000 {
        client.say(&[5]);
    }
    client.flush();
    // Each record counts as a kilobyte, and one call reads records that count as about 82 KiB.
    let mut moved = 0;
    for turn in 1..100 {
        assert!(stage.turn());
        assert!(stage.is_unfinished(), "there is more to do");
        let got = server_got(&mut stage).len();
        assert!((83..=166).contains(&got), "{got} in turn {turn}");
        moved += got;
    }
    client.talk(&mut stage);
    assert_eq!(moved + server_got(&mut stage).len(), 20_000);
    assert!(!stage.is_unfinished());
}

#[test]
fn a_client_that_sends_many_records_without_data_is_disconnected() {
    let house = house("");
    let (mut stage, mut client) = relaying(&house, 1 << 20);
    for _ in 0..20 {
        for _ in 0..31 {
            client.tls.refresh_traffic_keys().unwrap();
        }
        client.say(&[5]);
        client.flush();
        stage.settle();
    }
    // 256 in total, in rounds of 31.
    assert_eq!(server_got(&mut stage).len(), 8);
    while client.bite() {}
    let told = rustls::Error::AlertReceived(rustls::AlertDescription::DecodeError);
    assert_eq!(client.fault, Some(told));
    drop(client);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::RecordsWithoutData));
}

#[test]
fn key_updates_are_accepted_while_the_client_sends_data() {
    let house = house("");
    let (mut stage, mut client) = relaying(&house, 1 << 20);
    for _ in 0..400 {
        client.tls.refresh_traffic_keys().unwrap();
        client.say(&[5; 4096]);
        client.talk(&mut stage);
        server_got(&mut stage);
    }
    assert_eq!(stage.closed(), None);
}

#[test]
fn key_updates_of_a_client_that_does_not_read_lose_no_data() {
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
