//! From giving a slot back on one thread until the longest waiter, on another, would start its connect.
//!
//! Run with `cargo bench -p becket --bench hand_over [-- SAMPLES]`. The waiter's thread plays a worker: the real pool,
//! queue, mailbox, waker and poll, and turns as `crates/proxy/src/worker/event_loop.rs` has them, with steps that only spend time. Their
//! lengths are those of real ones: 15 us to relay a few records; 80 us, or 300 us, for the hello of a full handshake with
//! P-256, or RSA-2048, which is the longest step of its connection: what rustls takes in all is 69 us, or 288 us
//! (`library in memory` of the stored run), and a receive and a send come to it.
//! Steps arrive at random, as many as make the worker busy for 0, 50 or 90 % of the time, and slots are given back at
//! random times, so what is seen is what a random moment finds. Two CPUs, one for each thread; the connect is not made.
//!
//! `at the end` is a worker that looks for messages when its turn is over; `between` is one that looks between two
//! steps, as ours does. The promise: a p99 below 100 us at 50 %. Without `--bench`, as in CI, a few slots go round.

use std::io::{Read, Write};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{io, thread};

use becket_proto::balance::mix;
use becket_proxy::backend::backend_state::Pick;
use becket_proxy::backend::backend_state::Wait;
use becket_proxy::backend::inbox::{BackendEvent, Grant, Inbox};
use becket_proxy::backend::pool::{PickHint, Pool};
use becket_proxy::backend::registry::lone_state;
use becket_proxy::backend::slot::ServerSlot;
use becket_proxy::worker::mailbox::{Mailbox, WorkerMessage};
use becket_sys::affinity::{allowed_cpus, pin_current_thread};
use becket_tls::config::{Backend, Server, ServerAddress};
use hdrhistogram::Histogram;
use mio::net::UnixStream;
use mio::{Events, Interest, Poll, Token, Waker};

/// What the worker is busy with: the share of its busy time that goes into handshakes, and how long the step of one is.
const MIXES: [(&str, f64, Duration); 4] = [
    ("relays", 0.0, P256),
    ("half P-256", 0.5, P256),
    ("P-256", 1.0, P256),
    ("half RSA-2048", 0.5, RSA),
];
const RELAY: Duration = Duration::from_micros(15);
const P256: Duration = Duration::from_micros(80);
const RSA: Duration = Duration::from_micros(300);
/// What a turn gave handshakes when this was measured.
const HANDSHAKE_TIME_PER_TURN: Duration = Duration::from_millis(1);
/// How long a slot is held, on average.
const HELD: Duration = Duration::from_micros(200);
const MAIL: Token = Token(0);
const STEPS: Token = Token(1);

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let asked = arguments.iter().find_map(|argument| argument.parse().ok());
    let real = arguments.iter().any(|argument| argument == "--bench");
    let samples = if real { asked.unwrap_or(10_000) } else { 10 };
    let cpus = allowed_cpus()?;
    println!("{samples} hand-overs each; us");
    println!("busy  with           looks        p50     p99   p99.9     max");
    for between in [false, true] {
        let case = |busy, mix| Case {
            busy,
            mix,
            between,
            samples,
        };
        measure(&case(0.0, MIXES[0]), &cpus)?;
        for busy in [0.5, 0.9] {
            for mix in MIXES {
                measure(&case(busy, mix), &cpus)?;
            }
        }
    }
    Ok(())
}

/// What is measured once.
struct Case {
    busy: f64,
    mix: (&'static str, f64, Duration),
    between: bool,
    samples: u64,
}

fn measure(case: &Case, cpus: &[usize]) -> io::Result<()> {
    let Case { busy, mix, .. } = *case;
    let mut server = Server::plain("/a", vec![ServerAddress::Unix("/a".into())]);
    server.keys.maxconn = Some(1);
    let backend = Arc::new(Backend::plain("app", vec![server]));
    let state = lone_state(&backend, Vec::new());
    let poll = Poll::new()?;
    let (ours, mut theirs) = UnixStream::pair()?;
    poll.registry()
        .register(&mut theirs, STEPS, Interest::READABLE)?;
    let desk = Arc::new(Desk {
        mailbox: Arc::new(Mailbox::new(Waker::new(poll.registry(), MAIL)?)),
        wakeup: Mutex::new(ours),
        relays: AtomicU64::new(0),
        handshakes: AtomicU64::new(0),
        returned: Mutex::new(None),
        over: AtomicBool::new(false),
    });
    let mut giver = Giver::new(&desk, busy, (mix.1, mix.2));
    let times = thread::scope(|scope| {
        let worker = scope.spawn(|| {
            pin(cpus, 1);
            let inbox = Arc::clone(&desk.mailbox) as Arc<dyn Inbox>;
            let pool = Pool::new(Arc::clone(&backend), Arc::clone(&state), inbox, 0);
            let times = Worker::new(poll, theirs, &desk, pool, case).run(case.samples);
            desk.over.store(true, SeqCst);
            times
        });
        pin(cpus, 0);
        giver.run();
        worker.join().unwrap_or_default()
    });
    let mut histogram = Histogram::<u64>::new(3).map_err(io::Error::other)?;
    for time in times {
        let nanos = time.as_nanos() as u64;
        histogram.record(nanos).map_err(io::Error::other)?;
    }
    assert!(histogram.len() >= case.samples, "a slot was lost");
    let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
    println!(
        "{:3.0} %  {:13}  {:10}  {:5.1}  {:6.1}  {:6.1}  {:6.1}",
        busy * 100.0,
        if busy > 0.0 { mix.0 } else { "nothing" },
        if case.between {
            "between"
        } else {
            "at the end"
        },
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
    Ok(())
}

/// What both threads see.
#[derive(Debug)]
struct Desk {
    mailbox: Arc<Mailbox>,
    /// Rung for steps, as a socket would be.
    wakeup: Mutex<UnixStream>,
    /// Steps that have arrived and were not begun.
    relays: AtomicU64,
    handshakes: AtomicU64,
    /// The slot, on its way back to whoever gives it.
    returned: Mutex<Option<ServerSlot>>,
    over: AtomicBool,
}

/// Makes steps arrive, and gives the slot back at random times; never sleeps.
struct Giver<'a> {
    desk: &'a Desk,
    /// Mean times between two steps of a kind, and when the next one is due; nothing where there are none.
    relays: Option<(Duration, Instant)>,
    handshakes: Option<(Duration, Instant)>,
    slot: Option<(ServerSlot, Instant)>,
    random: u64,
}

impl<'a> Giver<'a> {
    fn new(desk: &'a Desk, busy: f64, (handshakes, length): (f64, Duration)) -> Self {
        let every =
            |step: Duration, share: f64| (share > 0.0).then(|| (step.div_f64(busy * share), now()));
        Self {
            desk,
            relays: every(RELAY, if busy > 0.0 { 1.0 - handshakes } else { 0.0 }),
            handshakes: every(length, if busy > 0.0 { handshakes } else { 0.0 }),
            slot: None,
            random: 1,
        }
    }

    fn run(&mut self) {
        while !self.desk.over.load(SeqCst) {
            let now = now();
            let mut arrived = false;
            if let Some((mean, due)) = self.relays.filter(|(_, due)| *due <= now) {
                self.relays = Some((mean, due + self.dice(mean)));
                self.desk.relays.fetch_add(1, SeqCst);
                arrived = true;
            }
            if let Some((mean, due)) = self.handshakes.filter(|(_, due)| *due <= now) {
                self.handshakes = Some((mean, due + self.dice(mean)));
                self.desk.handshakes.fetch_add(1, SeqCst);
                arrived = true;
            }
            if arrived {
                // A full socket has rung already.
                let wakeup = self.desk.wakeup.lock();
                let _rung = wakeup.map(|mut wakeup| wakeup.write(&[0]));
            }
            if let Ok(mut returned) = self.desk.returned.try_lock()
                && let Some(slot) = returned.take()
            {
                self.slot = Some((slot, now + self.dice(HELD)));
            }
            // Dropping it hands it over.
            drop(self.slot.take_if(|(_, due)| *due <= now));
        }
    }

    /// Exponentially distributed.
    fn dice(&mut self, mean: Duration) -> Duration {
        self.random = mix(self.random);
        let uniform = ((self.random >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        mean.mul_f64(-uniform.ln())
    }
}

/// Waits for the slot again and again, busy with other things.
struct Worker<'a> {
    poll: Poll,
    wakeup: UnixStream,
    desk: &'a Desk,
    pool: Pool,
    wait: Option<Wait>,
    between: bool,
    handshake: Duration,
    times: Vec<Duration>,
}

impl<'a> Worker<'a> {
    fn new(poll: Poll, wakeup: UnixStream, desk: &'a Desk, pool: Pool, case: &Case) -> Self {
        Self {
            poll,
            wakeup,
            desk,
            pool,
            wait: None,
            between: case.between,
            handshake: case.mix.2,
            times: Vec::new(),
        }
    }

    fn run(mut self, samples: u64) -> Vec<Duration> {
        let hint = PickHint {
            source: IpAddr::from([192, 0, 2, 1]),
            name: None,
            origin: None,
        };
        if let Pick::Slot(slot) = self.pool.pick(&hint, None, &[]) {
            self.send_back(slot);
        }
        let mut events = Events::with_capacity(64);
        while (self.times.len() as u64) < samples {
            let left = self.desk.handshakes.load(SeqCst) > 0;
            let timeout = left.then_some(Duration::ZERO);
            let mailbox = &self.desk.mailbox;
            if mailbox.wait(&mut self.poll, &mut events, timeout).is_err() {
                break;
            }
            if events.iter().any(|event| event.token() == STEPS) {
                let _rung = self.wakeup.read(&mut [0; 4096]);
            }
            if self.desk.mailbox.is_loaded() {
                self.read_mail();
            }
            let relays = self.desk.relays.swap(0, SeqCst);
            (0..relays).for_each(|_| self.step(RELAY));
            let enough = now() + HANDSHAKE_TIME_PER_TURN;
            while self.desk.handshakes.load(SeqCst) > 0 && now() < enough {
                self.desk.handshakes.fetch_sub(1, SeqCst);
                self.step(self.handshake);
            }
        }
        self.times
    }

    fn step(&mut self, length: Duration) {
        let until = now() + length;
        while now() < until {
            std::hint::spin_loop();
        }
        if self.between && self.desk.mailbox.is_loaded() {
            self.read_mail();
        }
    }

    fn read_mail(&mut self) {
        for message in self.desk.mailbox.take() {
            if let WorkerMessage::Event(BackendEvent::Granted(grant)) = message {
                self.take(grant);
            }
        }
    }

    fn take(&mut self, grant: Grant) {
        self.times.push(grant.begun.elapsed());
        if let Some(wait) = self.wait.take() {
            wait.end();
        }
        if let Some(slot) = grant.slot {
            self.send_back(slot);
        }
    }

    /// Waits for the slot, then lets the other thread have it.
    fn send_back(&mut self, slot: ServerSlot) {
        self.wait = self.pool.wait(0, &[], None).ok();
        if let Ok(mut returned) = self.desk.returned.lock() {
            *returned = Some(slot);
        }
    }
}

fn pin(cpus: &[usize], nth: usize) {
    let cpu = cpus.get(nth % cpus.len().max(1)).copied();
    if let Some(Err(error)) = cpu.map(pin_current_thread) {
        println!("not pinned: {error}");
    }
}

#[expect(clippy::disallowed_methods, reason = "a bench is about time")]
fn now() -> Instant {
    Instant::now()
}
