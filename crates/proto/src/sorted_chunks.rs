//! A sorted list whose clones share their unchanged parts.
//!
//! The items are in chunks of at most [`MOST`]. A clone copies only the list of chunks, and a change
//! copies one chunk. So a new version of a list of 100 000 items costs some microseconds, and
//! readers of the old version do not notice it. A lookup is a binary search over the first items of
//! the chunks, then in one chunk.
//!
//! The order is an argument, as in `slice::binary_search_by`: it compares an item with the wanted
//! place. Every call on a list must use the same order. Chunks are divided, but never joined.

use std::cmp::Ordering;
use std::mem;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct SortedChunks<T> {
    /// Chunks with at least one item each.
    chunks: Vec<Arc<[T]>>,
    len: usize,
}

impl<T> Default for SortedChunks<T> {
    fn default() -> Self {
        Self {
            chunks: Vec::new(),
            len: 0,
        }
    }
}

impl<T: Clone> SortedChunks<T> {
    /// Creates a list from items in its order.
    pub fn of_sorted(items: impl IntoIterator<Item = T>) -> Self {
        let mut list = Self::default();
        let mut items = items.into_iter().peekable();
        while items.peek().is_some() {
            let chunk: Arc<[T]> = items.by_ref().take(MOST / 2).collect();
            list.len += chunk.len();
            list.chunks.push(chunk);
        }
        list
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns all items in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }

    /// Returns the items from the first one that `order` does not place before the wanted place.
    pub fn starting_at(&self, order: impl Fn(&T) -> Ordering) -> impl Iterator<Item = &T> {
        let (at, inside) = match self.find(&order) {
            Some((at, Ok(inside) | Err(inside))) => (at, inside),
            None => (0, 0),
        };
        let chunks = self.chunks.get(at..).unwrap_or_default();
        chunks.iter().flat_map(|chunk| chunk.iter()).skip(inside)
    }

    pub fn get(&self, order: impl Fn(&T) -> Ordering) -> Option<&T> {
        let (at, inside) = self.find(&order)?;
        self.chunks.get(at)?.get(inside.ok()?)
    }

    /// Inserts an item at the place that `order` wants. Returns the item that it replaces.
    pub fn insert(&mut self, item: T, order: impl Fn(&T) -> Ordering) -> Option<T> {
        let Some((at, inside)) = self.find(&order) else {
            self.chunks.push([item].into());
            self.len = 1;
            return None;
        };
        let chunk = self.chunks.get_mut(at)?;
        match inside {
            Ok(inside) => Some(mem::replace(Arc::make_mut(chunk).get_mut(inside)?, item)),
            Err(inside) => {
                let mut items = chunk.to_vec();
                items.insert(inside, item);
                self.len += 1;
                let rest = (items.len() > MOST).then(|| items.split_off(MOST / 2));
                *chunk = items.into();
                if let Some(rest) = rest {
                    self.chunks.insert(at + 1, rest.into());
                }
                None
            }
        }
    }

    pub fn remove(&mut self, order: impl Fn(&T) -> Ordering) -> Option<T> {
        let (at, inside) = self.find(&order)?;
        let inside = inside.ok()?;
        let chunk = self.chunks.get_mut(at)?;
        let mut items = chunk.to_vec();
        let item = items.remove(inside);
        self.len -= 1;
        if items.is_empty() {
            self.chunks.remove(at);
        } else {
            *chunk = items.into();
        }
        Some(item)
    }

    /// Returns the chunk of the wanted place, and the place in it: `Err` if an item can be inserted
    /// there. Returns `None` for an empty list.
    fn find(&self, order: &impl Fn(&T) -> Ordering) -> Option<(usize, Result<usize, usize>)> {
        let is_up_to = |chunk: &Arc<[T]>| {
            let first = chunk.first();
            first.is_some_and(|first| order(first) != Ordering::Greater)
        };
        let at = self.chunks.partition_point(is_up_to).saturating_sub(1);
        let chunk = self.chunks.get(at)?;
        Some((at, chunk.binary_search_by(order)))
    }
}

/// Maximum number of items in a chunk. Copying a chunk of pointers takes about a microsecond.
const MOST: usize = 256;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    type Item = (u16, u32);

    fn at(key: u16) -> impl Fn(&Item) -> Ordering {
        move |item| item.0.cmp(&key)
    }

    /// Compares a list with a map from the standard library.
    fn check(list: &SortedChunks<Item>, model: &BTreeMap<u16, u32>) {
        let items = || model.iter().map(|(key, value)| (*key, *value));
        assert!(list.iter().copied().eq(items()));
        assert!(list.iter().rev().copied().eq(items().rev()));
        assert_eq!(
            (list.len(), list.is_empty()),
            (model.len(), model.is_empty())
        );
        assert!(
            list.chunks
                .iter()
                .all(|chunk| (1..=MOST).contains(&chunk.len()))
        );
    }

    proptest! {
        /// Versions that were cloned before a change stay as they are.
        #[test]
        fn a_list_is_equal_to_a_map_and_its_clones_do_not_change(
            first in prop::collection::btree_map(0_u16..2000, any::<u32>(), 0..1500),
            steps in prop::collection::vec((any::<bool>(), 0_u16..2000), 0..1500),
            clones in prop::collection::vec(0_usize..1500, 0..3),
        ) {
            let mut model = first;
            let mut list = SortedChunks::of_sorted(model.iter().map(|(key, value)| (*key, *value)));
            let mut versions = vec![(list.clone(), model.clone())];
            for (number, (inserts, key)) in steps.into_iter().enumerate() {
                if clones.contains(&number) {
                    versions.push((list.clone(), model.clone()));
                }
                let value = number as u32;
                let (found, expected) = if inserts {
                    let replaced = list.insert((key, value), at(key));
                    (replaced, model.insert(key, value))
                } else {
                    (list.remove(at(key)), model.remove(&key))
                };
                prop_assert_eq!(found.map(|item| item.1), expected);
                let near = key.wrapping_add(1);
                prop_assert_eq!(list.get(at(near)).map(|it| it.1), model.get(&near).copied());
                let next = model.range(near..).next().map(|(key, value)| (*key, *value));
                prop_assert_eq!(list.starting_at(at(near)).next().copied(), next);
            }
            versions.push((list, model));
            versions.iter().for_each(|(list, model)| check(list, model));
        }
    }

    #[test]
    fn a_clone_shares_all_chunks_except_the_changed_one() {
        let list = SortedChunks::of_sorted((0..10_000).map(|key| (key, 0)));
        let mut next = list.clone();
        next.insert((5000, 1), at(5000));
        let both = list.chunks.iter().zip(&next.chunks);
        let copied = both.filter(|(one, other)| !Arc::ptr_eq(one, other));
        assert_eq!(copied.count(), 1);
        assert!(list.get(at(5000)) == Some(&(5000, 0)) && next.get(at(5000)) == Some(&(5000, 1)));
    }
}
