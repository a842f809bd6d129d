//! When to look at files that change: not while somebody still writes them, and not never.

use std::time::Duration;

/// Changes that nobody has looked at yet. Times are of one monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settling {
    first_and_last: Option<(Duration, Duration)>,
}

impl Settling {
    /// Something has changed.
    pub(crate) fn note(&mut self, now: Duration) {
        let first = self.first_and_last.map_or(now, |(first, _)| first);
        self.first_and_last = Some((first, now));
    }

    /// When to look; nothing where nothing has changed.
    pub(crate) fn due_at(&self) -> Option<Duration> {
        let (first, last) = self.first_and_last?;
        Some((last + QUIET).min(first + LONGEST))
    }

    /// Somebody looks now.
    pub(crate) fn clear(&mut self) {
        self.first_and_last = None;
    }
}

/// Without a change. What renews a certificate writes its files within milliseconds.
const QUIET: Duration = Duration::from_secs(1);
/// From the first change on: where something is written all the time, whole states are in between.
const LONGEST: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_look_waits_for_a_quiet_second_and_ten_at_most() {
        let mut settling = Settling::default();
        assert_eq!(settling.due_at(), None);
        let seconds = Duration::from_secs;
        settling.note(seconds(5));
        assert_eq!(settling.due_at(), Some(seconds(6)));
        settling.note(seconds(6));
        assert_eq!(settling.due_at(), Some(seconds(7)));
        settling.note(seconds(16));
        assert_eq!(settling.due_at(), Some(seconds(15)));
        settling.clear();
        assert_eq!(settling, Settling::default());
    }

    proptest! {
        /// Whoever looks when a look is due has seen each change within ten seconds, and looks at most once a second.
        #[test]
        fn looks_are_late_by_ten_seconds_at_most_and_a_second_apart(
            gaps in prop::collection::vec(0_u64..3_000, 0..200),
        ) {
            let mut settling = Settling::default();
            let (mut now, mut looked, mut unseen) = (Duration::ZERO, None::<Duration>, None);
            for gap in gaps {
                let next = now + Duration::from_millis(gap);
                if let Some(due) = settling.due_at().filter(|due| *due <= next) {
                    settling.clear();
                    prop_assert!(looked.is_none_or(|before| due >= before + QUIET));
                    let since = unseen.take().unwrap();
                    prop_assert!(due >= since && due <= since + LONGEST);
                    looked = Some(due);
                }
                now = next;
                settling.note(now);
                unseen.get_or_insert(now);
            }
            prop_assert_eq!(settling.due_at().is_some(), unseen.is_some());
        }
    }
}
