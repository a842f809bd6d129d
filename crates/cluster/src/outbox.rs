//! The way of new and ended sessions from the workers to the control thread, which tells the peers.
//!
//! Each worker holds an [`Outbox`], the end of a bounded queue of its own; the control thread holds [`OutboxReader`], with all the
//! other ends. What is queued is a session's *name*: the state stays in the table until control sends it. So a handshake pays
//! for a copy of 48 bytes, allocates nothing, and no master secret waits in a queue. A worker never waits: a full queue drops
//! the event, and that is counted.
//!
//! Waking control costs a system call, and a handshake should not pay for one. So control sleeps only when all queues are
//! empty, and only the first event after that wakes it; from then on control comes back by itself every [`BATCH`] until it
//! finds nothing. A quiet host is woken once per handshake and a busy one never; no event waits longer than [`BATCH`].

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use becket_proto::session::SessionName;
use tokio::sync::Notify;

use crate::replica::PeerStick;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};

/// What the peers should know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// A session was made and is in the table.
    Made(SessionName),
    /// A session ended with its connection and was taken from the table.
    Ended(SessionName),
    /// A client was sent to a server, and is to find it again.
    Stuck(PeerStick),
}

/// A worker's end.
#[derive(Clone, Debug)]
pub struct Outbox {
    queue: SyncSender<SessionEvent>,
    shared: Arc<OutboxShared>,
}

/// The control thread's end.
#[derive(Debug)]
pub(crate) struct OutboxReader {
    queues: Vec<Receiver<SessionEvent>>,
    shared: Arc<OutboxShared>,
    capacity: usize,
}

#[derive(Debug, Default)]
struct OutboxShared {
    asleep: AtomicBool,
    wakeup: Notify,
    /// Events that were dropped.
    untold: AtomicU64,
}

impl Outbox {
    /// Leaves an event without waiting, or drops and counts it. No system call unless control sleeps. After the host has left
    /// its cluster nothing is told, and nothing counted.
    pub fn leave(&self, event: SessionEvent) {
        if let Err(TrySendError::Full(_)) = self.queue.try_send(event) {
            self.shared.untold.fetch_add(1, Relaxed);
        }
        // With the fence in `drain`: either this sees that control sleeps, or control sees the event. Without both, each
        // could miss the other.
        fence(SeqCst);
        if self.shared.asleep.load(Relaxed) && self.shared.asleep.swap(false, SeqCst) {
            self.shared.wakeup.notify_one();
        }
    }
}

impl OutboxReader {
    /// Makes the queues of so many workers, for so many events each; an event takes some 60 bytes.
    pub(crate) fn of_workers(workers: usize, capacity: usize) -> (Self, Vec<Outbox>) {
        let shared = Arc::<OutboxShared>::default();
        let (queues, outboxes) = (0..workers)
            .map(|_| {
                let (queue, receiver) = sync_channel(capacity);
                let shared = Arc::clone(&shared);
                (receiver, Outbox { queue, shared })
            })
            .unzip();
        let events = Self {
            queues,
            shared,
            capacity,
        };
        (events, outboxes)
    }

    /// Takes what waits, of each worker at most as many events as its queue holds, and returns how many there were. When
    /// there were none, the next event wakes [`Self::wakeup`].
    pub(crate) fn drain(&self, mut take: impl FnMut(SessionEvent)) -> usize {
        let taken = self.take_waiting(&mut take);
        if taken > 0 {
            return taken;
        }
        self.shared.asleep.store(true, SeqCst);
        fence(SeqCst);
        // What was left before the worker could see that control sleeps woke nobody.
        let taken = self.take_waiting(&mut take);
        if taken > 0 {
            self.shared.asleep.store(false, SeqCst);
        }
        taken
    }

    /// Waits for the first event after a drain that found none. Nothing is lost when the future is dropped.
    pub(crate) fn wakeup(&self) -> impl Future<Output = ()> + use<> {
        let shared = Arc::clone(&self.shared);
        async move { shared.wakeup.notified().await }
    }

    /// Events that were dropped because a queue was full.
    pub(crate) fn untold(&self) -> u64 {
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

/// Between two drains while there is something to drain: short beside a client's round trip, long beside what a turn of
/// control costs.
pub(crate) const BATCH: Duration = Duration::from_millis(4);

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
    fn a_full_queue_drops_and_counts() {
        let (events, outboxes) = OutboxReader::of_workers(1, CAPACITY);
        for number in 0..CAPACITY as u64 + 3 {
            outboxes[0].leave(event(number));
        }
        assert_eq!(events.untold(), 3);
        assert_eq!(events.drain(|_| {}), CAPACITY);
    }

    #[test]
    fn events_for_nobody_are_not_counted() {
        let (events, outboxes) = OutboxReader::of_workers(1, CAPACITY);
        drop(events);
        outboxes[0].leave(event(1));
        assert_eq!(outboxes[0].shared.untold.load(Relaxed), 0);
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
    fn every_event_is_found_although_control_sleeps_between_them() {
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
