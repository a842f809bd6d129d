//! Two half pipes: client to server and back, until both have ended.
//!
//! Each direction is a [`HalfPipe`], which decides what to do next; [`to_client`] and [`to_server`] do it: receive,
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

mod to_client;
mod to_server;

use std::sync::Arc;
use std::time::Duration;

use becket_proto::half_pipe::{HalfPipe, Next as Step};
use rustls::client::UnbufferedClientConnection;

use super::closing::Closing;
use super::peeking::Learner;
use super::{Core, Net, Next, Phase, Turn};
use crate::backend::server_state::ServerState;
use crate::backend::slot::Slot;
use crate::close_reason::CloseReason;
use crate::leg::{Leg, Ready};
use crate::socket::Socket;
use crate::tls::engine::{Engine, is_without_data};

/// Client and server, joined.
#[derive(Debug)]
pub struct Relaying<N: Net> {
    client_tls: Option<Engine>,
    /// On the heap: most servers are spoken to in plain TCP, and then there is no room kept.
    server_tls: Option<Box<Engine<UnbufferedClientConnection>>>,
    server: Leg<N::Server>,
    /// Given back after the socket is closed.
    slot: Slot,
    learner: Option<Box<Learner>>,
    to_server: HalfPipe,
    to_client: HalfPipe,
    /// The client ended without close_notify while the server could still have sent.
    truncated: bool,
}

/// What a relay begins with.
#[derive(Debug)]
pub struct Joined<N: Net> {
    /// Traffic keys towards the client; `None` where its bytes pass as they are.
    pub client_tls: Option<Engine>,
    /// Traffic keys towards the server, likewise.
    pub server_tls: Option<Box<Engine<UnbufferedClientConnection>>>,
    /// Connected.
    pub server: Leg<N::Server>,
    /// What waits for the server already, sealed where there is TLS.
    pub to_server: HalfPipe,
    /// What waits for the client already, sealed where there is TLS.
    pub to_client: HalfPipe,
    /// Of the server.
    pub slot: Slot,
    /// Watches for the session that the server makes, where TLS passes.
    pub learner: Option<Box<Learner>>,
}

impl<N: Net> Joined<N> {
    /// Whether this is the server that was joined.
    pub fn is_at(&self, server: &Arc<ServerState>) -> bool {
        Arc::ptr_eq(self.slot.server(), server)
    }
}

/// What may still be moved in this turn, and whether anything was.
struct Load {
    to_client: usize,
    to_server: usize,
    moved: bool,
}

impl<N: Net> Relaying<N> {
    /// Joins both sides.
    pub fn new(joined: Joined<N>) -> Self {
        Self {
            client_tls: joined.client_tls,
            server_tls: joined.server_tls,
            server: joined.server,
            to_server: joined.to_server,
            to_client: joined.to_client,
            slot: joined.slot,
            learner: joined.learner,
            truncated: false,
        }
    }

    /// Starts the idle clock.
    pub fn begin(self, core: &mut Core<N>, turn: &Turn<'_, N>) -> Next<N> {
        core.deadline = self.deadline(core, turn);
        Next::Go(Phase::Relaying(self))
    }

    /// Takes note of the server socket's readiness.
    pub fn handle_ready(&mut self, ready: Ready) {
        self.server.ready.add(ready);
    }

    /// Moves what can be moved now.
    pub fn advance(mut self, core: &mut Core<N>, turn: &mut Turn<'_, N>) -> Next<N> {
        if core.client.ready.failed {
            return self.abort(CloseReason::ClientReset, core, turn);
        }
        self.pass_readiness(core);
        let mut load = Load {
            to_client: turn.limits.bytes_per_turn,
            to_server: turn.limits.bytes_per_turn,
            moved: false,
        };
        loop {
            match self.step(&mut load, core, turn) {
                Ok(true) => load.moved = true,
                Ok(false) => break,
                Err(reason) => return self.abort(reason, core, turn),
            }
        }
        if self.to_client.is_finished() && self.to_server.is_finished() {
            return self.complete(core, turn);
        }
        if load.moved {
            core.deadline = self.deadline(core, turn);
        }
        let spent = |pipe: &HalfPipe, left| pipe.next() == Step::Read && left == 0;
        if spent(&self.to_client, load.to_client) || spent(&self.to_server, load.to_server) {
            return Next::Yield(Phase::Relaying(self));
        }
        Next::Wait(Phase::Relaying(self))
    }

    /// Whether this is the server that is relayed to.
    pub fn is_at(&self, server: &Arc<ServerState>) -> bool {
        Arc::ptr_eq(self.slot.server(), server)
    }

    /// The server went out of service, and its connections are to end.
    pub fn leave_server(self, core: &mut Core<N>, turn: &mut Turn<'_, N>) -> Next<N> {
        self.abort(CloseReason::ServerDown, core, turn)
    }

    /// Nothing moved for too long.
    pub fn expire(self, core: &mut Core<N>, turn: &mut Turn<'_, N>) -> Next<N> {
        let reason = if self.is_unfinished() {
            CloseReason::HandshakeTimeout
        } else if self.is_half_closed() {
            CloseReason::HalfClosedTimeout
        } else {
            CloseReason::IdleTimeout
        };
        self.abort(reason, core, turn)
    }

    /// The process stops: neither side is to take what it got for the whole.
    pub fn cut_off(&mut self, core: &mut Core<N>) {
        if core.fin_is_an_end && !self.to_client.is_finished() {
            core.client.socket.reset_on_close();
        }
        if !self.to_server.is_finished() {
            self.server.socket.reset_on_close();
        }
    }

    fn pass_readiness(&mut self, core: &Core<N>) {
        let (client, server) = (core.client.ready, self.server.ready);
        let client_waits = self.client_tls.as_ref().is_some_and(Engine::waits);
        let server_waits = self.server_tls.as_ref().is_some_and(|tls| tls.waits());
        for (pipe, source, waits, sink) in [
            (&mut self.to_server, client, client_waits, server),
            (&mut self.to_client, server, server_waits, client),
        ] {
            if source.readable || source.ended || waits {
                pipe.handle_readable();
            }
            if sink.writable {
                pipe.handle_writable();
            }
        }
    }

    /// Does one thing in one direction. False when there is nothing to do in either.
    fn step(
        &mut self,
        load: &mut Load,
        core: &mut Core<N>,
        turn: &mut Turn<'_, N>,
    ) -> Result<bool, CloseReason> {
        match self.to_client.next() {
            Step::Read if load.to_client > 0 => {
                self.read_server(load, core, turn)?;
                return Ok(true);
            }
            Step::Write => {
                self.write_client(core, turn)?;
                return Ok(true);
            }
            Step::Finish => {
                // A close that follows at once sends FIN by itself.
                if !self.to_server.is_finished() {
                    core.client.socket.finish();
                }
                self.to_client.finish();
                return Ok(true);
            }
            Step::Read | Step::Wait | Step::Done => {}
        }
        match self.to_server.next() {
            Step::Read if load.to_server > 0 => self.read_client(load, core, turn)?,
            Step::Write => self.write_server(turn),
            Step::Finish => {
                if !self.to_client.is_finished() {
                    self.server.socket.finish();
                }
                self.to_server.finish();
            }
            Step::Read | Step::Wait | Step::Done => return Ok(false),
        }
        Ok(true)
    }

    fn is_half_closed(&self) -> bool {
        self.to_client.source_ended() || self.to_server.source_ended()
    }

    /// When to give up if nothing more moves. A client whose early data is being answered has no
    /// more time for its handshake than any other.
    fn deadline(&self, core: &Core<N>, turn: &Turn<'_, N>) -> Duration {
        let idle = turn.now.mono + self.patience(turn);
        if self.is_unfinished() {
            return idle.min(core.handshake_until);
        }
        idle
    }

    /// The client is served, and has still to finish its handshake.
    fn is_unfinished(&self) -> bool {
        self.client_tls.as_ref().is_some_and(Engine::is_unfinished)
    }

    fn patience(&self, turn: &Turn<'_, N>) -> Duration {
        if self.is_half_closed() {
            turn.timeouts.half_closed
        } else {
            turn.timeouts.idle
        }
    }

    /// Both directions have ended.
    fn complete(self, core: &mut Core<N>, turn: &Turn<'_, N>) -> Next<N> {
        let reason = if self.truncated {
            CloseReason::ClientTruncated
        } else {
            CloseReason::Finished
        };
        if self.to_server.source_ended() {
            return Next::End(reason);
        }
        // The server took no more, but the client may still be sending.
        Closing::begin(reason, Vec::new(), core, turn)
    }

    /// One side failed: the other must not take what it got for the whole.
    fn abort(mut self, reason: CloseReason, core: &mut Core<N>, turn: &Turn<'_, N>) -> Next<N> {
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
            _ => Closing::begin(reason, self.to_client.waiting().to_vec(), core, turn),
        }
    }
}

/// What a fault in a client's TLS is called.
fn client_fault(error: &rustls::Error) -> CloseReason {
    if is_without_data(error) {
        CloseReason::RecordsWithoutData
    } else {
        CloseReason::ClientTlsError
    }
}

/// What a fault in a server's TLS is called.
pub(super) fn server_fault(error: &rustls::Error) -> CloseReason {
    if is_without_data(error) {
        CloseReason::ServerRecordsWithoutData
    } else {
        CloseReason::ServerTlsError
    }
}
