//! Who is better, and how sure that is.
//!
//! Figures are paired by round. Those of two runs are not compared: a machine is another one an hour later. See [`becket_stats::ratio`] for the statistics and
//! [`crate::control`] for the control.

use becket_stats::ratio::{Interval, Verdict, level};

use crate::control;
use crate::figure::Figure;
use crate::figures;
use crate::result::{Case, Column, Run, Sample};
use crate::scenario::BECKETS;

/// What a run knows about its own certainty.
#[derive(Clone, Copy, Debug)]
pub struct Certainty<'a> {
    /// Looks that were possible.
    pub looks: u32,
    /// The control's samples.
    pub control: &'a [Sample],
}

impl Certainty<'_> {
    /// Returns the interval of the ratio of two columns of one case.
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
    /// Returns how sure the run can be of anything.
    pub fn certainty(&self) -> Certainty<'_> {
        Certainty {
            looks: self.looks,
            control: &self.control,
        }
    }
}

/// Returns the column whose side a case takes: becket of today.
pub fn subject(case: &Case) -> Option<&Column> {
    case.column("becket").filter(|c| !c.samples.is_empty())
}

/// Returns becket once more: another build, or with other settings.
fn beckets(case: &Case) -> impl Iterator<Item = &Column> {
    case.columns.iter().filter(|c| c.peer.starts_with(BECKETS))
}

/// Returns the best of the others in a figure: neither a floor nor another becket.
pub fn rival<'a>(case: &'a Case, figure: &Figure) -> Option<&'a Column> {
    let is_other = |column: &&Column| column.peer != "becket" && !column.peer.starts_with(BECKETS);
    let others = case.columns.iter().filter(is_other);
    figure.best_of(others).map(|(column, _)| column)
}

/// Returns whether more rounds could not change what a case says: each of the figures tells becket from the
/// best of the others, and another becket from one that is worse by [`TOLERATED`].
pub fn is_decided(case: &Case, deciding: &[Figure], certainty: Certainty<'_>) -> bool {
    let Some(subject) = subject(case) else {
        return true;
    };
    let decided = |figure: &Figure| {
        let apart = |other: &Column, times: f64| {
            certainty
                .between(subject, other, &figure.name)
                .is_some_and(|interval| interval.against(times) != Verdict::Unclear)
        };
        let measured = subject.median(&figure.name).is_some();
        let rival = rival(case, figure).is_none_or(|rival| apart(rival, 1.0));
        let own = beckets(case).all(|other| apart(other, worse(figure)));
        !measured || (rival && own)
    };
    deciding.iter().all(decided)
}

/// Returns whether the first is better than so many times the second, where that can be told.
fn is_better(interval: &Interval, times: f64, figure: &Figure) -> Option<bool> {
    match interval.against(times) {
        Verdict::Unclear => None,
        Verdict::Less => Some(figure.less_is_better),
        Verdict::More => Some(!figure.less_is_better),
    }
}

/// The ratio at which a figure is worse by as much as is tolerated.
fn worse(figure: &Figure) -> f64 {
    if figure.less_is_better {
        1.0 + TOLERATED
    } else {
        1.0 / (1.0 + TOLERATED)
    }
}

/// Says how becket stands in a figure: to other beckets, to what it is to keep, and to the best of the others.
pub fn standings(
    case: &Case,
    figure: &Figure,
    certainty: Certainty<'_>,
) -> impl Iterator<Item = Standing> + use<> {
    let kept = of_kept(case, figure, certainty);
    let rival = of_rivals(case, figure, certainty);
    of_beckets(case, figure, certainty)
        .into_iter()
        .chain(kept)
        .chain(rival)
}

/// Says how becket stands to the best of the others in a figure.
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

/// Says how becket stands to each other build of it, and to itself with other settings, in a figure.
pub fn of_beckets(case: &Case, figure: &Figure, certainty: Certainty<'_>) -> Vec<Standing> {
    let standing = |other: &Column| {
        let interval = certainty.between(subject(case)?, other, &figure.name)?;
        let than = |times| is_better(&interval, times, figure);
        let word = match (than(1.0), than(worse(figure))) {
            (Some(true), _) => "better",
            (_, Some(true)) => "not worse by more than 2 %",
            (_, Some(false)) => "worse by more than 2 %",
            (_, None) => "cannot be told",
        };
        Some(Standing {
            against: other.peer.clone(),
            interval,
            word,
        })
    };
    beckets(case).filter_map(standing).collect()
}

/// Says whether becket keeps under a flood what it is to keep of its closed loop's rate.
pub fn of_kept(case: &Case, figure: &Figure, certainty: Certainty<'_>) -> Option<Standing> {
    // The marks are those of full handshakes: a flood that spoils the session cache costs more than its closed loop.
    if case.settings.get("resume").is_some_and(|it| it != "never") {
        return None;
    }
    let is_of = |percent: &str| figure.name == figures::at(figures::KEPT, percent);
    let (_, mark) = figures::FLOODS.iter().find(|(percent, _)| is_of(percent))?;
    let kept = subject(case)?.values(&figure.name);
    // Each is a ratio of the round already.
    let pairs: Vec<(f64, f64)> = kept.into_iter().map(|kept| (kept, 1.0)).collect();
    let interval = Interval::paired(&pairs, level(certainty.looks))?;
    let interval = interval.widened(control::movement(certainty.control, pairs.len()));
    Some(Standing {
        against: format!(
            "its closed loop, of which {:.0} % are to be kept",
            mark * 100.0
        ),
        word: match interval.against(*mark) {
            Verdict::More => "kept",
            Verdict::Less => "not kept",
            Verdict::Unclear => "cannot be told",
        },
        interval,
    })
}

/// One build's or peer's place beside another.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    pub against: String,
    /// The ratio of becket's figure to it.
    pub interval: Interval,
    pub word: &'static str,
}

/// Shows an interval as `0.62 (0.60 to 0.64)`.
pub fn show(interval: &Interval) -> String {
    format!(
        "{:.2} ({:.2} to {:.2})",
        interval.ratio, interval.low, interval.high
    )
}

/// A build may be worse than the one before by so much.
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
    fn a_case_is_decided_when_the_best_of_the_others_is_told_from_becket() {
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
    fn an_old_build_is_no_rival_and_a_little_worse_is_tolerated() {
        let becket = column("becket", &[101.0, 101.1, 100.9]);
        let with = |old: &[f64]| case(vec![becket.clone(), column("becket@old", old)]);
        let word = |case: &Case| of_beckets(case, &cpu(), SURE)[0].word;
        assert_eq!(
            word(&with(&[100.0, 100.1, 99.9])),
            "not worse by more than 2 %"
        );
        assert_eq!(word(&with(&[90.0, 90.1, 89.9])), "worse by more than 2 %");
        assert_eq!(word(&with(&[95.0, 105.0, 100.0])), "cannot be told");
        assert_eq!(word(&with(&[180.0, 180.1, 179.9])), "better");
        assert!(rival(&with(&[1.0]), &cpu()).is_none());
    }

    #[test]
    fn what_is_kept_is_held_to_its_mark_with_an_interval() {
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
        assert_eq!(kept(&[0.99, 0.991, 0.989]).unwrap().word, "kept");
        assert_eq!(kept(&[0.9, 0.901, 0.899]).unwrap().word, "not kept");
        let apart = kept(&[0.888, 0.966]).unwrap();
        assert_eq!(apart.word, "cannot be told");
        assert!(apart.interval.low < 0.7 && apart.interval.high > 1.2);
        assert!(kept(&[0.97]).is_none());
        assert!(kept_of(&[0.6, 0.6, 0.6], "every=4").is_none());
        let cpu = case(vec![column("becket", &[1.0, 1.0])]);
        assert!(of_kept(&cpu, &self::cpu(), SURE).is_none());
    }

    #[test]
    fn what_the_control_moved_takes_a_verdict_back() {
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
