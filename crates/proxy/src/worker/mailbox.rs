//! How control and other workers speak to a worker: a queue and a waker.
//!
//! Used for reloads, key rotations, lists of connections and the end, a few times a day, for slots of servers that are
//! handed to a connection of this worker, and for signatures of crypto threads. The lock is held only to push or to take the whole queue;
//! the waker is used only when the worker sleeps, and once. A worker
//! that is awake looks at a flag between two connections, so a slot that is handed over does not wait for the
//! end of its turn, and once more before it sleeps ([`Mailbox::wait`]). Of the two who then write one flag and read the other's, with
//! sequential consistency, one sees the other: no message waits for a worker that sleeps.

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::Sender;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use mio::{Events, Poll, Waker};

use crate::backend::inbox::{BackendEvent, Inbox};
use crate::backend::registry::Adopted;
use crate::memory::IdleReclaim;
use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::Ordering::{Relaxed, SeqCst};
use crate::sync::{Mutex, MutexGuard};
use crate::worker::bound::BoundListener;
use crate::worker::listing::{Killing, Listing};
use becket_cluster::Outbox;
use becket_keys::signing::queue::{Answers, Signed};
use becket_tls::sessions::tickets::TicketSecrets;

/// What a worker is told.
#[derive(Debug)]
pub enum WorkerMessage {
    /// Serve by this configuration from now on. `added` are sockets for addresses that the worker
    /// does not listen on yet; addresses that are not in the configuration are retired.
    Config {
        /// Complete and checked.
        adopted: Adopted,
        /// One socket per new address.
        added: Vec<BoundListener>,
        /// Where peers are told of sessions, from now on; nothing without peers.
        outbox: Option<Outbox>,
    },
    /// Seal tickets with these keys from now on.
    Secrets(Arc<TicketSecrets>),
    /// Something was decided for one of its connections.
    Event(BackendEvent),
    /// A crypto thread has answered.
    Signed(Vec<Signed>),
    /// Somebody wants to see connections.
    List(Listing),
    /// An operator wants connections to end.
    Kill(Killing),
    /// Memory is short: connections at rest end.
    EndIdle(IdleReclaim),
    /// Accept nobody, and say so: another process may serve from now on.
    Park(Sender<()>),
    /// Accept clients.
    Accept,
    /// Take no new clients, finish with those who are here, then end. At these addresses another process has the same sockets.
    Drain(Arc<[SocketAddr]>),
    /// End now.
    Stop,
}

impl Inbox for Mailbox {
    fn deliver(&self, event: BackendEvent) {
        self.post(WorkerMessage::Event(event));
    }
}

impl Answers for Mailbox {
    fn answer(&self, signed: Vec<Signed>) {
        self.post(WorkerMessage::Signed(signed));
    }
}

/// One worker's queue.
#[derive(Debug)]
pub struct Mailbox {
    /// `None` when nobody will read it any more.
    messages: Mutex<Option<Vec<WorkerMessage>>>,
    /// Whether there are any, readable without the lock.
    loaded: AtomicBool,
    /// Whether the worker sleeps, or is about to, and nobody has woken it.
    sleeps: AtomicBool,
    waker: Waker,
}

impl Mailbox {
    /// An empty queue whose owner is woken by `waker`.
    pub fn new(waker: Waker) -> Self {
        Self {
            messages: Mutex::new(Some(Vec::new())),
            loaded: AtomicBool::new(false),
            sleeps: AtomicBool::new(false),
            waker,
        }
    }

    /// Leaves a message and wakes the worker if it sleeps. One that has ended gets none: a slot in the message goes
    /// to the next who waits.
    pub fn post(&self, message: WorkerMessage) {
        let mut held = self.lock();
        let Some(messages) = &mut *held else {
            // A slot that is dropped may be given to somebody of this worker, too.
            drop(held);
            return;
        };
        messages.push(message);
        self.loaded.store(true, SeqCst);
        drop(held);
        if !self.sleeps.swap(false, SeqCst) {
            return;
        }
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "worker cannot be woken");
        }
    }

    /// Has its owner wait for events, for so long at most. A message ends that, and one that is there already does at once.
    ///
    /// # Errors
    ///
    /// Those of the poll.
    pub fn wait(
        &self,
        poll: &mut Poll,
        events: &mut Events,
        most: Option<Duration>,
    ) -> io::Result<()> {
        if most == Some(Duration::ZERO) {
            return poll.poll(events, most);
        }
        let most = if self.may_sleep() {
            most
        } else {
            Some(Duration::ZERO)
        };
        let waited = poll.poll(events, most);
        self.sleeps.store(false, Relaxed);
        waited
    }

    /// Announces that the worker sleeps, and returns whether it may: no message is there.
    fn may_sleep(&self) -> bool {
        self.sleeps.store(true, SeqCst);
        !self.loaded.load(SeqCst)
    }

    /// Whether messages have come, as far as can be seen without the lock: if this misses one, it is seen before its owner
    /// sleeps. A load of what is rarely written.
    pub fn is_loaded(&self) -> bool {
        self.loaded.load(Relaxed)
    }

    /// Takes all messages, oldest first.
    pub fn take(&self) -> Vec<WorkerMessage> {
        let mut held = self.lock();
        self.loaded.store(false, Relaxed);
        held.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Takes all messages, and no more are taken: the worker has ended.
    pub fn close(&self) -> Vec<WorkerMessage> {
        self.lock().take().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<WorkerMessage>>> {
        // A poisoned queue is still a queue: pushing and taking leave it whole.
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::backend_state::Pick;
    use crate::backend::pool::{PickHint, Pool};
    use becket_tls::config::{Backend, Server, ServerAddress};

    #[test]
    fn a_worker_that_is_awake_sees_messages() {
        let poll = Poll::new().unwrap();
        let waker = Waker::new(poll.registry(), mio::Token(0)).unwrap();
        let mailbox = Mailbox::new(waker);
        for _ in 0..2 {
            assert!(!mailbox.is_loaded());
            mailbox.post(WorkerMessage::Accept);
            mailbox.post(WorkerMessage::Stop);
            assert!(mailbox.is_loaded());
            assert!(matches!(
                mailbox.take()[..],
                [WorkerMessage::Accept, WorkerMessage::Stop]
            ));
        }
    }

    #[test]
    fn a_worker_with_messages_does_not_sleep() {
        let mut poll = Poll::new().unwrap();
        let waker = Waker::new(poll.registry(), mio::Token(0)).unwrap();
        let mailbox = Mailbox::new(waker);
        let mut events = Events::with_capacity(1);
        mailbox.post(WorkerMessage::Accept);
        for most in [None, Some(Duration::ZERO)] {
            mailbox.wait(&mut poll, &mut events, most).unwrap();
            assert!(events.is_empty() && mailbox.is_loaded());
        }
    }

    #[test]
    fn a_slot_for_a_worker_that_has_ended_is_free_again() {
        let poll = Poll::new().unwrap();
        let waker = Waker::new(poll.registry(), mio::Token(0)).unwrap();
        let mailbox = Arc::new(Mailbox::new(waker));
        let mut server = Server::plain("/a", vec![ServerAddress::Unix("/a".into())]);
        server.keys.maxconn = Some(1);
        let backend = Arc::new(Backend::plain("app", vec![server]));
        let inbox = Arc::clone(&mailbox) as Arc<dyn Inbox>;
        let pool = Pool::lone(backend, inbox);
        let hint = PickHint {
            source: [192, 0, 2, 1].into(),
            name: None,
            origin: None,
        };
        for late in [false, true] {
            let Pick::Slot(slot) = pool.pick(&hint, None, &[]) else {
                panic!("the slot is not free");
            };
            let wait = pool.wait(0, &[], None).unwrap();
            if late {
                drop(mailbox.close());
            }
            drop(slot);
            wait.end();
            drop(mailbox.take());
            assert_eq!(pool.state().servers()[0].in_use(), 0);
        }
    }
}

#[cfg(all(test, feature = "models"))]
mod models {
    use shuttle::thread;

    use super::*;

    /// A message that wakes no worker leaves it asleep for ever, and the model without steps.
    #[test]
    fn no_message_waits_for_a_worker_that_sleeps() {
        let messages = || {
            let mut poll = Poll::new().unwrap();
            let waker = Waker::new(poll.registry(), mio::Token(0)).unwrap();
            let mailbox = Arc::new(Mailbox::new(waker));
            for _ in 0..2 {
                let mailbox = Arc::clone(&mailbox);
                thread::spawn(move || (0..2).for_each(|_| mailbox.post(WorkerMessage::Accept)));
            }
            let mut events = Events::with_capacity(1);
            let mut received = 0;
            while received < 4 {
                let mut may_sleep = mailbox.may_sleep();
                while may_sleep {
                    thread::yield_now();
                    poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
                    may_sleep = events.is_empty();
                }
                mailbox.sleeps.store(false, Relaxed);
                received += mailbox.take().len();
            }
        };
        shuttle::check_random(messages, 1000);
    }
}
