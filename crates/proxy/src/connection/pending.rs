//! A client that needs a server.

use std::io;
use std::rc::Rc;

use becket_proto::half_pipe::HalfPipe;
use becket_proto::proxy_header::EncodeError;
use becket_proto::queue::Arrival;
use becket_proto::starttls::{NoTls, Protocol};
use becket_proto::ticket::OriginId;

use super::context::{Context, Core, EarlyBytes, Net};
use super::introduction::introduction;
use super::learner::Learner;
use super::listener::ListenerState;
use super::server_tls::{TlsStart, tls_error};
use crate::backend::backend_state::Pick;
use crate::backend::pool::{PickHint, Pool};
use crate::backend::slot::ServerSlot;
use crate::pipes::Lent;
use becket_proto::close_reason::CloseReason;
use becket_tls::chain;
use becket_tls::engine::Engine;

/// A client that needs a server, with the first data for both legs.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) pool: Rc<Pool>,
    pub(super) purpose: Purpose,
    /// TLS with the client; `None` if its bytes are relayed unchanged.
    pub(super) client_tls: Option<Engine>,
    /// Origin of the session that the handshake resumed or created.
    pub(super) origin: Option<OriginId>,
    /// Key of the server that probably has the client's session; see `ServerState::key`.
    pub(super) home: Option<u64>,
    pub(super) to_client: HalfPipe<Lent>,
    pub(super) to_server: HalfPipe<Lent>,
    /// First data for the server with backend TLS; `None` without backend TLS.
    pub(super) tls_start: Option<Box<TlsStart>>,
    /// `true` if the client has sent data and expects a response.
    pub(super) asks: bool,
    /// The connection's position in the order of arrival at the backend, stored when it returns its
    /// slot.
    pub(super) arrival: Option<Arrival>,
    /// Number of retries left after a failed connect.
    pub(super) retries: u32,
    failures: Option<Box<Failures>>,
}

#[derive(Debug)]
pub(super) enum Purpose {
    Relay,
    /// Relay TLS without terminating it. The [`Learner`] reads the session ID, if clients stick by
    /// session.
    Pass(Option<Box<Learner>>),
    /// Start the plaintext dialog of this protocol, in which the server speaks first.
    Converse(Rc<ListenerState>, Protocol),
}

#[derive(Debug)]
struct Failures {
    last: io::Error,
    /// `ServerState::key`s of the servers to which a connect failed.
    tried: Vec<u64>,
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

    /// Stores the first bytes for the server: the PROXY header, then the client's data. For a
    /// backend that serves files, only the client's data is stored.
    ///
    /// # Errors
    ///
    /// Fails if the header cannot be encoded.
    pub(super) fn introduce<N: Net>(
        &mut self,
        said: EarlyBytes<'_>,
        cx: &mut Context<'_, '_, N>,
    ) -> Result<(), EncodeError> {
        self.asks = !said.bytes.is_empty();
        let keys = &self.pool.backend().keys;
        if self.pool.files().is_some() {
            self.to_server.hold(said.bytes);
        } else {
            let header = match keys.proxy_header {
                Some(kind) => {
                    introduction((kind, &keys.proxy_tlvs), cx.core, self.client_tls.as_ref())?
                }
                None => Vec::new(),
            };
            if self.pool.tls().is_some() {
                self.tls_start = Some(Box::new(TlsStart::new(header, said)));
                return Ok(());
            }
            self.to_server = header.into();
            self.to_server.offer(said.bytes);
        }
        if said.ended {
            self.to_server.end_source();
        }
        Ok(())
    }

    /// Chooses a server. If `claimed` contains a slot whose server is still in service, uses that
    /// slot.
    pub(super) fn choose<N: Net>(
        &mut self,
        claimed: Option<ServerSlot>,
        cx: &Context<'_, '_, N>,
    ) -> Pick {
        match claimed {
            Some(slot) if slot.server().is_in_service() => return Pick::Slot(slot),
            Some(slot) => self.give_back(slot),
            None => {}
        }
        let hint = pick_hint(self.origin, cx.core);
        let had = self.pool.recall(&hint, cx.turn.now.mono);
        self.pool.pick(&hint, self.home.or(had), self.tried())
    }

    /// Returns the [`ServerState::key`](crate::backend::server_state::ServerState::key)s of servers
    /// to which a connect failed.
    pub(super) fn tried(&self) -> &[u64] {
        self.failures.as_ref().map_or(&[], |all| &all.tried)
    }

    /// Returns a slot. Stores its arrival, so that the client can queue at its first position.
    fn give_back(&mut self, slot: ServerSlot) {
        self.arrival.get_or_insert(slot.arrival);
    }

    /// Records a failed connect to the slot's server, and returns the slot. Returns `true` if
    /// another connect may be tried.
    pub(super) fn note_failure(&mut self, slot: ServerSlot, error: io::Error) -> bool {
        let mut tried = self.failures.take().map_or(Vec::new(), |all| all.tried);
        tried.push(slot.server().key());
        self.failures = Some(Box::new(Failures { last: error, tried }));
        self.give_back(slot);
        let may_retry = self.retries > 0;
        self.retries = self.retries.saturating_sub(1);
        may_retry
    }

    /// Returns the close reason and the log detail for a client without a server.
    pub(super) fn failure(&self) -> (CloseReason, String) {
        let (reason, detail) = match &self.failures {
            None => (CloseReason::NoServer, "no server is in service".to_owned()),
            Some(failures) => (reason_of(&failures.last), in_words(&failures.last)),
        };
        let name = &*self.pool.backend().keys.name;
        (reason, format!("backend {name}: {detail}"))
    }
}

/// Returns the properties of the client that stickiness and hash balancing use.
pub(super) fn pick_hint<N: Net>(origin: Option<OriginId>, core: &Core<N>) -> PickHint<'_> {
    PickHint {
        source: core.facts.client.ip(),
        name: core.facts.server_name.as_deref(),
        origin,
    }
}

fn reason_of(error: &io::Error) -> CloseReason {
    match (tls_error(error), error.kind()) {
        (Some(error), _) if chain::is_excess(error) => CloseReason::ServerChain,
        (Some(rustls::Error::InvalidCertificate(_)), _) => CloseReason::ServerCertificate,
        (Some(_), _) => CloseReason::ServerTlsError,
        (None, _) if refuses_tls(error) => CloseReason::ServerGreeting,
        (None, io::ErrorKind::TimedOut) => CloseReason::ConnectTimeout,
        (None, _) => CloseReason::ConnectFailed,
    }
}

fn refuses_tls(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<NoTls>())
}

fn in_words(error: &io::Error) -> String {
    tls_error(error).map_or_else(|| error.to_string(), chain::explain)
}
