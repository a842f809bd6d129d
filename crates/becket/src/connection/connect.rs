//! From traffic keys to a server that answers.
//!
//! The server is connected at once, without waiting for client bytes: protocols in which the
//! server speaks first work. The PROXY header and what the client has said already are one write,
//! tried right after `connect`: if it is taken, the server is there, and a turn of the loop is
//! saved. As long as nothing was taken, another server can be tried without harm.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use becket_proto::half_pipe::HalfPipe;
use rustls::client::UnbufferedClientConnection;

use super::closing::Closing;
use super::relay::{Joined, Relaying};
use super::securing::{self, Prelude, Securing};
use super::{Core, Net, Next, Phase, Turn, introduction};
use crate::backend::pool::{Attempt, Pool};
use crate::close_reason::CloseReason;
use crate::leg::{Leg, Ready};
use crate::tls::engine::Engine;

/// What a client brings that is to be connected.
#[derive(Debug)]
pub struct Established {
    /// Traffic keys; `None` where the client's bytes pass as they are.
    pub client_tls: Option<Engine>,
    /// Where the route leads.
    pub pool: Rc<Pool>,
    /// The client has ended already.
    pub client_ended: bool,
}

/// A client with keys and without a server.
#[derive(Debug)]
pub struct Connecting<N: Net> {
    waiting: Waiting,
    /// `None` while a unix socket's backlog is full: it is tried again soon.
    server: Option<Leg<N::Server>>,
}

/// What does not change from one attempt to the next.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) client_tls: Option<Engine>,
    pub(super) pool: Rc<Pool>,
    attempt: Attempt,
    /// When the attempt is given up.
    give_up: Duration,
    pub(super) to_server: HalfPipe,
    pub(super) to_client: HalfPipe,
    /// What TLS towards the server needs, where there is any.
    pub(super) prelude: Option<Box<Prelude>>,
}

impl<N: Net> Connecting<N> {
    /// Sends the last flight of the handshake, which is in `scratch.sealed_out`, and starts to
    /// connect; `scratch.plain` goes to the server first.
    pub fn begin(established: Established, core: &mut Core<N>, turn: &mut Turn<'_, N>) -> Next<N> {
        let flight = turn.scratch.sealed_out.filled();
        let Ok(sent) = core.client.send(flight, &turn.counters.client_bytes_out) else {
            return Next::End(CloseReason::ClientReset);
        };
        let mut to_client = HalfPipe::new(false);
        to_client.offer(flight.get(sent..).unwrap_or_default());

        let mut to_server = HalfPipe::new(core.client.ready.readable);
        if let Some(version) = established.pool.proxy_header() {
            match introduction::proxy_header(version, core, established.client_tls.as_ref()) {
                Ok(header) => to_server.offer(&header),
                Err(_) => return Closing::begin(CloseReason::Internal, Vec::new(), core, turn),
            }
        }
        let early = turn.scratch.plain.filled();
        let mut prelude = None;
        if established.pool.tls().is_some() {
            prelude = Some(Box::new(Prelude::new(to_server.waiting(), early)));
        } else {
            to_server.offer(early);
        }
        if established.client_ended {
            to_server.end_source();
        }
        let waiting = Waiting {
            attempt: established.pool.begin(),
            give_up: turn.now.mono + turn.timeouts.connect,
            client_tls: established.client_tls,
            pool: established.pool,
            to_server,
            to_client,
            prelude,
        };
        waiting.dial(None, core, turn)
    }

    /// Takes note of the server socket's readiness.
    pub fn handle_ready(&mut self, ready: Ready) {
        if let Some(server) = &mut self.server {
            server.ready.add(ready);
        }
    }

    /// Does what can be done now.
    pub fn advance(mut self, core: &mut Core<N>, turn: &mut Turn<'_, N>) -> Next<N> {
        if core.client.ready.failed {
            return Next::End(CloseReason::ClientReset);
        }
        match self.settle(turn) {
            Ok(true) => match self.server {
                Some(server) if self.waiting.prelude.is_some() => {
                    Next::Go(Phase::Securing(Securing::new(self.waiting, server)))
                }
                Some(server) => self.waiting.join(server, None, core, turn),
                None => Next::End(CloseReason::Internal),
            },
            Ok(false) => Next::Wait(Phase::Connecting(self)),
            Err(error) => self.waiting.next_server(&error, core, turn),
        }
    }

    /// The server did not answer in time.
    pub fn expire(self, core: &mut Core<N>, turn: &mut Turn<'_, N>) -> Next<N> {
        if self.server.is_none() && turn.now.mono < self.waiting.give_up {
            return self.waiting.dial(None, core, turn);
        }
        let error = io::Error::from(io::ErrorKind::TimedOut);
        self.waiting.next_server(&error, core, turn)
    }

    /// Whether the server is connected.
    fn settle(&mut self, turn: &Turn<'_, N>) -> io::Result<bool> {
        let Some(server) = &mut self.server else {
            return Ok(false);
        };
        let first = self.waiting.to_server.waiting();
        if first.is_empty() {
            let decided = server.ready.writable || server.ready.ended;
            return if decided {
                N::connected(&server.socket).map(|()| true)
            } else {
                Ok(false)
            };
        }
        match server.send(first, &turn.counters.server_bytes_out) {
            Ok(0) => Ok(false),
            Ok(n) => {
                self.waiting.to_server.sent(n);
                Ok(true)
            }
            // The error of the connect itself may have been taken by the send.
            Err(_) => Err(N::connected(&server.socket)
                .err()
                .unwrap_or_else(|| io::ErrorKind::ConnectionRefused.into())),
        }
    }
}

impl Waiting {
    /// The server is there: relays.
    pub(super) fn join<N: Net>(
        self,
        server: Leg<N::Server>,
        server_tls: Option<Box<Engine<UnbufferedClientConnection>>>,
        core: &mut Core<N>,
        turn: &Turn<'_, N>,
    ) -> Next<N> {
        turn.counters.connects.add(1);
        let relaying = Relaying::new(Joined {
            client_tls: self.client_tls,
            server_tls,
            server,
            to_server: self.to_server,
            to_client: self.to_client,
        });
        relaying.begin(core, turn)
    }

    /// The server is of no use: goes on to the next.
    pub(super) fn next_server<N: Net>(
        mut self,
        error: &io::Error,
        core: &mut Core<N>,
        turn: &mut Turn<'_, N>,
    ) -> Next<N> {
        turn.counters.connect_failures.add(1);
        self.attempt.failed();
        self.give_up = turn.now.mono + turn.timeouts.connect;
        self.dial(Some(error), core, turn)
    }

    /// Starts to connect to the attempt's address, or to the next that does not fail at once.
    fn dial<N: Net>(
        mut self,
        error: Option<&io::Error>,
        core: &mut Core<N>,
        turn: &mut Turn<'_, N>,
    ) -> Next<N> {
        let mut failure = None;
        while let Some(target) = self.pool.target(self.attempt) {
            let hello = match (self.pool.tls(), &mut self.prelude) {
                (Some(tls), Some(prelude)) => {
                    prelude.greet(tls, target.server, core, &mut self.to_server)
                }
                _ => Ok(()),
            };
            match hello.and_then(|()| turn.net.connect(target.address)) {
                Ok(socket) => {
                    core.facts.server = Some(target.server.clone());
                    core.deadline = turn.now.mono + turn.timeouts.connect;
                    let server = Leg::new(socket, Ready::default());
                    return Next::Go(Phase::Connecting(Connecting {
                        waiting: self,
                        server: Some(server),
                    }));
                }
                // connect(2): the backlog of a unix socket is full, and nobody will tell us when
                // it has room again.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    core.deadline = self.give_up.min(turn.now.mono + RETRY);
                    return Next::Wait(Phase::Connecting(Connecting {
                        waiting: self,
                        server: None,
                    }));
                }
                Err(error) => {
                    turn.counters.connect_failures.add(1);
                    self.attempt.failed();
                    failure = Some(error);
                }
            }
        }
        let error = failure.as_ref().or(error);
        let reason = error.map_or(CloseReason::ConnectFailed, reason_of);
        let detail = error.map(ToString::to_string).unwrap_or_default();
        let detail = format!("backend {}: {detail}", self.pool.name());
        turn.failures.note(&core.facts, reason, &detail, turn.now);
        // No close_notify: the client must not take nothing for a whole answer.
        Closing::begin(reason, Vec::new(), core, turn)
    }
}

fn reason_of(error: &io::Error) -> CloseReason {
    match (securing::tls_error(error), error.kind()) {
        (Some(rustls::Error::InvalidCertificate(_)), _) => CloseReason::ServerCertificate,
        (Some(_), _) => CloseReason::ServerTlsError,
        (None, io::ErrorKind::TimedOut) => CloseReason::ConnectTimeout,
        (None, _) => CloseReason::ConnectFailed,
    }
}

/// Between two looks at a unix socket whose backlog is full.
const RETRY: Duration = Duration::from_millis(50);
