//! The loss of a node: how many clients still resume, and what a transaction then costs.
//!
//! Many clients make a session each at the first node and return to it once. Then that node is
//! killed, and all return twice to the nodes that are left, in turn. A return is a connection, a
//! handshake that offers the session, one request, and the close. The clients are one blocking
//! loop: what is measured is the servers' CPU and what they resumed, not how fast.
//!
//! Before the loss there is a pause, in which what the node has to tell the others can arrive: what
//! is on its way when a node dies is lost with it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use becket_load::clock;
use becket_load::plan::Load;
use becket_load::sessions::Sessions;
use becket_load::tls::Tls;
use rustls::{ClientConfig, ClientConnection, HandshakeKind, Stream};
use rustls_pki_types::ServerName;

use super::{Stage, time_out};
use crate::farm::Farm;
use crate::keys::NAME;
use crate::result::{Column, Sample, figures};
use crate::{Error, place};

/// Starts a farm, with a cluster or without.
pub type Start<'a> = &'a dyn Fn(bool) -> Result<Farm, Error>;

/// Measures both kinds of farm, round by round.
pub fn run(stage: &mut Stage<'_>, start: Start<'_>) -> Result<Vec<Column>, Error> {
    let mut columns = [CLUSTERED, ALONE].map(|name| Column {
        peer: name.to_owned(),
        ..Column::default()
    });
    let mut rounds = stage.rounds();
    while let Some(round) = rounds.next(stage, &columns)? {
        for column in &mut columns {
            stage.check_signal()?;
            let clustered = column.peer == CLUSTERED;
            let sample = one(stage, &mut start(clustered)?, clustered, round)?;
            column.samples.push(sample);
        }
    }
    Ok(columns.into())
}

fn one(stage: &Stage<'_>, farm: &mut Farm, clustered: bool, round: u32) -> Result<Sample, Error> {
    let tls = tls(stage)?;
    let addresses = farm.addresses();
    let (first, rest) = addresses
        .split_first()
        .filter(|(_, rest)| !rest.is_empty())
        .ok_or_else(|| Error::Asked("nodes = 1: there must be one to lose and one left".into()))?;
    if clustered {
        wait_until_joined(stage, &tls, &addresses)?;
    }
    let clients: Vec<Client> = (0..clients(stage)).map(|_| Client::new(&tls)).collect();
    let mut sample = Sample {
        round,
        ..Sample::default()
    };
    everybody(stage, &clients, &[*first])?;
    let mut put = |phase: &str, farm: &Farm, addresses: &[SocketAddr]| -> Result<(), Error> {
        let before = farm.spent()?;
        let seen = everybody(stage, &clients, addresses)?;
        let cpu = farm.spent()?.since(before).total().as_secs_f64() * 1e6;
        let all = clients.len() as f64;
        let failed = seen.failed as f64 / all;
        sample.put(
            &figures::phase(figures::RESUMED, phase),
            seen.resumed as f64 / all,
        );
        sample.put(&figures::phase(figures::FAILED, phase), failed);
        sample.put(&figures::phase(figures::CPU, phase), cpu / all);
        Ok(())
    };
    put(BEFORE, farm, &[*first])?;
    std::thread::sleep(PAUSE);
    farm.lose_first();
    put(DURING, farm, rest)?;
    put(AFTER, farm, rest)?;
    Ok(sample)
}

/// What became of one visit by everybody.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    resumed: usize,
    failed: usize,
}

/// Lets every client make one transaction, at the nodes in turn.
fn everybody(stage: &Stage<'_>, clients: &[Client], nodes: &[SocketAddr]) -> Result<Seen, Error> {
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
            let client = Client::new(tls);
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

/// One who comes back.
struct Client {
    sessions: Arc<Sessions>,
    config: Arc<ClientConfig>,
}

impl Client {
    fn new(tls: &Tls) -> Self {
        let sessions = Arc::new(Sessions::new(true));
        let config = tls.slot(&sessions);
        Self { sessions, config }
    }

    /// Makes one transaction; returns whether it resumed.
    fn visit(&self, stage: &Stage<'_>, node: SocketAddr) -> io::Result<bool> {
        self.sessions.offer();
        let mut socket = TcpStream::connect(node)?;
        // The end of the handshake and the request are two writes: the second must not wait for an acknowledgement.
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(time_out(stage.settings)))?;
        let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
        let config = Arc::clone(&self.config);
        let mut tls = ClientConnection::new(config, name).map_err(io::Error::other)?;
        let mut stream = Stream::new(&mut tls, &mut socket);
        let request = format!(
            "GET /bytes/{} HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n",
            stage.settings.body
        );
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        if (answer.len() as u64) < stage.settings.body {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(tls.handshake_kind() == Some(HandshakeKind::Resumed))
    }
}

fn tls(stage: &Stage<'_>) -> Result<Tls, Error> {
    let any = SocketAddr::from(([127, 0, 0, 1], 1));
    let plan = stage.ask(any, None).plan(Load::ClosedCount(1))?;
    let plan = plan
        .tls
        .ok_or_else(|| Error::Asked("no TLS in the plan".to_owned()))?;
    Ok(Tls::new(&plan)?)
}

/// As many as the effort allows: the kernel counts CPU in steps of 10 ms.
fn clients(stage: &Stage<'_>) -> usize {
    stage.settings.connections.min(stage.effort.idle)
}

/// Columns of this measure.
pub const CLUSTERED: &str = "becket, cluster";
const ALONE: &str = "becket, no cluster";
/// At the node that made the session.
pub const BEFORE: &str = "before";
/// The first return after the loss.
pub const DURING: &str = "during";
pub const AFTER: &str = "after";
/// Many times what a node needs to tell the others.
const PAUSE: Duration = Duration::from_millis(100);
const JOIN_LIMIT: Duration = Duration::from_secs(20);
