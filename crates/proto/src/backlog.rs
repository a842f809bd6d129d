//! Length of the kernel's accept queue while clients connect faster than a worker accepts them.
//!
//! The kernel's queue is first in, first out, and Becket cannot respond to a queued client before
//! it accepts the client. Under overload, the queue must hold no more clients than the worker
//! accepts within [`TARGET`], the longest acceptable wait. If the queue is full, the kernel drops a
//! client's SYN, which costs a few microseconds, and the client retries after a second. Without
//! overload the queue has its configured length, to absorb bursts.
//!
//! Reads no clock. Call [`Backlog::handle_look`] after each pass over the listening sockets, and
//! afterwards [`Backlog::poll`], which changes the bound on the queue's length at most once per
//! [`TARGET`].

use std::time::Duration;

use crate::fresh_queue::TARGET;

/// Bound on the length of the accept queues of one worker's listening sockets.
#[derive(Debug, Default)]
pub struct Backlog {
    /// Start of the current series of passes that each left clients in the accept queue; `None` if
    /// the last pass emptied the queue.
    behind_since: Option<Duration>,
    /// Start of the interval in which `accepted` is counted.
    counted_from: Duration,
    accepted: u64,
    bound: Option<u32>,
}

impl Backlog {
    /// Records that a pass over the listening sockets accepted `accepted` clients. `emptied` is
    /// `true` if the pass left no client in the accept queues.
    pub fn handle_look(&mut self, now: Duration, accepted: u64, emptied: bool) {
        self.accepted += accepted;
        if emptied {
            self.behind_since = None;
        } else {
            self.behind_since = self.behind_since.or(Some(now));
        }
    }

    /// Returns `true` if the latest pass left no client in the accept queues.
    pub fn is_emptied(&self) -> bool {
        self.behind_since.is_none()
    }

    /// Returns `true` if clients have been left in the accept queue for longer than [`TARGET`].
    pub fn is_behind(&self, now: Duration) -> bool {
        self.has_been_behind(now, TARGET)
    }

    /// Returns `true` if clients have been left in the accept queue for longer than half of
    /// [`TARGET`].
    pub fn is_falling_behind(&self, now: Duration) -> bool {
        self.has_been_behind(now, TARGET / 2)
    }

    fn has_been_behind(&self, now: Duration, time: Duration) -> bool {
        let since = self.behind_since;
        since.is_some_and(|since| now.saturating_sub(since) > time)
    }

    /// Returns the time at which [`Self::poll`] must be called even if no client connects, because
    /// it may remove the bound on the accept queue. Returns `None` if the queue has no bound.
    pub fn deadline(&self) -> Option<Duration> {
        self.bound.map(|_| self.counted_from + TARGET)
    }

    /// Returns the maximum length of the accept queue, or `None` if the configured length applies.
    pub fn bound(&self) -> Option<u32> {
        self.bound
    }

    /// Updates the bound on the accept queue. Returns `true` if the bound changed. `over` is `true`
    /// if clients wait too long, in the accept queue or in the worker.
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

/// Minimum bound on the accept queue: workers accept in batches, and the queue must not run dry
/// between two batches.
const LEAST: u32 = 16;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn overload_bounds_the_backlog_and_calm_restores_it() {
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
        /// More clients connect than are accepted, by various factors and at various rates.
        #[test]
        fn no_client_waits_longer_than_two_targets_with_a_bounded_backlog(
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
