//! The TLS sessions of one process, by policy and session id, shared by all workers.
//!
//! Owns the bound, the age and the order of eviction. Sessions are spread over shards by a seeded hash of the id; each
//! shard has its own lock, held for one lookup. It counts nothing: every call returns what happened, and the caller
//! counts. It is not the store that rustls calls (`crates/tls/src/sessions/store.rs`), and it replicates nothing.
//!
//! Invariants: a session is found under the policy it was stored with and under no other; an expired one is never
//! returned; a state is erased from memory when its entry goes, for whatever reason. Entries are at most the limit, in
//! every shard and in sum, and so are the bytes of their states; when a shard is full, its oldest entries make room, whether it was used or not: a TLS 1.2
//! session has a fixed life, and use does not lengthen it.
//!
//! An id comes from a peer at each lookup, so the hash must be keyed with a secret: a peer that could choose collisions
//! could make one shard slow. The key arrives as the `BuildHasher` (`std::hash::RandomState::new()`).
//!
//! Times are durations since one arbitrary origin of a monotonic clock, the caller's; births are wall-clock time.
//!
//! Source: RFC 5246 section 7.3 and appendix F.1.4 (TLS 1.2 session ids), RFC 8446 section 4.6.1.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::bounded_table::{BoundedTable, Bounds, Cursor, Entry, Order, Sharded, share};
use crate::session::{PolicyTag, Session, SessionName};

/// Holds sessions for resumption, bounded and expiring. Each call takes one shard's lock unless it says otherwise.
///
/// Costs, beside the state itself, at most 300 bytes per entry just after a shard has grown, and half of that just
/// before. Nothing is allocated before it is used.
pub struct SessionTable<S = RandomState> {
    seed: S,
    shards: Sharded<BoundedTable<Stored>>,
    /// `true` if there is an observer.
    is_observed: AtomicBool,
    observer: Mutex<Option<SessionObserver>>,
}

/// Receives the names of sessions that are stored or removed.
#[derive(Clone)]
pub struct SessionObserver(Arc<dyn Fn(SessionName) + Send + Sync>);

impl SessionObserver {
    /// Calls a function whenever a table changes: it must be short, and must not call the table.
    pub fn new(observe: impl Fn(SessionName) + Send + Sync + 'static) -> Self {
        Self(Arc::new(observe))
    }
}

/// Bounds of a [`SessionTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many sessions are held at most; 0 stores nothing.
    pub entries: usize,
    /// How many bytes their states have at most.
    pub bytes: usize,
    /// How many locks the table is spread over: rounded up to a power of two, at most 1024.
    pub shards: usize,
}

impl Default for Limits {
    /// 200 000 sessions: 300 s of 660 new ones each second, beside their states in some 60 MB at worst. 128 MiB of states:
    /// 600 bytes for each of these, five times what one without a client's certificate has. 64 shards: with 64 workers, two
    /// rarely meet at one lock.
    fn default() -> Self {
        Self {
            entries: 200_000,
            bytes: 128 * 1024 * 1024,
            shards: 64,
        }
    }
}

/// What [`SessionTable::insert`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inserted {
    /// The session is in the table. It is not when the limit is 0, the id is empty or longer than 32 bytes, or the time
    /// to live ends within the current second, or the state has more bytes than a shard may have.
    pub stored: bool,
    /// A session with the same policy and id was there and is gone.
    pub replaced: bool,
    /// So many of the oldest sessions, still alive, made room.
    pub evicted: usize,
    /// How many expired sessions were reclaimed on the way.
    pub expired: usize,
}

/// What [`SessionTable::get`] and [`SessionTable::take`] found. Each is a counter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Lookup {
    /// A live session, copied (`get`) or removed from the table (`take`).
    Hit(Session),
    /// No such id.
    Miss,
    /// The session's time was over; it is removed.
    Expired,
    /// The id lives under another policy only: a client moved between names, or someone tries a door.
    OtherPolicy,
}

/// One session as [`SessionTable::visit`] shows it.
#[derive(Debug)]
pub struct Visited<'a> {
    /// The policy it was stored with.
    pub policy: PolicyTag,
    /// Its id, 1 to 32 bytes.
    pub id: &'a [u8],
    /// The session.
    pub session: &'a Session,
    /// How long it has still to live, in whole seconds.
    pub remaining: Duration,
}

/// A session with its name.
#[derive(Default)]
struct Stored {
    name: SessionName,
    /// The first second in which it is dead.
    expires: u64,
    session: Session,
}

impl Entry for Stored {
    fn bytes(&self) -> usize {
        self.session.state.len()
    }
}

impl<S: BuildHasher> SessionTable<S> {
    /// Starts an empty table. `seed` must be secret from peers.
    pub fn new(limits: Limits, seed: S) -> Self {
        let shards = Sharded::new(limits.shards.min(MAX_SHARDS), |number, count| {
            let bounds = bounds((limits.entries, limits.bytes), number, count);
            BoundedTable::new(Order::Inserted, bounds)
        });
        Self {
            seed,
            shards,
            is_observed: AtomicBool::new(false),
            observer: Mutex::default(),
        }
    }

    /// Sends, from now on, the name of each session that is stored or removed to an observer: it receives what a walk that begins
    /// later does not show. Sessions that expire or make room are not sent.
    pub fn observe(&self, observer: Option<SessionObserver>) {
        let is_observed = observer.is_some();
        *self.observer.lock().unwrap_or_else(PoisonError::into_inner) = observer;
        self.is_observed.store(is_observed, SeqCst);
    }

    fn note(&self, name: SessionName) {
        if !self.is_observed.load(SeqCst) {
            return;
        }
        let observer = self.observer.lock().unwrap_or_else(PoisonError::into_inner);
        let observer = observer.clone();
        if let Some(SessionObserver(observe)) = observer {
            observe(name);
        }
    }

    /// Stores a session until `now + ttl`, in place of one with the same policy and id, and of the oldest if its shard is full.
    /// O(1), and one step for each that makes room: besides, the four oldest of the shard are looked at, and dropped if their
    /// time is over.
    ///
    /// A session never outlives its `ttl`; rounded to whole seconds, it lives up to a second less.
    pub fn insert(&self, policy: PolicyTag, id: &[u8], session: Session, lives: Lives) -> Inserted {
        let Some((hash, name)) = self.key(policy, id) else {
            return Inserted::default();
        };
        let now = lives.now.as_secs();
        let expires = lives.now.saturating_add(lives.ttl).as_secs();
        let mut shard = self.shards.of(hash);
        let known = shard.find(hash, |stored| stored.name == name);
        let mut done = Inserted {
            replaced: known.is_some_and(|at| shard.remove(at).is_some()),
            expired: shard.look_over(SWEEP, |stored| stored.expires <= now),
            ..Inserted::default()
        };
        let stored = Stored {
            name,
            expires,
            session,
        };
        if expires > now
            && let Some((_, evicted)) = shard.insert(hash, stored)
        {
            (done.stored, done.evicted) = (true, evicted);
        }
        drop(shard);
        if done.stored {
            self.note(name);
        }
        done
    }

    /// Looks a session up and copies it.
    pub fn get(&self, policy: PolicyTag, id: &[u8], now: Duration) -> Lookup {
        self.look_up(policy, id, now, false)
    }

    /// Looks a session up and removes it: for single use.
    pub fn take(&self, policy: PolicyTag, id: &[u8], now: Duration) -> Lookup {
        self.look_up(policy, id, now, true)
    }

    fn look_up(&self, policy: PolicyTag, id: &[u8], now: Duration, take: bool) -> Lookup {
        let Some((hash, name)) = self.key(policy, id) else {
            return Lookup::Miss;
        };
        let now = now.as_secs();
        let mut shard = self.shards.of(hash);
        let Some(at) = shard.find(hash, |stored| stored.name == name) else {
            let elsewhere = |stored: &Stored| stored.name.id() == name.id() && stored.expires > now;
            return match shard.find(hash, elsewhere) {
                Some(_) => Lookup::OtherPolicy,
                None => Lookup::Miss,
            };
        };
        match shard.get(at) {
            Some(stored) if stored.expires > now && !take => Lookup::Hit(stored.session.clone()),
            _ => match shard.remove(at) {
                Some(stored) if stored.expires > now => Lookup::Hit(stored.session),
                _ => Lookup::Expired,
            },
        }
    }

    /// Returns a copy of a live session for another table, and how long it may live there, in whole seconds.
    pub fn copy(&self, name: &SessionName, now: Duration) -> Option<(Session, Duration)> {
        let hash = self.seed.hash_one(name.id());
        let now = now.as_secs();
        let shard = self.shards.of(hash);
        let at = shard.find(hash, |stored| stored.name == *name)?;
        let stored = shard.get(at).filter(|stored| stored.expires > now)?;
        let remaining = Duration::from_secs(stored.expires - now);
        Some((stored.session.clone(), remaining))
    }

    /// Removes a session, e.g. because its connection ended with a fatal alert (RFC 5246 section 7.2.2). Returns
    /// whether it was there.
    pub fn remove(&self, policy: PolicyTag, id: &[u8]) -> bool {
        let Some((hash, name)) = self.key(policy, id) else {
            return false;
        };
        let mut shard = self.shards.of(hash);
        let known = shard.find(hash, |stored| stored.name == name);
        let was_there = known.is_some_and(|at| shard.remove(at).is_some());
        drop(shard);
        if was_there {
            self.note(name);
        }
        was_there
    }

    /// Drops what has expired among the `at_most` oldest sessions of each shard, and returns how many. Takes every lock
    /// in turn. For a clock of the control thread: without new sessions nothing else erases the old secrets.
    pub fn sweep(&self, now: Duration, at_most: usize) -> usize {
        let now = now.as_secs();
        let shards = self.shards.all();
        shards
            .map(|mut shard| shard.look_over(at_most, |stored| stored.expires <= now))
            .sum()
    }

    /// Changes the bounds, and returns how many of the oldest sessions had to go. Takes every lock in turn; a lower
    /// bound gives memory back, and moves a shard's entries under its lock to do so.
    pub fn set_limits(&self, entries: usize, bytes: usize) -> usize {
        let shards = self.shards.all().enumerate();
        shards
            .map(|(number, mut shard)| {
                shard.set_bounds(bounds((entries, bytes), number, self.shards.count()))
            })
            .sum()
    }

    /// Shows live sessions, as [`Sharded::visit`] does.
    pub fn visit(
        &self,
        from: Cursor,
        now: Duration,
        at_most: usize,
        mut show: impl FnMut(Visited<'_>),
    ) -> Option<Cursor> {
        let now = now.as_secs();
        self.shards.visit(from, at_most, |stored| {
            if stored.expires > now {
                show(Visited {
                    policy: stored.name.policy(),
                    id: stored.name.id(),
                    session: &stored.session,
                    remaining: Duration::from_secs(stored.expires - now),
                });
            }
        })
    }

    /// How many sessions are held, the expired ones that nobody met included. Takes every lock in turn.
    pub fn len(&self) -> usize {
        self.shards.len()
    }

    /// Says whether no session is held. Takes every lock in turn.
    pub fn is_empty(&self) -> bool {
        self.shards.is_empty()
    }

    /// Bytes of all states. Takes every lock in turn.
    pub fn bytes(&self) -> usize {
        self.shards.all().map(|shard| shard.bytes()).sum()
    }

    /// Bytes held beside the states: places, used or not, and the index. Takes every lock in turn.
    pub fn overhead_bytes(&self) -> usize {
        self.shards.all().map(|shard| shard.overhead_bytes()).sum()
    }

    /// Walks everything and asserts, in debug builds, that lists, index and bounds agree.
    pub fn check_invariants(&self) {
        self.shards.all().for_each(|shard| shard.check_invariants());
    }

    /// Nothing for an id that no session can have. The hash is of the id alone, so that all policies of an id meet in one
    /// shard.
    fn key(&self, policy: PolicyTag, id: &[u8]) -> Option<(u64, SessionName)> {
        let name = SessionName::new(policy, id)?;
        Some((self.seed.hash_one(id), name))
    }
}

impl<S> fmt::Debug for SessionTable<S> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("SessionTable")
            .field("shards", &self.shards.count())
            .finish_non_exhaustive()
    }
}

/// When a session is stored and how long it may stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lives {
    /// The time of the call, since the caller's origin.
    pub now: Duration,
    /// The time to live from then on.
    pub ttl: Duration,
}

/// A shard's part of entries and bytes.
fn bounds((entries, bytes): (usize, usize), number: usize, count: usize) -> Bounds {
    Bounds {
        entries: share(entries, number, count),
        bytes: share(bytes, number, count),
    }
}

/// How many of the oldest entries an insertion looks at. More than one, so that the dead are reclaimed faster than sessions
/// arrive; few, so that an insertion stays O(1).
const SWEEP: usize = 4;

const MAX_SHARDS: usize = 1024;

#[cfg(test)]
mod tests;
