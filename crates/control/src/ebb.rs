//! Decides when freed memory is returned to the system: after many connections have ended, and
//! after a replaced configuration was freed.
//!
//! The allocator keeps freed memory in one arena per worker for the next connections. After a
//! traffic peak, or a configuration with many certificates, this can be most of the process's
//! memory. Returning it locks each arena while the kernel releases its pages, so a separate thread
//! does it, at most once a minute. docs/decisions/0009-allocator.md describes costs and benefits.

use std::sync::{Arc, Weak};
use std::time::Duration;

use becket_tls::config::Config;

#[derive(Debug, Default)]
pub struct Ebb {
    /// Highest number of connections since memory was last returned.
    peak: usize,
    /// Number of connections at the last check.
    before: usize,
    /// Most recently replaced configuration.
    replaced: Option<Weak<Config>>,
    /// Monotonic time at which memory was last returned.
    last: Option<Duration>,
}

impl Ebb {
    /// Records that the configuration `old` was replaced. Its memory is freed when the last worker
    /// drops it.
    pub fn replace(&mut self, old: &Arc<Config>) {
        self.replaced = Some(Arc::downgrade(old));
    }

    /// Returns whether memory should be returned to the system now; at most once per [`PAUSE`]. One
    /// of two conditions must hold: a replaced configuration was freed, or the number of
    /// connections has stopped falling after a drop by at least half and by [`WORTH_IT`].
    pub fn has_come(&mut self, connections: usize, now: Duration) -> bool {
        self.peak = self.peak.max(connections);
        let leaving = connections < std::mem::replace(&mut self.before, connections);
        let gone = self.peak - connections;
        let is_ebb = !leaving && gone >= WORTH_IT.max(connections);
        let replaced = self.replaced.as_ref();
        let is_freed = replaced.is_some_and(|old| old.strong_count() == 0);
        let recent = self
            .last
            .is_some_and(|last| now.saturating_sub(last) < PAUSE);
        if recent || !(is_ebb || is_freed) {
            return false;
        }
        self.peak = connections;
        self.replaced = self.replaced.take().filter(|_| !is_freed);
        self.last = Some(now);
        true
    }
}

/// Minimum number of ended connections for which memory is returned. They free about ten megabytes.
const WORTH_IT: usize = 2000;
/// Minimum interval at which memory is returned.
const PAUSE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn an_ebb_is_reported_once_when_half_the_connections_close() {
        let mut ebb = Ebb::default();
        for connections in [0, 5000, 9000, 4501, 4501, 4500] {
            assert!(!ebb.has_come(connections, at(1)));
        }
        assert!(ebb.has_come(4500, at(2)));
        assert!(!ebb.has_come(4500, at(200)));
    }

    #[test]
    fn a_second_ebb_is_reported_after_a_minute() {
        let mut ebb = Ebb::default();
        ebb.has_come(9000, at(1));
        ebb.has_come(4000, at(2));
        assert!(ebb.has_come(4000, at(2)));
        ebb.has_come(0, at(61));
        assert!(!ebb.has_come(0, at(61)));
        assert!(ebb.has_come(0, at(62)));
    }

    #[test]
    fn an_ebb_is_reported_once_per_freed_configuration() {
        let mut ebb = Ebb::default();
        let old = Arc::new(sample::config());
        ebb.replace(&old);
        assert!(!ebb.has_come(0, at(1)));
        drop(old);
        assert!(ebb.has_come(0, at(1)));
        ebb.replace(&Arc::new(sample::config()));
        assert!(!ebb.has_come(0, at(60)));
        assert!(ebb.has_come(0, at(61)));
        assert!(!ebb.has_come(0, at(200)));
    }

    #[test]
    fn few_connections_cause_no_ebb() {
        let mut ebb = Ebb::default();
        ebb.has_come(WORTH_IT - 1, at(1));
        ebb.has_come(0, at(100));
        assert!(!ebb.has_come(0, at(100)));
    }
}
