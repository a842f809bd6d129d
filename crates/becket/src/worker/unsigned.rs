//! Who waits for a signature, by who makes it: the worker, or a crypto thread.
//!
//! The two kinds wait apart, since they wait for different things: one for the worker's time, the other also for room among
//! the signatures under way. Each is a [`FreshQueue`]. While both wait and can go, they go in turns, so neither is
//! kept waiting by how many the other are.

use std::time::Duration;

use becket_proto::fresh_queue::FreshQueue;

use crate::signing::Offload;

/// The clients of one worker that wait for a signature.
#[derive(Debug, Default)]
pub(super) struct Unsigned {
    /// For the worker's.
    here: FreshQueue,
    /// For a crypto thread's, or a batch of those.
    elsewhere: FreshQueue,
    /// The last that went was one of those.
    was_elsewhere: bool,
}

impl Unsigned {
    /// A client waits, unless it does so already.
    pub(super) fn push(&mut self, index: usize, offload: Offload, now: Duration) {
        let (queue, other) = match offload {
            Offload::Batches | Offload::Always => (&mut self.elsewhere, &mut self.here),
            Offload::Pointless | Offload::Never => (&mut self.here, &mut self.elsewhere),
        };
        other.remove(index);
        queue.push(index, now);
    }

    /// A client does not wait any more.
    pub(super) fn remove(&mut self, index: usize) {
        self.here.remove(index);
        self.elsewhere.remove(index);
    }

    /// A client had waited for so long when it began to wait here. Returns whether it does.
    pub(super) fn came_before(&mut self, index: usize, waited: Duration) -> bool {
        self.here.came_before(index, waited) || self.elsewhere.came_before(index, waited)
    }

    /// Whether nobody waits for the worker.
    pub(super) fn is_empty_here(&self) -> bool {
        self.here.is_empty()
    }

    /// Whether somebody can go. `has_room` says whether crypto threads can be asked.
    pub(super) fn can_go(&self, has_room: bool) -> bool {
        !self.here.is_empty() || self.can_ask(has_room)
    }

    /// Whether somebody can go for whom a crypto thread is asked.
    pub(super) fn can_ask(&self, has_room: bool) -> bool {
        has_room && !self.elsewhere.is_empty()
    }

    /// How many wait for a crypto thread.
    pub(super) fn len_elsewhere(&self) -> usize {
        self.elsewhere.len()
    }

    /// Takes out who goes next.
    pub(super) fn pop(&mut self, has_room: bool, now: Duration) -> Option<usize> {
        self.was_elsewhere =
            self.can_ask(has_room) && (self.here.is_empty() || !self.was_elsewhere);
        match self.was_elsewhere {
            true => self.elsewhere.pop(now),
            false => self.here.pop(now),
        }
    }

    /// Takes out one who has waited for too long.
    pub(super) fn pop_overdue(&mut self, now: Duration) -> Option<usize> {
        let here = self.here.pop_overdue(now);
        here.or_else(|| self.elsewhere.pop_overdue(now))
    }

    /// Whether somebody has waited for longer than the target.
    pub(super) fn is_over_target(&self, now: Duration) -> bool {
        self.here.is_over_target(now) || self.elsewhere.is_over_target(now)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Duration = Duration::from_secs(1);

    fn popped(queue: &mut Unsigned, has_room: bool) -> Vec<usize> {
        std::iter::from_fn(|| queue.pop(has_room, NOW)).collect()
    }

    #[test]
    fn who_waits_for_the_worker_does_not_wait_for_room_among_the_threads() {
        let mut queue = Unsigned::default();
        queue.push(0, Offload::Always, NOW);
        queue.push(1, Offload::Pointless, NOW);
        queue.push(2, Offload::Never, NOW);
        assert!(queue.can_go(false));
        assert_eq!(popped(&mut queue, false), [1, 2]);
        assert!(!queue.can_go(false) && queue.can_go(true));
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
                let Some(index) = queue.pop(has_room, NOW) else {
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
