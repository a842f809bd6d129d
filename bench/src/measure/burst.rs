//! One burst of requests at once, against a backend whose service time grows with concurrency.
//!
//! The backend is the stage's own (see `runner`); its formula is written in the scenario before the run.

use becket_load::plan::Load;

use super::{Stage, order};
use crate::load;
use crate::result::Column;
use crate::{Error, result::figures};

pub(super) fn run(stage: &mut Stage<'_>) -> Result<Vec<Column>, Error> {
    let mut columns = stage.columns();
    let mut rounds = stage.rounds();
    while let Some(round) = rounds.next(stage, &columns)? {
        for index in order(columns.len(), round) {
            stage.check_signal()?;
            let (Some(server), Some(column)) = (stage.servers.get(index), columns.get_mut(index))
            else {
                continue;
            };
            let count = stage.settings.connections;
            let ask = stage
                .ask(server.address, Some(server.process.pid()))
                .with("-c", count)
                .with("--time-out", "30s");
            let report = ask.run(Load::ClosedCount(count as u64), stage.stop)?;
            if let Some(step) = report.steps.first() {
                let mut sample = load::sample(round, step, stage.settings.body);
                // A burst of some hundred is too short for the clock's ticks.
                sample.figures.remove(figures::CPU);
                column.samples.push(sample);
                // Whoever waits for a slot waits some 40 ms too, now and then: that is no Nagle stall.
                let mut step = step.clone();
                step.findings.clear();
                super::transactions::remark(column, &step);
            }
            column.negotiated = report.negotiated;
        }
    }
    Ok(columns)
}
