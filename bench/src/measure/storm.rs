//! A flood of handshakes, and what the few who are already inside notice of it.
//!
//! The probe keeps its connections and asks at 1 % of the capacity; the flood makes new connections
//! with full handshakes at 80 % and 150 %. Only the probe's latency is reported.

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
            for percent in FLOODS {
                stage.check_signal()?;
                probe(stage, index, (found.rate, *percent), &mut sample, column)?;
            }
            column.samples.push(sample);
        }
    }
    Ok(columns)
}

fn probe(
    stage: &Stage<'_>,
    index: usize,
    (capacity, percent): (f64, u32),
    sample: &mut Sample,
    column: &mut Column,
) -> Result<(), Error> {
    let Some(server) = stage.servers.get(index) else {
        return Ok(());
    };
    let flood = stage.ask(server.address, None);
    let probe = stage
        .ask(server.address, None)
        .with("--keepalive", 1_000_000);
    let time = stage.effort.time * 2;
    let (flooded, probed) = std::thread::scope(|scope| {
        let rate = capacity * f64::from(percent) / 100.0;
        let flood = scope.spawn(move || capacity::climb(flood, stage, &[rate], time));
        let probed = capacity::climb(probe, stage, &[capacity / 100.0], time);
        let lost = || Error::Asked("the flood's thread ended".to_owned());
        (flood.join().unwrap_or_else(|_| Err(lost())), probed)
    });
    let (flooded, probed) = (flooded?, probed?);
    let (Some(flooded), Some(probed)) = (flooded.steps.first(), probed.steps.first()) else {
        return Ok(());
    };
    let whole = probed
        .latency
        .whole_corrected
        .as_ref()
        .unwrap_or(&probed.latency.whole);
    let mut put = |name: String, value: f64| sample.put(&name, value);
    put(format!("p50_us_at_{percent}"), whole.p50_us);
    put(format!("p99_us_at_{percent}"), whole.p99_us);
    put(
        format!("probe_failed_share_at_{percent}"),
        probed.failed as f64 / probed.attempted.max(1) as f64,
    );
    put(
        format!("flood_rate_per_s_at_{percent}"),
        flooded.rate_attempted_per_s,
    );
    if flooded.generator.bound {
        let note =
            format!("at {percent} % the client was what was slow: part of the latency is its own");
        if !column.notes.contains(&note) {
            column.notes.push(note);
        }
    }
    Ok(())
}

/// Percent of the capacity.
pub(crate) const FLOODS: &[u32] = &[80, 150];
const MOST_ROUNDS: u32 = 2;
