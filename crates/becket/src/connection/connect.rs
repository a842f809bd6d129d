//! From traffic keys to a server that answers.
//!
//! The server is connected at once, without waiting for client bytes: protocols in which the
//! server speaks first work. The PROXY header and what the client has said already are one write,
//! tried right after `connect`: if it is taken, the server is there, and a turn of the loop is
//! saved.
//!
//! As long as nothing was taken, another address or server can be tried without harm: first the
//! other addresses of the same server, in order, then a server that was not tried, as often as the
//! backend's `retries` allow. A [`Slot`] of the server is held from the choice on; when all servers
//! are full, `queued.rs` waits for one.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use becket_proto::half_pipe::HalfPipe;
use becket_proto::queue::Arrival;
use becket_proto::starttls::Protocol;
use becket_proto::ticket::OriginId;
use becket_sys::socket::is_local_shortage;
use rustls::client::UnbufferedClientConnection;

use super::closing::Closing;
use super::conversing::Conversing;
use super::peeking::Learner;
use super::queued::{Queued, Then};
use super::relay::{Joined, Relaying};
use super::securing::{self, Prelude, Securing};
use super::{Core, Net, Next, Phase, Turn, introduction};
use crate::backend::pool::{Guest, Pick, Pool};
use crate::backend::server_state::ServerState;
use crate::backend::slot::Slot;
use crate::close_reason::CloseReason;
use crate::config::ServerAddress;
use crate::connection::listener::ListenerState;
use crate::leg::{Leg, Ready};
use crate::tls::chain;
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
    /// The line of sessions that the handshake continued or began.
    pub origin: Option<OriginId>,
    /// What was claimed before the handshake, where the backend asks for that.
    pub slot: Option<Slot>,
    /// The server that has the client's session, as far as can be told; see
    /// [`ServerState::key`].
    pub home: Option<u64>,
    /// What is done with the server.
    pub errand: Errand,
}

/// What a connected server is for.
#[derive(Debug)]
pub enum Errand {
    /// To relay to.
    Relay,
    /// To pass TLS to that ends there, watching for its session where clients stick by it.
    Pass(Option<Box<Learner>>),
    /// To greet the client, who is to ask for TLS in this protocol.
    Converse(Rc<ListenerState>, Protocol),
}

/// A client on its way to a server, whichever that will be.
#[derive(Debug)]
pub struct Caller {
    pub(super) client_tls: Option<Engine>,
    pool: Rc<Pool>,
    origin: Option<OriginId>,
    home: Option<u64>,
    errand: Errand,
    pub(super) to_server: HalfPipe,
    pub(super) to_client: HalfPipe,
    /// What TLS towards the server needs, where there is any.
    pub(super) prelude: Option<Box<Prelude>>,
    /// When it came, once it had a slot and gave it back.
    arrival: Option<Arrival>,
    /// Connects that may still fail.
    retries: u32,
    /// `None` until one has failed.
    setback: Option<Box<Setback>>,
}

/// What went wrong so far.
#[derive(Debug)]
struct Setback {
    error: io::Error,
    /// Servers that failed, by [`ServerState::key`].
    tried: Vec<u64>,
}

/// A client and the server that it tries. Drop the socket first: then the slot is given back.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) caller: Caller,
    slot: Slot,
    /// Which of the server's addresses.
    address: usize,
    /// When the attempt is given up.
    give_up: Duration,
    /// Whether a failure says nothing about the server.
    excused: bool,
}

/// A client whose server is being connected.
#[derive(Debug)]
pub struct Connecting<N: Net> {
    /// `None` while a unix socket's backlog is full: it is tried again soon.
    server: Option<Leg<N::Server>>,
    attempt: Attempt,
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
            let wanted = (version, established.pool.proxy_tlvs());
            match introduction::proxy_header(wanted, core, established.client_tls.as_ref()) {
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
        let caller = Caller {
            retries: established.pool.backend().retries,
            client_tls: established.client_tls,
            pool: established.pool,
            origin: established.origin,
            home: established.home,
            errand: established.errand,
            to_server,
            to_client,
            prelude,
            arrival: None,
            setback: None,
        };
        match established.slot {
            Some(slot) => caller.connect(slot, core, turn),
            None => caller.seek(core, turn),
        }
    }

    /// Takes note of the server socket's readiness.
    pub fn handle_ready(&mut self, ready: Ready) {
        if let Some(server) = &mut self.server {
            server.ready.add(ready);
        }
    }

    /// Whether this is the server that is being connected.
    pub fn is_at(&self, server: &Arc<ServerState>) -> bool {
        self.attempt.is_to(server)
    }

    /// Does what can be done now.
    pub fn advance(mut self, core: &mut Core<N>, turn: &mut Turn<'_, N>) -> Next<N> {
        if core.client.ready.failed {
            return Next::End(CloseReason::ClientReset);
        }
        match self.settle(turn) {
            Ok(true) => match self.server {
                Some(server) if self.attempt.caller.prelude.is_some() => {
                    Next::Go(Phase::Securing(Securing::new(self.attempt, server)))
                }
                Some(server) => self.attempt.join(server, None, core, turn),
                None => Next::End(CloseReason::Internal),
            },
            Ok(false) => Next::Wait(Phase::Connecting(self)),
            Err(error) => self.fail(error, core, turn),
        }
    }

    /// The server did not answer in time.
    pub fn expire(self, core: &mut Core<N>, turn: &mut Turn<'_, N>) -> Next<N> {
        if self.server.is_none() && turn.now.mono < self.attempt.give_up {
            return self.attempt.dial(core, turn);
        }
        self.fail(io::ErrorKind::TimedOut.into(), core, turn)
    }

    /// The server went out of service meanwhile.
    pub fn leave_server(self, core: &mut Core<N>, turn: &mut Turn<'_, N>) -> Next<N> {
        drop(self.server);
        self.attempt.leave_server(core, turn)
    }

    fn fail(self, error: io::Error, core: &mut Core<N>, turn: &mut Turn<'_, N>) -> Next<N> {
        drop(self.server);
        self.attempt.fail(error, core, turn)
    }

    /// Whether the server is connected.
    fn settle(&mut self, turn: &Turn<'_, N>) -> io::Result<bool> {
        let Some(server) = &mut self.server else {
            return Ok(false);
        };
        let to_server = &mut self.attempt.caller.to_server;
        let first = to_server.waiting();
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
                to_server.sent(n);
                Ok(true)
            }
            // The error of the connect itself may have been taken by the send.
            Err(_) => Err(N::connected(&server.socket)
                .err()
                .unwrap_or_else(|| io::ErrorKind::ConnectionRefused.into())),
        }
    }
}

impl Attempt {
    /// Whether it is this server that is tried.
    pub(super) fn is_to(&self, server: &Arc<ServerState>) -> bool {
        Arc::ptr_eq(self.slot.server(), server)
    }

    /// The server is there: relays.
    pub(super) fn join<N: Net>(
        self,
        server: Leg<N::Server>,
        server_tls: Option<Box<Engine<UnbufferedClientConnection>>>,
        core: &mut Core<N>,
        turn: &Turn<'_, N>,
    ) -> Next<N> {
        turn.counters.connects.add(1);
        let Self { caller, slot, .. } = self;
        slot.server().note_connect();
        let guest = guest(caller.origin, core);
        caller.pool.learn(&guest, slot.server(), turn.now.mono);
        let mut joined = Joined {
            client_tls: caller.client_tls,
            server_tls,
            server,
            to_server: caller.to_server,
            to_client: caller.to_client,
            slot,
            learner: None,
        };
        match caller.errand {
            Errand::Relay => {}
            Errand::Pass(learner) => joined.learner = learner,
            Errand::Converse(listener, protocol) => {
                return Conversing::begin(listener, protocol, joined, core, turn);
            }
        }
        Relaying::new(joined).begin(core, turn)
    }

    /// Starts to connect to the address, or to the next one that does not fail at once.
    fn dial<N: Net>(mut self, core: &mut Core<N>, turn: &mut Turn<'_, N>) -> Next<N> {
        let server = self.slot.server();
        let addresses = self.caller.pool.addresses(server);
        let Some(address) = addresses.get(self.address) else {
            return self.fail(io::ErrorKind::AddrNotAvailable.into(), core, turn);
        };
        let Caller {
            pool,
            prelude,
            to_server,
            ..
        } = &mut self.caller;
        let hello = match (pool.tls(), prelude) {
            (Some(tls), Some(prelude)) => {
                prelude.greet(tls, server.name(), (core, turn), to_server)
            }
            _ => Ok(()),
        };
        match hello.and_then(|()| open(turn.net, pool, address)) {
            Ok(socket) => {
                core.deadline = turn.now.mono + turn.timeouts.connect;
                Next::Go(Phase::Connecting(Connecting {
                    server: Some(Leg::new(socket, Ready::default())),
                    attempt: self,
                }))
            }
            // connect(2): the backlog of a unix socket is full, and nobody will tell us when
            // it has room again.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                core.deadline = self.give_up.min(turn.now.mono + RETRY);
                Next::Wait(Phase::Connecting(Connecting {
                    server: None,
                    attempt: self,
                }))
            }
            Err(error) => self.fail(error, core, turn),
        }
    }

    /// What comes may be the client's fault: it is not held against the server.
    pub(super) fn excuse(&mut self) {
        self.excused = true;
    }

    /// The server went out of service meanwhile; its other addresses are no better.
    pub(super) fn leave_server<N: Net>(
        mut self,
        core: &mut Core<N>,
        turn: &mut Turn<'_, N>,
    ) -> Next<N> {
        self.address = usize::MAX - 1;
        self.fail(io::ErrorKind::ConnectionAborted.into(), core, turn)
    }

    /// A connect failed, and its socket is closed: goes on to the next address, or to another
    /// server. As deep as `retries`.
    pub(super) fn fail<N: Net>(
        mut self,
        error: io::Error,
        core: &mut Core<N>,
        turn: &mut Turn<'_, N>,
    ) -> Next<N> {
        turn.counters.connect_failures.add(1);
        self.address += 1;
        let server = self.slot.server();
        let others = self.address < self.caller.pool.addresses(server).len();
        if others && self.caller.retries > 0 {
            self.caller.retries -= 1;
            self.give_up = turn.now.mono + turn.timeouts.connect;
            return self.dial(core, turn);
        }
        if !self.excused && !is_local_shortage(&error) {
            server.note_failure();
        }
        let key = server.key();
        let Self {
            mut caller, slot, ..
        } = self;
        caller.give_back(slot);
        caller.note(error, key);
        if caller.retries == 0 {
            return caller.give_up(core, turn);
        }
        caller.retries -= 1;
        caller.seek(core, turn)
    }
}

impl Caller {
    /// Where the client wants to go.
    pub fn pool(&self) -> &Rc<Pool> {
        &self.pool
    }

    /// Servers that have failed it.
    pub fn tried(&self) -> &[u64] {
        self.setback.as_ref().map_or(&[], |setback| &setback.tried)
    }

    /// When it came, if it had a slot before.
    pub fn arrival(&self) -> Option<Arrival> {
        self.arrival
    }

    /// Gives a slot back, and keeps the place in the order of arrival that it was had by.
    fn give_back(&mut self, slot: Slot) {
        self.arrival.get_or_insert(slot.arrival());
    }

    /// Looks for a server, or waits for a slot.
    fn seek<N: Net>(self, core: &mut Core<N>, turn: &mut Turn<'_, N>) -> Next<N> {
        let guest = guest(self.origin, core);
        let had = self.pool.recall(&guest, turn.now.mono);
        match self.pool.pick(&guest, self.home.or(had), self.tried()) {
            Pick::Slot(slot) => self.connect(slot, core, turn),
            Pick::Full => Queued::begin(Then::Connect(self), core, turn),
            Pick::Nobody => self.give_up(core, turn),
        }
    }

    /// Connects to the server of a slot, or to another one if it went out of service since it was
    /// claimed: a handshake may have come between.
    pub fn connect<N: Net>(
        mut self,
        slot: Slot,
        core: &mut Core<N>,
        turn: &mut Turn<'_, N>,
    ) -> Next<N> {
        if !slot.server().is_in_service() {
            self.give_back(slot);
            return self.seek(core, turn);
        }
        core.facts.server = Some(Arc::clone(slot.server().name()));
        let attempt = Attempt {
            caller: self,
            slot,
            address: 0,
            give_up: turn.now.mono + turn.timeouts.connect,
            excused: false,
        };
        attempt.dial(core, turn)
    }

    /// Sends what is left of the handshake's last flight, while waiting for a slot.
    ///
    /// # Errors
    ///
    /// When the client is gone.
    pub(super) fn send_flight<N: Net>(
        &mut self,
        core: &mut Core<N>,
        turn: &Turn<'_, N>,
    ) -> Result<(), ()> {
        let rest = self.to_client.waiting();
        if rest.is_empty() || !core.client.ready.writable {
            return Ok(());
        }
        let sent = core.client.send(rest, &turn.counters.client_bytes_out);
        self.to_client.sent(sent.map_err(drop)?);
        Ok(())
    }

    fn note(&mut self, error: io::Error, server: u64) {
        match &mut self.setback {
            Some(setback) => {
                setback.error = error;
                setback.tried.push(server);
            }
            None => {
                let tried = vec![server];
                self.setback = Some(Box::new(Setback { error, tried }));
            }
        }
    }

    /// No server can be had.
    pub fn give_up<N: Net>(self, core: &mut Core<N>, turn: &mut Turn<'_, N>) -> Next<N> {
        let error = self.setback.as_ref().map(|setback| &setback.error);
        let (reason, detail) = match error {
            None => (CloseReason::NoServer, "no server is in service".to_owned()),
            Some(error) => (reason_of(error), in_words(error)),
        };
        let detail = format!("backend {}: {detail}", self.pool.name());
        turn.failures.note(&core.facts, reason, &detail, turn.now);
        // No close_notify: the client must not take nothing for a whole answer.
        Closing::begin(reason, Vec::new(), core, turn)
    }
}

/// What a choice may depend on.
fn guest<N: Net>(origin: Option<OriginId>, core: &Core<N>) -> Guest<'_> {
    Guest {
        source: core.facts.client.ip(),
        name: core.facts.server_name.as_deref(),
        origin,
    }
}

fn reason_of(error: &io::Error) -> CloseReason {
    match (securing::tls_error(error), error.kind()) {
        (Some(error), _) if chain::is_excess(error) => CloseReason::ServerChain,
        (Some(rustls::Error::InvalidCertificate(_)), _) => CloseReason::ServerCertificate,
        (Some(_), _) => CloseReason::ServerTlsError,
        (None, io::ErrorKind::TimedOut) => CloseReason::ConnectTimeout,
        (None, _) => CloseReason::ConnectFailed,
    }
}

fn in_words(error: &io::Error) -> String {
    securing::tls_error(error).map_or_else(|| error.to_string(), chain::explain)
}

/// Starts to connect: from the backend's next source, and from the others as long as one has no port
/// left towards this address.
fn open<N: Net>(net: &mut N, pool: &Pool, address: &ServerAddress) -> io::Result<N::Server> {
    let mut opened = net.connect(address, pool.source(address));
    for _ in 1..pool.backend().source.len() {
        match &opened {
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
                opened = net.connect(address, pool.source(address));
            }
            _ => break,
        }
    }
    opened
}

/// Between two looks at a unix socket whose backlog is full.
const RETRY: Duration = Duration::from_millis(50);
