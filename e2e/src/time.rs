//! Waits for a condition with a deadline. This is the only module that reads the clock.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time limit for an awaited event, long enough for a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Interval between polls: short compared with the awaited events, long compared with the cost of a poll.
const STEP: Duration = Duration::from_millis(5);

/// Reads the clock for all tests.
#[expect(
    clippy::disallowed_methods,
    reason = "tests run in real time, and all of them read the clock here"
)]
pub fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "as above")]
pub fn unix_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Polls until `ask` returns a value. Panics after [`PATIENCE`].
#[track_caller]
pub fn until<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    match patiently(ask) {
        Some(answer) => answer,
        None => panic!("timed out: {what}"),
    }
}

/// Polls until `ask` returns a value. Returns `None` after [`PATIENCE`].
pub(crate) fn patiently<T>(mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let start = now();
    loop {
        let answer = ask();
        if answer.is_some() || start.elapsed() >= PATIENCE {
            return answer;
        }
        thread::sleep(STEP);
    }
}

/// Polls until the condition is true. Panics after [`PATIENCE`].
#[track_caller]
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    until(what, || is_so().then_some(()));
}

/// Polls for this time and panics if the condition becomes false, to test that something does *not* happen.
#[track_caller]
pub fn holds_for(time: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let start = now();
    while start.elapsed() < time {
        assert!(is_so(), "no longer true: {what}");
        thread::sleep(STEP);
    }
}

/// Sets a flag on drop, also after a panic. Otherwise, a test would wait forever for threads that run until the flag is
/// set.
#[derive(Debug)]
pub struct Over<'a>(pub &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}
