//! Who waits for a signature, by who makes it: the worker, a crypto thread, or a token.
//!
//! The kinds wait apart, since they wait for different things: one for the worker's time, the others also for room among
//! the signatures under way, which a token that is silent does not have for seconds. Each is a [`FreshQueue`]. While several wait and
//! can go, they go in turns, so none is kept waiting by how many the others are.

use std::time::Duration;

use becket_proto::fresh_queue::FreshQueue;

use becket_keys::signing::Offload;
use becket_keys::signing::worker::Room;

/// The clients of one worker that wait for a signature.
#[derive(Debug, Default)]
pub(super) struct Unsigned {
    /// For the worker's.
    here: FreshQueue,
    /// For a crypto thread's, or a batch of those.
    elsewhere: FreshQueue,
    /// For a token's.
    on_tokens: FreshQueue,
    /// Of which kind the last was that went.
    last: usize,
}

impl Unsigned {
    /// A client waits, unless it does so already.
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

    /// A client does not wait any more.
    pub(super) fn remove(&mut self, index: usize) {
        self.kinds()
            .into_iter()
            .for_each(|queue| queue.remove(index));
    }

    /// A client had waited for so long when it began to wait here. Returns whether it does.
    pub(super) fn came_before(&mut self, index: usize, waited: Duration) -> bool {
        let mut kinds = self.kinds().into_iter();
        kinds.any(|queue| queue.came_before(index, waited))
    }

    /// Whether anybody waits.
    pub(super) fn waits(&self) -> bool {
        let kinds = [&self.here, &self.elsewhere, &self.on_tokens];
        kinds.iter().any(|queue| !queue.is_empty())
    }

    /// Whether nobody waits for the worker.
    pub(super) fn is_empty_here(&self) -> bool {
        self.here.is_empty()
    }

    /// Whether somebody can go.
    pub(super) fn can_go(&self, room: Room) -> bool {
        self.go(room).contains(&true)
    }

    /// Whether somebody can go for whom a crypto thread is asked.
    pub(super) fn can_ask(&self, room: Room) -> bool {
        room.threads && !self.elsewhere.is_empty()
    }

    /// Of which kinds somebody can go.
    fn go(&self, room: Room) -> [bool; 3] {
        let asks_token = room.tokens && !self.on_tokens.is_empty();
        [!self.here.is_empty(), self.can_ask(room), asks_token]
    }

    /// How many wait for a crypto thread.
    pub(super) fn len_elsewhere(&self) -> usize {
        self.elsewhere.len()
    }

    /// Takes out who goes next.
    pub(super) fn pop(&mut self, room: Room, now: Duration) -> Option<usize> {
        let go = self.go(room);
        let mut turns = (1..=go.len()).map(|turn| (self.last + turn) % go.len());
        let kind = turns.find(|kind| go[*kind])?;
        self.last = kind;
        self.kinds()[kind].pop(now)
    }

    /// Takes out one who has waited for too long.
    pub(super) fn pop_overdue(&mut self, now: Duration) -> Option<usize> {
        let mut kinds = self.kinds().into_iter();
        kinds.find_map(|queue| queue.pop_overdue(now))
    }

    /// Takes out the newest, if more have come than are worth keeping.
    pub(super) fn pop_excess(&mut self, now: Duration) -> Option<usize> {
        let mut kinds = self.kinds().into_iter();
        kinds.find_map(|queue| queue.pop_excess(now))
    }

    /// Returns whether a client has waited longer than the target for this machine's processors. A slow token is no reason to
    /// accept fewer clients: most of them may not need it.
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

    /// Room among the threads, or none.
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
    fn who_waits_for_the_worker_does_not_wait_for_room_among_the_threads() {
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
    fn who_needs_another_signature_waits_with_the_others_of_that_kind() {
        let mut queue = Unsigned::default();
        queue.push(0, Offload::Always, NOW);
        queue.push(0, Offload::Pointless, NOW);
        assert!(queue.came_before(0, Duration::ZERO));
        assert_eq!(popped(&mut queue, true), [0]);
        assert!(!queue.came_before(0, Duration::ZERO));
    }

    #[test]
    fn a_silent_token_stops_those_only_who_need_it() {
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
        /// However many come of one kind, the other has every second turn, and whoever is left is of a kind that cannot go.
        #[test]
        fn kinds_go_in_turns(kinds in prop::collection::vec(any::<bool>(), 0..60), room in prop::collection::vec(any::<bool>(), 60)) {
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
