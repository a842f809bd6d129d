//! How control and other workers speak to a worker: a queue and a waker.
//!
//! Used for reloads, key rotations and the end, a few times a day, and for slots of servers that are
//! handed to a connection of this worker. The lock is held only to push or to take the whole queue;
//! the waker is used only when the queue was empty, since whoever filled it has woken the worker.

use std::sync::{Arc, Mutex, PoisonError};

use mio::Waker;

use crate::backend::inbox::{Inbox, Notice};
use crate::config::Config;
use crate::sockets::Bound;
use crate::tls::tickets::Secrets;

/// What a worker is told.
#[derive(Debug)]
pub enum Letter {
    /// Serve by this configuration from now on. `added` are sockets for addresses that the worker
    /// does not listen on yet; addresses that are not in the configuration are retired.
    Config {
        /// Complete and checked.
        config: Arc<Config>,
        /// One socket per new address.
        added: Vec<Bound>,
    },
    /// Seal tickets with these keys from now on.
    Secrets(Arc<Secrets>),
    /// Something was decided for one of its connections.
    Notice(Notice),
    /// Take no new clients, finish with those who are here, then end.
    Drain,
    /// End now.
    Stop,
}

impl Inbox for Mailbox {
    fn deliver(&self, notice: Notice) {
        self.post(Letter::Notice(notice));
    }
}

/// One worker's queue.
#[derive(Debug)]
pub struct Mailbox {
    letters: Mutex<Vec<Letter>>,
    waker: Waker,
}

impl Mailbox {
    /// An empty queue whose owner is woken by `waker`.
    pub fn new(waker: Waker) -> Self {
        Self {
            letters: Mutex::new(Vec::new()),
            waker,
        }
    }

    /// Leaves a letter and wakes the worker.
    pub fn post(&self, letter: Letter) {
        let mut letters = self.lock();
        letters.push(letter);
        let first = letters.len() == 1;
        drop(letters);
        if !first {
            return;
        }
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "worker cannot be woken");
        }
    }

    /// Takes all letters, oldest first.
    pub fn take(&self) -> Vec<Letter> {
        std::mem::take(&mut self.lock())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Letter>> {
        // A poisoned queue is still a queue: pushing and taking leave it whole.
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
