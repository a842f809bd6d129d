//! Measures clients that wait in a queue for a connection slot: memory, CPU time of the idle server, and the effect on
//! other clients.
//!
//! The server has a second listener without a limit on connections, on the same port of the address [`ASIDE`]. One
//! client occupies the only slot of the first listener. The measurement has two phases, with an empty and with a full
//! queue. In each phase the server is first idle, and then receives requests through the second listener at a low rate.
//!
//! The first client in the queue sends its request immediately. It must receive the response only after the slot is
//! free, which proves that the clients waited.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread;

use super::capacity;
use super::client::{self, Client, WARM_UP};
use super::stage::Stage;
use crate::peer::Server;
use crate::result::{Column, Sample};
use crate::{Error, figures, load};

pub(super) fn run(stage: &Stage<'_>) -> Result<Vec<Column>, Error> {
    let mut columns = stage.columns();
    for (server, column) in stage.servers.iter().zip(&mut columns) {
        column.samples.push(queue(stage, server)?);
    }
    Ok(columns)
}

fn queue(stage: &Stage<'_>, server: &Server) -> Result<Sample, Error> {
    let wrong = |e: io::Error| Error::os("the first client of the queue failed", e);
    let count = stage.held();
    let hold = |address, count| client::hold(stage, address, count, |client| client.ask(stage));
    drop(hold(aside(server.address), WARM_UP.min(count))?);
    let slot = hold(server.address, 1)?;
    let mut sample = Sample::default();
    leave_alone(stage, server, figures::EMPTY, &mut sample)?;
    visit(stage, server, figures::EMPTY, &mut sample)?;
    let before = server.process.weight();
    let mut waiting = client::hold(stage, server.address, count, Client::shake_hands)?;
    let after = server.process.weight();
    waiting[0].send(stage).map_err(wrong)?;
    let each = after.growth(before, waiting.len());
    sample.put(figures::PSS_PER_CONNECTION, each);
    sample.put(figures::HELD, waiting.len() as f64);
    leave_alone(stage, server, figures::FULL, &mut sample)?;
    visit(stage, server, figures::FULL, &mut sample)?;
    if waiting[0].is_answered().map_err(wrong)? {
        return Err(Error::Asked(
            "the server answered a client that should have waited in the queue".to_owned(),
        ));
    }
    drop(slot);
    waiting[0].receive(stage).map_err(wrong)?;
    Ok(sample)
}

/// Records the idle server's CPU time per second.
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
    sample.put(&figures::at(figures::CPU_PER_S, phase), each.round());
    Ok(())
}

fn visit(
    stage: &Stage<'_>,
    server: &Server,
    phase: &str,
    sample: &mut Sample,
) -> Result<(), Error> {
    let ask = stage.ask(aside(server.address), None);
    let time = stage.effort.time * LONG / 2;
    let step = capacity::at_rate(ask, stage, RATE, time)?;
    load::latencies(sample, &step, |name| figures::at(name, phase));
    Ok(())
}

fn aside(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(ASIDE, address.port())
}

/// Returns becket's configuration sections for the second listener.
pub(crate) fn sections(
    address: SocketAddr,
    backend: SocketAddr,
    certificate: &std::path::Path,
) -> String {
    let (aside, certificate) = (aside(address), certificate.display());
    format!(
        "\n[[listener]]\nname = \"aside\"\nbind = [\"{aside}\"]\nbackend = \"aside\"\ncertificates = [\"{certificate}\"]\n\n\
         [[backend]]\nname = \"aside\"\n\n[[backend.server]]\naddress = \"{backend}\"\n"
    )
}

const ASIDE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
/// Transactions per second through the second listener, far below any capacity.
const RATE: f64 = 200.0;
/// Factor for the usual duration. An idle server uses little CPU time, so a short measurement would be imprecise.
const LONG: u32 = 15;
