//! The loss of a node: how many clients still resume, and what a transaction then costs.
//!
//! Many clients make a session each at the first node and return to it once. Then that node is
//! killed, and all return twice to the nodes that are left, in turn. A return is a connection, a
//! handshake that offers the session, one request, and the close. The clients are one blocking
//! loop: what is measured is the servers' CPU and what they resumed, not how fast.
//!
//! Before the loss there is a pause, in which what the node has to tell the others can arrive: what
//! is on its way when a node dies is lost with it.

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

/// Measures both kinds of farm, round by round.
pub(super) fn run(stage: &mut Stage<'_>) -> Result<Vec<Column>, Error> {
    let Some((peer, site)) = stage.farm else {
        return Ok(Vec::new());
    };
    let mut columns = ["becket, cluster", "becket, no cluster"].map(Column::new);
    rounds::each(stage, &mut columns, |stage, index, _, sample| {
        let clustered = index == 0;
        let nodes = farm::start(peer, site, clustered)?;
        one(stage, nodes, clustered, sample)
    })?;
    Ok(columns.into())
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
        .ok_or_else(|| Error::Asked("nodes = 1: there must be one to lose and one left".into()))?;
    if clustered {
        wait_until_joined(stage, &tls, &addresses)?;
    }
    // As many as the effort allows: the kernel counts CPU in steps of 10 ms.
    let count = stage.settings.connections.min(stage.effort.idle);
    let clients: Vec<Visitor> = (0..count).map(|_| Visitor::new(&tls)).collect();
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
    // As a power cut would.
    nodes.remove(0).process.kill();
    put(figures::DURING, &nodes, rest)?;
    put(figures::AFTERWARDS, &nodes, rest)
}

/// What became of one visit by everybody.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    resumed: usize,
    failed: usize,
}

/// Lets every client make one transaction, at the nodes in turn.
fn everybody(stage: &Stage<'_>, clients: &[Visitor], nodes: &[SocketAddr]) -> Result<Seen, Error> {
    place::on(stage.client, || {
        let mut seen = Seen::default();
        for (client, node) in clients.iter().zip(nodes.iter().cycle()) {
            stage.check_signal()?;
            match client.visit(stage, *node) {
                Ok(true) => seen.resumed += 1,
                Ok(false) => {}
                Err(_) => seen.failed += 1,
            }
        }
        Ok(seen)
    })
}

/// Until sessions of the first node resume at every other one.
fn wait_until_joined(stage: &Stage<'_>, tls: &Tls, nodes: &[SocketAddr]) -> Result<(), Error> {
    let deadline = clock::now() + JOIN_LIMIT;
    let failed = |e| Error::os("a first visit to the nodes", e);
    let Some((first, rest)) = nodes.split_first() else {
        return Ok(());
    };
    for node in rest {
        loop {
            stage.check_signal()?;
            let client = Visitor::new(tls);
            client.visit(stage, *first).map_err(failed)?;
            std::thread::sleep(PAUSE);
            if client.visit(stage, *node).map_err(failed)? {
                break;
            }
            if clock::now() > deadline {
                return Err(Error::Peer(format!(
                    "node {node} does not resume what {first} made: they have not joined"
                )));
            }
        }
    }
    Ok(())
}

/// A client that comes back.
struct Visitor {
    config: Arc<ClientConfig>,
}

impl Visitor {
    fn new(tls: &Tls) -> Self {
        Self {
            config: tls.config(),
        }
    }

    /// Makes one transaction; returns whether it resumed.
    fn visit(&self, stage: &Stage<'_>, node: SocketAddr) -> io::Result<bool> {
        let mut client = Client::open(stage, node, &self.config)?;
        client.ask(stage)?;
        Ok(client.tls.handshake_kind() == Some(HandshakeKind::Resumed))
    }
}

/// Many times what a node needs to tell the others.
const PAUSE: Duration = Duration::from_millis(100);
const JOIN_LIMIT: Duration = Duration::from_secs(20);
