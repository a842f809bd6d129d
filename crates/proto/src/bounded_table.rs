//! A table with a bound on its entries and on their bytes, for state that clients and peers create.
//!
//! Entries are stored in slots, which are the elements of a vector. A linked list orders the used slots, and a hash
//! table finds a slot number by its entry's key. This costs 5 bytes per entry; a `HashMap` would store each key twice,
//! because the entry contains it. The caller supplies hash and comparison. Each slot stores 32 bits of the hash, so
//! that neither eviction nor growth hashes again. [`Order`] selects the entry that is evicted for a new one.
//!
//! Keys come from peers, so the hash must be keyed with a secret. Otherwise a peer could choose keys that collide and
//! slow the table down.
//!
//! [`Sharded`] divides a table into shards, each with its own lock. There is no order across shards: each shard bounds
//! and evicts its own entries.
//!
//! Invariants: each slot is either in the list and the hash table, or in the chain of free slots. Entries and bytes
//! never exceed the bounds (except with [`Order::Idle`] after the bound was lowered). An entry stays in its slot,
//! unless the bound is lowered.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;

use crate::own_line::OwnLine;

/// Entry of a table. Free slots hold the default value, which must own no memory.
pub trait Entry: Default {
    /// Bytes that count against the bound. They must not change while the entry is in the table.
    fn bytes(&self) -> usize {
        0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Evicts the oldest entry, regardless of use.
    Inserted,
    /// Evicts the least recently used entry.
    Used,
    /// Evicts nothing: a full table rejects new entries until [`BoundedTable::look_over`] removes
    /// an idle one. Each call of `look_over` starts after the last entry that the previous call
    /// checked.
    Idle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum number of entries; a table with 0 stores nothing.
    pub entries: usize,
    /// Maximum bytes of all entries.
    pub bytes: usize,
}

/// Slot number of an entry: an index into the table's vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(u32);

/// Bounded, ordered set of entries. Allocates nothing before the first insertion.
#[derive(Debug)]
pub struct BoundedTable<E> {
    slots: Vec<Slot<E>>,
    index: HashTable<u32>,
    first: u32,
    last: u32,
    /// First free slot; further free slots are linked through `newer`.
    free: u32,
    order: Order,
    bounds: Bounds,
    bytes: usize,
}

#[derive(Debug)]
struct Slot<E> {
    entry: E,
    hash: u32,
    /// Next entry towards the front of the list; [`FREE`] in a free slot.
    older: u32,
    newer: u32,
}

impl<E: Entry> BoundedTable<E> {
    pub fn new(order: Order, bounds: Bounds) -> Self {
        Self {
            slots: Vec::new(),
            index: HashTable::new(),
            first: NONE,
            last: NONE,
            free: NONE,
            order,
            bounds: capped(bounds),
            bytes: 0,
        }
    }

    /// Returns the place of the entry that has this hash and satisfies `is`.
    pub fn find(&self, hash: u64, is: impl Fn(&E) -> bool) -> Option<Place> {
        let short = hash as u32;
        let same = |at: &u32| {
            let slot = &self.slots[*at as usize];
            slot.hash == short && is(&slot.entry)
        };
        self.index.find(spread(short), same).copied().map(Place)
    }

    /// Returns the entry at a place, or `None` if the place is free.
    pub fn get(&self, at: Place) -> Option<&E> {
        let slot = self.slots.get(at.0 as usize)?;
        (slot.older != FREE).then_some(&slot.entry)
    }

    /// Returns the entry at a place and counts this as a use.
    pub fn used(&mut self, at: Place) -> Option<&mut E> {
        self.get(at)?;
        if self.order == Order::Used {
            self.unlink(at.0);
            self.link(at.0);
        }
        self.slots
            .get_mut(at.0 as usize)
            .map(|slot| &mut slot.entry)
    }

    /// Inserts an entry that is not in the table yet.
    ///
    /// Returns its place, or `None` if it does not fit. O(1), plus one step per evicted entry.
    pub fn insert(&mut self, hash: u64, entry: E) -> Option<Place> {
        let Bounds { entries, bytes } = self.bounds;
        let most_bytes = bytes.checked_sub(entry.bytes())?;
        let most = entries.checked_sub(1)?;
        if self.order == Order::Idle && (self.count() > most || self.bytes > most_bytes) {
            return None;
        }
        self.shrink(most, most_bytes);
        Some(Place(self.attach(hash as u32, entry)))
    }

    pub fn remove(&mut self, at: Place) -> Option<E> {
        self.get(at)?;
        let Place(at) = at;
        self.unlink(at);
        let slot = &mut self.slots[at as usize];
        let entry = std::mem::take(&mut slot.entry);
        self.bytes -= entry.bytes();
        (slot.older, slot.newer) = (FREE, self.free);
        self.free = at;
        let hash = spread(slot.hash);
        if let Ok(found) = self.index.find_entry(hash, |known| *known == at) {
            found.remove();
        }
        Some(entry)
    }

    /// Checks up to `at_most` entries from the front of the list, and removes each for which `is_dead`
    /// returns `true`.
    pub fn look_over(&mut self, at_most: usize, mut is_dead: impl FnMut(&E) -> bool) {
        let mut at = self.first;
        for _ in 0..at_most.min(self.count()) {
            let slot = &self.slots[at as usize];
            let next = slot.newer;
            if is_dead(&slot.entry) {
                self.remove(Place(at));
            } else if self.order == Order::Idle {
                self.unlink(at);
                self.link(at);
            }
            at = next;
        }
    }

    /// Changes the bounds and returns the number of evicted entries. If `entries` is lowered, the
    /// remaining entries move to a smaller vector, which frees memory.
    pub fn set_bounds(&mut self, bounds: Bounds) -> usize {
        self.bounds = capped(bounds);
        if self.order == Order::Idle {
            return 0;
        }
        let dropped = self.shrink(self.bounds.entries, self.bounds.bytes);
        if self.slots.len() > self.bounds.entries {
            let mut old = std::mem::replace(self, Self::new(self.order, bounds));
            self.slots.reserve_exact(old.count());
            while let Some(slot) = old.slots.get(old.first as usize) {
                let (hash, first) = (slot.hash, Place(old.first));
                self.attach(hash, old.remove(first).unwrap_or_default());
            }
        }
        dropped
    }

    /// Calls `show` for each entry in up to `at_most` slots, starting at slot `from`. Returns the
    /// slot to continue from, or `None` after the last slot.
    pub fn visit(&self, from: usize, at_most: usize, mut show: impl FnMut(&E)) -> Option<usize> {
        let slots = self.slots.iter().skip(from).take(at_most);
        slots
            .filter(|slot| slot.older != FREE)
            .for_each(|slot| show(&slot.entry));
        let next = from.saturating_add(at_most);
        (next < self.slots.len()).then_some(next)
    }

    pub fn count(&self) -> usize {
        self.index.len()
    }

    /// Evicts entries from the front of the list until at most `entries` and `bytes` are left.
    /// Returns the number of evicted entries.
    fn shrink(&mut self, entries: usize, bytes: usize) -> usize {
        let mut dropped = 0;
        while (self.count() > entries || self.bytes > bytes)
            && self.remove(Place(self.first)).is_some()
        {
            dropped += 1;
        }
        dropped
    }

    /// Appends an entry. If the table is full, the caller must evict entries first.
    fn attach(&mut self, hash: u32, entry: E) -> u32 {
        self.bytes += entry.bytes();
        let at = self.vacant();
        let slot = &mut self.slots[at as usize];
        (slot.entry, slot.hash) = (entry, hash);
        self.link(at);
        let slots = &self.slots;
        let hash_of = |at: &u32| spread(slots[*at as usize].hash);
        self.index.insert_unique(spread(hash), at, hash_of);
        at
    }

    /// Returns a free slot, or a new one at the end.
    fn vacant(&mut self) -> u32 {
        if let Some(slot) = self.slots.get(self.free as usize) {
            return std::mem::replace(&mut self.free, slot.newer);
        }
        let len = self.slots.len();
        if len == self.slots.capacity() {
            // Doubles the capacity like a vector, but not beyond the bound on entries.
            let left = self.bounds.entries.saturating_sub(len).max(1);
            self.slots.reserve_exact(len.max(FIRST_SLOTS).min(left));
        }
        self.slots.push(Slot {
            entry: E::default(),
            hash: 0,
            older: FREE,
            newer: NONE,
        });
        len as u32
    }

    fn link(&mut self, at: u32) {
        let last = std::mem::replace(&mut self.last, at);
        let slot = &mut self.slots[at as usize];
        (slot.older, slot.newer) = (last, NONE);
        match self.slots.get_mut(last as usize) {
            Some(slot) => slot.newer = at,
            None => self.first = at,
        }
    }

    fn unlink(&mut self, at: u32) {
        let Slot { older, newer, .. } = self.slots[at as usize];
        match self.slots.get_mut(older as usize) {
            Some(slot) => slot.newer = newer,
            None => self.first = newer,
        }
        match self.slots.get_mut(newer as usize) {
            Some(slot) => slot.older = older,
            None => self.last = older,
        }
    }
}

/// Shards, each a value with its own lock.
#[derive(Debug)]
pub struct Sharded<T>(Box<[Shard<T>]>);

#[derive(Debug)]
struct Shard<T>(OwnLine<Mutex<T>>);

/// Position in a walk by [`Sharded::visit`]. The default is the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    shard: usize,
    place: usize,
}

impl<T> Sharded<T> {
    /// Creates `count` shards, rounded up to a power of two. `make` receives the number of the shard and the number of
    /// shards.
    pub fn new(count: usize, make: impl Fn(usize, usize) -> T) -> Self {
        let count = count.max(1).next_power_of_two();
        let shards = (0..count).map(|number| Shard(OwnLine(Mutex::new(make(number, count)))));
        Self(shards.collect())
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the number of the shard for a hash, from its upper half. [`BoundedTable`] uses the
    /// lower half.
    pub fn number(&self, hash: u64) -> usize {
        (hash >> 32) as usize & (self.0.len() - 1)
    }

    /// Locks the shard for a hash.
    pub fn of(&self, hash: u64) -> MutexGuard<'_, T> {
        self.0[self.number(hash)].lock()
    }

    /// Iterates over all shards, each locked in turn.
    pub fn all(&self) -> impl Iterator<Item = MutexGuard<'_, T>> {
        self.0.iter().map(Shard::lock)
    }
}

impl<T> Shard<T> {
    /// Locks the shard and ignores poisoning. Only a closure passed to `visit` can panic under the lock, and that
    /// closure cannot change the shard.
    fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E: Entry> Sharded<BoundedTable<E>> {
    /// Calls `show` for each entry in up to `at_most` slots (at least one) of one shard, starting
    /// at `from`. Holds the shard's lock during the call.
    ///
    /// Returns the position to continue from, or `None` at the end, so that a dump can be paced. An
    /// entry that exists throughout the walk is shown once, unless the bound is lowered during the
    /// walk. `show` must not call the table.
    pub fn visit(&self, from: Cursor, at_most: usize, show: impl FnMut(&E)) -> Option<Cursor> {
        let table = self.0.get(from.shard)?.lock();
        let next = match table.visit(from.place, at_most.max(1), show) {
            Some(place) => Cursor { place, ..from },
            None => Cursor {
                shard: from.shard + 1,
                place: 0,
            },
        };
        (next.shard < self.0.len()).then_some(next)
    }

    /// Returns the number of entries. Takes every lock in turn.
    pub fn entries(&self) -> usize {
        self.all().map(|table| table.count()).sum()
    }
}

/// Divides `whole` into `parts` almost equal parts and returns the size of part `number`.
pub fn share(whole: usize, number: usize, parts: usize) -> usize {
    whole / parts + usize::from(number < whole % parts)
}

/// Copies the hash into both halves, because `HashTable` selects the bucket by the lowest bits and
/// stores the highest seven.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

/// Limits the entries to valid slot numbers: 32 bits without [`NONE`] and [`FREE`].
fn capped(bounds: Bounds) -> Bounds {
    Bounds {
        entries: bounds.entries.min(FREE as usize - 1),
        ..bounds
    }
}

/// End of the list. No slot has this number.
const NONE: u32 = u32::MAX;
/// Value of `older` in a free slot.
const FREE: u32 = u32::MAX - 1;

const FIRST_SLOTS: usize = 16;

#[cfg(test)]
impl<E: Entry> BoundedTable<E> {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of the hash table and of all slots, used or free.
    pub(crate) fn overhead_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot<E>>() + self.index.allocation_size()
    }

    /// Asserts that list, index and bounds agree. Visits every slot.
    pub(crate) fn check_invariants(&self) {
        let (mut seen, mut bytes) = (0, 0);
        let (mut older, mut at) = (NONE, self.first);
        while let Some(slot) = self.slots.get(at as usize) {
            assert!(slot.older == older, "the list is not the same both ways");
            let indexed = self.index.find(spread(slot.hash), |known| *known == at);
            assert!(indexed.is_some(), "not in the index");
            seen += 1;
            bytes += slot.entry.bytes();
            assert!(seen <= self.slots.len(), "the list is a ring");
            (older, at) = (at, slot.newer);
        }
        assert!(self.last == older, "the last is not the list's end");
        assert!(seen == self.count(), "list and index differ");
        let Bounds {
            entries,
            bytes: most,
        } = self.bounds;
        let is_bounded = seen <= entries && bytes <= most;
        assert!(
            is_bounded || self.order == Order::Idle,
            "more than the bounds"
        );
        assert!(
            bytes == self.bytes,
            "the bytes are not those of the entries"
        );
        let mut at = self.free;
        while let Some(slot) = self.slots.get(at as usize) {
            assert!(slot.older == FREE, "a free slot is in use");
            seen += 1;
            assert!(seen <= self.slots.len(), "a slot is lost or free twice");
            at = slot.newer;
        }
        assert!(seen == self.slots.len(), "a slot is neither used nor free");
    }
}
