//! The results of phases. `mod.rs` alone makes the next phase of them.

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
use crate::backend::cancel::CancelOutcome;
use crate::backend::slot::ServerSlot;
use crate::pipes::Lent;
use crate::socket::StreamSocket;
use becket_proto::close_reason::CloseReason;
use becket_tls::engine::Engine;

/// How far a phase `P` came.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "it lives for one call; a box would be an allocation for each phase"
)]
pub(super) enum Advance<P, N: Net> {
    /// To be advanced at the next readiness or at the deadline.
    Wait(P),
    /// To be advanced again in the next turn: its budget is spent.
    Yield(P),
    /// To be advanced at once.
    Go(P),
    /// The phase is over.
    Reached(Reached<N>),
}

/// The end of a phase.
#[derive(Debug)]
pub(super) enum Reached<N: Net> {
    /// Nothing is left to do.
    End(CloseReason),
    /// The last bytes for the client, and FIN after them.
    Close(CloseReason, HalfPipe<Lent>),
    /// A client that needs no PROXY header, or has sent one.
    Client(Rc<ListenerState>),
    /// A client that does not begin with TLS.
    Cleartext(Rc<ListenerState>),
    /// A whole hello, in the worker's buffers, that is answered here.
    Hello(Box<HelloDecision<N>>),
    /// A client that needs a server, perhaps with a slot of one.
    Pending(Pending, Option<ServerSlot>),
    /// A client for which no server is left.
    NoServer(Pending),
    /// A client that has still to ask for TLS, with a server if that speaks first.
    Dialog(Rc<ListenerState>, Protocol, Option<Box<Connected<N>>>),
    /// A request for TLS in the clear. The client must offer the protocol by ALPN, if there is one.
    Upgrade(
        Rc<ListenerState>,
        Option<Box<Connected<N>>>,
        Option<&'static [u8]>,
    ),
    /// A request to cancel a query of another connection.
    Cancel(CancelOutcome),
    /// A client and its server.
    Joined(Joined<N>),
}

/// A client with its server, ready to be relayed.
#[derive(Debug)]
pub(super) struct Joined<N: Net> {
    /// Traffic keys towards the client; `None` if its bytes pass as they are.
    pub(super) client_tls: Option<Engine>,
    pub(super) server: Connected<N>,
    pub(super) learner: Option<Box<Learner>>,
    /// The client sent something: an answer is due.
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
    /// A handshake that leads to nothing.
    pub(super) fn no_handshake(reason: CloseReason, cx: &Context<'_, '_, N>) -> Self {
        cx.turn.counters.handshakes_ended.add(1);
        Self::End(reason)
    }

    /// A handshake that leads to nothing, with last bytes for the client.
    pub(super) fn no_handshake_but(
        reason: CloseReason,
        last: HalfPipe<Lent>,
        cx: &Context<'_, '_, N>,
    ) -> Self {
        cx.turn.counters.handshakes_ended.add(1);
        Self::Close(reason, last)
    }

    /// A handshake that is refused: writes the line of the log, counts, and answers the client.
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

    /// A handshake that took too long.
    pub(super) fn late_handshake(reason: CloseReason, cx: &mut Context<'_, '_, N>) -> Self {
        let detail = format!("{} bytes received", cx.core.client.traffic.received);
        cx.note(reason, &detail);
        Self::no_handshake(reason, cx)
    }

    /// The client has left before it had keys.
    pub(super) fn abandoned(cx: &mut Context<'_, '_, N>) -> Self {
        let reason = cx.core.left_early();
        if reason != CloseReason::HealthCheck {
            cx.note(reason, "");
        }
        Self::no_handshake(reason, cx)
    }

    /// A client that needs a server. What the client has sent goes there first, behind the PROXY header.
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
