//! The plaintext dialog before TLS on STARTTLS ports.
//!
//! In mail protocols the server speaks first, so becket connects to it first and forwards its
//! greeting. A PostgreSQL client speaks first, so its server is chosen after the TLS handshake.
//! becket answers the client's plaintext commands itself and forwards none of them, except a
//! PostgreSQL cancel request (`cancelling.rs`). [`becket_proto::starttls`] determines the answers
//! and the end of the dialog. After the TLS handshake, the client is joined with a server that is
//! already connected ([`Connected::admit`]).
//!
//! The memory for a connection is limited: a greeting, a command, and the answers to the commands
//! of one read. `timeouts.handshake` includes the dialog and the TLS handshake, counted from the
//! connect. `timeouts.hello` limits the dialog only if the client speaks first, because mail
//! servers delay their greeting on purpose.

use std::{mem, rc::Rc};

use becket_proto::starttls::{Dialog, Over, Progress, Protocol};

use super::connected::Connected;
use super::context::{Context, Core, Net, Turn};
use super::listener::ListenerState;
use super::reached::{Advance, Reached};
use crate::leg::Got;
use crate::socket::StreamSocket;
use becket_proto::close_reason::CloseReason;
use becket_tls::scratch::Scratch;

#[derive(Debug)]
pub(super) struct Conversing<N: Net> {
    listener: Rc<ListenerState>,
    /// The connected server, if the server speaks first.
    pub(super) server: Option<Box<Connected<N>>>,
    dialog: Dialog,
    progress: Progress,
    /// Pending answer to the client.
    answer: Vec<u8>,
}

impl<N: Net> Conversing<N> {
    /// Starts the dialog. A connected server may already have sent data, which is processed first.
    pub(super) fn new(
        listener: Rc<ListenerState>,
        protocol: Protocol,
        mut server: Option<Box<Connected<N>>>,
        cx: &mut Context<'_, '_, N>,
    ) -> Self {
        cx.turn.counters.handshakes_begun.add(1);
        let mut dialog = Dialog::new(protocol);
        let mut answer = Vec::new();
        let mut progress = Progress::Talking;
        if let Some(server) = &mut server {
            cx.core.handshake_until = cx.turn.now.running + cx.turn.timeouts.handshake;
            cx.core.deadline = cx.core.handshake_until;
            // With backend TLS, the greeting may have arrived with the server's last flight.
            let said = mem::take(&mut server.to_client);
            if said.source_ended() {
                server.to_client.end_source();
            }
            if !said.waiting().is_empty() {
                progress = dialog.handle_server(said.waiting(), &mut answer);
            }
        }
        Self {
            listener,
            server,
            dialog,
            progress,
            answer,
        }
    }

    pub(super) fn advance(
        mut self,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Advance<Self, N> {
        if cx.core.client.ready.failed {
            return Self::no_handshake(cx.core.left_early(), cx);
        }
        loop {
            if self.send(cx).is_err() {
                return Self::no_handshake(cx.core.left_early(), cx);
            }
            match self.progress {
                Progress::Over(Over::Cancel) => return self.cancel(cx),
                Progress::Over(over) => return self.close(over, cx),
                _ if !self.answer.is_empty() => return Advance::Wait(self),
                Progress::Begin => return self.secure(None, cx),
                Progress::Talking => {}
            }
            let heard = if self.dialog.awaits_greeting() {
                self.hear_server(cx.turn, scratch)
            } else if begins_with_tls(cx.core, &self.dialog) {
                // The ClientHello stays in the socket, where the handshake reads it.
                return self.secure(Some(POSTGRESQL), cx);
            } else {
                self.hear_client(cx, scratch)
            };
            match heard {
                Ok(true) => {}
                Ok(false) => return Advance::Wait(self),
                Err(reason @ (CloseReason::HandshakeAborted | CloseReason::HealthCheck)) => {
                    return Self::no_handshake(reason, cx);
                }
                Err(reason) => {
                    let last = self.answer.into();
                    return Advance::Reached(Reached::no_handshake_but(reason, last, cx));
                }
            }
        }
    }

    pub(super) fn expire(self, cx: &mut Context<'_, '_, N>) -> Advance<Self, N> {
        let reason = match self.server {
            Some(_) => CloseReason::HandshakeTimeout,
            None => CloseReason::HelloTimeout,
        };
        let detail = "the client did not request TLS";
        cx.note(reason, detail);
        Self::no_handshake(reason, cx)
    }

    /// Sends the pending answer to the client, and the pending bytes of the TLS handshake to the
    /// server. If the server has closed, the next read reports it.
    fn send(&mut self, cx: &mut Context<'_, '_, N>) -> Result<(), CloseReason> {
        let counter = &cx.turn.counters.client_bytes_out;
        let sent = cx.core.client.send(&self.answer, counter);
        self.answer
            .drain(..sent.map_err(|_| CloseReason::ClientReset)?);
        let Some(server) = &mut self.server else {
            return Ok(());
        };
        let (mut server, back) = server.half(cx.turn.counters, cx.turn.limits);
        server.flush(back)
    }

    /// Reads a part of the server's greeting. Returns `false` if there is no data.
    fn hear_server(
        &mut self,
        turn: &Turn<'_, N>,
        scratch: &mut Scratch,
    ) -> Result<bool, CloseReason> {
        let Some(server) = &mut self.server else {
            return Err(CloseReason::Internal);
        };
        if server.to_client.source_ended() {
            return Err(CloseReason::ServerGreeting);
        }
        let (mut server, to_client) = server.half(turn.counters, turn.limits);
        if !server.leg.ready.readable && !server.waits() {
            return Ok(false);
        }
        scratch.clear();
        server
            .take(to_client, scratch)
            .map_err(|reason| match reason {
                CloseReason::ServerTruncated => CloseReason::ServerGreeting,
                reason => reason,
            })?;
        // Data before the end of the stream is parsed, because it may complete the greeting or be
        // an error message.
        let said = scratch.plain.filled();
        if !said.is_empty() {
            self.progress = self.dialog.handle_server(said, &mut self.answer);
        }
        Ok(true)
    }

    /// Reads the client's commands. Returns `false` if there is no data.
    fn hear_client(
        &mut self,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Result<bool, CloseReason> {
        if !cx.core.client.ready.readable {
            return Ok(false);
        }
        scratch.clear();
        let input = &mut scratch.plain;
        match cx.receive(input, LONGEST_READ) {
            Ok(Got::Bytes(_)) => {}
            Ok(Got::Nothing) => return Ok(false),
            Ok(Got::End) | Err(_) => return Err(cx.core.left_early()),
        }
        self.progress = self.dialog.handle_client(input.filled(), &mut self.answer);
        Ok(true)
    }

    /// Starts TLS with the client. If `insists_on` is set, the client must offer that ALPN
    /// protocol.
    fn secure(
        self,
        insists_on: Option<&'static [u8]>,
        cx: &mut Context<'_, '_, N>,
    ) -> Advance<Self, N> {
        let hello_until = cx.turn.now.running + cx.turn.timeouts.hello;
        cx.core.deadline = cx.core.handshake_until.min(hello_until);
        Advance::Reached(Reached::Upgrade(self.listener, self.server, insists_on))
    }

    /// Queues a cancel request for all backends of the listener, because the request contains no
    /// server name to select one.
    fn cancel(self, cx: &mut Context<'_, '_, N>) -> Advance<Self, N> {
        let passes = self.listener.config().keys.passes_cancels();
        let pool = self.listener.pool(0).filter(|_| passes);
        match (pool, self.dialog.cancel_request()) {
            (Some(pool), Some(request)) => {
                cx.turn.counters.handshakes_ended.add(1);
                let backends = self.listener.cancel_targets();
                let (cancel, outcome) = pool.cancel(cx.turn.place, request, backends);
                let source = cx.turn.admission.source(cx.core.facts.client.ip());
                cx.turn.cancels.enqueue(source, cancel);
                Advance::Reached(Reached::Cancel(outcome))
            }
            _ => self.close(Over::Cleartext, cx),
        }
    }

    fn no_handshake(reason: CloseReason, cx: &Context<'_, '_, N>) -> Advance<Self, N> {
        Advance::Reached(Reached::no_handshake(reason, cx))
    }

    fn close(self, over: Over, cx: &mut Context<'_, '_, N>) -> Advance<Self, N> {
        let (reason, detail) = match over {
            Over::Quit => (CloseReason::Cleartext, ""),
            Over::Cleartext => (CloseReason::Cleartext, "the client continued without TLS"),
            Over::Cancel => (CloseReason::Cleartext, "cancel request not forwarded"),
            Over::Injected => (
                CloseReason::StarttlsInjected,
                "the client sent data after its request for TLS",
            ),
            Over::Broken => (CloseReason::NotTls, "the client violated the protocol"),
            Over::Refused => (CloseReason::ServerGreeting, "the server refused service"),
            Over::BadGreeting => (CloseReason::ServerGreeting, "the server sent no greeting"),
        };
        if over != Over::Quit {
            cx.note(reason, detail);
        }
        Advance::Reached(Reached::no_handshake_but(reason, self.answer.into(), cx))
    }
}

/// Returns `true` if the client's first byte is that of a TLS handshake and the protocol allows TLS
/// without a plaintext request.
fn begins_with_tls<N: Net>(core: &mut Core<N>, dialog: &Dialog) -> bool {
    let mut first = [0];
    dialog.begins_with_tls(TLS_HANDSHAKE)
        && core.client.ready.readable
        && matches!(core.client.socket.peek(&mut first), Ok(1..))
        && dialog.begins_with_tls(first[0])
}

/// Maximum bytes per read. Commands are short, so no valid client needs more.
const LONGEST_READ: usize = 4096;
/// Content type of a TLS handshake record.
const TLS_HANDSHAKE: u8 = 22;
/// ALPN protocol of libpq. A client that starts TLS without a plaintext request must offer it.
const POSTGRESQL: &[u8] = b"postgresql";
