//! A minimal HTTP/1 server, for use as the backend of a TLS terminator.
//!
//! A request that arrives in one piece costs only `accept4`, `recv`, `send` and `close`: the socket is not registered with epoll and no header
//! field except `Connection` is interpreted. The server closes after `Connection: close` and after HTTP/1.0. The path `/bytes/N` requests a
//! body of N bytes. Request bodies are not supported.
//!
//! A service time simulates an application. It is constant, or grows with the number `n` of requests in service:
//! `time * max(1, n / knee)^2`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use becket_sys::socket::ListenOptions;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use slab::Slab;

use crate::cli::{Cli, ResponderOptions};
use crate::{Error, clock, wait};

/// Accepts connections and answers requests until `stop` is set.
///
/// # Errors
/// [`Error::Plan`] if the address is invalid, [`Error::Os`] if it cannot be bound.
pub fn run(cli: &Cli, stop: &AtomicBool) -> Result<(), Error> {
    let address = cli.responder.serve.as_deref().unwrap_or_default();
    let wrong = |why: String| Error::Plan(format!("--serve {address}: {why}"));
    let found = address.to_socket_addrs();
    let found = found.map_err(|e| wrong(e.to_string()))?.next();
    let address = found.ok_or_else(|| wrong("no address found".to_owned()))?;
    // Ignore a failure, because a server with few clients needs no higher limit.
    becket_sys::rlimit::raise_open_files(DESCRIPTORS).unwrap_or(0);
    let count = cli.load.threads.map_or(1, NonZeroUsize::get);
    let in_service = Arc::new(AtomicUsize::new(0));
    let mut bound = address;
    let mut threads = Vec::new();
    for index in 0..count {
        let thread = ResponderThread::new(&cli.responder, bound, count > 1, &in_service)
            .map_err(|e| Error::os(format!("cannot listen on {address}"), e))?;
        bound = thread.listener.local_addr().unwrap_or(bound);
        threads.push((thread, cli.measuring.cpus.get(index).copied()));
    }
    println!("listening on {bound}");
    std::thread::scope(|scope| {
        let threads: Vec<_> = threads
            .into_iter()
            .map(|(mut thread, cpu)| {
                scope.spawn(move || {
                    if let Some(cpu) = cpu {
                        becket_sys::affinity::pin_current_thread(cpu).map_err(|e| {
                            Error::os(format!("cannot pin a thread to CPU {cpu}"), e)
                        })?;
                    }
                    thread.work(stop)
                })
            })
            .collect();
        let mut ended = threads.into_iter().map(|thread| thread.join());
        ended.try_for_each(|ended| ended.unwrap_or(Ok(())))
    })
}

struct ResponderThread {
    listener: TcpListener,
    poll: Poll,
    callers: Slab<Caller>,
    generation: u64,
    service: Service,
}

struct Service {
    options: ResponderOptions,
    /// Number of requests in service on all threads.
    in_service: Arc<AtomicUsize>,
    /// Delayed responses, ordered by the end of their service time. Each entry ends with the token
    /// and the generation of its connection.
    due: BinaryHeap<Reverse<(Instant, usize, u64)>>,
    input: Vec<u8>,
    /// Constant bytes that every response body repeats.
    filler: Vec<u8>,
}

struct Caller {
    socket: TcpStream,
    generation: u64,
    phase: Phase,
    received: Vec<u8>,
    /// `true` if the connection closes after this response.
    closes: bool,
    /// Response header bytes that have not been sent yet.
    head: Vec<u8>,
    body_left: u64,
    is_registered: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Reading,
    Serving,
    Writing,
}

impl ResponderThread {
    fn new(
        options: &ResponderOptions,
        address: SocketAddr,
        is_shared: bool,
        in_service: &Arc<AtomicUsize>,
    ) -> io::Result<Self> {
        let listen_options = ListenOptions {
            reuse_port: is_shared,
            ..ListenOptions::default()
        };
        let listener = becket_sys::socket::listen(address, &listen_options)?;
        listener.set_nonblocking(true)?;
        let mut listener = TcpListener::from_std(listener);
        let poll = Poll::new()?;
        poll.registry()
            .register(&mut listener, LISTENER, Interest::READABLE)?;
        Ok(Self {
            listener,
            poll,
            callers: Slab::new(),
            generation: 0,
            service: Service {
                options: options.clone(),
                in_service: Arc::clone(in_service),
                due: BinaryHeap::new(),
                input: vec![0; CHUNK],
                filler: vec![b'b'; CHUNK],
            },
        })
    }

    fn work(&mut self, stop: &AtomicBool) -> Result<(), Error> {
        let mut events = Events::with_capacity(1024);
        let mut accepting = false;
        while !stop.load(Ordering::Relaxed) {
            let time = if accepting {
                Duration::ZERO
            } else {
                self.service.next_due()
            };
            wait::precisely(&mut self.poll, &mut events, time)
                .map_err(|e| Error::os("epoll_wait", e))?;
            for event in &events {
                match event.token() {
                    LISTENER => accepting = true,
                    Token(token) => self.turn(token),
                }
            }
            accepting = accepting && self.accept();
            self.serve_due();
        }
        Ok(())
    }

    /// Accepts a batch of connections. Returns `true` if more connections may be pending.
    fn accept(&mut self) -> bool {
        for _ in 0..ACCEPTS_PER_TURN {
            match self.listener.accept() {
                Ok((socket, _)) => {
                    self.generation += 1;
                    let token = self.callers.insert(Caller {
                        socket,
                        generation: self.generation,
                        phase: Phase::Reading,
                        received: Vec::new(),
                        closes: false,
                        head: Vec::new(),
                        body_left: 0,
                        is_registered: false,
                    });
                    self.turn(token);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return false,
                // The client has disconnected, or no file descriptor is free. Accept again in the next turn.
                Err(_) => return true,
            }
        }
        true
    }

    fn turn(&mut self, token: usize) {
        let Some(caller) = self.callers.get_mut(token) else {
            return;
        };
        let continues = caller
            .attend(token, &mut self.service)
            .and_then(|continues| {
                if continues && !caller.is_registered {
                    let interest = Interest::READABLE | Interest::WRITABLE;
                    let registry = self.poll.registry();
                    registry.register(&mut caller.socket, Token(token), interest)?;
                    caller.is_registered = true;
                }
                Ok(continues)
            });
        if !continues.unwrap_or(false) {
            self.callers.remove(token);
        }
    }

    fn serve_due(&mut self) {
        let now = clock::now();
        while let Some(Reverse((at, token, generation))) = self.service.due.peek().copied()
            && at <= now
        {
            self.service.due.pop();
            self.service.in_service.fetch_sub(1, Ordering::Relaxed);
            let caller = self.callers.get_mut(token);
            if let Some(caller) = caller.filter(|caller| caller.generation == generation) {
                caller.phase = Phase::Writing;
                self.turn(token);
            }
        }
    }
}

impl Service {
    /// Starts the service of a request. Returns `Phase::Writing`, or `Phase::Serving` if the response is delayed.
    fn begin(&mut self, token: usize, generation: u64) -> Phase {
        if self.options.service_time.is_zero() {
            return Phase::Writing;
        }
        let n = self.in_service.fetch_add(1, Ordering::Relaxed) + 1;
        let at = clock::now() + service_time(&self.options, n);
        self.due.push(Reverse((at, token, generation)));
        Phase::Serving
    }

    fn next_due(&self) -> Duration {
        let now = clock::now();
        let due = self.due.peek();
        let due = due.map(|Reverse((at, ..))| at.saturating_duration_since(now));
        due.unwrap_or(IDLE).min(IDLE)
    }
}

fn service_time(options: &ResponderOptions, n: usize) -> Duration {
    let knee = options.service_knee.map(NonZeroUsize::get);
    let load = knee.map_or(1.0, |knee| (n as f64 / knee as f64).max(1.0));
    options.service_time.mul_f64(load * load)
}

impl Caller {
    /// Reads requests and sends responses until the socket would block or a service time starts.
    /// Returns `true` if the connection stays open.
    fn attend(&mut self, token: usize, service: &mut Service) -> io::Result<bool> {
        loop {
            match self.phase {
                Phase::Serving => return Ok(true),
                Phase::Reading => {
                    if !self.read_request(service)? {
                        return Ok(true);
                    }
                    self.phase = service.begin(token, self.generation);
                }
                Phase::Writing => {
                    if !self.answer(&service.filler)? {
                        return Ok(true);
                    }
                    if self.closes {
                        return Ok(false);
                    }
                    self.phase = Phase::Reading;
                }
            }
        }
    }

    /// Reads until a request is complete. Returns `false` if more bytes are needed.
    fn read_request(&mut self, service: &mut Service) -> io::Result<bool> {
        while !self.take_request(service.options.body)? {
            match self.socket.read(&mut service.input) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    let bytes = service.input.get(..count).unwrap_or(&[]);
                    self.received.extend_from_slice(bytes);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// Parses a request from the received bytes and prepares the response header. Returns `false` if more bytes are needed. Bytes
    /// after the request stay in `received`.
    fn take_request(&mut self, default_body: u64) -> io::Result<bool> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS];
        let mut head = httparse::Request::new(&mut headers);
        let end = match head.parse(&self.received) {
            Ok(httparse::Status::Complete(end)) => end,
            Ok(httparse::Status::Partial) if self.received.len() <= HEAD_LIMIT => return Ok(false),
            _ => return Err(ErrorKind::InvalidData.into()),
        };
        let size = head.path.and_then(|path| path.strip_prefix("/bytes/"));
        self.body_left = match size {
            Some(size) => size.parse().map_err(|_| ErrorKind::InvalidData)?,
            None => default_body,
        };
        let mut headers = head.headers.iter();
        let connection = headers.find(|header| header.name.eq_ignore_ascii_case("connection"));
        let connection = connection.map_or(&[][..], |header| header.value.trim_ascii());
        self.closes = if head.version == Some(0) {
            !connection.eq_ignore_ascii_case(b"keep-alive")
        } else {
            connection.eq_ignore_ascii_case(b"close")
        };
        self.received.drain(..end);
        let connection = if self.closes { "close" } else { "keep-alive" };
        let length = self.body_left;
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: {connection}\r\n\r\n"
        );
        self.head = head.into_bytes();
        Ok(true)
    }

    /// Sends as much of the response as possible. Returns `true` after the last byte.
    fn answer(&mut self, filler: &[u8]) -> io::Result<bool> {
        while !self.head.is_empty() || self.body_left > 0 {
            let body = usize::try_from(self.body_left).unwrap_or(CHUNK).min(CHUNK);
            let body = filler.get(..body).unwrap_or(&[]);
            let parts = [IoSlice::new(&self.head), IoSlice::new(body)];
            match self.socket.write_vectored(&parts) {
                Ok(count) => {
                    let of_head = count.min(self.head.len());
                    self.head.drain(..of_head);
                    self.body_left -= (count - of_head) as u64;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }
}

const LISTENER: Token = Token(usize::MAX);
/// Maximum body bytes per `send`.
const CHUNK: usize = 128 * 1024;
const ACCEPTS_PER_TURN: usize = 64;
/// Maximum wait before the stop flag is read again.
const IDLE: Duration = Duration::from_millis(100);
/// Requested limit on open files, enough for every scenario.
const DESCRIPTORS: u64 = 32_768;
const HEADERS: usize = 100;
const HEAD_LIMIT: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn service_time_grows_with_the_square_of_the_load() {
        let flags = ["becket-load", "--serve", "x", "--service-time", "9ms"];
        let mut options = Cli::parse_from(flags).responder;
        assert_eq!(service_time(&options, 1000), Duration::from_millis(9));
        options.service_knee = NonZeroUsize::new(30);
        assert_eq!(service_time(&options, 30), Duration::from_millis(9));
        assert_eq!(service_time(&options, 60), Duration::from_millis(36));
    }
}
