//! The memory watermark, `limits.memory`.
//!
//! The control loop measures memory use ten times a second. Above the watermark, it closes idle
//! connections. Above nine eighths of the watermark, new clients are also rejected.
//! docs/decisions/0039-memory-has-a-watermark.md explains the measurement.

use std::time::Duration;

use becket_config::memory_limit::MemoryLimit;
use becket_proxy::memory::{IdleReclaim, MemoryStatus, Shortage};
use becket_proxy::shared::SharedState;
use becket_sys::cgroup::MemoryGroup;
use becket_sys::memory::ResidentMemory;

#[derive(Debug)]
pub struct MemoryWatch {
    resident: Option<ResidentMemory>,
    group: Option<MemoryGroup>,
    policy: MemoryPolicy,
}

impl MemoryWatch {
    /// Opens the kernel's memory files, which the sandbox forbids later. Opens them even without a
    /// limit, because a reload may set one.
    pub fn open(limit: MemoryLimit) -> Self {
        let resident = ResidentMemory::open();
        if let (MemoryLimit::Bytes(_), Err(error)) = (limit, &resident) {
            tracing::warn!(name: "memory-limit-unavailable", %error, "limits.memory has no effect: cannot open /proc");
        }
        Self {
            resident: resident.ok(),
            group: MemoryGroup::own(),
            policy: MemoryPolicy::default(),
        }
    }

    /// Measures memory use, stores the result for the workers and the admin pages, and returns
    /// which idle connections to close now, if any.
    pub fn check(
        &mut self,
        limit: MemoryLimit,
        shared: &SharedState,
        now: Duration,
    ) -> Option<IdleReclaim> {
        let (used, watermark) = self.read(limit, shared.connections()).unwrap_or((0, 0));
        let before = self.policy.shortage;
        let relief = self.policy.decide(used, watermark, now);
        let shortage = self.policy.shortage;
        if shortage != before {
            let label = shortage.label();
            match shortage {
                Shortage::None => {
                    tracing::info!(name: "memory-pressure-ended", used, watermark, "memory pressure ended")
                }
                _ => {
                    tracing::warn!(name: "memory-pressure", used, watermark, shortage = label, "memory pressure")
                }
            }
        }
        shared.memory.set(MemoryStatus {
            used,
            watermark,
            shortage,
        });
        relief
    }

    /// Returns memory use and the watermark in bytes, or `None` if memory is not limited or cannot
    /// be measured.
    fn read(&self, limit: MemoryLimit, connections: usize) -> Option<(u64, u64)> {
        match limit {
            MemoryLimit::Off => None,
            MemoryLimit::Bytes(watermark) => {
                let used = self.resident.as_ref()?.read().ok()?;
                Some((used, watermark))
            }
            MemoryLimit::Auto => {
                let group = self.group.as_ref()?;
                let watermark = group.limit()? / 100 * PERCENT_OF_GROUP;
                Some((group.used(connections).ok()?, watermark))
            }
        }
    }
}

/// Decides on actions from memory use and time, without I/O.
#[derive(Debug, Default)]
struct MemoryPolicy {
    shortage: Shortage,
    /// Number of actions since memory use rose above the watermark.
    actions: u32,
    next: Duration,
}

impl MemoryPolicy {
    /// Returns which connections to close now if `used` bytes are in use. A watermark of 0 means no limit.
    fn decide(&mut self, used: u64, watermark: u64, now: Duration) -> Option<IdleReclaim> {
        let slack = watermark / SLACK;
        let before = self.shortage;
        let is_above = |level: Shortage, begins: u64| {
            let slack = if level <= self.shortage { slack } else { 0 };
            watermark > 0 && used > begins - slack
        };
        self.shortage = if is_above(Shortage::Refusing, watermark + watermark / 8) {
            Shortage::Refusing
        } else if is_above(Shortage::Closing, watermark) {
            Shortage::Closing
        } else {
            *self = Self::default();
            return None;
        };
        if before == Shortage::None {
            self.next = now + BETWEEN;
        }
        if now < self.next {
            return None;
        }
        self.next = now + BETWEEN;
        let number = self.actions;
        self.actions = number.saturating_add(1);
        let excess = used.saturating_sub(watermark - slack);
        Some(IdleReclaim {
            rest: LONGEST_REST / 4_u32.pow(number.min(2)),
            share: excess as f64 / used as f64,
        })
    }
}

/// Watermark in percent of the cgroup's memory limit. New clients are rejected from 95.6 % of the
/// limit, which is nine eighths of the watermark.
const PERCENT_OF_GROUP: u64 = 85;
/// Hysteresis as a divisor: memory use must fall below the watermark by 1/32 of the watermark
/// before the shortage ends.
const SLACK: u64 = 32;
/// Minimum interval between two actions, and between the beginning of the shortage and the first
/// one. Meanwhile the allocator returns freed memory to the system.
const BETWEEN: Duration = Duration::from_secs(2);
/// Minimum idle time of connections that the first close action closes. The second uses a quarter
/// of this time, later ones a sixteenth.
const LONGEST_REST: Duration = Duration::from_secs(16);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WATERMARK: u64 = 3200;

    #[test]
    fn each_shortage_begins_above_the_one_before_and_ends_below_its_beginning() {
        use Shortage::{Closing, None, Refusing};
        let mut policy = MemoryPolicy::default();
        for (used, shortage) in [
            (0, None),
            (3200, None),
            (3201, Closing),
            (3600, Closing),
            (3601, Refusing),
            (3501, Refusing),
            (3500, Closing),
            (3101, Closing),
            (3100, None),
            (3101, None),
        ] {
            policy.decide(used, WATERMARK, Duration::ZERO);
            assert_eq!(policy.shortage, shortage, "{used}");
        }
        policy.decide(9999, WATERMARK, Duration::ZERO);
        policy.decide(0, 0, Duration::ZERO);
        assert_eq!(policy.shortage, None);
    }

    #[test]
    fn the_longest_idle_connections_are_closed_first() {
        let mut policy = MemoryPolicy::default();
        let mut decide =
            |used, tenths: u64| policy.decide(used, WATERMARK, Duration::from_millis(tenths * 100));
        let end = |seconds, share| {
            let rest = Duration::from_secs(seconds);
            Some(IdleReclaim { rest, share })
        };
        assert_eq!(decide(3200, 0), None);
        assert_eq!(decide(6200, 1), None);
        assert_eq!(decide(6200, 20), None);
        assert_eq!(decide(6200, 21), end(16, 0.5));
        assert_eq!(decide(4000, 31), None);
        assert_eq!(decide(4000, 41), end(4, 0.225));
        assert_eq!(decide(4000, 61), end(1, 0.225));
        assert_eq!(decide(4000, 81), end(1, 0.225));
        assert_eq!(decide(3100, 91), None);
        assert_eq!(decide(3201, 102), None);
        assert_eq!(
            decide(3201, 122).map(|idle| idle.rest),
            Some(Duration::from_secs(16))
        );
    }

    proptest! {
        #[test]
        fn a_shortage_that_ended_does_not_begin_again_within_the_slack(
            before in proptest::collection::vec(0_u64..5000, 0..20),
            base in 0_u64..5000,
            offsets in proptest::collection::vec(0_u64..WATERMARK / SLACK, 1..50),
        ) {
            let mut policy = MemoryPolicy::default();
            let mut measure = |used| {
                policy.decide(used, WATERMARK, Duration::ZERO);
                policy.shortage
            };
            for used in before {
                measure(used);
            }
            let mut last = measure(base + offsets[0]);
            let mut has_ended = false;
            for offset in offsets {
                let shortage = measure(base + offset);
                prop_assert!(!has_ended || shortage <= last, "{shortage:?} after {last:?}");
                has_ended |= shortage < last;
                last = shortage;
            }
        }
    }
}
