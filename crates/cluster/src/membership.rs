//! Manages this host's membership in a cluster. It is created at launch, starts with the control
//! thread, and changes with reloads.

use std::net::UdpSocket;
use std::sync::Arc;

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use crate::exchange::{Exchange, NodeInput};
use crate::node::{Host, NoBoot, Node};
use crate::outbox::{Outbox, OutboxReader};
use crate::settings::Settings;
use crate::sharing::SharingInput;

#[derive(Debug)]
pub struct Membership {
    node: Arc<Node>,
    /// Queues for events, one per worker.
    outboxes: Vec<Outbox>,
    inputs: UnboundedSender<NodeInput>,
    /// Prepared task with its socket. `None` once it runs.
    exchange: Option<(Exchange, UdpSocket)>,
    /// Running task. `None` before the start.
    task: Option<JoinHandle<()>>,
}

impl Membership {
    /// Creates the node and the outboxes. [`Self::start`] then starts the communication.
    ///
    /// # Errors
    /// Fails if the system provides no random bytes.
    pub fn new(socket: UdpSocket, settings: Settings, host: Host) -> Result<Self, NoBoot> {
        let clock = host.clock;
        let (events, outboxes) = OutboxReader::of_workers(host.workers, QUEUED_EVENTS);
        let node = Arc::new(Node::new(settings, host)?);
        let (inputs, received) = unbounded_channel();
        let exchange = Exchange::new(Arc::clone(&node), events, received, clock);
        Ok(Self {
            node,
            outboxes,
            inputs,
            exchange: Some((exchange, socket)),
            task: None,
        })
    }

    pub fn node(&self) -> Arc<Node> {
        Arc::clone(&self.node)
    }

    pub fn outboxes(&self) -> Vec<Outbox> {
        self.outboxes.clone()
    }

    /// Starts the communication with the peers, as a task of the current runtime. The task sends a
    /// goodbye, closes its sockets and ends when the membership is dropped.
    pub fn start(&mut self) {
        let Some((exchange, socket)) = self.exchange.take() else {
            return;
        };
        self.task = Some(tokio::spawn(async move {
            if let Err(error) = exchange.run(socket).await {
                tracing::error!(name: "replication-failed", %error, "cannot replicate TLS sessions");
            }
        }));
    }

    /// Sends a goodbye to the peers, and waits until it is sent. The caller must await this before
    /// the runtime ends.
    pub async fn leave(self) {
        drop(self.inputs);
        if let Some(task) = self.task {
            // Ignore a panic of the task. It only means that no goodbye was sent.
            let _panicked = task.await;
        }
    }

    pub fn reload(&self, settings: Settings) {
        self.input(NodeInput::Reloaded(Box::new(settings)));
    }

    /// Passes an event of the ACME companion to the node.
    pub fn share(&self, input: SharingInput) {
        self.input(NodeInput::Sharing(input));
    }

    fn input(&self, input: NodeInput) {
        // Sending fails only if the task has ended. That is logged already.
        let _ended = self.inputs.send(input);
    }
}

/// Maximum number of queued events per worker, each about 60 bytes. The control thread drains the queues every few
/// milliseconds, so a queue is full only if the control thread is blocked or handshakes exceed millions per second.
const QUEUED_EVENTS: usize = 16_384;
