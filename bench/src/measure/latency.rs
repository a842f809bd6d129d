//! What a server adds to the latency, at shares of its own capacity, over direct at the same rate.

use super::{Capacities, Stage, capacity, order};
use crate::Error;
use crate::result::{Column, Sample};

pub(super) fn run(stage: &mut Stage<'_>) -> Result<Vec<Column>, Error> {
    let mut columns = stage.columns();
    columns.truncate(stage.servers.len());
    for round in 0..stage.effort.rounds.min(MOST_ROUNDS) {
        for index in order(columns.len(), round) {
            let found = Capacities::of(stage, index)?;
            let Some(column) = columns.get_mut(index) else {
                continue;
            };
            column.negotiated.clone_from(&found.negotiated);
            let mut sample = Sample {
                round,
                ..Sample::default()
            };
            for percent in SHARES {
                stage.check_signal()?;
                let rate = found.rate * f64::from(*percent) / 100.0;
                at(stage, index, rate, *percent, &mut sample, column)?;
            }
            column.samples.push(sample);
        }
    }
    Ok(columns)
}

fn at(
    stage: &Stage<'_>,
    index: usize,
    rate: f64,
    percent: u32,
    sample: &mut Sample,
    column: &mut Column,
) -> Result<(), Error> {
    let Some(server) = stage.servers.get(index) else {
        return Ok(());
    };
    let time = stage.effort.time * if percent < 10 { 2 } else { 1 };
    let through = stage.ask(server.address, None);
    let through = capacity::climb(through, stage, &[rate], time)?;
    let direct = stage.ask_plain(stage.backend, None);
    let direct = capacity::climb(direct, stage, &[rate], time)?;
    let (Some(through), Some(direct)) = (through.steps.first(), direct.steps.first()) else {
        return Ok(());
    };
    let whole = |step: &becket_stats::report::Step| {
        step.latency
            .whole_corrected
            .clone()
            .unwrap_or_else(|| step.latency.whole.clone())
    };
    let (through_whole, direct_whole) = (whole(through), whole(direct));
    let quantiles = [
        ("p50", through_whole.p50_us, direct_whole.p50_us),
        ("p99", through_whole.p99_us, direct_whole.p99_us),
        ("p999", through_whole.p999_us, direct_whole.p999_us),
    ];
    for (name, with, without) in quantiles {
        let mut put = |name: String, value: f64| sample.put(&name, value);
        put(format!("{name}_us_at_{percent}"), with);
        put(format!("direct_{name}_us_at_{percent}"), without);
        put(format!("added_{name}_us_at_{percent}"), with - without);
    }
    super::transactions::remark(column, through);
    if percent == 80 {
        column.histogram = through_whole.buckets;
    }
    Ok(())
}

/// Percent of the capacity.
pub(crate) const SHARES: &[u32] = &[1, 50, 80];
const MOST_ROUNDS: u32 = 2;
