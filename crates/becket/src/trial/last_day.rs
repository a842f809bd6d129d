//! What a trial remembers: how many clients of the last day passed, and what those that did not have in common.
//!
//! A client that passes costs one atomic number. For one that does not a lock is taken, and it is counted by name, fingerprint and
//! network, in tables of [`ROWS`] rows for each of the last [`HOURS`] hours. Sums are exact; a client that makes up names fills
//! rows and never adds one. The process that replaces this one takes the hours over, with their numbers.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use becket_proto::heavy_hitters::{HeavyHitters, Hitter};
use becket_proto::networks::Network;
use becket_proto::succession::TrialHour;
use serde::Serialize;

use super::{TrialOutcome, TriedClient};
use crate::ja4::Ja4;

/// The last day of a trial.
#[derive(Debug, Serialize)]
pub(crate) struct TrialReport {
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
    /// Seconds by which hour 0 was before the clock's start: in the first of the processes that replaced each other.
    ahead: AtomicU64,
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
        let number = self.hour(now);
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
        let number = self.hour(now);
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
        let now = self.hour(now);
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

    /// What the process that replaces this one is to know: every hour, or those that have changed since then. Policy and bar are left
    /// to the caller.
    pub(super) fn hours(&self, since: Option<Duration>, now: Duration) -> Vec<TrialHour> {
        let elapsed = self.elapsed(now);
        let now = self.hour(now);
        // A worker may be an hour behind.
        let first = since.map_or(0, |since| self.hour(since).saturating_sub(1));
        let first = first.max((now + 1).saturating_sub(HOURS));
        let is_told = |it: &&Hour| it.number >= first;
        let mut failed: Vec<_> = self.lock().iter().filter(is_told).cloned().collect();
        let told = (first..=now).filter_map(|number| {
            let count = self.passed[(number % HOURS) as usize].load(Relaxed);
            let is_of_it = count >> COUNT_BITS == number;
            let passed = if is_of_it { count & COUNT } else { 0 };
            let place = failed.iter().position(|it| it.number == number);
            let hour = place.map(|place| failed.swap_remove(place));
            let hour = hour.or_else(|| (passed > 0).then(|| Hour::new(number)))?;
            Some(hour.told(passed, elapsed))
        });
        told.collect()
    }

    /// Goes on with an hour of the process before, if all of it is understood.
    pub(super) fn take_over(&self, told: &TrialHour, now: Duration) {
        let Some(hour) = Hour::heard(told) else {
            return;
        };
        let ahead = told.elapsed.saturating_sub(now);
        self.ahead.store(ahead.as_secs(), Relaxed);
        let now = self.hour(now);
        let is_recent = |number: u64| number <= now && number + HOURS > now;
        if !is_recent(hour.number) {
            return;
        }
        let passed = hour.number << COUNT_BITS | told.passed & COUNT;
        self.passed[(hour.number % HOURS) as usize].store(passed, Relaxed);
        let mut hours = self.lock();
        hours.retain(|it| is_recent(it.number) && it.number != hour.number);
        hours.push(hour);
    }

    fn elapsed(&self, now: Duration) -> Duration {
        now + Duration::from_secs(self.ahead.load(Relaxed))
    }

    fn hour(&self, now: Duration) -> u64 {
        self.elapsed(now).as_secs() / 3600
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

    /// As it is told to another process; policy and bar are left to the caller.
    fn told(&self, passed: u64, elapsed: Duration) -> TrialHour {
        let failed = TrialOutcome::ALL.into_iter().filter_map(|outcome| {
            let count = self.outcomes[outcome as usize];
            (count > 0).then(|| Hitter {
                key: outcome.label().to_owned(),
                count,
                error: 0,
            })
        });
        TrialHour {
            policy: String::new(),
            bar: String::new(),
            // Fits: hours of half a million years.
            number: self.number as u32,
            elapsed,
            passed,
            failed: failed.collect(),
            names: told(&self.names, String::clone),
            ja4s: told(&self.ja4s, ja4_text),
            networks: told(&self.networks, Network::to_string),
        }
    }

    /// The one that was told; nothing where something in it is not understood.
    fn heard(told: &TrialHour) -> Option<Self> {
        let mut outcomes = [0; TrialOutcome::ALL.len()];
        for hitter in &told.failed {
            let mut all = TrialOutcome::ALL.into_iter();
            let outcome = all.find(|it| it.label() == hitter.key)?;
            outcomes[outcome as usize] = hitter.count.min(COUNT);
        }
        let ja4 = |text: &str| match text {
            NONE => Some(None),
            text => Ja4::from_text(text).map(Some),
        };
        Some(Self {
            number: told.number.into(),
            outcomes,
            names: heard(&told.names, |text| Some(text.to_owned()))?,
            ja4s: heard(&told.ja4s, ja4)?,
            networks: heard(&told.networks, |text| text.parse().ok())?,
        })
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

fn ja4_text(ja4: &Option<Ja4>) -> String {
    ja4.map_or_else(|| NONE.to_owned(), |it| it.to_string())
}

/// The counters of a table with keys that are told.
fn told<K>(table: &HeavyHitters<K>, text: impl Fn(&K) -> String) -> Vec<Hitter<String>> {
    let told = |hitter: &Hitter<K>| Hitter {
        key: text(&hitter.key),
        count: hitter.count,
        error: hitter.error,
    };
    table.iter().map(told).collect()
}

/// The table that was told; nothing where a key is not understood.
fn heard<K>(told: &[Hitter<String>], key: impl Fn(&str) -> Option<K>) -> Option<HeavyHitters<K>> {
    let heard = |hitter: &Hitter<String>| {
        let is_count = hitter.error <= hitter.count && hitter.count <= COUNT;
        Some(Hitter {
            key: key(&hitter.key).filter(|_| is_count)?,
            count: hitter.count,
            error: hitter.error,
        })
    };
    let hitters: Option<Vec<_>> = told.iter().map(heard).collect();
    Some(HeavyHitters::resume(ROWS, hitters?))
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
