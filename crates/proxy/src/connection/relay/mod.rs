//! Two half pipes: client to server and back, until both have ended.
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

mod half;
mod kernel;

use std::mem;
use std::time::Duration;

use becket_config::process::Limits;
use becket_proto::half_pipe::{HalfPipe, Next as Step};
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;

pub(super) use self::half::Half;
use super::closing::Closing;
use super::handshake::TICKETS_WAIT;
use super::passing::Learner;
use super::{Context, Core, Net, Next, Phase, Said, Side};
use crate::backend::slot::Slot;
use crate::connection::kernel_tls::Tls;
use crate::leg::Leg;
use crate::metrics::Counters;
use crate::pipes::Lent;
use crate::socket::Socket;
use becket_proto::close_reason::CloseReason;
use becket_tls::engine::Engine;
use becket_tls::scratch::{Buffer, Scratch};

/// Client and server, joined.
#[derive(Debug)]
pub(super) struct Relaying<N: Net> {
    /// Traffic keys towards the client; `None` where its bytes pass as they are, or until it has them.
    pub(super) client_tls: Option<Tls<UnbufferedServerConnection>>,
    /// On the heap: most servers are spoken to in plain TCP, and then there is no room kept.
    pub(super) server_tls: Option<Box<Tls<UnbufferedClientConnection>>>,
    pub(super) server: Leg<N::Server>,
    /// Given back after the socket is closed.
    pub(super) slot: Slot,
    /// Watches for the session that the server makes, where TLS passes.
    pub(super) learner: Option<Box<Learner>>,
    pub(super) to_server: HalfPipe<Lent>,
    pub(super) to_client: HalfPipe<Lent>,
    /// The client spoke last, as far as the server has been told: an answer is due.
    pub(super) asks: bool,
    /// The client ended without close_notify while the server could still have sent.
    pub(super) truncated: bool,
}

/// What a turn has done.
struct Done {
    moved: bool,
    /// More could be read, but not in this turn.
    spent: bool,
}

impl<N: Net> Relaying<N> {
    /// Starts the idle clock.
    pub(super) fn begin(self, cx: &mut Context<'_, '_, N>) -> Next<N> {
        cx.core.deadline = self.deadline(cx);
        Next::Go(Phase::Relaying(self))
    }

    /// Goes on with a client that has keys now, and what is left of its handshake's last flight.
    pub(super) fn admit(
        mut self,
        (mut engine, flight): (Engine, HalfPipe<Lent>),
        said: Said<'_>,
        out: &mut Buffer,
        cx: &mut Context<'_, '_, N>,
    ) -> Next<N> {
        self.asks = !said.bytes.is_empty();
        out.clear();
        let server_tls = self.server_tls.as_deref_mut();
        let (bytes, sealed) = match server_tls.and_then(Tls::engine_mut) {
            None => (said.bytes, Ok(())),
            Some(server) => {
                let sealed = server.seal(said.bytes, said.ended, out);
                (out.filled(), sealed)
            }
        };
        // It is, where the server takes no more.
        if !self.to_server.is_finished() {
            self.to_server.offer(bytes);
            if said.ended {
                self.to_server.end_source();
            }
        }
        let server_ended = mem::replace(&mut self.to_client, flight).source_ended();
        if server_ended {
            self.to_client.end_source();
        }
        // The server may have said all that it will say before the client came to hear it.
        out.clear();
        let told = engine.seal(&[], server_ended, out);
        self.to_client.offer(out.filled());
        if sealed.and(told).is_err() {
            return Next::End(CloseReason::Internal);
        }
        self.client_tls = Some(Tls::Own(engine));
        self.begin(cx)
    }

    /// Moves what can be moved now.
    pub(super) fn advance(mut self, cx: &mut Context<'_, '_, N>, scratch: &mut Scratch) -> Next<N> {
        if cx.core.client.ready.failed {
            return self.abort(CloseReason::ClientReset, cx);
        }
        let done = match self.relay(cx, scratch) {
            Ok(done) => done,
            Err(reason) => return self.abort(reason, cx),
        };
        if self.to_client.is_finished() && self.to_server.is_finished() {
            return self.complete(cx);
        }
        if done.moved {
            let deadline = self.deadline(cx);
            // What the client says meanwhile does not keep its tickets.
            cx.core.deadline = if self.to_client.is_holding() {
                deadline.min(cx.core.deadline)
            } else {
                deadline
            };
        }
        if done.spent {
            return Next::Yield(Phase::Relaying(self));
        }
        Next::Wait(Phase::Relaying(self))
    }

    fn relay(
        &mut self,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Result<Done, CloseReason> {
        let unseen = self.learner.is_none();
        let (slot, learner) = (&self.slot, &mut self.learner);
        let mut learn = |plain: &[u8]| {
            if let Some(watching) = learner
                && !watching.look(plain, slot.server(), cx.turn.now.mono)
            {
                *learner = None;
            }
        };
        let left = cx.turn.limits.bytes_per_turn;
        let mut client = Half::<N::Client, UnbufferedServerConnection> {
            side: Side::Client,
            leg: &mut cx.core.client,
            tls: self.client_tls.as_mut(),
            pipe: &mut self.to_client,
            counters: cx.turn.counters,
            limits: cx.turn.limits,
            pipes: None,
            left,
            spoke: false,
            truncated: self.truncated,
        };
        let mut server = Half {
            side: Side::Server,
            leg: &mut self.server,
            tls: self.server_tls.as_deref_mut(),
            pipe: &mut self.to_server,
            counters: cx.turn.counters,
            limits: cx.turn.limits,
            pipes: None,
            left,
            spoke: false,
            truncated: false,
        };
        if client.is_plain() && server.is_plain() {
            client.pipes = Some(cx.turn.pipes);
            server.pipes = client.pipes.filter(|_| unseen);
        }
        client.note_readiness(server.pipe);
        server.note_readiness(client.pipe);
        let mut moved = false;
        loop {
            if server.step(&mut client, scratch, &mut learn)? {
                if mem::take(&mut server.spoke) && !server.pipe.waits() {
                    self.asks = false;
                }
            } else if client.step(&mut server, scratch, |_| ())? {
                self.asks |= mem::take(&mut client.spoke);
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

    /// The server's side alone, and the direction that begins there, while the client has no keys.
    pub(super) fn server_half<'a>(
        &'a mut self,
        counters: &'a Counters,
        limits: &'a Limits,
    ) -> (
        Half<'a, N::Server, UnbufferedClientConnection>,
        &'a mut HalfPipe<Lent>,
    ) {
        let half = Half {
            side: Side::Server,
            leg: &mut self.server,
            tls: self.server_tls.as_deref_mut(),
            pipe: &mut self.to_server,
            counters,
            limits,
            pipes: None,
            left: 0,
            spoke: false,
            truncated: false,
        };
        (half, &mut self.to_client)
    }

    /// The server went out of service, and its connections are to end.
    pub(super) fn leave_server(self, cx: &mut Context<'_, '_, N>) -> Next<N> {
        self.abort(CloseReason::ServerDown, cx)
    }

    pub(super) fn expire(mut self, cx: &mut Context<'_, '_, N>) -> Next<N> {
        if self.to_client.is_holding() {
            self.to_client.release();
            return self.begin(cx);
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
        self.abort(reason, cx)
    }

    /// The process stops: neither side is to take what it got for the whole.
    pub(super) fn cut_off(&mut self, core: &mut Core<N>) {
        if core.fin_is_an_end && !self.to_client.is_finished() {
            core.client.socket.reset_on_close();
        }
        if !self.to_server.is_finished() {
            self.server.socket.reset_on_close();
        }
    }

    fn is_half_closed(&self) -> bool {
        self.to_client.source_ended() || self.to_server.source_ended()
    }

    /// No answer is due: nothing was asked since the server last spoke, and nothing waits to be sent.
    fn is_at_rest(&self) -> bool {
        !self.asks && !self.to_client.waits() && !self.to_server.waits()
    }

    /// Nobody waits for anything, and nothing is half said.
    pub(super) fn rests(&self) -> bool {
        self.is_at_rest() && !self.is_half_closed() && !self.is_unfinished()
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
        if self.to_client.is_holding() {
            return idle.min(cx.turn.now.running + TICKETS_WAIT);
        }
        idle
    }

    /// Both directions have ended.
    fn complete(self, cx: &mut Context<'_, '_, N>) -> Next<N> {
        let reason = if self.truncated {
            CloseReason::ClientTruncated
        } else {
            CloseReason::Finished
        };
        if self.to_server.source_ended() {
            return Next::End(reason);
        }
        // The server took no more, but the client may still be sending.
        Closing::begin(reason, HalfPipe::default(), cx)
    }

    /// One side failed: the other must not take what it got for the whole.
    pub(super) fn abort(mut self, reason: CloseReason, cx: &mut Context<'_, '_, N>) -> Next<N> {
        // A server whose TLS is broken is sent the alert that says so, and a reset would overtake it.
        let told = matches!(
            reason,
            CloseReason::ServerTlsError | CloseReason::ServerRecordsWithoutData
        );
        if !self.to_server.is_finished() && !told {
            self.server.socket.reset_on_close();
        }
        match reason {
            CloseReason::ClientReset => Next::End(reason),
            // What waits is sent, and FIN; close_notify is not.
            _ => Closing::begin(reason, mem::take(&mut self.to_client), cx),
        }
    }
}
