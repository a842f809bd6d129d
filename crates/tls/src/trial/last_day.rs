//! What a trial remembers: how many clients of the last day passed, and what those that did not have in common.
//!
//! A client that passes costs one atomic number. For one that does not a lock is taken, and it is counted by name, fingerprint and
//! network, in tables of [`ROWS`] rows for each of the last [`HOURS`] hours. Sums are exact; a client that makes up names fills
//! rows and never adds one. A new process begins with none.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use becket_proto::heavy_hitters::HeavyHitters;
use becket_proto::networks::Network;
use serde::Serialize;

use super::{TrialOutcome, TriedClient};
use crate::ja4::Ja4;

/// The last day of a trial.
#[derive(Debug, Serialize)]
pub struct TrialReport {
    policy: String,
    clients: u64,
    passed: u64,
    /// Those that did not pass, by outcome.
    failed: BTreeMap<&'static str, u64>,
    names: Vec<TrialRow>,
    ja4: Vec<TrialRow>,
    networks: Vec<TrialRow>,
}

/// Clients that did not pass and have something in common.
#[derive(Debug, PartialEq, Serialize)]
struct TrialRow {
    of: String,
    clients: u64,
    /// How many of them may be others.
    error: u64,
}

#[derive(Debug, Default)]
pub(super) struct LastDay {
    /// By hour, modulo [`HOURS`]: the hour's number in the upper bits, in the others how many passed.
    passed: [AtomicU64; HOURS as usize],
    failed: Mutex<Vec<Hour>>,
}

/// Clients of one hour that did not pass.
#[derive(Clone, Debug)]
struct Hour {
    number: u64,
    outcomes: [u64; TrialOutcome::ALL.len()],
    names: HeavyHitters<String>,
    ja4s: HeavyHitters<Option<Ja4>>,
    networks: HeavyHitters<Network>,
}

impl LastDay {
    /// Counts a client that passed. `now` is of the monotonic clock, here as elsewhere.
    pub(super) fn pass(&self, now: Duration) {
        let number = hour(now);
        let add = |count: u64| {
            let is_of_now = count >> COUNT_BITS == number;
            Some(
                1 + if is_of_now {
                    count
                } else {
                    number << COUNT_BITS
                },
            )
        };
        let place = &self.passed[(number % HOURS) as usize];
        // The closure always has a value.
        let _before = place.fetch_update(Relaxed, Relaxed, add);
    }

    /// Counts a client that did not pass.
    pub(super) fn fail(
        &self,
        outcome: TrialOutcome,
        client: TriedClient<'_>,
        ja4: Option<Ja4>,
        now: Duration,
    ) {
        let number = hour(now);
        let mut hours = self.lock();
        let place = hours.iter().position(|it| it.number == number);
        let place = place.unwrap_or_else(|| {
            // Another worker may be an hour ahead.
            hours.retain(|it| it.number + HOURS > number);
            hours.push(Hour::new(number));
            hours.len() - 1
        });
        hours[place].add(outcome, client, ja4);
    }

    /// This hour and the 23 before; of each table the first `most` rows.
    pub(super) fn report(&self, policy: &str, most: usize, now: Duration) -> TrialReport {
        let now = hour(now);
        let is_recent = |number: u64| number + HOURS > now;
        let passed = self.passed.iter().map(|it| it.load(Relaxed));
        let passed = passed.filter(|it| is_recent(it >> COUNT_BITS));
        let passed: u64 = passed.map(|it| it & COUNT).sum();
        // A copy: no worker waits until the report is made.
        let mut hours = self.lock().clone();
        hours.retain(|it| is_recent(it.number));
        let count = |outcome: TrialOutcome| -> u64 {
            hours.iter().map(|it| it.outcomes[outcome as usize]).sum()
        };
        let failed = TrialOutcome::ALL.map(|outcome| (outcome.label(), count(outcome)));
        let failed: BTreeMap<_, _> = failed.into_iter().filter(|(_, count)| *count > 0).collect();
        TrialReport {
            policy: policy.to_owned(),
            clients: passed + failed.values().sum::<u64>(),
            passed,
            failed,
            names: rows(hours.iter().map(|it| &it.names), most, String::clone),
            ja4: rows(hours.iter().map(|it| &it.ja4s), most, ja4_text),
            networks: rows(
                hours.iter().map(|it| &it.networks),
                most,
                Network::to_string,
            ),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Hour>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hour {
    fn new(number: u64) -> Self {
        Self {
            number,
            outcomes: Default::default(),
            names: HeavyHitters::new(ROWS),
            ja4s: HeavyHitters::new(ROWS),
            networks: HeavyHitters::new(ROWS),
        }
    }

    fn add(&mut self, outcome: TrialOutcome, client: TriedClient<'_>, ja4: Option<Ja4>) {
        self.outcomes[outcome as usize] += 1;
        self.names.count(client.name.unwrap_or(NONE));
        self.ja4s.count(&ja4);
        let length = match client.address.to_canonical() {
            IpAddr::V4(_) => 24,
            IpAddr::V6(_) => 48,
        };
        if let Some(network) = Network::around(client.address, length) {
            self.networks.count(&network);
        }
    }
}

/// The number of the hour on the monotonic clock.
fn hour(now: Duration) -> u64 {
    now.as_secs() / 3600
}

fn ja4_text(ja4: &Option<Ja4>) -> String {
    ja4.map_or_else(|| NONE.to_owned(), |it| it.to_string())
}

/// The tables of several hours as one, most clients first.
fn rows<'a, K: 'a>(
    tables: impl Iterator<Item = &'a HeavyHitters<K>>,
    most: usize,
    text: impl Fn(&K) -> String,
) -> Vec<TrialRow> {
    let mut sums: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for hitter in tables.flat_map(HeavyHitters::iter) {
        let (clients, error) = sums.entry(text(&hitter.key)).or_default();
        *clients += hitter.count;
        *error += hitter.error;
    }
    let each = sums
        .into_iter()
        .map(|(of, (clients, error))| TrialRow { of, clients, error });
    let mut rows: Vec<TrialRow> = each.collect();
    rows.sort_by_key(|row| Reverse(row.clients));
    rows.truncate(most);
    rows
}

/// What a report looks back on.
const HOURS: u64 = 24;
/// Rows of each table of an hour: with 24 hours and three tables at most 0.7 MB for a policy, where every name has 253 letters.
const ROWS: usize = 64;
/// Enough to count 300 000 clients a millisecond for an hour, and for the hours of 1900 years.
const COUNT_BITS: u32 = 40;
const COUNT: u64 = (1 << COUNT_BITS) - 1;
/// Stands for clients without a name that a certificate has, or without a fingerprint. Neither a name nor a fingerprint.
const NONE: &str = "(none)";

#[cfg(test)]
mod tests {
    use super::*;

    fn client(name: Option<&'static str>) -> TriedClient<'static> {
        TriedClient {
            name,
            address: [192, 0, 2, 7].into(),
        }
    }

    fn at(hour: u64) -> Duration {
        Duration::from_secs(hour * 3600)
    }

    #[test]
    fn a_report_is_of_the_last_day_and_its_sums_are_exact() {
        let day = LastDay::default();
        for hour in 0..100 {
            day.pass(at(hour));
            for _ in 0..2 {
                day.fail(TrialOutcome::Suite, client(Some("a.test")), None, at(hour));
            }
        }
        for number in 0..1000_u32 {
            let tried = TriedClient {
                address: IpAddr::from((number << 8).to_be_bytes()),
                ..client(None)
            };
            day.fail(TrialOutcome::Group, tried, None, at(99));
        }
        let report = day.report("web", 1000, at(99));
        assert_eq!((report.clients, report.passed), (24 + 48 + 1000, 24));
        assert_eq!(
            report.failed,
            BTreeMap::from([("group", 1000), ("suite", 48)])
        );
        for table in [&report.names, &report.ja4, &report.networks] {
            assert_eq!(table.iter().map(|row| row.clients).sum::<u64>(), 1048);
            assert!(table.len() <= ROWS * HOURS as usize);
        }
        assert_eq!(report.names[0].of, NONE);
        assert_eq!(report.names[1].clients, 48);
        assert_eq!(day.report("web", 1, at(99)).networks.len(), 1);
        let later = day.report("web", 9, at(99 + HOURS));
        assert_eq!((later.clients, later.names.len()), (0, 0));
    }

    #[test]
    fn a_worker_that_is_behind_takes_nothing_from_the_hour_that_has_begun() {
        let day = LastDay::default();
        for hour in [7, 6, 7] {
            day.fail(TrialOutcome::Version, client(None), None, at(hour));
        }
        assert_eq!(day.report("web", 9, at(7)).clients, 3);
    }

    #[test]
    fn networks_are_of_24_bits_and_with_ipv6_of_48() {
        let day = LastDay::default();
        for address in ["192.0.2.7", "::ffff:192.0.2.9", "2001:db8:1:2::3"] {
            let tried = TriedClient {
                address: address.parse().unwrap(),
                ..client(None)
            };
            day.fail(TrialOutcome::Version, tried, None, at(0));
        }
        let networks = day.report("web", 9, at(0)).networks;
        let networks = networks.iter().map(|row| (&*row.of, row.clients));
        let expected = [("192.0.2.0/24", 2), ("2001:db8:1::/48", 1)];
        assert_eq!(networks.collect::<Vec<_>>(), expected);
    }
}
