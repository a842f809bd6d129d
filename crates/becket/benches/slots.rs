//! What it costs to choose a server, claim a slot of it and give that back, among 16 servers.
//!
//! Run with `cargo bench -p becket --bench slots`. The promise is under a microsecond, and no system call: with
//! `threads = 2` two workers meet at the same counters. `hand_over` is the way through the queue: a slot is given
//! back, goes to who waits, and is given back again. What time it takes between two workers is in `hand_over.rs`.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use becket_config::choices::{Balance, StickBy};
use becket_proto::ticket::OriginId;
use becket_proxy::backend::backend_state::Pick;
use becket_proxy::backend::backend_state::{BackendState, Wait};
use becket_proxy::backend::inbox::{BackendEvent, Inbox, TestInbox};
use becket_proxy::backend::pool::{PickHint, Pool};
use becket_proxy::backend::registry::lone_state;
use becket_proxy::backend::slot::ServerSlot;
use becket_tls::config::{Backend, Server, ServerAddress};
use divan::{Bencher, black_box};

const BALANCES: [Balance; 6] = [
    Balance::RoundRobin,
    Balance::LeastConnections,
    Balance::TwoRandomChoices,
    Balance::First,
    Balance::SourceHash,
    Balance::SniHash,
];

fn main() {
    divan::main();
}

fn backend(servers: usize, balance: Balance, maxconn: u32) -> Backend {
    let server = |index: usize| {
        let name = format!("/run/server-{index}");
        let mut server = Server::plain(&name, vec![ServerAddress::Unix(name.clone().into())]);
        server.keys.weight = 1 + index as u32 % 3;
        server.keys.maxconn = Some(maxconn);
        server
    };
    let mut backend = Backend::plain("app", (0..servers).map(server).collect());
    backend.keys.balance = balance;
    backend
}

fn hint() -> PickHint<'static> {
    PickHint {
        source: IpAddr::from([192, 0, 2, 1]),
        name: Some("www.example.org"),
        origin: Some(OriginId(7)),
    }
}

fn pool(backend: &Arc<Backend>, state: &Arc<BackendState>) -> Pool {
    let inbox = Arc::<TestInbox>::default();
    Pool::new(Arc::clone(backend), Arc::clone(state), inbox, 0)
}

thread_local! {
    /// A pool belongs to one thread, as to one worker.
    static POOL: RefCell<Option<(Arc<Backend>, Pool)>> = const { RefCell::new(None) };
}

#[divan::bench(args = BALANCES, threads = [1, 2])]
fn choose_claim_and_give_back(bencher: Bencher<'_, '_>, balance: Balance) {
    let backend = Arc::new(backend(16, balance, 1000));
    let state = lone_state(&backend, Vec::new());
    bencher.bench(|| {
        POOL.with_borrow_mut(|held| {
            let mine = held.take_if(|(of, _)| Arc::ptr_eq(of, &backend));
            let mine = mine.unwrap_or_else(|| (Arc::clone(&backend), pool(&backend, &state)));
            drop(black_box(mine.1.pick(&hint(), None, &[])));
            *held = Some(mine);
        });
    });
}

#[divan::bench]
fn the_same_for_a_client_that_sticks(bencher: Bencher<'_, '_>) {
    let mut backend = backend(16, Balance::RoundRobin, 1000);
    backend.keys.stick = StickBy::TlsSession;
    backend.keys.stick_entries = 100_000;
    let backend = Arc::new(backend);
    let state = lone_state(&backend, Vec::new());
    let pool = pool(&backend, &state);
    let now = Duration::from_secs(1);
    bencher.bench_local(|| {
        let had = pool.recall(&hint(), now);
        if let Pick::Slot(slot) = pool.pick(&hint(), had, &[]) {
            pool.learn(&hint(), slot.server(), now);
        }
    });
}

/// To the one who can use it, behind so many who have tried that server and wait for another one.
#[divan::bench(args = [1, 1_000, 100_000])]
fn hand_over_past(bencher: Bencher<'_, '_>, waiting: usize) {
    let mut backend = backend(2, Balance::First, 1);
    backend.keys.queue_length = 200_000;
    let backend = Arc::new(backend);
    let state = lone_state(&backend, Vec::new());
    let test_inbox = Arc::<TestInbox>::default();
    let inbox = Arc::clone(&test_inbox) as Arc<dyn Inbox>;
    let pool = Pool::new(Arc::clone(&backend), Arc::clone(&state), inbox, 0);
    let (Pick::Slot(first), Pick::Slot(_other)) =
        (pool.pick(&hint(), None, &[]), pool.pick(&hint(), None, &[]))
    else {
        return;
    };
    let tried = [first.server().key()];
    let waits: Vec<_> = (0..waiting)
        .filter_map(|place| pool.wait(place, &tried, None).ok())
        .collect();
    let mut held = Some(first);
    bencher.bench_local(|| {
        let wait = pool.wait(0, &[], None);
        held = None;
        held = granted(&test_inbox);
        wait.map(Wait::end)
    });
    drop((waits, held));
}

fn granted(test_inbox: &TestInbox) -> Option<ServerSlot> {
    let events = test_inbox.take();
    events.into_iter().find_map(|event| match event {
        BackendEvent::Granted(grant) => grant.slot,
        BackendEvent::Failed(_) | BackendEvent::Look(_) => None,
    })
}

#[divan::bench(args = [1, 10_000])]
fn hand_over(bencher: Bencher<'_, '_>, waiting: usize) {
    let mut backend = backend(1, Balance::RoundRobin, 1);
    backend.keys.queue_length = 20_000;
    let backend = Arc::new(backend);
    let state = lone_state(&backend, Vec::new());
    let test_inbox = Arc::<TestInbox>::default();
    let inbox = Arc::clone(&test_inbox) as Arc<dyn Inbox>;
    let pool = Pool::new(Arc::clone(&backend), Arc::clone(&state), inbox, 0);
    let Pick::Slot(first) = pool.pick(&hint(), None, &[]) else {
        return;
    };
    let mut held = Some(first);
    let mut waits: VecDeque<_> = (0..waiting)
        .filter_map(|place| pool.wait(place, &[], None).ok())
        .collect();
    bencher.bench_local(|| {
        waits.extend(pool.wait(0, &[], None));
        held = None;
        held = granted(&test_inbox);
        if let Some(wait) = waits.pop_front() {
            wait.end();
        }
    });
}
