//! Admission control for clients: by network (`deny` and `allow` of a listener), by connections per
//! source at accept, and by the rate of full handshakes when the private key is used.
//!
//! Each worker counts unfinished handshakes per source without a lock, because every client is
//! counted. The kernel distributes the connections of a source over the workers, so each worker
//! admits the limit divided by the number of workers.
//!
//! Connections and full handshakes are limited per [`LimitKey`]: the source of a client, its server
//! name, and its JA4 fingerprint. Server name and fingerprint are known after the ClientHello. Only
//! names of certificates and routes are counted separately, so a client cannot create new keys; all
//! other names share one key.
//!
//! All workers share [`SharedAdmission`]: one token bucket for all full handshakes, which is one
//! atomic number, and the counts per key. Each kind of key has its own table, divided into shards
//! with one lock each. A [`WorkerAdmission`] contains the rules of one worker's configuration and
//! that worker's counts. A check without a limit needs neither a lock nor an atomic operation.
//!
//! A full handshake needs a token because of its signature; a resumed handshake needs none. A
//! handshake is certainly full only when rustls requests a signature. At that point, the offered
//! ticket was not opened, or the session ID was not found, for this policy and name. So the
//! [`HandshakePermit`] is claimed at that point ([`served_key`](crate::served_key)), and a client cannot
//! avoid the token with an invalid ticket. A ClientHello that cannot resume is checked earlier
//! ([`HandshakePermit::look`]): without a token, the handshake ends before the key exchange.
//!
//! A client that is not admitted is *shed*: its connection is reset, which is cheapest for both
//! sides, and counted by its [`CloseReason`]. [`becket_proto::admission`] contains the arithmetic.

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use becket_config::listener::ListenMode;
use becket_config::process::Admission;
use becket_proto::admission::{Bucket, Claim, Holding, Rate, Share, Source, Sources};
use becket_proto::own_line::OwnLine;

use crate::config::Listener;
use crate::ja4::Ja4;
use crate::limit_key::{JA4, KINDS, KeyRule, KeyRules, LimitKey, NAME, QUEUE};
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use becket_proto::close_reason::CloseReason;

#[derive(Debug)]
pub struct SharedAdmission {
    workers: usize,
    full: OwnLine<FullCounts>,
    /// Number of times that a key was not counted, because its table had no free entry.
    untracked: AtomicU64,
    seed: RandomState,
    /// One table per kind of key, so that keys of one kind cannot fill the table of another kind.
    shards: [Box<[OwnLine<Mutex<KeyTable>>]>; KINDS],
}

/// Counts for the limits on full handshakes of all clients together.
#[derive(Debug)]
struct FullCounts {
    /// State of a [`Bucket`] of tokens.
    bucket: AtomicU64,
    /// Number of full handshakes in progress, if they are limited.
    in_flight: AtomicU32,
}

type KeyTable = Sources<RandomState, LimitKey>;

impl SharedAdmission {
    /// Creates the state with empty tables, which allocate memory on their first use.
    pub fn new(workers: usize) -> Self {
        let seed = RandomState::new();
        let shard = |_| OwnLine(Mutex::new(Sources::new(0, seed.clone())));
        Self {
            workers,
            full: OwnLine(FullCounts {
                bucket: AtomicU64::new(0),
                in_flight: AtomicU32::new(0),
            }),
            untracked: AtomicU64::new(0),
            shards: std::array::from_fn(|_| (0..SHARDS).map(shard).collect()),
            seed,
        }
    }

    /// Sets the maximum number of tracked sources and of tracked JA4 fingerprints, rounded up to a
    /// multiple of 64. Names come from the configuration, so all of them are tracked.
    pub fn set_limit(&self, keys: usize) {
        for (kind, shards) in self.shards.iter().enumerate() {
            let limit = match kind {
                NAME | QUEUE => usize::MAX,
                _ => keys.div_ceil(SHARDS),
            };
            for shard in &**shards {
                lock(shard).set_limit(limit);
            }
        }
    }

    pub fn in_flight(&self) -> u32 {
        self.full.in_flight.load(Relaxed)
    }

    /// Returns the number of tracked sources. Takes the lock of every shard in turn.
    pub fn sources(&self) -> usize {
        let [sources, ..] = &self.shards;
        sources.iter().map(|shard| lock(shard).count()).sum()
    }

    /// Returns the number of clients that were admitted without counting, because a table was full.
    pub fn untracked(&self) -> u64 {
        self.untracked.load(Relaxed)
    }

    /// Passes all tracked keys to `show`, with their counts. Locks one shard at a time, for at most
    /// 256 keys.
    pub fn visit(&self, rules: &KeyRules, now: Duration, mut show: impl FnMut(Holding<LimitKey>)) {
        for (shards, rule) in self.shards.iter().zip(&rules.0) {
            for shard in &**shards {
                let mut from = Some(0);
                while let Some(place) = from {
                    from = lock(shard).visit(place, SHOWN_AT_ONCE, rule.share, now, &mut show);
                }
            }
        }
    }

    fn shard(&self, key: &LimitKey) -> MutexGuard<'_, KeyTable> {
        // The shard is selected by the middle bits of the hash, because its table uses the lowest
        // and highest bits.
        let index = (self.seed.hash_one(key) >> 32) as usize % SHARDS;
        lock(&self.shards[key.kind()][index])
    }

    fn note(&self, claim: Claim) -> Claim {
        if claim == Claim::Untracked {
            self.untracked.fetch_add(1, Relaxed);
        }
        claim
    }

    fn take(&self, rate: Option<Rate>, now: Duration) -> bool {
        let Some(rate) = rate else {
            return true;
        };
        let next = |bucket| rate.take(Bucket(bucket), now).map(|bucket| bucket.0);
        self.full
            .bucket
            .fetch_update(Relaxed, Relaxed, next)
            .is_ok()
    }

    fn has_one(&self, rate: Option<Rate>, now: Duration) -> bool {
        let bucket = Bucket(self.full.bucket.load(Relaxed));
        rate.is_none_or(|rate| rate.has_one(bucket, now))
    }

    /// Counts a new full handshake. Returns `false` if `most` full handshakes are in progress.
    fn start(&self, most: Option<u32>) -> bool {
        let before = self.full.in_flight.fetch_add(1, Relaxed);
        let admitted = most.is_none_or(|most| before < most);
        if !admitted {
            self.full.in_flight.fetch_sub(1, Relaxed);
        }
        admitted
    }
}

fn lock(shard: &Mutex<KeyTable>) -> MutexGuard<'_, KeyTable> {
    // The counts are valid even after a panic, because every step of the table is complete.
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Permits of an admitted client. Dropping a permit decrements the counts that include the client.
#[derive(Debug, Default)]
pub struct Admitted {
    /// Counts the connection until it closes, if connections per source are limited.
    pub permit: Option<Box<ConnectionPermit>>,
    /// Counts the handshake as unfinished until the connection has traffic keys.
    pub half_open: Option<Box<HalfOpen>>,
}

#[derive(Debug)]
pub struct WorkerAdmission {
    shared: Arc<SharedAdmission>,
    keys: Admission,
    /// Limits on full handshakes that apply to all clients together.
    all: Share,
    rules: KeyRules,
    /// Number of unfinished handshakes of this worker per source.
    half_open: Rc<RefCell<Sources<RandomState>>>,
}

impl WorkerAdmission {
    /// Creates the admission control for the configured `keys`, and sets the limits of the tables.
    /// Continues the counts of `before`.
    pub fn new(shared: &Arc<SharedAdmission>, keys: &Admission, before: Option<&Self>) -> Rc<Self> {
        shared.set_limit(keys.sources);
        let half_open = match before {
            Some(before) => Rc::clone(&before.half_open),
            None => Rc::new(RefCell::new(Sources::new(0, shared.seed.clone()))),
        };
        let most = keys.sources.div_ceil(shared.workers);
        half_open.borrow_mut().set_limit(most);
        Rc::new(Self {
            shared: Arc::clone(shared),
            keys: keys.clone(),
            all: keys.all(),
            rules: KeyRules::new(keys),
            half_open,
        })
    }

    /// Admits a client by its address. The returned value counts the client for its source until it
    /// is dropped, if sources are limited.
    ///
    /// # Errors
    ///
    /// Returns the close reason if the client's network is denied, or if its source has reached the
    /// limit of connections or unfinished handshakes.
    pub fn admit(
        &self,
        listener: &Listener,
        client: IpAddr,
        now: Duration,
    ) -> Result<Admitted, CloseReason> {
        if !listener.lets_in(client) {
            return Err(CloseReason::DeniedNetwork);
        }
        let half_open = match listener.keys.speaks() {
            ListenMode::Plain => None,
            ListenMode::Tls | ListenMode::StartTls(_) => self.half_open(client, now)?,
        };
        let mut permit = None;
        self.enter(LimitKey::Source(self.source(client)), &mut permit, now)?;
        Ok(Admitted { permit, half_open })
    }

    /// Returns `true` if the fingerprint of a ClientHello is needed.
    pub fn needs_ja4(&self) -> bool {
        self.limits(JA4) || !self.keys.ja4.refuse.is_empty()
    }

    /// Returns the limited keys of a ClientHello: its server name and its fingerprint.
    ///
    /// # Errors
    ///
    /// Returns the close reason if the configuration refuses the fingerprint.
    pub fn keys_of_hello(
        &self,
        listener: &Listener,
        name: Option<&str>,
        ja4: Option<Ja4>,
    ) -> Result<Vec<LimitKey>, CloseReason> {
        let mut keys = Vec::new();
        if self.limits(NAME) {
            keys.push(LimitKey::Name(listener.configured_name(name)));
        }
        if self.needs_ja4() {
            // All ClientHellos without a fingerprint share one key. No real client sends such a
            // ClientHello.
            let ja4 = ja4.map_or_else(String::new, |ja4| ja4.to_string());
            if self.keys.ja4.refuse.iter().any(|it| it.0 == ja4) {
                return Err(CloseReason::Ja4Refused);
            }
            keys.push(LimitKey::Ja4(ja4.into()));
        }
        Ok(keys)
    }

    /// Creates the permit that a full handshake of `client` must claim, or `None` if full
    /// handshakes are not limited. `of_hello` is the result of [`Self::keys_of_hello`].
    pub fn handshake_permit(
        self: &Rc<Self>,
        client: IpAddr,
        of_hello: Vec<LimitKey>,
    ) -> Option<HandshakePermit> {
        let source = LimitKey::Source(self.source(client));
        let keys = std::iter::once(source).chain(of_hello);
        let is_limited = |key: &LimitKey| self.rules.of(key).share != Share::default();
        let keys: Vec<_> = keys.filter(is_limited).collect();
        (self.all != Share::default() || !keys.is_empty()).then(|| HandshakePermit {
            admission: Rc::clone(self),
            keys,
            state: PermitState::NotYet,
        })
    }

    fn limits(&self, kind: usize) -> bool {
        self.rules.0[kind] != KeyRule::default()
    }

    pub fn source(&self, client: IpAddr) -> Source {
        self.keys.prefixes().source(client)
    }

    /// Counts an unfinished handshake for its source until the [`HalfOpen`] is dropped. Needs no
    /// lock, because each worker has its own share of the limit.
    fn half_open(
        &self,
        client: IpAddr,
        now: Duration,
    ) -> Result<Option<Box<HalfOpen>>, CloseReason> {
        // Each worker admits at least one client per source, even if there are more workers than
        // the limit allows connections.
        let most = self
            .keys
            .half_open_per_source
            .div_ceil(u32::try_from(self.shared.workers).unwrap_or(u32::MAX));
        let source = self.source(client);
        let claim = self.half_open.borrow_mut().connect(&source, most, now);
        match self.shared.note(claim) {
            Claim::Granted => Ok(Some(Box::new(HalfOpen {
                sources: Rc::clone(&self.half_open),
                source,
            }))),
            Claim::Refused => Err(CloseReason::SourceHalfOpen),
            Claim::Untracked => Ok(None),
        }
    }

    /// Counts a connection for a key until the [`ConnectionPermit`] is dropped. Locks one shard if
    /// connections of such keys are limited.
    ///
    /// # Errors
    ///
    /// Returns the close reason if the key has reached its limit.
    pub fn enter(
        &self,
        key: LimitKey,
        permit: &mut Option<Box<ConnectionPermit>>,
        now: Duration,
    ) -> Result<(), CloseReason> {
        match self.rules.of(&key).connections {
            Some(most) => self.count(key, most, permit, now),
            None => Ok(()),
        }
    }

    /// Counts a client in the queue of a backend for its server name, until the
    /// [`ConnectionPermit`] is dropped. `room` is the maximum queue length, and `connection` is the
    /// permit of the client's connection.
    ///
    /// # Errors
    ///
    /// Returns the close reason if clients with this server name fill `queue-share` percent of the
    /// queue.
    pub fn wait(
        &self,
        (backend, room): (&str, usize),
        connection: Option<&ConnectionPermit>,
        now: Duration,
    ) -> Result<Option<Box<ConnectionPermit>>, CloseReason> {
        let mut keys = connection.into_iter().flat_map(|it| &it.keys);
        let name = keys.find_map(|key| match key {
            LimitKey::Name(name) => Some(name),
            _ => None,
        });
        let (Some(percent), Some(name)) = (self.keys.name.queue_share, name) else {
            return Ok(None);
        };
        let most = (room as u64).saturating_mul(percent.into()) / 100;
        let most = u32::try_from(most.max(1)).unwrap_or(u32::MAX);
        let mut permit = None;
        let key = LimitKey::Queue(format!("{name} at {backend}").into());
        self.count(key, most, &mut permit, now)?;
        Ok(permit)
    }

    fn count(
        &self,
        key: LimitKey,
        most: u32,
        permit: &mut Option<Box<ConnectionPermit>>,
        now: Duration,
    ) -> Result<(), CloseReason> {
        let claim = self.shared.shard(&key).connect(&key, most, now);
        match self.shared.note(claim) {
            Claim::Granted => {
                let empty = || ConnectionPermit {
                    shared: Arc::clone(&self.shared),
                    keys: Vec::new(),
                };
                let permit = permit.get_or_insert_with(|| Box::new(empty()));
                permit.keys.push(key);
                Ok(())
            }
            Claim::Refused => Err(key.refusals().0),
            Claim::Untracked => Ok(()),
        }
    }

    /// Checks that a full handshake would be admitted now. Takes no token.
    fn look(&self, keys: &[LimitKey], now: Duration) -> Result<(), CloseReason> {
        let Self { shared, all, .. } = self;
        let in_flight = shared.in_flight();
        if all.in_flight.is_some_and(|most| in_flight >= most) {
            return Err(CloseReason::AdmissionInFlight);
        }
        let is_refused = |key: &&LimitKey| {
            let share = self.rules.of(key).share;
            !shared.shard(key).may_begin(key, share, now)
        };
        match keys.iter().find(is_refused) {
            Some(key) => Err(key.refusals().1),
            None if shared.has_one(all.rate, now) => Ok(()),
            None => Err(CloseReason::AdmissionRate),
        }
    }

    /// Takes the tokens of a full handshake. Normally a rejected client uses no token of its
    /// source, name or fingerprint; it does only if another worker takes the last shared token
    /// after the check.
    fn begin(&self, keys: &[LimitKey], now: Duration) -> Result<FullHandshake, CloseReason> {
        let Self { shared, all, .. } = self;
        self.look(keys, now)?;
        if !shared.start(all.in_flight) {
            return Err(CloseReason::AdmissionInFlight);
        }
        // If this function fails below, dropping `begun` decrements the counts.
        let mut begun = FullHandshake {
            shared: Arc::clone(shared),
            keys: Vec::new(),
        };
        for key in keys {
            let share = self.rules.of(key).share;
            let claim = shared.shard(key).begin_full(key, share, now);
            match shared.note(claim) {
                Claim::Granted => begun.keys.push(key.clone()),
                Claim::Refused => return Err(key.refusals().1),
                Claim::Untracked => {}
            }
        }
        let taken = shared.take(all.rate, now);
        taken.then_some(begun).ok_or(CloseReason::AdmissionRate)
    }
}

/// Counts a connection, or a client in a queue, for its keys until it is dropped.
#[derive(Debug)]
pub struct ConnectionPermit {
    shared: Arc<SharedAdmission>,
    keys: Vec<LimitKey>,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        for key in &self.keys {
            self.shared.shard(key).disconnect(key);
        }
    }
}

/// Counts an unfinished handshake for its source until it is dropped.
#[derive(Debug)]
pub struct HalfOpen {
    sources: Rc<RefCell<Sources<RandomState>>>,
    source: Source,
}

impl Drop for HalfOpen {
    fn drop(&mut self) {
        self.sources.borrow_mut().disconnect(&self.source);
    }
}

#[derive(Debug)]
struct FullHandshake {
    shared: Arc<SharedAdmission>,
    keys: Vec<LimitKey>,
}

impl Drop for FullHandshake {
    fn drop(&mut self) {
        self.shared.full.in_flight.fetch_sub(1, Relaxed);
        for key in &self.keys {
            self.shared.shard(key).end_full(key);
        }
    }
}

/// Permission for one full handshake, claimed when the handshake turns out to be full.
#[derive(Debug)]
pub struct HandshakePermit {
    admission: Rc<WorkerAdmission>,
    /// Keys with a limit on full handshakes.
    keys: Vec<LimitKey>,
    state: PermitState,
}

#[derive(Debug)]
enum PermitState {
    NotYet,
    Yes(
        #[expect(dead_code, reason = "what it holds is given back when it is dropped")]
        FullHandshake,
    ),
    Refused(CloseReason),
}

impl HandshakePermit {
    /// Checks that a token is available. Takes no token. Used for a client that cannot resume a
    /// session.
    ///
    /// # Errors
    ///
    /// Returns the close reason if the client must be shed.
    pub fn look(&self, now: Duration) -> Result<(), CloseReason> {
        self.admission.look(&self.keys, now)
    }

    /// Takes the tokens of the full handshake, at the first call. Dropping the permit ends its
    /// counts, but does not return the tokens.
    ///
    /// # Errors
    ///
    /// Returns the close reason if the client must be shed.
    pub fn claim(&mut self, now: Duration) -> Result<(), CloseReason> {
        if matches!(self.state, PermitState::NotYet) {
            self.state = match self.admission.begin(&self.keys, now) {
                Ok(begun) => PermitState::Yes(begun),
                Err(reason) => PermitState::Refused(reason),
            };
        }
        self.refused().map_or(Ok(()), Err)
    }

    pub fn refused(&self) -> Option<CloseReason> {
        match self.state {
            PermitState::Refused(reason) => Some(reason),
            PermitState::NotYet | PermitState::Yes(_) => None,
        }
    }
}

const SHARDS: usize = 64;
/// Maximum number of keys passed to `show` per lock, which is held for microseconds.
const SHOWN_AT_ONCE: usize = 256;

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use becket_config::process::{Ja4Limits, NameLimits};

    use super::*;

    const NOW: Duration = Duration::from_secs(100);
    const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    fn rate(per_second: u32) -> Option<Rate> {
        let number = NonZeroU32::new(per_second)?;
        Some(Rate::new(number, number))
    }

    fn admission(all: Share, source: Share) -> (Arc<SharedAdmission>, Rc<WorkerAdmission>) {
        let shared = Arc::new(SharedAdmission::new(2));
        let keys = Admission {
            connections_per_source: Some(2),
            half_open_per_source: 5,
            sources: 1000,
            ..Admission::default()
        };
        let mut admission = WorkerAdmission::new(&shared, &keys, None);
        let limits = Rc::get_mut(&mut admission).unwrap();
        limits.all = all;
        limits.rules.0[crate::limit_key::SOURCE].share = source;
        (shared, admission)
    }

    fn begin(
        admission: &Rc<WorkerAdmission>,
        client: IpAddr,
        now: Duration,
    ) -> Result<HandshakePermit, CloseReason> {
        let mut permit = admission.handshake_permit(client, Vec::new()).unwrap();
        let looked = permit.look(now);
        assert_eq!(permit.claim(now), looked, "a look tells what would happen");
        permit.claim(now).map(|()| permit)
    }

    fn source(admission: &WorkerAdmission, client: IpAddr) -> LimitKey {
        LimitKey::Source(admission.source(client))
    }

    fn enter(
        admission: &WorkerAdmission,
        key: LimitKey,
    ) -> Result<Option<Box<ConnectionPermit>>, CloseReason> {
        let mut permit = None;
        admission.enter(key, &mut permit, NOW).map(|()| permit)
    }

    fn under(keys: Admission) -> (Arc<SharedAdmission>, Rc<WorkerAdmission>) {
        let shared = Arc::new(SharedAdmission::new(1));
        let admission = WorkerAdmission::new(&shared, &keys, None);
        (shared, admission)
    }

    #[test]
    fn names_and_fingerprints_at_their_limit_do_not_affect_others() {
        let (shared, admission) = under(Admission {
            sources: 64,
            name: NameLimits {
                connections: Some(2),
                full_handshakes_per_second: NonZeroU32::new(3),
                ..NameLimits::default()
            },
            ja4: Ja4Limits {
                connections: Some(1),
                ..Ja4Limits::default()
            },
            ..Admission::default()
        });
        let name = |name: &str| LimitKey::Name(name.into());
        let mut held = Vec::new();
        // More fingerprints than the table can track, and one name at its limit.
        for number in 0..10_000 {
            held.extend(enter(&admission, LimitKey::Ja4(number.to_string().into())));
            held.extend(enter(&admission, name("a.test")));
        }
        assert!(shared.untracked() > 0);
        assert_eq!(
            enter(&admission, name("a.test")).unwrap_err(),
            CloseReason::NameConnections
        );
        assert_eq!(
            enter(&admission, name("b.test")).unwrap().unwrap().keys,
            [name("b.test")]
        );
        for (of, reason) in [
            ("a.test", Some(CloseReason::AdmissionName)),
            ("b.test", None),
        ] {
            let flood = if reason.is_some() { 100 } else { 3 };
            let outcomes = (0..flood).map(|_| {
                let mut permit = admission.handshake_permit(ONE, vec![name(of)]).unwrap();
                permit.claim(NOW).err()
            });
            let outcomes: Vec<_> = outcomes.collect();
            assert!(outcomes[..3].iter().all(Option::is_none), "{of}");
            assert!(outcomes[3..].iter().all(|outcome| *outcome == reason));
        }
        let mut shown = Vec::new();
        shared.visit(&admission.rules, NOW, |it| shown.push(it));
        let all_of = |kind| shown.iter().filter(move |it| it.source.kind() == kind);
        assert_eq!(all_of(NAME).count(), 2);
        assert!(all_of(JA4).count() <= 64);
        let flooded = all_of(NAME).find(|it| it.source == name("a.test")).unwrap();
        assert_eq!((flooded.connections, flooded.may_begin), (2, false));
        assert_eq!(flooded.refused, 9_998 + 1 + 97);
        drop(held);
        enter(&admission, name("a.test")).unwrap().unwrap();
        // Each name is tracked, even if there are more names than trackable sources.
        let names = (0..1000).map(|number| name(&number.to_string()));
        let entered: Vec<_> = names.map(|it| enter(&admission, it).unwrap()).collect();
        assert!(entered.iter().all(Option::is_some));
    }

    #[test]
    fn a_name_cannot_exceed_its_share_of_a_queue() {
        let (_, admission) = under(Admission {
            name: NameLimits {
                queue_share: Some(50),
                ..NameLimits::default()
            },
            ..Admission::default()
        });
        let wait = |name: &str, backend| {
            let connection = enter(&admission, LimitKey::Name(name.into())).unwrap();
            admission.wait((backend, 5), connection.as_deref(), NOW)
        };
        let held = [wait("a.test", "app"), wait("a.test", "app")];
        assert!(held.iter().all(|it| matches!(it, Ok(Some(_)))));
        let refused = wait("a.test", "app").unwrap_err();
        assert_eq!(refused, CloseReason::NameQueue);
        assert!(wait("a.test", "other").unwrap().is_some());
        assert!(wait("b.test", "app").unwrap().is_some());
        drop(held);
        assert!(wait("a.test", "app").unwrap().is_some());
        let (_, unlimited) = under(Admission::default());
        assert!(unlimited.wait(("app", 5), None, NOW).unwrap().is_none());
    }

    #[test]
    fn used_tokens_are_refilled_over_time() {
        let all = Share {
            rate: rate(2),
            in_flight: None,
        };
        let (_, admission) = admission(all, Share::default());
        for _ in 0..2 {
            begin(&admission, ONE, NOW).unwrap();
        }
        assert_eq!(
            begin(&admission, ONE, NOW).unwrap_err(),
            CloseReason::AdmissionRate
        );
        begin(&admission, ONE, NOW + Duration::from_millis(500)).unwrap();
    }

    #[test]
    fn handshakes_in_flight_are_released_when_they_end() {
        let all = Share {
            rate: None,
            in_flight: Some(2),
        };
        let (shared, admission) = admission(all, Share::default());
        let kept = [
            begin(&admission, ONE, NOW).unwrap(),
            begin(&admission, OTHER, NOW).unwrap(),
        ];
        assert_eq!(
            begin(&admission, ONE, NOW).unwrap_err(),
            CloseReason::AdmissionInFlight
        );
        assert_eq!(shared.in_flight(), 2);
        drop(kept);
        assert_eq!(shared.in_flight(), 0);
        begin(&admission, ONE, NOW).unwrap();
    }

    #[test]
    fn a_source_over_its_rate_does_not_use_up_the_global_limits() {
        let all = Share {
            rate: rate(3),
            in_flight: Some(3),
        };
        let source = Share {
            rate: rate(1),
            in_flight: None,
        };
        let (shared, admission) = admission(all, source);
        begin(&admission, ONE, NOW).unwrap();
        for _ in 0..10 {
            assert_eq!(
                begin(&admission, ONE, NOW).unwrap_err(),
                CloseReason::AdmissionSource
            );
        }
        begin(&admission, OTHER, NOW).unwrap();
        assert_eq!(shared.in_flight(), 0);
    }

    #[test]
    fn connections_of_a_source_are_counted_until_they_end() {
        let (shared, admission) = admission(Share::default(), Share::default());
        let first = enter(&admission, source(&admission, ONE)).unwrap();
        let _second = enter(&admission, source(&admission, ONE)).unwrap();
        assert_eq!(
            enter(&admission, source(&admission, ONE)).unwrap_err(),
            CloseReason::SourceConnections
        );
        assert!(
            enter(&admission, source(&admission, OTHER))
                .unwrap()
                .is_some()
        );
        drop(first);
        assert!(
            enter(&admission, source(&admission, ONE))
                .unwrap()
                .is_some()
        );
        assert!(
            admission.handshake_permit(ONE, Vec::new()).is_none(),
            "handshakes are not limited"
        );
        assert!(shared.sources() >= 1);
    }

    #[test]
    fn global_limits_apply_if_the_table_is_full() {
        let all = Share {
            rate: rate(2),
            in_flight: None,
        };
        let source = Share {
            rate: rate(1),
            in_flight: None,
        };
        let (shared, admission) = admission(all, source);
        shared.set_limit(0);
        let _two = [
            begin(&admission, ONE, NOW).unwrap(),
            begin(&admission, ONE, NOW).unwrap(),
        ];
        assert_eq!(
            begin(&admission, ONE, NOW).unwrap_err(),
            CloseReason::AdmissionRate
        );
        assert_eq!(shared.untracked(), 2);
        assert_eq!(shared.in_flight(), 2);
    }

    #[test]
    fn workers_share_one_token_bucket() {
        let shared = Arc::new(SharedAdmission::new(4));
        let rate = rate(1000);
        let taken: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| (0..1000).filter(|_| shared.take(rate, NOW)).count()))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum()
        });
        assert_eq!(taken, 1000);
    }

    #[test]
    fn the_half_open_limit_per_source_and_worker_survives_a_reload() {
        let (shared, admission) = admission(Share::default(), Share::default());
        let mut held: Vec<_> = (0..3)
            .map(|_| admission.half_open(ONE, NOW).unwrap())
            .collect();
        assert_eq!(
            admission.half_open(ONE, NOW).unwrap_err(),
            CloseReason::SourceHalfOpen
        );
        assert!(admission.half_open(OTHER, NOW).unwrap().is_some());
        let again = WorkerAdmission::new(&shared, &admission.keys, Some(&admission));
        assert!(again.half_open(ONE, NOW).is_err());
        held.pop();
        assert!(again.half_open(ONE, NOW).unwrap().is_some());
        let anothers = WorkerAdmission::new(&shared, &admission.keys, None);
        assert!(anothers.half_open(ONE, NOW).unwrap().is_some());
    }

    #[test]
    fn connections_and_handshakes_are_not_counted_without_limits() {
        let shared = Arc::new(SharedAdmission::new(1));
        let admission = WorkerAdmission::new(&shared, &Admission::default(), None);
        assert!(
            enter(&admission, source(&admission, ONE))
                .unwrap()
                .is_none()
        );
        assert!(admission.handshake_permit(ONE, Vec::new()).is_none());
    }
}

#[cfg(all(test, feature = "models"))]
mod models {
    use std::num::NonZeroU32;

    use shuttle::thread;

    use super::*;

    #[test]
    fn concurrent_handshakes_never_exceed_their_limit() {
        let handshakes = || {
            let shared = Arc::new(SharedAdmission::new(3));
            let keys = Admission {
                full_handshakes_in_flight: NonZeroU32::new(1),
                ..Admission::default()
            };
            let begun = Arc::new(AtomicU32::new(0));
            let workers: Vec<_> = (0..3)
                .map(|_| {
                    let (shared, keys, begun) =
                        (Arc::clone(&shared), keys.clone(), Arc::clone(&begun));
                    thread::spawn(move || {
                        let admission = WorkerAdmission::new(&shared, &keys, None);
                        let client = IpAddr::from([192, 0, 2, 1]);
                        let mut permit = admission.handshake_permit(client, Vec::new()).unwrap();
                        if permit.claim(Duration::ZERO).is_ok() {
                            assert_eq!(begun.fetch_add(1, Relaxed), 0);
                            thread::yield_now();
                            begun.fetch_sub(1, Relaxed);
                        }
                    })
                })
                .collect();
            workers
                .into_iter()
                .for_each(|worker| worker.join().unwrap());
            assert_eq!(shared.in_flight(), 0);
        };
        shuttle::check_random(handshakes, 2000);
    }
}
