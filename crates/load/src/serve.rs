//! The responder: the cheapest HTTP/1 server there is, for standing behind a terminator.
//!
//! A request that comes in one piece costs `accept4`, `recv`, `send`, `close` and nothing else: no
//! registration, no parsing beyond three headers. `Connection: close` and HTTP/1.0 are answered by
//! closing; the path `/bytes/N` asks for a body of N bytes.
//!
//! A service time makes it a model of an application. It is constant, or grows with the number `n` of
//! requests in service: `time * max(1, n / knee)^2`. The formula is fixed before a run and printed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

use crate::cli::Cli;
use crate::inquiry::{Inquiry, Step};
use crate::{Error, clock, wait};

/// What the responder is to be.
#[derive(Clone, Debug)]
pub struct Responder {
    address: SocketAddr,
    threads: usize,
    cpus: Vec<usize>,
    body: u64,
    service: Service,
}

/// How long a response takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Service {
    /// The least time.
    pub time: Duration,
    /// The number of requests in service from which it grows.
    pub knee: Option<usize>,
}

impl Service {
    /// Returns the time of a request that is one of `n` in service.
    pub fn time_of(self, n: usize) -> Duration {
        let load = self
            .knee
            .map_or(1.0, |knee| (n as f64 / knee as f64).max(1.0));
        self.time.mul_f64(load * load)
    }
}

impl Cli {
    /// Makes the responder's plan.
    ///
    /// # Errors
    /// [`Error::Plan`] for an address that cannot be understood or is not on this machine.
    pub fn responder(&self, address: &str) -> Result<Responder, Error> {
        let wrong = |why: String| Error::Plan(format!("--serve {address}: {why}"));
        let mut found = address
            .to_socket_addrs()
            .map_err(|e| wrong(e.to_string()))?;
        let socket = found
            .next()
            .ok_or_else(|| wrong("no such address".to_owned()))?;
        let cpus = match self.cpus.as_deref() {
            None | Some("none") => Vec::new(),
            Some(list) => list
                .split(',')
                .map(|n| {
                    n.trim()
                        .parse()
                        .map_err(|_| wrong(format!("`{n}` is not a CPU")))
                })
                .collect::<Result<_, _>>()?,
        };
        Ok(Responder {
            address: socket,
            threads: self.threads.map_or(1, std::num::NonZeroUsize::get),
            cpus,
            body: self.body,
            service: Service {
                time: self.service_time,
                knee: self.service_knee.map(std::num::NonZeroUsize::get),
            },
        })
    }
}

/// Answers until `stop` is set.
///
/// # Errors
/// [`Error::Os`] when the address is in use or may not be bound.
pub fn run(responder: &Responder, stop: &Arc<AtomicBool>) -> Result<(), Error> {
    // As many as the system gives: a responder with fewer callers does not need them.
    becket_sys::rlimit::raise_open_files(DESCRIPTORS).unwrap_or(0);
    let first = Desk::new(responder, responder.address)?;
    let bound = first
        .listener
        .local_addr()
        .map_err(|e| Error::os("getsockname", e))?;
    let in_service = Arc::new(AtomicUsize::new(0));
    let mut desks = vec![first];
    for _ in 1..responder.threads {
        desks.push(Desk::new(responder, bound)?);
    }
    println!("listening on {bound}");
    let crew = desks.into_iter().enumerate().map(|(index, mut desk)| {
        desk.in_service = Arc::clone(&in_service);
        let (stop, cpu) = (Arc::clone(stop), responder.cpus.get(index).copied());
        std::thread::spawn(move || {
            if let Some(cpu) = cpu {
                becket_sys::affinity::pin_current_thread(cpu)
                    .map_err(|e| Error::os(format!("pinning to CPU {cpu}"), e))?;
            }
            desk.work(&stop)
        })
    });
    let crew: Vec<_> = crew.collect();
    for thread in crew {
        thread.join().unwrap_or(Ok(()))?;
    }
    Ok(())
}

/// One thread of the responder.
struct Desk {
    listener: TcpListener,
    poll: Poll,
    callers: Vec<Option<Caller>>,
    free: Vec<usize>,
    /// Responses to be begun later: when, and for whom (slot and generation).
    due: BinaryHeap<Reverse<(Instant, usize, u64)>>,
    generation: u64,
    in_service: Arc<AtomicUsize>,
    service: Service,
    body: u64,
    input: Vec<u8>,
    output: Vec<u8>,
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

impl Desk {
    fn new(responder: &Responder, address: SocketAddr) -> Result<Self, Error> {
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
            output: Vec::with_capacity(CHUNK),
        })
    }

    fn work(&mut self, stop: &AtomicBool) -> Result<(), Error> {
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
        if caller.inquiry.resume() == Step::Whole {
            return Ok(true);
        }
        loop {
            match caller.socket.read(&mut self.input) {
                Ok(0) => {
                    caller.inquiry.end();
                    return Ok(false);
                }
                Ok(count) => match caller.inquiry.feed(self.input.get(..count).unwrap_or(&[])) {
                    Step::Whole => return Ok(true),
                    Step::Partial => {}
                    Step::Malformed => return Err(io::ErrorKind::InvalidData.into()),
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
    fn answer(&mut self, caller: &mut Caller) -> io::Result<bool> {
        loop {
            let body = usize::try_from(caller.body_left)
                .unwrap_or(CHUNK)
                .min(CHUNK);
            self.output.clear();
            self.output.extend_from_slice(&caller.head);
            self.output.resize(caller.head.len() + body, b'b');
            if self.output.is_empty() {
                return Ok(true);
            }
            match caller.socket.write(&self.output) {
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
/// As many callers as any scenario has.
const DESCRIPTORS: u64 = 32_768;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_time_follows_its_formula() {
        let service = Service {
            time: Duration::from_millis(9),
            knee: Some(30),
        };
        assert_eq!(service.time_of(1), Duration::from_millis(9));
        assert_eq!(service.time_of(30), Duration::from_millis(9));
        assert_eq!(service.time_of(60), Duration::from_millis(36));
        assert_eq!(
            Service {
                knee: None,
                ..service
            }
            .time_of(1000),
            Duration::from_millis(9)
        );
    }
}
