//! Two half pipes: client to server and back, until both have ended.
//!
//! Each direction is a [`HalfPipe`], which decides what to do next; this file does it: receive,
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

use std::sync::Arc;
use std::time::Duration;

use becket_proto::half_pipe::{HalfPipe, Next as Step};

use rustls::client::UnbufferedClientConnection;

use super::closing::Closing;
use super::peeking::Learner;
use super::{Core, Net, Next, Phase, Turn};
use crate::backend::slot::Slot;
use crate::backend::state::ServerState;
use crate::close_reason::CloseReason;
use crate::leg::{Got, Leg, Ready};
use crate::metrics::Counters;
use crate::scratch::READ;
use crate::socket::{Fault, Socket};
use crate::tls::engine::Engine;

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
    /// A send found that the server had reset: what it sent before may still be read, but the
    /// end that follows is none.
    server_reset: bool,
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
            server_reset: false,
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

    fn pass_readiness(&mut self, core: &Core<N>) {
        let (client, server) = (core.client.ready, self.server.ready);
        for (pipe, source, sink) in [
            (&mut self.to_server, client, server),
            (&mut self.to_client, server, client),
        ] {
            if source.readable || source.ended {
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

    /// Server to client: receives up to four records' worth, opens, seals, sends once. When the
    /// server has ended, close_notify leaves with the last data.
    fn read_server(
        &mut self,
        load: &mut Load,
        core: &mut Core<N>,
        turn: &mut Turn<'_, N>,
    ) -> Result<(), CloseReason> {
        turn.scratch.clear();
        let taken = match self.server_tls {
            Some(_) => self.open_server(turn),
            None => self.drain_server(turn),
        };
        let scratch = &mut *turn.scratch;
        let plain = scratch.plain.filled();
        let came = plain.len().max(scratch.sealed_in.len());
        load.to_client = load.to_client.saturating_sub(came);
        if let Some(learner) = &mut self.learner
            && !learner.look(plain, self.slot.server(), turn.now.mono)
        {
            self.learner = None;
        }
        let bytes = match &mut self.client_tls {
            Some(engine) => {
                let end = self.to_client.source_ended();
                let sealed = engine.seal(plain, end, &mut scratch.sealed_out);
                sealed.map_err(|_| CloseReason::Internal)?;
                scratch.sealed_out.filled()
            }
            None => plain,
        };
        self.send_client(bytes, core, turn.counters)?;
        taken
    }

    /// Receives plaintext into `scratch.plain`.
    fn drain_server(&mut self, turn: &mut Turn<'_, N>) -> Result<(), CloseReason> {
        let buffer = &mut turn.scratch.plain;
        while buffer.len() < READ {
            let most = READ - buffer.len();
            let counter = &turn.counters.server_bytes_in;
            let got = self
                .server
                .receive(buffer, most, counter)
                .map_err(|_| CloseReason::ServerReset)?;
            if got == Got::End && self.server_reset {
                return Err(CloseReason::ServerReset);
            }
            if got == Got::End {
                self.to_client.end_source();
                return Ok(());
            }
            if !self.server.ready.readable {
                self.to_client.block_source();
                return Ok(());
            }
        }
        Ok(())
    }

    /// Receives once and opens it into `scratch.plain`. What TLS itself has to say to the server
    /// goes out at once.
    fn open_server(&mut self, turn: &mut Turn<'_, N>) -> Result<(), CloseReason> {
        let Some(engine) = &mut self.server_tls else {
            return Ok(());
        };
        let input = &mut turn.scratch.sealed_in;
        input.push(engine.held());
        let counter = &turn.counters.server_bytes_in;
        match self.server.receive(input, READ, counter) {
            Ok(Got::Bytes) => {}
            Ok(Got::Nothing) => {
                self.to_client.block_source();
                return Ok(());
            }
            Ok(Got::End) if !self.server_reset => return Err(CloseReason::ServerTruncated),
            Ok(Got::End) | Err(_) => return Err(CloseReason::ServerReset),
        }
        if !self.server.ready.readable {
            self.to_client.block_source();
        }
        let scratch = &mut *turn.scratch;
        let input = scratch.sealed_in.filled_mut();
        let opened = engine.receive(input, &mut scratch.plain, &mut scratch.sealed_out);
        self.send_server(scratch.sealed_out.filled(), turn.counters);
        scratch.sealed_out.clear();
        let opened = opened.map_err(|_| CloseReason::ServerTlsError)?;
        if opened.ended {
            self.to_client.end_source();
        }
        Ok(())
    }

    /// Client to server: receives, opens, seals, sends once.
    fn read_client(
        &mut self,
        load: &mut Load,
        core: &mut Core<N>,
        turn: &mut Turn<'_, N>,
    ) -> Result<(), CloseReason> {
        turn.scratch.clear();
        match self.client_tls {
            Some(_) => self.open_client(core, turn)?,
            None => self.take_client(core, turn)?,
        }
        let scratch = &mut *turn.scratch;
        let plain = scratch.plain.filled();
        // Records without a byte in them are work, too.
        let came = plain.len().max(scratch.sealed_in.len());
        load.to_server = load.to_server.saturating_sub(came);
        let bytes = match &mut self.server_tls {
            Some(engine) => {
                let end = self.to_server.source_ended() && !self.truncated;
                let sealed = engine.seal(plain, end, &mut scratch.sealed_out);
                sealed.map_err(|_| CloseReason::Internal)?;
                scratch.sealed_out.filled()
            }
            None => plain,
        };
        self.send_server(bytes, turn.counters);
        Ok(())
    }

    /// Receives once and opens it into `scratch.plain`. What TLS itself has to say to the client
    /// goes out at once.
    fn open_client(
        &mut self,
        core: &mut Core<N>,
        turn: &mut Turn<'_, N>,
    ) -> Result<(), CloseReason> {
        let Some(engine) = &mut self.client_tls else {
            return Ok(());
        };
        let input = &mut turn.scratch.sealed_in;
        input.push(engine.held());
        let counter = &turn.counters.client_bytes_in;
        match core.client.receive(input, READ, counter) {
            Ok(Got::Bytes) => {}
            Ok(Got::Nothing) => {
                self.to_server.block_source();
                return Ok(());
            }
            Ok(Got::End) => {
                self.truncated = !self.to_client.source_ended();
                turn.counters.truncated.add(u64::from(self.truncated));
                self.to_server.end_source();
                return Ok(());
            }
            Err(_) => return Err(CloseReason::ClientReset),
        }
        if !core.client.ready.readable {
            self.to_server.block_source();
        }
        let scratch = &mut *turn.scratch;
        let input = scratch.sealed_in.filled_mut();
        let opened = engine.receive(input, &mut scratch.plain, &mut scratch.sealed_out);
        self.send_client(scratch.sealed_out.filled(), core, turn.counters)?;
        scratch.sealed_out.clear();
        let opened = opened.map_err(|_| CloseReason::ClientTlsError)?;
        if opened.ended {
            self.to_server.end_source();
        }
        Ok(())
    }

    /// Receives once into `scratch.plain`: a client without TLS, or one that is none of ours.
    fn take_client(
        &mut self,
        core: &mut Core<N>,
        turn: &mut Turn<'_, N>,
    ) -> Result<(), CloseReason> {
        let counter = &turn.counters.client_bytes_in;
        let got = core.client.receive(&mut turn.scratch.plain, READ, counter);
        match got.map_err(|_| CloseReason::ClientReset)? {
            Got::Bytes | Got::Nothing if core.client.ready.readable => {}
            Got::Bytes | Got::Nothing => self.to_server.block_source(),
            Got::End => self.to_server.end_source(),
        }
        Ok(())
    }

    /// Sends to the client, behind what waits already.
    fn send_client(
        &mut self,
        bytes: &[u8],
        core: &mut Core<N>,
        counters: &Counters,
    ) -> Result<(), CloseReason> {
        if self.to_client.is_finished() {
            return Ok(());
        }
        let mut sent = 0;
        if self.to_client.is_clear() && !bytes.is_empty() {
            sent = core
                .client
                .send(bytes, &counters.client_bytes_out)
                .map_err(|_| CloseReason::ClientReset)?;
            if !core.client.ready.writable {
                self.to_client.block_sink();
            }
        }
        self.to_client.offer(bytes.get(sent..).unwrap_or_default());
        Ok(())
    }

    fn write_client(&mut self, core: &mut Core<N>, turn: &Turn<'_, N>) -> Result<(), CloseReason> {
        let counter = &turn.counters.client_bytes_out;
        let sent = core
            .client
            .send(self.to_client.waiting(), counter)
            .map_err(|_| CloseReason::ClientReset)?;
        self.to_client.sent(sent);
        if !core.client.ready.writable {
            self.to_client.block_sink();
        }
        Ok(())
    }

    /// Sends to the server, behind what waits already.
    fn send_server(&mut self, bytes: &[u8], counters: &Counters) {
        if self.to_server.is_finished() {
            return;
        }
        let mut sent = 0;
        if self.to_server.is_clear() && !bytes.is_empty() {
            let result = self.server.send(bytes, &counters.server_bytes_out);
            let Some(taken) = self.server_took(result) else {
                return;
            };
            sent = taken;
        }
        self.to_server.offer(bytes.get(sent..).unwrap_or_default());
    }

    fn write_server(&mut self, turn: &Turn<'_, N>) {
        let waiting = self.to_server.waiting();
        let result = self.server.send(waiting, &turn.counters.server_bytes_out);
        if let Some(sent) = self.server_took(result) {
            self.to_server.sent(sent);
        }
    }

    /// What a send to the server means. Nothing when the server takes no more: it may have
    /// answered early and closed, and then its answer is still to be read.
    fn server_took(&mut self, result: Result<usize, Fault>) -> Option<usize> {
        let Err(fault) = result else {
            if !self.server.ready.writable {
                self.to_server.block_sink();
            }
            return result.ok();
        };
        // EPIPE says that FIN had come before; after a reset the kernel reports an end as well.
        self.server_reset = fault != Fault::Closed;
        self.server.ready.readable = true;
        self.to_client.handle_readable();
        self.to_server.finish();
        None
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
        core.facts.server_traffic = self.server.traffic;
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
        core.facts.server_traffic = self.server.traffic;
        // A server whose TLS is broken is sent the alert that says so, and a reset would overtake it.
        if !self.to_server.is_finished() && reason != CloseReason::ServerTlsError {
            self.server.socket.reset_on_close();
        }
        match reason {
            CloseReason::ClientReset => Next::End(reason),
            // What waits is sent, and FIN; close_notify is not.
            _ => Closing::begin(reason, self.to_client.waiting().to_vec(), core, turn),
        }
    }
}
