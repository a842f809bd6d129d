//! Measures the loss of a node: how many clients still resume, and the CPU time of a transaction after the loss.
//!
//! Many clients each create a session at the first node and return to it once. Then the first node is killed, and all
//! clients return twice to the remaining nodes in rotation. Each return is a connection with a handshake that offers
//! the session, one request, and the close.
//!
//! One blocking loop makes all connections, so the measure records CPU time and resumptions, but no rate. A pause
//! before the loss lets the replicated sessions arrive, because updates in transit are lost with the node.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use becket_load::tls::Tls;
use becket_load::{clock, cpu};
use rustls::{ClientConfig, HandshakeKind};

use super::client::Client;
use super::rounds;
use super::stage::Stage;
use crate::peer::Server;
use crate::result::{Column, Sample};
use crate::{Error, farm, figures, place};

/// Measures farms with and without a cluster, round by round.
pub(super) fn run(stage: &mut Stage<'_>) -> Result<Vec<Column>, Error> {
    let Some((peer, site)) = stage.farm else {
        return Ok(Vec::new());
    };
    let columns = ["becket, cluster", "becket, no cluster"].map(Column::new);
    rounds::each(stage, columns.into(), |stage, index, _, sample| {
        let clustered = index == 0;
        let nodes = farm::start(peer, site, clustered)?;
        one(stage, nodes, clustered, sample)
    })
}

fn one(
    stage: &Stage<'_>,
    mut nodes: Vec<Server>,
    clustered: bool,
    sample: &mut Sample,
) -> Result<(), Error> {
    let tls = stage.tls()?;
    let addresses: Vec<SocketAddr> = nodes.iter().map(|node| node.address).collect();
    let (first, rest) = addresses
        .split_first()
        .filter(|(_, rest)| !rest.is_empty())
        .ok_or_else(|| {
            Error::Asked(
                "nodes = 1 (accepted: 2 or more): one node is lost and one must remain".into(),
            )
        })?;
    if clustered {
        wait_until_joined(stage, &tls, &addresses)?;
    }
    // Use as many clients as the effort allows, because the kernel counts CPU time in steps of 10 ms.
    let count = stage.settings.connections.min(stage.effort.idle);
    let clients: Vec<_> = (0..count).map(|_| tls.config()).collect();
    everybody(stage, &clients, &[*first])?;
    let mut put = |phase: &str, nodes: &[Server], addresses: &[SocketAddr]| -> Result<(), Error> {
        let pids: Vec<u32> = nodes.iter().map(|node| node.process.pid()).collect();
        let before = cpu::of_processes(&pids)?;
        let seen = everybody(stage, &clients, addresses)?;
        let cpu = cpu::of_processes(&pids)?
            .since(before)
            .total()
            .as_secs_f64()
            * 1e6;
        let mut put =
            |name: &str, sum: f64| sample.put(&figures::at(name, phase), sum / count as f64);
        put(figures::RESUMED, seen.resumed as f64);
        put(figures::FAILED, seen.failed as f64);
        put(figures::CPU, cpu);
        Ok(())
    };
    put(figures::BEFORE, &nodes, &[*first])?;
    std::thread::sleep(PAUSE);
    // SIGKILL has the same effect on the other nodes as a power failure.
    nodes.remove(0).process.kill();
    put(figures::DURING, &nodes, rest)?;
    put(figures::AFTERWARDS, &nodes, rest)
}

/// Results of one transaction per client, combined.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    resumed: usize,
    failed: usize,
}

/// Makes one transaction per client, distributed over the nodes in rotation.
fn everybody(
    stage: &Stage<'_>,
    clients: &[Arc<ClientConfig>],
    nodes: &[SocketAddr],
) -> Result<Seen, Error> {
    place::on(stage.client, || {
        let mut seen = Seen::default();
        for (client, node) in clients.iter().zip(nodes.iter().cycle()) {
            stage.check_signal()?;
            match visit(stage, client, *node) {
                Ok(true) => seen.resumed += 1,
                Ok(false) => {}
                Err(_) => seen.failed += 1,
            }
        }
        Ok(seen)
    })
}

/// Waits until every other node resumes sessions of the first node.
fn wait_until_joined(stage: &Stage<'_>, tls: &Tls, nodes: &[SocketAddr]) -> Result<(), Error> {
    let deadline = clock::now() + JOIN_LIMIT;
    let failed = |e| Error::os("cannot make a first transaction with the nodes", e);
    let Some((first, rest)) = nodes.split_first() else {
        return Ok(());
    };
    for node in rest {
        loop {
            stage.check_signal()?;
            let client = tls.config();
            visit(stage, &client, *first).map_err(failed)?;
            std::thread::sleep(PAUSE);
            if visit(stage, &client, *node).map_err(failed)? {
                break;
            }
            if clock::now() > deadline {
                return Err(Error::Peer(format!(
                    "node {node} does not resume sessions of {first}: the nodes have not formed a cluster"
                )));
            }
        }
    }
    Ok(())
}

/// Makes one transaction and returns whether it resumed. `client` stores the session of the previous transaction.
fn visit(stage: &Stage<'_>, client: &Arc<ClientConfig>, node: SocketAddr) -> io::Result<bool> {
    let mut client = Client::open(stage, node, client)?;
    client.ask(stage)?;
    Ok(client.tls.handshake_kind() == Some(HandshakeKind::Resumed))
}

/// Pause for replication, many times longer than a node needs.
const PAUSE: Duration = Duration::from_millis(100);
const JOIN_LIMIT: Duration = Duration::from_secs(20);
