//! Stick table: remembers the server of each client, shared by all workers.
//!
//! A client is identified by a number: a hash of its address, or the origin of its TLS session. A server is identified
//! by a hash of its name, so an entry stays valid after a reload and on another host.
//!
//! Entries are distributed over shards by a keyed hash, because clients choose their addresses. The key is in the
//! `BuildHasher`. Each shard has a lock, which is held for one lookup.
//!
//! Each use of an entry extends its lifetime. A full shard evicts its least recently used entry. An expired entry is
//! never returned. The table keeps no statistics and does not check whether a server is available: the caller does
//! both.
//!
//! Times are durations since an arbitrary origin of the caller's monotonic clock.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use crate::admission::nanos;
use crate::bounded_table::{BoundedTable, Bounds, Cursor, Entry, Order, Sharded};

/// Table of clients and their servers. Each call takes the lock of one shard, unless stated otherwise.
///
/// Costs 64 bytes per entry. Allocates nothing before its first use.
pub struct Stick<S = RandomState> {
    seed: S,
    shards: Sharded<BoundedTable<StuckClient>>,
}

#[derive(Default)]
struct StuckClient {
    client: u64,
    server: u64,
    /// Time of expiry, in nanoseconds.
    expires: u64,
    /// Second in which `learn` last returned `true` for the entry.
    news: u32,
}

impl Entry for StuckClient {}

impl<S: BuildHasher> Stick<S> {
    /// Creates a table for at most `entries`, rounded up to a multiple of the number of shards.
    pub fn new(entries: usize, seed: S) -> Self {
        let shard = |_, _| BoundedTable::new(Order::Used, bounds(entries));
        Self {
            seed,
            shards: Sharded::new(SHARDS, shard),
        }
    }

    /// Returns the server of `client`, unless the entry has expired. The entry then lives until `now + life`.
    pub fn recall(&self, client: u64, now: Duration, life: Duration) -> Option<u64> {
        let hash = self.seed.hash_one(client);
        let mut shard = self.shards.of(hash);
        let at = shard.find(hash, |known| known.client == client)?;
        if shard.get(at)?.expires <= nanos(now) {
            shard.remove(at);
            return None;
        }
        let known = shard.used(at)?;
        known.expires = nanos(now.saturating_add(life));
        Some(known.server)
    }

    /// Stores `server` as the server of `client` until `now + life`. Returns `true` if the entry should be sent to the
    /// cluster.
    ///
    /// An entry should be sent if it is new or has changed, or if it was last sent more than half of `life` ago.
    /// Entries in use therefore do not expire on other nodes.
    pub fn learn(&self, client: u64, server: u64, now: Duration, life: Duration) -> bool {
        let hash = self.seed.hash_one(client);
        let mut shard = self.shards.of(hash);
        let new = StuckClient {
            client,
            server,
            expires: nanos(now.saturating_add(life)),
            news: seconds(now),
        };
        let known = shard.find(hash, |known| known.client == client);
        if let Some(known) = known.and_then(|at| shard.used(at)) {
            let since = new.news.saturating_sub(known.news);
            let forgotten = known.expires <= nanos(now);
            let news = forgotten || known.server != server || since > seconds(life / 2);
            let since = if news { new.news } else { known.news };
            *known = StuckClient { news: since, ..new };
            return news;
        }
        // Checking two entries for each new one is enough to remove expired entries over time.
        shard.look_over(2, |known| known.expires <= nanos(now));
        shard.insert(hash, new).is_some()
    }

    /// Stores an entry that another node learned earlier, unless the table already has an entry for
    /// the client.
    pub fn learn_unless_known(
        &self,
        client: u64,
        server: u64,
        now: Duration,
        life: Duration,
    ) -> bool {
        let hash = self.seed.hash_one(client);
        let is_known = |known: &StuckClient| known.client == client && known.expires > nanos(now);
        let known = self.shards.of(hash).find(hash, is_known).is_some();
        // Another thread may add the client between the two calls; `learn` then replaces that
        // entry.
        !known && self.learn(client, server, now, life)
    }

    /// Calls `show` with the client, server and remaining lifetime of each live entry; see
    /// [`Sharded::visit`].
    pub fn visit(
        &self,
        from: Cursor,
        now: Duration,
        at_most: usize,
        mut show: impl FnMut(u64, u64, Duration),
    ) -> Option<Cursor> {
        let now = nanos(now);
        self.shards.visit(from, at_most, |known| {
            if known.expires > now {
                let remaining = Duration::from_nanos(known.expires - now);
                show(known.client, known.server, remaining);
            }
        })
    }

    /// Changes the maximum number of entries and evicts the least recently used ones. Takes every
    /// lock in turn.
    pub fn set_limit(&self, entries: usize) {
        for mut shard in self.shards.all() {
            shard.set_bounds(bounds(entries));
        }
    }

    /// Number of entries, expired ones included. Takes every lock in turn.
    pub fn entries(&self) -> usize {
        self.shards.entries()
    }
}

impl<S> fmt::Debug for Stick<S> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Stick").finish_non_exhaustive()
    }
}

fn seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX)
}

fn bounds(entries: usize) -> Bounds {
    Bounds {
        entries: entries.div_ceil(SHARDS),
        bytes: usize::MAX,
    }
}

/// Number of locks: enough that workers rarely need the same one, few enough for a small table.
const SHARDS: usize = 32;

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
    fn a_lower_limit_evicts_entries_at_once_and_zero_stores_none() {
        let stick = Stick::new(1000 * SHARDS, One::default());
        (0..100).for_each(|client| assert!(stick.learn(client, 1, at(client), at(1000))));
        stick.set_limit(10 * SHARDS);
        assert_eq!(stick.entries(), 10);
        assert_eq!(stick.recall(99, at(100), at(1000)), Some(1));
        stick.set_limit(0);
        assert!(!stick.learn(1, 1, at(100), at(10)));
        assert_eq!(stick.entries(), 0);
    }

    #[test]
    fn late_peer_entries_do_not_replace_known_entries() {
        let stick = Stick::new(100, RandomState::new());
        assert!(stick.learn_unless_known(1, 7, at(0), at(10)));
        assert!(!stick.learn_unless_known(1, 8, at(5), at(10)));
        assert_eq!(stick.recall(1, at(9), at(10)), Some(7));
        assert!(stick.learn_unless_known(1, 8, at(19), at(10)), "forgotten");
        assert_eq!(stick.recall(1, at(20), at(10)), Some(8));
    }

    #[test]
    fn a_walk_visits_each_entry_once() {
        let stick = Stick::new(10_000, RandomState::new());
        for client in 0..1000 {
            stick.learn(client, client + 1, at(0), at(client));
        }
        // Recalling expired entries removes them, so their places are free.
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
        fn the_stick_table_agrees_with_a_plain_list(steps in prop::collection::vec(step(), 0..200)) {
            const LIFE: u64 = 10;
            let stick = Stick::new(6 * SHARDS, One::default());
            // Client, server, expiry, time of the last news; the least recently used first.
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
                prop_assert!(stick.entries() <= 6);
            }
        }
    }
}
