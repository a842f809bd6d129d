//! Measures the latency that a server adds compared with direct requests at the same rate. The rates are shares of the
//! server's own capacity, and one rate that all servers share.

use super::stage::Stage;
use super::{capacity, rounds, transactions};
use crate::kernel::Kernel;
use crate::result::{Column, Sample};
use crate::{Error, figures};

pub(super) fn run(stage: &mut Stage<'_>) -> Result<Vec<Column>, Error> {
    let columns = stage.columns();
    rounds::each(stage, columns, |stage, index, column, sample| {
        let same = capacity::same_for_all(stage)?;
        let found = capacity::of(stage, index)?;
        column.negotiated.clone_from(&found.negotiated);
        for load in figures::LATENCY_LOADS {
            stage.check_signal()?;
            let rate = capacity::rate(load, found.rate, same);
            at(stage, index, (rate, load), sample, column)?;
        }
        Ok(())
    })
}

fn at(
    stage: &Stage<'_>,
    index: usize,
    (rate, load): (f64, &str),
    sample: &mut Sample,
    column: &mut Column,
) -> Result<(), Error> {
    let time = stage.effort.time * if load == LOWEST { 2 } else { 1 };
    let through = stage.ask(stage.servers[index].address, None);
    let kernel = Kernel::read();
    let through = capacity::at_rate(through, stage, rate, time)?;
    let kernel = Kernel::read().since(&kernel);
    let direct = capacity::at_rate(stage.ask_plain(stage.backend), stage, rate, time)?;
    transactions::remark(column, &through);
    let (whole, direct) = (
        through.latency.from_intended(),
        direct.latency.from_intended(),
    );
    if whole.count == 0 || direct.count == 0 {
        return Ok(());
    }
    for (name, with, without) in [
        (figures::P50, whole.p50_us, direct.p50_us),
        (figures::P99, whole.p99_us, direct.p99_us),
        (figures::P999, whole.p999_us, direct.p999_us),
    ] {
        let name = figures::at(name, load);
        sample.put(&name, with);
        sample.put(&format!("direct_{name}"), without);
        sample.put(&format!("added_{name}"), with - without);
    }
    sample.put(&figures::at(figures::OFFERED, load), rate);
    let late = through.generator.late_start_p99_us;
    sample.put(&figures::at(figures::LATE, load), late.unwrap_or(f64::NAN));
    let busy = match stage.effort.agents {
        None => kernel.busiest(stage.client),
        Some(_) => through.generator.busiest_thread,
    };
    sample.put(&figures::at(figures::CLIENT_CPU_BUSY, load), busy);
    Ok(())
}

/// Load with a low rate, which needs a longer measurement for enough samples.
const LOWEST: &str = "1";
