//! Transports events about new and ended sessions from the workers to the control thread, which sends them to peers,
//! and to the thread that writes them to a store.
//!
//! Each worker has an [`Outbox`], the sending end of a bounded queue for each of them. The other thread has an
//! [`OutboxReader`] with all receiving ends. A queue contains only the *name* of a session; the session state stays in the table until the
//! control thread sends it. A handshake therefore costs a copy of 48 bytes, allocates nothing, and puts no master
//! secret into a queue. A worker never waits: if its queue is full, the event is dropped and counted.
//!
//! A wakeup of the control thread costs a system call. The control thread therefore sleeps only if all queues are
//! empty, and only the first event after that wakes it. It then checks the queues every [`BATCH`] until they are empty
//! again. No event waits longer than [`BATCH`].

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use becket_proto::session::SessionName;
use tokio::sync::Notify;

use crate::lookups::StoreLookups;
use crate::replica::PeerStick;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// A session was created and is in the table.
    Made(SessionName),
    /// A session ended with its connection and was removed from the table.
    Ended(SessionName),
    /// A client was assigned to a server and should return to it.
    Stuck(PeerStick),
}

#[derive(Clone, Debug)]
pub struct Outbox {
    queues: Vec<EventQueue>,
    /// Requests to the store; `None` without a store.
    lookups: Option<StoreLookups>,
}

#[derive(Clone, Debug)]
struct EventQueue {
    queue: SyncSender<SessionEvent>,
    shared: Arc<OutboxShared>,
}

/// Receiving ends of the queues of all workers.
#[derive(Debug)]
pub struct OutboxReader {
    queues: Vec<Receiver<SessionEvent>>,
    shared: Arc<OutboxShared>,
    capacity: usize,
}

#[derive(Debug, Default)]
struct OutboxShared {
    asleep: AtomicBool,
    wakeup: Notify,
    untold: AtomicU64,
}

impl Outbox {
    /// Queues an event without waiting. If a queue is full, drops and counts the event. Makes a system call only if
    /// the reading thread sleeps.
    ///
    /// Discards events without counting them after the host has left its cluster.
    pub fn leave(&self, event: SessionEvent) {
        for queue in &self.queues {
            queue.leave(event);
        }
    }

    #[must_use]
    pub fn with_lookups(self, lookups: StoreLookups) -> Self {
        let lookups = Some(lookups);
        Self { lookups, ..self }
    }

    /// Returns the requests to the store; `None` without a store.
    pub fn lookups(&self) -> Option<&StoreLookups> {
        self.lookups.as_ref()
    }

    /// Returns the outboxes of all workers, whose events go to the peers and to the store. Either list may be empty.
    pub fn joined(peers: Vec<Self>, store: Vec<Self>) -> Vec<Self> {
        if peers.is_empty() {
            return store;
        }
        let mut store = store.into_iter();
        let join = |mut outbox: Self| {
            if let Some(other) = store.next() {
                outbox.queues.extend(other.queues);
                outbox.lookups = other.lookups;
            }
            outbox
        };
        peers.into_iter().map(join).collect()
    }
}

impl EventQueue {
    fn leave(&self, event: SessionEvent) {
        if let Err(TrySendError::Full(_)) = self.queue.try_send(event) {
            self.shared.untold.fetch_add(1, Relaxed);
        }
        // Pairs with the fence in `drain`: either this thread sees that the reading thread sleeps,
        // or the reading thread sees the event. Without the fences, both could miss the change.
        fence(SeqCst);
        if self.shared.asleep.load(Relaxed) && self.shared.asleep.swap(false, SeqCst) {
            self.shared.wakeup.notify_one();
        }
    }
}

impl OutboxReader {
    /// Creates queues for `workers` workers and `capacity` events each. An event takes about 60 bytes.
    pub fn of_workers(workers: usize, capacity: usize) -> (Self, Vec<Outbox>) {
        let shared = Arc::<OutboxShared>::default();
        let (queues, outboxes) = (0..workers)
            .map(|_| {
                let (queue, receiver) = sync_channel(capacity);
                let shared = Arc::clone(&shared);
                let outbox = Outbox {
                    queues: vec![EventQueue { queue, shared }],
                    lookups: None,
                };
                (receiver, outbox)
            })
            .unzip();
        let events = Self {
            queues,
            shared,
            capacity,
        };
        (events, outboxes)
    }

    /// Takes the waiting events, at most the capacity of a queue from each worker, and returns their number. If there
    /// are none, the next event completes [`Self::wakeup`].
    pub fn drain(&self, mut take: impl FnMut(SessionEvent)) -> usize {
        let taken = self.take_waiting(&mut take);
        if taken > 0 {
            return taken;
        }
        self.shared.asleep.store(true, SeqCst);
        fence(SeqCst);
        // Check the queues again, because an event that was queued before `asleep` was set has
        // caused no wakeup.
        let taken = self.take_waiting(&mut take);
        if taken > 0 {
            self.shared.asleep.store(false, SeqCst);
        }
        taken
    }

    /// Waits for the first event after a drain that found none. The future can be dropped without
    /// losing an event.
    pub fn wakeup(&self) -> impl Future<Output = ()> + use<> {
        let shared = Arc::clone(&self.shared);
        async move { shared.wakeup.notified().await }
    }

    /// Number of events dropped because a queue was full.
    pub fn untold(&self) -> u64 {
        self.shared.untold.load(Relaxed)
    }

    fn take_waiting(&self, take: &mut impl FnMut(SessionEvent)) -> usize {
        let mut taken = 0;
        for queue in &self.queues {
            for event in queue.try_iter().take(self.capacity) {
                take(event);
                taken += 1;
            }
        }
        taken
    }
}

/// Time between two drains while events arrive. It is short compared with a client's round-trip time, and long compared
/// with the CPU time of a drain.
pub const BATCH: Duration = Duration::from_millis(4);

#[cfg(test)]
mod tests {

    use super::*;
    use becket_proto::session::PolicyTag;

    const CAPACITY: usize = 256;

    fn event(number: u64) -> SessionEvent {
        let name = SessionName::new(PolicyTag(1), &number.to_be_bytes());
        SessionEvent::Made(name.unwrap())
    }

    #[test]
    fn a_full_queue_drops_and_counts_events() {
        let (events, outboxes) = OutboxReader::of_workers(1, CAPACITY);
        for number in 0..CAPACITY as u64 + 3 {
            outboxes[0].leave(event(number));
        }
        assert_eq!(events.untold(), 3);
        assert_eq!(events.drain(|_| {}), CAPACITY);
    }

    #[test]
    fn events_without_a_receiver_are_not_counted() {
        let (events, outboxes) = OutboxReader::of_workers(1, CAPACITY);
        drop(events);
        outboxes[0].leave(event(1));
        assert_eq!(outboxes[0].queues[0].shared.untold.load(Relaxed), 0);
    }

    #[test]
    fn joined_outboxes_leave_an_event_in_both_queues() {
        let (peers, of_peers) = OutboxReader::of_workers(2, CAPACITY);
        let (store, of_store) = OutboxReader::of_workers(2, 1);
        let outboxes = Outbox::joined(of_peers, of_store);
        assert_eq!(outboxes.len(), 2);
        outboxes[1].leave(event(1));
        outboxes[1].leave(event(2));
        assert_eq!((peers.drain(|_| {}), store.drain(|_| {})), (2, 1));
        assert_eq!((peers.untold(), store.untold()), (0, 1));
    }

    #[test]
    fn only_the_first_event_after_an_empty_drain_wakes() {
        let (events, outboxes) = OutboxReader::of_workers(1, CAPACITY);
        assert_eq!(events.drain(|_| {}), 0);
        assert!(events.shared.asleep.load(SeqCst));
        outboxes[0].leave(event(1));
        assert!(!events.shared.asleep.load(SeqCst));
        outboxes[0].leave(event(2));
        assert_eq!(events.drain(|_| {}), 2);
    }
}

#[cfg(all(test, feature = "models"))]
mod models {
    use becket_proto::session::PolicyTag;
    use shuttle::{future, thread};

    use super::*;

    /// An event that does not wake control is a deadlock, which the model reports.
    #[test]
    fn no_event_is_missed_while_control_sleeps() {
        let events = || {
            let (reader, outboxes) = OutboxReader::of_workers(2, 4);
            for outbox in outboxes {
                thread::spawn(move || {
                    for number in 0..2u64 {
                        let name = SessionName::new(PolicyTag(1), &number.to_be_bytes());
                        outbox.leave(SessionEvent::Made(name.unwrap()));
                        thread::yield_now();
                    }
                });
            }
            let mut taken = 0;
            while taken < 4 {
                match reader.drain(|_| {}) {
                    0 => future::block_on(reader.wakeup()),
                    some => taken += some,
                }
            }
        };
        shuttle::check_random(events, 2000);
    }
}
