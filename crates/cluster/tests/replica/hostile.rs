//! Datagrams that anyone may send to the port: dropped, counted by cause, with one decryption at most.
//!
//! `Cluster::deliver` asserts after each datagram that at most one was decrypted, and that every bound holds.

use std::net::SocketAddr;
use std::time::Duration;

use becket_cluster::replica::DropCause;

use crate::cluster::{Cluster, SECRET};
use crate::toy_vault::Random;

const SECOND: Duration = Duration::from_secs(1);

fn foreign() -> SocketAddr {
    SocketAddr::from(([203, 0, 113, 9], 1234))
}

/// Returns two nodes that know each other, and all datagrams that they exchanged for that.
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
    assert_eq!(
        drops.of(DropCause::Garbage) + drops.of(DropCause::Oversized),
        1500
    );
    assert_eq!(drops.of(DropCause::Oversized), 99);
    still_works(&mut cluster);
}

#[test]
fn truncated_datagrams_are_dropped() {
    let (mut cluster, recorded) = tapped(2);
    let taken = cluster.nodes[1].sink.taken;
    for (from, to, bytes) in &recorded {
        let node = usize::from(*to == cluster.nodes[1].address);
        for len in 0..bytes.len() {
            cluster.deliver(node, *from, &bytes[..len]);
        }
    }
    assert_eq!(cluster.nodes[1].sink.taken, taken);
    still_works(&mut cluster);
}

#[test]
fn datagrams_with_a_flipped_bit_are_dropped() {
    let (mut cluster, recorded) = tapped(3);
    let taken = cluster.nodes[1].sink.taken;
    let before = cluster.live(1);
    for (from, to, bytes) in &recorded {
        let node = usize::from(*to == cluster.nodes[1].address);
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            cluster.deliver(node, *from, &bytes);
        }
    }
    assert_eq!(cluster.nodes[1].sink.taken, taken);
    assert_eq!(cluster.live(1), before);
    let drops = cluster.status(1).total.drops;
    for cause in [
        DropCause::BadSeal,
        DropCause::UnknownKey,
        DropCause::UnknownVersion,
        DropCause::UnknownSecret,
    ] {
        assert!(drops.of(cause) > 0, "{cause:?} in {drops:?}");
    }
    still_works(&mut cluster);
}

#[test]
fn a_replayed_datagram_is_dropped_without_an_open() {
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
        drops.of(DropCause::Replayed)
    };
    assert_eq!(
        replayed(&mut cluster, 0) + replayed(&mut cluster, 1),
        repeated
    );
    still_works(&mut cluster);
}

#[test]
fn datagrams_for_unknown_pairs_are_dropped_without_an_open() {
    let (mut cluster, _) = tapped(5);
    let opens = cluster.audit.borrow().opens;
    let mut random = Random(5);
    for _ in 0..10_000 {
        let mut bytes = b"BKT3".to_vec();
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
        // Half of them recorded and genuine, half with an invented seal, all from invented addresses.
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
    assert!(cluster.status(1).total.drops.of(DropCause::HelloLimited) > 19_000);
    assert!(cluster.status(1).refused.len() <= 16);
    still_works(&mut cluster);
}

#[test]
fn incomplete_joins_expire() {
    let (mut cluster, recorded) = tapped(7);
    // Node 1 has a new process, so the recorded HELLO creates a candidate, but its echo never arrives.
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
fn reflected_hellos_do_not_prevent_a_join() {
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
    assert_eq!(cluster.status(0).total.drops.of(DropCause::Own), 1);
    assert!(cluster.status(0).unanswered[0].own);
    still_works(&mut cluster);
    assert!(cluster.status(0).unanswered.is_empty());
}

/// Returns two nodes, the first of which lists the second, and its HELLO, which has not arrived yet.
fn greeting(seed: u64) -> (Cluster, Vec<u8>) {
    let mut cluster = Cluster::new(seed);
    cluster.network.tap = true;
    cluster.add(&[SECRET]);
    cluster.add(&[SECRET]);
    cluster.list(0, &[1]);
    cluster.network.tap = false;
    let recorded = std::mem::take(&mut cluster.network.recorded);
    let [(_, _, hello)] = &recorded[..] else {
        panic!("{} datagrams", recorded.len())
    };
    let hello = hello.clone();
    (cluster, hello)
}

#[test]
fn a_hello_sent_first_from_a_foreign_address_joins_the_real_peer() {
    let (mut cluster, hello) = greeting(10);
    cluster.deliver(1, foreign(), &hello);
    cluster.run(Duration::from_millis(100));
    assert_eq!(
        cluster.live(1),
        [cluster.nodes[0].name],
        "at the first HELLO"
    );
    assert_eq!(cluster.status(1).peers[0].address, cluster.nodes[0].address);
    still_works(&mut cluster);
    let id = cluster.offer(1);
    cluster.run(SECOND);
    assert_eq!(cluster.came(0, &id), 1);
}

#[test]
fn a_hello_replayed_from_a_foreign_address_joins_the_real_peer() {
    let (mut cluster, hello) = greeting(11);
    cluster.run(Duration::from_millis(2));
    for _ in 0..3 {
        cluster.deliver(1, foreign(), &hello);
    }
    still_works(&mut cluster);
    assert_eq!(cluster.status(1).peers[0].address, cluster.nodes[0].address);
}

#[test]
fn a_peer_address_set_by_a_foreign_echo_is_corrected_by_the_next() {
    let (mut cluster, _) = greeting(12);
    cluster.network.tap = true;
    let echo = loop {
        cluster.run(Duration::from_micros(10));
        let (node, two) = (&cluster.nodes[0].address, &cluster.nodes[1].address);
        let mut recorded = cluster.network.recorded.iter();
        let echo = recorded.find(|(from, to, bytes)| {
            from == node && to == two && bytes.get(4..8) != Some(&[0; 4])
        });
        if let Some((_, _, bytes)) = echo {
            break bytes.clone();
        }
    };
    cluster.network.tap = false;
    cluster.deliver(1, foreign(), &echo);
    assert_eq!(cluster.status(1).peers[0].address, foreign());
    cluster.run(SECOND * 2);
    assert_eq!(cluster.status(1).peers[0].address, cluster.nodes[0].address);
    still_works(&mut cluster);
}

#[test]
fn a_flood_of_rejected_joins_does_not_evict_active_rejected_peers() {
    let mut cluster = Cluster::new(13);
    cluster.add(&[SECRET]);
    let wrong = [1, 2].map(|_| cluster.add(&[(SECRET.0 + 1, 5)]));
    cluster.list(0, &[wrong[0]]);
    cluster.network.tap = true;
    for node in wrong {
        cluster.list(node, &[0]);
    }
    cluster.network.tap = false;
    let (_, _, hello) = cluster.network.recorded[0].clone();
    for round in 0..20 {
        cluster.run(SECOND);
        for stranger in 0..200_u16 {
            let invented = SocketAddr::from(([203, 0, 113, round], 1000 + stranger));
            cluster.deliver(0, invented, &hello);
        }
    }
    let status = cluster.status(0);
    let address = |node: usize| cluster.nodes[node].address;
    assert_eq!(status.refused.len(), 1 + 16);
    assert_eq!(
        status.refused[0].address,
        address(wrong[0]),
        "the list first"
    );
    let tries = |node: usize| {
        let mut refused = status.refused.iter();
        let refused = refused.find(|refused| refused.address == address(node));
        refused.map_or(0, |refused| refused.count)
    };
    assert!(tries(wrong[0]) > 3, "{:?}", status.refused);
    assert!(tries(wrong[1]) > 3, "{:?}", status.refused);
    assert_eq!(status.refused_left_out, 20 * 200 + 1 - 16);
    // An address that has stopped trying makes room, however often it tried.
    cluster.kill(wrong[1]);
    cluster.run(SECOND * 90);
    for stranger in 0..16 {
        let invented = SocketAddr::from(([203, 0, 114, 1], 1000 + stranger));
        cluster.deliver(0, invented, &hello);
    }
    let gone = cluster.nodes[wrong[1]].address;
    let refused = cluster.status(0).refused;
    assert!(refused.iter().all(|refused| refused.address != gone));
}

#[test]
fn reflected_datagrams_are_rejected() {
    let (mut cluster, recorded) = tapped(8);
    let taken = (cluster.nodes[0].sink.taken, cluster.nodes[1].sink.taken);
    for (from, to, bytes) in &recorded {
        let sender = usize::from(*from == cluster.nodes[1].address);
        cluster.deliver(sender, *to, bytes);
    }
    assert_eq!(
        taken,
        (cluster.nodes[0].sink.taken, cluster.nodes[1].sink.taken)
    );
    let drops = cluster.status(0).total.drops;
    assert!(drops.of(DropCause::Own) > 0 && drops.of(DropCause::UnknownKey) > 0);
    still_works(&mut cluster);
}
