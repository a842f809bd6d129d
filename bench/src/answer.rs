//! The answer to a scenario's question: one sentence, computed from its figures.

use std::collections::BTreeMap;

use crate::figure::{self, Figure};
use crate::figures;
use crate::result::{Case, Outcome, Run};
use crate::scenario::Measure;
use crate::spread;
use crate::verdict::{self, Standing};

/// Returns the answer for an outcome.
pub fn of(run: &Run, outcome: &Outcome) -> String {
    if let Some(reason) = &outcome.not_available {
        return format!("Not available: {reason}.");
    }
    let setting = STEPS.iter().find(|(id, _)| *id == outcome.id);
    let answer = match outcome.measure {
        Measure::Generators => generators(outcome),
        Measure::Queued | Measure::Failover => None,
        Measure::Delay => saved(outcome),
        Measure::Transactions | Measure::Burst if outcome.cases.len() > 1 && setting.is_some() => {
            setting.and_then(|(_, setting)| steps(outcome, setting))
        }
        _ => standings(run, outcome),
    };
    answer
        .or_else(|| medians(outcome))
        .unwrap_or_else(|| "No server could be measured on this machine.".to_owned())
}

/// Compares becket with the best peer and with other builds or settings of becket. Lists up to [`FEW`] verdicts and counts more.
fn standings(run: &Run, outcome: &Outcome) -> Option<String> {
    let figures = figure::headlines(outcome);
    let each = outcome.cases.iter().flat_map(|case| {
        figures.iter().flat_map(move |figure| {
            let standings = verdict::standings(case, figure, run.certainty());
            standings.map(move |standing| (case, figure, standing))
        })
    });
    let all: Vec<(&Case, &Figure, Standing)> = each.collect();
    if all.len() <= FEW {
        let told = all.iter().map(|(case, figure, standing)| {
            let value = verdict::subject(case).and_then(|column| column.median(&figure.name));
            format!(
                "{}{} is {}, {} times that of {}: {}",
                figure.heading,
                of_case(case),
                value.map_or("-".to_owned(), |value| figure.show(value)),
                verdict::show(&standing.interval),
                standing.against,
                standing.word
            )
        });
        let told: Vec<String> = told.collect();
        return (!told.is_empty()).then(|| format!("Becket's {}.", told.join("; its ")));
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (.., standing) in &all {
        *counts.entry(standing.word).or_default() += 1;
    }
    let counts = counts.iter().map(|(word, count)| format!("{count} {word}"));
    let ratios = all.iter().map(|(.., standing)| standing.interval.ratio);
    let (least, most) = spread::range(&ratios.collect::<Vec<f64>>())?;
    let heading = match figures.as_slice() {
        [only] => only.heading.as_str(),
        _ => "figures",
    };
    Some(format!(
        "{} comparisons of becket's {heading}: {}; ratios from {least:.2} to {most:.2}.",
        all.len(),
        counts.collect::<Vec<_>>().join(", ")
    ))
}

/// Names the best column of each case if becket cannot be compared with a peer.
fn medians(outcome: &Outcome) -> Option<String> {
    let figure = figure::headlines(outcome).into_iter().next()?;
    let best = outcome.cases.iter().filter_map(|case| {
        let (column, value) = figure.best(case)?;
        Some(format!(
            "{} with {}{}",
            figure.show(value),
            column.peer,
            of_case(case)
        ))
    });
    let best: Vec<String> = best.collect();
    (!best.is_empty()).then(|| format!("Best {}: {}.", figure.heading, best.join("; ")))
}

/// Compares becket's figure for each value of a setting with its figure for the first value.
fn steps(outcome: &Outcome, setting: &str) -> Option<String> {
    let figure = figure::headlines(outcome).into_iter().next()?;
    let value = |case: &Case| verdict::subject(case)?.median(&figure.name);
    let from = outcome.cases.first()?.settings.get(setting)?;
    let mut steps: Vec<(&str, Vec<(f64, f64)>)> = Vec::new();
    for case in &outcome.cases {
        let to = case.settings.get(setting)?;
        let mut base = case.settings.clone();
        base.insert(setting.to_owned(), from.clone());
        let base = outcome.cases.iter().find(|other| other.settings == base);
        let (Some(after), Some(before)) = (value(case), base.and_then(value)) else {
            continue;
        };
        match steps.iter_mut().find(|(known, _)| known == to) {
            _ if to == from => {}
            Some((_, known)) => known.push((before, after)),
            None => steps.push((to, vec![(before, after)])),
        }
    }
    let told = steps.iter().filter_map(|(to, pairs)| {
        let ratios: Vec<f64> = pairs.iter().map(|(before, after)| after / before).collect();
        let (least, most) = spread::range(&ratios)?;
        let change = match pairs.as_slice() {
            [(before, after)] => {
                let word = if after < before { "lower" } else { "higher" };
                let by = figure.show((after - before).abs());
                format!("{by} {word} ({least:.2} times)")
            }
            _ => format!("{least:.2} to {most:.2} times as high"),
        };
        Some(format!("{change} with {setting} {to}"))
    });
    let told: Vec<String> = told.collect();
    (!told.is_empty()).then(|| {
        let told = told.join(", ");
        format!(
            "Compared with {setting} {from}, becket's {} is {told}.",
            figure.heading
        )
    })
}

/// Returns the round trips that each way of resumption saves becket's clients.
fn saved(outcome: &Outcome) -> Option<String> {
    let trips = |case: &Case| verdict::subject(case)?.median(figures::ROUND_TRIPS_TO_FIRST);
    let told = outcome.cases.iter().filter_map(|case| {
        let mut full = case.settings.clone();
        let way = full.insert("resume".to_owned(), "never".to_owned())?;
        let full = outcome.cases.iter().find(|other| other.settings == full)?;
        let saved = trips(full)? - trips(case)?;
        // Adding zero avoids a negative zero.
        let saved = (saved * 10.0).round() / 10.0 + 0.0;
        (way != "never").then(|| format!("{saved:.1}{}", of_case(case)))
    });
    let told: Vec<String> = told.collect();
    (!told.is_empty()).then(|| {
        let told = told.join(", ");
        format!("Round trips to the first byte that resumption saves becket's clients: {told}.")
    })
}

/// Compares the rate of `becket-load` with the rates of the other generators.
fn generators(outcome: &Outcome) -> Option<String> {
    let apart = outcome.cases.iter().flat_map(|case| {
        let ours = case
            .columns
            .first()
            .and_then(|ours| ours.median(figures::RATE));
        case.columns.iter().skip(1).filter_map(move |other| {
            let apart = ours? / other.median(figures::RATE)? - 1.0;
            let (per_cent, case) = (apart * 100.0, of_case(case));
            Some((
                apart,
                format!("{per_cent:+.1} % compared with {}{case}", other.peer),
            ))
        })
    });
    let (apart, told): (Vec<f64>, Vec<String>) = apart.unzip();
    let close = apart.iter().all(|apart| apart.abs() <= CLOSE);
    let answer = if close {
        format!(
            "No, the rate of becket-load is within {:.0} % of the other generators",
            CLOSE * 100.0
        )
    } else {
        "The rate of becket-load differs from the other generators".to_owned()
    };
    (!told.is_empty()).then(|| format!("{answer}: {}.", told.join(", ")))
}

/// Returns the label of a case in parentheses, or an empty text without a label.
fn of_case(case: &Case) -> String {
    match case.label.as_str() {
        "" => String::new(),
        label => format!(" ({label})"),
    }
}

/// Scenarios that ask for the cost or gain of a setting, with the setting.
const STEPS: &[(&str, &str)] = &[
    ("batches", "rsa-batch"),
    ("cipher", "suite"),
    ("cores", "workers"),
    ("files-ktls", "ktls"),
    ("ktls", "ktls"),
    ("library", "mask"),
    ("pq", "group"),
    ("replication", "cluster"),
    ("servers", "servers"),
    ("threads", "crypto-threads"),
];
/// Maximum number of verdicts to list.
const FEW: usize = 4;
/// Maximum relative difference of rates that agree.
const CLOSE: f64 = 0.05;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::testing::{case, column};

    fn outcome(id: &str, cases: Vec<Case>) -> Outcome {
        Outcome {
            id: id.to_owned(),
            cases,
            ..Outcome::default()
        }
    }

    #[test]
    fn a_setting_is_compared_with_its_first_value_while_other_settings_are_equal() {
        let cases = [
            ("rsa2048", "off", 400.0),
            ("rsa2048", "auto", 200.0),
            ("rsa4096", "off", 2000.0),
            ("rsa4096", "auto", 1500.0),
        ];
        let cases = cases.map(|(key, batch, cpu)| Case {
            settings: [("key", key), ("rsa-batch", batch)]
                .map(|(a, b)| (a.to_owned(), b.to_owned()))
                .into(),
            ..case(vec![column("becket", &[cpu])])
        });
        let answer = of(&Run::default(), &outcome("batches", cases.into()));
        assert!(
            answer.contains("is 0.50 to 0.75 times as high with rsa-batch auto"),
            "{answer}"
        );
    }

    #[test]
    fn the_answer_of_delay_is_the_round_trips_saved_by_resumption() {
        let cases = [("never", 4.1), ("always", 3.04), ("early", 4.13)].map(|(resume, trips)| {
            let mut becket = column("becket", &[1.0]);
            becket.samples[0].put(figures::ROUND_TRIPS_TO_FIRST, trips);
            Case {
                label: format!("resume {resume}"),
                settings: [("resume".to_owned(), resume.to_owned())].into(),
                ..case(vec![becket])
            }
        });
        let outcome = Outcome {
            measure: Measure::Delay,
            ..outcome("delay", cases.into())
        };
        let answer = of(&Run::default(), &outcome);
        assert!(
            answer.ends_with("1.1 (resume always), 0.0 (resume early)."),
            "{answer}"
        );
    }

    #[test]
    fn few_verdicts_are_listed_and_many_are_counted() {
        let sure = || {
            case(vec![
                column("becket", &[100.0, 100.0, 100.1]),
                column("nginx", &[200.0, 200.0, 200.1]),
            ])
        };
        let answer = |count: usize| of(&Run::default(), &outcome("key", vec![sure(); count]));
        assert!(answer(1).contains("nginx: better"), "{}", answer(1));
        assert!(
            answer(5).contains("5 better; ratios from 0.50 to 0.50"),
            "{}",
            answer(5)
        );
    }

    #[test]
    fn a_scenario_without_figures_has_an_answer_without_numbers() {
        let mut outcome = outcome("key", Vec::new());
        assert!(of(&Run::default(), &outcome).starts_with("No server"));
        outcome.not_available = Some("no kernel".to_owned());
        assert_eq!(of(&Run::default(), &outcome), "Not available: no kernel.");
    }
}
