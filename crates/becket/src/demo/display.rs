//! Prints the demo's output: one line per second about becket's traffic, and a summary at the end.
//!
//! [`CounterSums`] contains the sums of the workers' counters at one time. A line shows the
//! difference between two such readings. Handshake times cover only the last second.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use becket_stats::units::{show_bytes, show_count, show_us};

use becket_control::totals::Totals;
use becket_control::web::span;
use becket_proxy::metrics::{AtomicHistogram, BUCKETS, Counters, quantile};

/// Prints one line per second until `stop` receives a message or its sender is dropped. Then prints
/// a summary.
///
/// # Errors
/// Fails if standard output is closed.
#[expect(
    clippy::disallowed_methods,
    reason = "a thread of its own that only waits and prints"
)]
pub fn display(counters: Vec<Arc<Counters>>, stop: Receiver<()>) -> io::Result<()> {
    let mut out = io::stdout();
    let start = Instant::now();
    let (mut before, mut then) = (CounterSums::of(&counters), start);
    for number in 0_u64.. {
        if stop.recv_timeout(SECOND) != Err(RecvTimeoutError::Timeout) {
            break;
        }
        let (after, now) = (CounterSums::of(&counters), Instant::now());
        if number.is_multiple_of(LINES_PER_HEADING) {
            writeln!(out, "{HEADING}")?;
        }
        writeln!(out, "{}", line(&before, &after, now - then))?;
        (before, then) = (after, now);
    }
    let totals = Totals::of(&counters);
    writeln!(out, "\n{}", summary(&totals, start.elapsed()))
}

fn summary(totals: &Totals, elapsed: Duration) -> String {
    format!(
        "total: connections {}; handshakes: full {}, resumed {}, failed {}; bytes: in {}, out {}; time {}",
        show_count(totals.accepted),
        show_count(totals.handshakes_full),
        show_count(totals.handshakes_resumed),
        show_count(totals.handshakes_failed),
        show_bytes(totals.client_bytes_in as f64),
        show_bytes(totals.client_bytes_out as f64),
        span(elapsed),
    )
}

#[derive(Debug)]
struct CounterSums {
    totals: Totals,
    times: [u64; BUCKETS],
}

impl CounterSums {
    fn of(counters: &[Arc<Counters>]) -> Self {
        Self {
            totals: Totals::of(counters),
            times: AtomicHistogram::gather(
                counters
                    .iter()
                    .flat_map(|c| [&c.handshake_full, &c.handshake_resumed]),
            )
            .counts,
        }
    }
}

/// Formats the changes between two readings.
fn line(before: &CounterSums, after: &CounterSums, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64().max(1e-3);
    let (totals, earlier) = (&after.totals, &before.totals);
    let delta = |value: fn(&Totals) -> u64| value(totals).saturating_sub(value(earlier));
    let rate = |value| show_count((delta(value) as f64 / seconds).round() as u64);
    let bytes = |value| show_bytes(delta(value) as f64 / seconds);
    let quantile = |share| quantile(&before.times, &after.times, share);
    let time = |share| quantile(share).map_or("-".to_owned(), |us| show_us(us as f64));
    let values = [
        rate(|t| t.accepted),
        show_count(totals.connections),
        show_count(totals.accepted),
        rate(|t| t.handshakes_full),
        rate(|t| t.handshakes_resumed),
        rate(|t| t.handshakes_failed),
        bytes(|t| t.client_bytes_in),
        bytes(|t| t.client_bytes_out),
        time(0.5),
        time(0.99),
    ];
    let pad = |(value, width): (String, usize)| format!("{value:>width$}");
    let cells: Vec<_> = values.into_iter().zip(WIDTHS).map(pad).collect();
    cells.join("  ")
}

const SECOND: Duration = Duration::from_secs(1);
/// Number of lines between two headings, so that the column names are always visible on the screen.
const LINES_PER_HEADING: u64 = 20;
/// Groups of columns, and columns. [`WIDTHS`] contains the widths of the columns.
const HEADING: &str = concat!(
    "               connections                    handshakes      bytes of clients      handshake time\n",
    "  new/s    open      total   full/s  resumed/s  failed/s       in/s      out/s    median       p99",
);
const WIDTHS: [usize; 10] = [7, 6, 9, 7, 9, 8, 9, 9, 8, 8];

#[cfg(test)]
mod tests {
    use super::*;
    use becket_proto::close_reason::CloseReason;

    fn words(line: &str) -> Vec<String> {
        line.split("  ")
            .map(str::trim)
            .filter(|w| !w.is_empty())
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn a_line_shows_the_difference_between_two_readings() {
        let counters: Vec<Arc<Counters>> = vec![Arc::default(), Arc::default()];
        counters[0].accepted.add(1000);
        let before = CounterSums::of(&counters);
        for _ in 0..99 {
            counters[0]
                .handshake_full
                .record(Duration::from_micros(1000));
        }
        counters[1]
            .handshake_resumed
            .record(Duration::from_micros(9_000));
        counters[1].accepted.add(200);
        counters[0].closed.of(CloseReason::Finished).add(986);
        counters[0].closed.of(CloseReason::NotTls).add(4);
        counters[1].closed.of(CloseReason::Finished).add(200);
        counters[0].handshakes[1][0].add(99);
        counters[1].handshakes[0][1].add(2);
        counters[0].client_bytes_out.add(4 * 1024 * 1024);
        let after = CounterSums::of(&counters);
        let line = words(&line(&before, &after, Duration::from_secs(2)));
        let expected = [
            "100", "10", "1 200", "50", "1", "2", "0 B", "2.0 MiB", "1.02 ms", "1.02 ms",
        ];
        assert_eq!(line, expected);
        assert_eq!(quantile(&before.times, &after.times, 1.0), Some(9_216));
        assert_eq!(
            summary(&after.totals, Duration::from_secs(75)),
            "total: connections 1 200; handshakes: full 99, resumed 2, failed 4; bytes: in 0 B, out 4.0 MiB; time 1 min 15 s"
        );
    }

    #[test]
    fn a_group_heading_is_as_wide_as_its_columns() {
        let (groups, columns) = HEADING.split_once('\n').unwrap();
        assert_eq!(groups.len(), columns.len());
        assert_eq!(
            columns.len(),
            WIDTHS.iter().sum::<usize>() + 2 * (WIDTHS.len() - 1)
        );
        let end = |line: &str, name: &str| line.find(name).map(|at| at + name.len());
        for (group, last) in [("connections", "total"), ("handshakes", "failed/s")] {
            assert_eq!(end(groups, group), end(columns, last));
        }
    }
}
