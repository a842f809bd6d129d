//! A queue that serves clients before they give up.
//!
//! A client gives up after it has waited a few seconds for a full handshake, and later work for it
//! is wasted. When clients arrive faster than they can be served, a first-in, first-out queue
//! serves most clients just before they give up. So this queue
//!
//! * serves the oldest client first while it has waited for no longer than [`PATIENCE`];
//! * serves the newest client first after that, so that the served clients are still connected;
//! * while it serves the newest client first, keeps three new clients for every two served, and
//!   [`SPARE`] more, because further clients would only wait until they are dropped;
//! * drops clients that have waited for [`LIMIT`], oldest first, so that they can try another
//!   server.
//!
//! Waiting time is the only criterion, and nothing has to be configured. A burst that can be served
//! within the limit is served in full. Clients that all reconnect after being served are also
//! served in full, if one round takes no longer than [`PATIENCE`]. (CoDel, RFC 8289, bounds the
//! time in a queue, not its length; serving the newest first under overload is Facebook's "adaptive
//! LIFO", Maurer, 2015.)
//!
//! The caller identifies a client by an index. The queue owns 24 bytes for each index up to the
//! largest ever queued, and reads no clock. Any client can leave at any time, in constant time.

use std::time::Duration;

use crate::index_queue::IndexQueue;

#[derive(Debug, Default)]
pub struct FreshQueue {
    waiting: IndexQueue,
    arrived: Vec<Duration>,
    /// Number of excess clients, in halves: two for each arrival, minus three for each client
    /// served. [`Self::pop_excess`] drops clients while it is positive.
    excess: i32,
}

impl FreshQueue {
    /// Appends the client with this index, unless it is queued already.
    pub fn push(&mut self, index: usize, arrived: Duration) {
        if self.waiting.contains(index) {
            return;
        }
        self.waiting.push(index);
        if self.arrived.len() <= index {
            self.arrived.resize(index + 1, Duration::ZERO);
        }
        self.arrived[index] = arrived;
        self.excess += ONE;
    }

    /// Backdates the arrival of a queued client by `waited`. Returns `false` if the client is not
    /// queued.
    pub fn came_before(&mut self, index: usize, waited: Duration) -> bool {
        let waits = self.waiting.contains(index);
        if let Some(arrived) = self.arrived.get_mut(index).filter(|_| waits) {
            *arrived = arrived.saturating_sub(waited);
        }
        waits
    }

    pub fn remove(&mut self, index: usize) {
        self.waiting.remove(index);
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn is_over_target(&self, now: Duration) -> bool {
        self.waited(now).is_some_and(|waited| waited > TARGET)
    }

    /// Removes the oldest client, or the newest one if the oldest has waited for longer than
    /// `PATIENCE`.
    pub fn pop(&mut self, now: Duration) -> Option<usize> {
        let next = if self.is_out_of_patience(now) {
            self.waiting.last()
        } else {
            self.waiting.first()
        };
        self.excess = (self.excess - ONE - ONE / 2).max(-ONE * SPARE);
        self.take(next)
    }

    /// Removes and returns the newest client if clients arrive faster than they are served during
    /// overload. Call it after each arrival.
    pub fn pop_excess(&mut self, now: Duration) -> Option<usize> {
        if !self.is_out_of_patience(now) {
            self.excess = -ONE * SPARE;
        }
        if self.excess <= 0 {
            return None;
        }
        self.excess -= ONE;
        self.take(self.waiting.last())
    }

    fn is_out_of_patience(&self, now: Duration) -> bool {
        self.waited(now).is_some_and(|waited| waited > PATIENCE)
    }

    /// Removes and returns a client that has waited for longer than [`LIMIT`].
    pub fn pop_overdue(&mut self, now: Duration) -> Option<usize> {
        let overdue = self.waited(now).is_some_and(|waited| waited > LIMIT);
        let oldest = self.waiting.first().filter(|_| overdue);
        self.take(oldest)
    }

    fn take(&mut self, index: Option<usize>) -> Option<usize> {
        if let Some(index) = index {
            self.waiting.remove(index);
        }
        index
    }

    /// Returns how long the oldest client has waited.
    fn waited(&self, now: Duration) -> Option<Duration> {
        let arrived = self.arrived.get(self.waiting.first()?)?;
        Some(now.saturating_sub(*arrived))
    }
}

/// Target for the waiting time; a longer wait means overload. People notice a tenth of a second,
/// and random arrivals below the capacity cause far shorter waits.
pub const TARGET: Duration = Duration::from_millis(100);
/// Maximum waiting time of the oldest client while the queue serves in order of arrival; above it,
/// the newest client is served first. With a shorter time, clients that all reconnect at once would
/// be served newest first, although all could be served in turn.
pub const PATIENCE: Duration = Duration::from_millis(300);
/// Number of clients that may arrive at once during overload without a drop.
pub const SPARE: i32 = 32;
/// One client in units of `excess`, which counts half clients.
const ONE: i32 = 2;
/// Maximum waiting time, short enough that a dropped client can retry before its own timeout.
pub const LIMIT: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Come { late_by: u64 },
        Leave(usize),
        Pass(u64),
        Serve,
        GiveUp,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..150_u64).prop_map(|late_by| Step::Come { late_by }),
            1 => (0..40_usize).prop_map(Step::Leave),
            2 => (0..200_u64).prop_map(Step::Pass),
            2 => Just(Step::Serve),
            2 => Just(Step::GiveUp),
        ]
    }

    proptest! {
        /// Model: a list that is searched.
        #[test]
        fn the_fresh_queue_agrees_with_a_list(steps in prop::collection::vec(step(), 1..200)) {
            let mut queue = FreshQueue::default();
            let mut list: Vec<(usize, Duration)> = Vec::new();
            let mut now = ms(1000);
            for (index, step) in steps.into_iter().enumerate() {
                let oldest = list.first().map(|(_, arrived)| now.saturating_sub(*arrived));
                match step {
                    Step::Come { late_by } => {
                        queue.push(index, now);
                        queue.push(index, now + ms(1));
                        queue.came_before(index, ms(late_by));
                        list.push((index, now - ms(late_by)));
                    }
                    Step::Leave(index) => {
                        queue.remove(index);
                        list.retain(|(one, _)| *one != index);
                    }
                    Step::Pass(time) => now += ms(time),
                    Step::Serve => {
                        let served = match oldest {
                            Some(waited) if waited > PATIENCE => list.pop(),
                            Some(_) => Some(list.remove(0)),
                            None => None,
                        };
                        prop_assert_eq!(queue.pop(now), served.map(|(index, _)| index));
                    }
                    Step::GiveUp => {
                        let gone = oldest.filter(|waited| *waited > LIMIT).map(|_| list.remove(0).0);
                        prop_assert_eq!(queue.pop_overdue(now), gone);
                    }
                }
                prop_assert_eq!(queue.is_empty(), list.is_empty());
            }
        }

        /// A crowd that reconnects as soon as it is served, and is served once within the patience, is
        /// served in full.
        #[test]
        fn no_client_of_a_steady_load_is_dropped(crowd in 1..150_u64, serve_us in 500..2000_u64) {
            let mut queue = FreshQueue::default();
            (0..crowd).for_each(|index| queue.push(index as usize, Duration::ZERO));
            let mut now = Duration::ZERO;
            while now < ms(3000) {
                now += Duration::from_micros(serve_us);
                prop_assert_eq!(queue.pop_overdue(now), None);
                let served = queue.pop(now);
                served.into_iter().for_each(|index| queue.push(index, now));
            }
        }

        /// More clients arrive than can be served, by any factor: the whole capacity goes to clients that
        /// have hardly waited, and none is kept longer than the limit.
        #[test]
        fn overload_serves_fresh_clients_and_drops_the_rest_within_the_limit(
            every_us in 100..900_u64, serve_us in 1000..1600_u64,
        ) {
            let mut queue = FreshQueue::default();
            let (mut next, mut came) = (Duration::ZERO, Vec::new());
            let mut now = Duration::ZERO;
            let (mut waits, mut excess) = (Vec::new(), 0);
            while now < ms(8000) {
                while next <= now {
                    queue.push(came.len(), next);
                    came.push(next);
                    if let Some(index) = queue.pop_excess(now) {
                        prop_assert_eq!(index, came.len() - 1, "the newest");
                        excess += 1;
                    }
                    next += Duration::from_micros(every_us);
                }
                while let Some(index) = queue.pop_overdue(now) {
                    prop_assert!(now - came[index] < LIMIT + ms(3), "told late");
                }
                let served = queue.pop(now);
                prop_assert!(served.is_some(), "the capacity is used");
                let settled = now > ms(2000);
                // No more than can be served within the limit, however many arrive.
                let kept = u64::try_from(queue.len()).unwrap();
                prop_assert!(!settled || kept < 500_000 / serve_us + 64, "{kept} are kept");
                // At first the oldest goes first, for longer if the overload is small.
                let settled = served.filter(|_| now > ms(4000));
                waits.extend(settled.map(|index| now - came[index]));
                now += Duration::from_micros(serve_us);
            }
            prop_assert!(excess == 0 || 3 * every_us < 2 * serve_us + 10, "kept as long as it is worth while");
            prop_assert!(excess > 0 || 2 * every_us > serve_us, "{} came", came.len());
            waits.sort();
            prop_assert!(waits[waits.len() * 9 / 10] <= TARGET, "{:?}", waits[waits.len() * 9 / 10]);
            prop_assert!(waits[waits.len() - 1] <= LIMIT);
        }
    }
}
