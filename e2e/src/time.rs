//! Waiting for something to become true, with a deadline. The only place that reads the clock.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long anything may take on a busy machine before a test gives up.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Between two looks: short beside what is waited for, long beside what a look costs.
const STEP: Duration = Duration::from_millis(5);

/// The one clock of the tests.
#[expect(
    clippy::disallowed_methods,
    reason = "tests run in real time; all of them read it here"
)]
pub fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "as above")]
pub fn unix_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Asks until there is an answer.
#[track_caller]
pub fn until<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    match patiently(ask) {
        Some(answer) => answer,
        None => panic!("waited in vain: {what}"),
    }
}

/// The same; nothing when there was none in time.
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

/// Asks until it is so.
#[track_caller]
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    until(what, || is_so().then_some(()));
}

/// Asks for this long whether it is still so: for promises that something does *not* happen.
#[track_caller]
pub fn holds_for(time: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let start = now();
    while start.elapsed() < time {
        assert!(is_so(), "held no longer: {what}");
        thread::sleep(STEP);
    }
}

/// Sets a flag in the end, also when that is a panic: threads that go on until it is set are waited for.
#[derive(Debug)]
pub struct Over<'a>(pub &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}
