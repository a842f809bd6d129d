//! Measures a single burst of requests to a backend whose service time increases with its concurrency.
//!
//! Idle clients connect before the burst and stay connected until its end. The scenario defines the formula of the
//! service time, and the runner starts the backend with this formula.

use std::thread;
use std::time::Duration;

use becket_load::plan::Load;

use super::stage::Stage;
use super::{client, rounds, transactions};
use crate::result::Column;
use crate::{Error, figures, load};

pub(super) fn run(stage: &mut Stage<'_>) -> Result<Vec<Column>, Error> {
    let columns = stage.columns();
    rounds::each(stage, columns, |stage, index, column, sample| {
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
        // Omit the CPU time: the kernel counts it in ticks of 10 ms, too imprecise for a burst of a few hundred
        // requests.
        sample.figures.remove(figures::CPU);
        // Omit the load tool's findings: it reports delays of about 40 ms as Nagle stalls, but here requests wait for a
        // slot.
        step.findings.clear();
        transactions::remark(column, &step);
        Ok(())
    })
}

/// Idle time of the clients before the burst, longer than `idle-reclaim` in becket's configuration.
const REST: Duration = Duration::from_millis(1100);
