//! A flood of handshakes, and what those notice of it who are already inside, or were here before.
//!
//! The probe keeps its connections and asks at 1 % of the capacity. Who returns makes a new connection
//! ten times a second and resumes: it was here before the flood. The flood makes new connections with
//! full handshakes at 80 % and 150 % of the server's own capacity, and at one rate that is the
//! same for all. Only the latencies of the first two are reported.

use std::thread;
use std::time::Duration;

use becket_load::plan::Load;
use becket_load::schedule::{Arrivals, Stretch};
use becket_stats::report::Step;

use super::{Capacities, Stage, capacity, order};
use crate::Error;
use crate::figure::SAME;
use crate::kernel::Kernel;
use crate::result::{Column, Sample, figures};
use crate::scenario::Settings;

pub(super) fn run(stage: &mut Stage<'_>) -> Result<Vec<Column>, Error> {
    let mut columns = stage.columns();
    let mut rounds = stage.rounds();
    while let Some(round) = rounds.next(stage, &columns)? {
        let same = Capacities::same_for_all(stage)?;
        for index in order(columns.len(), round) {
            let Some(column) = columns.get_mut(index) else {
                continue;
            };
            let limited = stage.settings.full_handshakes > 0;
            let found = if limited {
                // What it can do is not what it admits.
                Capacities::known(stage, index)
            } else {
                Some(Capacities::of(stage, index)?)
            };
            let Some(found) = found else {
                let reason = "its capacity was not measured: run the case without a limit, too";
                *column = Column::without(&column.peer, reason.to_owned());
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
                let flood = Flood {
                    load,
                    rate,
                    probe: found.rate / 100.0,
                };
                flooded(stage, index, &flood, &mut sample, column)?;
            }
            column.samples.push(sample);
        }
    }
    Ok(columns)
}

/// What comes in, and how often the probe asks meanwhile.
struct Flood {
    load: &'static str,
    rate: f64,
    probe: f64,
}

fn flooded(
    stage: &Stage<'_>,
    index: usize,
    Flood {
        load,
        rate,
        probe: probes,
    }: &Flood,
    sample: &mut Sample,
    column: &mut Column,
) -> Result<(), Error> {
    let Some(server) = stage.servers.get(index) else {
        return Ok(());
    };
    let new = stage.ask(server.address, None);
    let probe = stage
        .ask(server.address, None)
        .with("--keepalive", 1_000_000);
    let time = stage.effort.time * 2;
    let (flooded, probed, returned, kernel) = thread::scope(|scope| {
        let returned = scope.spawn(move || returning(stage, server.address, time));
        // Until then, who returns was here once.
        thread::sleep(BEFORE);
        let kernel = Kernel::read();
        let flood = scope.spawn(move || capacity::climb(new, stage, &[*rate], time));
        let probed = capacity::climb(probe, stage, &[*probes], time);
        let kernel = Kernel::read().since(&kernel);
        let lost = || Error::Asked("the flood's thread ended".to_owned());
        let flooded = flood.join().unwrap_or_else(|_| Err(lost()));
        let returned = returned.join().unwrap_or_else(|_| Err(lost()));
        (flooded, probed, returned, kernel)
    });
    let (flooded, probed, returned) = (flooded?, probed?, returned?);
    let steps = (
        flooded.steps.first(),
        probed.steps.first(),
        returned.steps.first(),
    );
    let (Some(flooded), Some(probed), Some(returned)) = steps else {
        return Ok(());
    };
    note(sample, "", load, probed);
    note(sample, "returning_", load, returned);
    if probed.failed * 1000 > probed.attempted {
        let note = format!(
            "under the load `{load}` the probe failed, too: its latency is that of who was served"
        );
        if !column.notes.contains(&note) {
            column.notes.push(note);
        }
    }
    let share = |part: u64, of: u64| part as f64 / of.max(1) as f64;
    sample.put(
        &format!("flood_failed_share_at_{load}"),
        share(flooded.failed, flooded.attempted),
    );
    sample.put(&figures::at(FLOOD, load), flooded.rate_attempted_per_s);
    let busy = kernel.busiest(stage.client);
    sample.put(&figures::at(figures::CLIENT_CPU_BUSY, load), busy);
    Ok(())
}

/// One client that comes again and again, and resumes.
fn returning(
    stage: &Stage<'_>,
    address: std::net::SocketAddr,
    time: Duration,
) -> Result<becket_stats::report::Report, Error> {
    let settings = Settings {
        resume: "always".to_owned(),
        ..stage.settings.clone()
    };
    let load = Load::Open {
        stretches: vec![Stretch {
            rate: RETURNS_PER_S,
            length: time,
        }],
        arrivals: Arrivals::Constant,
        seed: 1,
    };
    stage
        .ask_as(&settings, address)
        .with("-c", 1)
        .with("--time-out", "2s")
        .with("--warm-up", format!("{}ms", (BEFORE * 2).as_millis()))
        .run(load, stage.stop)
}

fn note(sample: &mut Sample, who: &str, load: &str, step: &Step) {
    let whole = step
        .latency
        .whole_corrected
        .as_ref()
        .unwrap_or(&step.latency.whole);
    let of = if who.is_empty() { "probe_" } else { who };
    if let Some(late) = step.generator.late_start_p99_us {
        sample.put(&format!("{who}{}_at_{load}", figures::LATE), late);
    }
    // Where nobody was served, nobody was served soon.
    if whole.count > 0 {
        sample.put(&format!("{who}p50_us_at_{load}"), whole.p50_us);
        sample.put(&format!("{who}p99_us_at_{load}"), whole.p99_us);
    }
    sample.put(
        &format!("{of}failed_share_at_{load}"),
        step.failed as f64 / step.attempted.max(1) as f64,
    );
}

/// Per cent of the own capacity, and the rate that is the same for all.
pub(crate) const LOADS: &[&str] = &["80", "150", SAME];
/// Full handshakes that began in a second.
pub(crate) const FLOOD: &str = "flood_rate_per_s";
/// How long who returns is alone.
const BEFORE: Duration = Duration::from_millis(500);
const RETURNS_PER_S: f64 = 10.0;
