//! Measures CPU costs, and formats them as a table.

use std::fmt::Write;
use std::thread;
use std::time::Duration;

use crate::terminator::Terminator;

/// Threads of becket that handle a message, whose CPU time is measured.
#[derive(Clone, Copy)]
pub(crate) enum Who {
    Worker,
    Control,
    WorkerAndControl,
    WorkerAndReaders,
    Pages,
    /// The worker, and threads that sign for it.
    Signers,
}

/// Kind of message, which is one row of the table.
pub(crate) struct Kind {
    pub(crate) what: &'static str,
    pub(crate) who: Who,
    /// Limit that bounds the number of these messages.
    pub(crate) bound: &'static str,
}

pub(crate) struct Meter {
    pub(crate) terminator: Terminator,
    /// Number of rounds. The result is the median of all rounds.
    pub(crate) rounds: usize,
    pub(crate) times: usize,
    rows: Vec<Row>,
}

struct Row {
    kind: Kind,
    bytes: f64,
    nanos: f64,
}

impl Meter {
    pub(crate) fn new(terminator: Terminator, rounds: usize, times: usize) -> Self {
        Self {
            terminator,
            rounds,
            times,
            rows: Vec::new(),
        }
    }

    /// Measures the cost per message. `act` sends `messages` messages and returns the number of
    /// bytes sent.
    pub(crate) fn each(&mut self, kind: Kind, messages: usize, mut act: impl FnMut() -> usize) {
        let (bytes, nanos) = median(self.in_turns(kind.who, 1, |_| act()));
        let each = (bytes / messages as f64, nanos / messages as f64);
        self.rows.push(Row::new(kind, each));
    }

    /// Returns the number of bytes that `act` returns for each of `count` indices, and the CPU time of a call in nanoseconds.
    /// The indices take turns in each round, because a processor changes its speed.
    pub(crate) fn in_turns(
        &self,
        who: Who,
        count: usize,
        mut act: impl FnMut(usize) -> usize,
    ) -> Vec<(f64, f64)> {
        let mut found = vec![Vec::new(); count];
        for _ in 0..self.rounds {
            for (index, found) in found.iter_mut().enumerate() {
                found.push(self.round(who, vec![index; self.times], &mut act));
            }
        }
        found.into_iter().map(median).collect()
    }

    /// Measures the cost per message within a connection: the difference between a connection with
    /// `messages` messages and one without. `prepare` opens a connection, which is not measured,
    /// and `act` sends the messages.
    pub(crate) fn within<T>(
        &mut self,
        kind: Kind,
        messages: usize,
        mut prepare: impl FnMut(usize) -> T,
        mut act: impl FnMut(T) -> usize,
    ) {
        let found = (0..self.rounds).map(|_| {
            let [none, all] = [0, messages].map(|messages| {
                let ready = (0..self.times).map(|_| prepare(messages)).collect();
                self.round(kind.who, ready, &mut act)
            });
            let each = |all: f64, none: f64| (all - none) / messages as f64;
            (each(all.0, none.0), each(all.1, none.1))
        });
        let found = median(found.collect());
        self.rows.push(Row::new(kind, found));
    }

    /// Returns the number of bytes and the CPU time in nanoseconds, both as a mean per item of
    /// `ready`.
    fn round<T>(&self, who: Who, ready: Vec<T>, mut act: impl FnMut(T) -> usize) -> (f64, f64) {
        // The scheduler updates a thread's CPU time when the thread goes to sleep.
        let time = || {
            thread::sleep(PAUSE);
            self.terminator.time_of(who.threads())
        };
        let (count, before) = (ready.len() as f64, time());
        let bytes: usize = ready.into_iter().map(&mut act).sum();
        let spent = time() - before;
        (bytes as f64 / count, spent.as_nanos() as f64 / count)
    }

    /// Returns the table in Markdown. Each row is compared with the first one, which is bulk data.
    pub(crate) fn table(&self) -> String {
        let mut table = HEAD.to_owned();
        let bulk = self.rows.first().map_or(f64::NAN, Row::nanos_a_byte);
        for row in &self.rows {
            let Kind { what, who, bound } = row.kind;
            let (bytes, micros) = (row.bytes, row.nanos / 1e3);
            let who = who.label();
            let nanos = row.nanos_a_byte();
            let shares = if bytes > 0.0 && nanos > 0.0 {
                format!("{} | {}", figure(nanos), figure(nanos / bulk))
            } else {
                "– | –".to_owned()
            };
            // The difference can be zero or negative because of measurement noise.
            let micros = if micros > 0.0 {
                figure(micros)
            } else {
                "–".to_owned()
            };
            // Writing to a string does not fail.
            let _ok = writeln!(
                table,
                "| {what} | {bytes:.0} | {micros} | {who} | {shares} | {bound} |"
            );
        }
        table + "\n**The worst ratios** to a byte of bulk data: " + &self.worst(bulk) + ".\n"
    }

    fn worst(&self, bulk: f64) -> String {
        let mut rows: Vec<_> = self.rows.iter().filter(|row| row.bytes > 0.0).collect();
        rows.sort_by(|one, other| other.nanos_a_byte().total_cmp(&one.nanos_a_byte()));
        let named = rows.iter().take(3).map(|row| {
            let ratio = figure(row.nanos_a_byte() / bulk);
            format!("{} ({ratio})", row.kind.what)
        });
        named.collect::<Vec<_>>().join(", ")
    }
}

impl Row {
    fn new(kind: Kind, (bytes, nanos): (f64, f64)) -> Self {
        Self { kind, bytes, nanos }
    }

    fn nanos_a_byte(&self) -> f64 {
        self.nanos / self.bytes
    }
}

impl Who {
    fn threads(self) -> &'static [&'static str] {
        match self {
            Self::Worker => &["becket-0"],
            Self::Control => &["becket"],
            Self::WorkerAndControl => &["becket-0", "becket"],
            Self::WorkerAndReaders => &["becket-0", "becket-reader"],
            Self::Pages => &["admin-http", "page"],
            Self::Signers => &["becket-0", "becket-crypto-0", "becket-crypto-1"],
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Control => "control",
            Self::WorkerAndControl => "both",
            Self::WorkerAndReaders => "worker, readers",
            Self::Pages => "pages",
            Self::Signers => "worker, signers",
        }
    }
}

/// Returns the measurement with the median time.
fn median(mut found: Vec<(f64, f64)>) -> (f64, f64) {
    found.sort_by(|one, other| one.1.total_cmp(&other.1));
    found[found.len() / 2]
}

/// Formats a value with three significant digits and at least one digit before the decimal point.
pub(crate) fn figure(value: f64) -> String {
    let places = match value.abs() {
        0.0..10.0 => 2,
        10.0..100.0 => 1,
        _ => 0,
    };
    format!("{value:.places$}")
}

const PAUSE: Duration = Duration::from_millis(5);
const HEAD: &str = "| what a peer sends | bytes | CPU, us | whose | ns a byte | times bulk | what bounds it |\n|---|---|---|---|---|---|---|\n";
