//! The talk in clear before TLS, on ports where the client asks for it: "STARTTLS".
//!
//! The server is connected before anything else, because in most of these protocols it speaks
//! first. Its greeting is passed on; whatever the client says in clear is answered here, and
//! nothing of it reaches the server. What is said and when it is over is decided by
//! [`becket_proto::starttls`]; this file carries the bytes. A cancel of a PostgreSQL client is the
//! exception ([`super::cancelling`]). Then the handshake goes on with the
//! server in hand ([`Core::joined`]), and at its end both are joined ([`rejoin`]).
//!
//! What either side can make us hold: a greeting, a command, and the answers to those that came in
//! one read. `timeouts.handshake` covers talk and handshake, counted from the connect;
//! `timeouts.hello` only what comes behind the talk, since mail servers keep clients waiting for
//! their greeting on purpose.

use std::rc::Rc;

use becket_proto::half_pipe::HalfPipe;
use becket_proto::starttls::{Dialog, Over, Progress, Protocol};

use super::cancelling::Cancelling;
use super::closing::Closing;
use super::handshake::Handshaking;
use super::relay::{Joined, Relaying, server_fault};
use super::{Core, Net, Next, Phase, Turn};
use crate::close_reason::CloseReason;
use crate::connection::listener::ListenerState;
use crate::leg::{Got, Ready};
use crate::scratch::READ;
use crate::socket::Peek;
use crate::tls::engine::Engine;

/// A client that has a server and no TLS yet.
#[derive(Debug)]
pub struct Conversing<N: Net> {
    listener: Rc<ListenerState>,
    joined: Box<Joined<N>>,
    dialog: Dialog,
    progress: Progress,
    /// For the client, not taken yet.
    answer: Vec<u8>,
    /// The protocol without which the handshake fails.
    insists_on: Option<&'static [u8]>,
}

impl<N: Net> Conversing<N> {
    /// Begins with a server that is connected; it may have said something already.
    pub(super) fn begin(
        listener: Rc<ListenerState>,
        protocol: Protocol,
        mut joined: Joined<N>,
        core: &mut Core<N>,
        turn: &Turn<'_, N>,
    ) -> Next<N> {
        turn.counters.handshakes_begun.add(1);
        core.handshake_until = turn.now.mono + turn.timeouts.handshake;
        core.deadline = core.handshake_until;
        let mut dialog = Dialog::new(protocol);
        let mut answer = Vec::new();
        // Through TLS the greeting may have come with the last flight.
        let said = std::mem::replace(&mut joined.to_client, HalfPipe::new(true));
        if said.source_ended() {
            joined.to_client.end_source();
        }
        let progress = match said.waiting() {
            [] => Progress::Talking,
            said => dialog.handle_server(said, &mut answer),
        };
        Next::Go(Phase::Conversing(Self {
            listener,
            joined: Box::new(joined),
            dialog,
            progress,
            answer,
            insists_on: None,
        }))
    }

    /// Takes note of the server socket's readiness.
    pub fn handle_ready(&mut self, ready: Ready) {
        self.joined.server.ready.add(ready);
    }

    /// The server that is waiting.
    pub(super) fn joined(&self) -> &Joined<N> {
        &self.joined
    }

    /// Does what can be done now.
    pub fn advance(mut self, core: &mut Core<N>, turn: &mut Turn<'_, N>) -> Next<N> {
        if core.client.ready.failed {
            return end(CloseReason::HandshakeAborted, turn);
        }
        loop {
            if self.send(core, turn).is_err() {
                return end(CloseReason::HandshakeAborted, turn);
            }
            self.send_server(turn);
            match self.progress {
                Progress::Over(Over::Cancel) => return self.cancel(core, turn),
                Progress::Over(over) => return self.close(over, core, turn),
                _ if !self.answer.is_empty() => return Next::Wait(Phase::Conversing(self)),
                Progress::Begin => return self.secure(core, turn),
                Progress::Talking => {}
            }
            let heard = if self.dialog.awaits_greeting() {
                self.hear_server(turn)
            } else if begins_with_tls(core, &self.dialog) {
                // It stays in the socket: the handshake reads it.
                self.insists_on = Some(POSTGRESQL);
                return self.secure(core, turn);
            } else {
                self.hear_client(core, turn)
            };
            match heard {
                Ok(true) => {}
                Ok(false) => return Next::Wait(Phase::Conversing(self)),
                Err(CloseReason::HandshakeAborted) => {
                    return end(CloseReason::HandshakeAborted, turn);
                }
                Err(reason) => {
                    turn.counters.handshakes_ended.add(1);
                    return Closing::begin(reason, self.answer, core, turn);
                }
            }
        }
    }

    /// The talk took too long.
    pub fn expire(self, core: &Core<N>, turn: &mut Turn<'_, N>) -> Next<N> {
        let reason = CloseReason::HandshakeTimeout;
        let detail = "no TLS was asked for";
        turn.failures.note(&core.facts, reason, detail, turn.now);
        end(reason, turn)
    }

    /// Sends what the client is to be told, as far as its socket takes it.
    fn send(&mut self, core: &mut Core<N>, turn: &Turn<'_, N>) -> Result<(), ()> {
        let counter = &turn.counters.client_bytes_out;
        let sent = core.client.send(&self.answer, counter).map_err(drop)?;
        self.answer.drain(..sent);
        Ok(())
    }

    /// Sends what is left of the handshake with the server, where it has TLS. That the server is
    /// gone is seen when it is listened to.
    fn send_server(&mut self, turn: &Turn<'_, N>) {
        let Joined {
            server, to_server, ..
        } = &mut *self.joined;
        let counter = &turn.counters.server_bytes_out;
        if let Ok(sent) = server.send(to_server.waiting(), counter) {
            to_server.sent(sent);
        }
    }

    /// Listens to the server, whose greeting is not complete. False when it said nothing.
    fn hear_server(&mut self, turn: &mut Turn<'_, N>) -> Result<bool, CloseReason> {
        if self.joined.to_client.source_ended() {
            return Err(CloseReason::ServerGreeting);
        }
        turn.scratch.clear();
        let scratch = &mut *turn.scratch;
        let Joined {
            server, server_tls, ..
        } = &mut *self.joined;
        let waits = server_tls.as_ref().is_some_and(|engine| engine.waits());
        if !server.ready.readable && !waits {
            return Ok(false);
        }
        let input = match server_tls {
            Some(engine) => {
                scratch.sealed_in.push(engine.held());
                &mut scratch.sealed_in
            }
            None => &mut scratch.plain,
        };
        let counter = &turn.counters.server_bytes_in;
        if !waits {
            match server.receive(input, READ, counter) {
                Ok(Got::Bytes) => {}
                Ok(Got::Nothing) => return Ok(false),
                Ok(Got::End) => return Err(CloseReason::ServerGreeting),
                Err(_) => return Err(CloseReason::ServerReset),
            }
        }
        if let Some(engine) = server_tls {
            let input = scratch.sealed_in.filled_mut();
            let opened = engine.receive(input, &mut scratch.plain, &mut scratch.sealed_out);
            self.joined.to_server.offer(scratch.sealed_out.filled());
            let opened = opened.map_err(|error| server_fault(&error))?;
            if opened.ended {
                // What came before it may be a greeting all the same, or the word why there is none.
                self.joined.to_client.end_source();
            }
        }
        let said = scratch.plain.filled();
        if !said.is_empty() {
            self.progress = self.dialog.handle_server(said, &mut self.answer);
        }
        Ok(true)
    }

    /// Listens to the client. False when it said nothing.
    fn hear_client(
        &mut self,
        core: &mut Core<N>,
        turn: &mut Turn<'_, N>,
    ) -> Result<bool, CloseReason> {
        if !core.client.ready.readable {
            return Ok(false);
        }
        turn.scratch.clear();
        let input = &mut turn.scratch.plain;
        let counter = &turn.counters.client_bytes_in;
        match core.client.receive(input, LONGEST_READ, counter) {
            Ok(Got::Bytes) => {}
            Ok(Got::Nothing) => return Ok(false),
            Ok(Got::End) | Err(_) => return Err(CloseReason::HandshakeAborted),
        }
        self.progress = self.dialog.handle_client(input.filled(), &mut self.answer);
        Ok(true)
    }

    /// The client's next byte is TLS.
    fn secure(self, core: &mut Core<N>, turn: &Turn<'_, N>) -> Next<N> {
        core.deadline = core
            .handshake_until
            .min(turn.now.mono + turn.timeouts.hello);
        core.joined = Some(self.joined);
        let handshaking = Handshaking::new(self.listener);
        Next::Go(Phase::Handshaking(match self.insists_on {
            Some(protocol) => handshaking.insisting_on(protocol),
            None => handshaking,
        }))
    }

    /// The client asks to cancel what another connection does. The server that it was connected to is let go.
    fn cancel(self, core: &mut Core<N>, turn: &mut Turn<'_, N>) -> Next<N> {
        let passes = self.listener.config().cancel_requests;
        let pool = self.listener.pool(0).filter(|_| passes);
        match (pool, self.dialog.cancel_request()) {
            (Some(pool), Some(request)) => Cancelling::begin(pool, request, core, turn),
            _ => self.close(Over::Cleartext, core, turn),
        }
    }

    /// There will be no TLS.
    fn close(self, over: Over, core: &mut Core<N>, turn: &mut Turn<'_, N>) -> Next<N> {
        let reason = match over {
            Over::Injected => CloseReason::StarttlsInjected,
            Over::Broken => CloseReason::NotTls,
            Over::Quit | Over::Cleartext | Over::Cancel => CloseReason::Cleartext,
            Over::Refused | Over::BadGreeting => CloseReason::ServerGreeting,
        };
        if over != Over::Quit {
            let detail = format!("{over:?}");
            turn.failures.note(&core.facts, reason, &detail, turn.now);
        }
        turn.counters.handshakes_ended.add(1);
        Closing::begin(reason, self.answer, core, turn)
    }
}

/// Whether a client that may begin with TLS at once does so.
fn begins_with_tls<N: Net>(core: &mut Core<N>, dialog: &Dialog) -> bool {
    let mut first = [0];
    dialog.begins_with_tls(TLS_HANDSHAKE)
        && core.client.ready.readable
        && matches!(core.client.socket.peek(&mut first), Ok(1..))
        && dialog.begins_with_tls(first[0])
}

/// The handshake is done: joins the client to the server that has waited. The last flight is in
/// `scratch.sealed_out`, and what the client has said already in `scratch.plain`.
pub(super) fn rejoin<N: Net>(
    mut joined: Joined<N>,
    mut engine: Engine,
    client_ended: bool,
    core: &mut Core<N>,
    turn: &mut Turn<'_, N>,
) -> Next<N> {
    let scratch = &mut *turn.scratch;
    let flight = scratch.sealed_out.filled();
    let Ok(sent) = core.client.send(flight, &turn.counters.client_bytes_out) else {
        return Next::End(CloseReason::ClientReset);
    };
    joined
        .to_client
        .offer(flight.get(sent..).unwrap_or_default());
    let early = scratch.plain.filled();
    match &mut joined.server_tls {
        None => joined.to_server.offer(early),
        Some(server) => {
            scratch.sealed_out.clear();
            if server
                .seal(early, client_ended, &mut scratch.sealed_out)
                .is_err()
            {
                return Next::End(CloseReason::Internal);
            }
            joined.to_server.offer(scratch.sealed_out.filled());
        }
    }
    if client_ended {
        joined.to_server.end_source();
    }
    if joined.to_client.source_ended() {
        // The server has said all that it will say, before the client came to hear it.
        scratch.sealed_out.clear();
        if engine.seal(&[], true, &mut scratch.sealed_out).is_err() {
            return Next::End(CloseReason::Internal);
        }
        joined.to_client.offer(scratch.sealed_out.filled());
    }
    joined.client_tls = Some(engine);
    Relaying::new(joined).begin(core, turn)
}

/// Counts the end of a handshake that leads to nothing.
fn end<N: Net>(reason: CloseReason, turn: &Turn<'_, N>) -> Next<N> {
    turn.counters.handshakes_ended.add(1);
    Next::End(reason)
}

/// Commands are short; who sends more at once means no good.
const LONGEST_READ: usize = 4096;
/// The content type of a TLS record that begins a handshake.
const TLS_HANDSHAKE: u8 = 22;
/// What libpq offers by ALPN, and must where it begins with TLS at once.
const POSTGRESQL: &[u8] = b"postgresql";
