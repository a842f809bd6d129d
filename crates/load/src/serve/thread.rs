//! One thread of the responder: accepts, reads, answers, closes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

use super::service::{Responder, Service};
use crate::inquiry::{Inquiry, InquiryStep};
use crate::{Error, clock, wait};

/// One thread of the responder.
pub(super) struct ResponderThread {
    pub(super) listener: TcpListener,
    poll: Poll,
    callers: Vec<Option<Caller>>,
    free: Vec<usize>,
    /// Responses to be begun later: when, and for whom (slot and generation).
    due: BinaryHeap<Reverse<(Instant, usize, u64)>>,
    generation: u64,
    /// Requests in service, of all threads.
    pub(super) in_service: Arc<AtomicUsize>,
    service: Service,
    body: u64,
    input: Vec<u8>,
    /// What bodies are made of.
    filler: Vec<u8>,
}

struct Caller {
    socket: TcpStream,
    inquiry: Inquiry,
    /// Bytes of head still to be sent, then bytes of body.
    head: Vec<u8>,
    body_left: u64,
    phase: Phase,
    generation: u64,
    registered: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Reading,
    Serving,
    Writing,
}

impl ResponderThread {
    pub(super) fn new(responder: &Responder, address: SocketAddr) -> Result<Self, Error> {
        let listener = becket_sys::socket::listen(address, &listen_options(responder.threads > 1))
            .map_err(|e| Error::os(format!("listening on {address}"), e))?;
        listener
            .set_nonblocking(true)
            .map_err(|e| Error::os("O_NONBLOCK", e))?;
        let mut listener = TcpListener::from_std(listener);
        let poll = Poll::new().map_err(|e| Error::os("epoll", e))?;
        poll.registry()
            .register(&mut listener, LISTENER, Interest::READABLE)
            .map_err(|e| Error::os("epoll_ctl", e))?;
        Ok(Self {
            listener,
            poll,
            callers: Vec::new(),
            free: Vec::new(),
            due: BinaryHeap::new(),
            generation: 0,
            in_service: Arc::default(),
            service: responder.service,
            body: responder.body,
            input: vec![0; CHUNK],
            filler: vec![b'b'; CHUNK],
        })
    }

    pub(super) fn work(&mut self, stop: &AtomicBool) -> Result<(), Error> {
        let mut events = Events::with_capacity(1024);
        let mut accepting = false;
        while !stop.load(Ordering::Relaxed) {
            let time = if accepting {
                Duration::ZERO
            } else {
                self.next_due()
            };
            wait::precisely(&mut self.poll, &mut events, time)
                .map_err(|e| Error::os("epoll_wait", e))?;
            for event in &events {
                match event.token() {
                    LISTENER => accepting = true,
                    Token(token) => self.turn(token - 1),
                }
            }
            accepting = accepting && self.accept();
            self.serve_due();
        }
        Ok(())
    }

    fn next_due(&self) -> Duration {
        let now = clock::now();
        let due = self
            .due
            .peek()
            .map(|Reverse((at, ..))| at.saturating_duration_since(now));
        due.unwrap_or(IDLE).min(IDLE)
    }

    /// Accepts a batch; returns whether there may be more.
    fn accept(&mut self) -> bool {
        for _ in 0..ACCEPTS_PER_TURN {
            match self.listener.accept() {
                Ok((socket, _)) => self.greet(socket),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
                // The caller has gone again, or there is no descriptor: the next turn will see.
                Err(_) => return true,
            }
        }
        true
    }

    fn greet(&mut self, socket: TcpStream) {
        self.generation += 1;
        let caller = Caller {
            socket,
            inquiry: Inquiry::new(self.body),
            head: Vec::new(),
            body_left: 0,
            phase: Phase::Reading,
            generation: self.generation,
            registered: false,
        };
        let token = match self.free.pop() {
            Some(token) => token,
            None => {
                self.callers.push(None);
                self.callers.len() - 1
            }
        };
        self.callers[token] = Some(caller);
        self.turn(token);
    }

    fn turn(&mut self, token: usize) {
        let Some(mut caller) = self.callers.get_mut(token).and_then(Option::take) else {
            return;
        };
        let goes_on = self.attend(&mut caller, token).unwrap_or(false);
        if !goes_on {
            if caller.phase == Phase::Serving {
                self.in_service.fetch_sub(1, Ordering::Relaxed);
            }
            self.free.push(token);
            return;
        }
        if !caller.registered {
            let interest = Interest::READABLE | Interest::WRITABLE;
            if self
                .poll
                .registry()
                .register(&mut caller.socket, Token(token + 1), interest)
                .is_err()
            {
                self.free.push(token);
                return;
            }
            caller.registered = true;
        }
        self.callers[token] = Some(caller);
    }

    /// Does what can be done for a caller without waiting; returns whether the connection goes on.
    fn attend(&mut self, caller: &mut Caller, token: usize) -> io::Result<bool> {
        loop {
            match caller.phase {
                Phase::Serving => return Ok(true),
                Phase::Reading => {
                    if !self.listen_to(caller)? {
                        return Ok(caller.phase == Phase::Reading && !caller.inquiry.has_ended());
                    }
                    self.begin(caller, token);
                }
                Phase::Writing => {
                    if !self.answer(caller)? {
                        return Ok(true);
                    }
                    if caller.inquiry.closes() {
                        return Ok(false);
                    }
                    caller.inquiry.restart();
                    caller.phase = Phase::Reading;
                }
            }
        }
    }

    /// Reads until a request is whole; false when more must come or none will.
    fn listen_to(&mut self, caller: &mut Caller) -> io::Result<bool> {
        if caller.inquiry.resume() == InquiryStep::Whole {
            return Ok(true);
        }
        loop {
            match caller.socket.read(&mut self.input) {
                Ok(0) => {
                    caller.inquiry.end();
                    return Ok(false);
                }
                Ok(count) => match caller.inquiry.feed(self.input.get(..count).unwrap_or(&[])) {
                    InquiryStep::Whole => return Ok(true),
                    InquiryStep::Partial => {}
                    InquiryStep::Malformed => return Err(io::ErrorKind::InvalidData.into()),
                },
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Begins the response, or puts it off for the service time.
    fn begin(&mut self, caller: &mut Caller, token: usize) {
        if !self.service.time.is_zero() {
            let n = self.in_service.fetch_add(1, Ordering::Relaxed) + 1;
            let at = clock::now() + self.service.time_of(n);
            self.due.push(Reverse((at, token, caller.generation)));
            caller.phase = Phase::Serving;
            return;
        }
        write_head(caller);
    }

    fn serve_due(&mut self) {
        let now = clock::now();
        while let Some(Reverse((_, token, generation))) = self
            .due
            .peek()
            .copied()
            .filter(|Reverse((at, ..))| *at <= now)
        {
            self.due.pop();
            let caller = self.callers.get_mut(token).and_then(Option::as_mut);
            if let Some(caller) =
                caller.filter(|c| c.generation == generation && c.phase == Phase::Serving)
            {
                self.in_service.fetch_sub(1, Ordering::Relaxed);
                write_head(caller);
                self.turn(token);
            }
        }
    }

    /// Sends as much as goes; returns whether all has gone.
    fn answer(&self, caller: &mut Caller) -> io::Result<bool> {
        loop {
            let body = usize::try_from(caller.body_left)
                .unwrap_or(CHUNK)
                .min(CHUNK);
            let body = self.filler.get(..body).unwrap_or(&[]);
            if caller.head.is_empty() && body.is_empty() {
                return Ok(true);
            }
            let parts = [IoSlice::new(&caller.head), IoSlice::new(body)];
            match caller.socket.write_vectored(&parts) {
                Ok(count) => {
                    let of_head = count.min(caller.head.len());
                    caller.head.drain(..of_head);
                    caller.body_left -= (count - of_head) as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

fn write_head(caller: &mut Caller) {
    let (length, close) = (caller.inquiry.wanted(), caller.inquiry.closes());
    let connection = if close { "close" } else { "keep-alive" };
    let head =
        format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: {connection}\r\n\r\n");
    caller.head.clear();
    caller.head.extend_from_slice(head.as_bytes());
    caller.body_left = length;
    caller.phase = Phase::Writing;
}

fn listen_options(shared: bool) -> becket_sys::socket::ListenOptions {
    becket_sys::socket::ListenOptions {
        reuse_port: shared,
        ..Default::default()
    }
}

const LISTENER: Token = Token(0);
/// One send of a large body, and one read of an upload.
const CHUNK: usize = 128 * 1024;
const ACCEPTS_PER_TURN: usize = 64;
/// How soon the stop flag is seen.
const IDLE: Duration = Duration::from_millis(100);
