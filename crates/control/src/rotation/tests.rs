//! Tests of the rotation in a cluster: two nodes with clocks that jump.

use std::collections::BTreeSet;
use std::path::Path;

use becket_proto::epoch::EpochLength;
use becket_proto::ticket::{NodeId, UnixSeconds};
use becket_sys::clock::Clock;
use proptest::prelude::*;
use rustls::server::ProducesTickets;
use zeroize::Zeroizing;

use super::*;
use crate::sample;
use becket_tls::config::{Cluster, Config};
use becket_tls::resumption::Resumption;
use becket_tls::secret::shared::{SecretBytes, SharedSecret};
use becket_tls::sessions::context::{self, HandshakeContext};
use becket_tls::sessions::tickets::Ticketer;

const HOUR: u64 = 3600;
const START: u64 = 500_000 * HOUR;
const DAY: Duration = Duration::from_secs(86_400);

fn root(byte: u8) -> SharedSecret {
    let bytes = SecretBytes::new(Zeroizing::new([byte; 32]));
    SharedSecret::of_root(bytes, Path::new("root")).expect("derived")
}

fn hour() -> EpochLength {
    EpochLength::of(Duration::from_secs(HOUR)).expect("whole seconds")
}

fn config(node: u16, secrets: Vec<SharedSecret>) -> Config {
    Config {
        cluster: Some(Cluster {
            node: NodeId(node),
            secrets,
            rotation: hour(),
            listen: None,
            peers: Vec::new(),
            store: Default::default(),
            keys: Default::default(),
        }),
        ..sample::config()
    }
}

fn at(unix: u64) -> Now {
    Now {
        unix: Duration::from_secs(unix),
        ..Clock::start().now()
    }
}

fn node(number: u16, secrets: Vec<SharedSecret>, unix: u64) -> Rotation {
    Rotation::of(&config(number, secrets), at(unix)).expect("secrets")
}

fn ticketer(of: &Rotation, policy: u8) -> Ticketer {
    Ticketer::new(of.secrets(), [policy; 32], DAY).expect("secrets")
}

fn handshake(unix: u64) -> Option<HandshakeContext> {
    let mut handshake = HandshakeContext::new(None);
    handshake.clock.unix = UnixSeconds(unix);
    Some(handshake)
}

fn seal(by: &Ticketer, unix: u64) -> Vec<u8> {
    context::lend(&mut handshake(unix), || by.encrypt(b"state")).expect("sealed")
}

fn outcome(by: &Ticketer, ticket: &[u8], unix: u64) -> Option<Resumption> {
    let mut handshake = handshake(unix);
    context::lend(&mut handshake, || by.decrypt(ticket));
    handshake?.resumption.outcome
}

#[test]
fn a_ticket_opens_on_every_node_with_the_secret_and_the_policy_and_on_no_other() {
    let a = ticketer(&node(1, vec![root(7)], START), 1);
    let ticket = seal(&a, START);
    let same = ticketer(&node(2, vec![root(7)], START + 10), 1);
    let stranger = ticketer(&node(2, vec![root(8)], START + 10), 1);
    let policy = ticketer(&node(2, vec![root(7)], START + 10), 2);
    for (by, expected) in [
        (same, Resumption::Opened),
        (stranger, Resumption::UnknownSecret),
        (policy, Resumption::OtherPolicy),
    ] {
        assert_eq!(outcome(&by, &ticket, START + 10), Some(expected));
    }
}

#[test]
fn clocks_less_than_a_rotation_apart_do_not_matter_and_others_are_counted() {
    let a = ticketer(&node(1, vec![root(7)], START), 1);
    for (there, expected) in [
        (START - HOUR, Resumption::Opened),
        (START + HOUR, Resumption::Opened),
        (START - HOUR - 1, Resumption::Expired),
        (START + 2 * HOUR, Resumption::Expired),
    ] {
        let b = ticketer(&node(2, vec![root(7)], there), 1);
        assert_eq!(
            outcome(&b, &seal(&a, START), START),
            Some(expected),
            "{there}"
        );
    }
}

#[test]
fn every_ticket_opens_for_its_announced_lifetime() {
    let hint = u64::from(ticketer(&node(1, vec![root(7)], START), 1).lifetime());
    assert_eq!(hint, HOUR);
    for made in [START, START + HOUR / 2, START + HOUR - 1] {
        let ticket = seal(&ticketer(&node(1, vec![root(7)], made), 1), made);
        let later = ticketer(&node(2, vec![root(7)], made + hint), 1);
        assert_eq!(
            outcome(&later, &ticket, made + hint),
            Some(Resumption::Opened)
        );
    }
}

#[test]
fn a_stepwise_secret_rotation_loses_no_ticket() {
    let steps = [
        vec![root(1)],
        vec![root(1), root(2)],
        vec![root(2), root(1)],
        vec![root(2)],
    ];
    // While only one of two nodes has made a step, each opens tickets of the other.
    for pair in steps.windows(2) {
        let [before, after] = pair else {
            unreachable!()
        };
        let one = ticketer(&node(1, before.clone(), START), 1);
        let two = ticketer(&node(2, after.clone(), START), 1);
        let expected = Some(Resumption::Opened);
        if before.len() <= after.len() {
            assert_eq!(outcome(&one, &seal(&two, START), START), expected);
            assert_eq!(outcome(&two, &seal(&one, START), START), expected);
        }
    }
    let old = ticketer(&node(1, vec![root(1)], START), 1);
    let last = ticketer(&node(2, vec![root(2)], START), 1);
    let unknown = Some(Resumption::UnknownSecret);
    assert_eq!(outcome(&last, &seal(&old, START), START), unknown);
}

#[test]
fn a_reload_that_changes_nothing_leaves_the_keys_and_another_secret_does_not() {
    let old = node(1, vec![root(1)], START);
    let same = old.reloaded(&config(1, vec![root(1)]), at(START + 1));
    let same = same.expect("secrets").expect("a cluster");
    assert!(Arc::ptr_eq(old.secrets(), same.secrets()));
    let both = config(1, vec![root(2), root(1)]);
    let changed = old.reloaded(&both, at(START + 1));
    let changed = changed.expect("secrets").expect("a cluster");
    let ids = [2, 1].map(|number| format!("{:08x}", root(number).id.0));
    assert_eq!(changed.standing().0.secrets, ids);
    let ticket = seal(&ticketer(&old, 1), START);
    let opened = outcome(&ticketer(&changed, 1), &ticket, START + 1);
    assert_eq!(opened, Some(Resumption::Opened));
}

#[test]
fn a_single_host_continues_over_a_reload_and_can_join_and_leave_a_cluster() {
    let alone = Rotation::start(DAY, at(START)).expect("random");
    let lonely = sample::config();
    let next = alone.reloaded(&lonely, at(START)).expect("secrets");
    assert!(next.is_none());
    let joined = alone.reloaded(&config(1, vec![root(1)]), at(START));
    let joined = joined.expect("secrets").expect("a cluster");
    assert_eq!(joined.standing().0.node, Some(1));
    let left = joined.reloaded(&lonely, at(START)).expect("secrets");
    assert_eq!(left.expect("alone").standing().0.node, None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn epochs_follow_the_wall_clock_wherever_it_jumps(
        jumps in prop::collection::vec((0i64..10, -40i64..40, 0i64..3600), 1..12),
    ) {
        let mut now = at(START);
        let mut real = node(1, vec![root(1)], START);
        let mut before = START / HOUR;
        for (kind, hours, seconds) in jumps {
            now.mono += Duration::from_secs(2);
            let hours = if kind < 3 { hours } else { 0 };
            let unix = now.unix.as_secs() as i64 + hours * 3600 + seconds;
            now.unix = Duration::from_secs(u64::try_from(unix).expect("after 1970"));
            let epoch = now.unix.as_secs() / HOUR;
            let changed = real.tick(DAY, now).expect("secrets");
            prop_assert_eq!(changed, before != epoch);
            before = epoch;
            let standing = real.standing();
            prop_assert_eq!(standing.0.epoch, epoch);
            prop_assert_eq!(standing.0.epoch_started.unix_seconds(), epoch * HOUR);
            prop_assert_eq!(standing.1, Due::Unix(Duration::from_secs((epoch + 1) * HOUR)));
            let starts = real.secrets().epochs.iter().map(|e| u64::from(e.id.epoch.0) / HOUR);
            prop_assert_eq!(starts.collect::<BTreeSet<_>>(), BTreeSet::from_iter(epoch - 1..=epoch + 1));
        }
    }
}
