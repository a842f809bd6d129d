//! A short queue for several sources, in which a busy source cannot block other sources.
//!
//! A full queue drops the newest item of the source with the most items. No source is served twice in a row while
//! another source waits. Every operation scans the queue, so it is meant for a few dozen items.

use std::collections::VecDeque;

#[derive(Debug)]
pub struct FairQueue<S, T> {
    most: usize,
    waiting: VecDeque<(S, T)>,
    served: Option<S>,
}

impl<S: Copy + Eq, T> FairQueue<S, T> {
    /// Creates an empty queue of at most `most` items without allocating.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            waiting: VecDeque::new(),
            served: None,
        }
    }

    /// Appends an item. If the queue is full, returns the item that is dropped.
    ///
    /// The dropped item is the newest one of the source with the most items, if that source has
    /// more items than `source` would have with `item`; otherwise it is `item` itself.
    pub fn push(&mut self, source: S, item: T) -> Option<T> {
        let mut out = None;
        if self.waiting.len() >= self.most {
            let Some(place) = self.newest_of_largest(self.count(source) + 2) else {
                return Some(item);
            };
            out = self.waiting.remove(place).map(|(_, item)| item);
        }
        self.waiting.push_back((source, item));
        out
    }

    /// Removes the oldest item whose source differs from the last served source. Without such an
    /// item, removes the oldest item.
    pub fn pop(&mut self) -> Option<T> {
        let other = |(source, _): &(S, T)| Some(*source) != self.served;
        let place = self.waiting.iter().position(other).unwrap_or(0);
        let (source, item) = self.waiting.remove(place)?;
        self.served = Some(source);
        Some(item)
    }

    fn count(&self, source: S) -> usize {
        self.waiting
            .iter()
            .filter(|(one, _)| *one == source)
            .count()
    }

    /// Returns the index of the newest item of the source with the most items. Returns `None` if
    /// that source has fewer than `least` items.
    fn newest_of_largest(&self, least: usize) -> Option<usize> {
        let places = self.waiting.iter().enumerate();
        let counts = places.map(|(place, (source, _))| (self.count(*source), place));
        let (count, place) = counts.max()?;
        (count >= least).then_some(place)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_largest_source_is_displaced_and_sources_are_served_alternately() {
        let mut queue = FairQueue::new(4);
        for item in 0..4 {
            assert_eq!(queue.push('a', item), None);
        }
        assert_eq!(queue.push('a', 4), Some(4));
        assert_eq!(queue.push('b', 5), Some(3));
        assert_eq!(queue.push('b', 6), Some(2));
        assert_eq!(queue.push('b', 7), Some(7), "both have as many");
        let served: Vec<i32> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(served, [0, 5, 1, 6]);
    }

    proptest! {
        #[test]
        fn items_keep_the_order_of_their_source_and_the_largest_source_loses(
            steps in prop::collection::vec(prop::option::of(0..5u8), 1..200),
            most in 1..12usize,
        ) {
            let mut queue = FairQueue::new(most);
            let mut inside: Vec<(u8, usize)> = Vec::new();
            let mut last = None;
            for (item, step) in steps.into_iter().enumerate() {
                let count = |inside: &[(u8, usize)], source| {
                    inside.iter().filter(|(one, _)| *one == source).count()
                };
                if let Some(source) = step {
                    let out = queue.push(source, (source, item));
                    prop_assert_eq!(out.is_some(), inside.len() == most);
                    inside.push((source, item));
                    if let Some(out) = out {
                        let share = count(&inside, out.0);
                        prop_assert!((0..5).all(|other| count(&inside, other) <= share));
                        let newest = inside.iter().rfind(|(one, _)| *one == out.0);
                        prop_assert_eq!(newest, Some(&out));
                        inside.retain(|one| *one != out);
                    }
                } else {
                    let served = queue.pop();
                    prop_assert_eq!(served.is_none(), inside.is_empty());
                    let Some(served) = served else { continue };
                    let others = inside.iter().any(|(source, _)| Some(*source) != last);
                    prop_assert!(Some(served.0) != last || !others);
                    let oldest = inside.iter().find(|(one, _)| *one == served.0);
                    prop_assert_eq!(oldest, Some(&served));
                    inside.retain(|one| *one != served);
                    last = Some(served.0);
                }
            }
        }
    }
}
