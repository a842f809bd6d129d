//! The vocabulary of the phases: sockets, a turn, and the part of a connection that outlives a phase.
//!
//! A leaf: it names no phase.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;
use std::{fmt, io};

use becket_config::process::{LimitsSection, Timeouts};
use becket_proto::{half_pipe::HalfPipe, session::SessionName};

use super::facts::Facts;
use super::failure_log::FailureLog;
use crate::backend::cancel::Cancels;
use crate::leg::{Got, Leg};
use crate::metrics::{Counter, Counters};
use crate::pipes::{Lent, Pipes};
use crate::socket::{KernelTlsSocket, SocketError, StreamSocket};
use becket_keys::signing::worker::WorkerSigning;
use becket_log::access_log::AccessSender;
use becket_proto::close_reason::CloseReason;
use becket_sys::clock::Now;
use becket_tls::admission::{Admitted, ConnectionPermit, HalfOpen, WorkerAdmission};
use becket_tls::config::ServerAddress;
use becket_tls::scratch::Buffer;

/// The sockets that connections run on.
pub trait Net {
    /// Towards clients.
    type Client: KernelTlsSocket + fmt::Debug;
    /// Towards servers.
    type Server: KernelTlsSocket + fmt::Debug;

    /// Starts to connect, from a source address if one is given; readiness will be reported for the connection that is being advanced.
    ///
    /// # Errors
    ///
    /// When it failed at once: no such socket, no descriptor, refused.
    fn connect(
        &mut self,
        address: &ServerAddress,
        source: Option<IpAddr>,
    ) -> io::Result<Self::Server>;

    /// The outcome of a connect that has become writable.
    ///
    /// # Errors
    ///
    /// Why the connect failed.
    fn connected(server: &Self::Server) -> io::Result<()>;
}

/// The loan of a worker to the connection that it advances.
#[derive(Debug)]
pub struct Turn<'a, N> {
    pub net: &'a mut N,
    /// Index of the connection in its worker.
    pub place: usize,
    /// Read once per loop turn.
    pub now: Now,
    pub counters: &'a Counters,
    pub limits: &'a LimitsSection,
    pub timeouts: &'a Timeouts,
    pub failures: &'a mut FailureLog,
    pub admission: &'a Rc<WorkerAdmission>,
    pub cancels: &'a Cancels,
    /// Lent to directions that carry bulk.
    pub pipes: &'a Rc<Pipes>,
    /// `None` if every signature is made by the worker at once.
    pub signing: Option<&'a WorkerSigning>,
    /// For requests, if there is an access log.
    pub access: Option<&'a AccessSender>,
    /// The process takes no new clients, and ends when the last one has left.
    pub draining: bool,
}

/// The part of a connection that outlives every phase.
#[derive(Debug)]
pub(super) struct Core<N: Net> {
    pub(super) client: Leg<N::Client>,
    pub(super) facts: Facts,
    /// When to give up, if nothing happens.
    pub(super) deadline: Duration,
    /// When the handshake must be complete. Waiting for a slot is not part of it.
    pub(super) handshake_until: Duration,
    /// Bytes of a PROXY header, which are not the client's.
    pub(super) header: u64,
    /// The session in the table that the client made or proved to hold: TLS 1.2 by ID only.
    pub(super) session: Option<Box<SessionName>>,
    /// The client takes FIN for the end of a whole stream: it speaks no TLS that would tell a cut
    /// from an end.
    pub(super) fin_is_an_end: bool,
    /// Counts the connection for its source, name and fingerprint until it is closed, if connections of these are limited.
    pub(super) permit: Option<Box<ConnectionPermit>>,
    /// Counts the connection for its source until it has keys.
    pub(super) half_open: Option<Box<HalfOpen>>,
}

/// A connection and its turn, as phases are given them.
pub(super) struct Context<'a, 't, N: Net> {
    pub(super) core: &'a mut Core<N>,
    pub(super) turn: &'a mut Turn<'t, N>,
}

/// Bytes that a peer sent before the next phase could receive them. They lie in the worker's buffers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EarlyBytes<'a> {
    pub(super) bytes: &'a [u8],
    /// No more bytes follow.
    pub(super) ended: bool,
}

/// Which socket of a connection an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
}

impl Side {
    pub(super) fn bytes_in(self, counters: &Counters) -> &Counter {
        match self {
            Self::Client => &counters.client_bytes_in,
            Self::Server => &counters.server_bytes_in,
        }
    }

    pub(super) fn bytes_out(self, counters: &Counters) -> &Counter {
        match self {
            Self::Client => &counters.client_bytes_out,
            Self::Server => &counters.server_bytes_out,
        }
    }

    pub(super) fn reset(self) -> CloseReason {
        match self {
            Self::Client => CloseReason::ClientReset,
            Self::Server => CloseReason::ServerReset,
        }
    }

    /// The peer broke TLS.
    pub(super) fn tls_error(self) -> CloseReason {
        match self {
            Self::Client => CloseReason::ClientTlsError,
            Self::Server => CloseReason::ServerTlsError,
        }
    }

    /// The peer sent more records without data than it may.
    pub(super) fn without_data(self) -> CloseReason {
        match self {
            Self::Client => CloseReason::RecordsWithoutData,
            Self::Server => CloseReason::ServerRecordsWithoutData,
        }
    }
}

impl<N: Net> Core<N> {
    pub(super) fn count(&mut self, admitted: Admitted) {
        self.permit = admitted.permit;
        self.half_open = admitted.half_open;
    }

    /// The address that the client connected to, by the header of a proxy in front or else by the socket, which costs a
    /// system call.
    pub(super) fn arrived_at(&self) -> Option<SocketAddr> {
        let introduced = self.facts.introduced.as_deref();
        let claimed = introduced.and_then(|known| known.arrived_at);
        claimed.or_else(|| self.client.socket.local_address())
    }

    /// Why a client left that has no keys yet: one that sent nothing only checked that becket is there.
    pub(super) fn left_early(&self) -> CloseReason {
        if self.client.traffic.received == self.header {
            CloseReason::HealthCheck
        } else {
            CloseReason::HandshakeAborted
        }
    }
}

impl<N: Net> Context<'_, '_, N> {
    /// Receives from the client; see [`Leg::receive`].
    pub(super) fn receive(&mut self, buffer: &mut Buffer, most: usize) -> Result<Got, SocketError> {
        let counter = &self.turn.counters.client_bytes_in;
        self.core.client.receive(buffer, most, counter)
    }

    /// Sends to the client what waits for it; see [`Leg::flush`].
    pub(super) fn flush(&mut self, pipe: &mut HalfPipe<Lent>) -> Result<(), SocketError> {
        let counter = &self.turn.counters.client_bytes_out;
        self.core.client.flush(pipe, counter)
    }

    /// Sends to the client behind what waits for it; see [`Leg::push`].
    pub(super) fn push(
        &mut self,
        bytes: &[u8],
        pipe: &mut HalfPipe<Lent>,
    ) -> Result<(), SocketError> {
        let counter = &self.turn.counters.client_bytes_out;
        self.core.client.push(bytes, pipe, counter)
    }

    /// Returns whether the client has ended its side; before a step that is worth the look.
    pub(super) fn client_is_gone(&self) -> bool {
        let client = &self.core.client;
        client.ready.ended || client.socket.is_gone()
    }

    /// Writes a line about a failure.
    pub(super) fn note(&mut self, reason: CloseReason, detail: &str) {
        let (failures, now) = (&mut self.turn.failures, self.turn.now);
        failures.note(&self.core.facts, reason, detail, now);
    }
}

/// How long tickets wait for an answer with which they leave. Most servers answer sooner, and a client that wants to resume before that, or the rest
/// of whose request waits for an acknowledgement, is not kept for long.
pub(super) const TICKETS_WAIT: Duration = Duration::from_millis(50);
