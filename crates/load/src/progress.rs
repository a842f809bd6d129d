//! The line a second on the terminal.

use std::sync::Arc;
use std::time::Instant;

use becket_stats::units::{show_count, show_rate};

use crate::env::Live;

/// Sums the threads' counters and says what has changed since the last line.
#[derive(Debug)]
pub struct ProgressLine {
    lives: Vec<Arc<Live>>,
    begin: Instant,
    at: Instant,
    last: [u64; 3],
}

impl ProgressLine {
    /// Begins to watch these counters.
    pub fn new(lives: Vec<Arc<Live>>, begin: Instant) -> Self {
        Self {
            lives,
            begin,
            at: begin,
            last: [0; 3],
        }
    }

    /// Makes the line for now.
    pub fn line(&mut self, now: Instant) -> String {
        let sums = self.sums();
        let seconds = now
            .saturating_duration_since(self.at)
            .as_secs_f64()
            .max(1e-3);
        let [succeeded, failed, busy] = sums;
        let rate = succeeded.saturating_sub(self.last[0]) as f64 / seconds;
        let failed = failed.saturating_sub(self.last[1]);
        let elapsed = now.saturating_duration_since(self.begin).as_secs_f64();
        (self.at, self.last) = (now, sums);
        format!(
            "{elapsed:>5.0} s  {:>12}  failed {:>8}  busy {busy:>6}",
            show_rate(rate),
            show_count(failed)
        )
    }

    fn sums(&self) -> [u64; 3] {
        let add =
            |sum: [u64; 3], live: [u64; 3]| [sum[0] + live[0], sum[1] + live[1], sum[2] + live[2]];
        self.lives.iter().map(|live| live.read()).fold([0; 3], add)
    }
}
