//! How many clients may wait in the kernel's queue of a listening socket, while more come than can be
//! looked at.
//!
//! The kernel's queue is first come, first served, and nobody in it can be told anything. So it
//! must not be longer than what is accepted within the [`TARGET`] of the queue behind it: a client
//! that does not fit costs its SYN, a few microseconds, and comes again after a second. In calm it
//! is as long as configured, for bursts.
//!
//! Reads no clock. [`Backlog::handle_look`] after each look at the listening sockets, then
//! [`Backlog::poll`], which changes its mind once in a target at most.

use std::time::Duration;

use crate::fresh_queue::TARGET;

/// The bound of one worker's listening sockets.
#[derive(Debug, Default)]
pub struct Backlog {
    /// Since when somebody has always been left in the kernel's queue.
    behind_since: Option<Duration>,
    /// When accepted ones began to be counted.
    counted_from: Duration,
    accepted: u64,
    bound: Option<u32>,
}

impl Backlog {
    /// So many clients were accepted, and `emptied` says whether nobody is left.
    pub fn handle_look(&mut self, now: Duration, accepted: u64, emptied: bool) {
        self.accepted += accepted;
        if emptied {
            self.behind_since = None;
        } else {
            self.behind_since = self.behind_since.or(Some(now));
        }
    }

    /// Whether somebody has been left for longer than the target.
    pub fn is_behind(&self, now: Duration) -> bool {
        self.has_been_behind(now, TARGET)
    }

    /// Whether that will be so before long, unless everybody who waits there is looked at first.
    pub fn is_falling_behind(&self, now: Duration) -> bool {
        self.has_been_behind(now, TARGET / 2)
    }

    fn has_been_behind(&self, now: Duration, time: Duration) -> bool {
        let since = self.behind_since;
        since.is_some_and(|since| now.saturating_sub(since) > time)
    }

    /// When to poll at the latest, though nobody comes: it is to be as configured when somebody does.
    pub fn deadline(&self) -> Option<Duration> {
        self.bound.map(|_| self.counted_from + TARGET)
    }

    /// The bound; `None` if the queue is as long as configured.
    pub fn bound(&self) -> Option<u32> {
        self.bound
    }

    /// Returns whether the bound has changed. `over` says whether clients wait for too long, here or behind.
    pub fn poll(&mut self, now: Duration, over: bool) -> bool {
        let counted = now.saturating_sub(self.counted_from);
        if counted < TARGET {
            return false;
        }
        let within_target = u128::from(self.accepted) * TARGET.as_nanos() / counted.as_nanos();
        (self.accepted, self.counted_from) = (0, now);
        let pace = u32::try_from(within_target).unwrap_or(u32::MAX);
        let bound = over.then(|| pace.max(LEAST));
        std::mem::replace(&mut self.bound, bound) != bound
    }
}

/// Clients are accepted in spurts, and the queue must not run dry between two.
const LEAST: u32 = 16;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn it_is_what_is_accepted_within_the_target_and_as_configured_in_calm() {
        let mut backlog = Backlog::default();
        backlog.handle_look(ms(1000), 5000, true);
        assert!(!backlog.poll(ms(1000), false));
        backlog.handle_look(ms(1050), 300, false);
        assert!(!backlog.poll(ms(1099), true), "too soon");
        assert!(!backlog.is_falling_behind(ms(1100)) && backlog.is_falling_behind(ms(1101)));
        assert!(!backlog.is_behind(ms(1101)));
        backlog.handle_look(ms(1199), 300, false);
        assert!(backlog.is_behind(ms(1199)));
        assert!(backlog.poll(ms(1200), true));
        assert_eq!(backlog.bound(), Some(300));
        assert!(backlog.poll(ms(1300), true));
        assert_eq!(backlog.bound(), Some(16));
        assert!(!backlog.poll(ms(1400), true), "it is that already");
        backlog.handle_look(ms(1400), 0, true);
        assert!(!backlog.is_behind(ms(1500)));
        assert_eq!(backlog.deadline(), Some(ms(1500)));
        assert!(backlog.poll(ms(1500), false));
        assert_eq!(backlog.bound(), None);
        assert_eq!(backlog.deadline(), None);
    }

    proptest! {
        /// A queue that more come to than are taken from it, however many more and however fast.
        #[test]
        fn nobody_waits_for_longer_than_two_targets_once_it_is_bounded(
            come in 20..200_u64, accept in 2..20_u64,
        ) {
            let mut backlog = Backlog::default();
            let (mut queue, mut bound) = (std::collections::VecDeque::new(), 4096);
            for now in (0..5000).map(ms) {
                let room = usize::try_from(come).unwrap().min(usize::saturating_sub(bound, queue.len()));
                queue.extend(std::iter::repeat_n(now, room));
                let taken: Vec<_> = (0..accept).filter_map(|_| queue.pop_front()).collect();
                backlog.handle_look(now, taken.len() as u64, queue.is_empty());
                backlog.poll(now, backlog.is_behind(now));
                bound = backlog.bound().map_or(4096, |bound| bound as usize);
                let waited = taken.first().map_or(Duration::ZERO, |came| now - *came);
                prop_assert!(now < ms(2500) || waited <= 2 * TARGET, "{waited:?}");
            }
        }
    }
}
