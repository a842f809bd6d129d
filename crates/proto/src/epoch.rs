//! Which epochs of ticket keys surround a moment, when all nodes must come to the same answer without talking.
//!
//! Epochs begin at multiples of the rotation, counted from the Unix epoch, so that nodes agree on them as long as their
//! clocks agree within one rotation: a node holds the keys of the epoch before and after its own as well. This file
//! derives no keys (the terminator does) and keeps none ([`crate::ticket::KeyRing`] does).

use std::time::Duration;

use crate::ticket::{Epoch, UnixSeconds};

/// The epoch of a moment and its neighbours, as [`epochs_at`] finds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epochs {
    /// The epoch before; the current one itself where there is none before (within one rotation of 1970).
    pub previous: Epoch,
    /// The epoch that the moment lies in: its keys seal.
    pub current: Epoch,
    /// The epoch after.
    pub next: Epoch,
    /// When the next epoch begins: the time of the next rotation, always after the moment itself.
    pub next_begins: UnixSeconds,
}

/// Finds the epochs around `unix` for keys that rotate every `rotation`.
///
/// The rotation counts in whole seconds, and as one second if it is shorter. An epoch that begins after 2106 does not fit
/// into a ticket's header and is held at the last second that does.
pub fn epochs_at(unix: UnixSeconds, rotation: Duration) -> Epochs {
    let period = rotation.as_secs().max(1);
    let current = unix.0 - unix.0 % period;
    let next = current.saturating_add(period);
    Epochs {
        previous: epoch(current.saturating_sub(period)),
        current: epoch(current),
        next: epoch(next),
        next_begins: UnixSeconds(next),
    }
}

fn epoch(start: u64) -> Epoch {
    Epoch(u32::try_from(start).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn epochs_begin_at_multiples_of_the_rotation() {
        let epochs = epochs_at(UnixSeconds(1_000_050), Duration::from_secs(100));
        assert_eq!(epochs.previous, Epoch(999_900));
        assert_eq!(epochs.current, Epoch(1_000_000));
        assert_eq!(epochs.next, Epoch(1_000_100));
        assert_eq!(epochs.next_begins, UnixSeconds(1_000_100));
    }

    #[test]
    fn the_first_second_of_an_epoch_belongs_to_it() {
        let at = |unix| epochs_at(UnixSeconds(unix), Duration::from_secs(60)).current;
        assert_eq!(at(119), Epoch(60));
        assert_eq!(at(120), Epoch(120));
    }

    #[test]
    fn nonsense_is_answered_without_a_panic() {
        let epochs = epochs_at(UnixSeconds(7), Duration::ZERO);
        assert_eq!(
            (epochs.previous, epochs.current, epochs.next),
            (Epoch(6), Epoch(7), Epoch(8))
        );
        let epochs = epochs_at(UnixSeconds(u64::MAX), Duration::MAX);
        assert_eq!(epochs.current, Epoch(u32::MAX));
        assert_eq!(
            epochs_at(UnixSeconds(3), Duration::from_secs(10)).previous,
            Epoch(0)
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn clocks_that_differ_by_less_than_a_rotation_know_each_other_s_epoch(
            unix in 1_000_000_u64..4_000_000_000, period in 1_u64..100_000, apart in 0_u64..100_000,
        ) {
            let rotation = Duration::from_secs(period);
            let here = epochs_at(UnixSeconds(unix), rotation);
            let there = epochs_at(UnixSeconds(unix - apart % period), rotation);
            prop_assert!([here.previous, here.current].contains(&there.current));
            prop_assert!([there.current, there.next].contains(&here.current));
            prop_assert!(here.next_begins.0 > unix && here.next_begins.0 <= unix + period);
        }
    }
}
