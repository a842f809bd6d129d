//! Determines how many rounds a case needs.
//!
//! After the minimum number of rounds, the verdicts are checked. The case ends if every deciding figure shows a clear
//! difference between becket and the best peer, or if the time of the case has expired. Otherwise half as many rounds
//! follow before the next check. Each round begins with a measurement of the control.

use std::time::Instant;

use becket_load::clock;

use super::stage::Stage;
use crate::result::{Case, Column, Sample};
use crate::scenario::Measure;
use crate::verdict::{self, Certainty};
use crate::{Error, figure};

#[derive(Debug)]
pub(crate) struct Rounds {
    done: u32,
    least: u32,
    /// Number of completed rounds at which the next check takes place.
    look_at: u32,
    looks_left: u32,
    begun: Instant,
}

impl Rounds {
    pub(crate) fn of(stage: &Stage<'_>) -> Self {
        Self::new(stage.effort.rounds, stage.effort.looks())
    }

    fn new(least: u32, looks: u32) -> Self {
        Self {
            done: 0,
            least: least.max(1),
            look_at: least.max(1),
            looks_left: looks,
            begun: clock::now(),
        }
    }

    /// Starts the next round and returns its number, or `None` after the last round.
    pub(crate) fn next(
        &mut self,
        stage: &mut Stage<'_>,
        columns: &[Column],
    ) -> Result<Option<u32>, Error> {
        stage.check_signal()?;
        stage.others.note();
        let time_left = clock::now() - self.begun < stage.effort.patience;
        if !self.is_next(time_left, || decided(stage, columns)) {
            return Ok(None);
        }
        // A closed loop runs in turns, and each turn measures the control itself.
        if stage.measure != Measure::Transactions {
            stage.control.measure(stage.effort.time, stage.stop)?;
        }
        self.done += 1;
        Ok(Some(self.done - 1))
    }

    /// Returns whether another round follows. `time_left` has no effect before the minimum number of rounds.
    fn is_next(&mut self, time_left: bool, decided: impl FnOnce() -> bool) -> bool {
        if self.done < self.least {
            return true;
        }
        if self.done == self.look_at {
            self.looks_left = self.looks_left.saturating_sub(1);
            self.look_at += self.look_at.div_ceil(2);
            return self.looks_left > 0 && time_left && !decided();
        }
        time_left
    }
}

/// Measures all columns in rounds and returns them. `measure` fills the sample of the column with the given index;
/// samples without figures are dropped.
pub(crate) fn each(
    stage: &mut Stage<'_>,
    mut columns: Vec<Column>,
    mut measure: impl FnMut(&mut Stage<'_>, usize, &mut Column, &mut Sample) -> Result<(), Error>,
) -> Result<Vec<Column>, Error> {
    let mut rounds = Rounds::of(stage);
    while let Some(round) = rounds.next(stage, &columns)? {
        for index in order(columns.len(), round) {
            stage.check_signal()?;
            let mut sample = Sample::of(round);
            measure(stage, index, &mut columns[index], &mut sample)?;
            if !sample.figures.is_empty() {
                columns[index].samples.push(sample);
            }
        }
    }
    Ok(columns)
}

/// Returns the order of the columns in a round. Each round begins with a different column.
pub(crate) fn order(count: usize, round: u32) -> impl Iterator<Item = usize> {
    let first = round as usize;
    (0..count).map(move |index| (index + first) % count)
}

fn decided(stage: &Stage<'_>, columns: &[Column]) -> bool {
    let case = Case {
        columns: columns.to_vec(),
        ..Case::default()
    };
    let certainty = Certainty {
        looks: stage.effort.looks(),
        control: &stage.control.samples,
    };
    verdict::is_decided(&case, &figure::deciding(stage.measure), certainty)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the rounds of a case that is decided after `decided_after` rounds.
    fn rounds(looks: u32, time: u32, decided_after: u32) -> u32 {
        let mut rounds = Rounds::new(3, looks);
        while rounds.is_next(rounds.done < time, {
            let done = rounds.done;
            move || done >= decided_after
        }) {
            rounds.done += 1;
        }
        rounds.done
    }

    #[test]
    fn a_clear_case_ends_with_the_first_check() {
        assert_eq!(rounds(5, 1000, 0), 3);
        assert_eq!(rounds(1, 1000, 1000), 3);
    }

    #[test]
    fn an_unclear_case_runs_until_decided_or_out_of_checks_or_time() {
        assert_eq!(rounds(5, 1000, 4), 5);
        assert_eq!(rounds(5, 1000, 9), 12);
        assert_eq!(rounds(5, 1000, 1000), 18);
        assert_eq!(rounds(5, 7, 1000), 7);
        assert_eq!(rounds(5, 0, 1000), 3);
    }
}
