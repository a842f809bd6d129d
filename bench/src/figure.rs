//! Defines the figures in reports: heading, unit, whether lower values are better, and use in verdicts.
//!
//! This module also computes the limit of a case, which is a lower bound for the server CPU time per transaction.

use becket_stats::units::{show_bytes, show_rate, show_us};

use crate::figures::{
    self, FLOODS, LATENCY_LOADS, LIBRARY, RELAY, RETURNING, ROUND_TRIP, SAME, STORM_LOADS, is_floor,
};
use crate::result::{Case, Column, Outcome};
use crate::scenario::Measure;
use crate::spread;

/// Measured quantity that a report shows, such as the server CPU time per transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Key in [`crate::result::Sample::figures`].
    pub name: String,
    pub heading: String,
    pub less_is_better: bool,
    /// `true` if verdicts compare servers by this figure. `false` for a condition of the measurement, such as the
    /// offered load.
    pub is_contested: bool,
    /// `true` if rounds are repeated until this figure shows a clear difference between becket and the best peer.
    pub decides: bool,
}

type FigureRow = (fn(&str, &str) -> Figure, &'static str, &'static str);

/// Creates a figure for which lower values are better.
pub(crate) fn less(name: &str, heading: &str) -> Figure {
    Figure {
        name: name.to_owned(),
        heading: heading.to_owned(),
        less_is_better: true,
        is_contested: true,
        decides: false,
    }
}

/// Creates a figure for which higher values are better.
pub(crate) fn more(name: &str, heading: &str) -> Figure {
    Figure {
        less_is_better: false,
        ..less(name, heading)
    }
}

fn condition(name: &str, heading: &str) -> Figure {
    Figure {
        is_contested: false,
        ..less(name, heading)
    }
}

/// Creates a figure for which lower values are better and that has `decides` set.
fn decides(name: &str, heading: &str) -> Figure {
    Figure {
        decides: true,
        ..less(name, heading)
    }
}

impl Figure {
    pub fn show(&self, value: f64) -> String {
        let name = self.name.as_str();
        // A search for `us` alone would also match `cpus_used`, which is not a time.
        if name.ends_with("_us") || name.contains("_us_") {
            let sign = if value < 0.0 { "-" } else { "" };
            return format!("{sign}{}", show_us(value.abs()));
        }
        match name {
            name if name.ends_with("_bytes") => show_bytes(value),
            figures::OVERHEAD | figures::DEVIATION => format!("{:.1} %", value * 100.0),
            name if name.contains("_share") => format!("{:.0} %", value * 100.0),
            name if name == figures::LOST || name.starts_with(figures::DROPS) => {
                format!("{value:.0}")
            }
            name if name.starts_with(figures::RECOVERY) => format!("{value:.2} s"),
            figures::MB_PER_CPU_S | figures::MB_PER_S => format!("{value:.0} MB"),
            name if name.contains("_per_s") => show_rate(value),
            _ => format!("{value:.2}"),
        }
    }

    /// Returns the column of the best server with its median, or `None` if this figure does not compare servers.
    pub fn best<'a>(&self, case: &'a Case) -> Option<(&'a Column, f64)> {
        self.best_of(case.columns.iter())
            .filter(|_| self.is_contested)
    }

    /// Returns the best of these columns with its median. Skips floors, which are not servers.
    pub fn best_of<'a>(
        &self,
        columns: impl Iterator<Item = &'a Column>,
    ) -> Option<(&'a Column, f64)> {
        let peers = columns.filter(|column| !is_floor(&column.peer));
        let medians = peers.filter_map(|column| Some((column, column.median(&self.name)?)));
        medians.reduce(|a, b| {
            let first = (a.1 <= b.1) == self.less_is_better || a.1 == b.1;
            if first { a } else { b }
        })
    }
}

/// Returns `true` if the capacity is only a lower bound because the client was the bottleneck.
pub fn is_lower_bound(column: &Column) -> bool {
    let bounds = column.median(figures::CAPACITY_BOUND);
    bounds.is_some_and(|bound| bound > 0.0)
}

/// Returns the figures that determine whether a case needs more rounds.
pub fn deciding(measure: Measure) -> Vec<Figure> {
    let mut figures = of_measure(measure);
    figures.retain(|figure| figure.decides);
    figures
}

/// Returns the figures that answer a scenario's question: the figures with `decides`, or the first figure if no figure
/// decides.
pub fn headlines(outcome: &Outcome) -> Vec<Figure> {
    let shown = shown(outcome);
    let (deciding, others): (Vec<Figure>, Vec<Figure>) = shown.into_iter().partition(|f| f.decides);
    if outcome.id == "cores" {
        return vec![more(figures::RATE, "rate")];
    }
    if deciding.is_empty() {
        return others.into_iter().take(1).collect();
    }
    deciding
}

/// Returns the figures of a scenario's tables, the main figure first. Skips figures without a value, because stored
/// runs of earlier versions lack some figures.
pub fn shown(outcome: &Outcome) -> Vec<Figure> {
    let columns = || outcome.cases.iter().flat_map(|case| &case.columns);
    let mut shown = of_measure(outcome.measure);
    shown.retain(|figure| columns().any(|column| column.median(&figure.name).is_some()));
    shown
}

fn of_measure(measure: Measure) -> Vec<Figure> {
    match measure {
        Measure::Transactions => vec![
            decides(figures::CPU, "server CPU per transaction"),
            more(figures::MB_PER_CPU_S, "bytes per server CPU second"),
            more(figures::MB_PER_S, "bytes per second"),
            more(figures::MARK_MOST, "highest rate of the ramp"),
            more(figures::MARK_100, "highest rate with a mean below 100 ms"),
            more(figures::MARK_500, "highest rate with a mean below 500 ms"),
            more(
                figures::MARK_LOST,
                "highest rate with fewer than 0.01 % lost",
            ),
            condition(
                figures::WIRE,
                "TCP payload per transaction, both directions",
            ),
            condition(
                figures::OVERHEAD,
                "overhead of TLS and HTTP, as a share of the body",
            ),
        ],
        Measure::Capacity => overload(),
        Measure::AddedLatency => [LATENCY, ADDED]
            .map(|rows| under(LATENCY_LOADS, rows))
            .concat(),
        Measure::Idle => vec![less(
            figures::PSS_PER_CONNECTION,
            "memory (PSS) per idle connection",
        )],
        Measure::Queued => {
            let mut shown = vec![less(
                figures::PSS_PER_CONNECTION,
                "memory (PSS) per waiting client",
            )];
            shown.extend(by_row(&[figures::FULL, figures::EMPTY], QUEUED));
            shown
        }
        Measure::Crowd => listed(CROWD),
        Measure::Certificates => listed(CERTIFICATES),
        Measure::Scraped => listed(SCRAPED),
        Measure::Storm => [PROBED, RETURNED]
            .map(|rows| under(STORM_LOADS, rows))
            .concat(),
        Measure::Burst => vec![
            decides(figures::MEAN, "mean latency"),
            less(figures::P50, "median latency (p50)"),
            less(figures::MAX, "longest latency"),
        ],
        Measure::Delay => delay(),
        Measure::Generators => vec![
            more(figures::RATE, "rate"),
            less(figures::CLIENT_CPU, "client CPU per transaction"),
        ],
        Measure::Failover => {
            let phases = [figures::DURING, figures::BEFORE, figures::AFTERWARDS];
            by_row(&phases, FAILOVER)
        }
    }
}

fn listed(rows: &[FigureRow]) -> Vec<Figure> {
    let rows = rows.iter();
    rows.map(|(make, name, heading)| make(name, heading))
        .collect()
}

/// Returns the figures of `delay`, starting with the round trips that resumption saves.
fn delay() -> Vec<Figure> {
    vec![
        less(
            figures::ROUND_TRIPS_TO_FIRST,
            "round trips to the first byte",
        ),
        less(figures::ROUND_TRIPS_TO_LAST, "round trips to the last byte"),
        less(figures::FIRST_P50, "time to the first byte (p50)"),
        less(figures::FIRST_P99, "time to the first byte (p99)"),
        less(figures::P50, "time to the last byte (p50)"),
        less(figures::P99, "time to the last byte (p99)"),
        condition(
            figures::CLIENT_PACKETS,
            "packets of the client per transaction",
        ),
        condition(
            figures::SERVER_PACKETS,
            "packets of the server per transaction",
        ),
        condition(figures::RTT, "round trip of the network"),
    ]
}

fn overload() -> Vec<Figure> {
    let floods = FLOODS.iter().map(|(load, _)| *load);
    let floods: Vec<&str> = floods.collect();
    let mut shown = vec![
        more(figures::CAPACITY, "capacity"),
        more(figures::LOOP, "rate of a closed loop between the floods"),
        more(figures::KEPT, "goodput kept at 150 %"),
        less(figures::RECOVERY, "time to recover"),
    ];
    shown.extend(by_row(&floods, FLOODED));
    shown.push(more(
        figures::AFTER,
        "closed-loop rate after the floods, relative to the rate before",
    ));
    shown
}

/// Returns the figures of all `rows`, grouped by load.
fn under(loads: &[&str], rows: &[FigureRow]) -> Vec<Figure> {
    let loads = loads.iter();
    loads
        .flat_map(|load| rows.iter().map(|row| at(row, load)))
        .collect()
}

/// Returns the figures of all `rows` for each load, grouped by row.
fn by_row(loads: &[&str], rows: &[FigureRow]) -> Vec<Figure> {
    let rows = rows.iter();
    rows.flat_map(|row| under(loads, std::slice::from_ref(row)))
        .collect()
}

fn at((make, name, heading): &FigureRow, load: &str) -> Figure {
    make(
        &figures::at(name, load),
        &format!("{heading} {}", words(load)),
    )
}

fn words(load: &str) -> String {
    let words = match load {
        SAME => "the rate common to all servers",
        figures::BEFORE => "before the loss",
        figures::DURING => "at the first return after the loss",
        figures::AFTERWARDS => "at the second return after the loss",
        figures::FULL => "all clients wait",
        figures::EMPTY => "no client waits",
        percent => return format!("{percent} % of capacity"),
    };
    words.to_owned()
}

const LATENCY: &[FigureRow] = &[
    (decides, figures::P50, "p50 at"),
    (decides, figures::P99, "p99 at"),
    (less, figures::P999, "p99.9 at"),
    (condition, figures::OFFERED, "offered rate at"),
    (
        condition,
        figures::LATE,
        "late start of the client (p99) at",
    ),
    (condition, figures::CLIENT_CPU_BUSY, CLIENT_BUSY),
];
const ADDED: &[FigureRow] = &[
    (less, "added_p50_us", "added p50 at"),
    (less, "added_p99_us", "added p99 at"),
    (less, "added_p999_us", "added p99.9 at"),
];
const PROBED: &[FigureRow] = &[
    (decides, figures::P99, "probe's p99 under"),
    (decides, figures::P50, "probe's p50 under"),
    (
        condition,
        figures::LATE,
        "late start of the client (p99) at",
    ),
    (condition, figures::FLOOD, "full handshakes started at"),
    (condition, figures::CLIENT_CPU_BUSY, CLIENT_BUSY),
];
const RETURNED: &[FigureRow] = &[
    (less, "returning_p99_us", "returning client's p99 under"),
    (less, "returning_p50_us", "returning client's p50 under"),
    (
        condition,
        "returning_late_start_p99_us",
        "late start of the returning client (p99) at",
    ),
];
const FLOODED: &[FigureRow] = &[
    (kept, figures::KEPT, "goodput kept under"),
    (condition, figures::RESUMED, "resumed handshakes under"),
    (
        less,
        figures::COST,
        "server CPU per served client, relative to the closed loop, under",
    ),
    (less, figures::QUEUED_P99, "p99 from the accept queue under"),
    (less, figures::P99, "p99 from the intended start under"),
    (less, figures::RECOVERY, "time to recover under"),
    (less, figures::CPUS_USED, "CPUs used by the server under"),
    (less, figures::SOFTIRQ, "share of the CPUs in softirq under"),
    (
        less,
        figures::DROPS,
        "SYNs and connections dropped by the kernel under",
    ),
];
const QUEUED: &[FigureRow] = &[
    (less, figures::CPU_PER_S, "server CPU per second while"),
    (less, figures::P50, "another listener's median while"),
    (less, figures::P99, "another listener's p99 while"),
];
/// Figures of the `scraped` measure. The deciding ones show the effect of metrics scrapes on clients; the last three
/// show the cost and size of the scrapes.
const SCRAPED: &[FigureRow] = &[
    (decides, figures::CPU, "workers' CPU per transaction"),
    (decides, figures::P50, "transactions' p50"),
    (decides, figures::P99, "transactions' p99"),
    (decides, "probe_p50_us", "probe's p50"),
    (decides, "probe_p99_us", "probe's p99"),
    (
        less,
        figures::OTHER_THREADS,
        "CPU of all other threads per second",
    ),
    (less, figures::SCRAPE, "time to receive all pages"),
    (less, figures::SCRAPE_BYTES, "bytes of all pages"),
];
const CROWD: &[FigureRow] = &[
    (
        less,
        figures::PSS_PER_CONNECTION,
        "memory (PSS) per idle connection",
    ),
    (
        less,
        figures::KERNEL_PER_CONNECTION,
        "kernel memory of its two sockets",
    ),
    (
        less,
        figures::DEVIATION,
        "largest deviation of the memory from a straight line",
    ),
    (less, figures::P99, "p99 of the active connections"),
    (less, figures::P50, "p50 of the active connections"),
    (more, figures::OPENED, "rate of opening"),
    (less, figures::OPEN_CPU, "server CPU to open a connection"),
    (
        less,
        figures::LOST,
        "connections lost by a reload and an upgrade",
    ),
    (less, "reload_us", "duration of a reload"),
    (less, "reload_pss_bytes", "largest memory during a reload"),
    (less, "upgrade_us", "duration of an upgrade"),
    (
        less,
        "upgrade_pss_bytes",
        "largest memory during an upgrade",
    ),
    (less, figures::DRAIN, "duration of a drain"),
];
const CERTIFICATES: &[FigureRow] = &[
    (less, figures::START, "first start"),
    (less, figures::START_CPU, "server CPU of the first start"),
    (less, figures::RESTART, "further start"),
    (
        less,
        figures::RESTART_CPU,
        "server CPU of the further start",
    ),
    (
        less,
        figures::PSS_PER_CERTIFICATE,
        "memory (PSS) per certificate",
    ),
    (
        less,
        figures::PSS_ABOVE_CERTIFICATE,
        "memory (PSS) above the bytes of the certificate",
    ),
    (less, figures::CHANGE_CPU, "server CPU per changed file"),
    (less, figures::P99, "p99 without changes"),
    (
        less,
        "changing_p99_us",
        "p99 while 1 % of the files change per minute",
    ),
    (
        less,
        "probe_p999_us",
        "p99.9 of an open connection without changes",
    ),
    (
        less,
        "changing_probe_p999_us",
        "p99.9 of an open connection with changes",
    ),
    (
        less,
        "probe_max_us",
        "longest request of an open connection without changes",
    ),
    (
        less,
        "changing_probe_max_us",
        "longest request of an open connection with changes",
    ),
    (
        less,
        figures::WORKER_LONGEST,
        "longest work of the workers within 10 ms for changes, without clients",
    ),
    (
        less,
        figures::RELOADED,
        "memory after the reloads, relative to that before",
    ),
    (less, "reload_us", "duration of a reload with 1 % changed"),
];
const FAILOVER: &[FigureRow] = &[
    (more, figures::RESUMED, "share of resumed handshakes"),
    (less, figures::CPU, "server CPU per transaction"),
];
const CLIENT_BUSY: &str = "CPU use of the client at";

/// Creates a figure for which higher values are better and that has `decides` set.
fn kept(name: &str, heading: &str) -> Figure {
    Figure {
        decides: true,
        ..more(name, heading)
    }
}

/// Returns the limit of a case in one round: the server CPU time of a relay plus the CPU time of the TLS library in
/// memory. Uses [`ROUND_TRIP`] if `relay` requests it, otherwise the cheaper of [`RELAY`] and [`ROUND_TRIP`].
fn limit(case: &Case, relay: &str, round: u32) -> Option<f64> {
    let cpu = |column: &Column| column.at(round, figures::CPU);
    let relays = [RELAY, ROUND_TRIP].map(|name| case.column(name));
    // Return `None` unless all relays of the case have a figure in this round, so that all limits use the same rounds.
    let all = relays.iter().flatten().map(|column| cpu(column));
    let least = all.collect::<Option<Vec<f64>>>()?;
    let relay = match relay {
        ROUND_TRIP => cpu(case.column(relay)?)?,
        _ => least.into_iter().reduce(f64::min)?,
    };
    Some(relay + cpu(case.column(LIBRARY)?)?)
}

/// Returns the limit divided by the measured CPU time, as the median over all rounds. Returns `None` for a result above
/// 1, because the limit is then not a lower bound; see [`beaten`].
pub fn eta(case: &Case, column: &Column, relay: &str) -> Option<f64> {
    share_of_limit(case, column, relay).filter(|eta| *eta <= 1.0)
}

fn share_of_limit(case: &Case, column: &Column, relay: &str) -> Option<f64> {
    if is_floor(&column.peer) {
        return None;
    }
    let rounds = column.samples.iter().filter_map(|sample| {
        let measured = sample.get(figures::CPU).filter(|us| *us > 0.0)?;
        Some(limit(case, relay, sample.round)? / measured)
    });
    spread::median(&rounds.collect::<Vec<_>>())
}

/// Returns a remark if a column needs less CPU than the limit of its case.
pub fn beaten(case: &Case, column: &Column, relay: &str) -> Option<String> {
    let share = share_of_limit(case, column, relay).filter(|share| *share > 1.0)?;
    let (relay, eta) = match relay {
        ROUND_TRIP => ("the relay that answers a hello", "true eta"),
        _ => ("relay", "eta"),
    };
    Some(format!(
        "needs less CPU than {relay} and library together, so these are not a limit here and {eta} is omitted ({share:.2})"
    ))
}

/// Returns a remark that lists the loads at which the client added latency. This is the case if its p99 start delay
/// exceeded a tenth of the p99 latency, or if one of its CPUs was more than 90 % busy.
pub fn client_was_slow(column: &Column) -> Option<String> {
    let mut loads = LATENCY_LOADS.to_vec();
    loads.extend(
        STORM_LOADS
            .iter()
            .filter(|load| !LATENCY_LOADS.contains(load)),
    );
    loads.retain(|at| {
        let median = |name: &str| column.median(&figures::at(name, at));
        let late = ["", RETURNING].iter().any(|who| {
            let late = median(&format!("{who}{}", figures::LATE));
            let p99 = median(&format!("{who}{}", figures::P99));
            late.zip(p99).is_some_and(|(late, p99)| late > p99 * LATE)
        });
        late || median(figures::CLIENT_CPU_BUSY).is_some_and(|busy| busy > BUSY)
    });
    let loads: Vec<String> = loads.into_iter().map(words).collect();
    (!loads.is_empty()).then(|| {
        format!(
            "{CLIENT_WAS_SLOW} at {}: part of the latency is the client's",
            loads.join(", ")
        )
    })
}

/// Prefix of the remark that [`client_was_slow`] returns.
pub const CLIENT_WAS_SLOW: &str = "the client was slow";
/// Maximum p99 start delay without a remark, as a share of the p99 latency.
const LATE: f64 = 0.1;
/// Maximum busy share of a client CPU without a remark.
const BUSY: f64 = 0.9;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::testing::{case, column};

    #[test]
    fn eta_is_paired_by_rounds_and_the_true_limit_includes_round_trips() {
        // The second round takes twice as long for all columns, which does not change eta.
        let case = case(vec![
            column("becket", &[100.0, 200.0]),
            column(RELAY, &[50.0, 100.0]),
            column(ROUND_TRIP, &[55.0, 110.0]),
            column(LIBRARY, &[40.0, 80.0]),
        ]);
        let becket = &case.columns[0];
        assert_eq!(eta(&case, becket, RELAY), Some(0.9));
        assert_eq!(eta(&case, becket, ROUND_TRIP), Some(0.95));
        assert_eq!(eta(&case, &case.columns[1], RELAY), None);
    }

    #[test]
    fn values_have_the_unit_of_their_name() {
        let show = |name: &str, value: f64| less(name, "").show(value);
        assert_eq!(show("p99_us_at_80", 1500.0), "1.50 ms");
        assert_eq!(show(figures::CPU, 1.0), "1.0 us");
        assert_eq!(show(&figures::at(figures::CPUS_USED, "150"), 0.98), "0.98");
        assert_eq!(show(&figures::at(figures::DROPS, "150"), 13740.0), "13740");
        assert_eq!(show(&figures::at(figures::SOFTIRQ, "150"), 0.02), "2 %");
        assert_eq!(show(&figures::at(figures::RECOVERY, "150"), 0.25), "0.25 s");
        assert_eq!(
            show(&figures::at(figures::CLIENT_CPU_BUSY, "80"), 0.955),
            "96 %"
        );
        assert_eq!(show(&figures::at(figures::OFFERED, "80"), 850.0), "850/s");
    }

    #[test]
    fn a_client_that_starts_late_or_is_busy_is_reported_with_the_loads() {
        let figures = |figures: &[(&str, f64)]| {
            let mut column = column("becket", &[1.0]);
            let sample = &mut column.samples[0];
            figures
                .iter()
                .for_each(|(name, value)| sample.put(name, *value));
            client_was_slow(&column)
        };
        let calm = [("p99_us_at_50", 1000.0), ("late_start_p99_us_at_50", 90.0)];
        assert_eq!(figures(&calm), None);
        let slow = [
            ("p99_us_at_1", 1000.0),
            ("late_start_p99_us_at_1", 110.0),
            ("client_cpu_busy_share_at_150", 0.95),
            ("returning_p99_us_at_same", 100.0),
            ("returning_late_start_p99_us_at_same", 50.0),
        ];
        assert_eq!(
            figures(&slow).unwrap(),
            "the client was slow at 1 % of capacity, the rate common to all servers, 150 % of capacity: part of the latency is the client's"
        );
    }

    #[test]
    fn a_condition_has_no_best_column() {
        let case = case(vec![column("becket", &[1.0]), column("nginx", &[2.0])]);
        assert!(less(figures::CPU, "").best(&case).is_some());
        assert!(condition(figures::CPU, "").best(&case).is_none());
    }

    #[test]
    fn a_limit_that_a_server_exceeds_is_omitted() {
        let case = case(vec![
            column("becket", &[100.0]),
            column(RELAY, &[80.0]),
            column(LIBRARY, &[43.0]),
        ]);
        assert_eq!(eta(&case, &case.columns[0], RELAY), None);
        assert!(
            beaten(&case, &case.columns[0], RELAY)
                .unwrap()
                .contains("1.23")
        );
    }

    #[test]
    fn a_cheaper_round_trip_relay_limits_both_etas() {
        let case = case(vec![
            column("becket", &[100.0]),
            column(RELAY, &[70.0]),
            column(ROUND_TRIP, &[50.0]),
            column(LIBRARY, &[40.0]),
        ]);
        let etas = [RELAY, ROUND_TRIP].map(|relay| eta(&case, &case.columns[0], relay));
        assert_eq!(etas, [Some(0.9), Some(0.9)]);
        // A round counts only if both relays have a figure.
        let mut gap = case.clone();
        gap.columns[0] = column("becket", &[100.0, 300.0]);
        gap.columns[2] = column(ROUND_TRIP, &[50.0, 50.0]);
        gap.columns[3] = column(LIBRARY, &[40.0, 40.0]);
        assert_eq!(eta(&gap, &gap.columns[0], ROUND_TRIP), Some(0.9));
        assert_eq!(beaten(&case, &case.columns[0], RELAY), None);
    }
}
