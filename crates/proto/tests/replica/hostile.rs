//! What anybody may send to the port: dropped, counted by cause, at the price of one open at most.
//!
//! `Cluster::deliver` asserts after each datagram that no more than one was opened, and that every bound holds.

use std::net::SocketAddr;
use std::time::Duration;

use becket_proto::replica::Cause;

use crate::cluster::{Cluster, SECRET};
use crate::toy_vault::Random;

const SECOND: Duration = Duration::from_secs(1);

fn foreign() -> SocketAddr {
    SocketAddr::from(([203, 0, 113, 9], 1234))
}

/// Two nodes that know each other, and every datagram that they exchanged on the way.
fn tapped(seed: u64) -> (Cluster, Vec<(SocketAddr, SocketAddr, Vec<u8>)>) {
    let mut cluster = Cluster::new(seed);
    cluster.network.tap = true;
    cluster.add(&[SECRET]);
    cluster.add(&[SECRET]);
    cluster.list(0, &[1]);
    cluster.run(SECOND * 8);
    cluster.offer(0);
    cluster.run(SECOND);
    cluster.network.tap = false;
    let recorded = std::mem::take(&mut cluster.network.recorded);
    (cluster, recorded)
}

fn still_works(cluster: &mut Cluster) {
    cluster.run(SECOND);
    let id = cluster.offer(0);
    cluster.run(SECOND);
    assert_eq!(cluster.came(1, &id), 1);
    assert_eq!(cluster.live(0), [cluster.nodes[1].name]);
    assert_eq!(cluster.live(1), [cluster.nodes[0].name]);
}

#[test]
fn garbage_of_every_length_is_dropped_without_an_open() {
    let (mut cluster, _) = tapped(1);
    let mut random = Random(7);
    let opens = cluster.audit.borrow().opens;
    for len in 0..1500 {
        let bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
        cluster.deliver(1, foreign(), &bytes);
    }
    assert_eq!(cluster.audit.borrow().opens, opens);
    let drops = cluster.status(1).total.drops;
    assert_eq!(drops.of(Cause::Garbage) + drops.of(Cause::Oversized), 1500);
    assert_eq!(drops.of(Cause::Oversized), 99);
    still_works(&mut cluster);
}

#[test]
fn every_datagram_cut_anywhere_is_dropped() {
    let (mut cluster, recorded) = tapped(2);
    let taken = cluster.nodes[1].shelf.taken;
    for (from, to, bytes) in &recorded {
        let node = usize::from(*to == cluster.nodes[1].address);
        for len in 0..bytes.len() {
            cluster.deliver(node, *from, &bytes[..len]);
        }
    }
    assert_eq!(cluster.nodes[1].shelf.taken, taken);
    still_works(&mut cluster);
}

#[test]
fn every_datagram_with_any_bit_turned_is_dropped() {
    let (mut cluster, recorded) = tapped(3);
    let taken = cluster.nodes[1].shelf.taken;
    let before = cluster.live(1);
    for (from, to, bytes) in &recorded {
        let node = usize::from(*to == cluster.nodes[1].address);
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            cluster.deliver(node, *from, &bytes);
        }
    }
    assert_eq!(cluster.nodes[1].shelf.taken, taken);
    assert_eq!(cluster.live(1), before);
    let drops = cluster.status(1).total.drops;
    for cause in [
        Cause::BadSeal,
        Cause::UnknownKey,
        Cause::UnknownVersion,
        Cause::UnknownSecret,
    ] {
        assert!(drops.of(cause) > 0, "{cause:?} in {drops:?}");
    }
    still_works(&mut cluster);
}

#[test]
fn a_datagram_that_comes_again_is_dropped_without_an_open() {
    let (mut cluster, recorded) = tapped(4);
    let is_pair = |bytes: &[u8]| bytes[4..8] != [0; 4];
    let opens = cluster.audit.borrow().opens;
    let mut repeated = 0;
    for _ in 0..3 {
        for (_, to, bytes) in recorded.iter().filter(|(_, _, bytes)| is_pair(bytes)) {
            let node = usize::from(*to == cluster.nodes[1].address);
            cluster.deliver(node, foreign(), bytes);
            repeated += 1;
        }
    }
    assert_eq!(cluster.audit.borrow().opens, opens);
    let replayed = |cluster: &mut Cluster, node| {
        let drops = cluster.status(node).total.drops;
        drops.of(Cause::Replayed)
    };
    assert_eq!(
        replayed(&mut cluster, 0) + replayed(&mut cluster, 1),
        repeated
    );
    still_works(&mut cluster);
}

#[test]
fn datagrams_for_pairs_that_are_unknown_cost_no_open() {
    let (mut cluster, _) = tapped(5);
    let opens = cluster.audit.borrow().opens;
    let mut random = Random(5);
    for _ in 0..10_000 {
        let mut bytes = b"BKT1".to_vec();
        bytes.extend((0..200).map(|_| random.next() as u8));
        cluster.deliver(1, foreign(), &bytes);
    }
    assert_eq!(cluster.audit.borrow().opens, opens);
    still_works(&mut cluster);
}

#[test]
fn a_flood_of_hellos_is_opened_at_the_rate_and_no_faster() {
    let (mut cluster, recorded) = tapped(6);
    let is_hello = |bytes: &[u8]| bytes[4..8] == [0; 4] && bytes[12..16] == [0; 4];
    let hello = &recorded
        .iter()
        .find(|(_, _, bytes)| is_hello(bytes))
        .unwrap()
        .2;
    let (opens, agreements) = (
        cluster.audit.borrow().opens,
        cluster.audit.borrow().agreements,
    );
    let mut random = Random(6);
    for flood in 0..20_000_u32 {
        // Half of them recorded and genuine, half under an invented seal, all from invented addresses.
        let mut bytes = hello.clone();
        if flood % 2 == 0 {
            bytes[40] ^= random.next() as u8 | 1;
        }
        let from = SocketAddr::from((
            random
                .next()
                .to_be_bytes()
                .first_chunk::<4>()
                .copied()
                .unwrap(),
            9,
        ));
        cluster.deliver(1, from, &bytes);
    }
    let limits = cluster.nodes[1].limits;
    let audit = cluster.audit.borrow();
    assert!(audit.opens - opens <= u64::from(limits.hellos_per_second) + 5);
    assert_eq!(audit.agreements, agreements, "the recorded join is known");
    drop(audit);
    assert!(cluster.status(1).total.drops.of(Cause::HelloLimited) > 19_000);
    assert!(cluster.status(1).refused.len() <= 16);
    still_works(&mut cluster);
}

#[test]
fn joins_that_lead_nowhere_are_forgotten() {
    let (mut cluster, recorded) = tapped(7);
    // The old process of node 0 is gone; its recorded HELLO makes a candidate, and nothing comes of it.
    cluster.restart(1);
    cluster.run(SECOND * 2);
    let before = cluster.live(1);
    let hello = recorded
        .iter()
        .find(|(_, to, _)| *to == cluster.nodes[1].address)
        .unwrap();
    let agreements = cluster.audit.borrow().agreements;
    cluster.deliver(1, foreign(), &hello.2);
    assert_eq!(cluster.audit.borrow().agreements, agreements + 1);
    assert_eq!(cluster.live(1), before);
    cluster.run(SECOND * 30);
    still_works(&mut cluster);
}

#[test]
fn hellos_that_are_sent_back_do_not_keep_nodes_apart() {
    let mut cluster = Cluster::new(9);
    cluster.network.tap = true;
    cluster.add(&[SECRET]);
    cluster.add(&[SECRET]);
    cluster.list(0, &[1]);
    let recorded = std::mem::take(&mut cluster.network.recorded);
    let [(from, to, hello)] = &recorded[..] else {
        panic!("{} datagrams", recorded.len())
    };
    assert_eq!(
        (*from, *to),
        (cluster.nodes[0].address, cluster.nodes[1].address)
    );
    cluster.deliver(0, *to, hello);
    assert_eq!(cluster.status(0).total.drops.of(Cause::Own), 1);
    assert!(cluster.status(0).unanswered[0].own);
    still_works(&mut cluster);
    assert!(cluster.status(0).unanswered.is_empty());
}

#[test]
fn what_we_sent_is_not_taken_when_it_comes_back() {
    let (mut cluster, recorded) = tapped(8);
    let taken = (cluster.nodes[0].shelf.taken, cluster.nodes[1].shelf.taken);
    for (from, to, bytes) in &recorded {
        let sender = usize::from(*from == cluster.nodes[1].address);
        cluster.deliver(sender, *to, bytes);
    }
    assert_eq!(
        taken,
        (cluster.nodes[0].shelf.taken, cluster.nodes[1].shelf.taken)
    );
    let drops = cluster.status(0).total.drops;
    assert!(drops.of(Cause::Own) > 0 && drops.of(Cause::UnknownKey) > 0);
    still_works(&mut cluster);
}
