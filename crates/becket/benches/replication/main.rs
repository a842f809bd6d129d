//! What it costs to send and to receive 50 000 sessions a second: the control threads, and the workers beside them.
//!
//! Run with `cargo bench -p becket --bench replication [-- SECONDS RATE]`. Without `--bench`, as in CI, each part runs for a
//! moment and looks whether sessions arrive.
//!
//! * *Control*: two nodes over UDP on loopback, each on a thread of its own as control is, and the main thread in the
//!   worker's place: it puts sessions into the first node's table and leaves notes. The figure is CPU time of each control
//!   thread, system calls included. The promise: less than half a core for the receiver.
//! * *Table* (`table.rs`): a worker's share of the same: lookups and stores in the receiver's table, as many as one core
//!   can do, while sessions arrive and while none do.
//! * *Terminator* (`terminator.rs`): a becket that resumes TLS 1.2 sessions at a steady rate, while it is sent sessions and
//!   while it is not.
//!
//! Where there are two CPUs, what is measured in the last two has the first, and everything else the second. They may be two
//! threads of one core, so the second has the same to do while nothing is sent: then two other nodes exchange sessions there.

mod clients;
mod host;
#[path = "../shared/supervised.rs"]
mod supervised;
mod table;
mod terminator;

use std::fmt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use becket_sys::affinity::{allowed_cpus, pin_current_thread};

use self::host::{Control, PAUSE, config, free_addresses, write_files};
use self::terminator::Layout;

/// How long and how much.
struct Plan {
    /// Sessions per second.
    rate: u64,
    /// Of one measurement.
    slice: Duration,
    /// Measurements with and without sessions that arrive, each.
    rounds: u32,
}

/// What a slice found, of one thing.
#[derive(Default)]
struct Series {
    alone: Vec<f64>,
    fed: Vec<f64>,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Vec<u64> = arguments.iter().filter_map(|a| a.parse().ok()).collect();
    let real = arguments.iter().any(|argument| argument == "--bench");
    let (seconds, rate) = match (real, &numbers[..]) {
        (false, _) => (1, 2_000),
        (true, [seconds, rate, ..]) => (*seconds, *rate),
        (true, _) => (10, 50_000),
    };
    let plan = Plan {
        rate,
        slice: Duration::from_millis(if real { 2_000 } else { 200 }),
        rounds: if real { seconds as u32 } else { 1 },
    };
    let folder = tempfile::tempdir().expect("a folder");
    write_files(folder.path());
    let elsewhere = beside(|| {
        let [sender, receiver] = pair(folder.path());
        control(&sender, &receiver, seconds, rate);
        let elsewhere = pair(folder.path());
        table::run(&sender, &receiver, &elsewhere[0], &plan);
        elsewhere
    });
    for layout in [Layout::OneCpu, Layout::WorkerAlone] {
        terminator::run(folder.path(), layout, &elsewhere[0], &plan);
    }
}

/// Two nodes of a cluster of their own.
fn pair(folder: &Path) -> [Control; 2] {
    let addresses = free_addresses();
    let nodes = [0, 1].map(|node| Control::start(&config(folder, node, addresses)));
    while nodes
        .iter()
        .any(|node| node.ask().0.replica.peers.is_empty())
    {
        thread::sleep(PAUSE);
    }
    nodes
}

fn control(sender: &Control, receiver: &Control, seconds: u64, rate: u64) {
    let before = [sender.ask().1, receiver.ask().1];
    sender.make_sessions(Duration::from_secs(seconds), rate);
    thread::sleep(50 * PAUSE);
    let after = [sender.ask(), receiver.ask()];
    let (told, stored) = (after[0].0.sessions.told, after[1].0.sessions.stored);
    assert!(stored > 0, "nothing arrived");
    println!("control: {told} sessions told and {stored} stored in {seconds} s");
    for ((what, before), (_, after)) in ["sender", "receiver"].iter().zip(before).zip(&after) {
        let time = (*after - before).as_secs_f64();
        let share = time * 100.0 / seconds as f64;
        let each = time * 1e6 / stored as f64;
        println!("  {what}: {share:.1} % of a core, {each:.2} us for each session");
    }
}

impl Series {
    fn add(&mut self, fed: bool, value: f64) {
        let values = if fed { &mut self.fed } else { &mut self.alone };
        values.push(value);
    }

    /// Prints the medians and their spread, and how much more it was in the same round.
    fn print(self, what: &str) {
        let pairs = self.alone.iter().zip(&self.fed);
        let more = pairs
            .map(|(alone, fed)| (fed / alone - 1.0) * 100.0)
            .collect();
        let [alone, fed, more] = [self.alone, self.fed, more].map(Middle::of);
        println!("  {what}: alone {alone:.3}, fed {fed:.3}, more in % {more:+.1}");
    }
}

/// The middle of some values: the quartiles.
struct Middle([f64; 3]);

impl Middle {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let quarter = |number: usize| values.get(values.len() * number / 4).copied();
        Self([1, 2, 3].map(|number| quarter(number).unwrap_or(f64::NAN)))
    }
}

impl fmt::Display for Middle {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [low, median, high] = &self.0;
        fmt::Display::fmt(median, out)?;
        out.write_str(" (")?;
        fmt::Display::fmt(low, out)?;
        out.write_str(" to ")?;
        fmt::Display::fmt(high, out)?;
        out.write_str(")")
    }
}

/// Does something on the CPU of what is not measured, with all threads that it starts.
fn beside<T: Send>(something: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let pinned = scope.spawn(|| {
            pin(1);
            something()
        });
        pinned.join().expect("it does not panic")
    })
}

/// Ties this thread, and those that it starts, to one of the CPUs, where there are several.
fn pin(number: usize) {
    thread_local!(static CPUS: Vec<usize> = allowed_cpus().unwrap_or_default());
    let cpu = CPUS.with(|cpus| cpus.get(number).copied());
    if let Some(cpu) = cpu {
        pin_current_thread(cpu).expect("a CPU that was allowed");
    }
}
