//! One test per behaviour, and the table against a naive model.

mod handing_over;

use std::hash::{BuildHasherDefault, DefaultHasher, Hasher};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::ticket::{Origin, TicketPolicy};
use crate::ticket::{OriginId, UnixSeconds};

const A: PolicyTag = PolicyTag(0xa);

type Seed = BuildHasherDefault<DefaultHasher>;

fn table(entries: usize, shards: usize) -> SessionTable<Seed> {
    let limits = Limits {
        entries,
        shards,
        ..Limits::default()
    };
    SessionTable::new(limits, Seed::default())
}

fn session(serial: u64) -> Session {
    Session::new(serial.to_be_bytes().to_vec(), origin(serial))
}

fn origin(serial: u64) -> Origin {
    Origin {
        id: OriginId(serial),
        at: UnixSeconds(1_700_000_000),
    }
}

/// Returns a session whose state has more bytes the higher the second digit of its number is.
fn sized(serial: u64) -> Session {
    let mut state = serial.to_be_bytes().to_vec();
    state.resize(8 + serial as usize / 10 % 10 * 4, 0);
    Session::new(state, origin(serial))
}

impl<S: BuildHasher> SessionTable<S> {
    /// Total size of all states in bytes.
    fn bytes(&self) -> usize {
        self.shards.all().map(|shard| shard.bytes()).sum()
    }

    /// Memory of the index and of all entries, used or free, in bytes.
    fn overhead_bytes(&self) -> usize {
        self.shards.all().map(|shard| shard.overhead_bytes()).sum()
    }

    /// Asserts that lists, index and bounds agree. Visits every entry.
    fn check_invariants(&self) {
        self.shards.all().for_each(|shard| shard.check_invariants());
    }
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn lives(now: u64, ttl: u64) -> Lives {
    Lives {
        now: at(now),
        ttl: at(ttl),
    }
}

#[test]
fn a_session_never_outlives_its_ttl_by_a_fraction_of_a_second() {
    let table = table(10, 1);
    let stored = Lives {
        now: Duration::from_millis(10_900),
        ttl: at(2),
    };
    assert!(table.insert(A, b"one", session(1), stored));
    assert!(matches!(
        table.get(A, b"one", Duration::from_millis(11_999)),
        Lookup::Hit(_)
    ));
    assert_eq!(table.get(A, b"one", at(12)), Lookup::Expired);
}

#[test]
fn a_sweep_drops_expired_sessions() {
    let table = table(100, 4);
    for serial in 0..40_u64 {
        table.insert(
            A,
            &serial.to_be_bytes(),
            session(serial),
            lives(0, 1 + serial % 2),
        );
    }
    table.sweep(at(1), usize::MAX);
    assert_eq!(table.entries(), 20);
    table.sweep(at(2), 1);
    assert_eq!(table.entries(), 16, "one per shard");
    table.check_invariants();
}

#[test]
fn the_shard_limits_add_up_to_the_table_limit() {
    for entries in [1, 7, 8, 1000, 200_000] {
        let parts = (0..8).map(|number| share(entries, number, 8));
        assert_eq!(parts.sum::<usize>(), entries);
    }
    let table = table(100, 5);
    for serial in 0..10_000_u64 {
        table.insert(A, &serial.to_be_bytes(), session(serial), lives(0, 10));
    }
    assert_eq!(table.shards.count(), 8);
    assert_eq!(table.entries(), 100);
}

#[test]
fn a_paced_walk_visits_each_live_session_once() {
    let table = table(1000, 8);
    for serial in 0..300_u64 {
        table.insert(
            A,
            &serial.to_be_bytes(),
            session(serial),
            lives(0, if serial < 100 { 1 } else { 10 }),
        );
    }
    let (mut seen, mut cursor) = (Vec::new(), Some(Cursor::default()));
    while let Some(from) = cursor {
        let before = seen.len();
        cursor = table.visit(from, at(1), 7, |visited| {
            assert_eq!(visited.remaining, at(9));
            seen.push(visited.session.origin.id.0);
        });
        assert!(seen.len() - before <= 7);
    }
    seen.sort_unstable();
    assert_eq!(seen, (100..300).collect::<Vec<_>>());
}

#[test]
fn overhead_stays_below_300_bytes_at_any_size() {
    // Allocators add up to 16 bytes to each state.
    let table = table(1_000_000, 1);
    for serial in 1..=140_000_usize {
        table.insert(A, &serial.to_be_bytes(), session(0), lives(0, 10));
        let just_grown = (serial - 1).is_power_of_two() && serial > 64;
        if just_grown || serial.is_multiple_of(1024) {
            let each = table.overhead_bytes() / serial + 16;
            assert!(each <= 300, "{each} bytes per entry at {serial} entries");
        }
    }
}

#[test]
fn debug_output_shows_no_secret() {
    let session = Session::new(
        vec![0xaa; 48],
        Origin {
            id: OriginId(1),
            at: UnixSeconds(2),
        },
    );
    assert_eq!(
        format!("{session:?}"),
        "Session { state_len: 48, origin: Origin { id: OriginId(1), at: UnixSeconds(2) } }"
    );
}

#[test]
fn a_stored_state_is_returned_unchanged() {
    let mut state = Vec::with_capacity(100);
    state.extend_from_slice(b"master secret");
    assert_eq!(
        Session::new(state, origin(1)).into_state(),
        b"master secret"
    );
}

#[test]
fn a_policy_tag_is_the_prefix_of_its_digest() {
    let mut digest = [0; 32];
    digest[..8].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
    let tag = PolicyTag::from_digest(&digest);
    assert_eq!(tag, PolicyTag(0x0102_0304_0506_0708));
    assert_eq!(tag.for_ticket(), TicketPolicy(0x0102_0304));
}

#[test]
fn concurrent_threads_never_read_a_wrong_session() {
    const THREADS: u64 = 8;
    const STEPS: u64 = 20_000;
    let table = Arc::new(table(200, 8));
    let hammer = |thread: u64| {
        let mut random = 0x9e37_79b9_7f4a_7c15 ^ thread;
        for step in 0..STEPS {
            // xorshift64
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let (policy, id, now) = (PolicyTag(random % 2), random >> 8 & 0x1ff, at(step / 100));
            let mark = origin(id << 1 | policy.0);
            let bytes = id.to_be_bytes();
            let found = match random >> 20 & 7 {
                0..=2 => {
                    let session = Session::new(vec![id as u8; 78], mark);
                    table.insert(
                        policy,
                        &bytes,
                        session,
                        Lives {
                            now,
                            ttl: at(1 + (random >> 40) % 5),
                        },
                    );
                    Lookup::Miss
                }
                3 => table.take(policy, &bytes, now),
                4 => {
                    table.remove(policy, &bytes);
                    Lookup::Miss
                }
                _ => table.get(policy, &bytes, now),
            };
            if let Lookup::Hit(session) = found {
                assert_eq!(
                    (session.origin, &session.state[..]),
                    (mark, &[id as u8; 78][..])
                );
            }
            if random.is_multiple_of(4096) {
                table.set_limits(100 + (random >> 50) as usize % 100, 7_800);
            }
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || hammer(thread));
        }
    });
    table.check_invariants();
    assert!(table.entries() <= 200);
}

/// The worst seed: all IDs collide.
#[derive(Default)]
struct Constant;

impl Hasher for Constant {
    fn finish(&self) -> u64 {
        42
    }

    fn write(&mut self, _: &[u8]) {}
}

/// Session in the naive model, which is a vector in order of insertion.
#[derive(Clone)]
struct Kept {
    shard: usize,
    policy: PolicyTag,
    id: u8,
    serial: u64,
    expires: u64,
}

struct Model {
    kept: Vec<Kept>,
    /// Entries and bytes of each shard.
    limits: Vec<(usize, usize)>,
}

impl Kept {
    fn size(&self) -> usize {
        sized(self.serial).state.len()
    }
}

impl Model {
    fn shrink(&mut self, shard: usize, entries: usize, bytes: usize) -> usize {
        let mut gone = 0;
        loop {
            let here = self.kept.iter().filter(|kept| kept.shard == shard);
            let (count, size) = here.fold((0, 0), |(n, sum), kept| (n + 1, sum + kept.size()));
            if count <= entries && size <= bytes {
                return gone;
            }
            let oldest = self.kept.iter().position(|kept| kept.shard == shard);
            self.kept.remove(oldest.unwrap());
            gone += 1;
        }
    }

    fn insert(&mut self, new: Kept, now: u64) -> bool {
        self.remove(new.policy, new.id);
        let shard = new.shard;
        let mut looked = 0;
        self.kept.retain(|kept| {
            looked += usize::from(kept.shard == shard);
            let dead = kept.shard == shard && looked <= SWEEP && kept.expires <= now;
            !dead
        });
        let (entries, bytes) = self.limits[shard];
        let size = new.size();
        if entries == 0 || size > bytes || new.expires <= now {
            return false;
        }
        self.shrink(shard, entries - 1, bytes - size);
        self.kept.push(new);
        true
    }

    fn look_up(&mut self, policy: PolicyTag, id: u8, now: u64, take: bool) -> Lookup {
        let Some(at) = self
            .kept
            .iter()
            .position(|kept| kept.policy == policy && kept.id == id)
        else {
            let elsewhere = self
                .kept
                .iter()
                .any(|kept| kept.id == id && kept.expires > now);
            return if elsewhere {
                Lookup::OtherPolicy
            } else {
                Lookup::Miss
            };
        };
        let kept = self.kept[at].clone();
        let live = kept.expires > now;
        if take || !live {
            self.kept.remove(at);
        }
        if live {
            Lookup::Hit(sized(kept.serial))
        } else {
            Lookup::Expired
        }
    }

    fn remove(&mut self, policy: PolicyTag, id: u8) -> bool {
        let before = self.kept.len();
        self.kept
            .retain(|kept| kept.policy != policy || kept.id != id);
        self.kept.len() < before
    }

    fn set_limits(&mut self, limits: Vec<(usize, usize)>) -> usize {
        self.limits.clone_from(&limits);
        let shards = limits.into_iter().enumerate();
        shards
            .map(|(shard, (entries, bytes))| self.shrink(shard, entries, bytes))
            .sum()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Insert { policy: u64, id: u8, ttl: u64 },
    Get { policy: u64, id: u8 },
    Take { policy: u64, id: u8 },
    Remove { policy: u64, id: u8 },
    Pass { seconds: u64 },
    Sweep,
    Limit { entries: usize, bytes: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let (policy, id) = (0_u64..3, 0_u8..24);
    prop_oneof![
        30 => (policy.clone(), id.clone(), 0_u64..12).prop_map(|(policy, id, ttl)| Step::Insert { policy, id, ttl }),
        20 => (policy.clone(), id.clone()).prop_map(|(policy, id)| Step::Get { policy, id }),
        6 => (policy.clone(), id.clone()).prop_map(|(policy, id)| Step::Take { policy, id }),
        6 => (policy, id).prop_map(|(policy, id)| Step::Remove { policy, id }),
        8 => (0_u64..4).prop_map(|seconds| Step::Pass { seconds }),
        1 => Just(Step::Sweep),
        2 => (0_usize..30, 0_usize..900).prop_map(|(entries, bytes)| Step::Limit { entries, bytes }),
    ]
}

/// Entries and bytes of each shard.
fn limits(entries: usize, bytes: usize, shards: usize) -> Vec<(usize, usize)> {
    let pairs = (0..shards).map(|shard| bounds((entries, bytes), shard, shards));
    pairs.map(|bounds| (bounds.entries, bounds.bytes)).collect()
}

fn run<S: BuildHasher>(table: &SessionTable<S>, entries: usize, steps: Vec<Step>) {
    let count = table.shards.count();
    let mut model = Model {
        kept: Vec::new(),
        limits: limits(entries, Limits::default().bytes, count),
    };
    let mut now = 0;
    for (serial, step) in (0_u64..).zip(steps) {
        match step {
            Step::Insert { policy, id, ttl } => {
                let policy = PolicyTag(policy);
                let shard = table.shards.number(table.key(policy, &[id]).unwrap().0);
                let new = Kept {
                    shard,
                    policy,
                    id,
                    serial,
                    expires: now + ttl,
                };
                let is_stored = table.insert(policy, &[id], sized(serial), lives(now, ttl));
                assert_eq!(is_stored, model.insert(new, now));
            }
            Step::Get { policy, id } => {
                let policy = PolicyTag(policy);
                assert_eq!(
                    table.get(policy, &[id], at(now)),
                    model.look_up(policy, id, now, false)
                );
            }
            Step::Take { policy, id } => {
                let policy = PolicyTag(policy);
                assert_eq!(
                    table.take(policy, &[id], at(now)),
                    model.look_up(policy, id, now, true)
                );
            }
            Step::Remove { policy, id } => {
                assert_eq!(
                    table.remove(PolicyTag(policy), &[id]),
                    model.remove(PolicyTag(policy), id)
                );
            }
            Step::Pass { seconds } => now += seconds,
            Step::Sweep => {
                model.kept.retain(|kept| kept.expires > now);
                table.sweep(at(now), usize::MAX);
            }
            Step::Limit { entries, bytes } => {
                assert_eq!(
                    table.set_limits(entries, bytes),
                    model.set_limits(limits(entries, bytes, count))
                );
            }
        }
        assert_eq!(table.entries(), model.kept.len());
        assert_eq!(table.bytes(), model.kept.iter().map(Kept::size).sum());
        table.check_invariants();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn the_table_agrees_with_a_naive_model(
        entries in 0_usize..30, shards in 1_usize..5, steps in proptest::collection::vec(step(), 1..300),
    ) {
        run(&table(entries, shards), entries, steps);
    }

    #[test]
    fn the_table_agrees_with_the_model_when_all_ids_collide(
        entries in 0_usize..30, steps in proptest::collection::vec(step(), 1..300),
    ) {
        let limits = Limits { entries, shards: 2, ..Limits::default() };
        run(&SessionTable::new(limits, BuildHasherDefault::<Constant>::default()), entries, steps);
    }
}
