//! The task that speaks with the peers: receives, tells, sends, sleeps.
//!
//! Runs on the control thread beside signals. In one turn it receives at most
//! `cluster.limits.datagrams-per-turn`, then lets others have the thread, so that a flood of
//! datagrams delays a reload by milliseconds at most.
//!
//! Events of workers are taken as [`super::outbox`] describes: at once after a quiet time, every
//! [`BATCH`] in a busy one.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use becket_proto::replica::MAX_DATAGRAM;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::yield_now;
use tokio::time::sleep;

use super::directory::{Found, Lookups};
use super::node::{Inner, Node};
use super::outbox::{BATCH, OutboxReader};
use super::socket::{Bound, Heard, Sockets};
use crate::clock::{Clock, Now};
use crate::config::Config;
use crate::resolver::Resolver;

/// What the task needs.
#[derive(Debug)]
pub struct Exchange {
    /// The node that it speaks for.
    pub node: Arc<Node>,
    /// Its sockets.
    pub bound: Bound,
    /// What workers left.
    pub reader: OutboxReader,
    /// Configurations that were reloaded.
    pub reloads: UnboundedReceiver<Arc<Config>>,
    /// The clock of the process.
    pub clock: Clock,
}

/// Why the task woke up.
enum Woken {
    Datagrams,
    Events,
    Time,
    Reloaded(Arc<Config>),
    Found(Found),
}

impl Exchange {
    /// Speaks with peers until control is gone, and then says goodbye.
    ///
    /// # Errors
    /// When the runtime cannot watch the sockets.
    pub async fn run(mut self) -> io::Result<()> {
        let sockets = Sockets::register(self.bound)?;
        let mut turns = Turns {
            node: self.node,
            reader: self.reader,
            sockets,
            resolver: Resolver::system(),
            lookups: Lookups::new(),
            buffer: vec![0; LARGEST].into_boxed_slice(),
            tell_at: Some(Duration::ZERO),
        };
        let wakeup = turns.reader.wakeup();
        loop {
            let left = |at: Duration| at.saturating_sub(self.clock.mono());
            let left = turns.deadline().map(left);
            let woken = tokio::select! {
                () = turns.sockets.readable() => Woken::Datagrams,
                () = wakeup.woken(), if turns.tell_at.is_none() => Woken::Events,
                () = pass(left) => Woken::Time,
                Some(Ok(found)) = turns.lookups.join_next() => Woken::Found(found),
                config = self.reloads.recv() => match config {
                    Some(config) => Woken::Reloaded(config),
                    None => {
                        turns.leave(self.clock.now());
                        return Ok(());
                    }
                },
            };
            if turns.turn(woken, self.clock.now()) {
                // More waits: first whoever else has something to do on this thread.
                yield_now().await;
            }
        }
    }
}

/// What one turn after the other works with.
struct Turns {
    node: Arc<Node>,
    reader: OutboxReader,
    sockets: Sockets,
    resolver: Resolver,
    lookups: Lookups,
    buffer: Box<[u8]>,
    /// When events are looked for although nothing woke control; nothing while control lies down.
    tell_at: Option<Duration>,
}

impl Turns {
    /// When there is something to do, if nothing comes before.
    fn deadline(&self) -> Option<Duration> {
        let deadlines = [self.node.lock().next_deadline(), self.tell_at];
        deadlines.into_iter().flatten().min()
    }

    /// Does what is to be done now. Returns whether something is left for the next turn.
    fn turn(&mut self, woken: Woken, now: Now) -> bool {
        let mut node = self.node.lock();
        let mut left = false;
        match woken {
            Woken::Datagrams => left = receive(&mut node, &self.sockets, &mut self.buffer, now),
            Woken::Events => self.tell_at = Some(now.mono),
            Woken::Time => {}
            Woken::Reloaded(config) => node.reload(&config),
            Woken::Found(found) => node.found(found),
        }
        node.look_up(now, &self.resolver, &mut self.lookups);
        if self.tell_at.is_some_and(|at| at <= now.mono) {
            let any = node.tell(&self.reader, now);
            self.tell_at = any.then_some(now.mono + BATCH);
        }
        node.send(now, |to, datagram| self.sockets.send(to, datagram));
        left || node.next_deadline().is_some_and(|at| at <= now.mono)
    }

    /// The last thing that peers hear: what waits to be told, and a goodbye.
    fn leave(&self, now: Now) {
        let mut node = self.node.lock();
        node.tell(&self.reader, now);
        node.send(now, |to, datagram| self.sockets.send(to, datagram));
        node.leave(now, |to, datagram| self.sockets.send(to, datagram));
    }
}

/// Takes what waits, up to the limit of a turn. Returns whether the limit was met.
fn receive(node: &mut Inner, sockets: &Sockets, buffer: &mut [u8], now: Now) -> bool {
    for number in 0..node.datagrams_per_turn() {
        match sockets.receive(buffer, number) {
            Heard::Datagram(len, from) => {
                node.receive(from, buffer.get_mut(..len).unwrap_or_default(), now);
            }
            Heard::Noise => {}
            Heard::Silence => return false,
        }
    }
    true
}

/// Sleeps so long, or for ever.
async fn pass(left: Option<Duration>) {
    match left {
        Some(left) => sleep(left).await,
        None => std::future::pending().await,
    }
}

/// A datagram that does not fit is longer than any of ours.
const LARGEST: usize = 2 * MAX_DATAGRAM;
