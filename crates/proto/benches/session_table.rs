//! What a lookup and an insertion cost when workers share one session table.
//!
//! Run with `cargo bench -p becket-proto --bench session_table`. The case of one shard is the single lock that the
//! sharded table is held against. A state has 78 bytes, as rustls' TLS 1.2 state without a client chain.

use std::hash::RandomState;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use becket_proto::session_table::{Limits, Lives, PolicyTag, Session, SessionTable};
use becket_proto::ticket::{Lineage, UnixSeconds};
use divan::{Bencher, black_box};

const ENTRIES: u64 = 50_000;
const POLICY: PolicyTag = PolicyTag(1);
const LIVES: Lives = Lives {
    now: Duration::from_secs(1),
    ttl: Duration::from_secs(300),
};

fn main() {
    divan::main();
}

fn id(serial: u64) -> [u8; 32] {
    let mut id = [0x5a; 32];
    id[..8].copy_from_slice(&serial.to_be_bytes());
    id
}

fn session() -> Session {
    Session::new(vec![0x5a; 78], Lineage(1), UnixSeconds(1))
}

fn full_table(shards: usize) -> SessionTable {
    let table = SessionTable::new(
        Limits {
            entries: ENTRIES as usize,
            shards,
        },
        RandomState::new(),
    );
    for serial in 0..ENTRIES {
        table.insert(POLICY, &id(serial), session(), LIVES);
    }
    table
}

#[divan::bench(args = [1, 64], threads = [1, 8])]
fn get_hit(bencher: Bencher<'_, '_>, shards: usize) {
    let table = full_table(shards);
    let next = AtomicU64::new(0);
    bencher
        .with_inputs(|| id(next.fetch_add(7919, Ordering::Relaxed) % ENTRIES))
        .bench_refs(|id| black_box(table.get(POLICY, id, LIVES.now)));
}

#[divan::bench(args = [1, 64], threads = [1, 8])]
fn get_miss(bencher: Bencher<'_, '_>, shards: usize) {
    let table = full_table(shards);
    let next = AtomicU64::new(ENTRIES);
    bencher
        .with_inputs(|| id(next.fetch_add(1, Ordering::Relaxed)))
        .bench_refs(|id| black_box(table.get(POLICY, id, LIVES.now)));
}

#[divan::bench(args = [1, 64], threads = [1, 8])]
fn insert_into_full(bencher: Bencher<'_, '_>, shards: usize) {
    let table = full_table(shards);
    let next = AtomicU64::new(ENTRIES);
    bencher
        .with_inputs(|| (id(next.fetch_add(1, Ordering::Relaxed)), session()))
        .bench_values(|(id, session)| table.insert(POLICY, &id, session, LIVES));
}
