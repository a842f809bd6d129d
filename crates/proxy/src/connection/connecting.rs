//! Connects to a server, after the connection has received a slot of that server.
//!
//! The connect does not wait for client data, so protocols in which the server speaks first work.
//! The PROXY header and early client data are sent with one write right after `connect`. If that
//! write succeeds, the connect has completed, and no writable event is needed. With backend TLS,
//! the TLS handshake with the server follows (`server_tls.rs`).
//!
//! Until client data is sent, a different address or server can be tried without harm. The
//! remaining addresses of this server are tried first, in order, and then a server that was not
//! tried before. The backend's `retries` limits the number of tries. A failed TLS handshake counts
//! as a failed connect, and `timeouts.connect` includes it.

use std::time::Duration;
use std::{io, mem};

use becket_sys::socket::is_local_shortage;
use rustls::client::UnbufferedClientConnection;

use super::connected::Connected;
use super::context::{Context, EarlyBytes, Net, Turn};
use super::half::Tls;
use super::pending::{Pending, Purpose, pick_hint};
use super::reached::{Advance, Joined, Reached};
use super::server_tls::ServerHandshake;
use crate::backend::pool::Pool;
use crate::backend::slot::ServerSlot;
use crate::leg::Leg;
use crate::socket::Ready;
use becket_proto::close_reason::CloseReason;
use becket_tls::config::ServerAddress;
use becket_tls::scratch::{Buffer, Scratch};
use becket_tls::to_servers::ServerTls;

#[derive(Debug)]
pub(super) struct Connecting<N: Net> {
    /// Declared before the slot, because fields are dropped in order: the socket is closed before
    /// the slot is returned.
    stage: ConnectStage<N>,
    pending: Pending,
    pub(super) slot: ServerSlot,
    address: usize,
    /// Time of the first attempt to connect to this address.
    began: Duration,
    /// `true` if the client may have caused the failure, which is then not counted against the
    /// server.
    excused: bool,
}

#[derive(Debug)]
enum ConnectStage<N: Net> {
    /// The next step starts the connect.
    Dial,
    /// The backlog of a unix socket is full, so the connect is repeated after [`RETRY`].
    Backlog,
    /// Waits until the connect completes. With backend TLS, the ClientHello is ready to send.
    Connect(Leg<N::Server>, Option<ServerHandshake>),
    Secure(Leg<N::Server>, ServerHandshake),
}

impl<N: Net> Connecting<N> {
    pub(super) fn new(pending: Pending, slot: ServerSlot, cx: &Context<'_, '_, N>) -> Self {
        Self {
            stage: ConnectStage::Dial,
            pending,
            slot,
            address: 0,
            began: cx.turn.now.running,
            excused: false,
        }
    }

    pub(super) fn server(&mut self) -> Option<&mut Leg<N::Server>> {
        match &mut self.stage {
            ConnectStage::Dial | ConnectStage::Backlog => None,
            ConnectStage::Connect(server, _) | ConnectStage::Secure(server, _) => Some(server),
        }
    }

    /// Returns `true` during the TLS handshake with the server.
    pub(super) fn is_securing(&self) -> bool {
        matches!(self.stage, ConnectStage::Secure(..))
    }

    pub(super) fn advance(
        mut self,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Advance<Self, N> {
        if cx.core.client.ready.failed && !matches!(self.stage, ConnectStage::Dial) {
            return Advance::end(CloseReason::ClientReset);
        }
        match mem::replace(&mut self.stage, ConnectStage::Dial) {
            ConnectStage::Dial => self.dial(cx),
            ConnectStage::Backlog => {
                self.stage = ConnectStage::Backlog;
                Advance::Wait(self)
            }
            ConnectStage::Connect(mut server, tls) => {
                match (self.is_connected(&mut server, cx.turn), tls) {
                    (Ok(true), Some(tls)) => self.secure(server, tls, cx, scratch),
                    (Ok(true), None) => self.join(server, None, cx),
                    (Ok(false), tls) => {
                        self.stage = ConnectStage::Connect(server, tls);
                        Advance::Wait(self)
                    }
                    (Err(error), _) => {
                        drop(server);
                        self.fail(error, cx)
                    }
                }
            }
            ConnectStage::Secure(server, tls) => self.secure(server, tls, cx, scratch),
        }
    }

    /// Returns `true` if the server accepted the first bytes, or the connect has completed.
    fn is_connected(
        &mut self,
        server: &mut Leg<N::Server>,
        turn: &Turn<'_, N>,
    ) -> io::Result<bool> {
        let to_server = &mut self.pending.to_server;
        if to_server.waiting().is_empty() {
            if server.ready.writable || server.ready.ended {
                N::connected(&server.socket)?;
                return Ok(true);
            }
            return Ok(false);
        }
        match server.send(to_server.waiting(), &turn.counters.server_bytes_out) {
            Ok(sent) => {
                to_server.sent(sent);
                Ok(sent > 0)
            }
            // If the failed send has cleared the socket's error, the error is assumed to be
            // "connection refused".
            Err(_) => Err(N::connected(&server.socket)
                .err()
                .unwrap_or_else(|| io::ErrorKind::ConnectionRefused.into())),
        }
    }

    fn secure(
        mut self,
        mut server: Leg<N::Server>,
        mut tls: ServerHandshake,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Advance<Self, N> {
        let to_server = &mut self.pending.to_server;
        match tls.advance(&mut server, to_server, cx.turn.counters, scratch) {
            Ok(received) if received.ready => {
                let said = EarlyBytes {
                    bytes: scratch.plain.filled(),
                    ended: received.ended,
                };
                match self.seal(&mut tls, said, &mut scratch.sealed_out, cx) {
                    Some(Ok(())) => self.join(server, Some(tls.tls), cx),
                    _ => Advance::end(CloseReason::Internal),
                }
            }
            Ok(_) => {
                self.stage = ConnectStage::Secure(server, tls);
                Advance::Wait(self)
            }
            Err(error) => {
                drop(server);
                // The failure may be caused by the client's SNI. If it counted, a few clients with
                // unknown names could take all servers out of service.
                let tls = self.pending.pool.tls();
                self.excused |= tls.is_some_and(ServerTls::speaks_for_client);
                self.fail(error, cx)
            }
        }
    }

    /// Encrypts the data that client and server sent before both legs had traffic keys. Returns
    /// `None` without a TLS engine or without [`TlsStart`](super::server_tls::TlsStart).
    fn seal(
        &mut self,
        tls: &mut ServerHandshake,
        said: EarlyBytes<'_>,
        out: &mut Buffer,
        cx: &Context<'_, '_, N>,
    ) -> Option<Result<(), rustls::Error>> {
        let pending = &mut self.pending;
        let (start, engine) = (pending.tls_start.take()?, tls.tls.engine_mut()?);
        cx.turn
            .counters
            .count_server_handshake(engine.handshake_kind());
        out.clear();
        let to_server = engine.seal(&start.early, start.client_ended, out);
        pending.to_server.offer(out.filled());
        let to_client = match &mut pending.client_tls {
            Some(engine) => {
                out.clear();
                let greeted = engine.seal(&tls.greeting, false, out);
                let sealed = engine.seal(said.bytes, said.ended, out);
                pending.to_client.offer(out.filled());
                greeted.and(sealed)
            }
            None => {
                pending.to_client.offer(&tls.greeting);
                pending.to_client.offer(said.bytes);
                Ok(())
            }
        };
        if said.ended {
            pending.to_client.end_source();
        }
        Some(to_server.and(to_client))
    }

    pub(super) fn expire(mut self, cx: &mut Context<'_, '_, N>) -> Advance<Self, N> {
        let give_up = self.began + cx.turn.timeouts.connect;
        match mem::replace(&mut self.stage, ConnectStage::Dial) {
            ConnectStage::Dial | ConnectStage::Backlog if cx.turn.now.running < give_up => {
                self.dial(cx)
            }
            _ => self.fail(io::ErrorKind::TimedOut.into(), cx),
        }
    }

    /// Disconnects from a server that went out of service, and tries another server instead of its
    /// next addresses.
    pub(super) fn leave_server(mut self, cx: &Context<'_, '_, N>) -> Advance<Self, N> {
        // Closes the socket before the slot is returned.
        self.stage = ConnectStage::Dial;
        cx.turn.counters.connect_failures.add(1);
        self.try_another(io::ErrorKind::ConnectionAborted.into())
    }

    /// Ends this phase: relays between client and server, or starts the plaintext dialog.
    fn join(
        self,
        leg: Leg<N::Server>,
        tls: Option<Box<Tls<UnbufferedClientConnection>>>,
        cx: &mut Context<'_, '_, N>,
    ) -> Advance<Self, N> {
        let took = cx.turn.now.running.saturating_sub(self.began);
        cx.core.facts.connect = Some(took);
        cx.turn.counters.connects.add(1);
        cx.turn.counters.connect_time.record(took);
        let Self { pending, slot, .. } = self;
        slot.server().note_connect();
        let hint = pick_hint(pending.origin, cx.core);
        pending.pool.learn(&hint, slot.server(), cx.turn.now.mono);
        let server = Connected {
            leg,
            tls,
            slot,
            to_server: pending.to_server,
            to_client: pending.to_client,
        };
        let learner = match pending.purpose {
            Purpose::Relay => None,
            Purpose::Pass(learner) => learner,
            Purpose::Converse(listener, protocol) => {
                let server = Some(Box::new(server));
                return Advance::Reached(Reached::Dialog(listener, protocol, server));
            }
        };
        Advance::Reached(Reached::Joined(Joined {
            client_tls: pending.client_tls,
            server,
            learner,
            asks: pending.asks,
        }))
    }

    /// Starts to connect to the current address. If this fails at once, tries the next address or
    /// server.
    fn dial(mut self, cx: &mut Context<'_, '_, N>) -> Advance<Self, N> {
        let server = self.slot.server();
        let pool = &self.pending.pool;
        let (name, addresses) = pool.name_and_addresses(server);
        cx.core.facts.server = Some(name);
        let Some(address) = addresses.get(self.address) else {
            return self.fail(io::ErrorKind::AddrNotAvailable.into(), cx);
        };
        let hello = match (pool.tls(), &self.pending.tls_start) {
            (Some(tls), Some(start)) => {
                let hello = start.hello(tls, server.name(), &cx.core.facts, cx.turn.now);
                hello.map(|(handshake, first)| (Some(handshake), Some(first)))
            }
            _ => Ok((None, None)),
        };
        let opened = |hello| Ok((hello, open(cx.turn.net, pool, address)?));
        match hello.and_then(opened) {
            Ok(((tls, first), socket)) => {
                if let Some(first) = first {
                    self.pending.to_server = first;
                }
                cx.core.deadline = cx.turn.now.running + cx.turn.timeouts.connect;
                let leg = Leg::new(socket, Ready::default());
                self.stage = ConnectStage::Connect(leg, tls);
                Advance::Go(self)
            }
            // The backlog of a Unix socket is full (connect(2)), and no event will report when it
            // has space.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let give_up = self.began + cx.turn.timeouts.connect;
                cx.core.deadline = give_up.min(cx.turn.now.running + RETRY);
                self.stage = ConnectStage::Backlog;
                Advance::Wait(self)
            }
            Err(error) => self.fail(error, cx),
        }
    }

    /// Tries the next address of this server, or another server. Called after the socket of the
    /// failed connect was closed. The number of tries is limited by `retries`.
    fn fail(mut self, error: io::Error, cx: &Context<'_, '_, N>) -> Advance<Self, N> {
        cx.turn.counters.connect_failures.add(1);
        self.address += 1;
        let addresses = self.pending.pool.addresses(self.slot.server());
        if self.address < addresses.len() && self.pending.retries > 0 {
            self.pending.retries -= 1;
            self.began = cx.turn.now.running;
            return Advance::Go(self);
        }
        self.try_another(error)
    }

    /// Returns the slot, and requests another server if `retries` allows it.
    fn try_another(self, error: io::Error) -> Advance<Self, N> {
        let Self {
            mut pending, slot, ..
        } = self;
        if !self.excused && !is_local_shortage(&error) {
            slot.server().note_failure();
        }
        Advance::Reached(if pending.note_failure(slot, error) {
            Reached::Pending(pending, None)
        } else {
            Reached::NoServer(pending)
        })
    }
}

/// Starts to connect from the backend's next source address. If that address has no free port for
/// this server address, tries the following source addresses.
fn open<N: Net>(net: &mut N, pool: &Pool, address: &ServerAddress) -> io::Result<N::Server> {
    let mut opened = net.connect(address, pool.source(address));
    for _ in 1..pool.backend().keys.source.len() {
        match &opened {
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
                opened = net.connect(address, pool.source(address));
            }
            _ => break,
        }
    }
    opened
}

/// Pause between attempts to connect to a unix socket with a full backlog.
const RETRY: Duration = Duration::from_millis(50);
