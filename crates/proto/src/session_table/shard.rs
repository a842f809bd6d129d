//! One shard of the session table: places in a vector, joined in order of insertion, and an index over them.
//!
//! Owns the entries of its part of the hash space and the bounds on their number and on the bytes of their states. Keys are stored once, in the places:
//! the index holds place numbers only (5 bytes each, where a map with its own keys would hold 60). It knows no lock and
//! no seed: a key arrives with its hash, kept beside it so that neither eviction nor growth hashes again.
//!
//! Invariants: each place is in the list and in the index, or in the chain of free ones; the list runs from the oldest
//! to the newest insertion; entries never exceed the limit. A place keeps its number for as long as its entry lives,
//! except when the limit is lowered.

use hashbrown::HashTable;

use super::{Inserted, Lookup, PolicyTag, Session};

pub(super) struct Shard {
    slots: Vec<Slot>,
    index: HashTable<u32>,
    oldest: u32,
    newest: u32,
    /// The first free place; the others follow through `newer`.
    free: u32,
    limit: usize,
    /// Of all states together.
    bytes: usize,
    most_bytes: usize,
}

#[derive(Clone, Copy)]
pub(super) struct Key {
    /// Of the id alone, so that an id is found under whatever policy.
    pub(super) hash: u64,
    pub(super) policy: PolicyTag,
    pub(super) id: Id,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Id {
    len: u8,
    bytes: [u8; 32],
}

struct Slot {
    entry: Option<Entry>,
    older: u32,
    newer: u32,
}

struct Entry {
    key: Key,
    /// The first second in which the session is dead.
    expires: u64,
    session: Session,
}

impl Shard {
    pub(super) fn new(limit: usize, most_bytes: usize) -> Self {
        Self {
            slots: Vec::new(),
            index: HashTable::new(),
            oldest: NONE,
            newest: NONE,
            free: NONE,
            limit: limit.min(MAX_ENTRIES),
            bytes: 0,
            most_bytes,
        }
    }

    pub(super) fn insert(
        &mut self,
        key: Key,
        session: Session,
        expires: u64,
        now: u64,
    ) -> Inserted {
        let mut done = Inserted {
            replaced: self.remove(&key),
            ..Inserted::default()
        };
        done.expired = self.drop_if(SWEEP, |_, expires| expires <= now);
        let size = session.state.len();
        if self.limit == 0 || size > self.most_bytes || expires <= now {
            return done;
        }
        done.evicted = self.shrink(self.limit - 1, self.most_bytes - size);
        self.attach(Entry {
            key,
            expires,
            session,
        });
        done.stored = true;
        done
    }

    pub(super) fn look_up(&mut self, key: &Key, now: u64, take: bool) -> Lookup {
        let Some(at) = self.find(key) else {
            return if self.lives_elsewhere(key, now) {
                Lookup::OtherPolicy
            } else {
                Lookup::Miss
            };
        };
        match self.entry(at) {
            Some(entry) if entry.expires > now && !take => Lookup::Hit(entry.session.clone()),
            _ => match self.detach(at) {
                Some(entry) if entry.expires > now => Lookup::Hit(entry.session),
                _ => Lookup::Expired,
            },
        }
    }

    pub(super) fn remove(&mut self, key: &Key) -> bool {
        self.find(key).and_then(|at| self.detach(at)).is_some()
    }

    /// Drops those of the `at_most` oldest entries that the condition (key, expiry) names, and returns how many.
    pub(super) fn drop_if(
        &mut self,
        at_most: usize,
        mut condition: impl FnMut(&Key, u64) -> bool,
    ) -> usize {
        let mut dropped = 0;
        let mut at = self.oldest;
        for _ in 0..at_most {
            let Some(slot) = self.slots.get(at as usize) else {
                break;
            };
            let next = slot.newer;
            if slot
                .entry
                .as_ref()
                .is_some_and(|entry| condition(&entry.key, entry.expires))
            {
                dropped += usize::from(self.detach(at).is_some());
            }
            at = next;
        }
        dropped
    }

    /// Drops the oldest until no more entries and bytes are left than these, and returns how many.
    fn shrink(&mut self, entries: usize, bytes: usize) -> usize {
        let mut dropped = 0;
        while self.len() > entries || self.bytes > bytes {
            if self.detach(self.oldest).is_none() {
                break;
            }
            dropped += 1;
        }
        dropped
    }

    /// Returns how many of the oldest had to go.
    pub(super) fn set_limits(&mut self, limit: usize, most_bytes: usize) -> usize {
        self.limit = limit.min(MAX_ENTRIES);
        self.most_bytes = most_bytes;
        let dropped = self.shrink(self.limit, most_bytes);
        if self.slots.len() > self.limit {
            self.compact();
        }
        dropped
    }

    /// Shows the entries of up to `at_most` places from `from` on; returns the place to go on from, if there is one.
    pub(super) fn visit(
        &self,
        from: usize,
        at_most: usize,
        mut show: impl FnMut(&Key, u64, &Session),
    ) -> Option<usize> {
        for entry in self
            .slots
            .iter()
            .skip(from)
            .take(at_most)
            .filter_map(|slot| slot.entry.as_ref())
        {
            show(&entry.key, entry.expires, &entry.session);
        }
        let next = from.saturating_add(at_most);
        (next < self.slots.len()).then_some(next)
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn overhead_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>() + self.index.allocation_size()
    }

    fn find(&self, key: &Key) -> Option<u32> {
        let same = |entry: &Entry| entry.key.id == key.id && entry.key.policy == key.policy;
        self.index
            .find(key.hash, |at| self.entry(*at).is_some_and(same))
            .copied()
    }

    /// Says whether the id is alive under a policy, when it is known not to be there under the key's own.
    fn lives_elsewhere(&self, key: &Key, now: u64) -> bool {
        let alive = |entry: &Entry| entry.key.id == key.id && entry.expires > now;
        self.index
            .find(key.hash, |at| self.entry(*at).is_some_and(alive))
            .is_some()
    }

    fn entry(&self, at: u32) -> Option<&Entry> {
        self.slots.get(at as usize)?.entry.as_ref()
    }

    /// Puts an entry at the newest end. The caller has made room.
    fn attach(&mut self, entry: Entry) {
        let hash = entry.key.hash;
        self.bytes += entry.session.state.len();
        let at = self.vacant();
        let older = self.newest;
        self.slots[at as usize] = Slot {
            entry: Some(entry),
            older,
            newer: NONE,
        };
        match self.slots.get_mut(older as usize) {
            Some(slot) => slot.newer = at,
            None => self.oldest = at,
        }
        self.newest = at;
        let slots = &self.slots;
        self.index.insert_unique(hash, at, |at| {
            slots[*at as usize]
                .entry
                .as_ref()
                .map_or(0, |entry| entry.key.hash)
        });
    }

    /// Takes an entry out of list and index, and returns it.
    fn detach(&mut self, at: u32) -> Option<Entry> {
        let slot = self.slots.get_mut(at as usize)?;
        let entry = slot.entry.take()?;
        self.bytes -= entry.session.state.len();
        let (older, newer) = (slot.older, slot.newer);
        slot.newer = self.free;
        self.free = at;
        match self.slots.get_mut(older as usize) {
            Some(slot) => slot.newer = newer,
            None => self.oldest = newer,
        }
        match self.slots.get_mut(newer as usize) {
            Some(slot) => slot.older = older,
            None => self.newest = older,
        }
        if let Ok(found) = self.index.find_entry(entry.key.hash, |known| *known == at) {
            found.remove();
        }
        Some(entry)
    }

    /// A free place: a used one, or a new one at the end.
    fn vacant(&mut self) -> u32 {
        if let Some(slot) = self.slots.get(self.free as usize) {
            return std::mem::replace(&mut self.free, slot.newer);
        }
        let len = self.slots.len();
        if len == self.slots.capacity() {
            // Doubles as a vector would, but never beyond the limit.
            self.slots.reserve_exact(
                len.max(FIRST_SLOTS)
                    .min(self.limit.saturating_sub(len))
                    .max(1),
            );
        }
        self.slots.push(Slot {
            entry: None,
            older: NONE,
            newer: NONE,
        });
        len as u32
    }

    /// Moves the entries to places without gaps, in order, and gives the rest of the memory back.
    fn compact(&mut self) {
        let mut old = std::mem::replace(self, Self::new(self.limit, self.most_bytes));
        self.slots.reserve_exact(old.len());
        while let Some(entry) = old.detach(old.oldest) {
            self.attach(entry);
        }
    }

    /// Panics, in debug builds, if lists, index and bound disagree.
    pub(super) fn check_invariants(&self) {
        let (mut seen, mut bytes) = (0, 0);
        let (mut older, mut at) = (NONE, self.oldest);
        while let Some(slot) = self.slots.get(at as usize) {
            debug_assert!(slot.older == older, "the list is not the same both ways");
            debug_assert!(
                slot.entry
                    .as_ref()
                    .is_some_and(|entry| self.find(&entry.key) == Some(at)),
                "not in the index"
            );
            seen += 1;
            bytes += slot
                .entry
                .as_ref()
                .map_or(0, |entry| entry.session.state.len());
            debug_assert!(seen <= self.slots.len(), "the list is a ring");
            (older, at) = (at, slot.newer);
        }
        debug_assert!(self.newest == older, "the newest is not the list's end");
        debug_assert!(seen == self.len(), "list and index differ");
        debug_assert!(seen <= self.limit, "more entries than the limit");
        debug_assert!(bytes == self.bytes, "the bytes are not those of the states");
        debug_assert!(bytes <= self.most_bytes, "more bytes than the limit");
        let mut at = self.free;
        while let Some(slot) = self.slots.get(at as usize) {
            debug_assert!(slot.entry.is_none(), "a free place is in use");
            seen += 1;
            debug_assert!(seen <= self.slots.len(), "a place is lost or free twice");
            at = slot.newer;
        }
        debug_assert!(seen == self.slots.len(), "a place is neither used nor free");
    }
}

impl Id {
    /// Nothing for an empty id or one longer than 32 bytes.
    pub(super) fn new(id: &[u8]) -> Option<Self> {
        let mut bytes = [0; 32];
        if id.is_empty() {
            return None;
        }
        bytes.get_mut(..id.len())?.copy_from_slice(id);
        Some(Self {
            len: id.len() as u8,
            bytes,
        })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes
            .get(..usize::from(self.len))
            .unwrap_or(&self.bytes)
    }
}

/// The end of a list; as a place number, beyond every vector.
const NONE: u32 = u32::MAX;

/// Place numbers are 32 bits wide, and one of them is [`NONE`].
const MAX_ENTRIES: usize = u32::MAX as usize - 1;

/// How many of the oldest entries an insertion looks at. More than one, so that the dead are reclaimed faster than
/// sessions arrive; few, so that an insertion stays O(1).
pub(super) const SWEEP: usize = 4;

/// The first allocation of a shard, in places: 1.6 KiB.
const FIRST_SLOTS: usize = 16;
