//! When memory is given back to the system: after many connections have gone.
//!
//! The system's allocator keeps what was freed, in an arena per worker, for the next connections. After a crowd that is most of what
//! the process holds, so it is told to let go when the crowd has left. Doing that locks one arena after the other for as long as its
//! pages take, so it is done rarely, on a thread made for it. Pure; see docs/decisions/0009-allocator.md for what it costs and brings.

use std::time::Duration;

/// Watches how many connections there are.
#[derive(Debug, Default)]
pub(crate) struct Ebb {
    /// The most connections since memory was given back.
    peak: usize,
    /// How many there were at the last look.
    before: usize,
    /// When memory was given back, by the monotonic clock.
    last: Option<Duration>,
}

impl Ebb {
    /// Whether memory is to be given back now: half of the greatest number of connections is gone, no more are leaving, it is worth it,
    /// and the last time is a minute ago.
    pub(crate) fn has_come(&mut self, connections: usize, now: Duration) -> bool {
        self.peak = self.peak.max(connections);
        let leaving = connections < std::mem::replace(&mut self.before, connections);
        let gone = self.peak - connections;
        let recent = self
            .last
            .is_some_and(|last| now.saturating_sub(last) < PAUSE);
        if leaving || recent || gone < WORTH_IT || gone < connections {
            return false;
        }
        self.peak = connections;
        self.last = Some(now);
        true
    }
}

/// Connections that must have gone: some ten megabytes.
const WORTH_IT: usize = 2000;
/// Between two times.
const PAUSE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn it_comes_once_when_half_of_a_crowd_has_gone() {
        let mut ebb = Ebb::default();
        for connections in [0, 5000, 9000, 4501, 4501, 4500] {
            assert!(!ebb.has_come(connections, at(1)));
        }
        assert!(ebb.has_come(4500, at(2)));
        assert!(!ebb.has_come(4500, at(200)));
    }

    #[test]
    fn the_rest_of_a_crowd_is_another_one_a_minute_later() {
        let mut ebb = Ebb::default();
        ebb.has_come(9000, at(1));
        ebb.has_come(4000, at(2));
        assert!(ebb.has_come(4000, at(2)));
        ebb.has_come(0, at(61));
        assert!(!ebb.has_come(0, at(61)));
        assert!(ebb.has_come(0, at(62)));
    }

    #[test]
    fn few_connections_are_not_worth_it() {
        let mut ebb = Ebb::default();
        ebb.has_come(WORTH_IT - 1, at(1));
        ebb.has_come(0, at(100));
        assert!(!ebb.has_come(0, at(100)));
    }
}
