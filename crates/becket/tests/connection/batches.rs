//! Tests of handshakes whose signatures are made eight at a time, with the portable implementation.

use std::sync::Arc;

use crate::common::{BACKEND, Client, House, LONG_RSA, ODD_RSA, OTHER_RSA, RSA};
use crate::script::stage::Stage;
use becket_keys::signing::SignatureRequest;
use becket_keys::signing::batches::BatchCounts;
use becket_keys::signing::queue::{SigningQueue, answer};
use becket_keys::signing::threads::sign;
use becket_multibuffer::LANES;
use rustls::SupportedProtocolVersion;
use rustls::version::{TLS12, TLS13};

const VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];

/// A listener with keys of every kind that a batch accepts, and a key that no batch accepts.
fn house(process: &str) -> House {
    House::new(&format!(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:443']\nbackend = 'app'\n\
         certificates = ['{ODD_RSA}', '{LONG_RSA}', '{OTHER_RSA}', '{RSA}']\n{BACKEND}[process]\n{process}\n"
    ))
}

fn batching() -> House {
    house("rsa-batch = 'auto'")
}

fn queue(house: &House) -> Arc<SigningQueue> {
    Arc::new(SigningQueue::new(1, house.config.batches))
}

/// Connects a client of a separate worker in which `waiting` others seem to wait.
fn enter(
    house: &House,
    queue: &Arc<SigningQueue>,
    waiting: usize,
    (version, name): (&'static SupportedProtocolVersion, &str),
) -> (Stage, Client) {
    let mut stage = house.stage();
    stage.defer_to(queue, waiting);
    let config = Arc::new(house.client(version));
    let mut client = Client::enter(&mut stage, house.listener(0), &config, name);
    client.talk(&mut stage);
    (stage, client)
}

fn asked(stage: &Stage) -> u64 {
    stage.counters.signatures_begun.value()
}

/// Acts as a crypto thread: takes jobs and signs them. Returns the number of jobs.
fn work(queue: &SigningQueue) -> usize {
    let jobs = queue.try_pop();
    let many = jobs.len();
    answer(jobs, |requests| sign(requests, queue));
    many
}

/// Connects as many clients as a batch has lanes, of both versions and with two keys.
fn batch(house: &House, queue: &Arc<SigningQueue>) -> Vec<(Stage, Client)> {
    let of = |at| {
        let name = ["a.test", "x.b.test"][at / 2 % 2];
        let waits = LANES - 1;
        enter(house, queue, waits, (VERSIONS[at % 2], name))
    };
    let all: Vec<_> = (0..LANES).map(of).collect();
    all.iter().for_each(|(stage, _)| stage.flush());
    all
}

#[test]
fn one_batch_signs_with_different_keys() {
    let house = batching();
    let queue = queue(&house);
    let all = batch(&house, &queue);
    assert_eq!((work(&queue), work(&queue)), (LANES, 0));
    for (mut stage, mut client) in all {
        assert_eq!(client.talk(&mut stage), None);
        assert!(!client.tls.is_handshaking());
    }
    let counts = queue.batches().unwrap().counts();
    let expected = BatchCounts {
        made: 1,
        signatures: LANES as u64,
        repeated: 0,
    };
    assert_eq!(counts, expected);
}

#[test]
fn the_worker_signs_while_too_few_clients_wait_for_a_batch() {
    let house = batching();
    for version in VERSIONS {
        for (waiting, hands_over) in [(0, 0), (LANES - 2, 0), (LANES - 1, 1)] {
            let (stage, client) = enter(&house, &queue(&house), waiting, (version, "a.test"));
            assert_eq!(asked(&stage), hands_over, "{waiting}");
            assert_eq!(client.tls.is_handshaking(), hands_over == 1);
        }
    }
}

#[test]
fn keys_unsuitable_for_batches_are_used_without_a_batch() {
    let house = batching();
    let queue = queue(&house);
    let (stage, client) = enter(&house, &queue, LANES, (&TLS13, "odd.test"));
    assert!(!client.tls.is_handshaking() && asked(&stage) == 0);
    // A crypto thread always signs with a long key, possibly in a batch.
    let (mut stage, mut client) = enter(&house, &queue, 0, (&TLS12, "long.test"));
    assert_eq!((asked(&stage), work(&queue)), (1, 0));
    assert!(stage.sign(SignatureRequest::sign));
    client.talk(&mut stage);
    assert!(!client.tls.is_handshaking());
}

#[test]
fn the_worker_signs_if_batches_are_off_or_unsupported_by_the_cpu() {
    for (house, queue) in [
        (house(""), Arc::new(SigningQueue::new(1, None))),
        (batching(), Arc::new(SigningQueue::new(1, None))),
    ] {
        let (stage, client) = enter(&house, &queue, 100, (&TLS13, "a.test"));
        assert!(!client.tls.is_handshaking() && asked(&stage) == 0);
    }
}

#[test]
fn a_disconnected_client_is_not_in_the_batch() {
    let house = batching();
    let queue = queue(&house);
    let mut all = batch(&house, &queue);
    let (mut left, client) = all.pop().unwrap();
    drop(client);
    left.settle();
    assert_eq!(work(&queue), LANES);
    left.settle();
    assert_eq!(left.counters.signatures_abandoned.value(), 1);
    let counts = queue.batches().unwrap().counts();
    assert_eq!((counts.made, counts.signatures), (1, LANES as u64 - 1));
    for (mut stage, mut client) in all {
        client.talk(&mut stage);
        assert!(!client.tls.is_handshaking());
    }
}

#[test]
fn the_remaining_clients_are_signed_singly_if_most_have_disconnected() {
    let house = batching();
    let queue = queue(&house);
    let mut all = batch(&house, &queue);
    for (mut stage, client) in all.drain(5..) {
        drop(client);
        stage.settle();
    }
    assert_eq!(work(&queue), LANES);
    for (mut stage, mut client) in all {
        client.talk(&mut stage);
        assert!(!client.tls.is_handshaking());
    }
    assert_eq!(queue.batches().unwrap().counts(), BatchCounts::default());
}
