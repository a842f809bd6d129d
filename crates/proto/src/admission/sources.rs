//! Usage of each source: connections, full handshakes in progress, and a token bucket.
//!
//! A *source* is the network of a client, with a configured prefix length: by default one IPv4 address, or an IPv6 /64,
//! in which a single household can choose addresses freely (RFC 6177, RFC 8981).
//!
//! The table is bounded. A source is idle if it has no connections, no handshakes and a full bucket. An idle source is
//! equivalent to an unknown source, so it can be removed. Each new source causes a check of a few other entries, and
//! the idle ones are removed. If the table is full and none of the checked sources is idle, the new source is not
//! tracked ([`Claim::Untracked`]): an attacker with more networks than entries must not lock the other clients out, and
//! the limits over all clients still apply. The caller counts untracked sources.
//!
//! The key `K` is generic, so the same table also counts by other attributes of clients, such as the server name.
//!
//! Keys come from peers, so the `BuildHasher` must be keyed with a secret.
//!
//! Invariants: the table tracks at most `limit` sources, or more after the limit was lowered; a source stays tracked
//! until all its granted connections and handshakes have ended.

use std::hash::{BuildHasher, Hash};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use super::rate::{Bucket, Rate};
use crate::bounded_table::{BoundedTable, Bounds, Entry, Order, Place};

/// Prefix lengths that define a source, in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefixes {
    /// IPv4 prefix length, at most 32.
    pub v4: u8,
    /// IPv6 prefix length, at most 128.
    pub v6: u8,
}

impl Default for Prefixes {
    fn default() -> Self {
        Self { v4: 32, v6: 64 }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Source(u64, u64);

impl Source {
    /// Returns the first address of the network.
    pub fn address(self) -> IpAddr {
        let bits = u128::from(self.0) << 64 | u128::from(self.1);
        Ipv6Addr::from_bits(bits).to_canonical()
    }
}

impl Prefixes {
    /// Returns the source of an address. An IPv4-mapped IPv6 address counts as IPv4.
    pub fn source(self, address: IpAddr) -> Source {
        // IPv4 is stored as an IPv4-mapped address (RFC 4291, section 2.5.5.2). No IPv6 source has such an address.
        let (bits, length) = match address.to_canonical() {
            IpAddr::V4(v4) => (v4.to_ipv6_mapped().to_bits(), 96 + u32::from(self.v4)),
            IpAddr::V6(v6) => (v6.to_bits(), u32::from(self.v6)),
        };
        let mask = u128::MAX.checked_shl(128_u32.saturating_sub(length));
        let bits = bits & mask.unwrap_or(0);
        Source((bits >> 64) as u64, bits as u64)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    pub rate: Option<Rate>,
    /// Maximum number of full handshakes in progress; `None` means no limit.
    pub in_flight: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The connection or handshake is counted until [`Sources::disconnect`] or
    /// [`Sources::end_full`].
    Granted,
    /// The source has reached its limit.
    Refused,
    /// The table has no room for the source. Nothing is counted, so the caller must not release
    /// anything.
    Untracked,
}

/// Usage of all sources that are not idle. Not synchronized: threads that share a table need a
/// lock.
#[derive(Debug)]
pub struct Sources<S, K = Source> {
    seed: S,
    table: BoundedTable<Held<K>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding<K = Source> {
    pub source: K,
    /// Connections; counted only if they are limited.
    pub connections: u32,
    /// Full handshakes in progress.
    pub in_flight: u32,
    /// `true` if the source may start another full handshake.
    pub may_begin: bool,
    /// Number of connections and full handshakes refused while the source was tracked.
    pub refused: u32,
}

#[derive(Debug, Default)]
struct Held<K> {
    source: K,
    bucket: Bucket,
    in_flight: u32,
    connections: u32,
    refused: u32,
}

impl<K: Default> Entry for Held<K> {}

impl<S: BuildHasher, K: Clone + Default + Eq + Hash> Sources<S, K> {
    pub fn new(limit: usize, seed: S) -> Self {
        Self {
            seed,
            table: BoundedTable::new(Order::Idle, bounds(limit)),
        }
    }

    /// Changes the limit. Sources above a lower limit stay tracked until they are idle.
    pub fn set_limit(&mut self, limit: usize) {
        self.table.set_bounds(bounds(limit));
    }

    pub fn count(&self) -> usize {
        self.table.count()
    }

    /// Counts a connection; a source may have at most `most`.
    pub fn connect(&mut self, source: &K, most: u32, now: Duration) -> Claim {
        match self.enter(source, now) {
            None => Claim::Untracked,
            Some(held) if held.connections >= most => held.refuse(),
            Some(held) => {
                held.connections += 1;
                Claim::Granted
            }
        }
    }

    /// Releases a connection that [`Self::connect`] granted.
    pub fn disconnect(&mut self, source: &K) {
        if let Some(held) = self.held(source) {
            held.connections = held.connections.saturating_sub(1);
        }
    }

    /// Counts a full handshake and takes a token for it.
    pub fn begin_full(&mut self, source: &K, share: Share, now: Duration) -> Claim {
        match self.enter(source, now) {
            None => Claim::Untracked,
            Some(held) => match held.after_one(share, now) {
                None => held.refuse(),
                Some(bucket) => {
                    held.bucket = bucket;
                    held.in_flight += 1;
                    Claim::Granted
                }
            },
        }
    }

    /// Returns `true` if [`Self::begin_full`] would succeed. Takes no token, but counts a refusal.
    pub fn may_begin(&mut self, source: &K, share: Share, now: Duration) -> bool {
        let Some(held) = self.held(source) else {
            return true;
        };
        let may = held.after_one(share, now).is_some();
        if !may {
            held.refuse();
        }
        may
    }

    /// Releases a handshake that [`Self::begin_full`] granted. The token stays spent.
    pub fn end_full(&mut self, source: &K) {
        if let Some(held) = self.held(source) {
            held.in_flight = held.in_flight.saturating_sub(1);
        }
    }

    /// Calls `show` for each source in up to `at_most` slots of the table, starting at slot `from`.
    ///
    /// Returns the slot to continue from, or `None` after the last slot.
    pub fn visit(
        &self,
        from: usize,
        at_most: usize,
        share: Share,
        now: Duration,
        mut show: impl FnMut(Holding<K>),
    ) -> Option<usize> {
        self.table.visit(from, at_most, |held| {
            show(Holding {
                source: held.source.clone(),
                connections: held.connections,
                in_flight: held.in_flight,
                may_begin: held.after_one(share, now).is_some(),
                refused: held.refused,
            });
        })
    }

    fn held(&mut self, source: &K) -> Option<&mut Held<K>> {
        let at = self.find(source)?;
        self.table.used(at)
    }

    fn find(&self, source: &K) -> Option<Place> {
        let hash = self.seed.hash_one(source);
        self.table.find(hash, |held| held.source == *source)
    }

    /// Returns the entry of a source. Adds an empty entry for a new source if there is room.
    fn enter(&mut self, source: &K, now: Duration) -> Option<&mut Held<K>> {
        let at = match self.find(source) {
            Some(at) => at,
            None => {
                self.table.look_over(LOOKS, |held| held.is_idle(now));
                let new = Held {
                    source: source.clone(),
                    ..Held::default()
                };
                self.table.insert(self.seed.hash_one(source), new)?
            }
        };
        self.table.used(at)
    }
}

impl<K> Held<K> {
    fn refuse(&mut self) -> Claim {
        self.refused = self.refused.saturating_add(1);
        Claim::Refused
    }

    fn is_idle(&self, now: Duration) -> bool {
        self.connections == 0 && self.in_flight == 0 && self.bucket.is_full(now)
    }

    /// Returns the bucket after one more full handshake, or `None` if a limit forbids it.
    fn after_one(&self, share: Share, now: Duration) -> Option<Bucket> {
        if share.in_flight.is_some_and(|most| self.in_flight >= most) {
            return None;
        }
        match share.rate {
            None => Some(self.bucket),
            Some(rate) => rate.take(self.bucket, now),
        }
    }
}

/// Number of entries that are checked for each new source. With eight removed per new source, a
/// table of idle entries empties in an eighth of the time that it took to fill.
const LOOKS: usize = 8;

fn bounds(limit: usize) -> Bounds {
    Bounds {
        entries: limit,
        bytes: usize::MAX,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::hash::{BuildHasherDefault, DefaultHasher};
    use std::num::NonZeroU32;

    use proptest::prelude::*;

    use super::*;

    type Seed = BuildHasherDefault<DefaultHasher>;

    fn table(limit: usize) -> Sources<Seed> {
        Sources::new(limit, Seed::default())
    }

    fn source(text: &str) -> Source {
        Prefixes::default().source(text.parse().unwrap())
    }

    fn rate(per_second: u32, burst: u32) -> Option<Rate> {
        Some(Rate::new(
            NonZeroU32::new(per_second)?,
            NonZeroU32::new(burst)?,
        ))
    }

    #[test]
    fn a_source_is_an_ipv4_address_or_an_ipv6_network() {
        assert_ne!(source("192.0.2.1"), source("192.0.2.2"));
        assert_eq!(source("192.0.2.1"), source("::ffff:192.0.2.1"));
        assert_eq!(source("2001:db8:0:1::5"), source("2001:db8:0:1:9::"));
        assert_ne!(source("2001:db8:0:1::5"), source("2001:db8:0:2::5"));
        assert_ne!(source("0.0.0.0"), source("::"));
        let wide = Prefixes { v4: 24, v6: 0 };
        let of = |text: &str| wide.source(text.parse().unwrap());
        assert_eq!(of("192.0.2.1"), of("192.0.2.200"));
        assert_ne!(of("192.0.2.1"), of("192.0.3.1"));
        assert_eq!(of("::1"), of("2001:db8::"));
    }

    #[test]
    fn sources_are_listed_with_their_counts() {
        let mut table = table(10);
        let share = Share {
            rate: None,
            in_flight: Some(1),
        };
        for text in ["192.0.2.1", "2001:db8::1"] {
            assert_eq!(
                table.connect(&source(text), 9, Duration::ZERO),
                Claim::Granted
            );
        }
        table.begin_full(&source("192.0.2.1"), share, Duration::ZERO);
        let (mut seen, mut from) = (Vec::new(), Some(0));
        while let Some(place) = from {
            from = table.visit(place, 1, share, Duration::ZERO, |held| {
                let address = held.source.address().to_string();
                seen.push((address, held.connections, held.in_flight, held.may_begin));
            });
        }
        let expected = [
            ("192.0.2.1".to_owned(), 1, 1, false),
            ("2001:db8::".to_owned(), 1, 0, true),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_full_table_tracks_no_new_source_until_an_entry_is_idle() {
        let mut table = table(2);
        for text in ["192.0.2.1", "192.0.2.2"] {
            assert_eq!(
                table.connect(&source(text), 9, Duration::ZERO),
                Claim::Granted
            );
        }
        let third = source("192.0.2.3");
        assert_eq!(table.connect(&third, 9, Duration::ZERO), Claim::Untracked);
        table.disconnect(&third);
        table.disconnect(&source("192.0.2.1"));
        assert_eq!(table.connect(&third, 9, Duration::ZERO), Claim::Granted);
        assert_eq!(table.count(), 2);
        table.table.check_invariants();
    }

    #[test]
    fn short_lived_sources_do_not_fill_the_table() {
        let mut table = table(1000);
        for bits in 0..100_000_u32 {
            let one = Prefixes::default().source(IpAddr::V4(bits.into()));
            assert_eq!(table.connect(&one, 1, Duration::ZERO), Claim::Granted);
            table.disconnect(&one);
        }
        assert!(table.count() <= LOOKS, "{}", table.count());
        table.table.check_invariants();
    }

    #[derive(Clone, Copy, Debug)]
    enum Op {
        Connect(u8),
        Disconnect(u8),
        Begin(u8),
        End(u8),
        Wait(u16),
    }

    fn op() -> impl Strategy<Value = Op> {
        let who = 0_u8..6;
        prop_oneof![
            who.clone().prop_map(Op::Connect),
            who.clone().prop_map(Op::Disconnect),
            who.clone().prop_map(Op::Begin),
            who.prop_map(Op::End),
            any::<u16>().prop_map(Op::Wait),
        ]
    }

    /// Model: every source ever seen, never removed.
    #[derive(Default)]
    struct Naive {
        connections: u32,
        in_flight: u32,
        bucket: Bucket,
    }

    fn run(ops: &[Op], limit: usize) -> Result<(), TestCaseError> {
        let mut table = table(limit);
        let mut naive: HashMap<u8, Naive> = HashMap::new();
        let mut now = Duration::from_secs(1);
        let rate = rate(20, 3).unwrap();
        let share = Share {
            rate: Some(rate),
            in_flight: Some(2),
        };
        for op in ops {
            match *op {
                Op::Wait(ms) => now += Duration::from_micros(ms.into()),
                Op::Connect(who) => {
                    let one = naive.entry(who).or_default();
                    let claim = table.connect(&Source(0, who.into()), 2, now);
                    prop_assert!(limit < 6 || claim != Claim::Untracked);
                    if claim != Claim::Untracked {
                        prop_assert_eq!(claim == Claim::Granted, one.connections < 2);
                    }
                    one.connections += u32::from(claim == Claim::Granted);
                }
                Op::Begin(who) => {
                    let one = naive.entry(who).or_default();
                    let next = rate.take(one.bucket, now).filter(|_| one.in_flight < 2);
                    let may = table.may_begin(&Source(0, who.into()), share, now);
                    let claim = table.begin_full(&Source(0, who.into()), share, now);
                    if claim != Claim::Untracked {
                        prop_assert_eq!(claim == Claim::Granted, next.is_some());
                        prop_assert_eq!(claim == Claim::Granted, may);
                    }
                    if claim == Claim::Granted {
                        one.bucket = next.unwrap_or_default();
                        one.in_flight += 1;
                    }
                }
                Op::Disconnect(who) => {
                    let one = naive.entry(who).or_default();
                    if one.connections > 0 {
                        one.connections -= 1;
                        table.disconnect(&Source(0, who.into()));
                    }
                }
                Op::End(who) => {
                    let one = naive.entry(who).or_default();
                    if one.in_flight > 0 {
                        one.in_flight -= 1;
                        table.end_full(&Source(0, who.into()));
                    }
                }
            }
            prop_assert!(table.count() <= limit);
            table.table.check_invariants();
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn a_large_table_grants_the_same_as_an_unbounded_table(ops in proptest::collection::vec(op(), 1..300)) {
            run(&ops, 6)?;
        }

        #[test]
        fn a_small_table_is_exact_for_tracked_sources(ops in proptest::collection::vec(op(), 1..300)) {
            run(&ops, 3)?;
        }
    }
}
