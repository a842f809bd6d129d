//! Tests slots with threads: never more than `maxconn`, nothing lost, first come, first served.
//!
//! Each thread acts as a worker: it has its own pool and inbox, holds connections for a moment,
//! waits if it must, and sometimes leaves the queue. There are no sleeps; a waiting worker polls
//! its inbox.
#![forbid(unsafe_code)]
#![expect(
    clippy::unwrap_used,
    reason = "a test that has nothing to unwrap has failed"
)]

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use becket_config::choices::Balance;
use becket_proto::balance::mix;
use becket_proto::queue::Arrival;
use becket_proxy::backend::backend_state::Pick;
use becket_proxy::backend::backend_state::{BackendState, Wait};
use becket_proxy::backend::inbox::{BackendEvent, Grant, Inbox, TestInbox};
use becket_proxy::backend::pool::{PickHint, Pool};
use becket_proxy::backend::registry::lone_state;
use becket_proxy::backend::server_state::ServerState;
use becket_proxy::backend::slot::ServerSlot;
use becket_tls::config::{Backend, Server, ServerAddress};

const ROUNDS: u64 = 20_000;

fn backend(servers: u32, maxconn: u32) -> Backend {
    let server = |index| {
        let name = format!("/run/server-{index}");
        let mut server = Server::plain(&name, vec![ServerAddress::Unix(name.clone().into())]);
        server.keys.maxconn = Some(maxconn);
        server
    };
    Backend::plain("app", (0..servers).map(server).collect())
}

fn hint() -> PickHint<'static> {
    PickHint {
        source: IpAddr::from([192, 0, 2, 1]),
        name: None,
        origin: None,
    }
}

/// Counts of the servers themselves.
struct Servers {
    states: Arc<[Arc<ServerState>]>,
    now: Vec<AtomicU32>,
    maxconn: u32,
}

impl Servers {
    fn new(states: Arc<[Arc<ServerState>]>, maxconn: u32) -> Self {
        Self {
            now: states.iter().map(|_| AtomicU32::new(0)).collect(),
            states,
            maxconn,
        }
    }

    fn place(&self, slot: &ServerSlot) -> usize {
        let mut states = self.states.iter();
        let place = states.position(|state| Arc::ptr_eq(state, slot.server()));
        place.unwrap()
    }

    fn connect(&self, slot: ServerSlot) -> Held<'_> {
        let now = &self.now[self.place(&slot)];
        let connections = now.fetch_add(1, SeqCst) + 1;
        assert!(connections <= self.maxconn, "{connections}");
        Held { now, slot }
    }
}

/// A connection. The server sees its end before the slot is returned.
struct Held<'a> {
    now: &'a AtomicU32,
    slot: ServerSlot,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.now.fetch_sub(1, SeqCst);
    }
}

/// A worker with few connections.
struct Worker<'a> {
    pool: Pool,
    test_inbox: Arc<TestInbox>,
    servers: &'a Servers,
    held: Vec<Held<'a>>,
    waits: Vec<Wait>,
    random: u64,
    served: u64,
    /// Waits that ended with a refusal.
    refused: u64,
    left: u64,
}

impl<'a> Worker<'a> {
    fn new(
        backend: &Arc<Backend>,
        state: &Arc<BackendState>,
        servers: &'a Servers,
        n: u64,
    ) -> Self {
        let test_inbox = Arc::<TestInbox>::default();
        let inbox = Arc::clone(&test_inbox) as Arc<dyn Inbox>;
        Self {
            pool: Pool::new(Arc::clone(backend), Arc::clone(state), inbox, n as usize),
            test_inbox,
            servers,
            held: Vec::new(),
            waits: Vec::new(),
            random: mix(n),
            served: 0,
            refused: 0,
            left: 0,
        }
    }

    fn dice(&mut self, sides: u64) -> u64 {
        self.random = mix(self.random);
        self.random % sides
    }

    fn ask(&mut self, tried: &[u64], before: Option<Arrival>) {
        match self.pool.pick(&hint(), None, tried) {
            Pick::Slot(slot) => self.serve(slot),
            Pick::Full => match self.pool.wait(0, tried, before) {
                Ok(wait) => self.waits.push(wait),
                Err(_) => {
                    assert!(before.is_none(), "it was let in");
                    self.refused += 1;
                }
            },
            Pick::Nobody => self.refused += 1,
        }
    }

    fn serve(&mut self, slot: ServerSlot) {
        self.served += 1;
        self.held.push(self.servers.connect(slot));
    }

    fn read_mail(&mut self) {
        for event in self.test_inbox.take() {
            if let BackendEvent::Granted(grant) = event {
                self.take(grant);
            }
        }
    }

    fn take(&mut self, grant: Grant) {
        let mut waits = self.waits.iter();
        // A wait that was abandoned drops the grant, which passes the slot on.
        let Some(at) = waits.position(|wait| wait.is_over_by(&grant)) else {
            return;
        };
        self.waits.swap_remove(at).end();
        match grant.slot {
            Some(slot) => self.serve(slot),
            None => self.refused += 1,
        }
    }

    /// Makes one random step of a worker.
    fn step(&mut self) {
        match self.dice(8) {
            0..4 => self.ask(&[], None),
            4 if !self.waits.is_empty() => {
                let at = self.dice(self.waits.len() as u64) as usize;
                drop(self.waits.swap_remove(at));
                self.left += 1;
            }
            sides if !self.held.is_empty() => {
                let at = self.dice(self.held.len() as u64) as usize;
                let held = self.held.swap_remove(at);
                let (server, arrival) = (held.slot.server().key(), held.slot.arrival);
                drop(held);
                if sides == 5 {
                    // That server fails the connection, which then tries another server.
                    self.served -= 1;
                    self.ask(&[server], Some(arrival));
                }
            }
            _ => {}
        }
        self.read_mail();
    }

    /// Finishes all open connections; terminates only if no slot is lost.
    fn finish(&mut self) {
        while !self.waits.is_empty() || !self.held.is_empty() {
            self.held.clear();
            self.read_mail();
            thread::yield_now();
        }
    }
}

fn hammer(threads: u64, servers: u32, maxconn: u32, change: impl Fn(&mut Backend)) {
    let mut backend = backend(servers, maxconn);
    change(&mut backend);
    let backend = Arc::new(backend);
    let state = lone_state(&backend, Vec::new());
    let counts = Servers::new(state.servers(), maxconn);
    let begin = Barrier::new(threads as usize);
    let asked = AtomicU64::new(0);
    thread::scope(|scope| {
        for n in 0..threads {
            let (backend, state, counts) = (&backend, &state, &counts);
            let (begin, asked) = (&begin, &asked);
            scope.spawn(move || {
                let mut worker = Worker::new(backend, state, counts, n);
                begin.wait();
                for _ in 0..ROUNDS {
                    worker.step();
                }
                worker.finish();
                asked.fetch_add(worker.served + worker.refused + worker.left, SeqCst);
            });
        }
    });
    assert!(asked.load(SeqCst) > 0);
    assert_eq!(state.waiting(), 0);
    assert!(counts.states.iter().all(|server| server.in_use() == 0));
}

#[test]
fn servers_never_exceed_maxconn_and_no_slot_is_lost() {
    for (threads, servers, maxconn) in [(2, 1, 1), (2, 3, 2), (4, 1, 3), (8, 4, 2), (8, 1, 1)] {
        hammer(threads, servers, maxconn, |_| {});
        hammer(threads, servers, maxconn, |backend| {
            backend.keys.balance = Balance::LeastConnections;
            backend.keys.queue_length = 3;
        });
    }
}

#[test]
fn adding_and_removing_servers_loses_no_waiter() {
    let backend = Arc::new(backend(2, 2));
    let state = lone_state(&backend, Vec::new());
    let counts = Servers::new(state.servers(), 2);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..3)
            .map(|n| {
                let (backend, state, counts) = (&backend, &state, &counts);
                scope.spawn(move || {
                    let mut worker = Worker::new(backend, state, counts, n);
                    for _ in 0..ROUNDS {
                        worker.step();
                    }
                    worker.finish();
                })
            })
            .collect();
        let mut random = 1;
        while !workers.iter().all(|worker| worker.is_finished()) {
            random = mix(random);
            let server = &counts.states[random as usize % 2];
            server.set_failing(random & 4 == 0);
            thread::yield_now();
        }
    });
    assert_eq!(state.waiting(), 0);
    assert!(counts.states.iter().all(|server| server.in_use() == 0));
}

#[test]
fn waiters_are_served_in_order_of_arrival_across_workers() {
    let backend = Arc::new(backend(1, 1));
    let state = lone_state(&backend, Vec::new());
    let order = Mutex::new(Vec::new());
    let test_inboxes: Vec<Arc<TestInbox>> = (0..4).map(|_| Arc::default()).collect();
    let pools: Vec<Pool> = test_inboxes
        .iter()
        .map(|test_inbox| {
            let inbox = Arc::clone(test_inbox) as Arc<dyn Inbox>;
            Pool::new(Arc::clone(&backend), Arc::clone(&state), inbox, 0)
        })
        .collect();
    let Pick::Slot(first) = pools[0].pick(&hint(), None, &[]) else {
        panic!("a slot");
    };
    // Arrivals alternate between the workers, and are numbered by their place.
    let waits: Vec<Wait> = (0..200)
        .map(|place| pools[place % 4].wait(place, &[], None).unwrap())
        .collect();
    drop(first);
    // From here on the slot moves between threads.
    thread::scope(|scope| {
        for test_inbox in &test_inboxes {
            let order = &order;
            scope.spawn(move || {
                let mut served = 0;
                while served < 50 {
                    for event in test_inbox.take() {
                        if let BackendEvent::Granted(grant) = event {
                            order.lock().unwrap().push(grant.place);
                            served += 1;
                            drop(grant);
                        }
                    }
                    thread::yield_now();
                }
            });
        }
    });
    waits.into_iter().for_each(Wait::end);
    assert_eq!(order.into_inner().unwrap(), (0..200).collect::<Vec<_>>());
}
