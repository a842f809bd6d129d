//! Past the maximum: what is still served at 150 % of the capacity, and how soon all is well again.

use std::time::Duration;

use super::{Capacity, Stage, capacity, order};
use crate::result::{Column, Sample, figures};
use crate::{Error, measure::Capacities};

pub(super) fn run(stage: &mut Stage<'_>) -> Result<Vec<Column>, Error> {
    let mut columns = stage.columns();
    columns.truncate(stage.servers.len());
    for round in 0..stage.effort.rounds.min(MOST_ROUNDS) {
        if round > 0 {
            stage.capacities.forget();
        }
        for index in order(columns.len(), round) {
            stage.check_signal()?;
            let found = Capacities::of(stage, index)?;
            if let Some(column) = columns.get_mut(index) {
                past(stage, index, round, &found, column)?;
            }
        }
    }
    Ok(columns)
}

fn past(
    stage: &Stage<'_>,
    index: usize,
    round: u32,
    found: &Capacity,
    column: &mut Column,
) -> Result<(), Error> {
    let Some(server) = stage.servers.get(index) else {
        return Ok(());
    };
    column.negotiated.clone_from(&found.negotiated);
    if found.rate < 1.0 {
        column.notes.push("no rate met the criteria".to_owned());
        return Ok(());
    }
    let ask = || stage.ask(server.address, Some(server.process.pid()));
    let rates: Vec<f64> = PAST.iter().map(|share| found.rate * share).collect();
    let over = capacity::climb(ask(), stage, &rates, stage.effort.time)?;
    let quarters = vec![found.rate * 0.8; QUARTERS];
    let after = capacity::climb(ask(), stage, &quarters, QUARTER.min(stage.effort.time))?;
    let mut sample = Sample {
        round,
        ..Sample::default()
    };
    let mut put = |name: &str, value: f64| sample.put(name, value);
    put(figures::CAPACITY, found.rate);
    put(figures::CAPACITY_BOUND, f64::from(u8::from(found.bound)));
    if let Some(last) = over.steps.last() {
        put(figures::KEPT, last.rate_succeeded_per_s / found.rate);
        if last.generator.bound {
            note(
                column,
                "at 150 % the client was what was slow: the goodput is a lower bound",
            );
        }
    }
    match after.steps.iter().position(capacity::holds) {
        Some(quarter) => put(figures::RECOVERY, quarter as f64 * 0.25),
        None => note(
            column,
            "it did not recover within the time that was watched",
        ),
    }
    column.samples.push(sample);
    column.curve = found
        .curve
        .iter()
        .cloned()
        .chain(over.steps.iter().map(capacity::point))
        .collect();
    column
        .curve
        .sort_by(|a, b| a.asked_per_s.total_cmp(&b.asked_per_s));
    Ok(())
}

fn note(column: &mut Column, text: &str) {
    if !column.notes.iter().any(|known| known == text) {
        column.notes.push(text.to_owned());
    }
}

const PAST: &[f64] = &[1.1, 1.25, 1.5];
const QUARTERS: usize = 8;
const QUARTER: Duration = Duration::from_millis(250);
/// Each takes a dozen times as long as a round of another measure.
const MOST_ROUNDS: u32 = 2;
