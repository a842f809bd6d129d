//! Finds the connection in a group that has been idle longest, without a search.
//!
//! A connection is identified by its *place*, an index of a slab. A place either *rests* (is idle)
//! in a group since a given time, or is busy. Each group has a list of places, sorted by time. To
//! keep updates cheap, a place that starts or stops resting normally stays where it is in the list,
//! and only its true time is stored. So the time in the list may be too early, but never too late.
//! [`RestQueue::longest`] corrects this: while the first place has a wrong time, it moves that
//! place to its true position, or removes it if it is busy.
//!
//! Uses 40 bytes for each place up to the largest that ever rested, and a tree node for each listed
//! place. Invariant: every resting place is listed exactly once.

use std::collections::BTreeSet;
use std::time::Duration;

#[derive(Debug, Default)]
pub struct RestQueue {
    order: BTreeSet<(usize, Duration, usize)>,
    places: Vec<Rest>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Rest {
    /// Group and time of the place's entry in the sorted list, if it has one.
    listed: Option<(usize, Duration)>,
    since: Option<Duration>,
}

impl RestQueue {
    /// Marks a place as resting in a group since `now`. `now` must not decrease from call to call.
    pub fn rest(&mut self, place: usize, group: usize, now: Duration) {
        if self.places.len() <= place {
            self.places.resize(place + 1, Rest::default());
        }
        if self.places[place].listed.is_none_or(|it| it.0 != group) {
            self.remove(place);
            self.list(place, group, now);
        }
        self.places[place].since = Some(now);
    }

    /// Marks a place as busy.
    pub fn stir(&mut self, place: usize) {
        if let Some(rest) = self.places.get_mut(place) {
            rest.since = None;
        }
    }

    pub fn remove(&mut self, place: usize) {
        let Some(rest) = self.places.get_mut(place) else {
            return;
        };
        if let Some((group, time)) = std::mem::take(rest).listed {
            self.order.remove(&(group, time, place));
        }
    }

    pub fn rests(&self, place: usize) -> bool {
        self.places.get(place).is_some_and(|it| it.since.is_some())
    }

    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Returns the place that has rested longest in a group, and the time at which its rest began.
    pub fn longest(&mut self, group: usize) -> Option<(usize, Duration)> {
        loop {
            let first = self.order.range((group, Duration::ZERO, 0)..).next();
            let (_, time, place) = first.copied().filter(|first| first.0 == group)?;
            let since = self.places.get(place).and_then(|rest| rest.since);
            if since == Some(time) {
                return Some((place, time));
            }
            self.remove(place);
            if let Some(since) = since {
                self.list(place, group, since);
            }
        }
    }

    fn list(&mut self, place: usize, group: usize, since: Duration) {
        self.order.insert((group, since, place));
        self.places[place] = Rest {
            listed: Some((group, since)),
            since: Some(since),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Op {
        Rest(usize, usize),
        Stir(usize),
        Remove(usize),
        /// Ends the longest rest of a group.
        End(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (0_usize..8, 0_usize..3).prop_map(|(place, group)| Op::Rest(place, group)),
            3 => (0_usize..9).prop_map(Op::Stir),
            1 => (0_usize..9).prop_map(Op::Remove),
            2 => (0_usize..3).prop_map(Op::End),
        ]
    }

    proptest! {
        #[test]
        fn the_longest_idle_entry_of_a_group_matches_a_searched_list(
            ops in proptest::collection::vec((op(), 0_u64..2), 1..200),
        ) {
            let mut queue = RestQueue::default();
            let mut naive: BTreeMap<usize, (usize, Duration)> = BTreeMap::new();
            let mut now = Duration::ZERO;
            for (op, later) in ops {
                now += Duration::from_secs(later);
                match op {
                    Op::Rest(place, group) => {
                        queue.rest(place, group, now);
                        naive.insert(place, (group, now));
                    }
                    Op::Stir(place) => {
                        queue.stir(place);
                        naive.remove(&place);
                    }
                    Op::Remove(place) => {
                        queue.remove(place);
                        naive.remove(&place);
                    }
                    Op::End(group) => {
                        let of_group = naive.iter().filter(|(_, rest)| rest.0 == group);
                        let longest = of_group.map(|(place, rest)| (rest.1, *place)).min();
                        let found = queue.longest(group);
                        // If two have rested equally long, either may be first.
                        prop_assert_eq!(found.map(|it| it.1), longest.map(|it| it.0));
                        if let Some((place, since)) = found {
                            prop_assert_eq!(naive.get(&place), Some(&(group, since)));
                            queue.remove(place);
                            naive.remove(&place);
                        }
                    }
                }
                for place in 0..9 {
                    prop_assert_eq!(queue.rests(place), naive.contains_key(&place));
                }
                prop_assert!(queue.order.len() <= 8, "a place is listed once");
            }
        }
    }
}
