//! What health checks have found out about one server: for the admin pages.
//!
//! Written by control alone, read by whoever shows it. The data path reads none of it: what follows from it for new
//! clients is in the server's state.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use becket_proto::health::Condition;

/// Findings and counts of one server.
#[derive(Debug, Default)]
pub struct Watched {
    condition: AtomicU8,
    /// Milliseconds since 1970; 0 while it has not changed.
    changed: AtomicU64,
    checks: AtomicU64,
    check_failures: AtomicU64,
    outages: AtomicU64,
    lost_name: AtomicBool,
    reason: Mutex<Option<Arc<str>>>,
}

impl Watched {
    /// What is thought of the server.
    pub fn condition(&self) -> Condition {
        let index = usize::from(self.condition.load(Relaxed));
        Condition::ALL
            .get(index)
            .copied()
            .unwrap_or(Condition::Unchecked)
    }

    /// When that changed, since 1970, and why; nothing while it has not.
    pub fn change(&self) -> Option<(Duration, Arc<str>)> {
        let reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = Duration::from_millis(self.changed.load(Relaxed));
        reason.clone().map(|reason| (changed, reason))
    }

    /// Checks that have ended.
    pub fn checks(&self) -> u64 {
        self.checks.load(Relaxed)
    }

    /// Checks that the server has not passed.
    pub fn check_failures(&self) -> u64 {
        self.check_failures.load(Relaxed)
    }

    /// Times that it went out of service.
    pub fn outages(&self) -> u64 {
        self.outages.load(Relaxed)
    }

    /// Whether its name did not resolve when it was last looked up.
    pub fn lost_its_name(&self) -> bool {
        self.lost_name.load(Relaxed)
    }

    /// Somebody begins to watch, or watches in another way.
    pub(super) fn begin(&self, condition: Condition) {
        self.condition.store(index_of(condition), Relaxed);
    }

    /// The condition has changed, at this time since 1970.
    pub(super) fn note_change(&self, to: Condition, reason: &str, unix: Duration) {
        let mut held = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        *held = Some(reason.into());
        let millis = u64::try_from(unix.as_millis()).unwrap_or(u64::MAX);
        self.changed.store(millis, Relaxed);
        self.condition.store(index_of(to), Relaxed);
        self.outages.fetch_add(u64::from(!to.is_usable()), Relaxed);
    }

    /// A check has ended.
    pub(super) fn note_check(&self, good: bool) {
        self.checks.fetch_add(1, Relaxed);
        self.check_failures.fetch_add(u64::from(!good), Relaxed);
    }

    /// Its name was looked up. Returns whether the outcome is another one than before.
    pub(in crate::backend) fn note_lookup(&self, found: bool) -> bool {
        self.lost_name.swap(!found, Relaxed) == found
    }
}

fn index_of(condition: Condition) -> u8 {
    // In the order of `Condition::ALL`.
    condition as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_kept_as_they_are() {
        let watched = Watched::default();
        assert_eq!(watched.condition(), Condition::Unchecked);
        for (index, condition) in Condition::ALL.iter().enumerate() {
            assert_eq!(usize::from(index_of(*condition)), index);
            watched.begin(*condition);
            assert_eq!(watched.condition(), *condition);
        }
    }

    #[test]
    fn a_change_is_kept_with_its_time_and_reason() {
        let watched = Watched::default();
        assert_eq!(watched.change(), None);
        let at = Duration::from_millis(1_234_567);
        watched.note_change(Condition::OutOfService, "status 503", at);
        assert_eq!(watched.change(), Some((at, "status 503".into())));
        watched.note_change(Condition::InService, "checks pass", at);
        assert_eq!(watched.outages(), 1);
    }

    #[test]
    fn a_lookup_is_news_when_it_ends_otherwise_than_before() {
        let watched = Watched::default();
        let news = [true, false, false, true].map(|found| watched.note_lookup(found));
        assert_eq!(news, [false, true, false, true]);
    }
}
