//! The way of new and ended sessions from the workers to the control thread, which tells the peers.
//!
//! Each worker holds an [`Outbox`], the end of a bounded queue of its own; the control thread holds
//! the [`OutboxReader`] with all the other ends. What is queued is a session's *name*: the state stays in
//! the table until control sends it. So a handshake pays for a copy of 48 bytes, allocates nothing,
//! and no master secret waits in a queue. A worker never waits: a full queue drops the event, and the
//! worker counts it in `Counters::sessions_untold`.
//!
//! Waking control costs a system call, and a handshake should not pay for one. So control lies down
//! only when all queues are empty, and only the first event after that wakes control by [`Wakeup`]; from then
//! on control comes back by itself every [`BATCH`] until it finds nothing. A quiet host is woken
//! once per handshake and a busy one never; no event waits longer than [`BATCH`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst, fence};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use becket_proto::session_name::SessionName;
use tokio::sync::Notify;

use crate::backend::registry::PeerStick;
use crate::metrics::Counters;

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

/// A worker's end: gives events away.
#[derive(Clone, Debug)]
pub struct Outbox {
    queue: SyncSender<SessionEvent>,
    wakeup: Arc<Wakeup>,
    counters: Arc<Counters>,
}

impl Outbox {
    /// Leaves an event without waiting, or drops and counts it. No system call unless control sleeps. Who
    /// takes no part in a cluster any more tells nobody, and counts nothing.
    pub fn leave(&self, event: SessionEvent) {
        let dropped = matches!(self.queue.try_send(event), Err(TrySendError::Full(_)));
        self.counters.sessions_untold.add(dropped.into());
        self.wakeup.wake();
    }
}

/// The control thread's end.
#[derive(Debug)]
pub struct OutboxReader {
    queues: Vec<Receiver<SessionEvent>>,
    wakeup: Arc<Wakeup>,
    capacity: usize,
}

impl OutboxReader {
    /// Makes the queues of all workers, for so many events each; an event takes some 60 bytes.
    pub fn of_workers(counters: &[Arc<Counters>], capacity: usize) -> (Self, Vec<Outbox>) {
        let wakeup = Arc::new(Wakeup::default());
        let (outboxes, queues) = counters
            .iter()
            .map(|counters| {
                let (queue, receiver) = sync_channel(capacity);
                let outbox = Outbox {
                    queue,
                    wakeup: Arc::clone(&wakeup),
                    counters: Arc::clone(counters),
                };
                (outbox, receiver)
            })
            .unzip();
        let reader = Self {
            queues,
            wakeup,
            capacity,
        };
        (reader, outboxes)
    }

    /// Takes what waits, of each worker at most as many events as its queue holds, and returns how many there were.
    /// When there were none, the next event wakes control.
    pub fn drain(&self, mut take: impl FnMut(SessionEvent)) -> usize {
        let taken = self.take_waiting(&mut take);
        if taken > 0 {
            return taken;
        }
        self.wakeup.lie_down();
        // What was left before the worker could see that control lies down woke nobody.
        let taken = self.take_waiting(&mut take);
        if taken > 0 {
            self.wakeup.get_up();
        }
        taken
    }

    /// How the first event after an empty drain wakes control.
    pub fn wakeup(&self) -> Arc<Wakeup> {
        Arc::clone(&self.wakeup)
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

/// Wakes control, once for each time that it lay down.
#[derive(Debug, Default)]
pub struct Wakeup {
    asleep: AtomicBool,
    notify: Notify,
}

impl Wakeup {
    /// Waits for the first event after a drain that found none. Nothing is lost when the future is
    /// dropped.
    pub async fn woken(&self) {
        self.notify.notified().await;
    }

    fn wake(&self) {
        // With the fence in `lie_down`: either this sees that control lies down, or control sees
        // the event. Without both, each could miss the other.
        fence(SeqCst);
        if self.asleep.load(Relaxed) && self.asleep.swap(false, SeqCst) {
            self.notify.notify_one();
        }
    }

    fn lie_down(&self) {
        self.asleep.store(true, SeqCst);
        fence(SeqCst);
    }

    fn get_up(&self) {
        self.asleep.store(false, SeqCst);
    }
}

/// Between two drains while there is something to drain: short beside a client's round trip, long
/// beside what a turn of control costs.
pub const BATCH: Duration = Duration::from_millis(4);

#[cfg(test)]
mod tests {
    use std::thread;

    use becket_proto::session_table::PolicyTag;

    use super::*;

    const CAPACITY: usize = 256;

    fn event(number: u64) -> SessionEvent {
        let name = SessionName::new(PolicyTag(1), &number.to_be_bytes());
        SessionEvent::Made(name.unwrap())
    }

    fn workers(number: usize) -> Vec<Arc<Counters>> {
        (0..number).map(|_| Arc::default()).collect()
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let counters = workers(1);
        let (reader, outboxes) = OutboxReader::of_workers(&counters, CAPACITY);
        for number in 0..CAPACITY as u64 + 3 {
            outboxes[0].leave(event(number));
        }
        assert_eq!(counters[0].sessions_untold.value(), 3);
        assert_eq!(reader.drain(|_| {}), CAPACITY);
    }

    #[test]
    fn notes_for_nobody_are_not_counted() {
        let counters = workers(1);
        let (reader, outboxes) = OutboxReader::of_workers(&counters, CAPACITY);
        drop(reader);
        outboxes[0].leave(event(1));
        assert_eq!(counters[0].sessions_untold.value(), 0);
    }

    #[test]
    fn every_note_is_found_although_control_sleeps_between_them() {
        const NOTES: u64 = 20_000;
        let counters = workers(3);
        let (reader, outboxes) = OutboxReader::of_workers(&counters, CAPACITY);
        let senders: Vec<_> = outboxes
            .into_iter()
            .map(|outbox| {
                thread::spawn(move || {
                    for number in 0..NOTES {
                        outbox.leave(event(number));
                        if number % 64 == 0 {
                            thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let dropped = || {
            counters
                .iter()
                .map(|c| c.sessions_untold.value())
                .sum::<u64>()
        };
        // Control sleeps whenever it found nothing: a missed wake-up would hang here.
        runtime.block_on(async {
            let mut taken = 0;
            while taken + dropped() < 3 * NOTES {
                match reader.drain(|_| {}) {
                    0 => reader.wakeup().woken().await,
                    some => taken += some as u64,
                }
            }
        });
        for sender in senders {
            sender.join().unwrap();
        }
    }

    #[test]
    fn only_the_first_note_after_an_empty_drain_rings() {
        let (reader, outboxes) = OutboxReader::of_workers(&workers(1), CAPACITY);
        assert_eq!(reader.drain(|_| {}), 0);
        assert!(reader.wakeup.asleep.load(SeqCst));
        outboxes[0].leave(event(1));
        assert!(!reader.wakeup.asleep.load(SeqCst));
        outboxes[0].leave(event(2));
        assert_eq!(reader.drain(|_| {}), 2);
    }
}
