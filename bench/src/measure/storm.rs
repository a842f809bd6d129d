//! Measures how a flood of full handshakes affects two clients: the probe and the returning client.
//!
//! The probe keeps its connections open and sends requests at 1 % of the capacity. The returning client opens a new
//! connection ten times a second and resumes a session that it created before the flood.
//!
//! The flood opens new connections with full handshakes at 80 % and 150 % of the server's own capacity, and at one rate
//! that all servers share. The report shows the latencies of the probe and of the returning client only.

use std::thread;
use std::time::Duration;

use becket_load::plan::Load;
use becket_load::report::LoadStep;
use becket_load::schedule::Stretch;

use super::stage::Stage;
use super::{capacity, rounds};
use crate::kernel::Kernel;
use crate::result::{Column, Sample};
use crate::scenario::Settings;
use crate::{Error, figures, load};

pub(super) fn run(stage: &mut Stage<'_>) -> Result<Vec<Column>, Error> {
    let columns = stage.columns();
    rounds::each(stage, columns, |stage, index, column, sample| {
        let same = capacity::same_for_all(stage)?;
        // The capacity cannot be measured with a limit on full handshakes. It is known from the case without a limit.
        let found = match stage.settings.full_handshakes {
            0 => Some(capacity::of(stage, index)?),
            _ => capacity::known(stage, index),
        };
        let Some(found) = found else {
            let reason = "its capacity is unknown: also run the case without a limit";
            *column = Column::without(&column.peer, reason);
            return Ok(());
        };
        column.negotiated.clone_from(&found.negotiated);
        for load in figures::STORM_LOADS {
            stage.check_signal()?;
            let rate = capacity::rate(load, found.rate, same);
            let rates = (rate, found.rate / 100.0);
            flooded(stage, index, (load, rates), sample, column)?;
        }
        Ok(())
    })
}

/// Starts a flood at one rate while the probe sends requests at another rate.
fn flooded(
    stage: &Stage<'_>,
    index: usize,
    (load, (rate, probes)): (&str, (f64, f64)),
    sample: &mut Sample,
    column: &mut Column,
) -> Result<(), Error> {
    let server = &stage.servers[index];
    let new = stage.ask(server.address, None);
    let probe = stage
        .ask(server.address, None)
        .with("--keepalive", 1_000_000);
    let time = stage.effort.time * 2;
    let (flooded, probed, returned, kernel) = thread::scope(|scope| {
        let returned = scope.spawn(move || returning(stage, server.address, time));
        // The returning client creates its session before the flood starts.
        thread::sleep(BEFORE);
        let kernel = Kernel::read();
        let flood = scope.spawn(move || capacity::at_rate(new, stage, rate, time));
        let probed = capacity::at_rate(probe, stage, probes, time);
        let kernel = Kernel::read().since(&kernel);
        let lost = || Error::Asked("a load thread panicked".to_owned());
        let flooded = flood.join().unwrap_or_else(|_| Err(lost()));
        let returned = returned.join().unwrap_or_else(|_| Err(lost()));
        (flooded, probed, returned, kernel)
    });
    let (flooded, probed, returned) = (flooded?, probed?, returned?);
    load::latencies(sample, &probed, |name| match name {
        figures::FAILED => figures::PROBE.to_owned() + &figures::at(name, load),
        name => figures::at(name, load),
    });
    let returns = |name: &str| figures::RETURNING.to_owned() + &figures::at(name, load);
    load::latencies(sample, &returned, returns);
    let late = |step: &LoadStep| step.generator.late_start_p99_us.unwrap_or(f64::NAN);
    sample.put(&figures::at(figures::LATE, load), late(&probed));
    sample.put(&returns(figures::LATE), late(&returned));
    if probed.failed * 1000 > probed.attempted {
        column.note(format!(
            "under the load `{load}` the probe had failures, too: its latency is that of served requests only"
        ));
    }
    sample.put(
        &format!("flood_failed_share_at_{load}"),
        load::share(flooded.failed, flooded.attempted),
    );
    sample.put(
        &figures::at(figures::FLOOD, load),
        flooded.rate_attempted_per_s(),
    );
    let busy = kernel.busiest(stage.client);
    sample.put(&figures::at(figures::CLIENT_CPU_BUSY, load), busy);
    Ok(())
}

/// Runs a client that reconnects repeatedly and resumes its session.
fn returning(
    stage: &Stage<'_>,
    address: std::net::SocketAddr,
    time: Duration,
) -> Result<LoadStep, Error> {
    let settings = Settings {
        resume: "always".to_owned(),
        ..stage.settings.clone()
    };
    let load = Load::Open(vec![Stretch {
        rate: RETURNS_PER_S,
        length: time,
    }]);
    stage
        .ask_as(&settings, address)
        .with("-c", 1)
        .with("--time-out", "2s")
        .with("--warm-up", format!("{}ms", (BEFORE * 2).as_millis()))
        .one(load, stage.stop)
}

/// Time from the start of the returning client to the start of the flood.
const BEFORE: Duration = Duration::from_millis(500);
const RETURNS_PER_S: f64 = 10.0;
