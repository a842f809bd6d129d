//! Figures as people read them: names, units, which way is better, and a scenario's answer in a
//! sentence.

use becket_stats::units::{show_bytes, show_rate, show_us};

use crate::measure::{failover, queued};
use crate::result::{Case, Column, Outcome, figures};
use crate::spread;

/// What a table or a plot shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Its name in [`crate::result::Sample::figures`].
    pub name: String,
    /// Its heading.
    pub heading: String,
    /// Whether less is better.
    pub less_is_better: bool,
}

impl Figure {
    fn new(name: &str, heading: &str, less_is_better: bool) -> Self {
        Self {
            name: name.to_owned(),
            heading: heading.to_owned(),
            less_is_better,
        }
    }

    /// Returns a value with its unit.
    pub fn show(&self, value: f64) -> String {
        let name = self.name.as_str();
        if name.contains("_us") {
            let sign = if value < 0.0 { "-" } else { "" };
            return format!("{sign}{}", show_us(value.abs()));
        }
        match name {
            figures::PSS_PER_CONNECTION | figures::PSS => show_bytes(value),
            figures::KEPT | figures::RESUMED | figures::FAILED | ETA => show_share(value),
            name if name.starts_with(figures::RESUMED) => show_share(value),
            figures::MB_PER_CPU_S => format!("{value:.0} MB"),
            figures::RECOVERY => format!("{value:.2} s"),
            figures::RATE | figures::CAPACITY | figures::SECOND_RATE => show_rate(value),
            _ => format!("{value:.2}"),
        }
    }

    /// Returns the best peer's median: the floor is nobody's competitor.
    pub fn best<'a>(&self, case: &'a Case) -> Option<(&'a Column, f64)> {
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
    peer == "relay" || peer == "direct"
}

/// Returns whether a capacity is a lower bound: the client was what was slow.
pub fn is_lower_bound(column: &Column) -> bool {
    let bounds = column.median(figures::CAPACITY_BOUND);
    bounds.is_some_and(|bound| bound > 0.0)
}

/// Returns what the library needs in memory, where that was measured alike: the bench hides no CPU features from itself.
pub fn library_us(case: &Case) -> Option<f64> {
    let hidden = case.settings.get("mask").is_some_and(|mask| mask != "none");
    case.library_us.filter(|_| !hidden)
}

/// The share of the limit that a server reaches; it is computed, not stored.
pub const ETA: &str = "eta";

/// Returns (plain relay + library in memory) / measured.
pub fn eta(case: &Case, column: &Column) -> Option<f64> {
    let relay = case.column("relay")?.median(figures::CPU)?;
    let measured = column
        .median(figures::CPU)
        .filter(|_| !is_floor(&column.peer))?;
    Some((relay + library_us(case)?) / measured).filter(|eta| eta.is_finite())
}

/// Returns what a scenario's tables show, the main figure first.
pub fn shown(outcome: &Outcome) -> Vec<Figure> {
    match outcome.measure.as_str() {
        "Capacity" => vec![
            Figure::new(figures::CAPACITY, "capacity", false),
            Figure::new(figures::KEPT, "goodput kept at 150 %", false),
            Figure::new(figures::RECOVERY, "time to recover", true),
        ],
        "AddedLatency" => [1, 50, 80]
            .iter()
            .flat_map(|percent| {
                [("p50", "p50"), ("p99", "p99"), ("p999", "p99.9")].map(|(name, quantile)| {
                    Figure::new(
                        &format!("added_{name}_us_at_{percent}"),
                        &format!("added {quantile} at {percent} % of capacity"),
                        true,
                    )
                })
            })
            .collect(),
        "Idle" => vec![Figure::new(
            figures::PSS_PER_CONNECTION,
            "memory (PSS) per idle connection",
            true,
        )],
        "Queued" => queued_figures(),
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
            let mut shown = vec![Figure::new(
                figures::CPU,
                "server CPU per transaction",
                true,
            )];
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

fn storm_figures() -> Vec<Figure> {
    [("", "probe's"), ("returning_", "returning client's")]
        .iter()
        .flat_map(|(who, whose)| {
            [(80, "p99"), (80, "p50"), (150, "p99"), (150, "p50")].map(|(percent, quantile)| {
                Figure::new(
                    &format!("{who}{quantile}_us_at_{percent}"),
                    &format!("{whose} {quantile} under {percent} % of capacity"),
                    true,
                )
            })
        })
        .collect()
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

fn is_bulk(case: &Case) -> bool {
    let mut columns = case.columns.iter();
    columns.any(|column| column.median(figures::MB_PER_CPU_S).is_some())
}

/// Returns a scenario's answer, computed from its figures.
pub fn answer(outcome: &Outcome) -> String {
    if let Some(reason) = &outcome.not_available {
        return format!("Not available: {reason}.");
    }
    if outcome.measure == "Generators" {
        return generators(outcome);
    }
    let Some(figure) = shown(outcome).into_iter().next() else {
        return String::new();
    };
    let mut sentences: Vec<String> = Vec::new();
    for case in &outcome.cases {
        let Some((best, value)) = figure.best(case) else {
            continue;
        };
        let next = runner_up(case, &figure, &best.peer);
        let label = if case.label.is_empty() {
            String::new()
        } else {
            format!("{}: ", case.label)
        };
        let shown = |column: &Column, value: f64| {
            let bound = figure.name == figures::CAPACITY && is_lower_bound(column);
            let least = if bound { "at least " } else { "" };
            format!("{} with {least}{}", column.peer, figure.show(value))
        };
        let first = shown(best, value);
        sentences.push(match next {
            None => format!("{label}{first}"),
            Some((next, other)) if !different(best, next, &figure) => format!(
                "{label}{first}, not significantly apart from {}",
                shown(next, other)
            ),
            Some((next, other)) => format!("{label}{first}, then {}", shown(next, other)),
        });
    }
    let Some((first, rest)) = sentences.split_first() else {
        return "No column could be measured here.".to_owned();
    };
    let word = if figure.less_is_better {
        "Least"
    } else {
        "Most"
    };
    if rest.len() < SENTENCES {
        return format!("{word} {}: {}.", figure.heading, sentences.join("; "));
    }
    let wins = |peer: &str| {
        let best = outcome.cases.iter().filter_map(|case| figure.best(case));
        best.filter(|(column, _)| column.peer == peer).count()
    };
    let winner = outcome
        .cases
        .iter()
        .filter_map(|case| figure.best(case))
        .map(|(column, _)| column.peer.as_str())
        .max_by_key(|peer| wins(peer))
        .unwrap_or_default();
    let last = rest.last().unwrap_or(first);
    format!(
        "{word} {}: {winner} in {} of {} cases, from {first} to {last}.",
        figure.heading,
        wins(winner),
        sentences.len()
    )
}

fn generators(outcome: &Outcome) -> String {
    let pairs = outcome.cases.iter().filter_map(|case| {
        let [ours, other] = case.columns.as_slice() else {
            return None;
        };
        let (a, b) = (ours.median(figures::RATE)?, other.median(figures::RATE)?);
        Some(format!(
            "{}: {} by {}, {} by {} ({:+.1} %)",
            case.label,
            show_rate(a),
            ours.peer,
            show_rate(b),
            other.peer,
            (a / b - 1.0) * 100.0
        ))
    });
    let pairs: Vec<String> = pairs.collect();
    if pairs.is_empty() {
        return "No second generator is on this machine.".to_owned();
    }
    format!("{}.", pairs.join("; "))
}

/// Returns the second best peer.
fn runner_up<'a>(case: &'a Case, figure: &Figure, best: &str) -> Option<(&'a Column, f64)> {
    let all = case.columns.iter();
    let others = all.filter(|column| !is_floor(&column.peer) && column.peer != best);
    let medians = others.filter_map(|column| Some((column, column.median(&figure.name)?)));
    medians.reduce(|a, b| {
        if (a.1 <= b.1) == figure.less_is_better {
            a
        } else {
            b
        }
    })
}

/// Returns whether two columns differ in a figure by more than their spreads.
pub fn different(a: &Column, b: &Column, figure: &Figure) -> bool {
    let (of_a, of_b) = (a.values(&figure.name), b.values(&figure.name));
    if figure.name == figures::PSS_PER_CONNECTION {
        // Measured once, over thousands: it repeats within some per cent.
        let medians = spread::median(&of_a).zip(spread::median(&of_b));
        return medians.is_some_and(|(a, b)| a.max(b) > a.min(b) * 1.1);
    }
    spread::differ(&of_a, &of_b)
}

/// Returns of clients around the loss of a node, the telling one first.
const RETURNS: &[(&str, &str)] = &[
    (failover::DURING, "at the first return after the loss"),
    (failover::BEFORE, "before the loss"),
    (failover::AFTER, "at the second return after the loss"),
];

/// More cases than this are summed up.
const SENTENCES: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::Sample;

    fn column(peer: &str, cpu: &[f64]) -> Column {
        let samples = cpu.iter().map(|cpu| {
            let mut sample = Sample::default();
            sample.put(figures::CPU, *cpu);
            sample
        });
        Column {
            peer: peer.to_owned(),
            samples: samples.collect(),
            ..Column::default()
        }
    }

    fn outcome(columns: Vec<Column>) -> Outcome {
        Outcome {
            id: "key".to_owned(),
            measure: "Transactions".to_owned(),
            cases: vec![Case {
                label: "P-256".to_owned(),
                library_us: Some(40.0),
                columns,
                ..Case::default()
            }],
            ..Outcome::default()
        }
    }

    #[test]
    fn the_floor_is_nobodys_competitor_and_eta_counts_from_it() {
        let outcome = outcome(vec![
            column("becket", &[100.0, 100.0]),
            column("relay", &[50.0]),
        ]);
        assert_eq!(
            eta(&outcome.cases[0], &outcome.cases[0].columns[0]),
            Some(0.9)
        );
        assert!(
            answer(&outcome).contains("becket with 100"),
            "{}",
            answer(&outcome)
        );
    }

    #[test]
    fn overlapping_spreads_are_not_called_a_difference() {
        let apart = outcome(vec![column("a", &[10.0, 11.0]), column("b", &[12.0, 13.0])]);
        assert!(answer(&apart).contains("then b"), "{}", answer(&apart));
        let close = outcome(vec![column("a", &[10.0, 12.0]), column("b", &[11.0, 13.0])]);
        assert!(
            answer(&close).contains("not significantly"),
            "{}",
            answer(&close)
        );
    }

    #[test]
    fn what_is_not_available_has_no_number() {
        let mut outcome = outcome(vec![Column::without("becket", "not yet")]);
        assert!(answer(&outcome).starts_with("No column"));
        outcome.not_available = Some("no kernel".to_owned());
        assert_eq!(answer(&outcome), "Not available: no kernel.");
    }
}
