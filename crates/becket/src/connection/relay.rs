//! Two half pipes: client to server and back, until both have ended.
//!
//! Each direction is a [`HalfPipe`], which decides what to do next; this file does it: receive,
//! decrypt or encrypt, send. Bytes go straight from scratch buffer to socket; only what a socket
//! does not take is copied and kept. One direction moves at most `limits.bytes-per-turn` per turn,
//! so that a bulk transfer does not starve its neighbours.
//!
//! How ends are passed on, so that truncation is never hidden (RFC 8446, section 6.1):
//! * the server ends (FIN): the last data, close_notify and FIN go to the client;
//! * the server resets: what was received goes to the client, without close_notify;
//! * the client sends close_notify or FIN: FIN goes to the server, and its answer still comes
//!   back; FIN without close_notify is counted;
//! * the client resets or breaks TLS: the server is reset.

use std::time::Duration;

use becket_proto::half_pipe::{HalfPipe, Next as Step};

use super::closing::Closing;
use super::{Core, Net, Next, Phase, Turn};
use crate::close_reason::CloseReason;
use crate::leg::{Got, Leg, Ready};
use crate::scratch::READ;
use crate::socket::{Fault, Socket};
use crate::tls::engine::Engine;

/// Client and server, joined.
#[derive(Debug)]
pub struct Relaying<N: Net> {
    engine: Engine,
    server: Leg<N::Server>,
    to_server: HalfPipe,
    to_client: HalfPipe,
    /// A send found that the server had reset: what it sent before may still be read, but the
    /// end that follows is none.
    server_reset: bool,
    /// The client ended without close_notify while the server could still have sent.
    truncated: bool,
}

/// What may still be moved in this turn, and whether anything was.
struct Load {
    to_client: usize,
    to_server: usize,
    moved: bool,
}

impl<N: Net> Relaying<N> {
    /// Joins both sides.
    pub fn new(
        engine: Engine,
        server: Leg<N::Server>,
        to_server: HalfPipe,
        to_client: HalfPipe,
    ) -> Self {
        Self {
            engine,
            server,
            to_server,
            to_client,
            server_reset: false,
            truncated: false,
        }
    }

    /// Starts the idle clock.
    pub fn begin(self, core: &mut Core<N>, turn: &Turn<'_, N>) -> Next<N> {
        core.deadline = turn.now.mono + turn.timeouts.idle;
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
            core.deadline = turn.now.mono + self.patience(turn);
        }
        let spent = |pipe: &HalfPipe, left| pipe.next() == Step::Read && left == 0;
        if spent(&self.to_client, load.to_client) || spent(&self.to_server, load.to_server) {
            return Next::Yield(Phase::Relaying(self));
        }
        Next::Wait(Phase::Relaying(self))
    }

    /// Nothing moved for too long.
    pub fn expire(self, core: &mut Core<N>, turn: &mut Turn<'_, N>) -> Next<N> {
        let reason = if self.is_half_closed() {
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

    /// Server to client: receives up to four records' worth, encrypts, sends once. When the
    /// server has ended, close_notify leaves with the last data.
    fn read_server(
        &mut self,
        load: &mut Load,
        core: &mut Core<N>,
        turn: &mut Turn<'_, N>,
    ) -> Result<(), CloseReason> {
        turn.scratch.clear();
        let reset = self.drain_server(turn).is_err();
        let out = &mut turn.scratch.sealed_out;
        let plain = turn.scratch.plain.filled();
        load.to_client = load.to_client.saturating_sub(plain.len());
        if !plain.is_empty() {
            let sealed = self.engine.encrypt(plain, out);
            sealed.map_err(|_| CloseReason::Internal)?;
        }
        if self.to_client.source_ended() {
            let sealed = self.engine.close_notify(out);
            sealed.map_err(|_| CloseReason::Internal)?;
        }
        self.send_client(core, turn)?;
        if reset {
            return Err(CloseReason::ServerReset);
        }
        Ok(())
    }

    fn drain_server(&mut self, turn: &mut Turn<'_, N>) -> Result<(), Fault> {
        let buffer = &mut turn.scratch.plain;
        while buffer.len() < READ {
            let most = READ - buffer.len();
            let got = self
                .server
                .receive(buffer, most, &turn.counters.server_bytes_in)?;
            if got == Got::End && self.server_reset {
                return Err(Fault::Reset);
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

    /// Client to server: receives, decrypts, sends once. What TLS itself has to say to the
    /// client goes out first.
    fn read_client(
        &mut self,
        load: &mut Load,
        core: &mut Core<N>,
        turn: &mut Turn<'_, N>,
    ) -> Result<(), CloseReason> {
        turn.scratch.clear();
        let input = &mut turn.scratch.sealed_in;
        input.push(self.engine.held());
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
        let received = self
            .engine
            .receive(input, &mut scratch.plain, &mut scratch.sealed_out);
        let Ok(received) = received else {
            self.send_client(core, turn)?;
            return Err(CloseReason::ClientTlsError);
        };
        if received.ended {
            self.to_server.end_source();
        }
        load.to_server = load.to_server.saturating_sub(turn.scratch.plain.len());
        self.send_client(core, turn)?;
        self.send_server(turn);
        Ok(())
    }

    /// Sends `scratch.sealed_out` to the client, behind what waits already.
    fn send_client(&mut self, core: &mut Core<N>, turn: &Turn<'_, N>) -> Result<(), CloseReason> {
        if self.to_client.is_finished() {
            return Ok(());
        }
        let bytes = turn.scratch.sealed_out.filled();
        let mut sent = 0;
        if self.to_client.is_clear() && !bytes.is_empty() {
            sent = core
                .client
                .send(bytes, &turn.counters.client_bytes_out)
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

    /// Sends `scratch.plain` to the server, behind what waits already.
    fn send_server(&mut self, turn: &Turn<'_, N>) {
        let bytes = turn.scratch.plain.filled();
        let mut sent = 0;
        if self.to_server.is_clear() && !bytes.is_empty() {
            let result = self.server.send(bytes, &turn.counters.server_bytes_out);
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
        if !self.to_server.is_finished() {
            self.server.socket.reset_on_close();
        }
        match reason {
            CloseReason::ClientReset => Next::End(reason),
            // What waits is sent, and FIN; close_notify is not.
            _ => Closing::begin(reason, self.to_client.waiting().to_vec(), core, turn),
        }
    }
}
