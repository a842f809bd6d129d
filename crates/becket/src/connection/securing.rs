//! TLS towards the server: from a connect that was taken to traffic keys.
//!
//! Where the backend has TLS, our ClientHello is part of the connect's first write, behind the
//! PROXY header, which is in clear. Nothing of what the client said goes out before there are
//! keys, so as long as a connection is here, another server can be tried without harm: a
//! handshake that fails counts as a connect that failed. `timeouts.connect` covers both.
//!
//! What a server can make us hold: a record, or a message with a chain of `limits.certificate-chain`.
//!
//! Source: RFC 8446 section 4, RFC 5246 section 7; `tls/onward.rs` makes the engine.

use std::io;
use std::sync::Arc;

use becket_proto::half_pipe::HalfPipe;
use rustls::client::UnbufferedClientConnection;

use super::connect::Attempt;
use super::{Core, Net, Next, Phase, Turn};
use crate::backend::server_state::ServerState;
use crate::close_reason::CloseReason;
use crate::leg::{Got, Leg, Ready};
use crate::scratch::{Buffer, READ};
use crate::tls::engine::{Engine, Received};
use crate::tls::to_servers::ServerTls;

/// A connection whose server has answered and has not shown who it is.
#[derive(Debug)]
pub struct Securing<N: Net> {
    server: Leg<N::Server>,
    /// After the socket, so that its slot is given back when that is closed.
    attempt: Attempt,
}

/// What TLS towards a server needs until there are keys, whichever server it will be.
#[derive(Debug)]
pub(super) struct Prelude {
    /// The PROXY header.
    header: Vec<u8>,
    /// What the client has said already.
    early: Vec<u8>,
    /// Of the current attempt.
    engine: Option<Box<Engine<UnbufferedClientConnection>>>,
}

impl Prelude {
    /// Keeps what is sent in clear and what is sent sealed, whoever the server will be.
    pub(super) fn new(header: &[u8], early: &[u8]) -> Self {
        Self {
            header: header.to_vec(),
            early: early.to_vec(),
            engine: None,
        }
    }

    /// Makes a ClientHello for a server: what goes out first is the header and this hello.
    ///
    /// # Errors
    ///
    /// When TLS cannot begin.
    pub(super) fn greet<N: Net>(
        &mut self,
        tls: &ServerTls,
        server: &str,
        (core, turn): (&Core<N>, &Turn<'_, N>),
        to_server: &mut HalfPipe,
    ) -> io::Result<()> {
        let now = turn.now.unix.into();
        let mut engine = tls.open(server, &core.facts, now).map_err(fault)?;
        let (mut plain, mut hello) = (Buffer::at(0, 0), Buffer::at(0, HELLO));
        engine
            .receive(&mut [], &mut plain, &mut hello)
            .map_err(fault)?;
        let ended = to_server.source_ended();
        *to_server = HalfPipe::new(core.client.ready.readable);
        to_server.offer(&self.header);
        to_server.offer(hello.filled());
        if ended {
            to_server.end_source();
        }
        self.engine = Some(Box::new(engine));
        Ok(())
    }
}

impl<N: Net> Securing<N> {
    /// Begins when the server has taken the first bytes.
    pub(super) fn new(attempt: Attempt, server: Leg<N::Server>) -> Self {
        Self { server, attempt }
    }

    /// Takes note of the server socket's readiness.
    pub fn handle_ready(&mut self, ready: Ready) {
        self.server.ready.add(ready);
        if ready.writable {
            self.attempt.caller.to_server.handle_writable();
        }
    }

    /// Does what can be done now.
    pub fn advance(mut self, core: &mut Core<N>, turn: &mut Turn<'_, N>) -> Next<N> {
        if core.client.ready.failed {
            return Next::End(CloseReason::ClientReset);
        }
        loop {
            if let Err(error) = self.send(turn) {
                return self.fail(error, core, turn);
            }
            if !self.server.ready.readable {
                return Next::Wait(Phase::Securing(self));
            }
            match self.take_in(turn) {
                Ok(received) if received.ready => return self.leave(received, core, turn),
                Ok(_) => {}
                Err(error) => {
                    // The alert that says why.
                    let _lost = self.send(turn);
                    return self.fail(error, core, turn);
                }
            }
        }
    }

    /// The server did not get there in time.
    pub fn expire(self, core: &mut Core<N>, turn: &mut Turn<'_, N>) -> Next<N> {
        self.fail(io::ErrorKind::TimedOut.into(), core, turn)
    }

    /// Whether this is the server that has answered.
    pub fn is_at(&self, server: &Arc<ServerState>) -> bool {
        self.attempt.is_to(server)
    }

    /// The server went out of service meanwhile.
    pub fn leave_server(self, core: &mut Core<N>, turn: &mut Turn<'_, N>) -> Next<N> {
        drop(self.server);
        self.attempt.leave_server(core, turn)
    }

    fn fail(mut self, error: io::Error, core: &mut Core<N>, turn: &mut Turn<'_, N>) -> Next<N> {
        drop(self.server);
        let tls = self.attempt.caller.pool().tls();
        // Else a few clients with names that no server knows would take all servers out of service.
        if error.kind() != io::ErrorKind::TimedOut && tls.is_some_and(ServerTls::speaks_for_client)
        {
            self.attempt.excuse();
        }
        self.attempt.fail(error, core, turn)
    }

    /// Sends what waits, as far as the socket takes it.
    fn send(&mut self, turn: &Turn<'_, N>) -> io::Result<()> {
        let to_server = &mut self.attempt.caller.to_server;
        if to_server.waiting().is_empty() {
            return Ok(());
        }
        let counter = &turn.counters.server_bytes_out;
        let sent = self
            .server
            .send(to_server.waiting(), counter)
            .map_err(|_| io::ErrorKind::ConnectionReset)?;
        to_server.sent(sent);
        if !self.server.ready.writable {
            to_server.block_sink();
        }
        Ok(())
    }

    /// Receives once and gives it to TLS. What the server said early is then in `scratch.plain`.
    fn take_in(&mut self, turn: &mut Turn<'_, N>) -> io::Result<Received> {
        let engine = self.attempt.caller.prelude.as_mut();
        let Some(engine) = engine.and_then(|prelude| prelude.engine.as_mut()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        turn.scratch.clear();
        let input = &mut turn.scratch.sealed_in;
        input.push(engine.held());
        match self
            .server
            .receive(input, READ, &turn.counters.server_bytes_in)
        {
            Ok(Got::Bytes) => {}
            Ok(Got::Nothing) => return Ok(Received::default()),
            Ok(Got::End) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(_) => return Err(io::ErrorKind::ConnectionReset.into()),
        }
        let scratch = &mut *turn.scratch;
        let input = scratch.sealed_in.filled_mut();
        let received = engine.receive(input, &mut scratch.plain, &mut scratch.sealed_out);
        self.attempt
            .caller
            .to_server
            .offer(scratch.sealed_out.filled());
        received.map_err(fault)
    }

    /// Keys are ready: seals what each side has said already, and relays.
    fn leave(mut self, received: Received, core: &mut Core<N>, turn: &mut Turn<'_, N>) -> Next<N> {
        let prelude = self.attempt.caller.prelude.take();
        let Some((early, Some(mut engine))) =
            prelude.map(|prelude| (prelude.early, prelude.engine))
        else {
            return Next::End(CloseReason::Internal);
        };
        turn.counters
            .count_server_handshake(engine.handshake_kind());
        let scratch = &mut *turn.scratch;
        let caller = &mut self.attempt.caller;
        scratch.sealed_out.clear();
        let ended = caller.to_server.source_ended();
        let to_server = engine.seal(&early, ended, &mut scratch.sealed_out);
        caller.to_server.offer(scratch.sealed_out.filled());

        scratch.sealed_out.clear();
        let said = scratch.plain.filled();
        let to_client = match &mut caller.client_tls {
            Some(engine) => {
                let sealed = engine.seal(said, received.ended, &mut scratch.sealed_out);
                caller.to_client.offer(scratch.sealed_out.filled());
                sealed
            }
            None => {
                caller.to_client.offer(said);
                Ok(())
            }
        };
        if received.ended {
            caller.to_client.end_source();
        }
        if to_server.and(to_client).is_err() {
            return Next::End(CloseReason::Internal);
        }
        self.attempt.join(self.server, Some(engine), core, turn)
    }
}

/// What TLS found, if that is what an error is about.
pub(super) fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

fn fault(error: rustls::Error) -> io::Error {
    io::Error::other(error)
}

/// Room for a ClientHello with a post-quantum key share and a ticket; grows for a longer one.
const HELLO: usize = 2048;
