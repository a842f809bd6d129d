//! Taking part in a cluster: what is built at the start, started with the control thread and reached by reloads.

use std::net::UdpSocket;
use std::sync::Arc;

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use crate::exchange::Exchange;
use crate::node::{Host, NoBoot, Node};
use crate::outbox::{Outbox, OutboxReader};
use crate::settings::Settings;

/// This host's part in its cluster.
#[derive(Debug)]
pub struct Membership {
    node: Arc<Node>,
    /// One per worker.
    outboxes: Vec<Outbox>,
    reloads: UnboundedSender<Settings>,
    /// Until it was started.
    exchange: Option<Exchange>,
    /// From then on.
    task: Option<JoinHandle<()>>,
}

impl Membership {
    /// Makes everything that replication needs.
    ///
    /// # Errors
    /// When the system gives no random bytes.
    pub fn new(socket: UdpSocket, settings: Settings, host: Host) -> Result<Self, NoBoot> {
        let clock = host.clock;
        let (events, outboxes) = OutboxReader::of_workers(host.workers, QUEUED_EVENTS);
        let node = Arc::new(Node::new(settings, host)?);
        let (reloads, received) = unbounded_channel();
        let exchange = Exchange {
            node: Arc::clone(&node),
            socket,
            events,
            reloads: received,
            clock,
        };
        Ok(Self {
            node,
            outboxes,
            reloads,
            exchange: Some(exchange),
            task: None,
        })
    }

    /// What pages look at.
    pub fn node(&self) -> Arc<Node> {
        Arc::clone(&self.node)
    }

    /// Where workers tell of sessions, one for each.
    pub fn outboxes(&self) -> Vec<Outbox> {
        self.outboxes.clone()
    }

    /// Starts to speak with the peers, as a task of the runtime in which this is called. When the membership is dropped, the
    /// task says goodbye, closes its sockets and ends.
    pub fn start(&mut self) {
        let Some(exchange) = self.exchange.take() else {
            return;
        };
        self.task = Some(tokio::spawn(async move {
            if let Err(error) = exchange.run().await {
                tracing::error!(%error, "sessions are not replicated any more");
            }
        }));
    }

    /// Says goodbye to the peers, and waits until it is said: before the runtime ends.
    pub async fn leave(self) {
        drop(self.reloads);
        if let Some(task) = self.task {
            // A task that panicked has nothing to say.
            let _panicked = task.await;
        }
    }

    /// Takes over reloaded settings.
    pub fn reload(&self, settings: Settings) {
        // A task that ended has said why.
        let _ended = self.reloads.send(settings);
    }
}

/// Events of one worker that wait to be told. An event takes some 60 bytes; control looks every few milliseconds, so a queue
/// fills only at millions of handshakes in a second, or while control is stuck.
const QUEUED_EVENTS: usize = 16_384;
