//! Limits the log lines of a call site.
//!
//! Each call site that a peer can trigger owns a [`RateLimit`]. The first N lines of a second are
//! written, later ones are only counted, and the next written line reports the number of suppressed
//! lines. The code does not read the clock: `now` is an argument. Each limit belongs to one thread,
//! so workers share no lock for suppressed lines.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// A limit of N lines per second or minute.
#[derive(Clone, Debug)]
pub struct RateLimit {
    lines: u32,
    every: Duration,
    window: Option<Instant>,
    admitted: u32,
    /// Lines suppressed since the last admitted line.
    suppressed: u64,
}

impl RateLimit {
    pub const fn per_second(lines: u32) -> Self {
        Self::new(lines, SECOND)
    }

    const fn new(lines: u32, every: Duration) -> Self {
        Self {
            lines,
            every,
            window: None,
            admitted: 0,
            suppressed: 0,
        }
    }

    /// Returns `None` if the line must be suppressed, otherwise the number of lines suppressed
    /// before it. A `now` before the current interval counts towards the current interval.
    pub fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.is_over(now) {
            self.window = Some(now);
            self.admitted = 0;
        }
        if self.admitted >= self.lines {
            self.suppressed = self.suppressed.saturating_add(1);
            return None;
        }
        self.admitted += 1;
        Some(std::mem::take(&mut self.suppressed))
    }

    fn is_over(&self, now: Instant) -> bool {
        let is_past = |start| now.saturating_duration_since(start) >= self.every;
        self.window.is_none_or(is_past)
    }
}

/// A limit of one line per minute for each key. Keys beyond [`MOST_KEYS`] share one limit.
#[derive(Debug)]
pub struct KeyedRateLimit<K> {
    limits: HashMap<K, RateLimit>,
    others: RateLimit,
    cleanups: RateLimit,
}

impl<K> Default for KeyedRateLimit<K> {
    fn default() -> Self {
        Self {
            limits: HashMap::new(),
            others: RateLimit::new(1, MINUTE),
            cleanups: RateLimit::per_second(1),
        }
    }
}

impl<K: Eq + Hash> KeyedRateLimit<K> {
    pub fn admit(&mut self, key: K, now: Instant) -> Option<u64> {
        if self.limits.len() >= MOST_KEYS && !self.limits.contains_key(&key) {
            if self.cleanups.admit(now).is_some() {
                self.limits.retain(|_, limit| !limit.is_over(now));
            }
            if self.limits.len() >= MOST_KEYS {
                return self.others.admit(now);
            }
        }
        let limit = self.limits.entry(key);
        limit.or_insert(RateLimit::new(1, MINUTE)).admit(now)
    }
}

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
/// Maximum number of keys with separate limits.
const MOST_KEYS: usize = 256;

#[expect(clippy::disallowed_methods, reason = "any instant will do as a start")]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_limited_and_the_next_second_reports_the_suppressed_count() {
        let mut limit = RateLimit::per_second(3);
        let start = Instant::now();
        let admitted = (0..10).filter_map(|_| limit.admit(start)).count();
        assert_eq!(admitted, 3);
        let almost = start + Duration::from_millis(999);
        assert_eq!(limit.admit(almost), None);
        assert_eq!(limit.admit(start + SECOND), Some(8));
        assert_eq!(limit.admit(start + SECOND), Some(0));
    }

    #[test]
    fn a_clock_that_steps_back_neither_panics_nor_resets_the_limit() {
        let mut limit = RateLimit::per_second(1);
        let start = Instant::now();
        assert_eq!(limit.admit(start + SECOND), Some(0));
        assert_eq!(limit.admit(start), None);
    }

    #[test]
    fn each_key_is_limited_to_a_line_per_minute_and_the_key_table_is_bounded() {
        let mut limit = KeyedRateLimit::default();
        let start = Instant::now();
        assert_eq!(limit.admit(0, start), Some(0));
        assert_eq!(limit.admit(0, start + SECOND), None);
        assert_eq!(limit.admit(0, start + MINUTE), Some(1));
        let keys = 1..3 * MOST_KEYS;
        let lines = keys.filter(|key| limit.admit(*key, start + MINUTE).is_some());
        assert_eq!(lines.count(), MOST_KEYS);
        assert_eq!(limit.limits.len(), MOST_KEYS);
        assert_eq!(limit.admit(usize::MAX, start + 2 * MINUTE), Some(0));
        assert_eq!(limit.limits.len(), 1);
    }

    #[test]
    fn a_limit_of_zero_admits_nothing() {
        let mut limit = RateLimit::per_second(0);
        let start = Instant::now();
        assert_eq!(limit.admit(start), None);
        assert_eq!(limit.admit(start + SECOND), None);
    }
}
