//! What a connection weighs that does nothing: growth of the servers' memory over thousands of them.
//!
//! A plain blocking client opens them one by one, asks once on each (so that both sides' buffers have
//! been used), and holds them while the kernel is asked for the proportional set size.

use std::io::{self, BufRead, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use becket_load::plan::Load;
use becket_load::sessions::Sessions;
use becket_load::tls::Tls;
use rustls::{ClientConfig, ClientConnection, Stream};
use rustls_pki_types::ServerName;

use super::{Stage, time_out};
use crate::keys::NAME;
use crate::result::{Column, Sample, figures};
use crate::{Error, place};

pub(super) fn run(stage: &Stage<'_>) -> Result<Vec<Column>, Error> {
    let mut columns = stage.columns();
    let config = client(stage)?;
    let count = stage.settings.connections.min(stage.effort.most_idle());
    for (server, column) in stage.servers.iter().zip(&mut columns) {
        stage.check_signal()?;
        // Caches and pools that come with the first connections are not the connections' weight.
        let first = hold(stage, server.address, &config, WARM_UP.min(count))?;
        drop(first);
        let before = server.process.weight();
        let held = hold(stage, server.address, &config, count)?;
        let after = server.process.weight();
        let growth = after.pss_bytes.saturating_sub(before.pss_bytes) as f64;
        let mut sample = Sample::default();
        let mut put = |name: &str, value: f64| sample.put(name, value.round());
        put(
            figures::PSS_PER_CONNECTION,
            growth / held.len().max(1) as f64,
        );
        put(figures::HELD, held.len() as f64);
        put(figures::PSS, after.pss_bytes as f64);
        put(figures::THREADS, after.threads as f64);
        column.samples.push(sample);
    }
    Ok(columns)
}

/// What clients are made of.
pub(super) fn client(stage: &Stage<'_>) -> Result<Arc<ClientConfig>, Error> {
    let any = SocketAddr::from(([127, 0, 0, 1], 1));
    let plan = stage.ask(any, None).plan(Load::ClosedCount(1))?;
    let plan = plan
        .tls
        .ok_or_else(|| Error::Asked("no TLS in the plan".to_owned()))?;
    Ok(Tls::new(&plan)?.slot(&Arc::new(Sessions::default())))
}

/// Opens connections that have asked once.
pub(super) fn hold(
    stage: &Stage<'_>,
    address: SocketAddr,
    config: &Arc<ClientConfig>,
    count: usize,
) -> Result<Vec<Client>, Error> {
    open_all((stage, address, count), || {
        let mut client = open(stage, address, config)?;
        ask(stage, &mut client)?;
        Ok(client)
    })
}

/// Opens connections that have said nothing yet.
pub(super) fn enter(
    stage: &Stage<'_>,
    address: SocketAddr,
    config: &Arc<ClientConfig>,
    count: usize,
) -> Result<Vec<Client>, Error> {
    open_all((stage, address, count), || {
        let (mut socket, mut tls) = open(stage, address, config)?;
        while tls.is_handshaking() || tls.wants_write() {
            tls.complete_io(&mut socket)?;
        }
        Ok((socket, tls))
    })
}

fn open_all(
    (stage, address, count): (&Stage<'_>, SocketAddr, usize),
    open: impl Fn() -> io::Result<Client>,
) -> Result<Vec<Client>, Error> {
    place::on(stage.client, || {
        let mut held = Vec::with_capacity(count);
        for _ in 0..count {
            stage.check_signal()?;
            let one = open().map_err(|e| {
                Error::os(
                    format!("idle connection {} to {address}", held.len() + 1),
                    e,
                )
            })?;
            held.push(one);
        }
        Ok(held)
    })
}

fn open(stage: &Stage<'_>, address: SocketAddr, config: &Arc<ClientConfig>) -> io::Result<Client> {
    let socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(time_out(stage.settings)))?;
    let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
    let tls = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
    Ok((socket, tls))
}

/// Asks, and waits for the whole answer.
pub(super) fn ask(stage: &Stage<'_>, client: &mut Client) -> io::Result<()> {
    send(stage, client)?;
    receive(stage, client)
}

pub(super) fn send(stage: &Stage<'_>, (socket, tls): &mut Client) -> io::Result<()> {
    let request = format!(
        "GET /bytes/{} HTTP/1.1\r\nHost: {NAME}\r\n\r\n",
        stage.settings.body
    );
    Stream::new(tls, socket).write_all(request.as_bytes())
}

/// Whether something of an answer has come. Does not wait.
pub(super) fn is_answered((socket, tls): &mut Client) -> io::Result<bool> {
    socket.set_nonblocking(true)?;
    let begun = Stream::new(tls, socket)
        .fill_buf()
        .map(|got| !got.is_empty());
    socket.set_nonblocking(false)?;
    match begun {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
        begun => begun,
    }
}

/// Receives a whole answer.
pub(super) fn receive(stage: &Stage<'_>, (socket, tls): &mut Client) -> io::Result<()> {
    let mut stream = Stream::new(tls, socket);
    let mut got = Vec::new();
    let mut piece = [0; 4096];
    while !whole(&got, stage.settings.body) {
        match stream.read(&mut piece)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => got.extend_from_slice(piece.get(..count).unwrap_or(&[])),
        }
    }
    Ok(())
}

fn whole(got: &[u8], body: u64) -> bool {
    let head = got.windows(4).position(|window| window == b"\r\n\r\n");
    head.is_some_and(|head| (got.len() - head - 4) as u64 >= body)
}

/// A client's side of a connection.
pub(super) type Client = (TcpStream, ClientConnection);

pub(super) const WARM_UP: usize = 200;
