//! TLS towards the server: from a connect that was taken to traffic keys.
//!
//! Where the backend has TLS, our ClientHello is part of the connect's first write, behind the
//! PROXY header, which is in clear. Nothing of what the client said goes out before there are
//! keys, so as long as a connection is here, another server can be tried without harm: a
//! handshake that fails counts as a connect that failed. `timeouts.connect` covers both.
//!
//! With `backend.tls.starttls` the server is asked for TLS first, in clear; what is said then is decided by
//! [`becket_proto::starttls::TlsRequest`]. Our hello goes out when it agrees. Its greeting is the first that the client gets from it.
//!
//! What a server can make us hold: a greeting, a record, or a message with a chain of `limits.certificate-chain`.
//!
//! Source: RFC 8446 section 4, RFC 5246 section 7; [`becket_tls::to_servers`] makes the engine.

use std::io;

use becket_proto::half_pipe::HalfPipe;
use becket_proto::starttls::{Asked, TlsRequest};
use becket_sys::clock::Now;
use rustls::client::UnbufferedClientConnection;

use super::connect::Attempt;
use super::facts::Facts;
use super::{Context, Net, Next, Phase, Said, Turn};
use crate::connection::kernel_tls::Tls;
use crate::leg::{Got, Leg};
use crate::pipes::Lent;
use becket_proto::close_reason::CloseReason;
use becket_tls::engine::Received;
use becket_tls::scratch::{Buffer, READ, Scratch};
use becket_tls::to_servers::ServerTls;

/// A connection whose server has answered and has not shown who it is.
#[derive(Debug)]
pub(super) struct Securing<N: Net> {
    pub(super) server: Leg<N::Server>,
    /// After the socket, so that its slot is given back when that is closed.
    pub(super) attempt: Attempt,
    tls: Box<Tls<UnbufferedClientConnection>>,
    /// Where it is asked for TLS in clear, until it agrees.
    clear: Option<Box<Clear>>,
}

/// TLS towards a server that is made, and of which nothing may have gone out.
#[derive(Debug)]
pub(super) struct Begun {
    tls: Box<Tls<UnbufferedClientConnection>>,
    clear: Option<Box<Clear>>,
}

/// A server that is asked for TLS.
#[derive(Debug)]
struct Clear {
    request: TlsRequest,
    /// Our ClientHello, for when it agrees.
    hello: Vec<u8>,
}

/// What TLS towards a server begins with, whichever server it will be.
#[derive(Debug)]
pub(super) struct TlsStart {
    /// The PROXY header, which is sent in clear.
    header: Vec<u8>,
    /// What the server has said before TLS, for the client.
    greeting: Vec<u8>,
    /// What the client has said already. It is sealed.
    early: Vec<u8>,
    client_ended: bool,
}

impl TlsStart {
    pub(super) fn new(header: Vec<u8>, said: Said<'_>) -> Self {
        Self {
            header,
            greeting: Vec::new(),
            early: said.bytes.to_vec(),
            client_ended: said.ended,
        }
    }

    /// Makes a ClientHello for a server: what goes out first is the header and this hello, or what asks for TLS.
    ///
    /// # Errors
    ///
    /// When TLS cannot begin.
    pub(super) fn hello(
        &self,
        tls: &ServerTls,
        server: &str,
        facts: &Facts,
        now: Now,
    ) -> io::Result<(Begun, HalfPipe<Lent>)> {
        let alpn = facts.tls.as_ref().and_then(|tls| tls.alpn.as_deref());
        let engine = tls.open(server, facts.server_name.as_deref(), alpn, now.unix.into());
        let mut engine = engine.map_err(io::Error::other)?;
        let (mut plain, mut hello) = (Buffer::at(0, 0), Buffer::at(0, HELLO));
        engine
            .receive(&mut [], &mut plain, &mut hello)
            .map_err(io::Error::other)?;
        let mut first = self.header.clone();
        let clear = tls.starttls().map(|protocol| {
            let request = TlsRequest::new(protocol, &mut first);
            let hello = hello.filled().to_vec();
            Box::new(Clear { request, hello })
        });
        if clear.is_none() {
            first.extend_from_slice(hello.filled());
        }
        let mut first = HalfPipe::from(first);
        if self.client_ended {
            first.end_source();
        }
        let tls = Box::new(Tls::Own(engine));
        Ok((Begun { tls, clear }, first))
    }
}

impl<N: Net> Securing<N> {
    pub(super) fn new(
        attempt: Attempt,
        server: Leg<N::Server>,
        Begun { tls, clear }: Begun,
    ) -> Self {
        Self {
            server,
            attempt,
            tls,
            clear,
        }
    }

    pub(super) fn advance(mut self, cx: &mut Context<'_, '_, N>, scratch: &mut Scratch) -> Next<N> {
        if cx.core.client.ready.failed {
            return Next::End(CloseReason::ClientReset);
        }
        loop {
            if let Err(error) = self.send(cx.turn) {
                return self.fail(error, cx);
            }
            if !self.server.ready.readable {
                return Next::Wait(Phase::Securing(self));
            }
            scratch.clear();
            if let Some(clear) = self.clear.take() {
                if let Err(error) = self.ask(clear, cx.turn, &mut scratch.plain) {
                    return self.fail(error, cx);
                }
                continue;
            }
            match self.take_in(cx.turn, scratch) {
                Ok(received) if received.ready => {
                    let said = Said {
                        bytes: scratch.plain.filled(),
                        ended: received.ended,
                    };
                    return self.leave(said, &mut scratch.sealed_out, cx);
                }
                Ok(_) => {}
                Err(error) => {
                    // The alert that says why.
                    let _lost = self.send(cx.turn);
                    return self.fail(error, cx);
                }
            }
        }
    }

    pub(super) fn expire(self, cx: &mut Context<'_, '_, N>) -> Next<N> {
        self.fail(io::ErrorKind::TimedOut.into(), cx)
    }

    pub(super) fn leave_server(self, cx: &mut Context<'_, '_, N>) -> Next<N> {
        drop(self.server);
        self.attempt.leave_server(cx)
    }

    fn fail(mut self, error: io::Error, cx: &mut Context<'_, '_, N>) -> Next<N> {
        drop(self.server);
        let tls = self.attempt.pending.pool.tls();
        // Else a few clients with names that no server knows would take all servers out of service.
        if error.kind() != io::ErrorKind::TimedOut && tls.is_some_and(ServerTls::speaks_for_client)
        {
            self.attempt.excused = true;
        }
        self.attempt.fail(error, cx)
    }

    /// Sends what waits, as far as the socket takes it.
    fn send(&mut self, turn: &Turn<'_, N>) -> io::Result<()> {
        let counter = &turn.counters.server_bytes_out;
        let sent = self
            .server
            .flush(&mut self.attempt.pending.to_server, counter);
        sent.map_err(|_| io::ErrorKind::ConnectionReset.into())
    }

    /// Receives once what the server says in clear. What it is told for that goes out next, at last our hello.
    fn ask(
        &mut self,
        mut clear: Box<Clear>,
        turn: &Turn<'_, N>,
        heard: &mut Buffer,
    ) -> io::Result<()> {
        let mut out = Vec::new();
        let asked = if self.hear(turn, heard)? {
            clear.request.handle(heard.filled(), &mut out)
        } else {
            Asked::Waiting
        };
        let pending = &mut self.attempt.pending;
        pending.to_server.offer(&out);
        match asked {
            Asked::Waiting => self.clear = Some(clear),
            Asked::Begin => {
                pending.to_server.offer(&clear.hello);
                if let Some(start) = &mut pending.tls_start {
                    start.greeting = clear.request.into_greeting();
                }
            }
            Asked::Not(why) => return Err(io::Error::other(why)),
        }
        Ok(())
    }

    /// Receives once. False where there is nothing yet.
    fn hear(&mut self, turn: &Turn<'_, N>, buffer: &mut Buffer) -> io::Result<bool> {
        match self
            .server
            .receive(buffer, READ, &turn.counters.server_bytes_in)
        {
            Ok(Got::Bytes(_)) => Ok(true),
            Ok(Got::Nothing) => Ok(false),
            Ok(Got::End) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(_) => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }

    /// Receives once and gives it to TLS. What the server said early is then in `scratch.plain`.
    fn take_in(&mut self, turn: &Turn<'_, N>, scratch: &mut Scratch) -> io::Result<Received> {
        let Scratch {
            sealed_in,
            plain,
            sealed_out,
        } = scratch;
        let engine = self.tls.engine_mut().ok_or(io::ErrorKind::Unsupported)?;
        sealed_in.push(engine.held());
        if !self.hear(turn, sealed_in)? {
            return Ok(Received::default());
        }
        let engine = self.tls.engine_mut().ok_or(io::ErrorKind::Unsupported)?;
        let received = engine.receive(sealed_in.filled_mut(), plain, sealed_out);
        self.attempt.pending.to_server.offer(sealed_out.filled());
        received.map_err(io::Error::other)
    }

    /// Keys are ready: seals what each side has said already, and relays.
    fn leave(mut self, said: Said<'_>, out: &mut Buffer, cx: &mut Context<'_, '_, N>) -> Next<N> {
        let pending = &mut self.attempt.pending;
        let (Some(start), Some(engine)) = (pending.tls_start.take(), self.tls.engine_mut()) else {
            return Next::End(CloseReason::Internal);
        };
        let kind = engine.handshake_kind();
        cx.turn.counters.count_server_handshake(kind);
        out.clear();
        let to_server = engine.seal(&start.early, start.client_ended, out);
        pending.to_server.offer(out.filled());
        let to_client = match &mut pending.client_tls {
            Some(engine) => {
                out.clear();
                let greeted = match &start.greeting[..] {
                    [] => Ok(()),
                    greeting => engine.seal(greeting, false, out),
                };
                let sealed = engine.seal(said.bytes, said.ended, out);
                pending.to_client.offer(out.filled());
                greeted.and(sealed)
            }
            None => {
                pending.to_client.offer(&start.greeting);
                pending.to_client.offer(said.bytes);
                Ok(())
            }
        };
        if said.ended {
            pending.to_client.end_source();
        }
        if to_server.and(to_client).is_err() {
            return Next::End(CloseReason::Internal);
        }
        self.attempt.join(self.server, Some(self.tls), cx)
    }
}

/// What TLS found, if that is what an error is about.
pub(super) fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// Room for a ClientHello with a post-quantum key share and a ticket; grows for a longer one.
const HELLO: usize = 2048;
