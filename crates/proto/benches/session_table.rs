//! What a lookup and an insertion cost when workers share one session table.
//!
//! Run with `cargo bench -p becket-proto --bench session_table`. The case of one shard is the single lock that the
//! sharded table is held against. A state has 78 bytes, as rustls' TLS 1.2 state without a client chain. What a session
//! costs in memory, beside its state, when there are a million, is printed first.

use std::hash::RandomState;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use becket_proto::session::{PolicyTag, Session};
use becket_proto::session_table::{Limits, Lives, SessionTable};
use becket_proto::ticket::{Origin, OriginId, UnixSeconds};
use divan::{Bencher, black_box};

const ENTRIES: u64 = 50_000;
const MILLION: u64 = 1_000_000;
const POLICY: PolicyTag = PolicyTag(1);
const LIVES: Lives = Lives {
    now: Duration::from_secs(1),
    ttl: Duration::from_secs(300),
};

fn main() {
    let bytes = million().overhead_bytes() as f64 / million().len() as f64;
    println!("{MILLION} sessions: {bytes:.1} bytes each beside the state");
    divan::main();
}

fn id(serial: u64) -> [u8; 32] {
    let mut id = [0x5a; 32];
    id[..8].copy_from_slice(&serial.to_be_bytes());
    id
}

fn session() -> Session {
    Session::new(
        vec![0x5a; 78],
        Origin {
            id: OriginId(1),
            at: UnixSeconds(1),
        },
    )
}

fn full_table(shards: usize) -> SessionTable {
    table_of(ENTRIES, shards)
}

fn table_of(sessions: u64, shards: usize) -> SessionTable {
    let entries = sessions as usize;
    let table = SessionTable::new(
        Limits {
            entries,
            shards,
            bytes: usize::MAX,
        },
        RandomState::new(),
    );
    // More than fit, so that every shard is full.
    for serial in 0..sessions + sessions / 8 {
        table.insert(POLICY, &id(serial), session(), LIVES);
    }
    table
}

/// A serial that is in a full table: the oldest were evicted.
fn held(number: u64, sessions: u64) -> u64 {
    sessions / 4 + number % (sessions / 2)
}

/// A million sessions, made once.
fn million() -> &'static SessionTable {
    static TABLE: OnceLock<SessionTable> = OnceLock::new();
    TABLE.get_or_init(|| table_of(MILLION, Limits::default().shards))
}

#[divan::bench(threads = [1, 2, 4, 8])]
fn get_of_a_million(bencher: Bencher<'_, '_>) {
    let next = AtomicU64::new(0);
    bencher
        .with_inputs(|| id(held(next.fetch_add(7919, Ordering::Relaxed), MILLION)))
        .bench_refs(|id| black_box(million().get(POLICY, id, LIVES.now)));
}

#[divan::bench(threads = [1, 2, 4, 8])]
fn insert_into_a_million(bencher: Bencher<'_, '_>) {
    static TABLE: OnceLock<SessionTable> = OnceLock::new();
    static NEXT: AtomicU64 = AtomicU64::new(MILLION * 2);
    let table = TABLE.get_or_init(|| table_of(MILLION, Limits::default().shards));
    bencher
        .with_inputs(|| (id(NEXT.fetch_add(1, Ordering::Relaxed)), session()))
        .bench_values(|(id, session)| table.insert(POLICY, &id, session, LIVES));
}

#[divan::bench(args = [1, 64], threads = [1, 2, 4, 8])]
fn get_hit(bencher: Bencher<'_, '_>, shards: usize) {
    let table = full_table(shards);
    let next = AtomicU64::new(0);
    bencher
        .with_inputs(|| id(held(next.fetch_add(7919, Ordering::Relaxed), ENTRIES)))
        .bench_refs(|id| black_box(table.get(POLICY, id, LIVES.now)));
}

#[divan::bench(args = [1, 64], threads = [1, 2, 4, 8])]
fn get_miss(bencher: Bencher<'_, '_>, shards: usize) {
    let table = full_table(shards);
    let next = AtomicU64::new(ENTRIES * 2);
    bencher
        .with_inputs(|| id(next.fetch_add(1, Ordering::Relaxed)))
        .bench_refs(|id| black_box(table.get(POLICY, id, LIVES.now)));
}

#[divan::bench(args = [1, 64], threads = [1, 2, 4, 8])]
fn insert_into_full(bencher: Bencher<'_, '_>, shards: usize) {
    let table = full_table(shards);
    let next = AtomicU64::new(ENTRIES * 2);
    bencher
        .with_inputs(|| (id(next.fetch_add(1, Ordering::Relaxed)), session()))
        .bench_values(|(id, session)| table.insert(POLICY, &id, session, LIVES));
}
