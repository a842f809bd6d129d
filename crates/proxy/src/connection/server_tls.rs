//! TLS handshake with the server, after the connect.
//!
//! The first write after the connect contains the plaintext PROXY header and the ClientHello.
//! Client data is sent only after there are traffic keys, so until then another server can be tried
//! without harm.
//!
//! With `backend.tls.starttls`, becket first requests TLS in plaintext
//! ([`becket_proto::starttls::TlsRequest`]), and sends the ClientHello after the server has agreed.
//! The server's greeting is relayed to the client.
//!
//! The memory for a server is limited: a greeting, a record, or a message with a certificate chain
//! of `limits.certificate-chain`.
//!
//! Source: RFC 8446 section 4, RFC 5246 section 7; [`becket_tls::to_servers`] creates the engine.

use std::io;

use becket_proto::half_pipe::HalfPipe;
use becket_proto::starttls::{Asked, TlsRequest};
use becket_sys::clock::Now;
use rustls::client::UnbufferedClientConnection;

use super::context::EarlyBytes;
use super::half::Tls;
use crate::leg::{Got, Leg};
use crate::metrics::Counters;
use crate::pipes::Lent;
use crate::socket::StreamSocket;
use becket_log::facts::Facts;
use becket_tls::engine::Received;
use becket_tls::scratch::{Buffer, READ, Scratch};
use becket_tls::to_servers::ServerTls;

#[derive(Debug)]
pub(super) struct ServerHandshake {
    pub(super) tls: Box<Tls<UnbufferedClientConnection>>,
    /// STARTTLS dialog in progress; `None` without STARTTLS, or after the server has agreed.
    request: Option<Box<ClearRequest>>,
    /// Plaintext greeting of the server, to be relayed to the client.
    pub(super) greeting: Vec<u8>,
}

#[derive(Debug)]
struct ClearRequest {
    request: TlsRequest,
    /// The ClientHello, sent after the server agrees.
    hello: Vec<u8>,
}

/// First data for the server. It is kept until a connect succeeds, so that each attempt can send
/// it.
#[derive(Debug)]
pub(super) struct TlsStart {
    /// The PROXY header, sent in plaintext.
    header: Vec<u8>,
    /// Data that the client has sent so far, to be encrypted for the server.
    pub(super) early: Vec<u8>,
    pub(super) client_ended: bool,
}

impl TlsStart {
    pub(super) fn new(header: Vec<u8>, said: EarlyBytes<'_>) -> Self {
        Self {
            header,
            early: said.bytes.to_vec(),
            client_ended: said.ended,
        }
    }

    /// Creates a handshake with a server, and the first bytes to send: the PROXY header, and the
    /// ClientHello or the STARTTLS request.
    ///
    /// # Errors
    ///
    /// Fails if TLS cannot start.
    pub(super) fn hello(
        &self,
        tls: &ServerTls,
        server: &str,
        facts: &Facts,
        now: Now,
    ) -> io::Result<(ServerHandshake, HalfPipe<Lent>)> {
        let alpn = facts.tls.as_ref().and_then(|tls| tls.alpn.as_deref());
        let engine = tls.open(server, facts.server_name.as_deref(), alpn, now.unix.into());
        let mut engine = engine.map_err(io::Error::other)?;
        let (mut plain, mut hello) = (Buffer::at(0, 0), Buffer::at(0, HELLO));
        engine
            .receive(&mut [], &mut plain, &mut hello)
            .map_err(io::Error::other)?;
        let mut first = self.header.clone();
        let request = tls.starttls().map(|protocol| {
            let request = TlsRequest::new(protocol, &mut first);
            let hello = hello.filled().to_vec();
            Box::new(ClearRequest { request, hello })
        });
        if request.is_none() {
            first.extend_from_slice(hello.filled());
        }
        let mut first = HalfPipe::from(first);
        if self.client_ended {
            first.end_source();
        }
        let handshake = ServerHandshake {
            tls: Box::new(Tls::Own(engine)),
            request,
            greeting: Vec::new(),
        };
        Ok((handshake, first))
    }
}

impl ServerHandshake {
    /// Sends pending bytes and receives until there are traffic keys or no more data. If the result
    /// is `ready`, `scratch.plain` contains the data that the server sent after its handshake.
    ///
    /// # Errors
    ///
    /// Returns the cause of a failed handshake, after trying to send an alert to the server.
    pub(super) fn advance<S: StreamSocket>(
        &mut self,
        server: &mut Leg<S>,
        to_server: &mut HalfPipe<Lent>,
        counters: &Counters,
        scratch: &mut Scratch,
    ) -> io::Result<Received> {
        loop {
            send(server, to_server, counters)?;
            if !server.ready.readable {
                return Ok(Received::default());
            }
            scratch.clear();
            if let Some(request) = self.request.take() {
                let heard = &mut scratch.plain;
                if receive(server, heard, counters)? {
                    self.ask(request, heard.filled(), to_server)?;
                } else {
                    self.request = Some(request);
                }
                continue;
            }
            let received = self.take_in(server, counters, scratch);
            to_server.offer(scratch.sealed_out.filled());
            match received {
                Ok(received) if received.ready => return Ok(received),
                Ok(_) => {}
                Err(error) => {
                    // Sends the alert of rustls, if the socket accepts it.
                    let _lost = send(server, to_server, counters);
                    return Err(error);
                }
            }
        }
    }

    /// Passes plaintext data from the server to the STARTTLS dialog. Queues the answer or, when the
    /// server agrees, the ClientHello.
    fn ask(
        &mut self,
        mut clear: Box<ClearRequest>,
        heard: &[u8],
        to_server: &mut HalfPipe<Lent>,
    ) -> io::Result<()> {
        let mut out = Vec::new();
        let asked = clear.request.handle(heard, &mut out);
        to_server.offer(&out);
        match asked {
            Asked::Waiting => self.request = Some(clear),
            Asked::Begin => {
                to_server.offer(&clear.hello);
                self.greeting = clear.request.into_greeting();
            }
            Asked::Not(why) => return Err(io::Error::other(why)),
        }
        Ok(())
    }

    /// Receives once from the server and passes the data to rustls.
    fn take_in<S: StreamSocket>(
        &mut self,
        server: &mut Leg<S>,
        counters: &Counters,
        scratch: &mut Scratch,
    ) -> io::Result<Received> {
        let Scratch {
            sealed_in,
            plain,
            sealed_out,
        } = scratch;
        let engine = self.tls.engine_mut().ok_or(io::ErrorKind::Unsupported)?;
        sealed_in.push(engine.held());
        if !receive(server, sealed_in, counters)? {
            return Ok(Received::default());
        }
        let received = engine.receive(sealed_in.filled_mut(), plain, sealed_out);
        received.map_err(io::Error::other)
    }
}

/// Sends pending bytes until none is left or the socket is full.
fn send<S: StreamSocket>(
    server: &mut Leg<S>,
    to_server: &mut HalfPipe<Lent>,
    counters: &Counters,
) -> io::Result<()> {
    let sent = server.flush(to_server, &counters.server_bytes_out);
    sent.map_err(|_| io::ErrorKind::ConnectionReset.into())
}

/// Receives once. Returns `false` if there is no data yet.
fn receive<S: StreamSocket>(
    server: &mut Leg<S>,
    buffer: &mut Buffer,
    counters: &Counters,
) -> io::Result<bool> {
    match server.receive(buffer, READ, &counters.server_bytes_in) {
        Ok(Got::Bytes(_)) => Ok(true),
        Ok(Got::Nothing) => Ok(false),
        Ok(Got::End) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(_) => Err(io::ErrorKind::ConnectionReset.into()),
    }
}

pub(super) fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// Initial size of the ClientHello buffer in bytes: enough for a post-quantum key share and a
/// ticket.
const HELLO: usize = 2048;
