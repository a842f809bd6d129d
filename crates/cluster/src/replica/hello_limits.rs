//! Limits the rate of HELLOs, so that a flood is rejected before the cost of decryption and of an X25519 key agreement.
//!
//! Each source address has a rate limit. All addresses outside the list of peers also share one limit, so that a flood
//! from forged addresses does not block listed peers. The number of recorded sources is limited: a new source replaces
//! the one that has been idle longest, and only an admitted HELLO adds a source.

use std::net::IpAddr;
use std::time::Duration;

use super::limits::ReplicaLimits;
use super::pace::Pace;

pub(super) struct HelloLimits {
    all: Pace,
    sources: Vec<HelloSource>,
}

struct HelloSource {
    prefix: IpAddr,
    pace: Pace,
    used: Duration,
}

impl HelloLimits {
    pub(super) fn new(limits: &ReplicaLimits) -> Self {
        Self {
            all: Pace::new(limits.hellos_per_second.into(), BURST),
            sources: Vec::new(),
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
        let known = self
            .sources
            .iter()
            .position(|source| source.prefix == prefix);
        let refused = known
            .and_then(|at| self.sources.get(at))
            .is_some_and(|source| !source.pace.ready(now));
        if refused || !(listed || self.all.ready(now)) {
            return false;
        }
        if !listed {
            self.all.charge(now, 1);
        }
        let at = known.unwrap_or_else(|| self.remember(prefix, limits));
        if let Some(source) = self.sources.get_mut(at) {
            source.pace.charge(now, 1);
            source.used = now;
        }
        true
    }

    fn remember(&mut self, prefix: IpAddr, limits: &ReplicaLimits) -> usize {
        let source = HelloSource {
            prefix,
            pace: Pace::new(limits.hellos_per_source.into(), BURST),
            used: Duration::ZERO,
        };
        if self.sources.len() < SOURCES {
            self.sources.push(source);
            return self.sources.len() - 1;
        }
        let quiet = (0..self.sources.len())
            .min_by_key(|at| self.sources[*at].used)
            .unwrap_or(0);
        self.sources[quiet] = source;
        quiet
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
/// do not evict each other, and is small enough for a linear search per HELLO.
const SOURCES: usize = 512;

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
        assert_eq!(hello_limits.sources.len(), SOURCES);
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
