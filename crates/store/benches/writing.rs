//! Writes 20 000 new sessions per second to a redis-server, and prints what became of them and the CPU time of both threads.
//!
//! Run with `cargo bench -p becket-store --bench writing -- redis://127.0.0.1:6379`. Without an address it does nothing.

#![expect(clippy::unwrap_used, reason = "a bench fails by panicking")]

use std::collections::hash_map::RandomState;
use std::fs;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use becket_cluster::{Outbox, Secret, SessionEvent};
use becket_config::notation::Text;
use becket_config::store_address::StoreAddress;
use becket_proto::session::{PolicyTag, Session, SessionName};
use becket_proto::session_table::{Limits, Lives, SessionTable};
use becket_proto::ticket::{Origin, OriginId, SecretId, UnixSeconds};
use becket_store::{Lifetimes, Store, StoreHost, StoreServer, StoreSettings};
use becket_sys::clock::Clock;
use tokio::sync::mpsc::unbounded_channel;
use zeroize::Zeroizing;

fn main() {
    let Some(url) = std::env::args().find(|it| it.starts_with("redis")) else {
        return;
    };
    let (clock, table) = (Clock::start(), Arc::new(table()));
    let (sharing, _outputs) = unbounded_channel();
    let host = StoreHost {
        table: Arc::clone(&table),
        clock,
        workers: 1,
        sharing,
    };
    let store = Store::start(settings(&url), host).unwrap();
    while !store.view().status().available {
        sleep(TICK);
    }
    // Slices with and without the store take turns. A worker inserts its sessions into the table in both.
    let mut fed = [Fed::default(), Fed::default()];
    let outboxes = store.outboxes();
    let (mut number, of_store) = (0, cpu("becket-store"));
    for slice in 0..SLICES {
        let outbox = outboxes.first().filter(|_| slice % 2 == 0);
        let own = cpu("writing");
        let made = feed(&clock, &table, outbox, &mut number);
        let fed = &mut fed[usize::from(outbox.is_none())];
        fed.sessions += made;
        fed.cpu_us += cpu("writing") - own;
    }
    sleep(Duration::from_secs(1));
    let of_store = cpu("becket-store") - of_store;
    let [with, without] = fed.map(|it| it.cpu_us / it.sessions as f64);
    let (made, seconds) = (fed[0].sessions, (SLICE * SLICES / 2).as_secs_f64());
    let counts = store.view().status().counts;
    let (written, overflowed) = (counts.written, counts.overflowed);
    let (dropped, refused) = (counts.dropped, counts.refused);
    println!(
        "{made} sessions in {seconds:.1} s, {:.0} per second: {written} written, {dropped} dropped, {overflowed} \
         overflowed, {refused} refused\nCPU per session: thread of the store {:.1} us ({:.0} % of a core); feeding thread \
         {with:.2} us with the store, {without:.2} us without",
        made as f64 / seconds,
        of_store / made as f64,
        of_store / seconds / 1e4,
    );
}

/// Sessions of one kind of slices, and the CPU time of the thread that created them.
#[derive(Clone, Copy, Default)]
struct Fed {
    sessions: u64,
    cpu_us: f64,
}

/// Creates sessions for a slice of time at [`RATE`]. Returns their number.
fn feed(
    clock: &Clock,
    table: &SessionTable<RandomState>,
    outbox: Option<&Outbox>,
    number: &mut u64,
) -> u64 {
    let (begun, mut made, policy) = (clock.mono(), 0_u64, PolicyTag(1));
    while clock.mono() < begun + SLICE {
        let due = (clock.mono() - begun).as_secs_f64() * RATE;
        while made < due as u64 {
            (made, *number) = (made + 1, *number + 1);
            let now = clock.now();
            let origin = Origin {
                id: OriginId(1),
                at: UnixSeconds(now.unix.as_secs()),
            };
            let lives = Lives {
                now: now.mono,
                ttl: LIFE,
            };
            let id = [&number.to_be_bytes()[..], &[0; 24]].concat();
            table.insert(policy, &id, Session::new(vec![7; STATE], origin), lives);
            if let Some(outbox) = outbox {
                let name = SessionName::new(policy, &id).unwrap();
                outbox.leave(SessionEvent::Made(name));
            }
        }
        sleep(TICK);
    }
    made
}

fn table() -> SessionTable<RandomState> {
    let limits = Limits {
        entries: 1_000_000,
        bytes: usize::MAX,
        ..Limits::default()
    };
    SessionTable::new(limits, RandomState::new())
}

fn settings(url: &str) -> StoreSettings {
    StoreSettings {
        server: StoreServer {
            address: StoreAddress::parse(url).unwrap(),
            user: None,
            password: None,
            authorities: None,
        },
        timeout: Duration::from_millis(10),
        secrets: vec![Secret {
            id: SecretId(1),
            key: Zeroizing::new([1; 32]),
        }],
        lifetimes: Lifetimes {
            id_lifetime: LIFE,
            max_age: LIFE,
        },
        certificates: Vec::new(),
        has_on_demand: false,
    }
}

/// Returns the CPU time of this process's threads with a name, in microseconds.
fn cpu(name: &str) -> f64 {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let times = tasks.filter_map(|task| {
        let comm = fs::read_to_string(task.path().join("comm")).ok()?;
        let line = fs::read_to_string(task.path().join("schedstat")).ok()?;
        let nanos = line.split(' ').next()?.parse::<f64>().ok()?;
        comm.starts_with(name).then_some(nanos / 1e3)
    });
    times.sum()
}

const RATE: f64 = 20_000.0;
const SLICE: Duration = Duration::from_millis(500);
const SLICES: u32 = 40;
const TICK: Duration = Duration::from_millis(1);
const LIFE: Duration = Duration::from_secs(300);
/// Bytes of a session without a client certificate.
const STATE: usize = 120;
