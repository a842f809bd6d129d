//! A table with a bound on its entries and on their bytes, for what clients and peers make us remember.
//!
//! Entries lie in places of a vector, joined in a list, with an index of place numbers over them: 5 bytes an entry, where a map
//! with its own keys would hold the key twice. The caller brings hash and comparison; 32 bits of the hash are kept beside the
//! entry, so that neither eviction nor growth hashes again. [`Order`] says who makes room for a new entry: the one that came
//! first, the one that was not used for longest, or nobody that is not idle.
//!
//! Keys come from peers, so the hash must be keyed with a secret: a peer that could choose collisions could make a table slow.
//!
//! [`Sharded`] spreads tables over locks. It knows no order between shards: each bounds, and evicts, its own part.
//!
//! Invariants: each place is in the list and in the index, or in the chain of free ones; entries and bytes never exceed the
//! bounds (but for [`Order::Idle`], after the bound was lowered). A place keeps its number for as long as its entry lives,
//! except when the bound is lowered.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;

/// What a table holds. The default stands in free places, and holds nothing.
pub trait Entry: Default {
    /// How many bytes count against the bound. They must not change while the entry is in the table.
    fn bytes(&self) -> usize {
        0
    }
}

/// Who makes room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The entry that was inserted first, whether it was used or not.
    Inserted,
    /// The entry that was not used for longest.
    Used,
    /// Nobody: what finds no room is refused, until [`BoundedTable::look_over`] finds an entry that is idle. Each look goes on
    /// behind the last one.
    Idle,
}

/// How much a table may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Entries; with 0 nothing is stored.
    pub entries: usize,
    /// Bytes of all entries.
    pub bytes: usize,
}

/// The number of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(u32);

/// Entries in an order, bounded. Nothing is allocated before it is used.
#[derive(Debug)]
pub struct BoundedTable<E> {
    slots: Vec<Slot<E>>,
    index: HashTable<u32>,
    first: u32,
    last: u32,
    /// The first free slot; the others follow through `newer`.
    free: u32,
    order: Order,
    bounds: Bounds,
    bytes: usize,
}

#[derive(Debug)]
struct Slot<E> {
    entry: E,
    hash: u32,
    /// The neighbour towards the front of the list; [`FREE`] in a free slot.
    older: u32,
    newer: u32,
}

impl<E: Entry> BoundedTable<E> {
    /// An empty table.
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

    /// Where the entry with this hash is that the condition holds for.
    pub fn find(&self, hash: u64, is: impl Fn(&E) -> bool) -> Option<Place> {
        let short = hash as u32;
        let same = |at: &u32| {
            let slot = &self.slots[*at as usize];
            slot.hash == short && is(&slot.entry)
        };
        self.index.find(spread(short), same).copied().map(Place)
    }

    /// The entry at a place; nothing at a free one.
    pub fn get(&self, at: Place) -> Option<&E> {
        let slot = self.slots.get(at.0 as usize)?;
        (slot.older != FREE).then_some(&slot.entry)
    }

    /// The entry at a place, which is used by this.
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

    /// Puts in an entry that is not there yet, and returns its place and how many had to make room. Nothing when it does not
    /// fit. O(1), and one step for each that makes room.
    pub fn insert(&mut self, hash: u64, entry: E) -> Option<(Place, usize)> {
        let Bounds { entries, bytes } = self.bounds;
        let most_bytes = bytes.checked_sub(entry.bytes())?;
        let most = entries.checked_sub(1)?;
        if self.order == Order::Idle && (self.len() > most || self.bytes > most_bytes) {
            return None;
        }
        let evicted = self.shrink(most, most_bytes);
        let at = self.attach(hash as u32, entry);
        Some((Place(at), evicted))
    }

    /// Takes an entry out.
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

    /// Looks at `at_most` entries from the front on, drops those that the condition holds for, and returns how many.
    pub fn look_over(&mut self, at_most: usize, mut is_dead: impl FnMut(&E) -> bool) -> usize {
        let (mut dropped, mut at) = (0, self.first);
        for _ in 0..at_most.min(self.len()) {
            let slot = &self.slots[at as usize];
            let next = slot.newer;
            if is_dead(&slot.entry) {
                self.remove(Place(at));
                dropped += 1;
            } else if self.order == Order::Idle {
                self.unlink(at);
                self.link(at);
            }
            at = next;
        }
        dropped
    }

    /// Changes the bounds, and returns how many had to go. A lower bound gives memory back, and moves entries to do so.
    pub fn set_bounds(&mut self, bounds: Bounds) -> usize {
        self.bounds = capped(bounds);
        if self.order == Order::Idle {
            return 0;
        }
        let dropped = self.shrink(self.bounds.entries, self.bounds.bytes);
        if self.slots.len() > self.bounds.entries {
            let mut old = std::mem::replace(self, Self::new(self.order, bounds));
            self.slots.reserve_exact(old.len());
            while let Some(slot) = old.slots.get(old.first as usize) {
                let (hash, first) = (slot.hash, Place(old.first));
                self.attach(hash, old.remove(first).unwrap_or_default());
            }
        }
        dropped
    }

    /// Shows the entries of up to `at_most` places from `from` on; returns the place to go on from, if there is one.
    pub fn visit(&self, from: usize, at_most: usize, mut show: impl FnMut(&E)) -> Option<usize> {
        let slots = self.slots.iter().skip(from).take(at_most);
        slots
            .filter(|slot| slot.older != FREE)
            .for_each(|slot| show(&slot.entry));
        let next = from.saturating_add(at_most);
        (next < self.slots.len()).then_some(next)
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Bytes of all entries.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of the places, used or not, and of the index.
    pub fn overhead_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot<E>>() + self.index.allocation_size()
    }

    /// Drops from the front until no more entries and bytes are left than these, and returns how many.
    fn shrink(&mut self, entries: usize, bytes: usize) -> usize {
        let mut dropped = 0;
        while (self.len() > entries || self.bytes > bytes)
            && self.remove(Place(self.first)).is_some()
        {
            dropped += 1;
        }
        dropped
    }

    /// Puts an entry at the end. The caller has made room.
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

    /// A free slot: a used one, or a new one at the end.
    fn vacant(&mut self) -> u32 {
        if let Some(slot) = self.slots.get(self.free as usize) {
            return std::mem::replace(&mut self.free, slot.newer);
        }
        let len = self.slots.len();
        if len == self.slots.capacity() {
            // Doubles as a vector would, but never beyond the bound.
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

    /// Puts a slot at the end of the list.
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

    /// Walks everything and asserts, in debug builds, that list, index and bounds agree.
    pub fn check_invariants(&self) {
        let (mut seen, mut bytes) = (0, 0);
        let (mut older, mut at) = (NONE, self.first);
        while let Some(slot) = self.slots.get(at as usize) {
            debug_assert!(slot.older == older, "the list is not the same both ways");
            let indexed = self.index.find(spread(slot.hash), |known| *known == at);
            debug_assert!(indexed.is_some(), "not in the index");
            seen += 1;
            bytes += slot.entry.bytes();
            debug_assert!(seen <= self.slots.len(), "the list is a ring");
            (older, at) = (at, slot.newer);
        }
        debug_assert!(self.last == older, "the last is not the list's end");
        debug_assert!(seen == self.len(), "list and index differ");
        let Bounds {
            entries,
            bytes: most,
        } = self.bounds;
        let is_bounded = seen <= entries && bytes <= most;
        debug_assert!(
            is_bounded || self.order == Order::Idle,
            "more than the bounds"
        );
        debug_assert!(
            bytes == self.bytes,
            "the bytes are not those of the entries"
        );
        let mut at = self.free;
        while let Some(slot) = self.slots.get(at as usize) {
            debug_assert!(slot.older == FREE, "a free slot is in use");
            seen += 1;
            debug_assert!(seen <= self.slots.len(), "a slot is lost or free twice");
            at = slot.newer;
        }
        debug_assert!(seen == self.slots.len(), "a slot is neither used nor free");
    }
}

/// Parts of something, each behind a lock of its own, two cache lines apart so that neighbouring locks do not share one (x86
/// fetches lines in pairs).
#[derive(Debug)]
pub struct Sharded<T>(Box<[Shard<T>]>);

#[derive(Debug)]
#[repr(align(128))]
struct Shard<T>(Mutex<T>);

/// A place in a walk by [`Sharded::visit`]; the default is the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    shard: usize,
    place: usize,
}

impl<T> Sharded<T> {
    /// Makes so many parts, rounded up to a power of two, from their numbers and how many they are.
    pub fn new(count: usize, make: impl Fn(usize, usize) -> T) -> Self {
        let count = count.max(1).next_power_of_two();
        let shards = (0..count).map(|number| Shard(Mutex::new(make(number, count))));
        Self(shards.collect())
    }

    /// How many parts there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The number of the part that a hash belongs to. A [`BoundedTable`] uses the other half of the hash.
    pub fn number(&self, hash: u64) -> usize {
        (hash >> 32) as usize & (self.0.len() - 1)
    }

    /// The part that a hash belongs to. Takes its lock.
    pub fn of(&self, hash: u64) -> MutexGuard<'_, T> {
        self.0[self.number(hash)].lock()
    }

    /// All parts. Takes every lock in turn.
    pub fn all(&self) -> impl Iterator<Item = MutexGuard<'_, T>> {
        self.0.iter().map(Shard::lock)
    }
}

impl<T> Shard<T> {
    /// A poisoned lock is taken all the same: only a closure given to a walk can panic under it, and that one cannot change
    /// the part.
    fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E: Entry> Sharded<BoundedTable<E>> {
    /// Shows entries from `from` on, looking at no more than `at_most` places (at least one) of one shard, under its lock.
    /// Returns where to go on, or nothing at the end: for a paced dump. An entry that is there all the time of a walk is shown
    /// once, unless the bound is lowered meanwhile. `show` must not call the table.
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

    /// How many entries there are. Takes every lock in turn.
    pub fn len(&self) -> usize {
        self.all().map(|table| table.len()).sum()
    }

    /// Whether there is none. Takes every lock in turn.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A part's share of the whole; all shares add up to it.
pub fn share(whole: usize, number: usize, parts: usize) -> usize {
    whole / parts + usize::from(number < whole % parts)
}

/// The index takes a bucket from the lowest bits and a tag from the highest seven.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

/// Slot numbers are 32 bits wide, and two of them are [`NONE`] and [`FREE`].
fn capped(bounds: Bounds) -> Bounds {
    Bounds {
        entries: bounds.entries.min(FREE as usize - 1),
        ..bounds
    }
}

/// The end of a list; as a slot number, beyond every vector.
const NONE: u32 = u32::MAX;
/// Before a free slot.
const FREE: u32 = u32::MAX - 1;

/// The first allocation of a table, in places.
const FIRST_SLOTS: usize = 16;
