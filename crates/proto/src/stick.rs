//! Which server a client had: a table from one number to another, bounded and expiring, shared by all workers.
//!
//! The first number names the client (a hash of its address, or the origin of its session), the second the server
//! (a hash of its name), so that an entry says the same before and after a reload, and on another host. Entries are
//! spread over shards by a seeded hash; each shard has its own lock, held for one lookup.
//!
//! Unlike a session, an entry lives on by use: whoever comes back within its life is remembered for another one. When a
//! shard is full, the entry that was not used for longest makes room. An expired entry is never returned.
//!
//! It counts nothing and decides nothing: whether the server can take the client is the caller's question.
//!
//! Clients choose their addresses, so the hash must be keyed: the key arrives as the `BuildHasher`. Times are durations
//! since one arbitrary origin of a monotonic clock, the caller's.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::HashTable;

/// Remembers servers of clients. Each call takes one shard's lock, unless it says otherwise.
///
/// Costs 64 bytes an entry. Nothing is allocated before it is used.
pub struct Stick<S = RandomState> {
    seed: S,
    shards: Box<[Mutex<Shard>]>,
}

/// A place in a walk by [`Stick::visit`]; the default is the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    shard: usize,
    place: usize,
}

impl<S: BuildHasher> Stick<S> {
    /// A table of at most `entries`, rounded up to a multiple of the number of shards.
    pub fn new(entries: usize, seed: S) -> Self {
        Self {
            seed,
            shards: (0..SHARDS)
                .map(|_| Mutex::new(Shard::new(share(entries))))
                .collect(),
        }
    }

    /// The server that `client` had, unless it was `life` ago or more; lengthens the memory by another `life`.
    pub fn recall(&self, client: u64, now: Duration, life: Duration) -> Option<u64> {
        let hash = self.seed.hash_one(client);
        let mut shard = self.shard(hash)?;
        let at = shard.find(client, hash)?;
        if shard.place(at)?.expires <= now {
            shard.remove(at, hash);
            return None;
        }
        shard.touch(at, now.saturating_add(life));
        shard.place(at).map(|place| place.server)
    }

    /// From now on `client` has `server`, for `life` from its last use. Returns whether that is news: not kept already, or
    /// kept by use for more than half a life since it was news, so that whoever is told of news does not forget before us.
    pub fn learn(&self, client: u64, server: u64, now: Duration, life: Duration) -> bool {
        let hash = self.seed.hash_one(client);
        let Some(mut shard) = self.shard(hash) else {
            return false;
        };
        let expires = now.saturating_add(life);
        if let Some(at) = shard.find(client, hash) {
            let news = shard.assign(at, server, now, life);
            shard.touch(at, expires);
            return news;
        }
        if shard.limit == 0 {
            return false;
        }
        let seed = &self.seed;
        // Two at most, so that the table shrinks by itself and no call takes long.
        for _ in 0..2 {
            shard.drop_oldest(seed, |oldest| oldest.expires <= now);
        }
        if shard.len >= shard.limit {
            shard.drop_oldest(seed, |_| true);
        }
        let place = Place {
            client,
            server,
            expires,
            told: seconds(now),
            older: NONE,
            newer: NONE,
        };
        shard.insert(place, hash, |client| seed.hash_one(client));
        true
    }

    /// The same for what was learnt elsewhere and some time ago: a client that is known keeps the server that it has.
    pub fn learn_unless_known(
        &self,
        client: u64,
        server: u64,
        now: Duration,
        life: Duration,
    ) -> bool {
        let hash = self.seed.hash_one(client);
        let known = self.shard(hash).is_none_or(|shard| {
            let at = shard.find(client, hash);
            let place = at.and_then(|at| shard.place(at));
            place.is_some_and(|place| place.expires > now)
        });
        // Whoever learns between the two knows it as well.
        !known && self.learn(client, server, now, life)
    }

    /// Shows who is remembered from `from` on, with server and remaining life, looking at no more than `at_most` places (at
    /// least one) of one shard, under its lock. Returns where to go on, or nothing at the end: for a paced dump.
    ///
    /// `show` must not call this memory.
    pub fn visit(
        &self,
        from: Cursor,
        now: Duration,
        at_most: usize,
        mut show: impl FnMut(u64, u64, Duration),
    ) -> Option<Cursor> {
        let shard = lock(self.shards.get(from.shard)?);
        let end = from.place.saturating_add(at_most.max(1));
        let places = shard.places.iter().take(end).skip(from.place);
        for place in places.filter(|place| place.expires > now) {
            show(place.client, place.server, place.expires - now);
        }
        let next = if end < shard.places.len() {
            Cursor { place: end, ..from }
        } else {
            Cursor {
                shard: from.shard + 1,
                place: 0,
            }
        };
        (next.shard < self.shards.len()).then_some(next)
    }

    /// Changes how many entries there may be; those not used for longest go. Takes every lock.
    pub fn set_limit(&self, entries: usize) {
        for shard in &self.shards {
            let mut shard = lock(shard);
            shard.limit = share(entries);
            while shard.len > shard.limit {
                shard.drop_oldest(&self.seed, |_| true);
            }
        }
    }

    /// How many entries there are, expired ones included. Takes every lock.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len).sum()
    }

    /// Whether nothing is remembered. Takes every lock.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn shard(&self, hash: u64) -> Option<MutexGuard<'_, Shard>> {
        // The index uses the lower bits and the seven highest.
        let at = (hash >> 40) as usize % SHARDS;
        self.shards.get(at).map(lock)
    }
}

impl<S> fmt::Debug for Stick<S> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Stick").finish_non_exhaustive()
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    // No call leaves a shard half changed, and a stale one would only send a client elsewhere.
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

fn seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX)
}

fn share(entries: usize) -> usize {
    entries.div_ceil(SHARDS).min(MOST_PER_SHARD)
}

/// Places in a vector, joined from the least to the most recently used, and an index over them.
struct Shard {
    places: Vec<Place>,
    index: HashTable<u32>,
    oldest: u32,
    newest: u32,
    /// The first free place; the others follow through `newer`.
    free: u32,
    len: usize,
    limit: usize,
}

#[derive(Clone, Copy)]
struct Place {
    client: u64,
    server: u64,
    expires: Duration,
    /// The second in which this was news.
    told: u32,
    older: u32,
    newer: u32,
}

impl Shard {
    fn new(limit: usize) -> Self {
        Self {
            places: Vec::new(),
            index: HashTable::new(),
            oldest: NONE,
            newest: NONE,
            free: NONE,
            len: 0,
            limit,
        }
    }

    fn place(&self, at: u32) -> Option<&Place> {
        self.places.get(at as usize)
    }

    fn find(&self, client: u64, hash: u64) -> Option<u32> {
        let same = |at: &u32| self.place(*at).is_some_and(|place| place.client == client);
        self.index.find(hash, same).copied()
    }

    fn insert(&mut self, place: Place, hash: u64, rehash: impl Fn(u64) -> u64) {
        let at = self.free;
        let at = match self.places.get_mut(at as usize) {
            Some(free) => {
                self.free = free.newer;
                *free = place;
                at
            }
            None => {
                self.places.push(place);
                // Below `MOST_PER_SHARD`, which fits.
                (self.places.len() - 1) as u32
            }
        };
        let places = &self.places;
        let hash_of = |at: &u32| rehash(places.get(*at as usize).map_or(0, |place| place.client));
        self.index.insert_unique(hash, at, hash_of);
        self.join(at);
        self.len += 1;
    }

    /// Makes a place the newest.
    fn touch(&mut self, at: u32, expires: Duration) {
        self.unjoin(at);
        self.join(at);
        if let Some(place) = self.places.get_mut(at as usize) {
            place.expires = expires;
        }
    }

    /// Gives a client that was known a server; returns whether that is news.
    fn assign(&mut self, at: u32, server: u64, now: Duration, life: Duration) -> bool {
        let Some(place) = self.places.get_mut(at as usize) else {
            return false;
        };
        let since = seconds(now).saturating_sub(place.told);
        let forgotten = place.expires <= now;
        let news = forgotten || place.server != server || since > seconds(life / 2);
        if news {
            (place.server, place.told) = (server, seconds(now));
        }
        news
    }

    fn drop_oldest<S: BuildHasher>(&mut self, seed: &S, condition: impl FnOnce(&Place) -> bool) {
        let oldest = self.oldest;
        if let Some(place) = self.place(oldest).copied()
            && condition(&place)
        {
            self.remove(oldest, seed.hash_one(place.client));
        }
    }

    fn remove(&mut self, at: u32, hash: u64) {
        if let Ok(entry) = self.index.find_entry(hash, |other| *other == at) {
            entry.remove();
            self.unjoin(at);
            self.len -= 1;
            let free = self.free;
            if let Some(place) = self.places.get_mut(at as usize) {
                place.newer = free;
                // A walk takes it for one whose time is over.
                place.expires = Duration::ZERO;
                self.free = at;
            }
        }
    }

    fn join(&mut self, at: u32) {
        let newest = self.newest;
        if let Some(place) = self.places.get_mut(at as usize) {
            place.older = newest;
            place.newer = NONE;
        }
        match self.places.get_mut(newest as usize) {
            Some(place) => place.newer = at,
            None => self.oldest = at,
        }
        self.newest = at;
    }

    fn unjoin(&mut self, at: u32) {
        let Some(&Place { older, newer, .. }) = self.place(at) else {
            return;
        };
        match self.places.get_mut(older as usize) {
            Some(place) => place.newer = newer,
            None => self.oldest = newer,
        }
        match self.places.get_mut(newer as usize) {
            Some(place) => place.older = older,
            None => self.newest = older,
        }
    }
}

/// No place.
const NONE: u32 = u32::MAX;
/// Workers meet at one lock rarely, and a small table is not spread thin.
const SHARDS: usize = 32;
/// Place numbers fit in 32 bits.
const MOST_PER_SHARD: usize = 1 << 26;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::hash::Hasher;

    /// Puts everything into one shard.
    #[derive(Clone, Default)]
    struct One(u64);

    impl Hasher for One {
        fn finish(&self) -> u64 {
            self.0 & 0xffff
        }
        fn write(&mut self, bytes: &[u8]) {
            bytes
                .iter()
                .for_each(|byte| self.0 = self.0 * 31 + u64::from(*byte));
        }
    }

    impl BuildHasher for One {
        type Hasher = Self;
        fn build_hasher(&self) -> Self {
            self.clone()
        }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_client_is_remembered_as_long_as_it_comes_back() {
        let stick = Stick::new(100, RandomState::new());
        stick.learn(1, 7, at(0), at(10));
        assert_eq!(stick.recall(1, at(9), at(10)), Some(7));
        assert_eq!(stick.recall(1, at(18), at(10)), Some(7));
        assert_eq!(stick.recall(1, at(28), at(10)), None);
        assert!(stick.is_empty());
        assert!(stick.learn(1, 8, at(30), at(10)));
        assert!(!stick.learn(1, 8, at(30), at(10)), "no news");
        assert!(stick.learn(1, 9, at(30), at(10)));
        assert_eq!((stick.recall(1, at(31), at(10)), stick.len()), (Some(9), 1));
    }

    #[test]
    fn who_was_away_for_longest_makes_room() {
        let stick = Stick::new(2 * SHARDS, One::default());
        stick.learn(1, 1, at(0), at(100));
        stick.learn(2, 2, at(1), at(100));
        assert_eq!(stick.recall(1, at(2), at(100)), Some(1));
        stick.learn(3, 3, at(3), at(100));
        assert_eq!(stick.recall(2, at(4), at(100)), None);
        assert_eq!(stick.recall(1, at(4), at(100)), Some(1));
        assert_eq!(stick.recall(3, at(4), at(100)), Some(3));
    }

    #[test]
    fn a_lower_limit_drops_at_once_and_zero_remembers_nothing() {
        let stick = Stick::new(1000 * SHARDS, One::default());
        (0..100).for_each(|client| assert!(stick.learn(client, 1, at(client), at(1000))));
        stick.set_limit(10 * SHARDS);
        assert_eq!(stick.len(), 10);
        assert_eq!(stick.recall(99, at(100), at(1000)), Some(1));
        stick.set_limit(0);
        assert!(!stick.learn(1, 1, at(100), at(10)));
        assert!(stick.is_empty());
    }

    #[test]
    fn who_keeps_coming_is_news_again_before_others_forget() {
        let stick = Stick::new(100, RandomState::new());
        let news: Vec<u64> = (0..40)
            .filter(|second| stick.learn(1, 7, at(*second), at(10)))
            .collect();
        assert_eq!(news, [0, 6, 12, 18, 24, 30, 36]);
    }

    #[test]
    fn what_is_learnt_late_replaces_nothing_that_is_known() {
        let stick = Stick::new(100, RandomState::new());
        assert!(stick.learn_unless_known(1, 7, at(0), at(10)));
        assert!(!stick.learn_unless_known(1, 8, at(5), at(10)));
        assert_eq!(stick.recall(1, at(9), at(10)), Some(7));
        assert!(stick.learn_unless_known(1, 8, at(19), at(10)), "forgotten");
        assert_eq!(stick.recall(1, at(20), at(10)), Some(8));
    }

    #[test]
    fn a_walk_shows_everybody_who_is_remembered_once() {
        let stick = Stick::new(10_000, RandomState::new());
        for client in 0..1000 {
            stick.learn(client, client + 1, at(0), at(client));
        }
        // Forgotten, one by one: their places are free.
        (900..950).for_each(|client| assert!(stick.recall(client, at(2000), at(1)).is_none()));
        let (mut shown, mut calls, mut cursor) = (Vec::new(), 0, Some(Cursor::default()));
        while let Some(from) = cursor {
            calls += 1;
            let before = shown.len();
            cursor = stick.visit(from, at(100), 7, |client, server, remaining| {
                assert_eq!((server, remaining), (client + 1, at(client - 100)));
                shown.push(client);
            });
            assert!(shown.len() - before <= 7, "paced");
        }
        shown.sort_unstable();
        let remembered = (101..1000).filter(|client| !(900..950).contains(client));
        assert!(remembered.eq(shown), "{calls} calls");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Learn(u64, u64),
        Recall(u64),
        Wait(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..20_u64, 0..5_u64).prop_map(|(client, server)| Step::Learn(client, server)),
            3 => (0..20_u64).prop_map(Step::Recall),
            1 => (0..6_u64).prop_map(Step::Wait),
        ]
    }

    proptest! {
        #[test]
        fn it_does_what_a_plain_list_does(steps in prop::collection::vec(step(), 0..200)) {
            const LIFE: u64 = 10;
            let stick = Stick::new(6 * SHARDS, One::default());
            // Client, server, end of life, when it was news; the least recently used first.
            let mut model: Vec<[u64; 4]> = Vec::new();
            let mut now = 0;
            for step in steps {
                match step {
                    Step::Wait(seconds) => now += seconds,
                    Step::Learn(client, server) => {
                        let same = model.iter().find(|entry| {
                            entry[..2] == [client, server] && entry[2] > now && now - entry[3] <= LIFE / 2
                        });
                        let told = same.map_or(now, |entry| entry[3]);
                        let news = same.is_none();
                        prop_assert_eq!(stick.learn(client, server, at(now), at(LIFE)), news);
                        model.retain(|entry| entry[0] != client && entry[2] > now);
                        if model.len() == 6 {
                            model.remove(0);
                        }
                        model.push([client, server, now + LIFE, told]);
                    }
                    Step::Recall(client) => {
                        let known = model
                            .iter()
                            .position(|entry| entry[0] == client && entry[2] > now);
                        let server = known.map(|index| {
                            let [client, server, _, told] = model.remove(index);
                            model.push([client, server, now + LIFE, told]);
                            server
                        });
                        prop_assert_eq!(stick.recall(client, at(now), at(LIFE)), server);
                    }
                }
                prop_assert!(stick.len() <= 6);
            }
        }
    }
}
