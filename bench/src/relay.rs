//! Runs the `relay` and `round-trip` floors: a TCP relay without TLS, whose CPU time is a lower bound for that of an
//! event-driven terminator.
//!
//! The relay has one thread, registers each socket once (edge-triggered), and reads up to 64 KiB into one buffer. It
//! does not splice, because a terminator must process the bytes. It accepts a client after the first bytes have arrived
//! (`TCP_DEFER_ACCEPT`). It closes both sockets after the server's end of stream and the last byte to the client, as a
//! terminator does after its close_notify.
//!
//! With `answers`, the relay also makes the round trips of TLS. It receives the client's [`Flight`]s, answers each with
//! the requested number of bytes, and connects to its backend after the last one.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use becket_load::preface::Flight;
use becket_sys::socket::{ListenOptions, listen};
use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Registry, Token};
use slab::Slab;

use crate::Error;

/// Relays until the process is killed.
pub fn run(address: SocketAddr, backend: SocketAddr, answers: bool) -> Result<(), Error> {
    let failed = |e| Error::os(format!("relay on {address} failed"), e);
    let mut relay = Relay::new(address, backend, answers).map_err(failed)?;
    let mut events = Events::with_capacity(1024);
    loop {
        let wait = relay.accepting.then_some(Duration::ZERO);
        match relay.poll.poll(&mut events, wait) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            other => other.map_err(failed)?,
        }
        for event in &events {
            match event.token() {
                LISTENER => relay.accepting = true,
                Token(token) => relay.turn((token - 1) / 2, token % 2 == 1, event),
            }
        }
        if relay.accepting {
            relay.accept();
        }
    }
}

struct Relay {
    listener: TcpListener,
    backend: SocketAddr,
    answers: bool,
    poll: Poll,
    pairs: Slab<Pair>,
    buffer: Vec<u8>,
    accepting: bool,
}

struct Pair {
    client: TcpStream,
    /// Connection to the backend. `None` while the relay still answers flights.
    server: Option<TcpStream>,
    /// Received bytes of an incomplete flight.
    said: Vec<u8>,
    to_server: Half,
    to_client: Half,
}

/// One direction of a relayed connection.
#[derive(Default)]
struct Half {
    /// Bytes from the source that must be sent to the destination. The first `sent` bytes are sent already.
    left: Vec<u8>,
    /// Number of bytes of `left` that have been sent.
    sent: usize,
    /// `true` if the source has sent its end of stream.
    ended: bool,
    /// `true` if the end of stream has been forwarded to the destination.
    told: bool,
}

impl Relay {
    fn new(address: SocketAddr, backend: SocketAddr, answers: bool) -> io::Result<Self> {
        let options = ListenOptions {
            reuse_port: false,
            defer_accept: Some(Duration::from_secs(5)),
            ..ListenOptions::default()
        };
        let mut listener = TcpListener::from_std(listen(address, &options)?);
        let poll = Poll::new()?;
        poll.registry()
            .register(&mut listener, LISTENER, Interest::READABLE)?;
        Ok(Self {
            listener,
            backend,
            answers,
            poll,
            pairs: Slab::new(),
            buffer: vec![0; 64 * 1024],
            accepting: false,
        })
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_PER_TURN {
            match self.listener.accept() {
                Ok((client, _)) => drop(self.join(client)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.accepting = false;
                    return;
                }
                // Retry in the next loop iteration: the client has disconnected, or no file descriptor is free.
                Err(_) => return,
            }
        }
    }

    fn join(&mut self, mut client: TcpStream) -> io::Result<()> {
        let entry = self.pairs.vacant_entry();
        let token = entry.key() * 2 + 1;
        let registry = self.poll.registry();
        registry.register(&mut client, Token(token), BOTH)?;
        let server = if self.answers {
            None
        } else {
            Some(connect(registry, self.backend, Token(token + 1))?)
        };
        entry.insert(Pair {
            client,
            server,
            said: Vec::new(),
            to_server: Half::default(),
            to_client: Half::default(),
        });
        Ok(())
    }

    fn turn(&mut self, index: usize, of_client: bool, event: &Event) {
        let Some(pair) = self.pairs.get_mut(index) else {
            return;
        };
        let goes_on = match pair.server {
            Some(_) => pair.carry(of_client, event, &mut self.buffer),
            None => pair.talk(event, &mut self.buffer).and_then(|talk| {
                if talk == Talk::Over {
                    let token = Token(index * 2 + 2);
                    pair.server = Some(connect(self.poll.registry(), self.backend, token)?);
                }
                Ok(talk != Talk::Gone)
            }),
        };
        let goes_on = goes_on.unwrap_or(false);
        if !goes_on {
            self.pairs.remove(index);
        }
    }
}

impl Pair {
    /// Relays bytes after an event. Returns whether the connection stays open.
    fn carry(&mut self, of_client: bool, event: &Event, buffer: &mut [u8]) -> io::Result<bool> {
        let (client, Some(server)) = (&self.client, &self.server) else {
            return Ok(true);
        };
        if event.is_readable() || event.is_read_closed() {
            let to_the_end = event.is_read_closed();
            if of_client {
                self.to_server.carry(client, server, to_the_end, buffer)?;
            } else {
                self.to_client.carry(server, client, to_the_end, buffer)?;
            }
        }
        if event.is_writable() {
            if of_client {
                self.to_client.flush(server, client, buffer)?;
            } else {
                self.to_server.flush(client, server, buffer)?;
            }
        }
        if self.to_client.is_done() {
            return Ok(false);
        }
        if self.to_server.is_done() && !self.to_server.told {
            self.to_server.told = true;
            server.shutdown(Shutdown::Write)?;
        }
        Ok(true)
    }

    /// Answers the client's flights. Keeps bytes after the last flight for the backend.
    fn talk(&mut self, event: &Event, buffer: &mut [u8]) -> io::Result<Talk> {
        if !(event.is_readable() || event.is_read_closed()) {
            return Ok(Talk::GoesOn);
        }
        let mut client = &self.client;
        loop {
            let count = match client.read(buffer) {
                Ok(0) => return Ok(Talk::Gone),
                Ok(count) => count,
                Err(e) if is_later(&e) => return Ok(Talk::GoesOn),
                Err(e) => return Err(e),
            };
            self.said
                .extend_from_slice(buffer.get(..count).unwrap_or(&[]));
            while let Some(flight) = Flight::decode(&self.said) {
                if self.said.len() < flight.sent {
                    break;
                }
                self.said.drain(..flight.sent);
                if flight.answer == 0 {
                    self.to_server.left = std::mem::take(&mut self.said);
                    return Ok(Talk::Over);
                }
                let answer = buffer.get(..flight.answer).unwrap_or(&[]);
                // The send buffer is empty, so the kernel accepts a whole flight.
                if client.write(answer)? < answer.len() {
                    return Ok(Talk::Gone);
                }
            }
            if count < buffer.len() {
                return Ok(Talk::GoesOn);
            }
        }
    }
}

/// Result of an event while the relay answers a client's flights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Talk {
    GoesOn,
    /// The last flight has arrived; the relay must connect to the backend.
    Over,
    Gone,
}

fn connect(registry: &Registry, backend: SocketAddr, token: Token) -> io::Result<TcpStream> {
    let mut server = TcpStream::connect(backend)?;
    server.set_nodelay(true)?;
    registry.register(&mut server, token, BOTH)?;
    Ok(server)
}

impl Half {
    fn is_done(&self) -> bool {
        self.ended && self.left.is_empty()
    }

    /// Sends the bytes in `left`. If all of them are sent, reads and sends more.
    fn flush(&mut self, from: &TcpStream, mut to: &TcpStream, buffer: &mut [u8]) -> io::Result<()> {
        if self.left.is_empty() {
            return Ok(());
        }
        self.sent += sent(to.write(self.left.get(self.sent..).unwrap_or(&[])))?;
        if self.sent == self.left.len() {
            self.left.clear();
            self.sent = 0;
        }
        self.carry(from, to, true, buffer)
    }

    /// Reads and sends until the source has no more bytes or the destination accepts no more. A short read ends the
    /// loop, because another event follows when bytes arrive. `to_the_end` disables this, because no event follows the
    /// end of the stream.
    fn carry(
        &mut self,
        mut from: &TcpStream,
        mut to: &TcpStream,
        to_the_end: bool,
        buffer: &mut [u8],
    ) -> io::Result<()> {
        while self.left.is_empty() && !self.ended {
            let count = match from.read(buffer) {
                Ok(0) => {
                    self.ended = true;
                    return Ok(());
                }
                Ok(count) => count,
                Err(e) if is_later(&e) => return Ok(()),
                Err(e) => return Err(e),
            };
            let bytes = buffer.get(..count).unwrap_or(&[]);
            let sent = sent(to.write(bytes))?;
            self.left
                .extend_from_slice(bytes.get(sent..).unwrap_or(&[]));
            if count < buffer.len() && !to_the_end {
                return Ok(());
            }
        }
        Ok(())
    }
}

fn sent(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(e) if is_later(&e) => Ok(0),
        other => other,
    }
}

/// Returns whether the operation must be retried after the next event. `NotConnected` means that the connect is still
/// in progress.
fn is_later(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected | io::ErrorKind::Interrupted
    )
}

const BOTH: Interest = Interest::READABLE.add(Interest::WRITABLE);
const LISTENER: Token = Token(0);
const ACCEPTS_PER_TURN: usize = 64;
