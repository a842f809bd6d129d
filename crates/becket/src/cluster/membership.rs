//! Taking part in a cluster: what launch builds, control starts and a reload reaches.

use std::sync::Arc;

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use super::exchange::Exchange;
use super::node::{NoBoot, Node};
use super::outbox::{Outbox, OutboxReader};
use super::socket::Bound;
use crate::config::Config;
use crate::shared::Shared;

/// This becket's part in its cluster.
#[derive(Debug)]
pub struct Membership {
    node: Arc<Node>,
    /// One per worker.
    outboxes: Vec<Outbox>,
    reloads: UnboundedSender<Arc<Config>>,
    /// Until it was started.
    exchange: Option<Exchange>,
    /// From then on.
    task: Option<JoinHandle<()>>,
}

impl Membership {
    /// Makes everything that replication needs; nothing without a socket.
    ///
    /// # Errors
    /// When the system gives no random bytes.
    pub fn new(
        bound: Option<Bound>,
        config: &Config,
        shared: &Shared,
    ) -> Result<Option<Self>, NoBoot> {
        let (Some(cluster), Some(bound)) = (&config.cluster, bound) else {
            return Ok(None);
        };
        let clock = shared.clock;
        let node = Node::start(cluster, config, Arc::clone(&shared.table), clock.now())?;
        node.remember_in(Arc::clone(&shared.backends));
        let node = Arc::new(node);
        let (reader, outboxes) = OutboxReader::of_workers(&shared.counters, cluster.limits.queue);
        let (reloads, received) = unbounded_channel();
        let exchange = Exchange {
            node: Arc::clone(&node),
            bound,
            reader,
            reloads: received,
            clock,
        };
        Ok(Some(Self {
            node,
            outboxes,
            reloads,
            exchange: Some(exchange),
            task: None,
        }))
    }

    /// What pages look at.
    pub fn node(&self) -> Arc<Node> {
        Arc::clone(&self.node)
    }

    /// Where workers tell of sessions, one for each.
    pub fn outboxes(&self) -> Vec<Outbox> {
        self.outboxes.clone()
    }

    /// Starts to speak with the peers, as a task of the runtime in which this is called. When the
    /// membership is dropped it says goodbye, closes its sockets and ends.
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
            // One that panicked has nobody to say it to.
            let _panicked = task.await;
        }
    }

    /// Takes over a reloaded configuration.
    pub fn reload(&self, config: &Arc<Config>) {
        // A task that ended has said why.
        let _ended = self.reloads.send(Arc::clone(config));
    }
}
