//! Runs the task that exchanges datagrams with the peers.
//!
//! The task runs on the control thread, which also handles signals and reloads. It receives at most
//! [`DATAGRAMS_PER_TURN`] datagrams and then yields the thread, so that a flood of datagrams delays a reload only by
//! milliseconds.
//!
//! Workers queue an event for each session that is created or ends ([`crate::outbox`]). The task processes events
//! immediately if it was idle, and every [`BATCH`] if events arrive continuously.

use std::io;
use std::net::UdpSocket as StdSocket;
use std::sync::Arc;
use std::time::Duration;

use becket_sys::clock::{Clock, Now};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::yield_now;
use tokio::time::sleep;

use crate::addresses::{Lookups, NameLookup};
use crate::node::{Node, NodeState};
use crate::outbox::{BATCH, OutboxReader};
use crate::replica::{DATAGRAMS_PER_TURN, MAX_DATAGRAM};
use crate::settings::Settings;
use crate::sharing::SharingInput;
use crate::socket::PeerSocket;

#[derive(Debug)]
pub(crate) struct Exchange {
    node: Arc<Node>,
    events: OutboxReader,
    inputs: UnboundedReceiver<NodeInput>,
    clock: Clock,
    lookups: Lookups,
    buffer: Box<[u8]>,
    /// Time of the next check for worker events. `None` if the task sleeps until a worker wakes it.
    tell_at: Option<Duration>,
}

/// A change that the terminator passes to the node.
#[derive(Debug)]
pub(crate) enum NodeInput {
    Reloaded(Box<Settings>),
    Sharing(SharingInput),
}

/// Reason why the task woke up.
enum Woken {
    Datagrams,
    Events,
    Time,
    Input(NodeInput),
    Found(Arc<str>, NameLookup),
}

impl Exchange {
    pub(crate) fn new(
        node: Arc<Node>,
        events: OutboxReader,
        inputs: UnboundedReceiver<NodeInput>,
        clock: Clock,
    ) -> Self {
        Self {
            node,
            events,
            inputs,
            clock,
            lookups: Lookups::new(),
            buffer: vec![0; LARGEST].into_boxed_slice(),
            tell_at: Some(Duration::ZERO),
        }
    }

    /// Exchanges datagrams with the peers until the membership is dropped, then sends a goodbye.
    ///
    /// # Errors
    /// Fails if the runtime cannot watch the socket.
    pub(crate) async fn run(mut self, socket: StdSocket) -> io::Result<()> {
        let socket = PeerSocket::register(socket)?;
        loop {
            let deadline = self.deadline();
            let left = deadline.map(|at| at.saturating_sub(self.clock.mono()));
            let woken = tokio::select! {
                () = socket.readable() => Woken::Datagrams,
                () = self.events.wakeup(), if self.tell_at.is_none() => Woken::Events,
                () = sleep(left.unwrap_or_default()), if left.is_some() => Woken::Time,
                Some(Ok((name, found))) = self.lookups.join_next() => Woken::Found(name, found),
                input = self.inputs.recv() => match input {
                    Some(input) => Woken::Input(input),
                    None => {
                        self.leave(&socket, self.clock.now());
                        return Ok(());
                    }
                },
            };
            if self.turn(woken, &socket, self.clock.now()) {
                // Yield before the remaining work, so that other tasks of this thread can run.
                yield_now().await;
            }
        }
    }

    /// Returns the time at which the task must wake up even without a datagram or an event.
    fn deadline(&self) -> Option<Duration> {
        let deadlines = [self.node.lock().next_deadline(), self.tell_at];
        deadlines.into_iter().flatten().min()
    }

    /// Handles the reason for the wakeup, and sends due datagrams. Returns whether work remains for
    /// the next turn.
    fn turn(&mut self, woken: Woken, socket: &PeerSocket, now: Now) -> bool {
        let mut node = self.node.lock();
        let mut left = false;
        match woken {
            Woken::Datagrams => left = receive(&mut node, socket, &mut self.buffer, now),
            Woken::Events => self.tell_at = Some(now.mono),
            Woken::Time => {}
            Woken::Input(NodeInput::Reloaded(settings)) => node.reload(*settings),
            Woken::Input(NodeInput::Sharing(input)) => node.sink.sharing.input(input, now.mono),
            Woken::Found(name, found) => node.found(&name, found),
        }
        node.look_up(now.mono, &mut self.lookups);
        if self.tell_at.is_some_and(|at| at <= now.mono) {
            let any = node.tell(&self.events, now);
            self.tell_at = any.then_some(now.mono + BATCH);
        }
        node.send(now, |to, datagram| socket.send(to, datagram));
        left || node.next_deadline().is_some_and(|at| at <= now.mono)
    }

    /// Sends queued events to the peers, followed by a goodbye.
    fn leave(&self, socket: &PeerSocket, now: Now) {
        let mut node = self.node.lock();
        let mut send = |to, datagram: &[u8]| socket.send(to, datagram);
        node.tell(&self.events, now);
        node.send(now, &mut send);
        node.replica.leave(now.mono, &mut send);
    }
}

/// Receives waiting datagrams, up to the limit of a turn. Returns whether this limit was reached.
fn receive(node: &mut NodeState, socket: &PeerSocket, buffer: &mut [u8], now: Now) -> bool {
    for _ in 0..DATAGRAMS_PER_TURN {
        match socket.receive(buffer) {
            Ok((len, from)) => {
                node.receive(from, buffer.get_mut(..len).unwrap_or_default(), now);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            // Receiving failed once, so the next attempt may succeed.
            Err(_) => {}
        }
    }
    true
}

/// Size of the receive buffer in bytes. It is larger than any valid datagram.
const LARGEST: usize = 2 * MAX_DATAGRAM;
