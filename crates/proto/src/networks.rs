//! Sets of networks: allowed, denied or trusted clients.
//!
//! A [`Network`] is an address with a prefix length, in the usual notation (`10.0.0.0/8`, `2001:db8::/32`, or a single
//! address). A [`Networks`] is a set of them, stored as sorted ranges that do not touch. So a lookup is one binary
//! search, and the listed order does not matter.
//!
//! IPv4 and IPv6 are separate: `::/0` contains no IPv4 address. An IPv4-mapped IPv6 address (`::ffff:192.0.2.1`, RFC
//! 4291 section 2.5.5.2) counts as IPv4.
//!
//! Source: RFC 4632 section 3.1 (IPv4 prefixes), RFC 4291 section 2.3 (IPv6 prefixes).

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    address: IpAddr,
    length: u8,
}

impl Network {
    /// Returns the network of `length` bits that contains `address`, with the host bits cleared. Returns `None` if the
    /// address family has fewer than `length` bits.
    pub fn around(address: IpAddr, length: u8) -> Option<Self> {
        let address = address.to_canonical();
        let hosts = host_bits(address, length)?;
        let address = match address {
            IpAddr::V4(v4) => IpAddr::V4((v4.to_bits() & !(hosts as u32)).into()),
            IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() & !hosts).into()),
        };
        Some(Self { address, length })
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        Self::around(address, self.length) == Some(*self)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotNetwork {
    /// The part before the slash is not an address.
    #[error("not an IP address")]
    Address,
    /// The part after the slash is not a valid prefix length of the address family.
    #[error("invalid prefix length")]
    Length,
    /// Host bits are set, so either the address or the length is a mistake.
    #[error("host bits are set; the network is {0}")]
    Bits(Network),
}

impl FromStr for Network {
    type Err = NotNetwork;

    fn from_str(text: &str) -> Result<Self, NotNetwork> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NotNetwork::Address)?;
        if address.to_canonical() != address {
            // Rejects IPv4-mapped addresses, because their prefix length would count bits of the
            // IPv6 form.
            return Err(NotNetwork::Address);
        }
        let whole = if address.is_ipv4() { 32 } else { 128 };
        let length = match length {
            None => whole,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().map_err(|_| NotNetwork::Length)?
            }
            Some(_) => return Err(NotNetwork::Length),
        };
        let network = Self::around(address, length).ok_or(NotNetwork::Length)?;
        if network.address == address {
            Ok(network)
        } else {
            Err(NotNetwork::Bits(network))
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks {
    /// First and last address of each range, ascending, with gaps between them.
    v4: Vec<(u32, u32)>,
    v6: Vec<(u128, u128)>,
}

impl Networks {
    pub fn contains(&self, address: IpAddr) -> bool {
        match address.to_canonical() {
            IpAddr::V4(v4) => covers(&self.v4, v4.to_bits()),
            IpAddr::V6(v6) => covers(&self.v6, v6.to_bits()),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }
}

impl FromIterator<Network> for Networks {
    fn from_iter<I: IntoIterator<Item = Network>>(networks: I) -> Self {
        let mut set = Self::default();
        for Network { address, length } in networks {
            let hosts = host_bits(address, length).unwrap_or(0);
            match address {
                IpAddr::V4(v4) => set.v4.push((v4.to_bits(), v4.to_bits() | hosts as u32)),
                IpAddr::V6(v6) => set.v6.push((v6.to_bits(), v6.to_bits() | hosts)),
            }
        }
        set.v4 = merged(set.v4, |last| last.checked_add(1));
        set.v6 = merged(set.v6, |last| last.checked_add(1));
        set
    }
}

/// Returns the mask of the bits behind the prefix, or `None` if the address family has fewer than `length` bits.
fn host_bits(address: IpAddr, length: u8) -> Option<u128> {
    let width: u32 = if address.is_ipv4() { 32 } else { 128 };
    let count = width.checked_sub(length.into())?;
    Some(u128::MAX.checked_shr(128 - count).unwrap_or(0))
}

/// Sorts ranges and joins overlapping or adjacent ones.
fn merged<T: Ord + Copy>(mut ranges: Vec<(T, T)>, next: impl Fn(T) -> Option<T>) -> Vec<(T, T)> {
    ranges.sort_unstable();
    let mut out: Vec<(T, T)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match out.last_mut() {
            Some((_, end)) if next(*end).is_none_or(|after| first <= after) => {
                *end = (*end).max(last);
            }
            _ => out.push((first, last)),
        }
    }
    out
}

fn covers<T: Ord + Copy>(ranges: &[(T, T)], address: T) -> bool {
    let before = ranges.partition_point(|(first, _)| *first <= address);
    let at = before.checked_sub(1).and_then(|index| ranges.get(index));
    at.is_some_and(|(_, last)| address <= *last)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn network(text: &str) -> Network {
        text.parse()
            .unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn set(texts: &[&str]) -> Networks {
        texts.iter().map(|text| network(text)).collect()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn networks_are_parsed_and_printed_in_cidr_notation() {
        for text in [
            "10.0.0.0/8",
            "0.0.0.0/0",
            "192.0.2.1/32",
            "2001:db8::/32",
            "::/0",
        ] {
            assert_eq!(network(text).to_string(), text);
        }
        assert_eq!(network("192.0.2.1").to_string(), "192.0.2.1/32");
        assert_eq!(network("2001:db8::1").to_string(), "2001:db8::1/128");
    }

    #[test]
    fn invalid_networks_are_rejected_with_the_cause() {
        for text in [
            "",
            "/8",
            "10.0.0/8",
            "localhost",
            "::ffff:192.0.2.0/120",
            "[::1]/128",
        ] {
            assert_eq!(text.parse::<Network>(), Err(NotNetwork::Address), "{text}");
        }
        for text in [
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "::/129",
            "::/256",
            "10.0.0.0/8/8",
        ] {
            assert_eq!(text.parse::<Network>(), Err(NotNetwork::Length), "{text}");
        }
        let meant = network("10.0.0.0/8");
        assert_eq!(
            "10.1.0.0/8".parse::<Network>(),
            Err(NotNetwork::Bits(meant))
        );
    }

    #[test]
    fn address_families_are_separate_and_mapped_addresses_are_ipv4() {
        let (v4, v6) = (set(&["0.0.0.0/0"]), set(&["::/0"]));
        for (address, is_v4) in [
            ("192.0.2.1", true),
            ("2001:db8::1", false),
            ("::ffff:192.0.2.1", true),
        ] {
            assert_eq!(v4.contains(ip(address)), is_v4, "{address}");
            assert_eq!(v6.contains(ip(address)), !is_v4, "{address}");
        }
    }

    #[test]
    fn adjacent_networks_are_merged() {
        assert_eq!(
            set(&["10.1.0.0/16", "10.0.0.0/16", "10.0.3.0/24"]),
            set(&["10.0.0.0/15"])
        );
        assert_eq!(set(&["128.0.0.0/1", "0.0.0.0/1"]), set(&["0.0.0.0/0"]));
    }

    /// Addresses close together, so that networks contain them.
    fn address() -> impl Strategy<Value = IpAddr> {
        let v4 = any::<u32>().prop_map(|bits| IpAddr::V4((0xc000_0200 | bits & 0x3ff).into()));
        let near = any::<u128>().prop_map(|bits| IpAddr::V6((1 << 127 | bits & 0xfff).into()));
        prop_oneof![v4, near, any::<IpAddr>()]
    }

    proptest! {
        #[test]
        fn a_set_contains_the_addresses_of_its_networks(
            parts in proptest::collection::vec((address(), 0_u8..=128), 0..12),
            asked in proptest::collection::vec(address(), 1..40),
        ) {
            let networks: Vec<Network> =
                parts.iter().filter_map(|(address, length)| Network::around(*address, *length)).collect();
            let set: Networks = networks.iter().copied().collect();
            for address in asked.into_iter().chain(parts.into_iter().map(|(address, _)| address)) {
                let naive = networks.iter().any(|network| naive(network, address));
                prop_assert_eq!(set.contains(address), naive);
                prop_assert_eq!(networks.iter().any(|network| network.contains(address)), naive);
            }
        }

        #[test]
        fn a_printed_network_parses_to_itself(address in any::<IpAddr>(), length in 0_u8..=128) {
            if let Some(network) = Network::around(address, length) {
                prop_assert_eq!(network.to_string().parse(), Ok(network));
            }
        }
    }

    /// Compares bit by bit.
    fn naive(network: &Network, address: IpAddr) -> bool {
        let (own, other) = (bits(network.address), bits(address.to_canonical()));
        let length = usize::from(network.length);
        own.len() == other.len() && own[..length] == other[..length]
    }

    fn bits(address: IpAddr) -> Vec<bool> {
        let bytes = match address {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        let of = |byte: u8| (0..8).rev().map(move |bit| byte >> bit & 1 == 1);
        bytes.into_iter().flat_map(of).collect()
    }
}
