//! Returning clients: the host that ECMP selects, and whether that host can resume the session.
//!
//! Each client visits, pauses and returns. A time is a whole number of seconds, so that equal seeds give equal results on
//! every machine. One host leaves, joins or all restart one after the other. Datagrams are not lost, tables are not
//! full, and a host that restarts loses its memory.

use std::ops::Range;

use fastrand::Rng;
use serde::Serialize;

/// Resumption in one fleet.
#[derive(Debug, Serialize)]
pub(super) struct Returns {
    pub(super) fleet: Fleet,
    /// Share of the counted returns that resumed, 0 to 1, in the order of [`Sharing::ALL`].
    pub(super) resumed: [f64; 5],
    /// Look-ups in the store for each session written to it.
    pub(super) lookups_per_write: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Fleet {
    pub(super) hosts: u64,
    pub(super) hash: Hash,
    pub(super) change: Change,
}

/// Selection of a host by the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum Hash {
    /// Addresses and ports, modulo the number of hosts. Each connection has a new source port.
    Ports,
    /// Address of the client, modulo the number of hosts.
    Modulo,
    /// Address of the client; a change moves only the clients of the changed host.
    Resilient,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum Change {
    None,
    /// A host is lost.
    Leaves,
    Joins,
    /// Each host is replaced in its part of an hour, and out of service in the first half of it.
    Rollout,
}

/// Place of the state that resumes a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    /// Tickets, whose keys all hosts derive from one secret.
    SharedTickets,
    /// Tickets, whose keys each process draws.
    HostTickets,
    /// Session table of each process.
    HostTable,
    /// Session tables, and each new session is sent to up to [`LIVE_PEERS`] peers.
    Udp,
    /// Session tables, and a store that is asked after a local miss.
    Store,
}

/// Session of a client.
#[derive(Clone, Copy)]
struct HeldSession {
    /// Number of the host, and whether it has restarted.
    process: (u64, bool),
    /// Time of the full handshake or, for tickets, of the last renewal.
    since: u64,
}

impl Sharing {
    /// All kinds, with their names.
    pub(super) const ALL: [(Self, &str); 5] = [
        (Self::SharedTickets, "tickets, one secret"),
        (Self::HostTickets, "tickets per host"),
        (Self::HostTable, "table per host"),
        (Self::Udp, "UDP"),
        (Self::Store, "store"),
    ];

    /// Returns whether the host of `now` can resume the session.
    fn resumes(self, held: HeldSession, now: HeldSession, hosts: u64) -> bool {
        let opens = now.since / ROTATION - held.since / ROTATION <= 1;
        let is_stored = now.since - held.since < ID_LIFETIME;
        match self {
            Self::SharedTickets => opens,
            Self::HostTickets => opens && held.process == now.process,
            Self::HostTable => is_stored && held.process == now.process,
            Self::Udp => is_stored && have_equal_tables(held.process.0, now.process.0, hosts),
            Self::Store => is_stored,
        }
    }
}

/// Returns whether two hosts replicate to each other: all in a small fleet, otherwise [`LIVE_PEERS`] by chance.
fn have_equal_tables(one: u64, other: u64, hosts: u64) -> bool {
    let pair = one.min(other) << 32 | one.max(other);
    one == other || mixed(pair, 0) % (hosts - 1) < LIVE_PEERS
}

impl Fleet {
    /// Returns the fleets of `hosts` hosts.
    pub(super) fn of(hosts: u64) -> impl Iterator<Item = Self> {
        let changes = [Change::None, Change::Leaves, Change::Joins, Change::Rollout];
        let hashes = [Hash::Ports, Hash::Modulo, Hash::Resilient];
        let each = move |change| {
            hashes.map(|hash| Self {
                hosts,
                hash,
                change,
            })
        };
        changes.into_iter().flat_map(each)
    }

    /// Simulates `clients` clients. The visits of a client depend only on the seed.
    pub(super) fn returns(self, seed: u64, clients: u64) -> Returns {
        let (mut returned, mut lookups, mut writes) = (0, 0, 0);
        let mut resumed = [0; 5];
        for client in 0..clients {
            let client = mixed(seed, client);
            let mut rng = Rng::with_seed(client);
            let mut sessions: [Option<HeldSession>; 5] = Default::default();
            let (mut last, mut time) = (0, rng.u64(BEGIN..CHANGE));
            while time < END {
                let now = self.visit(client, time);
                let counts = self.counts(last, time);
                returned += u64::from(counts);
                let each = sessions.iter_mut().zip(&mut resumed);
                for ((sharing, _), (session, resumed)) in Sharing::ALL.into_iter().zip(each) {
                    let held = session.filter(|held| sharing.resumes(*held, now, self.hosts));
                    *resumed += u64::from(counts && held.is_some());
                    if counts && sharing == Sharing::Store {
                        lookups +=
                            u64::from(session.is_some_and(|held| held.process != now.process));
                        writes += u64::from(held.is_none());
                    }
                    let is_ticket =
                        matches!(sharing, Sharing::SharedTickets | Sharing::HostTickets);
                    *session = held.filter(|_| !is_ticket).or(Some(now));
                }
                last = time;
                let pauses = rng.choice(PAUSES).unwrap_or(1..2);
                time += rng.u64(pauses);
            }
        }
        let share = |count: u64| count as f64 / (returned as f64).max(1.0);
        Returns {
            fleet: self,
            resumed: resumed.map(share),
            lookups_per_write: lookups as f64 / (writes as f64).max(1.0),
        }
    }

    /// Returns whether a return counts: in the hour of a rollout, otherwise the first within five minutes of the change.
    fn counts(self, last: u64, time: u64) -> bool {
        let begins = last > 0 && time >= CHANGE;
        let first = last < CHANGE && time < CHANGE + ID_LIFETIME;
        begins && (first || self.change == Change::Rollout)
    }

    /// Returns the host that the router selects, as the place of a session.
    fn visit(self, client: u64, time: u64) -> HeldSession {
        let is_after = time >= CHANGE;
        // Counts from the change: a host is replaced in two of these.
        let steps = time.saturating_sub(CHANGE) * 2 * self.hosts / HOUR;
        let absent = match self.change {
            Change::Leaves if is_after => Some(self.hosts / 2),
            Change::Rollout if is_after && steps.is_multiple_of(2) => Some(steps / 2),
            _ => None,
        };
        let joined = self.change == Change::Joins && is_after;
        let hosts = self.hosts + u64::from(joined);
        let serving = hosts - u64::from(absent.is_some());
        let nth = |n: u64| n + u64::from(absent.is_some_and(|absent| n >= absent));
        let host = match self.hash {
            Hash::Ports => nth(mixed(client, time) % serving),
            Hash::Modulo => nth(client % serving),
            Hash::Resilient if joined && mixed(client, 0) % hosts == self.hosts => self.hosts,
            Hash::Resilient => {
                let mut tries = (1..).map(|n| mixed(client, n) % self.hosts);
                tries.find(|host| Some(*host) != absent).unwrap_or(0)
            }
        };
        let restarted = self.change == Change::Rollout && is_after && steps / 2 >= host;
        HeldSession {
            process: (host, restarted),
            since: time,
        }
    }
}

/// Mixes two numbers to a random one (SplitMix64).
fn mixed(number: u64, salt: u64) -> u64 {
    let mut z = number ^ salt.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

const HOUR: u64 = 3600;
/// Default of `cluster.rotation`: 8 h.
const ROTATION: u64 = 8 * HOUR;
/// Default of `sessions.id-lifetime`: 5 min.
const ID_LIFETIME: u64 = 300;
/// `ReplicaLimits::peers` in `crates/cluster`.
pub(super) const LIVE_PEERS: u64 = 64;
/// Begin of the first visits. Ticket keys rotate half an hour later.
const BEGIN: u64 = ROTATION - HOUR / 2;
const CHANGE: u64 = BEGIN + HOUR;
const END: u64 = CHANGE + HOUR;
/// Pauses between two visits in seconds, each range for a quarter of the visits: an assumption.
const PAUSES: [Range<u64>; 4] = [2..30, 30..120, 120..600, 600..7200];

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(hosts: u64, hash: Hash, change: Change, seed: u64) -> [f64; 5] {
        let fleet = Fleet {
            hosts,
            hash,
            change,
        };
        fleet.returns(seed, 4_000).resumed
    }

    #[test]
    fn resumption_with_one_secret_does_not_depend_on_hash_and_change() {
        for seed in 0..3 {
            for hosts in [3, 10, 100] {
                for fleet in Fleet::of(hosts) {
                    assert_eq!(fleet.returns(seed, 500).resumed[0], 1.0, "{fleet:?}");
                }
            }
        }
    }

    #[test]
    fn modulo_hashing_leaves_one_in_n_clients_on_their_host() {
        for (seed, hosts) in [(1, 3), (2, 10), (3, 64)] {
            for (change, larger) in [(Change::Leaves, hosts), (Change::Joins, hosts + 1)] {
                let moved = 1.0 / larger as f64;
                // Three standard errors of about 1000 returns.
                let error = 3.0 * (moved * (1.0 - moved) / 1000.0).sqrt();
                let stays = shares(hosts, Hash::Modulo, change, seed)[1];
                assert!((stays - moved).abs() < error, "{hosts}: {stays}");
                let stays = shares(hosts, Hash::Resilient, change, seed)[1];
                assert!((stays - 1.0 + moved).abs() < error, "{hosts}: {stays}");
            }
        }
    }

    #[test]
    fn without_a_change_a_host_resumes_all_clients_of_an_address() {
        for hash in [Hash::Modulo, Hash::Resilient] {
            let [shared, host, table, udp, store] = shares(10, hash, Change::None, 1);
            assert_eq!((shared, host), (1.0, 1.0));
            assert_eq!((table, udp), (store, store));
        }
        let [_, host, ..] = shares(10, Hash::Ports, Change::None, 1);
        assert!((host - 0.1).abs() < 0.04, "{host}");
    }

    #[test]
    fn udp_replaces_a_store_up_to_its_number_of_peers() {
        for change in [Change::Leaves, Change::Joins, Change::Rollout] {
            let [_, _, _, udp, store] = shares(64, Hash::Ports, change, 1);
            assert_eq!(udp, store);
            let [_, _, table, udp, store] = shares(1000, Hash::Ports, change, 1);
            assert!(table < udp && udp < store / 4.0, "{table} {udp} {store}");
        }
    }

    #[test]
    fn equal_seeds_give_equal_results() {
        let run = |seed| shares(10, Hash::Ports, Change::Rollout, seed);
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }
}
