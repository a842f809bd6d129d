//! Tests of bulk data through a pipe: when a pipe is used, when it is returned, and what happens
//! without one.

use std::io::{ErrorKind, Write};
use std::sync::Arc;

use crate::common::{Client, House, house as with_tls, pattern, server_got, server_says};
use crate::cuts::plain;
use crate::script::link::End;
use crate::script::net::Plan;
use crate::script::stage::Stage;
use becket_proto::close_reason::CloseReason;
use becket_proxy::metrics::PipeRefusal;
use becket_proxy::pipes::{BULK, Pipes};
use rustls::version::TLS13;

/// Returns a client joined with its server, and a stage that lends `pipes` pipes.
fn joined(house: &House, capacity: usize, pipes: usize) -> (Stage, End) {
    let mut stage = house.stage_of(capacity);
    stage.splice(pipes);
    let client = stage.admit(house.listener(0), [Plan::Accept]);
    stage.settle();
    (stage, client)
}

/// Sends an answer of `len` bytes in pieces, and returns the bytes that the client gets.
fn answer(stage: &mut Stage, client: &mut End, len: usize) -> Vec<u8> {
    let (answer, mut said, mut got) = (pattern(0, len), 0, Vec::new());
    loop {
        let server = &mut stage.net.dialled[0].far;
        said += server.write(&answer[said..]).unwrap_or(0);
        stage.settle();
        let more = client.receive_all();
        if more.is_empty() {
            return got;
        }
        got.extend(more);
    }
}

fn refusals(stage: &Stage, why: PipeRefusal) -> u64 {
    stage.counters.pipe_refusals[why as usize].value()
}

#[test]
fn bulk_is_spliced_both_ways_and_the_pipes_are_returned() {
    let house = plain();
    let (mut stage, mut client) = joined(&house, 5000, 2);
    assert_eq!(
        answer(&mut stage, &mut client, 100_000),
        pattern(0, 100_000)
    );
    client.write_all(b"thanks").unwrap();
    stage.settle();
    assert_eq!(server_got(&mut stage), b"thanks");
    let counters = &stage.counters;
    assert_eq!(counters.spliced_bytes.value(), 100_006);
    assert!(counters.pipes_lent.value() > 2);
    assert_eq!(counters.pipes_lent.value(), counters.pipes_returned.value());
    let record = stage.record().unwrap();
    assert_eq!(
        (
            record.client_traffic.sent,
            record.facts.server_traffic.received
        ),
        (100_000, 100_000)
    );
    assert_eq!(
        (
            record.client_traffic.received,
            record.facts.server_traffic.sent
        ),
        (6, 6)
    );
    assert!(record.facts.connect.is_some());
}

#[test]
fn small_responses_are_copied_and_large_ones_spliced() {
    let house = plain();
    let (mut stage, mut client) = joined(&house, 1 << 20, 0);
    stage.pipes = Pipes::new(BULK, Arc::clone(&stage.counters));
    stage.pipes.allow(2, 1);
    let few = BULK as usize / 2;
    for _ in 0..10 {
        assert_eq!(answer(&mut stage, &mut client, few).len(), few);
    }
    assert_eq!(stage.counters.pipes_lent.value(), 0);
    let many = 8 * BULK as usize;
    assert_eq!(answer(&mut stage, &mut client, many), pattern(0, many));
    assert!(stage.counters.spliced_bytes.value() >= u64::from(2 * BULK));
}

#[test]
fn a_tls_listener_splices_nothing() {
    let house = with_tls("");
    let (mut stage, mut client) = house.relaying(&TLS13);
    stage.splice(2);
    server_says(&mut stage, &[7; 5000]);
    client.talk(&mut stage);
    assert_eq!(client.received.len(), 5000);
    assert_eq!(stage.counters.pipes_lent.value(), 0);
}

#[test]
fn transfers_are_copied_while_a_slow_client_occupies_the_last_pipe() {
    let house = plain();
    let (mut stage, mut client) = joined(&house, 100, 1);
    for _ in 0..2 {
        server_says(&mut stage, &[7; 100]);
        stage.settle();
    }
    let counters = &stage.counters;
    assert_eq!(
        counters.pipes_lent.value() - counters.pipes_returned.value(),
        1
    );
    client.write_all(b"other way").unwrap();
    stage.settle();
    assert_eq!(server_got(&mut stage), b"other way");
    assert!(refusals(&stage, PipeRefusal::Exhausted) > 0);
    while client.receive_all().len() + usize::from(stage.turn()) > 0 {}
    let counters = &stage.counters;
    assert_eq!(counters.pipes_lent.value(), counters.pipes_returned.value());
}

#[test]
fn data_is_copied_if_the_kernel_cannot_splice() {
    let house = plain();
    for sink in [false, true] {
        let (mut stage, mut client) = joined(&house, 5000, 1);
        if sink {
            client.watch_peer().refuse_to_splice();
        } else {
            stage.net.dialled[0].near.refuse_to_splice();
        }
        assert_eq!(answer(&mut stage, &mut client, 50_000), pattern(0, 50_000));
        let spliced = stage.counters.spliced_bytes.value();
        assert_eq!(spliced > 0, sink, "{spliced} bytes were in the pipe");
        assert!(refusals(&stage, PipeRefusal::Kernel) > 0);
        let counters = &stage.counters;
        assert_eq!(counters.pipes_lent.value(), counters.pipes_returned.value());
    }
}

#[test]
fn data_in_the_pipe_is_delivered_after_a_server_reset() {
    let house = House::new(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:443']\nbackend = 'app'\n\
         mode = 'passthrough'\nunknown-names = 'default'\n\
         [[backend]]\nname = 'app'\n[[backend.server]]\naddress = '127.0.0.1:81'\n",
    );
    let mut stage = house.stage_of(2000);
    let config = Arc::new(house.client(&TLS13));
    let mut client = Client::enter(&mut stage, house.listener(0), &config, "a.test");
    client.flush();
    stage.settle();
    stage.splice(1);
    let mut said = 0;
    for _ in 0..4 {
        let server = &mut stage.net.dialled[0].far;
        said += server.write(&pattern(said, 2000)).unwrap_or(0);
        stage.settle();
    }
    let counters = &stage.counters;
    assert_eq!(
        counters.pipes_lent.value() - counters.pipes_returned.value(),
        1
    );
    stage.net.dialled[0].near.fail(ErrorKind::ConnectionReset);
    // A send of the client detects the reset while its answer still waits in the pipe.
    client.end.write_all(b"x").unwrap();
    stage.settle();
    let mut got = Vec::new();
    loop {
        let more = client.end.receive_all();
        if more.is_empty() {
            break;
        }
        got.extend(more);
        stage.settle();
    }
    assert_eq!(got, pattern(0, said));
    drop(client);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::ServerReset));
    let counters = &stage.counters;
    assert_eq!(counters.pipes_lent.value(), counters.pipes_returned.value());
}
