//! TLS sessions of one process, by policy and session ID, shared by all workers.
//!
//! Sessions are distributed over shards by a hash of the ID. Each shard has a lock, which is held for one lookup. The
//! table keeps no statistics: every call returns what happened, and the caller counts. The store that rustls calls is
//! in `crates/tls/src/sessions/store.rs`.
//!
//! Invariants:
//! * A session is found only under the policy with which it was stored, and never after it expired.
//! * A state is erased from memory when its entry is removed.
//! * The number of entries and the total size of their states never exceed the limits, in any shard or in total. A full
//!   shard evicts its oldest entries, even if they were used recently: a TLS 1.2 session has a fixed lifetime, which
//!   use does not extend.
//!
//! Peers choose the IDs that are looked up, so the hash must be keyed with a secret. Otherwise a peer could choose IDs
//! that collide, and so slow one shard down. The key is in the `BuildHasher` (`std::hash::RandomState::new()`).
//!
//! Times are durations since an arbitrary origin of the caller's monotonic clock. Only the origin of a session (the
//! time of its full handshake) is in wall-clock time.
//!
//! Source: RFC 5246 section 7.3 and appendix F.1.4 (TLS 1.2 session ids), RFC 8446 section 4.6.1.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::bounded_table::{BoundedTable, Bounds, Cursor, Entry, Order, Sharded, share};
use crate::session::{PolicyTag, Session, SessionName};

/// Bounded table of sessions for resumption, with expiry. Unless stated otherwise, a call takes the lock of one shard.
///
/// An entry needs the memory of its session state and up to 300 bytes of overhead. Allocates nothing before the first
/// insertion.
pub struct SessionTable<S = RandomState> {
    seed: S,
    shards: Sharded<BoundedTable<Stored>>,
    is_observed: AtomicBool,
    observer: Mutex<Option<SessionObserver>>,
}

/// Called for each stored or removed session. It must return quickly and must not call the table.
pub type SessionObserver = Arc<dyn Fn(SessionName) + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of sessions; 0 stores nothing.
    pub entries: usize,
    /// Maximum total size of all states, in bytes.
    pub bytes: usize,
    /// Number of locks, rounded up to a power of two, at most 1024.
    pub shards: usize,
}

impl Default for Limits {
    /// 200 000 entries hold 660 new sessions per second for 300 s, with at most 60 MB of overhead. 128 MiB allow 600
    /// bytes per state, five times the size of a state without a client certificate. With 64 shards, 64 workers rarely
    /// wait for the same lock.
    fn default() -> Self {
        Self {
            entries: 200_000,
            bytes: 128 * 1024 * 1024,
            shards: 64,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Lookup {
    /// A live session, copied (`get`) or removed from the table (`take`).
    Hit(Session),
    Miss,
    /// The session had expired and was removed.
    Expired,
    /// The ID exists only under another policy: the client used another server name, or probes for
    /// sessions.
    OtherPolicy,
}

#[derive(Debug)]
pub struct Visited<'a> {
    pub policy: PolicyTag,
    pub id: &'a [u8],
    pub session: &'a Session,
    /// Remaining lifetime, in whole seconds.
    pub remaining: Duration,
}

#[derive(Default)]
struct Stored {
    name: SessionName,
    /// First second in which the session is expired.
    expires: u64,
    session: Session,
}

impl Entry for Stored {
    fn bytes(&self) -> usize {
        self.session.state.len()
    }
}

impl<S: BuildHasher> SessionTable<S> {
    /// Creates an empty table. `seed` must be secret, since peers could otherwise choose IDs that
    /// collide.
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

    /// Sets an observer, which receives the name of each session that is stored or removed from
    /// then on, but not of expired and evicted sessions. It reports the changes that a concurrent
    /// walk over the table may miss.
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
        if let Some(observe) = observer {
            observe(name);
        }
    }

    /// Stores a session until `now + ttl`. Replaces a session with the same policy and ID. If the shard is full, evicts
    /// its oldest sessions.
    ///
    /// Takes constant time, plus one step per evicted session. Also checks the four oldest sessions of the shard and
    /// removes the expired ones.
    ///
    /// Lifetimes are rounded down to whole seconds, so a session never outlives its `ttl`.
    ///
    /// Returns `false` if the session is rejected: the limit is 0, the ID does not have 1 to 32 bytes, the lifetime
    /// ends within the current second, or the state exceeds the byte limit of a shard.
    pub fn insert(&self, policy: PolicyTag, id: &[u8], session: Session, lives: Lives) -> bool {
        let Some((hash, name)) = self.key(policy, id) else {
            return false;
        };
        let now = lives.now.as_secs();
        let expires = lives.now.saturating_add(lives.ttl).as_secs();
        let mut shard = self.shards.of(hash);
        if let Some(at) = shard.find(hash, |stored| stored.name == name) {
            shard.remove(at);
        }
        shard.look_over(SWEEP, |stored| stored.expires <= now);
        let stored = Stored {
            name,
            expires,
            session,
        };
        let is_stored = expires > now && shard.insert(hash, stored).is_some();
        drop(shard);
        if is_stored {
            self.note(name);
        }
        is_stored
    }

    pub fn get(&self, policy: PolicyTag, id: &[u8], now: Duration) -> Lookup {
        self.look_up(policy, id, now, false)
    }

    /// Looks a session up and removes it, for single use.
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

    /// Returns a copy of a live session for another table, and its remaining lifetime in whole seconds.
    pub fn copy(&self, name: &SessionName, now: Duration) -> Option<(Session, Duration)> {
        let hash = self.seed.hash_one(name.id());
        let now = now.as_secs();
        let shard = self.shards.of(hash);
        let at = shard.find(hash, |stored| stored.name == *name)?;
        let stored = shard.get(at).filter(|stored| stored.expires > now)?;
        let remaining = Duration::from_secs(stored.expires - now);
        Some((stored.session.clone(), remaining))
    }

    /// Removes a session, e.g. because its connection ended with a fatal alert (RFC 5246 section 7.2.2).
    /// Returns whether it was in the table.
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

    /// Removes expired sessions among the `at_most` oldest of each shard. Takes every lock in turn.
    /// Call it periodically: without new sessions nothing else erases the old secrets.
    pub fn sweep(&self, now: Duration, at_most: usize) {
        let now = now.as_secs();
        for mut shard in self.shards.all() {
            shard.look_over(at_most, |stored| stored.expires <= now);
        }
    }

    /// Changes the bounds and returns the number of evicted sessions. Takes every lock in turn. Lower bounds free
    /// memory, which moves a shard's entries under its lock.
    pub fn set_limits(&self, entries: usize, bytes: usize) -> usize {
        let shards = self.shards.all().enumerate();
        shards
            .map(|(number, mut shard)| {
                shard.set_bounds(bounds((entries, bytes), number, self.shards.count()))
            })
            .sum()
    }

    /// Calls `show` with live sessions; see [`Sharded::visit`].
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

    /// Number of sessions, including expired ones that are not removed yet. Takes every lock in turn.
    pub fn entries(&self) -> usize {
        self.shards.entries()
    }

    /// Returns the hash and the name, or `None` if the ID has an invalid length. Only the ID is
    /// hashed, so the same shard contains all sessions with this ID, whatever their policy.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lives {
    /// Time of the call since the origin of the caller's clock.
    pub now: Duration,
    pub ttl: Duration,
}

fn bounds((entries, bytes): (usize, usize), number: usize, count: usize) -> Bounds {
    Bounds {
        entries: share(entries, number, count),
        bytes: share(bytes, number, count),
    }
}

/// Number of oldest entries that an insertion checks. With more than one, expired sessions are
/// removed faster than new ones are added.
const SWEEP: usize = 4;

const MAX_SHARDS: usize = 1024;

#[cfg(test)]
mod tests;
