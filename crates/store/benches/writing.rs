//! Writes 20 000 new sessions per second to a redis-server, and prints what became of them and the CPU of the thread.
//!
//! Run with `cargo bench -p becket-store --bench writing -- redis://127.0.0.1:6379`. Without an address it does nothing.

#![expect(clippy::unwrap_used, reason = "a bench fails by panicking")]

use std::collections::hash_map::RandomState;
use std::fs;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use becket_cluster::{Secret, SessionEvent};
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
    let (policy, outbox) = (PolicyTag(1), &store.outboxes()[0]);
    let (begun, mut made) = (clock.mono(), 0_u64);
    let (own, of_store) = (cpu("writing"), cpu("becket-store"));
    while clock.mono() < begun + TIME {
        let due = (clock.mono() - begun).as_secs_f64() * RATE;
        while made < due as u64 {
            made += 1;
            let now = clock.now();
            let origin = Origin {
                id: OriginId(1),
                at: UnixSeconds(now.unix.as_secs()),
            };
            let lives = Lives {
                now: now.mono,
                ttl: LIFE,
            };
            let id = [&made.to_be_bytes()[..], &[0; 24]].concat();
            table.insert(policy, &id, Session::new(vec![7; STATE], origin), lives);
            outbox.leave(SessionEvent::Made(SessionName::new(policy, &id).unwrap()));
        }
        sleep(TICK);
    }
    let seconds = (clock.mono() - begun).as_secs_f64();
    let (own, of_store) = (cpu("writing") - own, cpu("becket-store") - of_store);
    sleep(Duration::from_secs(1));
    let counts = store.view().status().counts;
    let (written, overflowed) = (counts.written, counts.overflowed);
    let (dropped, refused) = (counts.dropped, counts.refused);
    println!(
        "{made} sessions in {seconds:.1} s, {:.0} per second: {written} written, {dropped} dropped, {overflowed} \
         overflowed, {refused} refused; CPU of the thread {:.1} us per session, {:.0} % of a core; of the feeder {:.1} us",
        made as f64 / seconds,
        of_store / made as f64,
        of_store / seconds / 1e4,
        own / made as f64,
    );
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
const TIME: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(1);
const LIFE: Duration = Duration::from_secs(300);
/// Bytes of a session without a client certificate.
const STATE: usize = 120;
