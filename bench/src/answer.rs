//! A scenario's answer: one sentence that says what was asked, computed from its figures.

use std::collections::BTreeMap;

use becket_stats::ratio::Interval;
use becket_stats::units::show_rate;

use crate::figure::{self, Figure};
use crate::measure::{failover, queued};
use crate::result::{Case, Column, Outcome, Run, figures};
use crate::scenario::{self, Measure};
use crate::spread;
use crate::verdict::{self, Standing};

pub fn of(run: &Run, outcome: &Outcome) -> String {
    if let Some(reason) = &outcome.not_available {
        return format!("Not available: {reason}.");
    }
    let answer = match (outcome.measure.as_str(), outcome.id.as_str()) {
        ("Generators", _) => generators(outcome),
        ("Failover", _) => failover(outcome),
        ("Queued", _) => queued(outcome),
        ("Scraped", _) => scraped(run, outcome),
        ("Storm", _) => storm(run, outcome),
        ("AddedLatency", _) => latency(run, outcome),
        ("Capacity", _) => overload(run, outcome),
        ("Transactions", "cores") => cores(outcome),
        ("Transactions", "implementations") => beside(run, outcome),
        ("Transactions", "signing") => beside_itself(run, outcome),
        ("Transactions", "relay") => relayed(run, outcome).or_else(|| range(outcome)),
        ("Transactions" | "Burst", id) if outcome.cases.len() > 1 => {
            let setting = STEPS.iter().find(|(of, _)| *of == id);
            let steps = setting.and_then(|(_, setting)| steps(outcome, setting));
            steps.or_else(|| range(outcome))
        }
        _ => beside(run, outcome),
    };
    answer.unwrap_or_else(|| "No column could be measured here.".to_owned())
}

fn first(outcome: &Outcome) -> Option<Figure> {
    figure::shown(outcome).into_iter().next()
}

/// What becket needs beside the best of the others.
fn beside(run: &Run, outcome: &Outcome) -> Option<String> {
    let figure = first(outcome)?;
    let standings = outcome.cases.iter().filter_map(|case| {
        let standing = verdict::of_rivals(case, &figure, run.certainty())?;
        Some((case, standing))
    });
    let standings: Vec<(&Case, Standing)> = standings.collect();
    let Some((case, one)) = standings.first() else {
        return medians(outcome, &figure);
    };
    let heading = &figure.heading;
    if let [_] = standings.as_slice() {
        let value = |peer: &str| case.column(peer)?.median(&figure.name);
        return Some(format!(
            "becket's {heading} is {}, {} times that of the best other, {} with {}: {}.",
            figure.show(value("becket")?),
            verdict::show(&one.interval),
            one.against,
            figure.show(value(&one.against)?),
            one.word
        ));
    }
    let best = standings.iter().filter(|(_, s)| s.word == "better").count();
    let ratios = || {
        standings
            .iter()
            .map(|(_, standing)| standing.interval.ratio)
    };
    let least = ratios().fold(f64::MAX, f64::min);
    let most = ratios().fold(0.0, f64::max);
    Some(format!(
        "becket, in {best} of {} cases, with {least:.2} to {most:.2} of the {heading} of the best other.",
        standings.len()
    ))
}

/// Where there is but one round, or nobody beside becket: the medians.
fn medians(outcome: &Outcome, figure: &Figure) -> Option<String> {
    let best = outcome.cases.iter().filter_map(|case| {
        let (column, value) = figure.best(case)?;
        let label = if case.label.is_empty() {
            String::new()
        } else {
            format!("{}: ", case.label)
        };
        Some(format!(
            "{label}{} with {}",
            column.peer,
            figure.show(value)
        ))
    });
    let best: Vec<String> = best.collect();
    let word = if figure.less_is_better {
        "Least"
    } else {
        "Most"
    };
    (!best.is_empty()).then(|| format!("{word} {}: {}.", figure.heading, best.join("; ")))
}

/// What becket needs from the cheapest to the dearest case, and in how many it needs the least.
fn range(outcome: &Outcome) -> Option<String> {
    let figure = first(outcome)?;
    let values = outcome.cases.iter().filter_map(|case| {
        let value = verdict::subject(case)?.median(&figure.name)?;
        Some((case, value))
    });
    let values: Vec<(&Case, f64)> = values.collect();
    if let [(case, value)] = values.as_slice() {
        return alone(outcome, &figure, case, *value);
    }
    let pick = |better: fn(f64, f64) -> bool| {
        let all = values.iter().copied();
        all.reduce(|a, b| if better(b.1, a.1) { b } else { a })
    };
    let ((low, least), (high, most)) = (pick(|a, b| a < b)?, pick(|a, b| a > b)?);
    let contested = outcome
        .cases
        .iter()
        .filter(|case| verdict::rival(case, &figure).is_some());
    let (mut cases, mut wins) = (0, 0);
    for case in contested {
        cases += 1;
        let ours = verdict::subject(case).and_then(|column| column.median(&figure.name));
        let best = verdict::rival(case, &figure).and_then(|column| column.median(&figure.name));
        let wins_it = ours.zip(best).is_some_and(|(ours, best)| {
            if figure.less_is_better {
                ours <= best
            } else {
                ours >= best
            }
        });
        wins += usize::from(wins_it);
    }
    let times = match most / least {
        times @ 100.0.. => format!("{times:.0}"),
        times => format!("{times:.2}"),
    };
    let beside = match cases {
        0 => String::new(),
        _ => format!(", and the least of all peers' in {wins} of {cases} cases"),
    };
    Some(format!(
        "For becket {} is {} ({}) to {} ({}), {times} times as much{beside}.",
        figure.heading,
        figure.show(least),
        low.label,
        figure.show(most),
        high.label
    ))
}

/// What becket needs beside itself with other settings.
fn beside_itself(run: &Run, outcome: &Outcome) -> Option<String> {
    let figures = figure::shown(outcome);
    let figure = figures.first()?;
    let told = outcome.cases.iter().flat_map(|case| {
        let standings = verdict::of_beckets(case, figure, run.certainty());
        standings.into_iter().map(|standing| {
            let times = verdict::show(&standing.interval);
            format!(
                "{times} times that of {} ({})",
                standing.against, case.label
            )
        })
    });
    let told: Vec<String> = told.collect();
    (!told.is_empty()).then(|| format!("becket's {} is {}.", figure.heading, told.join("; ")))
}

/// What bulk costs that only passes, in the case of each kind with the largest bodies: beside the best other, and beside becket that copies.
fn relayed(run: &Run, outcome: &Outcome) -> Option<String> {
    let figures = figure::shown(outcome);
    let figure = figures.iter().find(|f| f.name == figures::MB_PER_CPU_S)?;
    let told = outcome.cases.iter().filter_map(|case| {
        let value = figure.show(verdict::subject(case)?.median(&figure.name)?);
        let rival = verdict::of_rivals(case, figure, run.certainty());
        let own = verdict::of_beckets(case, figure, run.certainty());
        let times = own.iter().chain(&rival).map(|standing| {
            let ratio = verdict::show(&standing.interval);
            format!("{ratio} times that of {}", standing.against)
        });
        let times: Vec<String> = times.collect();
        let kind = case.settings.get("passthrough")?;
        (!times.is_empty()).then(|| {
            (
                kind,
                format!("{value} ({}), {}", case.label, times.join(", ")),
            )
        })
    });
    // Bodies grow from case to case.
    let largest: BTreeMap<&String, String> = told.collect();
    let largest: Vec<String> = largest.into_values().rev().collect();
    (!largest.is_empty()).then(|| {
        format!(
            "becket passes on, by the second of its CPU time, {}.",
            largest.join("; ")
        )
    })
}

/// The one case that becket has a figure of, and why it has none of the others.
fn alone(outcome: &Outcome, figure: &Figure, measured: &Case, value: f64) -> Option<String> {
    let reasons = outcome.cases.iter().filter_map(|case| {
        let reason = case.column("becket")?.not_available.as_ref()?;
        Some(format!("{}, because {reason}", case.label))
    });
    let reasons: Vec<String> = reasons.collect();
    (!reasons.is_empty()).then(|| {
        format!(
            "Not measured here: {}. With {} becket's {} is {}.",
            reasons.join("; "),
            measured.label,
            figure.heading,
            figure.show(value)
        )
    })
}

/// What a setting costs or saves: becket's figure with each of its values against that with the first.
fn steps(outcome: &Outcome, setting: &str) -> Option<String> {
    let figure = first(outcome)?;
    let value = |case: &Case| verdict::subject(case)?.median(&figure.name);
    let from = outcome.cases.first()?.settings.get(setting)?;
    let mut ratios: Vec<(&str, Vec<f64>)> = Vec::new();
    for case in &outcome.cases {
        let to = case.settings.get(setting)?;
        let mut base = case.settings.clone();
        base.insert(setting.to_owned(), from.clone());
        let base = outcome.cases.iter().find(|other| other.settings == base);
        let (Some(after), Some(before)) = (value(case), base.and_then(value)) else {
            continue;
        };
        match ratios.iter_mut().find(|(known, _)| known == to) {
            _ if to == from => {}
            Some((_, known)) => known.push(after / before),
            None => ratios.push((to, vec![after / before])),
        }
    }
    let said = ratios.iter().filter_map(|(to, ratios)| {
        let (least, most) = spread::range(ratios)?;
        let ratio = match ratios.len() {
            1 => format!("{least:.2}"),
            _ => format!("{least:.2} to {most:.2}"),
        };
        let (to, from) = (scenario::label(setting, to), scenario::label(setting, from));
        Some(format!("{ratio} times as much ({to}, against {from})"))
    });
    let said: Vec<String> = said.collect();
    (!said.is_empty()).then(|| format!("For becket {}: {}.", figure.heading, said.join(", ")))
}

/// becket's median of a figure, and the best other's with its name.
fn both(case: &Case, figures: &[Figure], name: &str) -> Option<(String, String)> {
    let figure = figures.iter().find(|figure| figure.name == name)?;
    let ours = figure.show(verdict::subject(case)?.median(name)?);
    let rival = verdict::rival(case, figure)?;
    let best = format!("{}'s {}", rival.peer, figure.show(rival.median(name)?));
    Some((ours, best))
}

/// Names a case behind a comma, if it has a name.
fn of_case(case: &Case) -> String {
    match case.label.as_str() {
        "" => String::new(),
        label => format!(", {label}"),
    }
}

fn latency(run: &Run, outcome: &Outcome) -> Option<String> {
    let (figures, case) = (figure::shown(outcome), outcome.cases.first()?);
    let both = |load: &str| both(case, &figures, &format!("added_p50_us_at_{load}"));
    let (Some((low, low_best)), Some((high, high_best))) = (both("1"), both("80")) else {
        return beside(run, outcome);
    };
    let told = format!(
        "becket adds {low} at 1 % of its capacity, beside {low_best}, and {high} at 80 %, beside {high_best} (median{})",
        of_case(case)
    );
    Some(counted(run, outcome, Measure::AddedLatency, &told))
}

fn storm(run: &Run, outcome: &Outcome) -> Option<String> {
    let (figures, case) = (figure::shown(outcome), outcome.cases.iter());
    let mut told = case.filter_map(|case| Some((both(case, &figures, "p99_us_at_150")?, case)));
    let Some(((ours, best), case)) = told.next() else {
        return beside(run, outcome);
    };
    let told = format!(
        "Under 150 % of its capacity becket's clients inside wait {ours}, beside {best} (p99{})",
        of_case(case)
    );
    Some(counted(run, outcome, Measure::Storm, &told))
}

/// Adds in how many places becket is better, worse, or not to be told from the best other, and whether the client had a part in it.
fn counted(run: &Run, outcome: &Outcome, measure: Measure, told: &str) -> String {
    let of_becket = outcome.cases.iter().filter_map(verdict::subject);
    let slow = of_becket
        .filter_map(figure::client_was_slow)
        .next()
        .is_some();
    let end = if slow {
        "; where the remarks say that the client was slow, a part of becket's is the client's own."
    } else {
        "."
    };
    let figures = figure::deciding(measure);
    let words = outcome.cases.iter().flat_map(|case| {
        let standings = figures
            .iter()
            .filter_map(|figure| verdict::of_rivals(case, figure, run.certainty()));
        standings.map(|standing| standing.word).collect::<Vec<_>>()
    });
    let words: Vec<&str> = words.collect();
    let count = |word: &str| words.iter().filter(|w| **w == word).count();
    if words.is_empty() {
        return format!("{told}{end}");
    }
    format!(
        "{told}; of all its p50 and p99, {} of {} are lower than the best other's, {} higher, {} not distinguishable{end}",
        count("better"),
        words.len(),
        count("worse"),
        count("not distinguishable")
    )
}

fn overload(run: &Run, outcome: &Outcome) -> Option<String> {
    let figures = figure::shown(outcome);
    let kept = figures
        .iter()
        .filter(|figure| figure.name.starts_with(figures::KEPT));
    // The largest flood that the clients could make.
    kept.rev().find_map(|kept| goodput(run, outcome, kept))
}

fn goodput(run: &Run, outcome: &Outcome, kept: &Figure) -> Option<String> {
    let cases = outcome.cases.iter().filter_map(|case| {
        let ours = verdict::subject(case)?.median(&kept.name)?;
        let rival = verdict::rival(case, kept);
        let rival = rival.and_then(|rival| Some((&rival.peer, rival.median(&kept.name)?)));
        let rival = rival.map(|(peer, share)| format!(", {peer} {}", kept.show(share)));
        let label = match case.label.as_str() {
            "" => String::new(),
            label => format!(" ({label})"),
        };
        let sure = verdict::of_kept(case, kept, run.certainty());
        let sure = sure.map(|standing| {
            let Interval { low, high, .. } = standing.interval;
            format!(" (95 % interval {} to {})", kept.show(low), kept.show(high))
        });
        Some(format!(
            "{}{} of what it can{}{label}",
            kept.show(ours),
            sure.unwrap_or_default(),
            rival.unwrap_or_default(),
        ))
    });
    let cases: Vec<String> = cases.collect();
    let under = kept.heading.split_once("under ");
    let under = under.map_or("150 % of capacity", |(_, load)| load);
    (!cases.is_empty()).then(|| format!("Under {under} becket still serves {}.", cases.join("; ")))
}

fn cores(outcome: &Outcome) -> Option<String> {
    let rate = |case: &Case| verdict::subject(case)?.median(figures::RATE);
    let measured = outcome
        .cases
        .iter()
        .filter_map(|case| Some((case, rate(case)?)));
    let measured: Vec<(&Case, f64)> = measured.collect();
    let ((_, one), (most, all)) = (measured.first()?, measured.last()?);
    Some(match measured.len() {
        1 => format!(
            "One worker of becket serves {}; there are too few CPUs here for more.",
            show_rate(*one)
        ),
        _ => format!(
            "becket with {} serves {:.2} times as much as with one: {} after {}.",
            most.label,
            all / one,
            show_rate(*all),
            show_rate(*one)
        ),
    })
}

fn failover(outcome: &Outcome) -> Option<String> {
    let name = figures::phase(figures::RESUMED, failover::DURING);
    let cases = outcome.cases.iter().filter_map(|case| {
        let share = |column: &Column| Some(column.median(&name)? * 100.0);
        let [clustered, alone] = case.columns.as_slice() else {
            return None;
        };
        Some(format!(
            "with {} {:.0} % of the clients resume at their first return, without a cluster {:.0} %",
            case.label,
            share(clustered)?,
            share(alone)?
        ))
    });
    let cases: Vec<String> = cases.collect();
    (!cases.is_empty()).then(|| format!("In a cluster it does: {}.", cases.join("; ")))
}

fn queued(outcome: &Outcome) -> Option<String> {
    let column = verdict::subject(outcome.cases.first()?)?;
    let figures = figure::shown(outcome);
    let show = |name: &str| {
        let figure = figures.iter().find(|figure| figure.name == name)?;
        Some(figure.show(column.median(name)?))
    };
    let p99 = |phase| show(&figures::phase(figures::P99, phase));
    Some(format!(
        "Each costs {} of memory, and clients of another listener see a p99 of {} where it is {} when nobody waits.",
        show(figures::PSS_PER_CONNECTION)?,
        p99(queued::FULL)?,
        p99(queued::EMPTY)?
    ))
}

fn scraped(run: &Run, outcome: &Outcome) -> Option<String> {
    let case = outcome.cases.first()?;
    let figures = figure::deciding(Measure::Scraped);
    let told = figures.iter().filter_map(|figure| {
        let standing = verdict::of_rivals(case, figure, run.certainty())?;
        let ratio = verdict::show(&standing.interval);
        Some(format!("{} {ratio}, {}", figure.heading, standing.word))
    });
    let told: Vec<String> = told.collect();
    if told.is_empty() {
        return beside(run, outcome);
    }
    Some(format!(
        "Times what it is when nobody asks: {}.",
        told.join("; ")
    ))
}

fn generators(outcome: &Outcome) -> Option<String> {
    let pairs = outcome.cases.iter().filter_map(|case| {
        let [ours, other] = case.columns.as_slice() else {
            return None;
        };
        let (a, b) = (ours.median(figures::RATE)?, other.median(figures::RATE)?);
        Some((
            case.label.as_str(),
            other.peer.as_str(),
            (a / b - 1.0) * 100.0,
        ))
    });
    let pairs: Vec<(&str, &str, f64)> = pairs.collect();
    if pairs.is_empty() {
        return Some("No second generator is on this machine.".to_owned());
    }
    let close = pairs.iter().all(|(.., apart)| apart.abs() <= CLOSE);
    let word = if close { "No" } else { "Its rates differ" };
    let each = pairs
        .iter()
        .map(|(label, other, apart)| format!("{apart:+.1} % from {other} with {label}"));
    Some(format!("{word}: {}.", each.collect::<Vec<_>>().join(", ")))
}

/// Scenarios that ask what the steps of one setting cost or save.
const STEPS: &[(&str, &str)] = &[
    ("batches", "rsa-batch"),
    ("cipher", "suite"),
    ("ktls", "ktls"),
    ("library", "mask"),
    ("pq", "group"),
    ("replication", "cluster"),
    ("servers", "servers"),
    ("threads", "crypto-threads"),
];
/// Generators that agree within so many per cent do.
const CLOSE: f64 = 5.0;

#[cfg(test)]
mod tests;
