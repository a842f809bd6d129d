//! From traffic keys to a server that answers.
//!
//! The server is connected at once, without waiting for client bytes: protocols in which the
//! server speaks first work. The PROXY header and what the client has said already are one write,
//! tried right after `connect`: if it is taken, the server is there, and a turn of the loop is
//! saved.
//!
//! As long as nothing was taken, another address or server can be tried without harm: first the
//! other addresses of the same server, in order, then a server that was not tried, as often as the
//! backend's `retries` allow. What went with a SYN (`backend.server.fast-open`) may have been taken though the connect failed: then what
//! a client has said goes to nobody else, unless the server refused. A [`Slot`] of the server is held from the choice on; when all servers
//! are full, `queued.rs` waits for one.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use becket_proto::half_pipe::HalfPipe;
use becket_proto::queue::Arrival;
use becket_proto::starttls::{NoTls, Protocol};
use becket_proto::ticket::OriginId;
use becket_sys::socket::is_local_shortage;
use rustls::client::UnbufferedClientConnection;

use super::closing::Closing;
use super::conversing::Conversing;
use super::passing::Learner;
use super::queued::{AfterQueue, Queued};
use super::relay::Relaying;
use super::securing::{self, Begun, Securing, TlsStart};
use super::serving::{Serving, Site};
use super::{Context, Core, Net, Next, Phase, Said, Turn, introduction};
use crate::backend::pool::{Pick, PickHint, Pool};
use crate::backend::slot::Slot;
use crate::connection::kernel_tls::Tls;
use crate::connection::listener::ListenerState;
use crate::leg::Leg;
use crate::pipes::Lent;
use crate::socket::Fault;
use crate::socket::Ready;
use becket_proto::close_reason::CloseReason;
use becket_tls::chain;
use becket_tls::config::ServerAddress;
use becket_tls::engine::Engine;

/// A client on its way to a server, whichever that will be.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) pool: Rc<Pool>,
    pub(super) purpose: Purpose,
    /// Traffic keys; `None` where the client's bytes pass as they are.
    pub(super) client_tls: Option<Engine>,
    /// The line of sessions that the handshake continued or began.
    pub(super) origin: Option<OriginId>,
    /// The server that has the client's session, as far as can be told; see `ServerState::key`.
    pub(super) home: Option<u64>,
    pub(super) to_client: HalfPipe<Lent>,
    pub(super) to_server: HalfPipe<Lent>,
    /// What TLS towards the server begins with, where there is any.
    pub(super) tls_start: Option<Box<TlsStart>>,
    /// The client has said something.
    asks: bool,
    /// When it came, once it had a slot and gave it back.
    arrival: Option<Arrival>,
    /// Connects that may still fail.
    retries: u32,
    /// `None` until one has failed.
    failures: Option<Box<Failures>>,
}

/// What a connected server is for.
#[derive(Debug)]
pub(super) enum Purpose {
    /// To relay to.
    Relay,
    /// To pass TLS to that ends there, watching for its session where clients stick by it.
    Pass(Option<Box<Learner>>),
    /// To greet the client, who is to ask for TLS in this protocol.
    Converse(Rc<ListenerState>, Protocol),
}

/// What went wrong so far.
#[derive(Debug)]
struct Failures {
    last: io::Error,
    /// Servers that failed, by `ServerState::key`.
    tried: Vec<u64>,
}

/// A client and the server that it tries. Drop the socket first: then the slot is given back.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) pending: Pending,
    pub(super) slot: Slot,
    /// Which of the server's addresses.
    address: usize,
    /// When the attempt is given up.
    give_up: Duration,
    /// Whether a failure says nothing about the server: what comes may be the client's fault.
    pub(super) excused: bool,
}

/// A client whose server is being connected.
#[derive(Debug)]
pub(super) struct Connecting<N: Net> {
    /// `None` while a unix socket's backlog is full: it is tried again soon.
    pub(super) server: Option<Leg<N::Server>>,
    pub(super) attempt: Attempt,
    /// Has made its hello, where the backend has TLS.
    tls: Option<Begun>,
    syn: Syn,
}

/// What goes with the SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Syn {
    /// Nothing: it has left.
    Gone,
    /// What is sent first, if the kernel has a cookie of the server.
    Waits,
    /// So many bytes went, and the server has not answered yet.
    Took(usize),
}

impl<N: Net> Connecting<N> {
    pub(super) fn advance(mut self, cx: &mut Context<'_, '_, N>) -> Next<N> {
        if cx.core.client.ready.failed {
            return Next::End(CloseReason::ClientReset);
        }
        let Some(mut server) = self.server.take() else {
            return Next::Wait(Phase::Connecting(self));
        };
        match self.is_connected(&mut server, cx.turn) {
            Ok(true) => match self.tls {
                Some(tls) => Next::Go(Phase::Securing(Securing::new(self.attempt, server, tls))),
                None => self.attempt.join(server, None, cx),
            },
            Ok(false) => {
                self.server = Some(server);
                Next::Wait(Phase::Connecting(self))
            }
            Err(error) => {
                drop(server);
                self.unless_heard(&error).fail(error, cx)
            }
        }
    }

    /// Whether the server has taken the first bytes, or the connect is known to be done.
    fn is_connected(
        &mut self,
        server: &mut Leg<N::Server>,
        turn: &Turn<'_, N>,
    ) -> io::Result<bool> {
        let to_server = &mut self.attempt.pending.to_server;
        let took = match self.syn {
            Syn::Took(bytes) => bytes,
            Syn::Gone | Syn::Waits => 0,
        };
        if took > 0 || to_server.waiting().is_empty() {
            if server.ready.writable || server.ready.ended {
                N::connected(&server.socket)?;
                to_server.sent(took);
                return Ok(true);
            }
            return Ok(false);
        }
        let waits = std::mem::replace(&mut self.syn, Syn::Gone) == Syn::Waits;
        match server.send(to_server.waiting(), &turn.counters.server_bytes_out) {
            Ok(sent) if waits && sent > 0 => {
                self.syn = Syn::Took(sent);
                // It is, once the server has answered.
                server.ready.writable = false;
                Ok(false)
            }
            Ok(sent) => {
                to_server.sent(sent);
                Ok(sent > 0)
            }
            // The error of the connect itself may have been taken by the send.
            Err(_) => Err(N::connected(&server.socket)
                .err()
                .unwrap_or_else(|| io::ErrorKind::ConnectionRefused.into())),
        }
    }

    /// The attempt, which has failed. The server may have heard what went with the SYN, unless it refused; what a client says is not
    /// said twice, so then no other server is tried.
    fn unless_heard(self, error: &io::Error) -> Attempt {
        let mut attempt = self.attempt;
        let pending = &mut attempt.pending;
        let may_be_heard =
            matches!(self.syn, Syn::Took(_)) && error.kind() != io::ErrorKind::ConnectionRefused;
        if may_be_heard && pending.asks && self.tls.is_none() {
            pending.retries = 0;
        }
        attempt
    }

    pub(super) fn expire(self, cx: &mut Context<'_, '_, N>) -> Next<N> {
        if self.server.is_none() && cx.turn.now.running < self.attempt.give_up {
            return self.attempt.dial(cx);
        }
        let error = io::ErrorKind::TimedOut.into();
        self.closed().unless_heard(&error).fail(error, cx)
    }

    pub(super) fn leave_server(self, cx: &mut Context<'_, '_, N>) -> Next<N> {
        let error = io::ErrorKind::ConnectionAborted.into();
        self.closed().unless_heard(&error).leave_server(cx)
    }

    /// The same without its socket, which goes before its slot.
    fn closed(mut self) -> Self {
        self.server = None;
        self
    }
}

impl Attempt {
    /// The server is there: relays.
    pub(super) fn join<N: Net>(
        self,
        server: Leg<N::Server>,
        server_tls: Option<Box<Tls<UnbufferedClientConnection>>>,
        cx: &mut Context<'_, '_, N>,
    ) -> Next<N> {
        cx.turn.counters.connects.add(1);
        let Self { pending, slot, .. } = self;
        slot.server().note_connect();
        let hint = pick_hint(pending.origin, cx.core);
        pending.pool.learn(&hint, slot.server(), cx.turn.now.mono);
        let mut relay = Relaying {
            client_tls: pending.client_tls.map(Tls::Own),
            server_tls,
            server,
            slot,
            learner: None,
            to_server: pending.to_server,
            to_client: pending.to_client,
            asks: pending.asks,
            truncated: false,
        };
        match pending.purpose {
            Purpose::Relay => {}
            Purpose::Pass(learner) => relay.learner = learner,
            Purpose::Converse(listener, protocol) => {
                return Conversing::begin(listener, protocol, relay, cx);
            }
        }
        relay.begin(cx)
    }

    /// Starts to connect to the address, or to the next one that does not fail at once.
    fn dial<N: Net>(mut self, cx: &mut Context<'_, '_, N>) -> Next<N> {
        let server = self.slot.server();
        let addresses = self.pending.pool.addresses(server);
        let Some(address) = addresses.get(self.address) else {
            return self.fail(io::ErrorKind::AddrNotAvailable.into(), cx);
        };
        let pool = &self.pending.pool;
        let hello = match (pool.tls(), &self.pending.tls_start) {
            (Some(tls), Some(start)) => {
                let hello = start.hello(tls, server.name(), &cx.core.facts, cx.turn.now);
                hello.map(|(engine, first)| (Some(engine), Some(first)))
            }
            _ => Ok((None, None)),
        };
        let speaks_first = match &hello {
            Ok((_, Some(first))) => !first.waiting().is_empty(),
            _ => !self.pending.to_server.waiting().is_empty(),
        };
        let fast_open = speaks_first && server.has_fast_open();
        let opened = |hello| Ok((hello, open(cx.turn.net, pool, address, fast_open)?));
        match hello.and_then(opened) {
            Ok(((tls, first), socket)) => {
                if let Some(first) = first {
                    self.pending.to_server = first;
                }
                cx.core.deadline = cx.turn.now.running + cx.turn.timeouts.connect;
                Next::Go(Phase::Connecting(Connecting {
                    server: Some(Leg::new(socket, Ready::default())),
                    attempt: self,
                    tls,
                    syn: if fast_open { Syn::Waits } else { Syn::Gone },
                }))
            }
            // connect(2): the backlog of a unix socket is full, and nobody will tell us when
            // it has room again.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                cx.core.deadline = self.give_up.min(cx.turn.now.running + RETRY);
                Next::Wait(Phase::Connecting(Connecting {
                    server: None,
                    attempt: self,
                    tls: None,
                    syn: Syn::Gone,
                }))
            }
            Err(error) => self.fail(error, cx),
        }
    }

    /// The server went out of service meanwhile; its other addresses are no better.
    pub(super) fn leave_server<N: Net>(self, cx: &mut Context<'_, '_, N>) -> Next<N> {
        cx.turn.counters.connect_failures.add(1);
        self.try_another(io::ErrorKind::ConnectionAborted.into(), cx)
    }

    /// A connect failed, and its socket is closed: goes on to the next address, or to another
    /// server. As deep as `retries`.
    pub(super) fn fail<N: Net>(mut self, error: io::Error, cx: &mut Context<'_, '_, N>) -> Next<N> {
        cx.turn.counters.connect_failures.add(1);
        self.address += 1;
        let addresses = self.pending.pool.addresses(self.slot.server());
        if self.address < addresses.len() && self.pending.retries > 0 {
            self.pending.retries -= 1;
            self.give_up = cx.turn.now.running + cx.turn.timeouts.connect;
            return self.dial(cx);
        }
        self.try_another(error, cx)
    }

    /// The server is given up.
    fn try_another<N: Net>(self, error: io::Error, cx: &mut Context<'_, '_, N>) -> Next<N> {
        let Self {
            mut pending, slot, ..
        } = self;
        let server = slot.server();
        if !self.excused && !is_local_shortage(&error) {
            server.note_failure();
        }
        let mut tried = pending.failures.take().map_or(Vec::new(), |all| all.tried);
        tried.push(server.key());
        pending.failures = Some(Box::new(Failures { last: error, tried }));
        pending.give_back(slot);
        if pending.retries == 0 {
            return pending.give_up(cx);
        }
        pending.retries -= 1;
        pending.seek(cx)
    }
}

impl Pending {
    pub(super) fn new(pool: Rc<Pool>, purpose: Purpose) -> Self {
        Self {
            retries: pool.backend().keys.retries,
            pool,
            purpose,
            client_tls: None,
            origin: None,
            home: None,
            to_client: HalfPipe::default(),
            to_server: HalfPipe::default(),
            tls_start: None,
            asks: false,
            arrival: None,
            failures: None,
        }
    }

    /// Sets out, or stays where the backend serves files itself. With the slot that was claimed before the handshake if the backend asks for that.
    /// What the client has said goes to the server first, behind the PROXY header.
    pub(super) fn begin<N: Net>(
        mut self,
        slot: Option<Slot>,
        said: Said<'_>,
        cx: &mut Context<'_, '_, N>,
    ) -> Next<N> {
        if self.pool.files().is_some() {
            let keys = (self.client_tls, self.to_client);
            return Serving::begin(Site::Files(self.pool), keys, said, cx);
        }
        self.asks = !said.bytes.is_empty();
        let mut header = Vec::new();
        if let Some(kind) = self.pool.backend().keys.proxy_header {
            let also = &self.pool.backend().keys.proxy_tlvs;
            match introduction::introduction((kind, also), cx.core, self.client_tls.as_ref()) {
                Ok(encoded) => header = encoded,
                Err(_) => {
                    return Closing::begin(CloseReason::Internal, self.to_client, cx);
                }
            }
        }
        if self.pool.tls().is_some() {
            self.tls_start = Some(Box::new(TlsStart::new(header, said)));
        } else {
            self.to_server = header.into();
            self.to_server.offer(said.bytes);
            if said.ended {
                self.to_server.end_source();
            }
        }
        match slot {
            Some(slot) => self.connect(slot, cx),
            None => self.seek(cx),
        }
    }

    /// Servers that have failed it.
    pub(super) fn tried(&self) -> &[u64] {
        self.failures.as_ref().map_or(&[], |all| &all.tried)
    }

    /// When it came, if it had a slot before.
    pub(super) fn arrival(&self) -> Option<Arrival> {
        self.arrival
    }

    /// Gives a slot back, and keeps the place in the order of arrival that it was had by.
    fn give_back(&mut self, slot: Slot) {
        self.arrival.get_or_insert(slot.arrival());
    }

    /// Looks for a server, or waits for a slot.
    fn seek<N: Net>(self, cx: &mut Context<'_, '_, N>) -> Next<N> {
        let hint = pick_hint(self.origin, cx.core);
        let had = self.pool.recall(&hint, cx.turn.now.mono);
        match self.pool.pick(&hint, self.home.or(had), self.tried()) {
            Pick::Slot(slot) => self.connect(slot, cx),
            Pick::Full => Queued::begin(AfterQueue::Connect(self), cx),
            Pick::Nobody => self.give_up(cx),
        }
    }

    /// Connects to the server of a slot, or to another one if it went out of service since it was
    /// claimed: a handshake may have come between.
    pub(super) fn connect<N: Net>(mut self, slot: Slot, cx: &mut Context<'_, '_, N>) -> Next<N> {
        if !slot.server().is_in_service() {
            self.give_back(slot);
            return self.seek(cx);
        }
        cx.core.facts.server = Some(Arc::clone(slot.server().name()));
        let attempt = Attempt {
            pending: self,
            slot,
            address: 0,
            give_up: cx.turn.now.running + cx.turn.timeouts.connect,
            excused: false,
        };
        attempt.dial(cx)
    }

    /// Sends what is left of the handshake's last flight, while waiting for a slot.
    ///
    /// # Errors
    ///
    /// When the client is gone.
    pub(super) fn send_flight<N: Net>(&mut self, cx: &mut Context<'_, '_, N>) -> Result<(), Fault> {
        if !cx.core.client.ready.writable || !self.to_client.waits() {
            return Ok(());
        }
        cx.flush(&mut self.to_client)
    }

    /// No server can be had.
    pub(super) fn give_up<N: Net>(self, cx: &mut Context<'_, '_, N>) -> Next<N> {
        let (reason, detail) = match self.failures {
            None => (CloseReason::NoServer, "no server is in service".to_owned()),
            Some(failures) => (reason_of(&failures.last), in_words(&failures.last)),
        };
        let detail = format!("backend {}: {detail}", &*self.pool.backend().keys.name);
        cx.note(reason, &detail);
        // No close_notify: the client must not take nothing for a whole answer.
        Closing::begin(reason, self.to_client, cx)
    }
}

/// What a choice may depend on.
pub(super) fn pick_hint<N: Net>(origin: Option<OriginId>, core: &Core<N>) -> PickHint<'_> {
    PickHint {
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
        (None, _) if refuses_tls(error) => CloseReason::ServerGreeting,
        (None, io::ErrorKind::TimedOut) => CloseReason::ConnectTimeout,
        (None, _) => CloseReason::ConnectFailed,
    }
}

/// Whether a server was asked for TLS and did not begin it.
fn refuses_tls(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<NoTls>())
}

fn in_words(error: &io::Error) -> String {
    securing::tls_error(error).map_or_else(|| error.to_string(), chain::explain)
}

/// Starts to connect: from the backend's next source, and from the others as long as one has no port
/// left towards this address.
fn open<N: Net>(
    net: &mut N,
    pool: &Pool,
    address: &ServerAddress,
    fast_open: bool,
) -> io::Result<N::Server> {
    let mut opened = net.connect(address, pool.source(address), fast_open);
    for _ in 1..pool.backend().keys.source.len() {
        match &opened {
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
                opened = net.connect(address, pool.source(address), fast_open);
            }
            _ => break,
        }
    }
    opened
}

/// Between two looks at a unix socket whose backlog is full.
const RETRY: Duration = Duration::from_millis(50);
