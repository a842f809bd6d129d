//! Failed handshakes and connects, told one by one and at a bounded rate.
//!
//! One per worker. Every failure is counted by its [`CloseReason`] anyway; these lines are for
//! whoever has to find out why a particular client does not get in. What the peer chose (its
//! name) is escaped.

use crate::clock::Now;
use crate::close_reason::CloseReason;
use crate::connection::facts::Facts;
use crate::log::{Escaped, RateLimit};

/// Tells of failures.
#[derive(Debug)]
pub struct FailureLog {
    limit: RateLimit,
}

impl FailureLog {
    /// Starts with an unused second.
    pub fn new() -> Self {
        Self {
            limit: RateLimit::per_second(LINES_PER_SECOND),
        }
    }

    /// Writes a line, or counts it as suppressed.
    pub fn note(&mut self, facts: &Facts, reason: CloseReason, detail: &str, now: Now) {
        let Some(suppressed) = self.limit.admit(now.instant) else {
            return;
        };
        tracing::info!(
            client = %facts.client,
            listener = %facts.listener,
            name = %Escaped::new(facts.server_name.as_deref().unwrap_or("-")),
            reason = reason.label(),
            detail = %Escaped::new(detail),
            suppressed,
            "connection failed",
        );
    }
}

impl Default for FailureLog {
    fn default() -> Self {
        Self::new()
    }
}

/// Per worker: enough to see a pattern, too little to fill a disk.
const LINES_PER_SECOND: u32 = 10;
