//! Blocking client connections for measures that open connections themselves.

use std::io::{self, BufRead, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use becket_load::response::Response;
use rustls::{ClientConfig, ClientConnection, Stream};
use rustls_pki_types::ServerName;

use super::stage::Stage;
use crate::keys::NAME;
use crate::{Error, place};

pub(super) struct Client {
    socket: TcpStream,
    pub(super) tls: ClientConnection,
}

impl Client {
    pub(super) fn open(
        stage: &Stage<'_>,
        address: SocketAddr,
        config: &Arc<ClientConfig>,
    ) -> io::Result<Self> {
        let socket = TcpStream::connect(address)?;
        // The last handshake message and the request are two writes. The second must not wait for a TCP
        // acknowledgement.
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(stage.time_out()))?;
        let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
        let tls = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        Ok(Self { socket, tls })
    }

    /// Completes the handshake without sending a request.
    pub(super) fn shake_hands(&mut self) -> io::Result<()> {
        while self.tls.is_handshaking() || self.tls.wants_write() {
            self.tls.complete_io(&mut self.socket)?;
        }
        Ok(())
    }

    pub(super) fn ask(&mut self, stage: &Stage<'_>) -> io::Result<()> {
        self.send(stage)?;
        self.receive(stage)
    }

    pub(super) fn send(&mut self, stage: &Stage<'_>) -> io::Result<()> {
        let request = format!("GET {} HTTP/1.1\r\nHost: {NAME}\r\n\r\n", stage.path());
        self.stream().write_all(request.as_bytes())
    }

    /// Returns whether the first bytes of a response have arrived. Does not block.
    pub(super) fn is_answered(&mut self) -> io::Result<bool> {
        self.socket.set_nonblocking(true)?;
        let begun = self.stream().fill_buf().map(|got| !got.is_empty());
        self.socket.set_nonblocking(false)?;
        match begun {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
            begun => begun,
        }
    }

    pub(super) fn receive(&mut self, stage: &Stage<'_>) -> io::Result<()> {
        let mut response = Response::default();
        let mut piece = [0; 4096];
        while !response.is_whole() {
            match self.stream().read(&mut piece)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => response.feed(&piece[..count]).map_err(io::Error::other)?,
            }
        }
        if response.status != 200 || response.body != stage.settings.body {
            return Err(io::Error::other("not the requested body"));
        }
        Ok(())
    }

    fn stream(&mut self) -> Stream<'_, ClientConnection, TcpStream> {
        Stream::new(&mut self.tls, &mut self.socket)
    }
}

/// Opens `count` connections on the client's CPUs and calls `begin` for each.
pub(super) fn hold(
    stage: &Stage<'_>,
    address: SocketAddr,
    count: usize,
    begin: impl Fn(&mut Client) -> io::Result<()>,
) -> Result<Vec<Client>, Error> {
    let tls = stage.tls()?;
    place::on(stage.client, || {
        let mut held = Vec::with_capacity(count);
        for number in 1..=count {
            stage.check_signal()?;
            // Each client has a separate configuration, so that it cannot resume the session of another client.
            let client = Client::open(stage, address, &tls.config()).and_then(|mut client| {
                begin(&mut client)?;
                Ok(client)
            });
            held.push(client.map_err(|e| {
                Error::os(
                    format!("cannot open idle connection {number} to {address}"),
                    e,
                )
            })?);
        }
        Ok(held)
    })
}

/// Opens connections until `held` has `count` of them, several at once. Each makes a request. Returns how many were
/// refused, and replaced by others; a busy server refuses clients that waited for long.
pub(super) fn gather(
    stage: &Stage<'_>,
    addresses: &[SocketAddr],
    held: &mut Vec<Client>,
    count: usize,
) -> Result<usize, Error> {
    let tls = stage.tls()?;
    let (mut tries, begun) = (0, held.len());
    let most = 2 * (count.saturating_sub(begun) + AT_ONCE);
    place::on(stage.client, || {
        while held.len() < count {
            stage.check_signal()?;
            let some = tries..tries + AT_ONCE.min(count - held.len());
            tries = some.end;
            let opened: Vec<_> = some
                .map(|number| {
                    let address = addresses[number % addresses.len()];
                    let mut client = Client::open(stage, address, &tls.config())?;
                    client.tls.write_tls(&mut client.socket)?;
                    Ok(client)
                })
                .collect();
            let sent: Vec<_> = opened
                .into_iter()
                .map(|client: io::Result<Client>| {
                    let mut client = client?;
                    client.shake_hands()?;
                    client.send(stage)?;
                    Ok(client)
                })
                .collect();
            for client in sent {
                let answered = client.and_then(|mut client: Client| {
                    client.receive(stage)?;
                    Ok(client)
                });
                match answered {
                    Ok(client) => held.push(client),
                    Err(error) if tries > most => {
                        let number = held.len() + 1;
                        let what = format!("cannot open idle connection {number}");
                        return Err(Error::os(what, error));
                    }
                    Err(_) => {}
                }
            }
        }
        Ok(tries - (held.len() - begun))
    })
}

/// Makes a request on each connection, and returns the number of connections without an answer.
pub(super) fn ask_all(stage: &Stage<'_>, held: &mut [Client]) -> usize {
    let mut lost = 0;
    for some in held.chunks_mut(AT_ONCE) {
        let sent: Vec<bool> = some.iter_mut().map(|it| it.send(stage).is_ok()).collect();
        let answers = some.iter_mut().zip(sent);
        lost += answers
            .filter_map(|(it, sent)| (!sent || it.receive(stage).is_err()).then_some(()))
            .count();
    }
    lost
}

/// Number of connections that open at once, as the clients of a busy server do.
const AT_ONCE: usize = 32;
/// Number of connections to open before the measurement. They fill caches and pools, which must not count as memory per
/// connection.
pub(crate) const WARM_UP: usize = 200;
