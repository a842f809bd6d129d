//! One burst of requests at once, against a backend whose service time grows with concurrency.
//!
//! Idle clients keep their connections from before the burst until after it.
//! The backend is the stage's own (see `runner`); its formula is written in the scenario before the run.

use std::thread;
use std::time::Duration;

use becket_load::plan::Load;

use super::stage::Stage;
use super::{client, rounds, transactions};
use crate::result::Column;
use crate::{Error, figures, load};

pub(super) fn run(stage: &mut Stage<'_>) -> Result<Vec<Column>, Error> {
    let mut columns = stage.columns();
    rounds::each(stage, &mut columns, |stage, index, column, sample| {
        let server = &stage.servers[index];
        let count = stage.settings.connections;
        let idle = stage.settings.maxconn as usize * usize::from(stage.settings.idle_clients);
        let idle = client::hold(stage, server.address, idle, |client| client.ask(stage))?;
        if !idle.is_empty() {
            thread::sleep(REST);
        }
        let ask = stage
            .ask(server.address, Some(server.process.pid()))
            .with("-c", count)
            .with("--time-out", "30s");
        let report = ask.run(Load::ClosedCount(count as u64), stage.stop)?;
        drop(idle);
        column.negotiated.clone_from(&report.negotiated);
        let mut step = load::only_step(report)?;
        *sample = load::sample(sample.round, &step, stage.settings.body);
        // A burst of some hundred is too short for the clock's ticks.
        sample.figures.remove(figures::CPU);
        // A request that waits for a slot takes about 40 ms too, now and then: that is no Nagle stall.
        step.findings.clear();
        transactions::remark(column, &step);
        Ok(())
    })?;
    Ok(columns)
}

/// How long idle clients rest before the burst: longer than `idle-reclaim` of becket's configuration.
const REST: Duration = Duration::from_millis(1100);
