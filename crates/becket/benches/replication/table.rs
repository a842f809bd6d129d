//! A worker's lookups and stores, beside sessions of peers that come into the same table.
//!
//! The worker does nothing else, so it meets the locks as often as it can; a handshake would take a hundred times as long
//! as what is done here for it.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use std::{hint, thread};

use becket_proto::session::{PolicyTag, Session};
use becket_proto::session_table::{Lives, Lookup};
use becket_proto::ticket::{Origin, OriginId};
use becket_proxy::shared::SharedState;
use becket_stats::histogram::Histogram;
use becket_sys::cpu::thread_time;

use crate::host::{Control, STATE};
use crate::{Plan, Series, pin};

/// What a worker did in one slice.
struct Done {
    operations: u64,
    time: Duration,
    lookups: Histogram,
}

/// Prints what an operation costs with sessions that arrive, and while they go elsewhere.
pub(crate) fn run(sender: &Control, receiver: &Control, elsewhere: &Control, plan: &Plan) {
    let (orders, ordered) = channel();
    let (results, done) = channel();
    let (shared, policy) = (receiver.shared.clone(), receiver.policy);
    thread::spawn(move || work(&shared, policy, &ordered, &results));
    let (mut each, mut typical, mut late) =
        (Series::default(), Series::default(), Series::default());
    let stored = || receiver.ask().0.sessions.stored;
    let before = stored();
    // One more in front, which is not counted: the table fills.
    for round in 0..=plan.rounds {
        for turn in [round % 2 == 0, round % 2 != 0] {
            orders.send(plan.slice).expect("the worker is there");
            let from = if turn { sender } else { elsewhere };
            from.make_sessions(plan.slice, plan.rate);
            let done = done.recv().expect("the worker is there");
            if round > 0 {
                let nanos = |quantile| done.lookups.quantile(quantile).as_nanos() as f64 / 1e3;
                let time = done.time.as_nanos() as f64;
                each.add(turn, time / done.operations as f64);
                typical.add(turn, nanos(0.5));
                late.add(turn, nanos(0.999));
            }
        }
    }
    assert!(stored() > before, "nothing arrived");
    println!(
        "table: nine lookups and a store, again and again, {} rounds",
        plan.rounds
    );
    each.print("CPU time of an operation, ns");
    typical.print("time of a lookup, median, us");
    late.print("time of a lookup, 99.9 %, us");
}

fn work(
    shared: &SharedState,
    policy: PolicyTag,
    orders: &Receiver<Duration>,
    results: &Sender<Done>,
) {
    pin(0);
    let mut made = 0;
    (0..OWN).for_each(|_| store(shared, policy, &mut made));
    let mut chosen = 1_u64;
    for slice in orders {
        let mut lookups = Histogram::new();
        let (begun, before) = (instant(), thread_time());
        let mut operations = 0;
        while begun.elapsed() < slice {
            for _ in 0..100 {
                for _ in 0..9 {
                    chosen = chosen
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    let id = id(made - (chosen >> 33) % OWN);
                    let now = shared.clock.now().mono;
                    let at = instant();
                    let found = shared.table.get(policy, &id, now);
                    lookups.record(at.elapsed());
                    assert!(matches!(hint::black_box(found), Lookup::Hit(_)));
                }
                store(shared, policy, &mut made);
                operations += 10;
            }
        }
        let time = thread_time() - before;
        let done = Done {
            operations,
            time,
            lookups,
        };
        if results.send(done).is_err() {
            return;
        }
    }
}

fn store(shared: &SharedState, policy: PolicyTag, made: &mut u64) {
    *made += 1;
    let now = shared.clock.now();
    let session = Session::new(
        vec![1; STATE],
        Origin {
            id: OriginId(*made),
            at: now.unix.into(),
        },
    );
    let lives = Lives {
        now: now.mono,
        ttl: Duration::from_secs(300),
    };
    shared.table.insert(policy, &id(*made), session, lives);
}

/// Another than those of the sender.
fn id(number: u64) -> [u8; 32] {
    let mut id = [0xff; 32];
    id[..8].copy_from_slice(&number.to_be_bytes());
    id
}

#[expect(
    clippy::disallowed_methods,
    reason = "the clock is what is measured with"
)]
fn instant() -> Instant {
    Instant::now()
}

/// The sessions that are looked up: the newest of the worker's own.
const OWN: u64 = 20_000;
