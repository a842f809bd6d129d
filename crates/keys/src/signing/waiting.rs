//! What waits for a thread, in the order in which it came, and what a thread takes of it at once.
//!
//! An item may have a class: items of one class can be made together, [`LANES`] at a time, which pays from [`PAYS`] on. The oldest
//! item always goes next: with its class, where enough of that wait, and by itself otherwise. Nothing waits for company.

use std::collections::{BTreeMap, VecDeque};

use becket_multibuffer::LANES;

/// Items in order, by class.
#[derive(Debug)]
pub(super) struct WaitingJobs<T> {
    /// Each item with its number, the oldest of a class first. As many classes as there are lengths of keys, and none.
    classes: BTreeMap<Option<usize>, VecDeque<(u64, T)>>,
    last: u64,
}

impl<T> WaitingJobs<T> {
    pub(super) fn push(&mut self, class: Option<usize>, item: T) {
        self.last += 1;
        let items = self.classes.entry(class).or_default();
        items.push_back((self.last, item));
    }

    /// The oldest item, perhaps with others of its class; nothing where none waits.
    pub(super) fn pop(&mut self) -> Vec<T> {
        let first = |items: &VecDeque<(u64, T)>| items.front().map(|(number, _)| *number);
        let classes = self.classes.iter_mut();
        let waiting = classes.filter_map(|(class, items)| Some((first(items)?, class, items)));
        let Some((_, class, items)) = waiting.min_by_key(|(number, ..)| *number) else {
            return Vec::new();
        };
        let many = match class {
            Some(_) if items.len() >= PAYS => items.len().min(LANES),
            _ => 1,
        };
        items.drain(..many).map(|(_, item)| item).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.classes.values().all(VecDeque::is_empty)
    }
}

impl<T> Default for WaitingJobs<T> {
    fn default() -> Self {
        Self {
            classes: BTreeMap::new(),
            last: 0,
        }
    }
}

/// A batch takes as long for one as for eight, and five signatures take as long one by one (docs/decisions/0023).
pub(super) const PAYS: usize = 6;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One list: the oldest goes, with those behind it of its class.
    fn naive(waiting: &mut Vec<(Option<usize>, u32)>) -> Vec<u32> {
        let Some((class, _)) = waiting.first().copied() else {
            return Vec::new();
        };
        let of_class = |item: &&(Option<usize>, u32)| item.0 == class;
        let many = waiting.iter().filter(of_class).count();
        let together = class.is_some() && many >= PAYS;
        let mut left = if together { LANES } else { 1 };
        let taken = waiting.extract_if(.., |item| {
            let takes = item.0 == class && left > 0;
            left -= usize::from(takes);
            takes
        });
        taken.map(|(_, item)| item).collect()
    }

    proptest! {
        #[test]
        fn what_is_taken_is_what_one_list_would_give(events in proptest::collection::vec(0..6_u8, 0..300)) {
            let (mut waiting, mut model) = (WaitingJobs::default(), Vec::new());
            for (item, event) in (0..).zip(events) {
                let class = match event {
                    0 => {
                        prop_assert_eq!(waiting.pop(), naive(&mut model));
                        continue;
                    }
                    1 => None,
                    2 => Some(384),
                    _ => Some(256),
                };
                waiting.push(class, item);
                model.push((class, item));
            }
            while !model.is_empty() {
                prop_assert!(!waiting.is_empty());
                prop_assert_eq!(waiting.pop(), naive(&mut model));
            }
            prop_assert!(waiting.is_empty() && waiting.pop().is_empty());
        }
    }
}
