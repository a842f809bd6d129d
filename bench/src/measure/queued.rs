//! What clients cost who wait in a queue: memory, CPU time while nothing happens, and what others notice.
//!
//! The server has a second door, without a limit, at the same port of [`ASIDE`]. One client takes the only slot and
//! keeps it; with the queue empty, and again when it is full, the server is left alone for a while, and then
//! clients go through the other door at a low rate. The first of the queue asks at once, and must get its answer when the
//! slot is given back, and not before: they did wait.

use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread;

use rustls::ClientConfig;

use super::{Stage, capacity, idle};
use crate::Error;
use crate::peer::Server;
use crate::result::{Column, Sample, figures};

pub(super) fn run(stage: &Stage<'_>) -> Result<Vec<Column>, Error> {
    let mut columns = stage.columns();
    let config = idle::client(stage)?;
    for (server, column) in stage.servers.iter().zip(&mut columns) {
        column.samples.push(queue(stage, server, &config)?);
    }
    Ok(columns)
}

fn queue(stage: &Stage<'_>, server: &Server, config: &Arc<ClientConfig>) -> Result<Sample, Error> {
    let count = stage.settings.connections.min(stage.effort.most_idle());
    // Caches and pools that come with the first connections are not the connections' weight.
    let aside = aside(server.address);
    drop(idle::hold(stage, aside, config, idle::WARM_UP.min(count))?);
    let slot = idle::hold(stage, server.address, config, 1)?;
    let mut sample = Sample::default();
    leave_alone(stage, server, EMPTY, &mut sample)?;
    visit(stage, server, EMPTY, &mut sample)?;
    let before = server.process.weight();
    let mut waiting = idle::enter(stage, server.address, config, count)?;
    let after = server.process.weight();
    let first = waiting.first_mut();
    first
        .map(|client| idle::send(stage, client))
        .transpose()
        .map_err(wrong)?;
    let growth = after.pss_bytes.saturating_sub(before.pss_bytes) as f64;
    let weight = (growth / waiting.len().max(1) as f64).round();
    sample.put(figures::PSS_PER_CONNECTION, weight);
    sample.put(figures::HELD, waiting.len() as f64);
    leave_alone(stage, server, FULL, &mut sample)?;
    visit(stage, server, FULL, &mut sample)?;
    let Some(first) = waiting.first_mut() else {
        return Ok(sample);
    };
    if idle::is_answered(first).map_err(wrong)? {
        return Err(Error::Asked(
            "who was to wait was served: nothing was measured".to_owned(),
        ));
    }
    drop(slot);
    idle::receive(stage, first).map_err(wrong)?;
    Ok(sample)
}

fn wrong(error: io::Error) -> Error {
    Error::os("asking as the first of the queue", error)
}

/// CPU time while nothing happens.
fn leave_alone(
    stage: &Stage<'_>,
    server: &Server,
    phase: &str,
    sample: &mut Sample,
) -> Result<(), Error> {
    let time = stage.effort.time * LONG;
    let before = server.process.cpu_time(|_| true);
    thread::sleep(time);
    stage.check_signal()?;
    let spent = server.process.cpu_time(|_| true).saturating_sub(before);
    let each = spent.as_secs_f64() * 1e6 / time.as_secs_f64();
    sample.put(&figures::phase(CPU, phase), each.round());
    Ok(())
}

/// Latency at the other door.
fn visit(
    stage: &Stage<'_>,
    server: &Server,
    phase: &str,
    sample: &mut Sample,
) -> Result<(), Error> {
    let ask = stage.ask(aside(server.address), None);
    let time = stage.effort.time * LONG / 2;
    let report = capacity::climb(ask, stage, &[RATE], time)?;
    let Some(step) = report.steps.first() else {
        return Ok(());
    };
    let latency = &step.latency;
    let whole = latency.whole_corrected.as_ref().unwrap_or(&latency.whole);
    sample.put(&figures::phase(figures::P50, phase), whole.p50_us);
    sample.put(&figures::phase(figures::P99, phase), whole.p99_us);
    let failed = step.failed as f64 / step.attempted.max(1) as f64;
    sample.put(&figures::phase(figures::FAILED, phase), failed);
    Ok(())
}

/// The door without a limit.
fn aside(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(ASIDE, address.port())
}

/// Sections of becket's for that door.
pub(crate) fn sections(
    address: SocketAddr,
    backend: SocketAddr,
    certificate: &std::path::Path,
) -> String {
    let mut text = String::new();
    let (aside, certificate) = (aside(address), certificate.display());
    // Writing to a string does not fail.
    let _written = write!(
        text,
        "\n[[listener]]\nname = \"aside\"\nbind = [\"{aside}\"]\nbackend = \"aside\"\ncertificates = [\"{certificate}\"]\n\n\
         [[backend]]\nname = \"aside\"\n\n[[backend.server]]\naddress = \"{backend}\"\n"
    );
    text
}

/// Microseconds of CPU time in a second.
pub(crate) const CPU: &str = "cpu_us_per_s";
pub(crate) const EMPTY: &str = "empty";
pub(crate) const FULL: &str = "queued";
const ASIDE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
/// Far below any capacity, in visits a second.
const RATE: f64 = 200.0;
/// Times the length of a measurement: a server that does next to nothing is looked at for longer.
const LONG: u32 = 15;
