//! Results of phases. Only `mod.rs` creates the next phase from them.

use std::rc::Rc;

use becket_proto::half_pipe::HalfPipe;
use becket_proto::starttls::Protocol;

use super::connected::Connected;
use super::context::{Context, EarlyBytes, Net};
use super::decision::HelloDecision;
use super::handshake_refusal::HandshakeRefusal;
use super::learner::Learner;
use super::listener::ListenerState;
use super::pending::Pending;
use crate::backend::awaited::Awaited;
use crate::backend::slot::ServerSlot;
use crate::pipes::Lent;
use crate::socket::StreamSocket;
use becket_proto::close_reason::CloseReason;
use becket_tls::engine::Engine;

#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "it lives for one call; a box would be an allocation for each phase"
)]
pub(super) enum Advance<P, N: Net> {
    /// The phase continues at the next readiness event or at the deadline.
    Wait(P),
    /// The phase continues in the next turn, because the byte budget of this turn is used up.
    Yield(P),
    /// The phase continues at once.
    Go(P),
    Reached(Reached<N>),
}

#[derive(Debug)]
pub(super) enum Reached<N: Net> {
    /// The connection must be closed at once.
    End(CloseReason),
    /// The bytes and FIN must be sent to the client before the connection is closed.
    Close(CloseReason, HalfPipe<Lent>),
    /// A client whose PROXY header has been read, or from which none is expected.
    Client(Rc<ListenerState>),
    /// A client that does not start with TLS.
    Cleartext(Rc<ListenerState>),
    /// A routing decision for a whole ClientHello, which is in the worker's buffers.
    Hello(Box<HelloDecision<N>>),
    /// A client that needs a server, possibly with a slot.
    Pending(Pending, Option<ServerSlot>),
    /// A client for which no server is in service, or whose connects failed.
    NoServer(Pending),
    /// A client at the start of a plaintext dialog, with a server if the server speaks first.
    Dialog(Rc<ListenerState>, Protocol, Option<Box<Connected<N>>>),
    /// A client that requested TLS in plaintext. Its ClientHello must offer the given ALPN
    /// protocol, if any.
    Upgrade(
        Rc<ListenerState>,
        Option<Box<Connected<N>>>,
        Option<&'static [u8]>,
    ),
    /// A PostgreSQL client whose cancel request was queued.
    Cancel(Awaited<CloseReason>),
    Joined(Joined<N>),
}

/// A client with its server, ready to relay.
#[derive(Debug)]
pub(super) struct Joined<N: Net> {
    /// TLS with the client; `None` if its bytes are relayed unchanged.
    pub(super) client_tls: Option<Engine>,
    pub(super) server: Connected<N>,
    pub(super) learner: Option<Box<Learner>>,
    /// `true` if the client has sent data and expects a response.
    pub(super) asks: bool,
}

impl<P, N: Net> Advance<P, N> {
    pub(super) fn end(reason: CloseReason) -> Self {
        Self::Reached(Reached::End(reason))
    }

    pub(super) fn close(reason: CloseReason, last: HalfPipe<Lent>) -> Self {
        Self::Reached(Reached::Close(reason, last))
    }

    pub(super) fn map<Q>(self, into: impl FnOnce(P) -> Q) -> Advance<Q, N> {
        match self {
            Self::Wait(phase) => Advance::Wait(into(phase)),
            Self::Yield(phase) => Advance::Yield(into(phase)),
            Self::Go(phase) => Advance::Go(into(phase)),
            Self::Reached(reached) => Advance::Reached(reached),
        }
    }
}

impl<N: Net> Reached<N> {
    pub(super) fn no_handshake(reason: CloseReason, cx: &Context<'_, '_, N>) -> Self {
        cx.turn.counters.handshakes_ended.add(1);
        Self::End(reason)
    }

    /// Ends a failed handshake after sending the given last bytes to the client.
    pub(super) fn no_handshake_but(
        reason: CloseReason,
        last: HalfPipe<Lent>,
        cx: &Context<'_, '_, N>,
    ) -> Self {
        cx.turn.counters.handshakes_ended.add(1);
        Self::Close(reason, last)
    }

    /// Logs and counts a rejected handshake, and answers or resets the client.
    pub(super) fn refused(refusal: HandshakeRefusal, cx: &mut Context<'_, '_, N>) -> Self {
        let reason = refusal.reason;
        cx.note(reason, &refusal.detail);
        match refusal.answer {
            Some(answer) => Self::no_handshake_but(reason, answer.into(), cx),
            None => {
                cx.core.client.socket.reset_on_close();
                Self::no_handshake(reason, cx)
            }
        }
    }

    /// Ends a handshake that timed out, and logs it.
    pub(super) fn late_handshake(reason: CloseReason, cx: &mut Context<'_, '_, N>) -> Self {
        let detail = format!("{} bytes received", cx.core.client.traffic.received);
        cx.note(reason, &detail);
        Self::no_handshake(reason, cx)
    }

    /// Ends a handshake whose client has closed the connection.
    pub(super) fn abandoned(cx: &mut Context<'_, '_, N>) -> Self {
        let reason = cx.core.left_early();
        if reason != CloseReason::HealthCheck {
            cx.note(reason, "");
        }
        Self::no_handshake(reason, cx)
    }

    /// Requests a server for a client. The PROXY header and the client's data so far are stored for
    /// that server.
    pub(super) fn pending(
        mut pending: Pending,
        said: EarlyBytes<'_>,
        cx: &mut Context<'_, '_, N>,
    ) -> Self {
        match pending.introduce(said, cx) {
            Ok(()) => Self::Pending(pending, None),
            Err(_) => Self::Close(CloseReason::Internal, pending.to_client),
        }
    }
}
