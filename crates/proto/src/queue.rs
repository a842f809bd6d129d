//! A first-in, first-out queue, which a waiter may leave at any time and rejoin at its old
//! position.
//!
//! A waiter has *tried* a server if its connect to that server failed; the server is not offered to
//! it again. All waiters that have tried no server can use the same servers. So a search asks only
//! the first of them, and usually ends there.
//!
//! An [`Arrival`] is a client's position in the order of first arrivals. A client keeps it when it
//! rejoins, even if it did not have to wait the first time. The queue is a tree, so that a client
//! can be inserted at any position at low cost.
//!
//! A [`Stay`] identifies one entry in the queue. It becomes invalid when the waiter is served or
//! leaves.
//!
//! The queue has no lock, clock or limit: `crates/proxy/src/backend/backend_state.rs` adds a lock
//! and a limit, and assigns slots.

use std::collections::BTreeMap;

#[derive(Debug)]
pub struct Queue<T> {
    waiting: BTreeMap<Stay, QueuedItem<T>>,
    /// Number of waiters that have tried no server.
    novices: usize,
    arrivals: Arrival,
    stays: u64,
}

#[derive(Debug)]
struct QueuedItem<T> {
    item: T,
    tried: Box<[u64]>,
}

/// Position of a client in the order of first arrivals. Even numbers are for clients that wait, odd
/// numbers for clients that were served at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arrival(pub u64);

/// Identifies one entry in the queue. The order is by arrival, then by a unique number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stay {
    arrival: Arrival,
    number: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken<T, S> {
    pub stay: Stay,
    pub arrival: Arrival,
    pub item: T,
    pub found: S,
}

impl Arrival {
    /// Returns the arrival of a client that is served without waiting. `self` must be the arrival
    /// of the newest waiter.
    pub fn served_at_once(self) -> Self {
        Self(self.0 | 1)
    }
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            waiting: BTreeMap::new(),
            novices: 0,
            arrivals: Arrival::default(),
            stays: 0,
        }
    }
}

impl<T> Queue<T> {
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns the arrival of the newest waiter so far.
    pub fn arrivals(&self) -> Arrival {
        self.arrivals
    }

    pub fn holds_novices(&self) -> bool {
        self.novices > 0
    }

    /// Enqueues at the tail, or at the position of the arrival `before` if the waiter rejoins.
    pub fn join(&mut self, item: T, tried: &[u64], before: Option<Arrival>) -> Stay {
        let arrival = before.unwrap_or(Arrival((self.arrivals.0 | 1) + 1));
        self.arrivals = self.arrivals.max(Arrival(arrival.0 & !1));
        self.stays += 1;
        let stay = Stay {
            arrival,
            number: self.stays,
        };
        let tried = Box::from(tried);
        self.novices += usize::from(<[u64]>::is_empty(&tried));
        self.waiting.insert(stay, QueuedItem { item, tried });
        stay
    }

    /// Removes and returns the longest-waiting waiter for which `find` returns a value.
    ///
    /// `find` receives the servers that a waiter has tried. It is called only once for all waiters
    /// that have tried none, since its result is the same for each of them.
    pub fn take_first<S>(
        &mut self,
        mut find: impl FnMut(&[u64]) -> Option<S>,
    ) -> Option<Taken<T, S>> {
        let (mut before, mut is_for_none): (Option<&[u64]>, _) = (None, false);
        for (stay, QueuedItem { tried, .. }) in &self.waiting {
            if before == Some(tried) || is_for_none && tried.is_empty() {
                continue;
            }
            if let Some(found) = find(tried) {
                let stay = *stay;
                return self.cancel(stay).map(|item| Taken {
                    stay,
                    arrival: stay.arrival,
                    item,
                    found,
                });
            }
            is_for_none |= tried.is_empty();
            if is_for_none && self.novices == self.waiting.len() {
                break;
            }
            before = Some(tried);
        }
        None
    }

    /// Removes a waiter from any position. Returns `None` if it is no longer in the queue.
    pub fn cancel(&mut self, stay: Stay) -> Option<T> {
        let QueuedItem { item, tried } = self.waiting.remove(&stay)?;
        self.novices -= usize::from(tried.is_empty());
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pop<T>(queue: &mut Queue<T>) -> Option<T> {
        queue.take_first(|_| Some(())).map(|taken| taken.item)
    }

    fn all<T>(mut queue: Queue<T>) -> Vec<T> {
        std::iter::from_fn(|| pop(&mut queue)).collect()
    }

    #[test]
    fn the_queue_asks_once_per_set_of_tried_servers() {
        let mut queue = Queue::default();
        for _ in 0..100 {
            queue.join((), &[7, 8], None);
        }
        for _ in 0..100 {
            queue.join((), &[], None);
        }
        let mut asked = Vec::new();
        let taken = queue.take_first(|tried| {
            asked.push(tried.to_vec());
            None::<()>
        });
        assert_eq!(taken, None);
        assert_eq!(asked, [vec![7, 8], vec![]]);
    }

    /// Servers are bits of a set.
    #[derive(Clone, Debug)]
    enum Step {
        Join(u8),
        /// The waiter taken in that step returns, and has tried this server as well.
        Return(usize, u8),
        /// A client that was served at once must wait now.
        Turn(u8),
        /// These servers have free slots.
        Take(u8),
        Cancel(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let set = prop_oneof![3 => Just(0_u8), 1 => 0..32_u8];
        prop_oneof![
            4 => set.clone().prop_map(Step::Join),
            2 => (0..64_usize, 0..32_u8).prop_map(|(one, tried)| Step::Return(one, tried)),
            1 => set.prop_map(Step::Turn),
            3 => (0..32_u8).prop_map(Step::Take),
            2 => (0..64_usize).prop_map(Step::Cancel),
        ]
    }

    fn servers(set: u8) -> Vec<u64> {
        let bits = (0..8).filter(|bit| set & 1 << bit != 0);
        bits.map(|bit| 100 - bit).collect()
    }

    /// Model: a list.
    #[derive(Default)]
    struct Row {
        waiting: Vec<One>,
        arrivals: u64,
        numbers: usize,
    }

    #[derive(Clone, Debug)]
    struct One {
        arrival: u64,
        number: usize,
        tried: u8,
    }

    impl Row {
        fn join(&mut self, tried: u8, before: Option<u64>) -> usize {
            let arrival = before.unwrap_or_else(|| {
                self.arrivals += 2;
                self.arrivals
            });
            self.numbers += 1;
            let number = self.numbers;
            self.waiting.push(One {
                arrival,
                number,
                tried,
            });
            self.waiting.sort_by_key(|one| (one.arrival, one.number));
            number
        }

        fn remove(&mut self, fits: impl Fn(&One) -> bool) -> Option<One> {
            let at = self.waiting.iter().position(fits)?;
            Some(self.waiting.remove(at))
        }
    }

    proptest! {
        #[test]
        fn the_queue_agrees_with_a_plain_list(steps in prop::collection::vec(step(), 0..200)) {
            let (mut queue, mut row) = (Queue::default(), Row::default());
            let mut stays = Vec::new();
            let mut taken: Vec<(Arrival, One)> = Vec::new();
            for step in steps {
                match step {
                    Step::Join(tried) => {
                        let number = row.join(tried, None);
                        stays.push((number, queue.join(number, &servers(tried), None)));
                    }
                    Step::Turn(tried) => {
                        let at_once = queue.arrivals().served_at_once();
                        prop_assert_eq!(at_once.0, row.arrivals + 1);
                        let number = row.join(tried, Some(row.arrivals + 1));
                        stays.push((number, queue.join(number, &servers(tried), Some(at_once))));
                    }
                    Step::Return(index, tried) => {
                        if index >= taken.len() {
                            continue;
                        }
                        let (arrival, one) = taken.swap_remove(index);
                        prop_assert_eq!(arrival.0, one.arrival);
                        let tried = tried | one.tried;
                        let number = row.join(tried, Some(one.arrival));
                        stays.push((number, queue.join(number, &servers(tried), Some(arrival))));
                    }
                    Step::Take(free) => {
                        let free_for = |tried: &[u64]| servers(free).into_iter().find(|one| !tried.contains(one));
                        let found = queue.take_first(free_for);
                        let expected = row.remove(|one| free & !one.tried != 0);
                        prop_assert_eq!(found.as_ref().map(|found| found.item), expected.as_ref().map(|one| one.number));
                        taken.extend(found.map(|found| found.arrival).zip(expected));
                    }
                    Step::Cancel(index) => {
                        let Some((number, stay)) = stays.get(index) else { continue };
                        let expected = row.remove(|one| one.number == *number);
                        prop_assert_eq!(queue.cancel(*stay), expected.map(|one| one.number));
                    }
                }
                prop_assert_eq!(queue.len(), row.waiting.len());
                prop_assert_eq!(queue.holds_novices(), row.waiting.iter().any(|one| one.tried == 0));
            }
            let rest: Vec<usize> = row.waiting.iter().map(|one| one.number).collect();
            prop_assert_eq!(all(queue), rest);
        }
    }
}
