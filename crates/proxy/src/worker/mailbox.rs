//! Queue of messages to a worker, from the control thread and other threads, and a waker.
//!
//! The lock is held only to push a message or to take the whole queue. A sender uses the waker only
//! if the worker sleeps, and only once. An awake worker checks `loaded` after each connection, so
//! that a granted server slot does not wait for the end of the turn.
//!
//! No message waits for a sleeping worker. The sender sets `loaded` and then reads `sleeps`. The
//! worker sets `sleeps` and then reads `loaded` ([`Mailbox::wait`]). All four accesses are
//! sequentially consistent, so either the sender sees `sleeps`, or the worker sees `loaded`.

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

#[derive(Debug)]
pub enum WorkerMessage {
    Config {
        adopted: Adopted,
        added: Vec<BoundListener>,
        /// Outbox for new sessions, which are sent to the peers of the cluster; `None` without a
        /// cluster.
        outbox: Option<Outbox>,
    },
    Secrets(Arc<TicketSecrets>),
    Event(BackendEvent),
    Signed(Vec<Signed>),
    List(Listing),
    Kill(Killing),
    EndIdle(IdleReclaim),
    /// Stop accepting and confirm this on the channel, so that another process can accept from the
    /// same sockets.
    Park(Sender<()>),
    Accept,
    /// Stop accepting, and end after the last connection. Another process also listens on these
    /// addresses.
    Drain(Arc<[SocketAddr]>),
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

/// The alignment separates the mailboxes of two workers, because each worker writes its own before it sleeps.
#[derive(Debug)]
#[repr(align(128))]
pub struct Mailbox {
    /// `None` after the worker has ended.
    messages: Mutex<Option<Vec<WorkerMessage>>>,
    /// `true` if the queue contains messages. The flag can be read without the lock of the queue.
    loaded: AtomicBool,
    /// `true` while the worker sleeps or is about to sleep, and no sender has woken it yet.
    sleeps: AtomicBool,
    waker: Waker,
}

impl Mailbox {
    pub fn new(waker: Waker) -> Self {
        Self {
            messages: Mutex::new(Some(Vec::new())),
            loaded: AtomicBool::new(false),
            sleeps: AtomicBool::new(false),
            waker,
        }
    }

    /// Queues a message and wakes a sleeping worker. Drops the message if the worker has ended; a
    /// slot in the message goes to the next waiter.
    pub fn post(&self, message: WorkerMessage) {
        let mut held = self.lock();
        let Some(messages) = &mut *held else {
            // The lock is released before the drop, because dropping the message may grant its slot
            // and post to this mailbox.
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
            tracing::error!(name: "worker-wake-failed", %error, "cannot wake a worker thread; it will read its messages at its next event");
        }
    }

    /// Waits for events for at most `most`. Returns early if there is a message.
    ///
    /// # Errors
    ///
    /// Returns the errors of the poll.
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

    fn may_sleep(&self) -> bool {
        self.sleeps.store(true, SeqCst);
        !self.loaded.load(SeqCst)
    }

    /// Returns `true` if there are messages, without taking the lock. If a new message is not
    /// visible yet, [`Self::wait`] finds it.
    pub fn is_loaded(&self) -> bool {
        self.loaded.load(Relaxed)
    }

    /// Takes all messages, oldest first.
    pub fn take(&self) -> Vec<WorkerMessage> {
        let mut held = self.lock();
        self.loaded.store(false, Relaxed);
        held.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Takes all messages and closes the queue, because the worker has ended.
    pub fn close(&self) -> Vec<WorkerMessage> {
        self.lock().take().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<WorkerMessage>>> {
        // The queue is valid even after a panic, because every change is complete.
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
    fn an_awake_worker_receives_messages() {
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
    fn a_slot_granted_to_an_ended_worker_is_released() {
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

    /// Without a wake-up, the worker would sleep forever and the model would deadlock.
    #[test]
    fn every_message_wakes_a_sleeping_worker() {
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
