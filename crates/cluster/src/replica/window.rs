//! Replay window of a pair: accepts each sequence number once, even if the network duplicates or reorders datagrams.
//!
//! The window stores the last 1024 numbers as bits in a ring. Older numbers are rejected, because they may be
//! duplicates. The window also reports skipped numbers, from which lost datagrams are counted.
//!
//! Source: the anti-replay window of RFC 4303 section 3.4.3.

use super::status::DropCause;

pub(super) struct Window {
    highest: u64,
    /// Bits of the 1024 numbers up to `highest`; number `n` has bit `n % 1024`.
    seen: [u64; WORDS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReceivedSequence {
    /// Number of sequence numbers skipped by this datagram.
    pub(super) missed: u64,
    /// `true` if the datagram was counted as missed earlier.
    pub(super) late: bool,
}

impl Window {
    pub(super) fn new() -> Self {
        let mut seen = [0; WORDS];
        seen[0] = 1; // Number 0 is never sent.
        Self { highest: 0, seen }
    }

    pub(super) fn check(&self, number: u64) -> Result<(), DropCause> {
        if number > self.highest {
            Ok(())
        } else if self.highest - number >= SIZE {
            Err(DropCause::TooOld)
        } else if self.seen[word(number)] & bit(number) != 0 {
            Err(DropCause::Replayed)
        } else {
            Ok(())
        }
    }

    /// Marks a number as received. The caller must have checked the number with `judge` and
    /// decrypted the datagram.
    pub(super) fn mark(&mut self, number: u64) -> ReceivedSequence {
        let ahead = number.saturating_sub(self.highest);
        if ahead >= SIZE {
            self.seen = [0; WORDS];
        } else {
            for skipped in number - ahead..number {
                self.seen[word(skipped + 1)] &= !bit(skipped + 1);
            }
        }
        self.highest = self.highest.max(number);
        self.seen[word(number)] |= bit(number);
        ReceivedSequence {
            missed: ahead.saturating_sub(1),
            late: ahead == 0,
        }
    }
}

fn word(number: u64) -> usize {
    (number % SIZE / 64) as usize
}

fn bit(number: u64) -> u64 {
    1 << (number % 64)
}

const SIZE: u64 = 1024;
const WORDS: usize = 16;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn number_0_is_never_new() {
        assert_eq!(Window::new().check(0), Err(DropCause::Replayed));
    }

    #[test]
    fn a_late_number_is_new_once_within_the_window_and_too_old_after_it() {
        let mut window = Window::new();
        let first = window.mark(5);
        assert_eq!((first.missed, first.late), (4, false));
        let late = window.mark(2);
        assert_eq!((late.missed, late.late), (0, true));
        assert_eq!(window.check(2), Err(DropCause::Replayed));
        window.mark(3 + SIZE);
        assert_eq!(window.check(3), Err(DropCause::TooOld));
        assert_eq!(window.check(4), Ok(()));
        assert_eq!(window.check(5), Err(DropCause::Replayed));
    }

    #[test]
    fn a_jump_to_the_last_number_is_survived() {
        let mut window = Window::new();
        assert_eq!(window.mark(u64::MAX).missed, u64::MAX - 1);
        assert_eq!(window.check(u64::MAX), Err(DropCause::Replayed));
        assert_eq!(window.check(u64::MAX - 1), Ok(()));
        assert_eq!(window.check(1), Err(DropCause::TooOld));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn the_window_agrees_with_a_set_of_all_numbers(
            steps in proptest::collection::vec((any::<bool>(), 0_u64..1500), 1..400),
        ) {
            let (mut window, mut seen, mut highest) = (Window::new(), HashSet::from([0]), 0_u64);
            let (mut missed, mut late) = (0, 0);
            for (back, distance) in steps {
                let number = if back { highest.saturating_sub(distance) } else { highest + distance % 40 };
                let expected = if number + SIZE <= highest {
                    Err(DropCause::TooOld)
                } else if seen.contains(&number) {
                    Err(DropCause::Replayed)
                } else {
                    Ok(())
                };
                prop_assert_eq!(window.check(number), expected);
                if expected == Ok(()) {
                    let arrival = window.mark(number);
                    missed += arrival.missed;
                    late += u64::from(arrival.late);
                    seen.insert(number);
                    highest = highest.max(number);
                }
            }
            prop_assert_eq!(missed - late, highest + 1 - seen.len() as u64);
        }
    }
}
