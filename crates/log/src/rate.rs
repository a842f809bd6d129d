//! A limit on the lines that one place in the code logs.
//!
//! Each call site that a peer can trigger owns a [`RateLimit`]. The first N lines of a second are
//! written, the rest is counted, and the next written line reports the number of suppressed lines.
//! The code is pure: `now` is an argument. Each limit belongs to one thread, so workers share no
//! lock for suppressed lines.

use std::time::{Duration, Instant};

/// A limit of N lines per second.
#[derive(Clone, Debug)]
pub struct RateLimit {
    lines_per_second: u32,
    /// Start of the current second; `None` before the first line.
    window: Option<Instant>,
    /// Lines admitted in the current second.
    admitted: u32,
    /// Lines suppressed since the last admitted line.
    suppressed: u64,
}

impl RateLimit {
    pub const fn per_second(lines: u32) -> Self {
        Self {
            lines_per_second: lines,
            window: None,
            admitted: 0,
            suppressed: 0,
        }
    }

    /// Returns `None` if the line must be suppressed, otherwise the number of lines suppressed
    /// before it. A `now` before the start of the current second counts as that second.
    pub fn admit(&mut self, now: Instant) -> Option<u64> {
        let start = *self.window.get_or_insert(now);
        if now.saturating_duration_since(start) >= SECOND {
            self.window = Some(now);
            self.admitted = 0;
        }
        if self.admitted >= self.lines_per_second {
            self.suppressed = self.suppressed.saturating_add(1);
            return None;
        }
        self.admitted += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[expect(clippy::disallowed_methods, reason = "any instant will do as a start")]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_cut_and_the_next_second_says_how_much_was_left_out() {
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
    fn a_clock_that_steps_back_neither_panics_nor_opens_the_gate() {
        let mut limit = RateLimit::per_second(1);
        let start = Instant::now();
        assert_eq!(limit.admit(start + SECOND), Some(0));
        assert_eq!(limit.admit(start), None);
    }

    #[test]
    fn a_limit_of_zero_admits_nothing() {
        let mut limit = RateLimit::per_second(0);
        let start = Instant::now();
        assert_eq!(limit.admit(start), None);
        assert_eq!(limit.admit(start + SECOND), None);
    }
}
