//! The floor: a TCP relay without TLS, with the loop that an event-driven terminator has.
//!
//! One thread, edge-triggered registration once per socket, reads of 64 KiB into one buffer, no
//! splice: a terminator must see the bytes, so its floor copies them too. When the server has finished
//! and all of it is sent, both sides are closed, as a terminator does after its close_notify.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use slab::Slab;

use crate::Error;

/// Relays until it is killed.
///
/// # Errors
/// [`Error::Os`] when the address cannot be bound.
pub fn run(address: SocketAddr, backend: SocketAddr) -> Result<(), Error> {
    let failed = |e| Error::os(format!("relay on {address}"), e);
    let mut relay = Relay::new(address, backend).map_err(failed)?;
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
    poll: Poll,
    pairs: Slab<Pair>,
    buffer: Vec<u8>,
    accepting: bool,
}

struct Pair {
    client: TcpStream,
    server: TcpStream,
    /// Read from one side and not yet sent to the other.
    to_server: Half,
    to_client: Half,
}

#[derive(Default)]
struct Half {
    left: Vec<u8>,
    ended: bool,
    told: bool,
}

impl Relay {
    fn new(address: SocketAddr, backend: SocketAddr) -> io::Result<Self> {
        let mut listener = TcpListener::bind(address)?;
        let poll = Poll::new()?;
        poll.registry()
            .register(&mut listener, LISTENER, Interest::READABLE)?;
        Ok(Self {
            listener,
            backend,
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
                // The client has gone again, or there is no descriptor: the next turn will see.
                Err(_) => return,
            }
        }
    }

    fn join(&mut self, mut client: TcpStream) -> io::Result<()> {
        let mut server = TcpStream::connect(self.backend)?;
        let both = Interest::READABLE | Interest::WRITABLE;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let entry = self.pairs.vacant_entry();
        let token = entry.key() * 2 + 1;
        self.poll
            .registry()
            .register(&mut client, Token(token), both)?;
        self.poll
            .registry()
            .register(&mut server, Token(token + 1), both)?;
        entry.insert(Pair {
            client,
            server,
            to_server: Half::default(),
            to_client: Half::default(),
        });
        Ok(())
    }

    fn turn(&mut self, index: usize, of_client: bool, event: &Event) {
        let Some(pair) = self.pairs.get_mut(index) else {
            return;
        };
        let goes_on = pair
            .carry(of_client, event, &mut self.buffer)
            .unwrap_or(false);
        if !goes_on {
            self.pairs.remove(index);
        }
    }
}

impl Pair {
    /// Moves what an event lets move; returns whether the connection goes on.
    fn carry(&mut self, of_client: bool, event: &Event, buffer: &mut [u8]) -> io::Result<bool> {
        let (client, server) = (&self.client, &self.server);
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
            self.server.shutdown(Shutdown::Write)?;
        }
        Ok(true)
    }
}

impl Half {
    fn is_done(&self) -> bool {
        self.ended && self.left.is_empty()
    }

    /// Sends what was left, and goes on reading if there was any.
    fn flush(&mut self, from: &TcpStream, mut to: &TcpStream, buffer: &mut [u8]) -> io::Result<()> {
        if self.left.is_empty() {
            return Ok(());
        }
        let sent = sent(to.write(&self.left))?;
        self.left.drain(..sent);
        self.carry(from, to, true, buffer)
    }

    /// Reads and sends until there is nothing or the other side is full. A short read has emptied the
    /// socket, and another edge will come, except when the end of the stream was told already.
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

/// A socket that is still being connected says `NotConnected`.
fn is_later(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected | io::ErrorKind::Interrupted
    )
}

const LISTENER: Token = Token(0);
const ACCEPTS_PER_TURN: usize = 64;
