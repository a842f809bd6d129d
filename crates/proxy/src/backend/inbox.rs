//! Delivers events from other threads to the connections of a worker.
//!
//! A worker's mailbox is an [`Inbox`]; a simulated worker in tests has a [`TestInbox`]. A thread
//! may deliver an event at any time, but must not hold a lock while it does.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use becket_proto::queue::Stay;

use super::backend_state::BackendState;
use super::server_state::ServerState;
use super::slot::ServerSlot;

/// Receives events for one worker, from any thread.
pub trait Inbox: fmt::Debug + Send + Sync {
    /// Queues an event, and wakes the worker.
    fn deliver(&self, event: BackendEvent);
}

#[derive(Debug)]
pub enum BackendEvent {
    /// A waiting connection has received a slot, or can no longer receive one.
    Granted(Grant),
    /// A server of a backend with `connections-on-failure = "close"` went out of service.
    Failed(Arc<ServerState>),
    /// A client waits for a slot of a backend with `idle-reclaim`. The worker may close its idle
    /// connections to that backend.
    Awaited,
    /// The connection at this index may be able to continue. The index may have been reused for
    /// another connection.
    Look(usize),
}

/// Result of a wait for a slot. Dropping an unused grant passes its slot to the next waiter.
#[derive(Debug)]
pub struct Grant {
    pub place: usize,
    pub stay: Stay,
    pub backend: Arc<BackendState>,
    /// The slot; `None` if no server is in service any more.
    pub slot: Option<ServerSlot>,
}

/// An inbox for tests, which stores the events.
#[derive(Debug, Default)]
pub struct TestInbox(Mutex<Vec<BackendEvent>>);

impl TestInbox {
    pub fn take(&self) -> Vec<BackendEvent> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Inbox for TestInbox {
    fn deliver(&self, event: BackendEvent) {
        let mut events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        events.push(event);
    }
}
