//! Two half pipes: client to server and back, until both have ended, or one is cut off.
//!
//! Each direction is a [`HalfPipe`], which decides what to do next; a [`Half`] for each side does it: receive,
//! open, seal, send. Either leg may have TLS or not: what is opened is what came where a leg has
//! none, and what is sealed is what is sent. Bytes go straight from scratch buffer to socket; only
//! what a socket does not take is copied and kept. One direction moves at most
//! `limits.bytes-per-turn` per turn, so that a bulk transfer does not starve its neighbours.
//!
//! How ends are passed on, so that truncation is never hidden (RFC 8446, section 6.1). An *end* is
//! close_notify where there is TLS, else FIN:
//! * the server ends: the last data, the end and FIN go to the client;
//! * the server resets, or sends FIN where an end was due: what was received goes to the client,
//!   without an end. A client without TLS is reset, since FIN would be one;
//! * the client ends: the end and FIN go to the server, and its answer still comes back;
//! * the client sends FIN where close_notify was due: FIN alone goes to the server. It is counted;
//! * the client resets or breaks TLS: the server is reset.

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

/// Client and server, joined.
#[derive(Debug)]
pub(super) struct Relaying<N: Net> {
    /// Traffic keys towards the client; `None` if its bytes pass as they are.
    client_tls: Option<Tls<UnbufferedServerConnection>>,
    pub(super) server: Connected<N>,
    /// Watches for the session that the server makes, where TLS passes.
    learner: Option<Box<Learner>>,
    /// The side that spoke last, if any did. If it is the client, as far as the server was sent that, an answer is due.
    spoke_last: Option<Side>,
    /// The client ended without close_notify while the server could still have sent.
    truncated: bool,
}

struct Done {
    moved: bool,
    /// More could be read, but not in this turn.
    spent: bool,
}

impl<N: Net> Relaying<N> {
    /// Starts the idle clock.
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

    /// Moves what can be moved now. The phase stays where it is: there are many, and they live long.
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
            // Data that the client sends meanwhile does not keep its tickets.
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
        // Decided once: where no leg is about to move, a step asks nothing about the kernel.
        let moves = client.note_bulk(0) | server.note_bulk(0);
        let mut moved = false;
        loop {
            if moves {
                client.move_to_kernel(&mut server)?;
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

    /// The process stops: neither side is to take what it got for the whole.
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

    /// No answer is due: nothing was asked since the server last spoke, and nothing waits to be sent.
    fn is_at_rest(&self) -> bool {
        self.spoke_last != Some(Side::Client)
            && !self.server.to_client.waits()
            && !self.server.to_server.waits()
    }

    /// Neither side waits for anything, and no message is under way.
    pub(super) fn rests(&self) -> bool {
        self.is_at_rest() && !self.is_half_closed() && !self.is_unfinished()
    }

    /// Returns whether the connection rests after an answer, and no part of a next record is here. A leg whose TLS the kernel has may have
    /// a part that only the kernel sees.
    pub(super) fn rests_answered(&self) -> bool {
        let (client, server) = (self.client_tls.as_ref(), self.server.tls.as_deref());
        self.spoke_last == Some(Side::Server)
            && self.rests()
            && client.is_none_or(Tls::is_without_part)
            && server.is_none_or(Tls::is_without_part)
    }

    /// The client is served, and has still to finish its handshake.
    fn is_unfinished(&self) -> bool {
        let engine = self.client_tls.as_ref().and_then(Tls::engine);
        engine.is_some_and(Engine::is_unfinished)
    }

    /// When to give up if nothing more moves. A client whose early data is being answered has no
    /// more time for its handshake than any other.
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

    /// Both directions have ended.
    fn complete(&self) -> Reached<N> {
        let reason = if self.truncated {
            CloseReason::ClientTruncated
        } else {
            CloseReason::Finished
        };
        if self.server.to_server.source_ended() {
            return Reached::End(reason);
        }
        // The server took no more, but the client may still be sending.
        Reached::Close(reason, HalfPipe::default())
    }

    /// One side failed: the other must not take what it got for the whole.
    pub(super) fn abort(&mut self, reason: CloseReason) -> Reached<N> {
        // A server whose TLS is broken is sent the alert that says so, and a reset would overtake it.
        let told = matches!(
            reason,
            CloseReason::ServerTlsError | CloseReason::ServerRecordsWithoutData
        );
        if !self.server.to_server.is_finished() && !told {
            self.server.leg.socket.reset_on_close();
        }
        match reason {
            CloseReason::ClientReset => Reached::End(reason),
            // The waiting bytes are sent, and FIN; close_notify is not.
            _ => Reached::Close(reason, mem::take(&mut self.server.to_client)),
        }
    }
}
