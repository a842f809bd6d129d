//! Queues of clients that wait for a signature: one queue each for signatures by the worker, by
//! crypto threads and by tokens.
//!
//! A client in the first queue waits until the worker has time. A client in the second or third
//! queue waits until fewer signatures are in progress. The queues with a client that can proceed
//! take turns, so a long queue does not delay another queue. Each queue is a [`FreshQueue`].

use std::time::Duration;

use becket_proto::fresh_queue::FreshQueue;

use becket_keys::signing::Offload;
use becket_keys::signing::worker::Room;

#[derive(Debug, Default)]
pub(super) struct Unsigned {
    /// Clients whose signature the worker makes.
    here: FreshQueue,
    /// Clients whose signature a crypto thread makes, alone or in a batch.
    elsewhere: FreshQueue,
    /// Clients whose signature a token makes.
    on_tokens: FreshQueue,
    /// Index of the queue from which a client was most recently removed.
    last: usize,
}

impl Unsigned {
    /// Adds a client to the queue that matches `offload`, unless it is already in that queue.
    pub(super) fn push(&mut self, index: usize, offload: Offload, now: Duration) {
        let kind = match offload {
            Offload::Pointless | Offload::Never => 0,
            Offload::Batches | Offload::Always => 1,
            Offload::Token => 2,
        };
        for (place, queue) in self.kinds().into_iter().enumerate() {
            if place == kind {
                queue.push(index, now);
            } else {
                queue.remove(index);
            }
        }
    }

    fn kinds(&mut self) -> [&mut FreshQueue; 3] {
        [&mut self.here, &mut self.elsewhere, &mut self.on_tokens]
    }

    pub(super) fn remove(&mut self, index: usize) {
        self.kinds()
            .into_iter()
            .for_each(|queue| queue.remove(index));
    }

    /// Adds the time that a client waited in the kernel's accept queue to its time in this queue.
    /// Returns `true` if the client is queued.
    pub(super) fn came_before(&mut self, index: usize, waited: Duration) -> bool {
        let mut kinds = self.kinds().into_iter();
        kinds.any(|queue| queue.came_before(index, waited))
    }

    pub(super) fn waits(&self) -> bool {
        let kinds = [&self.here, &self.elsewhere, &self.on_tokens];
        kinds.iter().any(|queue| !queue.is_empty())
    }

    /// Returns `true` if no client waits for a signature that the worker itself makes.
    pub(super) fn is_empty_here(&self) -> bool {
        self.here.is_empty()
    }

    /// Returns `true` if at least one client's signature can be made or requested now.
    pub(super) fn can_go(&self, room: Room) -> bool {
        self.go(room).contains(&true)
    }

    /// Returns `true` if a signature can be requested from a crypto thread now.
    pub(super) fn can_ask(&self, room: Room) -> bool {
        room.threads && !self.elsewhere.is_empty()
    }

    /// Returns one flag per queue: `true` if the signature of a client in that queue can be made or
    /// requested now.
    fn go(&self, room: Room) -> [bool; 3] {
        let asks_token = room.tokens && !self.on_tokens.is_empty();
        [!self.here.is_empty(), self.can_ask(room), asks_token]
    }

    /// Returns the number of clients that wait for a crypto thread.
    pub(super) fn len_elsewhere(&self) -> usize {
        self.elsewhere.len()
    }

    /// Removes and returns the next client whose signature can be made or requested now.
    pub(super) fn pop(&mut self, room: Room, now: Duration) -> Option<usize> {
        let go = self.go(room);
        let mut turns = (1..=go.len()).map(|turn| (self.last + turn) % go.len());
        let kind = turns.find(|kind| go[*kind])?;
        self.last = kind;
        self.kinds()[kind].pop(now)
    }

    pub(super) fn pop_overdue(&mut self, now: Duration) -> Option<usize> {
        let mut kinds = self.kinds().into_iter();
        kinds.find_map(|queue| queue.pop_overdue(now))
    }

    /// Removes and returns the newest client of a queue that is too long to be served in time.
    pub(super) fn pop_excess(&mut self, now: Duration) -> Option<usize> {
        let mut kinds = self.kinds().into_iter();
        kinds.find_map(|queue| queue.pop_excess(now))
    }

    /// Returns `true` if a client has waited longer than the target time for the worker or a crypto
    /// thread. Waits for tokens do not count, because they are no reason to reduce the backlog.
    pub(super) fn is_over_target(&self, now: Duration) -> bool {
        let kinds = [&self.here, &self.elsewhere];
        kinds.iter().any(|queue| queue.is_over_target(now))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Duration = Duration::from_secs(1);

    /// Returns whether crypto threads have room.
    fn threads(threads: bool) -> Room {
        Room {
            threads,
            tokens: true,
        }
    }

    fn popped(queue: &mut Unsigned, has_room: bool) -> Vec<usize> {
        std::iter::from_fn(|| queue.pop(threads(has_room), NOW)).collect()
    }

    #[test]
    fn clients_signed_by_the_worker_do_not_wait_for_crypto_threads() {
        let mut queue = Unsigned::default();
        queue.push(0, Offload::Always, NOW);
        queue.push(1, Offload::Pointless, NOW);
        queue.push(2, Offload::Never, NOW);
        assert!(queue.can_go(threads(false)));
        assert_eq!(popped(&mut queue, false), [1, 2]);
        assert!(!queue.can_go(threads(false)) && queue.can_go(threads(true)));
        assert_eq!(popped(&mut queue, true), [0]);
    }

    #[test]
    fn a_client_that_needs_another_signature_moves_to_its_queue() {
        let mut queue = Unsigned::default();
        queue.push(0, Offload::Always, NOW);
        queue.push(0, Offload::Pointless, NOW);
        assert!(queue.came_before(0, Duration::ZERO));
        assert_eq!(popped(&mut queue, true), [0]);
        assert!(!queue.came_before(0, Duration::ZERO));
    }

    #[test]
    fn a_silent_token_blocks_only_its_own_clients() {
        let mut queue = Unsigned::default();
        for (index, offload) in [Offload::Token, Offload::Always, Offload::Never]
            .into_iter()
            .cycle()
            .take(6)
            .enumerate()
        {
            queue.push(index, offload, NOW);
        }
        let silent = Room {
            threads: true,
            tokens: false,
        };
        let order: Vec<_> = std::iter::from_fn(|| queue.pop(silent, NOW)).collect();
        assert_eq!(order, [1, 2, 4, 5]);
        assert!(!queue.can_go(silent));
        assert_eq!(popped(&mut queue, false), [0, 3]);
    }

    proptest! {
        /// With many clients of one kind, the other kind has every second turn. Clients that are
        /// left are of a kind that cannot proceed.
        #[test]
        fn signature_kinds_are_served_alternately(kinds in prop::collection::vec(any::<bool>(), 0..60), room in prop::collection::vec(any::<bool>(), 60)) {
            let mut queue = Unsigned::default();
            for (index, high) in kinds.iter().enumerate() {
                let offload = if *high { Offload::Always } else { Offload::Never };
                queue.push(index, offload, NOW);
            }
            let mut left = [false, true].map(|kind| kinds.iter().filter(|high| **high == kind).count());
            let mut last = false;
            for has_room in room {
                let both = left[0] > 0 && left[1] > 0 && has_room;
                let Some(index) = queue.pop(threads(has_room), NOW) else {
                    prop_assert!(left[0] == 0 && (left[1] == 0 || !has_room));
                    continue;
                };
                let kind = kinds[index];
                prop_assert!(has_room || !kind);
                prop_assert!(!both || kind != last, "in turns");
                left[usize::from(kind)] -= 1;
                last = kind;
            }
        }
    }
}
