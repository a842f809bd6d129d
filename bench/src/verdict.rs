//! Computes verdicts on becket and its peers, with confidence intervals.
//!
//! Two servers are compared by the ratios of their figures in each round. Figures of different runs are not compared,
//! because the speed of a machine changes over time. See [`becket_stats::ratio`] for the statistics and
//! [`crate::control`] for the precision that the machine allows.

use std::cmp::Ordering;

use becket_stats::ratio::{Interval, level};

use crate::control;
use crate::figure::Figure;
use crate::figures;
use crate::result::{Case, Column, Run, Sample};
use crate::scenario::BECKETS;

#[derive(Clone, Copy, Debug)]
pub struct Certainty<'a> {
    /// Maximum number of checks per case. A higher number widens the confidence intervals.
    pub looks: u32,
    pub control: &'a [Sample],
}

impl Certainty<'_> {
    /// Returns the confidence interval of the ratio of two columns of a case.
    pub fn between(&self, first: &Column, second: &Column, figure: &str) -> Option<Interval> {
        let pairs = first.pairs(second, figure);
        let interval = Interval::paired(&pairs, level(self.looks))?;
        let turns = first.values(figures::TURNS);
        let movement = match turns.first() {
            Some(turns) if *turns > 1.0 => control::movement_in_turns,
            _ => control::movement,
        };
        Some(interval.widened(movement(self.control, pairs.len())))
    }
}

impl Run {
    pub fn certainty(&self) -> Certainty<'_> {
        Certainty {
            looks: self.looks,
            control: &self.control,
        }
    }
}

/// Returns the column of the current build of becket, which verdicts compare with all other columns.
pub fn subject(case: &Case) -> Option<&Column> {
    case.column("becket").filter(|c| !c.samples.is_empty())
}

/// Returns the additional columns of becket: other builds or other settings.
fn beckets(case: &Case) -> impl Iterator<Item = &Column> {
    case.columns.iter().filter(|c| c.peer.starts_with(BECKETS))
}

/// Returns the peer with the best figure. Excludes floors and columns of becket.
pub fn rival<'a>(case: &'a Case, figure: &Figure) -> Option<&'a Column> {
    let is_other = |column: &&Column| column.peer != "becket" && !column.peer.starts_with(BECKETS);
    let others = case.columns.iter().filter(is_other);
    figure.best_of(others).map(|(column, _)| column)
}

/// Returns whether the verdicts of a case are clear, so that it needs no more rounds. Each figure must show a clear
/// difference between becket and the best peer. It must also show whether becket is worse than its other builds and
/// settings by more than [`TOLERATED`].
pub fn is_decided(case: &Case, deciding: &[Figure], certainty: Certainty<'_>) -> bool {
    let Some(subject) = subject(case) else {
        return true;
    };
    let decided = |figure: &Figure| {
        let apart = |other: &Column, times: f64| {
            certainty
                .between(subject, other, &figure.name)
                .is_some_and(|interval| interval.against(times).is_some())
        };
        let measured = subject.median(&figure.name).is_some();
        let rival = rival(case, figure).is_none_or(|rival| apart(rival, 1.0));
        let own = beckets(case).all(|other| apart(other, worse(figure)));
        !measured || (rival && own)
    };
    deciding.iter().all(decided)
}

/// Returns whether the first column is better than the second one multiplied by `times`. Returns `None` if this is
/// unclear.
fn is_better(interval: &Interval, times: f64, figure: &Figure) -> Option<bool> {
    let order = interval.against(times)?;
    Some(order.is_lt() == figure.less_is_better)
}

/// Returns the ratio of two values of a figure at which the first one is worse by [`TOLERATED`].
fn worse(figure: &Figure) -> f64 {
    if figure.less_is_better {
        1.0 + TOLERATED
    } else {
        1.0 / (1.0 + TOLERATED)
    }
}

/// Compares a figure of becket with other columns of becket, with its target under a flood, and with the best peer.
pub fn standings(case: &Case, figure: &Figure, certainty: Certainty<'_>) -> Vec<Standing> {
    let mut standings = of_beckets(case, figure, certainty);
    standings.extend(of_kept(case, figure, certainty));
    standings.extend(of_rivals(case, figure, certainty));
    standings
}

pub fn of_rivals(case: &Case, figure: &Figure, certainty: Certainty<'_>) -> Option<Standing> {
    let rival = rival(case, figure)?;
    let interval = certainty.between(subject(case)?, rival, &figure.name)?;
    Some(Standing {
        against: rival.peer.clone(),
        interval,
        word: match is_better(&interval, 1.0, figure) {
            None => "not distinguishable",
            Some(true) => "better",
            Some(false) => "worse",
        },
    })
}

pub fn of_beckets(case: &Case, figure: &Figure, certainty: Certainty<'_>) -> Vec<Standing> {
    let standing = |other: &Column| {
        let interval = certainty.between(subject(case)?, other, &figure.name)?;
        let than = |times| is_better(&interval, times, figure);
        let word = match (than(1.0), than(worse(figure))) {
            (Some(true), _) => "better",
            (_, Some(true)) => "not worse by more than 2 %",
            (_, Some(false)) => "worse by more than 2 %",
            (_, None) => "inconclusive",
        };
        Some(Standing {
            against: other.peer.clone(),
            interval,
            word,
        })
    };
    beckets(case).filter_map(standing).collect()
}

/// Compares becket's goodput under a flood with its target, which is a share of becket's closed-loop rate.
pub fn of_kept(case: &Case, figure: &Figure, certainty: Certainty<'_>) -> Option<Standing> {
    // The targets apply only to full handshakes. With resumption, failed clients also lose their cached sessions.
    if case.settings.get("resume").is_some_and(|it| it != "never") {
        return None;
    }
    let is_of = |percent: &str| figure.name == figures::at(figures::KEPT, percent);
    let (_, mark) = figures::FLOODS.iter().find(|(percent, _)| is_of(percent))?;
    let kept = subject(case)?.values(&figure.name);
    // The goodput is already relative to a closed loop of the same round, so the second value of each pair is 1.
    let pairs: Vec<(f64, f64)> = kept.into_iter().map(|kept| (kept, 1.0)).collect();
    let interval = Interval::paired(&pairs, level(certainty.looks))?;
    let interval = interval.widened(control::movement(certainty.control, pairs.len()));
    Some(Standing {
        against: format!("its closed loop (target: {:.0} %)", mark * 100.0),
        word: match interval.against(*mark) {
            None => "inconclusive",
            Some(Ordering::Less) => "target missed",
            Some(_) => "target met",
        },
        interval,
    })
}

#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    pub against: String,
    /// Becket's figure divided by that of the compared server.
    pub interval: Interval,
    pub word: &'static str,
}

impl Standing {
    pub fn is_unclear(&self) -> bool {
        ["not distinguishable", "inconclusive"].contains(&self.word)
    }
}

/// Formats an interval as `0.62 (0.60 to 0.64)`.
pub fn show(interval: &Interval) -> String {
    format!(
        "{:.2} ({:.2} to {:.2})",
        interval.ratio, interval.low, interval.high
    )
}

/// Maximum tolerated relative increase of a figure compared with another build.
const TOLERATED: f64 = 0.02;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::testing::{case, column};

    fn cpu() -> Figure {
        Figure {
            name: figures::CPU.to_owned(),
            heading: String::new(),
            less_is_better: true,
            is_contested: true,
            decides: true,
        }
    }

    const SURE: Certainty<'static> = Certainty {
        looks: 1,
        control: &[],
    };

    #[test]
    fn a_case_is_decided_if_becket_differs_from_the_best_peer() {
        let close = column("nginx", &[101.0, 99.0, 100.5]);
        let far = column("hitch", &[300.0, 310.0, 305.0]);
        let becket = column("becket", &[100.0, 100.0, 100.0]);
        assert!(is_decided(
            &case(vec![becket.clone(), far.clone()]),
            &[cpu()],
            SURE
        ));
        let open = case(vec![becket, far, close]);
        assert!(!is_decided(&open, &[cpu()], SURE));
        let standing = of_rivals(&open, &cpu(), SURE).unwrap();
        assert_eq!(
            (standing.against.as_str(), standing.word),
            ("nginx", "not distinguishable")
        );
    }

    #[test]
    fn an_old_build_is_not_a_peer_and_a_small_regression_is_tolerated() {
        let becket = column("becket", &[101.0, 101.1, 100.9]);
        let with = |old: &[f64]| case(vec![becket.clone(), column("becket@old", old)]);
        let word = |case: &Case| of_beckets(case, &cpu(), SURE)[0].word;
        assert_eq!(
            word(&with(&[100.0, 100.1, 99.9])),
            "not worse by more than 2 %"
        );
        assert_eq!(word(&with(&[90.0, 90.1, 89.9])), "worse by more than 2 %");
        assert_eq!(word(&with(&[95.0, 105.0, 100.0])), "inconclusive");
        assert_eq!(word(&with(&[180.0, 180.1, 179.9])), "better");
        assert!(rival(&with(&[1.0]), &cpu()).is_none());
    }

    #[test]
    fn the_goodput_is_compared_with_its_target() {
        let kept_of = |values: &[f64], resume: &str| {
            let mut column = column("becket", values);
            for (sample, value) in column.samples.iter_mut().zip(values) {
                sample.put("goodput_kept_share_at_150", *value);
            }
            let figure = Figure {
                name: "goodput_kept_share_at_150".to_owned(),
                ..cpu()
            };
            let mut case = case(vec![column]);
            let settings = &mut case.settings;
            settings.insert("resume".to_owned(), resume.to_owned());
            of_kept(&case, &figure, SURE)
        };
        let kept = |values: &[f64]| kept_of(values, "never");
        assert_eq!(kept(&[0.99, 0.991, 0.989]).unwrap().word, "target met");
        assert_eq!(kept(&[0.9, 0.901, 0.899]).unwrap().word, "target missed");
        let apart = kept(&[0.888, 0.966]).unwrap();
        assert_eq!(apart.word, "inconclusive");
        assert!(apart.interval.low < 0.7 && apart.interval.high > 1.2);
        assert!(kept(&[0.97]).is_none());
        assert!(kept_of(&[0.6, 0.6, 0.6], "every=4").is_none());
        let cpu = case(vec![column("becket", &[1.0, 1.0])]);
        assert!(of_kept(&cpu, &self::cpu(), SURE).is_none());
    }

    #[test]
    fn the_movement_of_the_control_can_make_a_verdict_unclear() {
        let control: Vec<Sample> = column("relay", &[50.0, 58.0, 50.0, 58.0]).samples;
        let unsteady = Certainty {
            looks: 1,
            control: &control,
        };
        let case = case(vec![
            column("becket", &[97.0, 97.1, 96.9]),
            column("nginx", &[100.0, 100.1, 99.9]),
        ]);
        assert!(is_decided(&case, &[cpu()], SURE));
        assert!(!is_decided(&case, &[cpu()], unsteady));
    }
}
