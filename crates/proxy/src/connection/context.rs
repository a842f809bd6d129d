//! Types that all phases use: sockets, the worker's resources for a turn, and the part of a
//! connection that outlives a phase.
//!
//! This module does not depend on any phase.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;
use std::{fmt, io};

use becket_config::process::{LimitsSection, Timeouts};
use becket_proto::{half_pipe::HalfPipe, session::SessionName};

use super::failure_log::FailureLog;
use crate::backend::cancel::Cancels;
use crate::leg::{Got, Leg};
use crate::metrics::{Counter, Counters};
use crate::pipes::{Lent, Pipes};
use crate::socket::{KernelTlsSocket, SocketError, StreamSocket};
use becket_keys::signing::worker::WorkerSigning;
use becket_log::access_log::AccessSender;
use becket_log::facts::Facts;
use becket_proto::close_reason::CloseReason;
use becket_sys::clock::Now;
use becket_tls::admission::{Admitted, ConnectionPermit, HalfOpen, WorkerAdmission};
use becket_tls::challenges::Challenges;
use becket_tls::config::ServerAddress;
use becket_tls::scratch::Buffer;

/// Sockets to clients and servers. Tests and fuzzing implement this trait with simulated sockets.
pub trait Net {
    type Client: KernelTlsSocket + fmt::Debug;
    type Server: KernelTlsSocket + fmt::Debug;

    /// Starts to connect to a server, from the given source address, if any. Readiness events of
    /// the socket go to the connection that is being advanced.
    ///
    /// # Errors
    ///
    /// Fails if the connect fails at once, for example if no descriptor is left or a unix socket
    /// does not exist.
    fn connect(
        &mut self,
        address: &ServerAddress,
        source: Option<IpAddr>,
    ) -> io::Result<Self::Server>;

    /// Returns the result of a connect after its socket became writable.
    ///
    /// # Errors
    ///
    /// Returns the error of the connect.
    fn connected(server: &Self::Server) -> io::Result<()>;
}

/// Resources that a worker lends to the connection that it advances.
#[derive(Debug)]
pub struct Turn<'a, N> {
    pub net: &'a mut N,
    /// Index of the connection in its worker.
    pub place: usize,
    /// Current time, read once per loop turn.
    pub now: Now,
    pub counters: &'a Counters,
    pub limits: &'a LimitsSection,
    pub timeouts: &'a Timeouts,
    pub failures: &'a mut FailureLog,
    pub admission: &'a Rc<WorkerAdmission>,
    pub cancels: &'a Cancels,
    pub challenges: &'a Challenges,
    pub pipes: &'a Rc<Pipes>,
    /// Requests signatures from crypto threads and tokens; `None` if the worker makes every
    /// signature itself.
    pub signing: Option<&'a WorkerSigning>,
    /// Sender of request records; `None` without an access log.
    pub access: Option<&'a AccessSender>,
    /// `true` if no other client waits for a signature of this worker, and none was left in its
    /// accept queues.
    pub is_alone: bool,
    /// `true` if the process accepts no new clients and exits after the last one.
    pub draining: bool,
}

#[derive(Debug)]
pub(super) struct Core<N: Net> {
    pub(super) client: Leg<N::Client>,
    pub(super) facts: Facts,
    /// Time when the current phase expires.
    pub(super) deadline: Duration,
    /// Deadline of the handshake, restarted when a wait for a slot ends.
    pub(super) handshake_until: Duration,
    /// Size of a received PROXY header in bytes, which does not count as client data.
    pub(super) header: u64,
    /// Name of the TLS 1.2 session that the client created or resumed.
    pub(super) session: Option<Box<SessionName>>,
    /// `true` if the client treats FIN as the end of a complete stream, because without TLS it
    /// cannot detect truncation.
    pub(super) fin_is_an_end: bool,
    /// Counts the connection for its source, server name and JA4 fingerprint until it is closed.
    /// `None` if no limit applies.
    pub(super) permit: Option<Box<ConnectionPermit>>,
    /// Counts the handshake as unfinished for its source until there are traffic keys.
    pub(super) half_open: Option<Box<HalfOpen>>,
}

/// The arguments of a phase: the connection and the resources of the turn.
pub(super) struct Context<'a, 't, N: Net> {
    pub(super) core: &'a mut Core<N>,
    pub(super) turn: &'a mut Turn<'t, N>,
}

/// Bytes that a peer sent before the relay starts. They are in the worker's buffers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EarlyBytes<'a> {
    pub(super) bytes: &'a [u8],
    /// `true` if the peer has ended its stream.
    pub(super) ended: bool,
}

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

    /// Returns the close reason for a TLS violation by the peer on this side.
    pub(super) fn tls_error(self) -> CloseReason {
        match self {
            Self::Client => CloseReason::ClientTlsError,
            Self::Server => CloseReason::ServerTlsError,
        }
    }

    /// Returns the close reason for too many records without data from the peer on this side.
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

    /// Returns the address to which the client connected: from a PROXY header, or from the socket,
    /// which costs a system call.
    pub(super) fn arrived_at(&self) -> Option<SocketAddr> {
        let introduced = self.facts.introduced.as_deref();
        let claimed = introduced.and_then(|known| known.arrived_at);
        claimed.or_else(|| self.client.socket.local_address())
    }

    /// Returns the close reason for a client that leaves before there are traffic keys. A client
    /// that has sent nothing was a health check.
    pub(super) fn left_early(&self) -> CloseReason {
        if self.client.traffic.received == self.header {
            CloseReason::HealthCheck
        } else {
            CloseReason::HandshakeAborted
        }
    }
}

impl<N: Net> Context<'_, '_, N> {
    pub(super) fn receive(&mut self, buffer: &mut Buffer, most: usize) -> Result<Got, SocketError> {
        let counter = &self.turn.counters.client_bytes_in;
        self.core.client.receive(buffer, most, counter)
    }

    pub(super) fn flush(&mut self, pipe: &mut HalfPipe<Lent>) -> Result<(), SocketError> {
        let counter = &self.turn.counters.client_bytes_out;
        self.core.client.flush(pipe, counter)
    }

    /// Sends bytes to the client after the pending bytes; see [`Leg::push`].
    pub(super) fn push(
        &mut self,
        bytes: &[u8],
        pipe: &mut HalfPipe<Lent>,
    ) -> Result<(), SocketError> {
        let counter = &self.turn.counters.client_bytes_out;
        self.core.client.push(bytes, pipe, counter)
    }

    /// Returns `true` if the client has closed its sending side, so that a signature for it would
    /// be wasted.
    pub(super) fn client_is_gone(&self) -> bool {
        let client = &self.core.client;
        client.ready.ended || client.socket.is_gone()
    }

    pub(super) fn note(&mut self, reason: CloseReason, detail: &str) {
        let (failures, now) = (&mut self.turn.failures, self.turn.now);
        failures.note(&self.core.facts, reason, detail, now);
    }
}

/// Maximum delay of TLS 1.3 tickets, which are held to be sent with the first response. The limit
/// is short, because the client may need a ticket for its next connection, and because the packet
/// with the tickets also acknowledges the client's Finished.
pub(super) const TICKETS_WAIT: Duration = Duration::from_millis(50);
