//! Generates the sentences that answer a scenario's question from its measured figures.

use crate::figure::{self, Figure};
use crate::figures;
use crate::result::{Case, Outcome, Run};
use crate::scenario::Measure;
use crate::spread;
use crate::verdict::{self, Standing};

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

/// Returns a sentence for each verdict on becket, inconclusive ones last. If there are more than [`FEW`] verdicts,
/// returns one sentence that only counts them.
fn standings(run: &Run, outcome: &Outcome) -> Option<String> {
    let figures = figure::headlines(outcome);
    let each = outcome.cases.iter().flat_map(|case| {
        figures.iter().flat_map(move |figure| {
            let standings = verdict::standings(case, figure, run.certainty());
            let standings = standings.into_iter();
            standings.map(move |standing| (case, figure, standing))
        })
    });
    let mut all: Vec<(&Case, &Figure, Standing)> = each.collect();
    all.sort_by_key(|(.., standing)| standing.is_unclear());
    if all.len() <= FEW {
        return listed(&all);
    }
    let ratios = all.iter().map(|(.., it)| (it.word, it.interval.ratio));
    let by_word = grouped(ratios.clone());
    let counts = by_word.iter();
    let counts = counts.map(|(word, ratios)| format!("{word} in {}", ratios.len()));
    let ratios: Vec<f64> = ratios.map(|(_, ratio)| ratio).collect();
    let (least, most) = spread::range(&ratios)?;
    let (heading, is) = match figures.as_slice() {
        [only] => (only.heading.as_str(), "is"),
        _ => ("figures", "are"),
    };
    Some(format!(
        "Becket's {heading} {is} {} of {} comparisons: {least:.2} to {most:.2} times the other value.",
        counts.collect::<Vec<_>>().join(", "),
        all.len()
    ))
}

fn listed(all: &[(&Case, &Figure, Standing)]) -> Option<String> {
    sentences(all.iter().map(|(case, figure, standing)| {
        let (interval, against) = (&standing.interval, &standing.against);
        let times = format!("{} times", verdict::show(interval));
        let (begin, ratio) = match standing.word {
            "better" | "worse" => {
                let is_less = interval.ratio < 1.0;
                let word = if is_less { "lower" } else { "higher" };
                let by = (interval.ratio - 1.0).abs() * 100.0;
                let than = format!("is {word} than that of {against}");
                (than, format!("by {by:.0} %"))
            }
            "target met" | "target missed" => {
                (format!("compared with {against}: {}", standing.word), times)
            }
            word if standing.is_unclear() => (format!("compared with {against} is {word}"), times),
            word => (format!("is {word} than that of {against}"), times),
        };
        let value = verdict::subject(case).and_then(|column| column.median(&figure.name));
        let value = value.map_or("-".to_owned(), |value| figure.show(value));
        let begin = format!("Becket's {} {begin}", figure.heading);
        (begin, format!("{ratio}{} ({value})", with(case)))
    }))
}

/// Returns sentences that name the best server of each case. Used if a run cannot compare becket with a peer.
fn medians(outcome: &Outcome) -> Option<String> {
    let figure = figure::headlines(outcome).into_iter().next()?;
    sentences(outcome.cases.iter().filter_map(|case| {
        let (column, value) = figure.best(case)?;
        let begin = format!("The best {} is that of {}", figure.heading, column.peer);
        let value = figure.show(value);
        Some((begin, format!("{value}{}", with(case))))
    }))
}

/// Writes one sentence for each distinct first string: the string, a colon, and all second strings that belong to it.
fn sentences(parts: impl Iterator<Item = (String, String)>) -> Option<String> {
    let sentences = grouped(parts).into_iter();
    joined(
        sentences.map(|(begin, parts)| format!("{begin}: {}.", parts.join("; "))),
        " ",
    )
}

/// Collects the values of each key, in the order in which the keys first occur.
fn grouped<K: PartialEq, V>(pairs: impl Iterator<Item = (K, V)>) -> Vec<(K, Vec<V>)> {
    let mut groups: Vec<(K, Vec<V>)> = Vec::new();
    for (key, value) in pairs {
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, values)) => values.push(value),
            None => groups.push((key, vec![value])),
        }
    }
    groups
}

/// Joins the parts. Returns `None` if there are none.
fn joined(parts: impl Iterator<Item = String>, separator: &str) -> Option<String> {
    let parts: Vec<String> = parts.collect();
    (!parts.is_empty()).then(|| parts.join(separator))
}

/// Compares becket's figure for each value of a setting with its figure for the first value.
fn steps(outcome: &Outcome, setting: &str) -> Option<String> {
    let figure = figure::headlines(outcome).into_iter().next()?;
    let value = |case: &Case| verdict::subject(case)?.median(&figure.name);
    let from = outcome.cases.first()?.settings.get(setting)?;
    let steps = outcome.cases.iter().filter_map(|case| {
        let mut base = case.settings.clone();
        let to = base.insert(setting.to_owned(), from.clone())?;
        let base = outcome.cases.iter().find(|other| other.settings == base)?;
        (to != *from).then_some((to, (value(base)?, value(case)?)))
    });
    let heading = &figure.heading;
    let from = named(setting, from);
    let told = grouped(steps).into_iter().filter_map(|(to, pairs)| {
        let ratios: Vec<f64> = pairs.iter().map(|(before, after)| after / before).collect();
        let (least, most) = spread::range(&ratios)?;
        let change = match pairs.as_slice() {
            [(before, after)] => {
                let word = if after < before { "less" } else { "more" };
                let by = figure.show((after - before).abs());
                format!("{by} {word} {heading} than {from} ({least:.2} times)")
            }
            _ => format!("{least:.2} to {most:.2} times the {heading} of {from}"),
        };
        let verb = if figure.less_is_better {
            "costs"
        } else {
            "gives"
        };
        Some(format!("{} {verb} becket {change}.", named(setting, &to)))
    });
    joined(told, " ")
}

fn named(setting: &str, value: &str) -> String {
    match setting {
        "group" => value.to_uppercase(),
        _ => format!("`{setting} {value}`"),
    }
}

/// Returns a sentence that lists, for each case with resumption, how many round trips to the first byte it saves
/// compared with a full handshake.
fn saved(outcome: &Outcome) -> Option<String> {
    let trips = |case: &Case| verdict::subject(case)?.median(figures::ROUND_TRIPS_TO_FIRST);
    let told = outcome.cases.iter().filter_map(|case| {
        let mut full = case.settings.clone();
        let way = full.insert("resume".to_owned(), "never".to_owned())?;
        let full = outcome.cases.iter().find(|other| other.settings == full)?;
        let saved = trips(full)? - trips(case)?;
        // Adding 0.0 turns -0.0 into 0.0, which is formatted without a minus sign.
        let saved = (saved * 10.0).round() / 10.0 + 0.0;
        (way != "never").then(|| format!("{saved:.1}{}", with(case)))
    });
    let told = joined(told, "; ")?;
    Some(format!(
        "Resumption saves becket's clients these round trips to the first byte: {told}."
    ))
}

fn generators(outcome: &Outcome) -> Option<String> {
    let apart = outcome.cases.iter().flat_map(|case| {
        let ours = case
            .columns
            .first()
            .and_then(|ours| ours.median(figures::RATE));
        case.columns.iter().skip(1).filter_map(move |other| {
            let apart = ours? / other.median(figures::RATE)? - 1.0;
            let (per_cent, case) = (apart * 100.0, with(case));
            Some((
                apart,
                format!("{per_cent:+.1} % against {}{case}", other.peer),
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
    (!told.is_empty()).then(|| format!("{answer}: {}.", told.join("; ")))
}

/// Returns ` with <label>` for a case with a label, otherwise an empty string.
fn with(case: &Case) -> String {
    match case.label.as_str() {
        "" => String::new(),
        label => format!(" with {label}"),
    }
}

/// Pairs of scenario ID and setting. The answer of such a scenario compares the values of the setting.
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
    ("sharing", "workers"),
    ("threads", "crypto-threads"),
];
const FEW: usize = 4;
/// Maximum relative difference at which the rates of two load generators count as equal.
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
            answer.starts_with("`rsa-batch auto` costs becket 0.50 to 0.75 times the server CPU"),
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
            answer.ends_with("1.1 with resume always; 0.0 with resume early."),
            "{answer}"
        );
    }

    #[test]
    fn few_verdicts_are_listed_and_many_are_counted() {
        let cases = |nginx: f64| {
            case(vec![
                column("becket", &[100.0, 100.0, 100.1]),
                column("nginx", &[nginx, nginx, nginx + 0.1]),
            ])
        };
        let answer = |cases: Vec<Case>| of(&Run::default(), &outcome("key", cases));
        let one = answer(vec![cases(200.0)]);
        let said = "is lower than that of nginx: by 50 % (100.0 us).";
        assert!(one.ends_with(said), "{one}");
        // Unclear verdicts stand last.
        let two = answer(vec![cases(100.0), cases(200.0)]);
        let (sure, unclear) = two.split_once(said).unwrap();
        assert!(!sure.contains("not distinguishable"), "{two}");
        assert!(unclear.contains("nginx is not distinguishable"), "{two}");
        let mut five = vec![cases(100.0)];
        five.extend(vec![cases(200.0); 4]);
        let five = answer(five);
        let said = "better in 4, not distinguishable in 1 of 5 comparisons: 0.50 to 1.00 times";
        assert!(five.contains(said), "{five}");
    }

    #[test]
    fn a_scenario_without_figures_has_an_answer_without_numbers() {
        let mut outcome = outcome("key", Vec::new());
        assert!(of(&Run::default(), &outcome).starts_with("No server"));
        outcome.not_available = Some("no kernel".to_owned());
        assert_eq!(of(&Run::default(), &outcome), "Not available: no kernel.");
    }
}
