//! Epochs of ticket keys by wall-clock time: the current epoch, its end, and the accepted epochs.
//!
//! Nodes of a cluster do not negotiate the epoch: each node reads its own clock. Epochs start at multiples of their
//! length since 1970, so nodes with equal lengths and equal clocks have equal epochs. If two clocks differ by less than
//! one length, the epochs of the two nodes are equal or adjacent. Each node therefore also accepts the previous and the
//! next epoch. This module contains only the arithmetic, with the time as an argument: `crates/control/src/rotation/`
//! holds the secrets.
//!
//! Invariant: start times never exceed the 32 bits that a ticket has for them (the year 2106). The last epoch before
//! that does not end.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::ticket::{Epoch, UnixSeconds};

/// Length of an epoch: whole seconds, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochLength(NonZeroU32);

/// Number of complete epochs between 1970 and the start of this epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EpochNumber(pub u32);

/// Epochs whose tickets a node accepts at a given time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epochs {
    /// Peers may still use this epoch, and its tickets stay valid for one epoch length after its
    /// end.
    pub previous: Option<EpochNumber>,
    /// Epoch whose key seals new tickets.
    pub current: EpochNumber,
    /// Peers whose clocks are ahead may already use this epoch.
    pub next: Option<EpochNumber>,
}

impl EpochLength {
    /// Creates a length. Returns `None` if it is zero, not in whole seconds, or longer than 136 years.
    pub fn of(length: Duration) -> Option<Self> {
        if length.subsec_nanos() != 0 {
            return None;
        }
        let seconds = u32::try_from(length.as_secs()).ok()?;
        NonZeroU32::new(seconds).map(Self)
    }

    pub fn duration(self) -> Duration {
        Duration::from_secs(self.0.get().into())
    }

    pub fn number_at(self, now: UnixSeconds) -> EpochNumber {
        let now = u32::try_from(now.0).unwrap_or(u32::MAX);
        EpochNumber(now / self.0.get())
    }

    /// Returns the start of an epoch. If the start exceeds 32 bits, returns the start of the last
    /// epoch that does not.
    pub fn start(self, number: EpochNumber) -> Epoch {
        let length = self.0.get();
        Epoch(number.0.min(u32::MAX / length).saturating_mul(length))
    }

    pub fn end(self, number: EpochNumber) -> UnixSeconds {
        let starts = u64::from(self.start(number).0);
        UnixSeconds(starts + u64::from(self.0.get()))
    }

    pub fn epochs_at(self, now: UnixSeconds) -> Epochs {
        let current = self.number_at(now);
        let last = u32::MAX / self.0.get();
        let before = current.0.checked_sub(1).map(EpochNumber);
        let after = current.0.checked_add(1).map(EpochNumber);
        Epochs {
            previous: before,
            current,
            next: after.filter(|next| next.0 <= last),
        }
    }
}

impl Epochs {
    /// Iterates over the epochs, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = EpochNumber> {
        let current = std::iter::once(self.current);
        self.previous.into_iter().chain(current).chain(self.next)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hours(hours: u64) -> EpochLength {
        EpochLength::of(Duration::from_secs(hours * 3600)).expect("whole seconds")
    }

    #[test]
    fn epochs_begin_at_multiples_of_their_length() {
        let length = hours(8);
        let noon = UnixSeconds(1_800_014_400 - 1_800_014_400 % 86_400 + 12 * 3600);
        let number = length.number_at(noon);
        assert_eq!(u64::from(length.start(number).0), noon.0 - 4 * 3600);
        assert_eq!(length.end(number).0, noon.0 + 4 * 3600);
    }

    #[test]
    fn epoch_lengths_must_be_whole_seconds() {
        assert_eq!(EpochLength::of(Duration::ZERO), None);
        assert_eq!(EpochLength::of(Duration::from_millis(1500)), None);
        assert_eq!(EpochLength::of(Duration::from_secs(1 << 32)), None);
    }

    #[test]
    fn the_first_epoch_has_no_predecessor_and_the_last_no_successor() {
        let length = hours(8);
        let first = length.epochs_at(UnixSeconds(0));
        assert_eq!((first.previous, first.current), (None, EpochNumber(0)));
        for late in [u64::from(u32::MAX), u64::MAX] {
            let last = length.epochs_at(UnixSeconds(late));
            assert_eq!(last.next, None);
            assert_eq!(last.current, length.number_at(UnixSeconds(late)));
        }
    }

    proptest! {
        #[test]
        fn nodes_with_less_skew_than_an_epoch_accept_each_others_epochs(
            length in 1u64..400_000,
            now in 0u64..4_000_000_000,
            skew in 0u64..400_000,
        ) {
            let epochs = EpochLength::of(Duration::from_secs(length)).expect("whole seconds");
            let here = epochs.epochs_at(UnixSeconds(now));
            let there = epochs.epochs_at(UnixSeconds(now + skew % length));
            prop_assert!(here.iter().any(|epoch| epoch == there.current));
            prop_assert!(there.iter().any(|epoch| epoch == here.current));
        }

        #[test]
        fn every_time_is_within_its_epoch(length in 1u64..u64::from(u32::MAX), now in 0u64..u64::from(u32::MAX)) {
            let epochs = EpochLength::of(Duration::from_secs(length)).expect("whole seconds");
            let number = epochs.number_at(UnixSeconds(now));
            prop_assert!(u64::from(epochs.start(number).0) <= now && now < epochs.end(number).0);
        }
    }
}
