//! In-memory history: the last hour for the plots of the status page, and the last minute for the
//! rates in `/status`.
//!
//! Every ten seconds, the control loop records a [`Moment`], the measurements of these ten seconds,
//! and a [`Mark`], the values of the counters. Rates are computed from the oldest mark, which is
//! about a minute old.
//!
//! The 360 moments of an hour take about 50 KiB. The six marks take about 600 bytes per server and
//! per name with handshakes.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use becket_cluster::replica::ServerTag;
use becket_log::Timestamp;
use becket_proxy::backend::server_state::ServerState;
use becket_sys::clock::Now;
use becket_tls::config::Config;
use serde::{Deserialize, Serialize};

use super::certificates::handshakes;
use super::temporary::RunningBackend;
use super::totals::Totals;
use becket_proxy::metrics::{AtomicHistogram, BUCKETS, Counters, quantile};

/// Measurements of an interval of about ten seconds. Quantiles are `None` if nothing was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Moment {
    /// End of the interval.
    pub time: Timestamp,
    /// Length of the interval.
    pub seconds: f64,
    /// Open connections at the end of the interval.
    pub connections: u64,
    pub accepted: u64,
    pub handshakes_full: u64,
    pub handshakes_resumed: u64,
    /// Number of handshakes that failed because of the client.
    pub handshakes_failed: u64,
    /// Median time of handshakes.
    pub handshake_p50_us: Option<u64>,
    pub handshake_p99_us: Option<u64>,
    /// Median time in the queue, of the connections that waited for a slot.
    pub queue_p50_us: Option<u64>,
    pub queue_p99_us: Option<u64>,
    /// Median time of successful connects to servers.
    pub connect_p50_us: Option<u64>,
    pub connect_p99_us: Option<u64>,
}

/// Counts of the last minute, or since the process started if that was less than a minute ago.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Minute {
    /// Length of the interval in which the events were counted.
    pub seconds: f64,
    /// Closed connections by close reason.
    pub closed: BTreeMap<Cow<'static, str>, u64>,
    /// Completed handshakes by certificate name, over all listeners.
    pub names: BTreeMap<String, u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerCounts {
    pub connections: u64,
    pub failures: u64,
}

/// Values of the counters at one time. The mark of the start of the process has only zeros.
#[derive(Debug, Default)]
pub struct Mark {
    /// Time since the start of the process.
    at: Duration,
    closed: BTreeMap<Cow<'static, str>, u64>,
    names: BTreeMap<String, u64>,
    servers: HashMap<ServerTag, ServerCounts>,
}

impl Mark {
    pub fn of(totals: &Totals, config: &Config, backends: &[RunningBackend], at: Duration) -> Self {
        let servers = backends.iter().flat_map(|it| it.state.servers().to_vec());
        let counts = |it: &ServerState| ServerCounts {
            connections: it.connections(),
            failures: it.failures(),
        };
        Self {
            at,
            closed: totals.closed.clone(),
            names: handshakes(config),
            servers: servers.map(|it| (it.tag(), counts(&it))).collect(),
        }
    }

    /// Returns the increase of the counters between this mark and `later`.
    pub fn minute(&self, later: &Self) -> Minute {
        Minute {
            seconds: later.at.saturating_sub(self.at).as_secs_f64(),
            closed: growth(&self.closed, &later.closed),
            names: growth(&self.names, &later.names),
        }
    }

    /// Returns the number of connections to a server, and of failures, since this mark.
    pub fn server(&self, server: &ServerState) -> ServerCounts {
        let before = self.servers.get(&server.tag()).copied().unwrap_or_default();
        ServerCounts {
            connections: server.connections().saturating_sub(before.connections),
            failures: server.failures().saturating_sub(before.failures),
        }
    }
}

fn growth<K: Clone + Ord>(before: &BTreeMap<K, u64>, later: &BTreeMap<K, u64>) -> BTreeMap<K, u64> {
    let each = later.iter().map(|(key, count)| {
        let before = before.get(key).copied().unwrap_or(0);
        // A reload resets the counter of a name. If the counter has decreased, it has grown from 0.
        (key.clone(), count.checked_sub(before).unwrap_or(*count))
    });
    each.filter(|(_, count)| *count > 0).collect()
}

/// Measurements of the last hour, and counters of the last minute.
#[derive(Debug)]
pub struct History {
    moments: VecDeque<Moment>,
    marks: VecDeque<Arc<Mark>>,
    /// Time at which the newest moment was recorded.
    taken: Duration,
    totals: Totals,
    times: [[u64; BUCKETS]; 3],
}

impl Default for History {
    fn default() -> Self {
        Self {
            moments: VecDeque::new(),
            marks: VecDeque::from([Arc::default()]),
            taken: Duration::ZERO,
            totals: Totals::default(),
            times: [[0; BUCKETS]; 3],
        }
    }
}

impl History {
    /// Records a moment and a mark if ten seconds have passed since the previous ones.
    pub fn tick(
        &mut self,
        counters: &[Arc<Counters>],
        mark: impl FnOnce(&Totals) -> Mark,
        now: Now,
    ) {
        let passed = now.mono.saturating_sub(self.taken);
        if passed < INTERVAL {
            return;
        }
        let totals = Totals::of(counters);
        let times = times(counters);
        let more = |of: fn(&Totals) -> u64| of(&totals).saturating_sub(of(&self.totals));
        let time = |kind: usize, share| quantile(&self.times[kind], &times[kind], share);
        let moment = Moment {
            time: Timestamp::from_unix(now.unix),
            seconds: passed.as_secs_f64(),
            connections: totals.connections,
            accepted: more(|totals| totals.accepted),
            handshakes_full: more(|totals| totals.handshakes_full),
            handshakes_resumed: more(|totals| totals.handshakes_resumed),
            handshakes_failed: more(|totals| totals.handshakes_failed),
            handshake_p50_us: time(0, 0.5),
            handshake_p99_us: time(0, 0.99),
            queue_p50_us: time(1, 0.5),
            queue_p99_us: time(1, 0.99),
            connect_p50_us: time(2, 0.5),
            connect_p99_us: time(2, 0.99),
        };
        push(&mut self.moments, moment, MOMENTS);
        push(&mut self.marks, Arc::new(mark(&totals)), MARKS);
        (self.taken, self.totals, self.times) = (now.mono, totals, times);
    }

    /// Returns all moments, oldest first, and the oldest mark.
    pub fn read(&self) -> (Vec<Moment>, Arc<Mark>) {
        let mark = self.marks.front().cloned().unwrap_or_default();
        (self.moments.iter().copied().collect(), mark)
    }
}

fn push<T>(to: &mut VecDeque<T>, item: T, most: usize) {
    if to.len() == most {
        to.pop_front();
    }
    to.push_back(item);
}

/// Returns the histograms of handshake, queue and connect times, summed over all workers.
fn times(counters: &[Arc<Counters>]) -> [[u64; BUCKETS]; 3] {
    let each = || counters.iter();
    let handshakes = each().flat_map(|it| [&it.handshake_full, &it.handshake_resumed]);
    [
        AtomicHistogram::gather(handshakes).counts,
        AtomicHistogram::gather(each().map(|it| &it.queue_waited)).counts,
        AtomicHistogram::gather(each().map(|it| &it.connect_time)).counts,
    ]
}

const INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of moments, which cover an hour.
const MOMENTS: usize = 360;
/// Number of marks; the oldest mark is 50 to 60 seconds old.
const MARKS: usize = 6;

#[cfg(test)]
mod tests {
    use becket_proto::close_reason::CloseReason;
    use becket_sys::clock::Clock;

    use super::*;

    fn at(second: u64) -> Now {
        Now {
            mono: Duration::from_secs(second),
            ..Clock::start().now()
        }
    }

    fn mark(_: &Totals) -> Mark {
        Mark::default()
    }

    #[test]
    fn each_interval_has_its_own_numbers_and_an_hour_is_kept() {
        let counters: Vec<Arc<Counters>> = vec![Arc::default(), Arc::default()];
        let mut history = History::default();
        for second in 1..=20 {
            counters[0].accepted.add(1);
            counters[1].handshakes[0][0].add(1);
            counters[1].handshake_full.record(Duration::from_millis(1));
            history.tick(&counters, mark, at(second));
        }
        let [first, second] = history.read().0[..] else {
            panic!("{:?}", history.read().0);
        };
        assert_eq!((first.accepted, first.handshakes_full), (10, 10));
        assert_eq!((second.accepted, second.connections), (10, 20));
        assert!(second.handshake_p50_us.unwrap().abs_diff(1000) < 130);
        // Control was delayed, and nothing arrived.
        history.tick(&counters, mark, at(45));
        let late = history.read().0[2];
        assert_eq!(
            (late.seconds, late.accepted, late.handshake_p99_us),
            (25.0, 0, None)
        );
        for number in 0..1000 {
            history.tick(&counters, mark, at(60 + 10 * number));
        }
        assert_eq!(history.read().0.len(), MOMENTS);
    }

    #[test]
    fn a_minute_has_the_counts_of_fifty_seconds_or_since_the_start() {
        let counters: Vec<Arc<Counters>> = vec![Arc::default()];
        let mut history = History::default();
        let present = |totals: &Totals, second: u64, handshakes: u64| Mark {
            at: Duration::from_secs(second),
            closed: totals.closed.clone(),
            names: BTreeMap::from([("a.test".to_owned(), handshakes)]),
            ..Mark::default()
        };
        let minute = |history: &History, second, handshakes| {
            let later = present(&Totals::of(&counters), second, handshakes);
            let minute = history.read().1.minute(&later);
            let closed = minute.closed.get("not-tls").copied();
            (minute.seconds, closed, minute.names.get("a.test").copied())
        };
        for ten in 1..=10 {
            counters[0].closed.of(CloseReason::NotTls).add(1);
            if ten == 1 {
                assert_eq!(minute(&history, 5, 0), (5.0, Some(1), None));
            }
            let mark = |totals: &Totals| present(totals, 10 * ten, 20 * ten);
            history.tick(&counters, mark, at(10 * ten));
        }
        assert_eq!(minute(&history, 100, 200), (50.0, Some(5), Some(100)));
        // A reload has begun the counts of names again.
        assert_eq!(minute(&history, 100, 7), (50.0, Some(5), Some(7)));
    }
}
