//! Limits the rate of HELLOs, so that a flood is rejected before the cost of decryption and of an X25519 key agreement.
//!
//! Each source address has a rate limit. All addresses outside the list of peers also share one limit, so that a flood
//! from forged addresses does not block listed peers. The number of recorded sources is limited: a new source replaces
//! the one that has been idle longest, and only an admitted HELLO adds a source.

use std::hash::RandomState;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::time::Duration;

use lru::LruCache;

use super::limits::ReplicaLimits;
use super::pace::Pace;

pub(super) struct HelloLimits {
    all: Pace,
    /// Rate of each source, by address or network. The hash is keyed, because peers choose addresses.
    sources: LruCache<IpAddr, Pace, RandomState>,
}

impl HelloLimits {
    pub(super) fn new(limits: &ReplicaLimits) -> Self {
        Self {
            all: Pace::new(limits.hellos_per_second.into(), BURST),
            sources: LruCache::with_hasher(SOURCES, RandomState::new()),
        }
    }

    /// Returns whether a HELLO from this address may be decrypted. Counts an admitted HELLO.
    pub(super) fn admits(
        &mut self,
        from: IpAddr,
        listed: bool,
        limits: &ReplicaLimits,
        now: Duration,
    ) -> bool {
        // Limits a listed peer by its full address, so that another host of its network cannot use up its
        // allowance.
        let prefix = if listed { from } else { prefix(from) };
        let known = self.sources.peek(&prefix);
        let refused = known.is_some_and(|pace| !pace.ready(now));
        if refused || !(listed || self.all.ready(now)) {
            return false;
        }
        if !listed {
            self.all.charge(now, 1);
        }
        let new = || Pace::new(limits.hellos_per_source.into(), BURST);
        self.sources.get_or_insert_mut(prefix, new).charge(now, 1);
        true
    }
}

/// Returns the /64 network of an IPv6 address, because a host can choose any address within it.
/// Returns IPv4 addresses unchanged.
fn prefix(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => {
            let bits = u128::from(address) >> 64 << 64;
            IpAddr::V6(bits.into())
        }
    }
}

/// Maximum number of recorded sources. It exceeds the number of listed addresses, so that HELLOs with listed addresses
/// do not evict each other.
const SOURCES: NonZeroUsize = NonZeroUsize::new(512).unwrap();

/// Burst of the rate limits. A starting node receives HELLOs from each of its peers, possibly from
/// several addresses.
const BURST: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    fn limits() -> ReplicaLimits {
        ReplicaLimits {
            hellos_per_second: 20,
            hellos_per_source: 4,
            ..ReplicaLimits::default()
        }
    }

    fn address(number: u32) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from_bits(number))
    }

    #[test]
    fn each_source_has_its_own_rate_and_recovers() {
        let mut hello_limits = HelloLimits::new(&limits());
        let admitted = |hello_limits: &mut HelloLimits, now| {
            (0..100)
                .filter(|_| hello_limits.admits(address(1), true, &limits(), now))
                .count()
        };
        assert_eq!(admitted(&mut hello_limits, NOW), 5);
        assert_eq!(
            admitted(&mut hello_limits, NOW + Duration::from_millis(250)),
            1
        );
    }

    #[test]
    fn a_flood_from_spoofed_addresses_does_not_block_a_listed_peer() {
        let mut hello_limits = HelloLimits::new(&limits());
        let admitted = (10..100_000)
            .filter(|number| hello_limits.admits(address(*number), false, &limits(), NOW))
            .count();
        assert_eq!(admitted, 21);
        assert!(!hello_limits.admits(address(2), false, &limits(), NOW));
        assert!(hello_limits.admits(address(1), true, &limits(), NOW));
    }

    #[test]
    fn memory_for_sources_is_bounded() {
        let mut hello_limits = HelloLimits::new(&limits());
        for number in 0..10_000 {
            assert!(hello_limits.admits(address(number), true, &limits(), NOW));
        }
        assert_eq!(hello_limits.sources.len(), SOURCES.get());
    }

    #[test]
    fn addresses_of_one_ipv6_network_share_a_rate() {
        let mut hello_limits = HelloLimits::new(&limits());
        let admitted = (0..100_u128)
            .filter(|host| {
                let address = Ipv6Addr::from_bits(0x2001_0db8 << 96 | host);
                hello_limits.admits(IpAddr::V6(address), false, &limits(), NOW)
            })
            .count();
        assert_eq!(admitted, 5);
    }

    #[test]
    fn a_listed_peer_has_a_separate_rate_from_its_network() {
        let mut hello_limits = HelloLimits::new(&limits());
        let host = |host: u128| IpAddr::V6(Ipv6Addr::from_bits(0x2001_0db8 << 96 | host));
        let admitted =
            (100..200).filter(|at| hello_limits.admits(host(*at), false, &limits(), NOW));
        assert_eq!(admitted.count(), 5);
        assert!(hello_limits.admits(host(1), true, &limits(), NOW));
        assert!(hello_limits.admits(host(2), true, &limits(), NOW));
    }

    #[test]
    fn the_rate_holds_per_listed_address_even_if_all_are_spoofed() {
        let mut hello_limits = HelloLimits::new(&limits());
        let listed = ReplicaLimits::default().addresses as u32;
        let admitted = |hello_limits: &mut HelloLimits| {
            (0..listed)
                .filter(|number| hello_limits.admits(address(*number), true, &limits(), NOW))
                .count()
        };
        let all: usize = (0..20).map(|_| admitted(&mut hello_limits)).sum();
        assert_eq!(all, 5 * listed as usize);
    }
}
