//! Server names without a certificate, which an ACME authority could issue on demand.
//!
//! Workers note a name that a client asks for, and the control thread takes the noted names. A name
//! that was noted is ignored for [`AGAIN`]. The number of names is limited, so a client that asks
//! for many names only delays other new names.

use std::collections::HashMap;
use std::mem;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Names that clients have asked for, which all workers share.
#[derive(Debug, Default)]
pub struct WantedNames(Mutex<NotedNames>);

#[derive(Debug, Default)]
struct NotedNames {
    /// Each name with the time from which it is noted again.
    known: HashMap<Box<str>, Duration>,
    new: Vec<Box<str>>,
}

impl WantedNames {
    /// Notes a lower-case name. Does nothing while another thread has the lock.
    pub fn note(&self, name: &str, now: Duration) {
        let Ok(mut noted) = self.0.try_lock() else {
            return;
        };
        if noted.known.get(name).is_some_and(|again| now < *again)
            || noted.known.len() >= MOST_KNOWN
            || noted.new.len() >= MOST_NEW
        {
            return;
        }
        noted.known.insert(name.into(), now + AGAIN);
        noted.new.push(name.into());
    }

    /// Returns the names that were noted since the last call.
    pub fn take(&self, now: Duration) -> Vec<Box<str>> {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.known.retain(|_, again| now < *again);
        mem::take(&mut noted.new)
    }
}

/// Time for which a noted name is ignored.
const AGAIN: Duration = Duration::from_secs(30);
/// Maximum number of ignored names.
const MOST_KNOWN: usize = 1024;
/// Maximum number of names between two calls of [`WantedNames::take`].
const MOST_NEW: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_noted_once_and_their_number_is_limited() {
        let wanted = WantedNames::default();
        let second = Duration::from_secs(1);
        wanted.note("a.test", second);
        wanted.note("b.test", second);
        wanted.note("a.test", second);
        assert_eq!(wanted.take(second), ["a.test".into(), "b.test".into()]);
        wanted.note("a.test", second);
        assert_eq!(wanted.take(second + AGAIN), []);
        wanted.note("a.test", second + AGAIN);
        assert_eq!(wanted.take(second + AGAIN), ["a.test".into()]);
        let flood = |now| {
            for number in 0..10_000 {
                wanted.note(&format!("{number}.test"), now);
            }
            wanted.take(now).len()
        };
        let later = second + 3 * AGAIN;
        let taken: Vec<usize> = (0..100).map(|_| flood(later)).collect();
        assert_eq!(taken[0], MOST_NEW);
        assert_eq!(taken.iter().sum::<usize>(), MOST_KNOWN);
        wanted.take(later + AGAIN);
        assert_eq!(flood(later + AGAIN), MOST_NEW);
    }
}
