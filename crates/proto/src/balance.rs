//! Load balancing: chooses the server of a backend for a new connection.
//!
//! For each server, the caller passes its weight, its number of connections, and `true` if the server may be chosen.
//! The result is the index of a server. This module allocates nothing and counts no connections; the caller tracks
//! which servers are in service and which are full (`crates/proxy/src/backend/`). Each choice visits every server once
//! or twice, which takes a few nanoseconds per server.
//!
//! Invariants: a server that is not open or has weight 0 is never chosen; if any other server exists, one is chosen.
//!
//! Sources: smooth weighted round robin as nginx documents it (`ngx_http_upstream_round_robin`: no bursts towards the
//! heavy server); M. Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing" (2001); D. Thaler and C.
//! Ravishankar, "Using Name-Based Mappings to Increase Hit Rates" (1998), with the weights of J. Schindelhauer and G.
//! Schomaker (2005), for the hashes.

use std::net::IpAddr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Number derived from the server's name by [`name_key`], the same in every process.
    pub key: u64,
    pub weight: u32,
    /// Number of current connections.
    pub in_use: u32,
    /// `true` if the server may be chosen now: in service, with a free slot, not tried before.
    pub open: bool,
}

impl Candidate {
    fn is_eligible(&self) -> bool {
        self.open && self.weight > 0
    }

    /// Returns `true` if this server would have fewer connections per weight than `other`, after each of them received
    /// one more connection.
    fn is_lighter(&self, other: &Self) -> bool {
        let after = |server: &Self| u64::from(server.in_use) + 1;
        after(self) * u64::from(other.weight) < after(other) * u64::from(self.weight)
    }
}

/// Smooth weighted round robin. Each server is chosen `weight` times per cycle, evenly spread; the
/// length of a cycle is the sum of all weights.
#[derive(Clone, Debug)]
pub struct Wheel {
    /// Credit of each server, in units of weight. The server with the most credit is chosen next.
    owed: Box<[i64]>,
}

impl Wheel {
    pub fn new(servers: usize) -> Self {
        Self {
            owed: vec![0; servers].into(),
        }
    }

    /// Chooses a server. The candidates must be in the same order at each call.
    pub fn turn(&mut self, candidates: &[Candidate]) -> Option<usize> {
        let mut total = 0;
        let mut best: Option<(usize, i64)> = None;
        for (index, (owed, candidate)) in self.owed.iter_mut().zip(candidates).enumerate() {
            if !candidate.is_eligible() {
                // Drop the credit of an unavailable server. Otherwise it would receive a burst of connections on its
                // return.
                *owed = 0;
                continue;
            }
            let weight = i64::from(candidate.weight);
            total += weight;
            *owed += weight;
            if best.is_none_or(|(_, most)| *owed > most) {
                best = Some((index, *owed));
            }
        }
        let (index, _) = best?;
        if let Some(owed) = self.owed.get_mut(index) {
            *owed -= total;
        }
        Some(index)
    }
}

/// Chooses the server with the fewest connections relative to its weight.
///
/// Among equal servers, chooses the first one in a circular search from index `start`, so a caller
/// that increments `start` alternates between them.
pub fn least_connections(candidates: &[Candidate], start: usize) -> Option<usize> {
    let count = candidates.len();
    let start = start.checked_rem(count)?;
    let mut best: Option<(usize, &Candidate)> = None;
    for index in (start..count).chain(0..start) {
        let Some(candidate) = candidates.get(index).filter(|one| one.is_eligible()) else {
            continue;
        };
        if best.is_none_or(|(_, lightest)| candidate.is_lighter(lightest)) {
            best = Some((index, candidate));
        }
    }
    best.map(|(index, _)| index)
}

/// Draws two different servers at random by weight, and chooses the one with fewer connections for
/// its weight. `random` must be uniform.
pub fn two_choices(candidates: &[Candidate], random: u64) -> Option<usize> {
    let one = draw(candidates, None, random as u32)?;
    let Some(other) = draw(candidates, Some(one), (random >> 32) as u32) else {
        return Some(one);
    };
    let (first, second) = (candidates.get(one)?, candidates.get(other)?);
    Some(if second.is_lighter(first) { other } else { one })
}

/// Draws a server at random by weight from the eligible servers except `without`.
fn draw(candidates: &[Candidate], without: Option<usize>, random: u32) -> Option<usize> {
    let takes_part = |(index, candidate): &(usize, &Candidate)| {
        candidate.is_eligible() && Some(*index) != without
    };
    let all = || candidates.iter().enumerate().filter(takes_part);
    let total: u64 = all()
        .map(|(_, candidate)| u64::from(candidate.weight))
        .sum();
    // Maps `random` to a number below `total`. The probability of each value is off by less than
    // 2^-32.
    let mut mark = ((u128::from(random) * u128::from(total)) >> 32) as u64;
    all().find_map(|(index, candidate)| {
        let weight = u64::from(candidate.weight);
        if mark < weight {
            return Some(index);
        }
        mark -= weight;
        None
    })
}

/// Chooses the first eligible server, so one server is filled before the next is used.
pub fn first(candidates: &[Candidate]) -> Option<usize> {
    candidates.iter().position(Candidate::is_eligible)
}

/// Rendezvous hash: maps a `key` to the same server for as long as that server is eligible.
///
/// When a server becomes ineligible, only its keys move, to the other servers in proportion to
/// their weights. When a weight changes, only the keys that the change requires move.
pub fn rendezvous(candidates: &[Candidate], key: u64) -> Option<usize> {
    let mut eligible = candidates.iter().filter(|one| one.is_eligible());
    let weight = eligible.next()?.weight;
    // The logarithm is monotone, so with equal weights the hashes alone give the same order.
    let alike = eligible.all(|one| one.weight == weight);
    let mut best: Option<(usize, f64, u64)> = None;
    for (index, candidate) in candidates.iter().enumerate() {
        if !candidate.is_eligible() {
            continue;
        }
        let hash = mix(key ^ mix(candidate.key));
        let score = if alike {
            0.0
        } else {
            score(hash, candidate.weight)
        };
        if best.is_none_or(|(_, most, highest)| score > most || (score == most && hash > highest)) {
            best = Some((index, score, hash));
        }
    }
    best.map(|(index, ..)| index)
}

/// Returns the logarithm of a uniform number in (0, 1], divided by the weight. The probability of
/// the highest score is proportional to the weight.
fn score(hash: u64, weight: u32) -> f64 {
    let uniform = (hash as f64 + 1.0) / (u64::MAX as f64 + 1.0);
    uniform.ln() / f64::from(weight)
}

/// Hashes a name to a number that is the same in every process and version: FNV-1a, then [`mix`].
pub fn name_key(name: &str) -> u64 {
    mix(name.bytes().fold(FNV_OFFSET, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME)
    }))
}

/// Hashes an address to a number that is the same in every process and version. An IPv4-mapped IPv6
/// address (RFC 4291, section 2.5.5.2) counts as IPv4.
pub fn address_key(address: IpAddr) -> u64 {
    match address.to_canonical() {
        IpAddr::V4(v4) => mix(u64::from(v4.to_bits())),
        IpAddr::V6(v6) => {
            let bits = v6.to_bits();
            mix(mix((bits >> 64) as u64).wrapping_add(bits as u64))
        }
    }
}

/// Mixes 64 bits so that each output bit depends on all input bits: the finalizer of SplitMix64
/// (Steele, Lea, Flood, 2014).
pub fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Parameters of FNV-1a with 64 bits (G. Fowler, L. C. Noll, K.-P. Vo).
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn servers(weights: &[u32]) -> Vec<Candidate> {
        let server = |(index, weight): (usize, &u32)| Candidate {
            key: name_key(&format!("server-{index}")),
            weight: *weight,
            in_use: 0,
            open: true,
        };
        weights.iter().enumerate().map(server).collect()
    }

    fn shares(servers: &[Candidate], picks: impl Iterator<Item = Option<usize>>) -> Vec<usize> {
        let mut shares = vec![0; servers.len()];
        picks.for_each(|pick| shares[pick.unwrap()] += 1);
        shares
    }

    #[test]
    fn a_server_that_returns_is_not_flooded() {
        let mut servers = servers(&[1, 1]);
        let mut wheel = Wheel::new(2);
        servers[1].open = false;
        assert!((0..100).all(|_| wheel.turn(&servers) == Some(0)));
        servers[1].open = true;
        let row: Vec<_> = (0..4).map(|_| wheel.turn(&servers).unwrap()).collect();
        assert_eq!(row.iter().filter(|pick| **pick == 1).count(), 2, "{row:?}");
    }

    #[test]
    fn least_connections_honours_weights_and_spreads_equals() {
        let mut servers = servers(&[1, 2, 1]);
        let row: Vec<_> = (0..8)
            .map(|start| {
                let pick = least_connections(&servers, start).unwrap();
                servers[pick].in_use += 1;
                pick
            })
            .collect();
        assert_eq!(shares(&servers, row.into_iter().map(Some)), [2, 4, 2]);
        let idle = self::servers(&[1, 1, 1]);
        let row: Vec<_> = (0..3)
            .map(|start| least_connections(&idle, start))
            .collect();
        assert_eq!(row, [Some(0), Some(1), Some(2)]);
    }

    #[test]
    fn two_choices_draw_by_weight_and_avoid_the_busy_one() {
        let mut servers = servers(&[1, 1, 2]);
        let randoms = |n: u64| (0..n).map(mix);
        let row = randoms(40_000).map(|random| draw(&servers, None, random as u32));
        let drawn = shares(&servers, row);
        for (share, weight) in drawn.iter().zip([1, 1, 2]) {
            assert!(share.abs_diff(10_000 * weight) < 500, "{drawn:?}");
        }
        servers[2].in_use = 1000;
        let picks = randoms(1000).map(|random| two_choices(&servers, random));
        let chosen = shares(&servers, picks);
        assert_eq!(chosen[2], 0, "the other of the two is always less busy");
    }

    #[test]
    fn removing_a_server_moves_only_its_own_keys() {
        for weights in [[1; 8], [1, 2, 3, 4, 5, 6, 7, 8]] {
            let mut servers = servers(&weights);
            let keys: Vec<u64> = (0..20_000).map(mix).collect();
            let before: Vec<_> = keys.iter().map(|key| rendezvous(&servers, *key)).collect();
            servers[3].open = false;
            let mut moved = 0;
            for (key, before) in keys.iter().zip(before) {
                let after = rendezvous(&servers, *key);
                if before == Some(3) {
                    moved += 1;
                } else {
                    assert_eq!(after, before);
                }
            }
            let sum: u32 = weights.iter().sum();
            let share = 20_000 * weights[3] / sum;
            assert!(share.abs_diff(moved) < share / 8, "{moved} of {share}");
        }
    }

    #[test]
    fn the_hash_honours_weights_and_moves_only_the_difference() {
        let even = servers(&[4, 4, 4]);
        let heavy = servers(&[4, 4, 8]);
        let keys = || (0..40_000).map(mix);
        let row = shares(&heavy, keys().map(|key| rendezvous(&heavy, key)));
        for (share, part) in row.iter().zip([10_000, 10_000, 20_000_usize]) {
            assert!(share.abs_diff(part) < 600, "{row:?}");
        }
        for key in keys() {
            let (before, after) = (rendezvous(&even, key), rendezvous(&heavy, key));
            assert!(before == after || after == Some(2));
        }
    }

    #[test]
    fn hash_keys_are_stable_across_versions() {
        assert_eq!(name_key("127.0.0.1:8080"), 0x6b7a_3151_01c1_0419);
        let v4 = address_key("192.0.2.1".parse().unwrap());
        assert_eq!(v4, address_key("::ffff:192.0.2.1".parse().unwrap()));
        let v6 = |text: &str| address_key(text.parse().unwrap());
        assert_ne!(v6("2001:db8::1"), v6("2001:db8::2"));
        assert_ne!(v6("2001:db8:1::1"), v6("2001:db8:2::1"));
    }

    fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
        let one = (any::<u64>(), 0..300_u32, 0..1000_u32, any::<bool>());
        let one = one.prop_map(|(key, weight, in_use, open)| Candidate {
            key,
            weight,
            in_use,
            open,
        });
        prop::collection::vec(one, 0..20)
    }

    proptest! {
        #[test]
        fn every_algorithm_selects_an_eligible_server_if_there_is_one(
            candidates in candidates(),
            random: u64,
        ) {
            let some = candidates.iter().any(Candidate::is_eligible);
            let mut wheel = Wheel::new(candidates.len());
            for pick in [
                wheel.turn(&candidates),
                wheel.turn(&candidates),
                least_connections(&candidates, random as usize),
                two_choices(&candidates, random),
                first(&candidates),
                rendezvous(&candidates, random),
            ] {
                prop_assert_eq!(pick.is_some(), some);
                prop_assert!(pick.is_none_or(|index| candidates[index].is_eligible()));
            }
        }

        #[test]
        fn a_full_turn_of_the_wheel_selects_each_server_by_its_weight(
            weights in prop::collection::vec(0..40_u32, 1..12),
        ) {
            let servers = servers(&weights);
            let mut wheel = Wheel::new(servers.len());
            let sum: u32 = weights.iter().sum();
            let picks: Vec<_> = (0..sum).map(|_| wheel.turn(&servers)).collect();
            let shares = shares(&servers, picks.into_iter());
            let expected: Vec<usize> = weights.iter().map(|weight| *weight as usize).collect();
            prop_assert_eq!(shares, expected);
        }

        #[test]
        fn least_connections_selects_the_server_with_the_lowest_cost(candidates in candidates(), start: usize) {
            let cost = |one: &Candidate| f64::from(one.in_use + 1) / f64::from(one.weight);
            let eligible = candidates.iter().filter(|one| one.is_eligible());
            let least = eligible.map(cost).fold(f64::INFINITY, f64::min);
            if let Some(pick) = least_connections(&candidates, start) {
                prop_assert!(cost(&candidates[pick]) <= least * (1.0 + 1e-12));
            }
        }
    }
}
