//! How a worker learns what another thread decided for one of its connections.
//!
//! A worker's mailbox is an [`Inbox`]; a scripted stage has a [`TestInbox`]. Whoever delivers may be any
//! thread, and holds no lock while it does.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use becket_proto::queue::Stay;

use super::backend_state::BackendState;
use super::server_state::ServerState;
use super::slot::ServerSlot;

/// Takes events for one worker, from any thread.
pub trait Inbox: fmt::Debug + Send + Sync {
    /// Leaves an event and sees to it that the worker looks soon.
    fn deliver(&self, event: BackendEvent);
}

/// What a worker is told.
#[derive(Debug)]
pub enum BackendEvent {
    /// The wait of a connection is over.
    Granted(Grant),
    /// A server of a backend with `connections-on-failure = "close"` went out of service.
    Failed(Arc<ServerState>),
    /// The first client waits for a slot of a backend with `idle-reclaim`, and the worker may have connections at rest there.
    Awaited,
    /// What a connection waits for may have come; where it lives in its worker. It may be another one by now.
    Look(usize),
}

/// The end of a wait. When nobody waits for it any more, dropping it passes the slot on.
#[derive(Debug)]
pub struct Grant {
    /// Where the connection lives in its worker.
    pub place: usize,
    /// Which arrival in the queue it was.
    pub stay: Stay,
    /// Whose queue.
    pub backend: Arc<BackendState>,
    /// The slot; `None` when no server is in service any more.
    pub slot: Option<ServerSlot>,
}

/// An inbox that somebody empties by hand.
#[derive(Debug, Default)]
pub struct TestInbox(Mutex<Vec<BackendEvent>>);

impl TestInbox {
    /// Takes everything that was delivered, oldest first.
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
