//! A hashed timer wheel for the connections of one worker (Varghese and Lauck, 1987, scheme 6).
//!
//! The wheel is a ring of slots, one per tick. An entry that is due later than one turn of the wheel stays in its slot
//! and is checked once per turn. Order of use: call `insert` at any time. Sleep until `next_deadline`. Then call
//! `poll_expired` until it returns `None`. The caller limits how many entries are checked; `next_deadline` reports the
//! remaining ones as due.
//!
//! Entries cannot be cancelled or moved: a connection's deadline changes with each byte, so moving its entry each time
//! would be too expensive. The worker stores the new deadline in the connection. When the entry fires, the worker
//! inserts it again if the connection's deadline is still in the future. If a deadline moves nearer, the worker inserts
//! a second entry and ignores the first one when it fires. Keys must include a generation, so that they differ for
//! successive users of a slab index.
//!
//! Times are durations since an arbitrary origin that the caller chooses.
//!
//! Invariants: an entry never fires early. If the wheel is polled at each `next_deadline`, an entry fires less than one
//! tick late. An entry with a past deadline fires at the next tick, so a worker that always inserts again cannot loop
//! forever within one round of polls. After a jump of the clock, at most one turn of the wheel is scanned.

use std::time::Duration;

use crate::admission::nanos;

/// Timer wheel. `K` is a small copyable key, for example a slab index with its generation.
///
/// An entry takes `size_of::<K>()` + 16 bytes, and the wheel itself 8 KiB. Freed entries are reused, but their memory
/// is not released.
#[derive(Debug)]
pub struct Timers<K> {
    origin: Duration,
    tick_nanos: u64,
    /// First tick whose slot has not been processed.
    cursor: u64,
    /// First tick after the last poll; no new entry is due before it.
    ahead: u64,
    /// First entry of each slot, or [`NONE`].
    slots: Box<[usize]>,
    /// One bit per slot, set if the slot is not empty: `next_deadline` scans only 16 words.
    occupied: Box<[u64]>,
    /// First unchecked entry of the slot that was taken out.
    taken: usize,
    /// First entry of the free list.
    free: usize,
    entries: Vec<TimerEntry<K>>,
}

#[derive(Debug)]
struct TimerEntry<K> {
    key: K,
    tick: u64,
    next: usize,
}

impl<K: Copy> Timers<K> {
    /// Creates an empty wheel at `now`. A turn is 1024 ticks; `tick` is at least one millisecond.
    pub fn new(now: Duration, tick: Duration) -> Self {
        Self::with_slots(now, tick, SLOTS)
    }

    fn with_slots(now: Duration, tick: Duration, slots: usize) -> Self {
        debug_assert!(slots >= 64 && slots.is_power_of_two());
        Self {
            origin: now,
            tick_nanos: nanos(tick.max(SHORTEST_TICK)),
            cursor: 0,
            ahead: 0,
            slots: vec![NONE; slots].into(),
            occupied: vec![0; slots / 64].into(),
            taken: NONE,
            free: NONE,
            entries: Vec::new(),
        }
    }

    /// Adds an entry that fires at `deadline`, rounded up to a tick. Costs O(1), plus one check per turn of
    /// the wheel until it fires.
    ///
    /// A deadline further than 584 years from the origin never fires.
    pub fn insert(&mut self, deadline: Duration, key: K) {
        let tick = nanos(deadline.saturating_sub(self.origin))
            .div_ceil(self.tick_nanos)
            .max(self.ahead);
        let entry = TimerEntry {
            key,
            tick,
            next: NONE,
        };
        let index = self.free;
        if index == NONE {
            self.entries.push(entry);
            self.link(self.entries.len() - 1);
        } else {
            self.free = self.entries[index].next;
            self.entries[index] = entry;
            self.link(index);
        }
    }

    /// Removes and returns a key whose deadline is not after `now`. The order of such keys is
    /// arbitrary.
    ///
    /// Each check of an entry decrements `looks`. Returns `None` if no such key is left or if
    /// `looks` has reached 0. A `now` before that of an earlier call has no effect.
    pub fn poll_expired(&mut self, now: Duration, looks: &mut usize) -> Option<K> {
        let now = nanos(now.saturating_sub(self.origin)) / self.tick_nanos;
        self.ahead = self.ahead.max(now + 1);
        while *looks > 0 {
            let index = self.taken;
            if index == NONE {
                self.take_slot(now)?;
                continue;
            }
            *looks -= 1;
            let TimerEntry { key, tick, next } = self.entries[index];
            self.taken = next;
            if tick > now {
                self.link(index);
                continue;
            }
            self.entries[index].next = self.free;
            self.free = index;
            return Some(key);
        }
        None
    }

    /// Returns the time at which the caller must call [`Self::poll_expired`] next: the earliest
    /// deadline rounded up to a tick, or an earlier time. Returns `None` if there are no entries.
    ///
    /// An entry that is due later than one turn of the wheel wakes the caller once per turn.
    pub fn next_deadline(&self) -> Option<Duration> {
        if self.taken != NONE {
            return Some(self.time(self.cursor.saturating_sub(1)));
        }
        Some(self.time(self.next_tick()?))
    }

    /// Removes all entries from the next non-empty slot up to the tick `now`, and stores them in
    /// `taken`.
    fn take_slot(&mut self, now: u64) -> Option<()> {
        // After a jump of more than a turn, every slot is visited exactly once.
        let turn = self.slots.len() as u64;
        self.cursor = self.cursor.max((now + 1).saturating_sub(turn));
        let tick = self.next_tick().filter(|tick| *tick <= now);
        let Some(tick) = tick else {
            self.cursor = self.cursor.max(now + 1);
            return None;
        };
        let slot = self.slot(tick);
        self.taken = std::mem::replace(&mut self.slots[slot], NONE);
        self.occupied[slot / 64] &= !(1 << (slot % 64));
        self.cursor = tick + 1;
        Some(())
    }

    /// Returns the first tick with a non-empty slot, starting at the cursor.
    fn next_tick(&self) -> Option<u64> {
        let start = self.slot(self.cursor);
        let slot = self.first_occupied(start)?;
        let ahead = slot.wrapping_sub(start) & (self.slots.len() - 1);
        Some(self.cursor.saturating_add(ahead as u64))
    }

    fn link(&mut self, index: usize) {
        let slot = self.slot(self.entries[index].tick);
        self.entries[index].next = self.slots[slot];
        self.slots[slot] = index;
        self.occupied[slot / 64] |= 1 << (slot % 64);
    }

    /// Searches the wheel for the first non-empty slot, starting at `start`.
    fn first_occupied(&self, start: usize) -> Option<usize> {
        let words = self.occupied.len();
        let ahead = self.occupied[start / 64] & (u64::MAX << (start % 64));
        if ahead != 0 {
            return Some(start / 64 * 64 + ahead.trailing_zeros() as usize);
        }
        // The search ends in the word where it began, at the slots before `start`.
        (1..=words)
            .map(|step| (start / 64 + step) % words)
            .find_map(|word| {
                let bits = self.occupied[word];
                (bits != 0).then(|| word * 64 + bits.trailing_zeros() as usize)
            })
    }

    fn slot(&self, tick: u64) -> usize {
        (tick & (self.slots.len() as u64 - 1)) as usize
    }

    fn time(&self, tick: u64) -> Duration {
        self.origin
            .saturating_add(Duration::from_nanos(tick.saturating_mul(self.tick_nanos)))
    }
}

/// Marks the end of a list.
const NONE: usize = usize::MAX;

/// With ticks of 64 ms a turn is 65 s: most timeouts are shorter, so their entries are checked once.
const SLOTS: usize = 1024;

/// Resolution of `epoll_wait`; a shorter tick would have no effect.
const SHORTEST_TICK: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const TICK: Duration = Duration::from_millis(64);

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn poll(timers: &mut Timers<u64>, now: Duration) -> Option<u64> {
        timers.poll_expired(now, &mut usize::MAX.clone())
    }

    fn drain(timers: &mut Timers<u64>, now: Duration) -> Vec<u64> {
        let mut keys: Vec<u64> = std::iter::from_fn(|| poll(timers, now)).collect();
        keys.sort_unstable();
        keys
    }

    #[test]
    fn a_deadline_in_the_past_fires_at_the_next_tick_and_not_in_the_same_round() {
        let mut timers = Timers::new(ms(0), TICK);
        timers.insert(ms(64), 1);
        assert_eq!(poll(&mut timers, ms(1000)), Some(1));
        timers.insert(ms(64), 2);
        assert_eq!(
            poll(&mut timers, ms(1000)),
            None,
            "a worker that always re-inserts must not loop"
        );
        assert_eq!(timers.next_deadline(), Some(ms(1024)));
        assert_eq!(poll(&mut timers, ms(1024)), Some(2));
    }

    #[test]
    fn a_jump_of_a_year_fires_all_due_timers_and_no_others() {
        let mut timers = Timers::new(ms(0), TICK);
        let year = Duration::from_secs(365 * 24 * 3600);
        for key in 0..5000 {
            timers.insert(ms(key * 97), key);
        }
        timers.insert(year + TICK * 5, 5000);
        assert_eq!(drain(&mut timers, year), (0..5000).collect::<Vec<_>>());
        assert_eq!(drain(&mut timers, year + TICK * 6), [5000]);
    }

    #[test]
    fn extreme_times_do_not_overflow() {
        let mut timers = Timers::new(Duration::ZERO, Duration::ZERO);
        timers.insert(Duration::MAX, 1);
        assert!(timers.next_deadline().is_some());
        assert_eq!(poll(&mut timers, Duration::from_secs(1 << 33)), None);
        timers.insert(Duration::ZERO, 2);
        assert_eq!(
            poll(&mut timers, Duration::from_secs((1 << 33) + 1)),
            Some(2)
        );
        timers.insert(Duration::ZERO, 3);
        let _ = poll(&mut timers, Duration::MAX);
        timers.insert(Duration::MAX, 4);
        let _ = (poll(&mut timers, Duration::MAX), timers.next_deadline());
    }

    #[test]
    fn a_poll_examines_at_most_the_requested_number_of_entries() {
        let mut timers = Timers::new(ms(0), TICK);
        let turn = TICK * SLOTS as u32;
        for key in 0..1000 {
            timers.insert(turn + TICK * 5, key);
        }
        timers.insert(TICK * 6, 1000);
        // They share the slot of a due tick, but are not due.
        for round in 0..10 {
            let mut looks = 100;
            assert_eq!(timers.poll_expired(TICK * 6, &mut looks), None);
            assert_eq!(looks, 0, "in round {round}");
            assert!(timers.next_deadline().is_some_and(|wake| wake <= TICK * 6));
        }
        let mut looks = 100;
        assert_eq!(timers.poll_expired(TICK * 6, &mut looks), Some(1000));
        assert_eq!(timers.poll_expired(TICK * 6, &mut looks), None);
        assert_eq!(looks, 99);
        assert_eq!(timers.next_deadline(), Some(turn + TICK * 5));
        assert_eq!(drain(&mut timers, turn + TICK * 5).len(), 1000);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert { after_ms: u64 },
        Past { before_ms: u64 },
        Pass { millis: u64 },
        PollSome { looks: usize },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0_u64..20_000).prop_map(|after_ms| Step::Insert { after_ms }),
            1 => (0_u64..1000).prop_map(|before_ms| Step::Past { before_ms }),
            4 => (0_u64..500).prop_map(|millis| Step::Pass { millis }),
            1 => (0_u64..60_000).prop_map(|millis| Step::Pass { millis }),
            2 => (0_usize..8).prop_map(|looks| Step::PollSome { looks }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// The model has, per key, the earliest and the latest time for it to fire.
        #[test]
        fn the_wheel_agrees_with_a_sorted_map(steps in proptest::collection::vec(step(), 1..200), start in 0_u64..1000) {
            let mut now = ms(start);
            let mut timers = Timers::with_slots(now, TICK, 64);
            let mut model: BTreeMap<(Duration, u64), Duration> = BTreeMap::new();
            for (key, step) in (0_u64..).zip(steps) {
                match step {
                    Step::Insert { after_ms } => {
                        timers.insert(now + ms(after_ms), key);
                        model.insert((now + ms(after_ms), key), now + ms(after_ms) + TICK);
                    }
                    Step::Past { before_ms } => {
                        let deadline = now.saturating_sub(ms(before_ms));
                        timers.insert(deadline, key);
                        model.insert((deadline, key), now + TICK);
                    }
                    Step::Pass { millis } => {
                        now += ms(millis);
                        let fired: Vec<u64> = std::iter::from_fn(|| poll(&mut timers, now)).collect();
                        for key in fired {
                            let entry = model.keys().copied().find(|(_, known)| *known == key);
                            prop_assert!(entry.is_some_and(|(deadline, _)| deadline <= now), "{} fired early or twice", key);
                            model.remove(&entry.unwrap());
                        }
                        prop_assert!(model.values().all(|latest| *latest > now), "an entry is more than a tick late");
                    }
                    Step::PollSome { mut looks } => {
                        while let Some(key) = timers.poll_expired(now, &mut looks) {
                            let entry = model.keys().copied().find(|(_, known)| *known == key);
                            prop_assert!(entry.is_some_and(|(deadline, _)| deadline <= now));
                            model.remove(&entry.unwrap());
                        }
                        let left = model.values().any(|latest| *latest <= now);
                        prop_assert!(looks == 0 || !left, "an entry is more than a tick late");
                    }
                }
                prop_assert_eq!(timers.next_deadline().is_none(), model.is_empty());
                if let (Some(wake), Some(latest)) = (timers.next_deadline(), model.values().min()) {
                    prop_assert!(wake <= *latest, "the caller would oversleep");
                }
            }
            let far = now + Duration::from_secs(3600);
            prop_assert_eq!(std::iter::from_fn(|| poll(&mut timers, far)).count(), model.len());
        }
    }
}
