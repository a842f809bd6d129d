//! What is done when memory runs short: `limits.memory`.
//!
//! Control looks at what is in use ten times a second, and tells workers how short memory is by one atomic number, which they look at when
//! they accept. Above the watermark memory that was freed is given back, then connections at rest end, those that have rested for longest
//! first, and so in turn; a sixteenth above, new clients wait in the queues of the sockets; an eighth above, or where they have waited in
//! vain, they are refused. What is measured, and why: docs/decisions/0039-memory-has-a-watermark.md.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use becket_config::memory_limit::MemoryLimit;
use becket_proto::labelled;
use becket_sys::cgroup::MemoryGroup;
use becket_sys::memory::ResidentMemory;
use serde::{Deserialize, Serialize};

labelled! {
/// How short memory is.
#[derive(Default, PartialOrd, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shortage {
    #[default]
    /// It is not.
    None = "none",
    /// Connections at rest end.
    Closing = "closing",
    /// So they do, and new clients wait.
    Waiting = "waiting",
    /// So they do, and new clients are refused.
    Refusing = "refusing",
}
}

impl Shortage {
    /// Above how many bytes it begins.
    fn begins(self, watermark: u64) -> u64 {
        match self {
            Self::None => 0,
            Self::Closing => watermark,
            Self::Waiting => watermark.saturating_add(watermark / 16),
            Self::Refusing => watermark.saturating_add(watermark / 8),
        }
    }
}

/// How much memory is in use and may be, in bytes.
#[derive(Clone, Copy, Debug)]
struct Reading {
    used: u64,
    watermark: u64,
}

/// What is to be done to have more memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Relief {
    /// What was freed is given back to the system.
    GiveBack,
    /// This share of all connections ends, of those at rest.
    End(f64),
}

/// Measures memory, and decides what is done.
#[derive(Debug)]
pub struct MemoryWatch {
    resident: Option<ResidentMemory>,
    group: Option<MemoryGroup>,
    steps: Steps,
}

impl MemoryWatch {
    /// Opens what tells of memory, for this limit and for those of later configurations: in the sandbox it could not be opened.
    pub fn open(limit: MemoryLimit) -> Self {
        let resident = ResidentMemory::open();
        if let (MemoryLimit::Bytes(_), Err(error)) = (limit, &resident) {
            tracing::warn!(%error, "limits.memory has no effect: /proc is out of reach");
        }
        Self {
            resident: resident.ok(),
            group: MemoryGroup::own(),
            steps: Steps::default(),
        }
    }

    /// Looks how much memory is in use, tells everybody, and returns what is to be done now.
    pub fn look(
        &mut self,
        limit: MemoryLimit,
        now: Duration,
        connections: usize,
        standing: &MemoryStanding,
    ) -> Option<Relief> {
        let reading = self.read(limit, connections);
        let shortage = self.steps.shortage(reading, now);
        let (used, watermark) = reading.map_or((0, 0), |it| (it.used, it.watermark));
        if shortage != standing.shortage() {
            let label = shortage.label();
            match shortage {
                Shortage::None => tracing::info!(used, watermark, "memory is not short any more"),
                _ => tracing::warn!(used, watermark, shortage = label, "memory is short"),
            }
        }
        standing.set(MemoryStatus {
            used,
            watermark,
            shortage,
        });
        self.steps.relief(reading?, now)
    }

    /// Nothing where memory is not limited, or cannot be read.
    fn read(&self, limit: MemoryLimit, connections: usize) -> Option<Reading> {
        match limit {
            MemoryLimit::Off => None,
            MemoryLimit::Bytes(watermark) => {
                let used = self.resident.as_ref()?.read().ok()?;
                Some(Reading { used, watermark })
            }
            MemoryLimit::Auto => {
                let group = self.group.as_ref()?;
                let watermark = group.limit()? / 100 * PERCENT_OF_GROUP;
                let used = group.used(connections).ok()?;
                Some(Reading { used, watermark })
            }
        }
    }
}

/// What follows from what was read. Pure.
#[derive(Debug, Default)]
struct Steps {
    shortage: Shortage,
    /// Since when new clients wait, by the monotonic clock.
    waiting: Option<Duration>,
    /// What was done last about it, and when.
    last: Option<(Relief, Duration)>,
}

impl Steps {
    /// How short memory is. What has begun goes on until a thirty-second of the watermark less than where it begins is in use; who is
    /// refused, until nobody would wait.
    fn shortage(&mut self, reading: Option<Reading>, now: Duration) -> Shortage {
        let Some(Reading { used, watermark }) = reading else {
            *self = Self::default();
            return Shortage::None;
        };
        let holds = |it: &Shortage| {
            let slack = if *it <= self.shortage {
                watermark / SLACK
            } else {
                0
            };
            used > it.begins(watermark).saturating_sub(slack)
        };
        let mut highest = Shortage::ALL.into_iter().rev();
        let mut shortage = highest.find(holds).unwrap_or_default();
        let waiting = shortage == Shortage::Waiting;
        self.waiting = waiting.then(|| self.waiting.unwrap_or(now));
        let in_vain = |since| now.saturating_sub(since) >= PATIENCE;
        if waiting && (self.shortage == Shortage::Refusing || self.waiting.is_some_and(in_vain)) {
            shortage = Shortage::Refusing;
        }
        self.shortage = shortage;
        shortage
    }

    /// What is to be done now about what [`Self::shortage`] has found: a second apart, since what a worker or a thread is told takes a while.
    fn relief(&mut self, Reading { used, watermark }: Reading, now: Duration) -> Option<Relief> {
        if self.shortage == Shortage::None {
            self.last = None;
            return None;
        }
        let relief = match self.last {
            Some((_, at)) if now.saturating_sub(at) < BETWEEN => return None,
            Some((Relief::GiveBack, _)) => {
                let excess = used.saturating_sub(watermark - watermark / SLACK);
                Relief::End(excess as f64 / used as f64)
            }
            _ => Relief::GiveBack,
        };
        self.last = Some((relief, now));
        Some(relief)
    }
}

/// How short memory is, for all threads. Control writes it.
#[derive(Debug, Default)]
pub struct MemoryStanding {
    used: AtomicU64,
    /// 0 is none.
    watermark: AtomicU64,
    shortage: AtomicU8,
}

impl MemoryStanding {
    /// How short memory is.
    pub fn shortage(&self) -> Shortage {
        Shortage::ALL[usize::from(self.shortage.load(Relaxed))]
    }

    /// Tells all threads.
    pub fn set(&self, status: MemoryStatus) {
        self.used.store(status.used, Relaxed);
        self.watermark.store(status.watermark, Relaxed);
        self.shortage.store(status.shortage as u8, Relaxed);
    }

    /// For those who look at it; nothing where memory is not limited.
    pub fn status(&self) -> Option<MemoryStatus> {
        let status = MemoryStatus {
            used: self.used.load(Relaxed),
            watermark: self.watermark.load(Relaxed),
            shortage: self.shortage(),
        };
        (status.watermark > 0).then_some(status)
    }
}

/// What is said of memory.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// Bytes in use.
    pub used: u64,
    /// Bytes above which room is made.
    pub watermark: u64,
    /// How short it is.
    pub shortage: Shortage,
}

/// Of what the control group allows: an eighth above it, where clients are refused, is 95.6 %.
const PERCENT_OF_GROUP: u64 = 85;
/// One part of so many of the watermark must be missing before a shortage ends: memory comes and goes by pages.
const SLACK: u64 = 32;
/// Between two reliefs.
const BETWEEN: Duration = Duration::from_secs(1);
/// How long new clients wait for room. Then it is better for them to learn that there is none.
const PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    const fn reading(used: u64) -> Reading {
        Reading {
            used,
            watermark: 3200,
        }
    }

    #[test]
    fn each_shortage_begins_above_the_one_before_and_ends_below_its_beginning() {
        use Shortage::{Closing, None, Refusing, Waiting};
        let mut steps = Steps::default();
        for (used, shortage) in [
            (0, None),
            (3200, None),
            (3201, Closing),
            (3400, Closing),
            (3401, Waiting),
            (3301, Waiting),
            (3300, Closing),
            (9999, Refusing),
            (3301, Refusing),
            (3300, Closing),
            (3101, Closing),
            (3100, None),
            (3101, None),
        ] {
            assert_eq!(
                steps.shortage(Some(reading(used)), at(1)),
                shortage,
                "{used}"
            );
        }
        steps.shortage(Some(reading(9999)), at(1));
        assert_eq!(steps.shortage(Option::None, at(1)), None);
    }

    #[test]
    fn who_has_waited_in_vain_is_refused() {
        let mut steps = Steps::default();
        let mut look = |used, now| steps.shortage(Some(reading(used)), at(now));
        assert_eq!(look(3450, 10), Shortage::Waiting);
        assert_eq!(look(3450, 14), Shortage::Waiting);
        assert_eq!(look(3450, 15), Shortage::Refusing);
        assert_eq!(look(3350, 16), Shortage::Refusing);
        assert_eq!(look(3300, 17), Shortage::Closing);
        assert_eq!(look(3450, 18), Shortage::Waiting);
    }

    #[test]
    fn memory_is_given_back_before_anybody_is_closed() {
        let mut steps = Steps::default();
        let mut look = |used, tenths: u64| {
            let now = Duration::from_millis(tenths * 100);
            steps.shortage(Some(reading(used)), now);
            steps.relief(reading(used), now)
        };
        assert_eq!(look(3200, 0), None);
        assert_eq!(look(6200, 1), Some(Relief::GiveBack));
        assert_eq!(look(6200, 10), None);
        assert_eq!(look(6200, 11), Some(Relief::End(0.5)));
        assert_eq!(look(6200, 12), None);
        assert_eq!(look(4000, 21), Some(Relief::GiveBack));
        assert_eq!(look(4000, 31), Some(Relief::End(0.225)));
        assert_eq!(look(3100, 41), None);
        assert_eq!(look(3201, 42), Some(Relief::GiveBack));
    }

    proptest! {
        #[test]
        fn within_the_slack_nothing_begins_again_that_has_ended(
            before in proptest::collection::vec(0_u64..5000, 0..20),
            base in 0_u64..5000,
            offsets in proptest::collection::vec(0_u64..3200 / SLACK, 1..50),
        ) {
            let mut steps = Steps::default();
            let mut clock = 0..;
            let mut look = |used| {
                let now = at(clock.next().unwrap());
                steps.shortage(Some(reading(used)), now)
            };
            for used in before {
                look(used);
            }
            let mut last = look(base + offsets[0]);
            let mut has_ended = false;
            for offset in offsets {
                let shortage = look(base + offset);
                prop_assert!(!has_ended || shortage <= last, "{shortage:?} after {last:?}");
                has_ended |= shortage < last;
                last = shortage;
            }
        }

        #[test]
        fn all_is_well_once_readings_have_fallen(
            before in proptest::collection::vec((0_u64..9000, 0_u64..10), 0..40),
            after in 0_u64..=3100,
        ) {
            let mut steps = Steps::default();
            let mut now = 0;
            for (used, seconds) in before {
                now += seconds;
                steps.shortage(Some(reading(used)), at(now));
                let relief = steps.relief(reading(used), at(now));
                if let Some(Relief::End(share)) = relief {
                    prop_assert!(used > 3100 && (0.0..1.0).contains(&share), "{share} of {used}");
                }
            }
            prop_assert_eq!(steps.shortage(Some(reading(after)), at(now)), Shortage::None);
            prop_assert_eq!(steps.relief(reading(after), at(now)), None);
        }
    }
}
