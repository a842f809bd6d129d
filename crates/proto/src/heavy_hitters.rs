//! The keys that come most often, of a stream whose keys anybody can make up.
//!
//! The Space-Saving algorithm: a fixed number of counters; a key that has none takes over the lowest one with its count. So the sum of
//! all counters is the number of keys that came, and a key that makes up more than one part in `most` of the stream is always there.
//! A counter may be too high, by what it had when it was taken over ([`Hitter::error`]), and is never too low.
//! A key costs one pass over the counters.
//!
//! Source: Metwally, Agrawal, El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data Streams", 2005.

use std::borrow::Borrow;

/// A bounded number of counters.
#[derive(Clone, Debug)]
pub struct HeavyHitters<K> {
    hitters: Vec<Hitter<K>>,
    most: usize,
}

/// A key and how often it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hitter<K> {
    /// The key.
    pub key: K,
    /// How often it came, at most.
    pub count: u64,
    /// How much of that may be other keys.
    pub error: u64,
}

impl<K> HeavyHitters<K> {
    /// Makes a table of at most so many counters, at least one. Nothing is allocated before a key comes.
    pub fn new(most: usize) -> Self {
        Self {
            hitters: Vec::new(),
            most: most.max(1),
        }
    }

    /// Counts a key, of which the table keeps a copy.
    pub fn count<Q>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
        Q: Eq + ToOwned<Owned = K> + ?Sized,
    {
        let mut lowest: Option<&mut Hitter<K>> = None;
        let is_full = self.hitters.len() == self.most;
        for hitter in &mut self.hitters {
            if hitter.key.borrow() == key {
                hitter.count += 1;
                return;
            }
            if is_full && lowest.as_ref().is_none_or(|it| hitter.count < it.count) {
                lowest = Some(hitter);
            }
        }
        let error = lowest.as_ref().map_or(0, |it| it.count);
        let hitter = Hitter {
            key: key.to_owned(),
            count: error + 1,
            error,
        };
        match lowest {
            Some(lowest) => *lowest = hitter,
            None => self.hitters.push(hitter),
        }
    }

    /// The counters, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Hitter<K>> {
        self.hitters.iter()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sums_are_exact_and_counts_within_their_error(
            keys in prop::collection::vec(prop_oneof![3 => 0..4_u32, 1 => 0..1000_u32], 0..500),
            most in 1..12_usize,
        ) {
            let mut table = HeavyHitters::new(most);
            let mut exact: HashMap<u32, u64> = HashMap::new();
            for key in &keys {
                table.count(key);
                *exact.entry(*key).or_default() += 1;
            }
            prop_assert!(table.iter().count() <= most);
            let sum: u64 = table.iter().map(|it| it.count).sum();
            prop_assert_eq!(sum, keys.len() as u64);
            for hitter in table.iter() {
                let count = exact[&hitter.key];
                prop_assert!(count <= hitter.count && hitter.count <= count + hitter.error);
            }
            for (key, count) in exact {
                let is_there = table.iter().any(|it| it.key == key);
                prop_assert!(is_there || count * most as u64 <= keys.len() as u64);
            }
        }
    }

    #[test]
    fn a_name_is_found_by_its_letters() {
        let mut table: HeavyHitters<String> = HeavyHitters::new(1);
        for name in ["a", "a", "b"] {
            table.count(name);
        }
        let all: Vec<_> = table.iter().collect();
        assert_eq!((&*all[0].key, all[0].count, all[0].error), ("b", 3, 2));
    }
}
