//! Measures the time to the first and to the last byte over a network with a delay, also as a number of round trips.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use becket_load::plan::Load;

use super::stage::Stage;
use super::{rounds, transactions};
use crate::network::Network;
use crate::result::{Column, Sample};
use crate::scenario::EARLY;
use crate::{Error, figures, load};

pub(super) fn run(stage: &mut Stage<'_>) -> Result<Vec<Column>, Error> {
    let Some(network) = stage.network else {
        return Ok(Vec::new());
    };
    let columns = stage.columns();
    rounds::each(stage, columns, |stage, index, column, sample| {
        let round_trip = network.round_trip()?.as_secs_f64() * 1e6;
        let time = stage.effort.time.max(LEAST);
        let server = &stage.servers[index];
        let ask = stage
            .ask(server.address, None)
            .flag("--i-own-this-target")
            .with("-c", stage.settings.connections)
            .with("--warm-up", WARM_UP);
        let report = network.at_client(|| ask.run(Load::ClosedFor(time), stage.stop))?;
        column.negotiated = report.negotiated.clone().or(column.negotiated.take());
        let mut step = load::only_step(report)?;
        // Omit the load tool's findings on Nagle stalls: it detects them by delays of about 40 ms, which two round
        // trips also take.
        step.findings
            .retain(|finding| !finding.starts_with("Nagle"));
        let (first, last) = (&step.latency.answered, &step.latency.whole);
        let shook = step.handshakes.full + step.handshakes.resumed();
        let early = load::share(step.handshakes.early_data_accepted, shook);
        if stage.settings.resume == EARLY && early < 0.5 {
            let taken = early * 100.0;
            column.not_available = Some(format!(
                "accepted the early data of only {taken:.0} % of its clients"
            ));
            return Ok(());
        }
        for (name, value) in [
            (figures::ROUND_TRIPS_TO_FIRST, first.p50_us / round_trip),
            (figures::ROUND_TRIPS_TO_LAST, last.p50_us / round_trip),
            (figures::FIRST_P50, first.p50_us),
            (figures::FIRST_P99, first.p99_us),
            (figures::P50, last.p50_us),
            (figures::P99, last.p99_us),
            (figures::RTT, round_trip),
            (figures::FAILED, load::share(step.failed, step.attempted)),
            (figures::EARLY, early),
            (
                figures::RESUMED,
                load::share(step.handshakes.resumed(), shook),
            ),
        ] {
            sample.put(name, value);
        }
        if stage.settings.resume == "never" {
            count_packets(stage, (network, server.address), sample)?;
        }
        if network.dropped() > 0 {
            column.note("the network dropped packets because its queue was full");
        }
        transactions::remark(column, &step);
        Ok(())
    })
}

/// Counts the packets of a fixed number of transactions, from SYN to FIN.
fn count_packets(
    stage: &Stage<'_>,
    (network, server): (&Network, SocketAddr),
    sample: &mut Sample,
) -> Result<(), Error> {
    let ask = stage
        .ask(server, None)
        .flag("--i-own-this-target")
        .with("-c", 1);
    let before = network.packets();
    let step = network.at_client(|| ask.one(Load::ClosedCount(COUNTED), stage.stop))?;
    // The last packets of the last connection may be in transit.
    thread::sleep(WARM_DOWN);
    let names = [figures::CLIENT_PACKETS, figures::SERVER_PACKETS];
    for ((name, before), after) in names.into_iter().zip(before).zip(network.packets()) {
        sample.put(name, load::share(after - before, step.completed));
    }
    Ok(())
}

/// Minimum duration of a measurement, which allows about ten transactions per connection.
const LEAST: Duration = Duration::from_secs(1);
/// Warm-up. It includes the first transaction of each connection, which cannot resume a session.
const WARM_UP: &str = "500ms";
/// Time in which all packets in transit arrive.
const WARM_DOWN: Duration = Duration::from_millis(100);
/// Number of transactions whose packets are counted.
const COUNTED: u64 = 20;
