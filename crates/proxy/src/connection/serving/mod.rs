//! Answers requests for files, one after the other. Can also redirect every request to `https`.
//!
//! Client data is collected until the head of a request is complete. `becket-http` parses the head
//! and selects the part of the file to send; the backend's [`FileService`] finds the file. The head
//! of the response and as much of the file as fits are sent together. A pipelined request waits
//! until the response is sent, and no more data is read until then. If file data is not in memory,
//! a reader thread reads it, and the connection waits for the result.
//!
//! If a file turns out to be shorter than its announced length, the connection is closed without
//! close_notify, or reset without TLS. So the client does not mistake a part for the whole file.
//!
//! A client can occupy memory for the requests in one read, for one read of a file, and for one
//! open file. `timeouts.request` limits the time for the head, `timeouts.keep-alive` the wait for
//! the next request, and `timeouts.idle` the response.
//!
//! Source: RFC 9112.

mod body;
mod reply;
mod site;

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Duration;
use std::{io, mem};

use becket_http::answer::note;
use becket_http::head::{self, Head, HeadRefusal};
use becket_http::status::StatusCode;
use becket_proto::half_pipe::{HalfPipe, Next};
use rustls::server::UnbufferedServerConnection;

use self::reply::{Content, Reply};
pub(super) use self::site::Site;
use super::context::{Context, Net, Side, TICKETS_WAIT};
use super::half::{Half, Tls};
use super::reached::{Advance, Reached};
use crate::backend::awaited::{Awaited, AwaitedAnswer};
use crate::backend::file_service::FileService;
use crate::pipes::Lent;
use becket_http::docroot::{AtPath, FileKey, OpenFile};
use becket_log::access::{AccessLine, RequestRecord};
use becket_proto::close_reason::CloseReason;
use becket_tls::engine::Engine;
use becket_tls::scratch::Scratch;

#[derive(Debug)]
pub(super) struct ServingFiles {
    site: Site,
    /// TLS with the client; `None` without TLS.
    tls: Option<Tls<UnbufferedServerConnection>>,
    to_client: HalfPipe<Lent>,
    /// Received bytes of unanswered requests.
    said: Vec<u8>,
    /// Number of bytes at the start of `said` that were searched for the end of a head.
    searched: usize,
    /// `true` if `said` begins with a complete request line.
    has_line: bool,
    /// Length of the head of the current request.
    head: usize,
    doing: Doing,
    answered: u32,
    /// `true` if the client has ended its stream.
    ended: bool,
    /// `true` if the connection closes after the current response.
    is_last: bool,
    record: Option<Box<RequestRecord>>,
}

#[derive(Debug)]
enum Doing {
    Hearing,
    /// Waits for a reader thread that looks up a file. With a `Reply`, the file is the error page
    /// of that reply.
    Finding(Awaited<AtPath>, FileKey, Option<Reply>),
    Sending(FileBody),
}

/// Unsent part of a file.
#[derive(Debug)]
struct FileBody {
    file: Arc<OpenFile>,
    rest: Range<u64>,
    /// Read in progress on a reader thread.
    asked: Option<Awaited<io::Result<Vec<u8>>>>,
    /// `true` if the worker reads the file, because sendfile(2) does not support it.
    is_read: bool,
}

/// The event for which the connection waits. Each has its own timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientWait {
    NextRequest,
    RestOfHead,
    Answer,
}

enum ServeStep {
    /// The step made progress, so another step may be possible.
    Moved,
    Waits,
    Over,
}

impl ServingFiles {
    /// Creates the phase for a client without TLS or after its handshake. `said` contains the
    /// client's data so far.
    pub(super) fn new<N: Net>(
        site: Site,
        (tls, to_client): (Option<Engine>, HalfPipe<Lent>),
        mut said: HalfPipe<Lent>,
        cx: &mut Context<'_, '_, N>,
    ) -> Box<Self> {
        let serving = Box::new(Self {
            site,
            tls: tls.map(Tls::Own),
            to_client,
            said: said.take_held(),
            searched: 0,
            has_line: false,
            head: 0,
            doing: Doing::Hearing,
            answered: 0,
            ended: said.source_ended(),
            is_last: false,
            record: None,
        });
        cx.core.deadline = serving.deadline(cx);
        serving
    }

    pub(super) fn advance<N: Net>(
        mut self: Box<Self>,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Advance<Box<Self>, N> {
        if cx.core.client.ready.failed {
            return Advance::Reached(self.abort(CloseReason::ClientReset, cx));
        }
        let before = (self.waits_for(), self.answered);
        let sent = cx.core.client.traffic.sent;
        let mut left = cx.turn.limits.bytes_per_turn;
        let stepped = loop {
            match self.step(&mut left, cx, scratch) {
                Ok(ServeStep::Moved) if left > 0 => {}
                stepped => break stepped,
            }
        };
        if before != (self.waits_for(), self.answered) || cx.core.client.traffic.sent > sent {
            cx.core.deadline = self.deadline(cx);
        }
        if self.is_unfinished() {
            cx.core.deadline = cx.core.deadline.min(cx.core.handshake_until);
        }
        match stepped {
            Ok(ServeStep::Moved) => Advance::Yield(self),
            Ok(ServeStep::Waits) => Advance::Wait(self),
            Ok(ServeStep::Over) => {
                let is_cut = self.ended && !self.is_last && !self.said.is_empty();
                let reason = if is_cut {
                    CloseReason::ClientTruncated
                } else {
                    CloseReason::Finished
                };
                Advance::close(reason, self.to_client)
            }
            Err(reason) => Advance::Reached(self.abort(reason, cx)),
        }
    }

    pub(super) fn expire<N: Net>(
        mut self: Box<Self>,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Advance<Box<Self>, N> {
        if self.is_unfinished() && cx.turn.now.running >= cx.core.handshake_until {
            return Advance::Reached(self.abort(CloseReason::HandshakeTimeout, cx));
        }
        if self.to_client.is_holding() {
            self.to_client.release();
            cx.core.deadline = self.deadline(cx);
            return Advance::Go(self);
        }
        let reason = match self.waits_for() {
            ClientWait::Answer => CloseReason::IdleTimeout,
            ClientWait::NextRequest if self.answered > 0 => {
                // No request is pending, so the connection is closed with close_notify.
                match self.end(cx, scratch) {
                    Ok(_) => return Advance::close(CloseReason::Finished, self.to_client),
                    Err(reason) => reason,
                }
            }
            ClientWait::NextRequest | ClientWait::RestOfHead => CloseReason::RequestTimeout,
        };
        Advance::Reached(self.abort(reason, cx))
    }

    /// Takes the records from rustls; see [`Tls::leave_rustls`].
    pub(super) fn leave_rustls(&mut self) -> Result<bool, CloseReason> {
        self.tls.as_mut().map_or(Ok(false), Tls::leave_rustls)
    }

    fn waits_for(&self) -> ClientWait {
        match &self.doing {
            Doing::Hearing if self.to_client.waits() => ClientWait::Answer,
            Doing::Hearing if self.said.is_empty() => ClientWait::NextRequest,
            Doing::Hearing => ClientWait::RestOfHead,
            _ => ClientWait::Answer,
        }
    }

    /// Returns `true` if the connection is idle after a response.
    pub(super) fn rests(&self) -> bool {
        let waits = matches!(self.waits_for(), ClientWait::NextRequest);
        waits && self.answered > 0 && !self.is_unfinished()
    }

    /// Returns the time at which [`Self::expire`] must be called if there is no progress. An idle
    /// connection expires earlier while the process drains.
    pub(super) fn deadline<N: Net>(&self, cx: &Context<'_, '_, N>) -> Duration {
        let timeouts = cx.turn.timeouts;
        let mut patience = match self.waits_for() {
            ClientWait::Answer => timeouts.idle,
            ClientWait::RestOfHead => timeouts.request,
            ClientWait::NextRequest if cx.turn.draining => {
                timeouts.drain_idle.min(timeouts.keep_alive)
            }
            ClientWait::NextRequest if self.answered == 0 => timeouts.request,
            ClientWait::NextRequest => timeouts.keep_alive,
        };
        if self.to_client.is_holding() {
            patience = patience.min(TICKETS_WAIT);
        }
        cx.turn.now.running + patience
    }

    /// Returns `true` if the client has not finished its handshake, which is possible with early
    /// data. The handshake timeout then still applies.
    fn is_unfinished(&self) -> bool {
        let engine = self.tls.as_ref().and_then(Tls::engine);
        engine.is_some_and(Engine::is_unfinished)
    }

    /// Aborts the connection so that its data does not look complete to the client.
    pub(super) fn abort<N: Net>(
        mut self: Box<Self>,
        reason: CloseReason,
        cx: &Context<'_, '_, N>,
    ) -> Reached<N> {
        self.log(cx);
        match reason {
            CloseReason::ClientReset => Reached::End(reason),
            _ => Reached::Close(reason, self.to_client),
        }
    }

    /// Runs one step. `left` is the remaining byte budget of this turn.
    fn step<N: Net>(
        &mut self,
        left: &mut usize,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Result<ServeStep, CloseReason> {
        if self.to_client.waits() {
            if cx.core.client.ready.writable {
                self.half(cx).flush(&mut HalfPipe::default())?;
            }
            return Ok(if self.to_client.waits() {
                ServeStep::Waits
            } else {
                ServeStep::Moved
            });
        }
        scratch.clear();
        let before = cx.core.client.traffic.sent;
        let step = match mem::replace(&mut self.doing, Doing::Hearing) {
            Doing::Hearing => self.hear(cx, scratch),
            Doing::Finding(asked, wanted, reply) => match asked.take() {
                AwaitedAnswer::Waiting => {
                    self.doing = Doing::Finding(asked, wanted, reply);
                    Ok(ServeStep::Waits)
                }
                outcome => self.go_on(outcome, &wanted, reply, cx, scratch),
            },
            Doing::Sending(body) => self.send(body, cx, scratch),
        };
        let sent = (cx.core.client.traffic.sent - before) as usize;
        *left = left.saturating_sub(scratch.plain.len().max(sent).max(LEAST_WORK));
        step
    }

    /// Returns the client's side of a relay; there is no server side.
    fn half<'a, N: Net>(
        &'a mut self,
        cx: &'a mut Context<'_, '_, N>,
    ) -> Half<'a, N::Client, UnbufferedServerConnection> {
        let leg = (&mut cx.core.client, self.tls.as_mut());
        let shared = (cx.turn.counters, cx.turn.limits);
        Half::new(Side::Client, leg, &mut self.to_client, shared)
    }

    /// Answers the next request if its head is complete, otherwise reads more data.
    fn hear<N: Net>(
        &mut self,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Result<ServeStep, CloseReason> {
        if self.is_last {
            return self.end(cx, scratch);
        }
        if self.searched == 0 {
            self.said.drain(..head::blank(&self.said));
        }
        let most = cx.turn.limits.request_head;
        let end = head::end(&self.said, self.searched);
        if let Some(length) = end.filter(|length| *length <= most) {
            self.head = length;
            self.respond(None, cx, scratch)?;
            return Ok(ServeStep::Moved);
        }
        let is_too_long = end.is_some() || self.said.len() > most;
        if let Err(status) = self.check(is_too_long, most) {
            self.note_request(None, cx);
            self.head = self.said.len();
            self.write(Reply::refusing(HeadRefusal::last(status)), cx, scratch)?;
            return Ok(ServeStep::Moved);
        }
        self.searched = self.said.len();
        if self.ended {
            return self.end(cx, scratch);
        }
        self.receive(cx, scratch)
    }

    /// Returns an error status if the received bytes are not the start of a request, or if a head
    /// exceeds `most` bytes.
    fn check(&mut self, is_too_long: bool, most: usize) -> Result<(), StatusCode> {
        self.has_line = self.has_line || head::check_line(&self.said, self.searched)?;
        if is_too_long {
            Err(head::too_long(&self.said[..most]))
        } else {
            Ok(())
        }
    }

    fn receive<N: Net>(
        &mut self,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Result<ServeStep, CloseReason> {
        let mut onward = HalfPipe::default();
        let mut client = self.half(cx);
        if !client.leg.ready.readable && !client.leg.ready.ended && !client.waits() {
            return Ok(ServeStep::Waits);
        }
        onward.handle_readable();
        client.take(&mut onward, scratch)?;
        // With kernel TLS, the socket may still contain a record for which no event follows.
        client.leg.ready.readable |= onward.next() == Next::Read;
        self.ended |= onward.source_ended();
        self.said.extend_from_slice(scratch.plain.filled());
        Ok(ServeStep::Moved)
    }

    /// Answers the first request in `said`. `found` is the result of a reader thread's lookup, if
    /// there was one.
    fn respond<N: Net>(
        &mut self,
        found: Option<AtPath>,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Result<(), CloseReason> {
        let said = mem::take(&mut self.said);
        let parsed = head::parse(&said[..self.head]);
        if found.is_none() {
            self.note_request(parsed.as_ref().ok(), cx);
        }
        let decided = match parsed {
            Ok(head) => self
                .site
                .decide(&head, found, (cx.turn.challenges, cx.turn.now)),
            Err(status) => ControlFlow::Continue(Reply::refusing(HeadRefusal::last(status))),
        };
        self.said = said;
        let service = self.site.service();
        let (wanted, reply) = match decided {
            ControlFlow::Break(wanted) => (wanted, None),
            ControlFlow::Continue(reply) => {
                let docroot = service.map(FileService::docroot);
                let page = docroot.and_then(|docroot| docroot.page(reply.status));
                match page {
                    Some(wanted) => (wanted, Some(reply)),
                    None => return self.write(reply, cx, scratch),
                }
            }
        };
        let Some(service) = service else {
            return Err(CloseReason::Internal);
        };
        // This looks up only an error page, because `decide` has already looked up the requested
        // file.
        let found = reply
            .as_ref()
            .and_then(|_| service.find(&wanted, cx.turn.now.mono));
        match (reply, found) {
            (Some(reply), Some(found)) => self.write(reply.showing(found), cx, scratch),
            (reply, _) => {
                cx.turn.counters.file_waits.add(1);
                let asked = service.find_later(&wanted, cx.turn.place);
                self.doing = Doing::Finding(asked, wanted, reply);
                Ok(())
            }
        }
    }

    /// Continues the response after a reader thread's lookup.
    fn go_on<N: Net>(
        &mut self,
        outcome: AwaitedAnswer<AtPath>,
        wanted: &FileKey,
        reply: Option<Reply>,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Result<ServeStep, CloseReason> {
        let found = match (outcome, self.site.service()) {
            (AwaitedAnswer::Done(found), Some(service)) => {
                service.keep(wanted, found, cx.turn.now.mono)
            }
            _ => AtPath::Nothing(StatusCode::ServiceUnavailable),
        };
        match reply {
            None => self.respond(Some(found), cx, scratch)?,
            Some(reply) => self.write(reply.showing(found), cx, scratch)?,
        }
        Ok(ServeStep::Moved)
    }

    /// Sends the head of a response, and as much of the body as is available.
    fn write<N: Net>(
        &mut self,
        reply: Reply,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Result<(), CloseReason> {
        let head_only = self.said.starts_with(b"HEAD ");
        self.said.drain(..self.head);
        if self.said.is_empty() {
            self.said = Vec::new();
        }
        (self.head, self.searched, self.has_line) = (0, 0, false);
        self.answered += 1;
        self.is_last =
            !reply.persists || self.answered >= cx.turn.limits.requests || cx.turn.draining;
        cx.turn.counters.file_requests[reply.status as usize].add(1);
        if let Some(record) = &mut self.record {
            record.status = reply.status.number();
        }
        let docroot = self.site.service().map(FileService::docroot);
        let hsts = docroot.and_then(|docroot| docroot.keys.hsts.as_ref());
        let hsts = hsts.filter(|_| self.tls.is_some());
        let head = reply.head(cx.turn.now.unix.as_secs(), hsts, self.is_last);
        scratch.plain.push(head.as_bytes());
        match reply.content {
            Content::File(file, rest) if !head_only && !rest.is_empty() => {
                let body = FileBody {
                    file,
                    rest,
                    asked: None,
                    is_read: false,
                };
                return self.fill(body, cx, scratch);
            }
            Content::Note if !head_only => {
                let text = note(reply.status);
                self.count_body(text.len());
                scratch.plain.push(text.as_bytes());
            }
            Content::Text(text) if !head_only => {
                self.count_body(text.len());
                scratch.plain.push(text.as_bytes());
            }
            _ => {}
        }
        self.put(self.is_last, cx, scratch)?;
        self.log(cx);
        Ok(())
    }

    /// Ends the connection after the last response. With TLS, sends close_notify, unless it was
    /// already sent.
    fn end<N: Net>(
        &mut self,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Result<ServeStep, CloseReason> {
        scratch.clear();
        self.put(true, cx, scratch)?;
        let is_sent = match &mut self.tls {
            Some(Tls::Kernel(kernel)) => kernel.close_notify(&mut cx.core.client.socket),
            _ => true,
        };
        Ok(if is_sent {
            ServeStep::Over
        } else {
            ServeStep::Waits
        })
    }

    /// Sends the buffer, followed by close_notify if `end` is set and becket encrypts.
    fn put<N: Net>(
        &mut self,
        end: bool,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Result<(), CloseReason> {
        let Scratch {
            plain, sealed_out, ..
        } = scratch;
        let bytes = match self.tls.as_mut().and_then(Tls::engine_mut) {
            None => plain.filled(),
            Some(engine) => {
                sealed_out.clear();
                sealed_out.push(&self.to_client.take_held());
                let sealed = engine.seal(plain.filled(), end, sealed_out);
                sealed.map_err(|_| CloseReason::Internal)?;
                sealed_out.filled()
            }
        };
        self.half(cx).send(bytes, &mut HalfPipe::default())
    }

    /// Creates the log record of a request, if there is an access log.
    fn note_request<N: Net>(&mut self, head: Option<&Head<'_>>, cx: &Context<'_, '_, N>) {
        self.record = cx.turn.access.map(|_| {
            let facts = &cx.core.facts;
            let asked = head.map(|head| (head.method, head.target));
            Box::new(RequestRecord::new(facts, asked, cx.turn.now))
        });
    }

    fn count_body(&mut self, bytes: usize) {
        if let Some(record) = &mut self.record {
            record.bytes += bytes as u64;
        }
    }

    fn log<N: Net>(&mut self, cx: &Context<'_, '_, N>) {
        if let (Some(mut record), Some(access)) = (self.record.take(), cx.turn.access) {
            record.took = cx.turn.now.mono.saturating_sub(record.began);
            access.send(AccessLine::Request(record));
        }
    }
}

/// Minimum number of bytes by which a step reduces the turn's byte budget, so that many small
/// requests of one client do not delay other clients.
const LEAST_WORK: usize = 4096;
