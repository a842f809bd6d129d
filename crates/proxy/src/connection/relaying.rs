//! Relays data in both directions until both have ended or the connection is aborted.
//!
//! Each direction is a [`HalfPipe`], which determines the next step. Each side is a [`Half`], which
//! executes the step: receive, decrypt, encrypt, send. A leg may be without TLS. Data passes from
//! the worker's scratch buffer directly to the socket; only bytes that the socket does not accept
//! are copied and stored. One direction relays at most `limits.bytes-per-turn` per turn, so that
//! bulk transfers do not delay other connections.
//!
//! The relay preserves the difference between a complete and a truncated stream (RFC 8446, section
//! 6.1). The *end* of a stream is close_notify with TLS, and FIN without TLS:
//! * the server ends: the last data, the end and FIN are sent to the client;
//! * the server resets, or sends FIN without close_notify: the received data is sent to the client
//!   without an end. A client without TLS is reset, because FIN would be an end;
//! * the client ends: the end and FIN are sent to the server, and its response is still relayed;
//! * the client sends FIN without close_notify: only FIN is sent to the server, and the connection
//!   is counted as truncated;
//! * the client resets or violates TLS: the server is reset.

use std::mem;
use std::time::Duration;

use becket_proto::half_pipe::{HalfPipe, Next as Step};
use rustls::server::UnbufferedServerConnection;

use super::connected::Connected;
use super::context::{Context, Core, Net, Side, TICKETS_WAIT};
use super::half::{Half, Tls};
use super::learner::Learner;
use super::reached::{Advance, Joined, Reached};
use crate::pipes::Lent;
use crate::socket::StreamSocket;
use becket_proto::close_reason::CloseReason;
use becket_tls::engine::Engine;
use becket_tls::scratch::Scratch;

#[derive(Debug)]
pub(super) struct Relaying<N: Net> {
    /// TLS with the client; `None` if its bytes are relayed unchanged.
    client_tls: Option<Tls<UnbufferedServerConnection>>,
    pub(super) server: Connected<N>,
    /// Learns the session ID of the server, if TLS is passed through.
    learner: Option<Box<Learner>>,
    /// The side that sent data last, if any. After data from the client, a response is expected.
    spoke_last: Option<Side>,
    /// `true` if the client sent FIN without close_notify while the server could still send.
    truncated: bool,
}

struct Done {
    moved: bool,
    /// `true` if the byte budget of this turn is used up while more data may be readable.
    spent: bool,
}

impl<N: Net> Relaying<N> {
    /// Creates the relay and sets the idle timeout.
    pub(super) fn new(joined: Joined<N>, cx: &mut Context<'_, '_, N>) -> Self {
        let relaying = Self {
            client_tls: joined.client_tls.map(Tls::Own),
            server: joined.server,
            learner: joined.learner,
            spoke_last: joined.asks.then_some(Side::Client),
            truncated: false,
        };
        cx.core.deadline = relaying.deadline(cx);
        relaying
    }

    /// Relays the available data. Takes `&mut self`, unlike most phases, because almost all steps
    /// are steps of this phase, and moving it in memory for each of them would cost time.
    pub(super) fn advance(
        &mut self,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Advance<(), N> {
        if cx.core.client.ready.failed {
            return Advance::Reached(self.abort(CloseReason::ClientReset));
        }
        let done = match self.relay(cx, scratch) {
            Ok(done) => done,
            Err(reason) => return Advance::Reached(self.abort(reason)),
        };
        let (to_client, to_server) = (&self.server.to_client, &self.server.to_server);
        if to_client.is_finished() && to_server.is_finished() {
            return Advance::Reached(self.complete());
        }
        if done.moved {
            let deadline = self.deadline(cx);
            // While tickets are held, data from the client must not extend the deadline that
            // releases them.
            cx.core.deadline = if self.server.to_client.is_holding() {
                deadline.min(cx.core.deadline)
            } else {
                deadline
            };
        }
        if done.spent {
            return Advance::Yield(());
        }
        Advance::Wait(())
    }

    fn relay(
        &mut self,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Result<Done, CloseReason> {
        let unseen = self.learner.is_none();
        let Connected {
            leg,
            tls,
            slot,
            to_server,
            to_client,
        } = &mut self.server;
        let learner = &mut self.learner;
        let mut learn = |plain: &[u8]| {
            if let Some(watching) = learner
                && !watching.look(plain, slot.server(), cx.turn.now.mono)
            {
                *learner = None;
            }
        };
        let shared = (cx.turn.counters, cx.turn.limits);
        let client_leg = (&mut cx.core.client, self.client_tls.as_mut());
        let mut client = Half::new(Side::Client, client_leg, to_client, shared);
        let mut server = Half::new(Side::Server, (leg, tls.as_deref_mut()), to_server, shared);
        client.left = cx.turn.limits.bytes_per_turn;
        server.left = client.left;
        client.truncated = self.truncated;
        if client.is_plain() && server.is_plain() {
            client.pipes = Some(cx.turn.pipes);
            server.pipes = client.pipes.filter(|_| unseen);
        }
        client.note_readiness(server.pipe);
        server.note_readiness(client.pipe);
        // TLS leaves rustls rarely, so this is checked once per turn instead of at each step.
        let moves = client.note_bulk(0) | server.note_bulk(0);
        let mut moved = false;
        loop {
            if moves {
                client.both_leave_rustls(&mut server)?;
            }
            if server.step(&mut client, scratch, &mut learn)? {
                if mem::take(&mut server.spoke) && !server.pipe.waits() {
                    self.spoke_last = Some(Side::Server);
                }
            } else if client.step(&mut server, scratch, |_| ())? {
                if mem::take(&mut client.spoke) {
                    self.spoke_last = Some(Side::Client);
                }
            } else {
                break;
            }
            moved = true;
        }
        self.truncated |= client.truncated;
        let spent = |pipe: &HalfPipe<Lent>, left| pipe.next() == Step::Read && left == 0;
        let spent = spent(client.pipe, server.left) || spent(server.pipe, client.left);
        Ok(Done { moved, spent })
    }

    pub(super) fn expire(&mut self, cx: &mut Context<'_, '_, N>) -> Advance<(), N> {
        if self.server.to_client.is_holding() {
            self.server.to_client.release();
            cx.core.deadline = self.deadline(cx);
            return Advance::Go(());
        }
        let reason = if self.is_unfinished() {
            CloseReason::HandshakeTimeout
        } else if self.is_half_closed() {
            CloseReason::HalfClosedTimeout
        } else if cx.turn.draining
            && self.is_at_rest()
            && cx.turn.timeouts.drain_idle < cx.turn.timeouts.idle
        {
            CloseReason::Drained
        } else {
            CloseReason::IdleTimeout
        };
        Advance::Reached(self.abort(reason))
    }

    /// Stops the relay when the process exits. Resets each side that would mistake FIN for the end
    /// of complete data.
    pub(super) fn cut_off(&mut self, core: &mut Core<N>) {
        if core.fin_is_an_end && !self.server.to_client.is_finished() {
            core.client.socket.reset_on_close();
        }
        if !self.server.to_server.is_finished() {
            self.server.leg.socket.reset_on_close();
        }
    }

    fn is_half_closed(&self) -> bool {
        self.server.to_client.source_ended() || self.server.to_server.source_ended()
    }

    /// Returns `true` if no response is expected and no bytes are pending.
    fn is_at_rest(&self) -> bool {
        self.spoke_last != Some(Side::Client)
            && !self.server.to_client.waits()
            && !self.server.to_server.waits()
    }

    /// Returns `true` if the relay is idle: no response is expected, both sides are open, and the
    /// handshake is complete.
    pub(super) fn rests(&self) -> bool {
        self.is_at_rest() && !self.is_half_closed() && !self.is_unfinished()
    }

    /// Returns `true` if the connection is idle after a response and no partial record was
    /// received. With kernel TLS, partial records are not visible, so the result is `false`.
    pub(super) fn rests_answered(&self) -> bool {
        let (client, server) = (self.client_tls.as_ref(), self.server.tls.as_deref());
        self.spoke_last == Some(Side::Server)
            && self.rests()
            && client.is_none_or(Tls::is_without_part)
            && server.is_none_or(Tls::is_without_part)
    }

    /// Takes the records of both legs from rustls; see [`Tls::leave_rustls`].
    pub(super) fn leave_rustls(&mut self) -> Result<bool, CloseReason> {
        let client = self
            .client_tls
            .as_mut()
            .map_or(Ok(false), Tls::leave_rustls)?;
        let server = self.server.tls.as_mut();
        Ok(server.map_or(Ok(false), |tls| tls.leave_rustls())? || client)
    }

    /// Returns `true` if the client has not finished its handshake, which may happen with early
    /// data.
    fn is_unfinished(&self) -> bool {
        let engine = self.client_tls.as_ref().and_then(Tls::engine);
        engine.is_some_and(Engine::is_unfinished)
    }

    /// Returns the time at which [`Self::expire`] must be called if no more data arrives. An
    /// incomplete handshake is also limited by the handshake timeout.
    pub(super) fn deadline(&self, cx: &Context<'_, '_, N>) -> Duration {
        let patience = if self.is_half_closed() {
            cx.turn.timeouts.half_closed
        } else if cx.turn.draining && self.is_at_rest() {
            cx.turn.timeouts.idle.min(cx.turn.timeouts.drain_idle)
        } else {
            cx.turn.timeouts.idle
        };
        let idle = cx.turn.now.running + patience;
        if self.is_unfinished() {
            return idle.min(cx.core.handshake_until);
        }
        if self.server.to_client.is_holding() {
            return idle.min(cx.turn.now.running + TICKETS_WAIT);
        }
        idle
    }

    fn complete(&self) -> Reached<N> {
        let reason = if self.truncated {
            CloseReason::ClientTruncated
        } else {
            CloseReason::Finished
        };
        if self.server.to_server.source_ended() {
            return Reached::End(reason);
        }
        // The server receives no more data. `Closing` discards data that the client still sends.
        Reached::Close(reason, HalfPipe::default())
    }

    /// Aborts the relay so that neither side takes the data so far for complete.
    pub(super) fn abort(&mut self, reason: CloseReason) -> Reached<N> {
        // The server violated TLS, so becket has sent an alert, which a reset could overtake.
        let told = matches!(
            reason,
            CloseReason::ServerTlsError | CloseReason::ServerRecordsWithoutData
        );
        if !self.server.to_server.is_finished() && !told {
            self.server.leg.socket.reset_on_close();
        }
        match reason {
            CloseReason::ClientReset => Reached::End(reason),
            // `Closing` sends the pending bytes and FIN, but no close_notify.
            _ => Reached::Close(reason, mem::take(&mut self.server.to_client)),
        }
    }
}
