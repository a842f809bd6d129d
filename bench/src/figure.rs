//! Figures as people read them: names, units, which way is better, which decide, and the limit of a case.

use becket_stats::units::{show_bytes, show_rate, show_us};

use crate::measure::{failover, latency, overload, queued, scraped, storm};
use crate::result::{Case, Column, Outcome, figures};
use crate::scenario::Measure;
use crate::spread;

/// What a table or a plot shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Its name in [`crate::result::Sample::figures`].
    pub name: String,
    pub heading: String,
    /// Whether less is better.
    pub less_is_better: bool,
    /// Whether servers are compared in it. What they were under is nobody's merit.
    pub is_contested: bool,
}

impl Figure {
    fn new(name: &str, heading: &str, less_is_better: bool) -> Self {
        Self {
            name: name.to_owned(),
            heading: heading.to_owned(),
            less_is_better,
            is_contested: true,
        }
    }

    /// What a measurement was made under.
    fn condition(name: &str, heading: &str) -> Self {
        Self {
            is_contested: false,
            ..Self::new(name, heading, true)
        }
    }

    /// Returns a value with its unit.
    pub fn show(&self, value: f64) -> String {
        let name = self.name.as_str();
        // `cpus_used` are no microseconds.
        if name.ends_with("_us") || name.contains("_us_") {
            let sign = if value < 0.0 { "-" } else { "" };
            return format!("{sign}{}", show_us(value.abs()));
        }
        match name {
            figures::PSS_PER_CONNECTION | figures::PSS | scraped::BYTES => show_bytes(value),
            name if name.contains("_share") => show_share(value),
            name if name.starts_with(overload::DROPS) => format!("{value:.0}"),
            name if name.starts_with(figures::RECOVERY) => format!("{value:.2} s"),
            figures::MB_PER_CPU_S => format!("{value:.0} MB"),
            name if name.contains("_per_s") => show_rate(value),
            _ => format!("{value:.2}"),
        }
    }

    /// Returns the best peer's median: the floor is nobody's competitor, and a condition no contest.
    pub fn best<'a>(&self, case: &'a Case) -> Option<(&'a Column, f64)> {
        if !self.is_contested {
            return None;
        }
        let all = case.columns.iter().filter(|column| !is_floor(&column.peer));
        let medians = all.filter_map(|column| Some((column, column.median(&self.name)?)));
        medians.reduce(|a, b| {
            let first = if self.less_is_better {
                a.1 <= b.1
            } else {
                a.1 >= b.1
            };
            if first { a } else { b }
        })
    }
}

fn show_share(value: f64) -> String {
    format!("{:.0} %", value * 100.0)
}

/// Returns whether a column is a floor and not a server.
pub fn is_floor(peer: &str) -> bool {
    [RELAY, ROUND_TRIP, ANSWER, LIBRARY, "direct"].contains(&peer)
}

/// Returns whether a capacity is a lower bound: the client was what was slow.
pub fn is_lower_bound(column: &Column) -> bool {
    let bounds = column.median(figures::CAPACITY_BOUND);
    bounds.is_some_and(|bound| bound > 0.0)
}

/// Returns the least server CPU of a case, round by round: a relay ([`RELAY`] or [`ROUND_TRIP`]) plus the
/// library in memory. Where the relay that does more needed less in a round, that is the plain one's limit, too.
fn limits(case: &Case, relay: &str) -> Vec<(u32, f64)> {
    // Where files are served, nobody relays.
    let floor = || case.column(ANSWER).filter(|_| relay == RELAY);
    let relay = case.column(relay).or_else(floor);
    let (Some(relay), Some(library)) = (relay, case.column(LIBRARY)) else {
        return Vec::new();
    };
    let of_round = |column: &Column, round: u32| {
        let sample = column.samples.iter().find(|s| s.round == round)?;
        sample.figures.get(figures::CPU).copied()
    };
    let relays = [RELAY, ROUND_TRIP].map(|name| case.column(name));
    let rounds = relay.samples.iter().filter_map(|sample| {
        // Only rounds in which all relays have a figure: the limits are those of the same rounds.
        let all = relays.iter().flatten().map(|c| of_round(c, sample.round));
        let least = all.collect::<Option<Vec<f64>>>()?;
        let least = least.into_iter().reduce(f64::min)?;
        let own = of_round(relay, sample.round)?;
        let relay = if relay.peer == ROUND_TRIP { own } else { least };
        let library = of_round(library, sample.round)?;
        Some((sample.round, relay + library))
    });
    rounds.collect()
}

/// Returns the median of the limit of a case.
pub fn limit(case: &Case, relay: &str) -> Option<f64> {
    let limits = limits(case, relay).into_iter().map(|(_, us)| us);
    spread::median(&limits.collect::<Vec<_>>())
}

/// Returns limit / measured, paired by rounds. Above 1 there is none: what somebody has beaten is no limit,
/// which [`beaten`] then says.
pub fn eta(case: &Case, column: &Column, relay: &str) -> Option<f64> {
    share_of_limit(case, column, relay).filter(|eta| *eta <= 1.0)
}

fn share_of_limit(case: &Case, column: &Column, relay: &str) -> Option<f64> {
    if is_floor(&column.peer) {
        return None;
    }
    let rounds = limits(case, relay)
        .into_iter()
        .filter_map(|(round, limit)| {
            let sample = column.samples.iter().find(|s| s.round == round)?;
            let measured = sample.figures.get(figures::CPU).filter(|us| **us > 0.0)?;
            Some(limit / measured)
        });
    spread::median(&rounds.collect::<Vec<_>>())
}

/// Says of a column that a limit of its case is none, because it needs less.
pub fn beaten(case: &Case, column: &Column, relay: &str) -> Option<String> {
    let share = share_of_limit(case, column, relay).filter(|share| *share > 1.0)?;
    let (relay, eta) = match relay {
        ROUND_TRIP => ("the relay that answers a hello", "true eta"),
        _ => ("relay", "eta"),
    };
    Some(format!(
        "needs less than {relay} and library together, which are no limit here: no {eta} above 1 ({share:.2})"
    ))
}

/// Returns the figures that a case is repeated for until they tell the peers apart.
pub fn deciding(measure: Measure) -> Vec<Figure> {
    let both =
        |load: &str| ["p50", "p99"].map(|q| Figure::new(&format!("{q}_us_at_{load}"), q, true));
    match measure {
        Measure::Transactions => vec![Figure::new(figures::CPU, CPU_HEADING, true)],
        Measure::AddedLatency => latency::LOADS.iter().flat_map(|load| both(load)).collect(),
        Measure::Storm => storm::LOADS.iter().flat_map(|load| both(load)).collect(),
        Measure::Capacity => overload::FLOODS
            .iter()
            .map(|(percent, _)| Figure::new(&figures::at(figures::KEPT, percent), "goodput", false))
            .collect(),
        Measure::Burst => vec![Figure::new(figures::MEAN, "average", true)],
        Measure::Scraped => data_path_figures(),
        _ => Vec::new(),
    }
}

pub const RELAY: &str = "relay";
/// A plain socket that answers.
pub const ANSWER: &str = "answer";
/// A relay that also answers as TLS must.
pub const ROUND_TRIP: &str = "round-trip";
/// The library in memory.
pub const LIBRARY: &str = "library";
const CPU_HEADING: &str = "server CPU per transaction";

/// Returns what a scenario's tables show, the main figure first.
pub fn shown(outcome: &Outcome) -> Vec<Figure> {
    let columns = || outcome.cases.iter().flat_map(|case| &case.columns);
    let mut shown = known(outcome);
    // Earlier runs have other figures of some measures.
    shown.retain(|figure| columns().any(|column| column.median(&figure.name).is_some()));
    shown
}

fn known(outcome: &Outcome) -> Vec<Figure> {
    match outcome.measure.as_str() {
        "Capacity" => overload_figures(),
        "AddedLatency" => latency_figures(),
        "Idle" => vec![Figure::new(
            figures::PSS_PER_CONNECTION,
            "memory (PSS) per idle connection",
            true,
        )],
        "Queued" => queued_figures(),
        "Scraped" => data_path_figures()
            .into_iter()
            .chain(scrape_figures())
            .collect(),
        "Storm" => storm_figures(),
        "Burst" => vec![
            Figure::new(figures::MEAN, "average", true),
            Figure::new(figures::P50, "median", true),
            Figure::new(figures::MAX, "longest", true),
        ],
        "Generators" => vec![Figure::new(figures::RATE, "rate", false)],
        "Failover" => RETURNS
            .iter()
            .map(|(phase, when)| {
                let name = figures::phase(figures::RESUMED, phase);
                Figure::new(&name, &format!("resumed {when}"), false)
            })
            .chain(RETURNS.iter().map(|(phase, when)| {
                let name = figures::phase(figures::CPU, phase);
                Figure::new(&name, &format!("server CPU per transaction {when}"), true)
            }))
            .collect(),
        _ => {
            let mut shown = vec![Figure::new(figures::CPU, CPU_HEADING, true)];
            if outcome.cases.iter().any(is_bulk) {
                shown.push(Figure::new(
                    figures::MB_PER_CPU_S,
                    "bytes per server CPU second",
                    false,
                ));
            }
            shown
        }
    }
}

/// Says under what load a figure was taken.
fn load(name: &str) -> String {
    match name {
        SAME => "the flood that is the same for all".to_owned(),
        percent => format!("{percent} % of capacity"),
    }
}

fn latency_figures() -> Vec<Figure> {
    let quantiles = |kind: &'static str, at: &'static str| {
        [("p50", "p50"), ("p99", "p99"), ("p999", "p99.9")].map(|(name, quantile)| {
            let added = kind.trim_end_matches('_');
            Figure::new(
                &format!("{kind}{name}_us_at_{at}"),
                format!("{added} {quantile} at {}", load(at)).trim(),
                true,
            )
        })
    };
    let under = |at: &'static str| {
        let heading = format!("offered rate at {}", load(at));
        let offered = Figure::condition(&figures::at(figures::OFFERED, at), &heading);
        std::iter::once(offered).chain(clients_own("", at))
    };
    let loads = || latency::LOADS.iter().copied();
    let whole = loads().flat_map(|at| quantiles("", at).into_iter().chain(under(at)));
    let added = loads().flat_map(|at| quantiles("added_", at));
    whole.chain(added).collect()
}

/// What of a latency may be the client's own: how late it began, and how busy its CPU was.
fn clients_own(who: &str, at: &str) -> [Figure; 2] {
    let late = figures::at(&format!("{who}{}", figures::LATE), at);
    let busy = figures::at(figures::CLIENT_CPU_BUSY, at);
    let whose = who.trim_end_matches('_');
    [
        Figure::condition(
            &late,
            format!("{whose} client's own late start (p99) at {}", load(at)).trim(),
        ),
        Figure::condition(
            &busy,
            &format!("busy share of the client's CPU at {}", load(at)),
        ),
    ]
}

/// Says under which loads a part of the latency is the client's own: it began later than a tenth of the p99, or its CPU, on which
/// the backend may be, too, was busy for more than nine tenths of the time.
pub fn client_was_slow(column: &Column) -> Option<String> {
    let mut loads = latency::LOADS.to_vec();
    loads.extend(
        storm::LOADS
            .iter()
            .filter(|at| !latency::LOADS.contains(at)),
    );
    loads.retain(|at| {
        let median = |name: &str| column.median(&figures::at(name, at));
        let late = ["", "returning_"].iter().any(|who| {
            let late = median(&format!("{who}{}", figures::LATE));
            let p99 = median(&format!("{who}{}", figures::P99));
            late.zip(p99).is_some_and(|(late, p99)| late > p99 * LATE)
        });
        late || median(figures::CLIENT_CPU_BUSY).is_some_and(|busy| busy > BUSY)
    });
    let loads: Vec<String> = loads.into_iter().map(load).collect();
    (!loads.is_empty()).then(|| {
        format!(
            "{CLIENT_WAS_SLOW} at {}: part of the latency is its own",
            loads.join(", ")
        )
    })
}

/// How [`client_was_slow`] begins.
pub const CLIENT_WAS_SLOW: &str = "the client was what was slow";
/// A client that begins later than this share of the p99.
const LATE: f64 = 0.1;
/// A CPU that is busy for more of the time than this.
const BUSY: f64 = 0.9;

fn storm_figures() -> Vec<Figure> {
    let whose = [("", "probe's"), ("returning_", "returning client's")];
    let each = whose.iter().flat_map(|(who, whose)| {
        storm::LOADS.iter().flat_map(move |at| {
            let quantiles = ["p99", "p50"].map(|quantile| {
                Figure::new(
                    &format!("{who}{quantile}_us_at_{at}"),
                    &format!("{whose} {quantile} under {}", load(at)),
                    true,
                )
            });
            let [late, busy] = clients_own(who, at);
            let flood = Figure::condition(
                &figures::at(storm::FLOOD, at),
                &format!("full handshakes begun at {}", load(at)),
            );
            // The flood and the CPU are the same for both.
            let shared = [flood, busy].into_iter().filter(|_| who.is_empty());
            quantiles.into_iter().chain([late]).chain(shared)
        })
    });
    each.collect()
}

/// The figure of a ramp.
pub fn capacity() -> Figure {
    Figure::new(figures::CAPACITY, "capacity", false)
}

fn overload_figures() -> Vec<Figure> {
    let mut shown = vec![
        capacity(),
        Figure::new(
            overload::LOOP,
            "rate of a closed loop between the floods",
            false,
        ),
        Figure::new(figures::KEPT, "goodput kept at 150 %", false),
        Figure::new(figures::RECOVERY, "time to recover", true),
    ];
    let kinds: [(&str, &str, bool); 8] = [
        (figures::KEPT, "goodput kept", false),
        (
            overload::COST,
            "server CPU per served client, as a share of the closed loop's,",
            true,
        ),
        (overload::QUEUED_P99, "p99 since the accept queue", true),
        (figures::P99, "p99 since the intended start", true),
        (figures::RECOVERY, "time to recover", true),
        (figures::CPUS_USED, "CPUs that the server used", true),
        (overload::SOFTIRQ, "share of the CPUs in softirq", true),
        (
            overload::DROPS,
            "SYNs and clients that the kernel dropped",
            true,
        ),
    ];
    for (name, heading, less_is_better) in kinds {
        let floods = overload::FLOODS.iter();
        shown.extend(floods.map(|(percent, _)| {
            let heading = format!("{heading} under {}", load(percent));
            Figure::new(&figures::at(name, percent), &heading, less_is_better)
        }));
    }
    shown.push(Figure::new(
        overload::AFTER,
        "capacity after the floods, of that before",
        false,
    ));
    shown
}

fn queued_figures() -> Vec<Figure> {
    let memory = Figure::new(
        figures::PSS_PER_CONNECTION,
        "memory (PSS) per client who waits",
        true,
    );
    let pairs = [
        (queued::CPU, "server CPU in a second"),
        (figures::P50, "another listener's median"),
        (figures::P99, "another listener's p99"),
    ];
    let phases = pairs.iter().flat_map(|(name, what)| {
        [(queued::FULL, "all wait"), (queued::EMPTY, "nobody waits")].map(|(phase, when)| {
            let name = figures::phase(name, phase);
            Figure::new(&name, &format!("{what} while {when}"), true)
        })
    });
    std::iter::once(memory).chain(phases).collect()
}

/// What clients notice of scrapes.
fn data_path_figures() -> Vec<Figure> {
    let mut shown = vec![Figure::new(
        figures::CPU,
        "workers' CPU per transaction",
        true,
    )];
    let whose = [("", "transactions'"), (scraped::PROBE, "probe's")];
    shown.extend(whose.iter().flat_map(|(who, whose)| {
        let quantiles = [(figures::P50, "p50"), (figures::P99, "p99")];
        quantiles.map(|(name, quantile)| {
            Figure::new(
                &format!("{who}{name}"),
                &format!("{whose} {quantile}"),
                true,
            )
        })
    }));
    shown
}

/// What scrapes cost besides, and give.
fn scrape_figures() -> [Figure; 3] {
    let rest = "CPU of all other threads in a second";
    [
        Figure::new(scraped::REST, rest, true),
        Figure::new(scraped::SCRAPE, "time until all pages have come", true),
        Figure::new(scraped::BYTES, "bytes of all pages", true),
    ]
}

fn is_bulk(case: &Case) -> bool {
    let mut columns = case.columns.iter();
    columns.any(|column| column.median(figures::MB_PER_CPU_S).is_some())
}

/// Returns of clients around the loss of a node, the telling one first.
const RETURNS: &[(&str, &str)] = &[
    (failover::DURING, "at the first return after the loss"),
    (failover::BEFORE, "before the loss"),
    (failover::AFTER, "at the second return after the loss"),
];

/// A load that is the same for all servers.
pub const SAME: &str = "same";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::testing::{case, column};

    #[test]
    fn eta_is_paired_by_rounds_and_the_true_floor_stands_beside_it() {
        // In the second round everything took twice as long: that is no difference.
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
    fn values_have_the_unit_that_their_name_says() {
        let show = |name: &str, value: f64| Figure::new(name, "", true).show(value);
        assert_eq!(show("p99_us_at_80", 1500.0), "1.50 ms");
        assert_eq!(show(figures::CPU, 1.0), "1.0 us");
        assert_eq!(show(&figures::at(figures::CPUS_USED, "150"), 0.98), "0.98");
        assert_eq!(show(&figures::at(overload::DROPS, "150"), 13740.0), "13740");
        assert_eq!(show(&figures::at(overload::SOFTIRQ, "150"), 0.02), "2 %");
        assert_eq!(show(&figures::at(figures::RECOVERY, "150"), 0.25), "0.25 s");
        assert_eq!(
            show(&figures::at(figures::CLIENT_CPU_BUSY, "80"), 0.955),
            "96 %"
        );
        assert_eq!(show(&figures::at(figures::OFFERED, "80"), 850.0), "850/s");
    }

    #[test]
    fn a_client_that_began_late_or_had_no_time_left_is_named_with_the_loads() {
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
            "the client was what was slow at 1 % of capacity, the flood that is the same for all, 150 % of capacity: part of the latency is its own"
        );
    }

    #[test]
    fn a_condition_is_shown_and_nobody_is_best_in_it() {
        let case = case(vec![column("becket", &[1.0]), column("nginx", &[2.0])]);
        assert!(Figure::new(figures::CPU, "", true).best(&case).is_some());
        assert!(Figure::condition(figures::CPU, "").best(&case).is_none());
    }

    #[test]
    fn what_somebody_has_beaten_is_no_limit() {
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
    fn the_relay_that_does_more_and_needs_less_is_the_limit_of_both() {
        let case = case(vec![
            column("becket", &[100.0]),
            column(RELAY, &[70.0]),
            column(ROUND_TRIP, &[50.0]),
            column(LIBRARY, &[40.0]),
        ]);
        let etas = [RELAY, ROUND_TRIP].map(|relay| eta(&case, &case.columns[0], relay));
        assert_eq!(etas, [Some(0.9), Some(0.9)]);
        // A round in which a relay has no figure is no round of the other either.
        let mut gap = case.clone();
        gap.columns[0] = column("becket", &[100.0, 300.0]);
        gap.columns[2] = column(ROUND_TRIP, &[50.0, 50.0]);
        gap.columns[3] = column(LIBRARY, &[40.0, 40.0]);
        assert_eq!(eta(&gap, &gap.columns[0], ROUND_TRIP), Some(0.9));
        assert_eq!(beaten(&case, &case.columns[0], RELAY), None);
    }

    #[test]
    fn what_decides_is_among_what_is_shown() {
        let measures = [
            Measure::Transactions,
            Measure::AddedLatency,
            Measure::Storm,
            Measure::Capacity,
            Measure::Scraped,
        ];
        for measure in measures {
            let outcome = Outcome {
                measure: format!("{measure:?}"),
                ..Outcome::default()
            };
            let shown = known(&outcome);
            let is_shown = |figure: &Figure| shown.iter().any(|known| known.name == figure.name);
            assert!(deciding(measure).iter().all(is_shown), "{measure:?}");
        }
    }
}
