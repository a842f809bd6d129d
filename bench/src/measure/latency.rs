//! What a server adds to the latency, over direct at the same rate: at shares of its own capacity, and at one rate
//! that is the same for all.

use super::{Capacities, Stage, capacity, order};
use crate::Error;
use crate::figure::SAME;
use crate::kernel::Kernel;
use crate::result::{Column, Sample, figures};

pub(super) fn run(stage: &mut Stage<'_>) -> Result<Vec<Column>, Error> {
    let mut columns = stage.columns();
    let mut rounds = stage.rounds();
    while let Some(round) = rounds.next(stage, &columns)? {
        let same = Capacities::same_for_all(stage)?;
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
            for load in LOADS {
                stage.check_signal()?;
                let rate = capacity::rate(load, found.rate, same);
                at(stage, index, rate, load, &mut sample, column)?;
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
    load: &str,
    sample: &mut Sample,
    column: &mut Column,
) -> Result<(), Error> {
    let Some(server) = stage.servers.get(index) else {
        return Ok(());
    };
    let time = stage.effort.time * if load == LOWEST { 2 } else { 1 };
    let through = stage.ask(server.address, None);
    let kernel = Kernel::read();
    let through = capacity::climb(through, stage, &[rate], time)?;
    let kernel = Kernel::read().since(&kernel);
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
    super::transactions::remark(column, through);
    // Where nobody was served, nobody was served soon.
    if through_whole.count == 0 || direct_whole.count == 0 {
        return Ok(());
    }
    let quantiles = [
        ("p50", through_whole.p50_us, direct_whole.p50_us),
        ("p99", through_whole.p99_us, direct_whole.p99_us),
        ("p999", through_whole.p999_us, direct_whole.p999_us),
    ];
    for (name, with, without) in quantiles {
        let mut put = |name: String, value: f64| sample.put(&name, value);
        put(format!("{name}_us_at_{load}"), with);
        put(format!("direct_{name}_us_at_{load}"), without);
        put(format!("added_{name}_us_at_{load}"), with - without);
    }
    sample.put(&figures::at(figures::OFFERED, load), rate);
    if let Some(late) = through.generator.late_start_p99_us {
        sample.put(&figures::at(figures::LATE, load), late);
    }
    let busy = kernel.busiest(stage.client);
    sample.put(&figures::at(figures::CLIENT_CPU_BUSY, load), busy);
    Ok(())
}

/// Per cent of the own capacity, and the rate that is the same for all.
pub(crate) const LOADS: &[&str] = &[LOWEST, "50", "80", SAME];
/// So few come that it takes longer until a quantile is one.
const LOWEST: &str = "1";
