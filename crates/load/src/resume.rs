//! Which handshakes are to be resumed: `never`, `always`, `every=N`, `ratio=R`.
//!
//! Each slot walks its own [`Sequence`]. The first handshake of a slot is always full, since there
//! is nothing to resume with. The sequences of different slots are staggered, so that full
//! handshakes do not come in waves. What is asked here is compared in the report with what the
//! handshakes really were.

use std::fmt;
use std::str::FromStr;

use becket_stats::units::UnitError;

/// What the plan asks of resumption.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Resume {
    /// Every handshake is full.
    Never,
    /// Every handshake but the first of a slot is resumed.
    Always,
    /// One full handshake, then N - 1 resumed ones; N is at least 2.
    Every(u32),
    /// This share of the handshakes is resumed, between 0 and 1.
    Ratio(f64),
}

/// What the plan asks of one handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// A full handshake; what was remembered is forgotten.
    Full,
    /// A resumed one.
    Resumed,
}

impl FromStr for Resume {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let accepted = "a resumption plan (accepted: never, always, every=N with N >= 2, ratio=R with 0 < R < 1)";
        let wrong = || UnitError::new(text, accepted);
        match text.split_once('=') {
            None if text == "never" => Ok(Self::Never),
            None if text == "always" => Ok(Self::Always),
            Some(("every", n)) => {
                let n = n.parse().ok().filter(|n| *n >= 2);
                n.map(Self::Every).ok_or_else(wrong)
            }
            Some(("ratio", r)) => {
                let r = r.parse().ok().filter(|r| *r > 0.0 && *r < 1.0);
                r.map(Self::Ratio).ok_or_else(wrong)
            }
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Resume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.write_str("never"),
            Self::Always => f.write_str("always"),
            Self::Every(n) => write!(f, "every={n}"),
            Self::Ratio(r) => write!(f, "ratio={r}"),
        }
    }
}

/// The plan of one slot.
#[derive(Clone, Debug)]
pub struct Sequence {
    resume: Resume,
    phase: f64,
    total: u64,
    resumed: u64,
}

impl Sequence {
    /// Makes the sequence of slot number `slot`; slot 0 starts at the beginning of the pattern.
    pub fn new(resume: Resume, slot: usize) -> Self {
        // Multiples of the golden ratio spread evenly over the unit interval.
        let phase = (slot as f64 * 0.618_033_988_749_895).fract();
        Self {
            resume,
            phase,
            total: 0,
            resumed: 0,
        }
    }

    /// Returns what is asked of the slot's next handshake.
    pub fn next_ask(&mut self) -> Ask {
        let share = match self.resume {
            Resume::Never => 0.0,
            Resume::Always => 1.0,
            Resume::Every(n) => f64::from(n - 1) / f64::from(n),
            Resume::Ratio(share) => share,
        };
        let due = share * (self.total + 1) as f64 + self.phase * (1.0 - share) + ROUNDING;
        let resumed = match self.resume {
            _ if self.total == 0 => false,
            Resume::Never => false,
            Resume::Always => true,
            _ => (self.resumed + 1) as f64 <= due,
        };
        self.total += 1;
        self.resumed += u64::from(resumed);
        if resumed { Ask::Resumed } else { Ask::Full }
    }
}

/// Keeps `0.75 * 4 >= 3` true whatever the ratio's binary form.
const ROUNDING: f64 = 1e-6;

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(resume: Resume, slot: usize, count: usize) -> Vec<Ask> {
        let mut sequence = Sequence::new(resume, slot);
        (0..count).map(|_| sequence.next_ask()).collect()
    }

    fn resumed(asks: &[Ask]) -> usize {
        asks.iter().filter(|ask| **ask == Ask::Resumed).count()
    }

    #[test]
    fn every_four_is_one_full_and_three_resumed() {
        use Ask::{Full, Resumed};
        let expected = [
            Full, Resumed, Resumed, Resumed, Full, Resumed, Resumed, Resumed,
        ];
        assert_eq!(asks(Resume::Every(4), 0, 8), expected);
        assert_eq!(asks(Resume::Ratio(0.75), 0, 8), expected);
    }

    #[test]
    fn every_slot_begins_with_a_full_handshake_and_keeps_its_share() {
        for slot in 0..50 {
            let asks = asks(Resume::Ratio(0.9), slot, 1000);
            assert_eq!(asks[0], Ask::Full);
            assert!(
                (899..=901).contains(&resumed(&asks)),
                "slot {slot}: {}",
                resumed(&asks)
            );
        }
    }

    #[test]
    fn never_and_always_mean_it() {
        assert_eq!(resumed(&asks(Resume::Never, 7, 100)), 0);
        assert_eq!(resumed(&asks(Resume::Always, 7, 100)), 99);
    }

    #[test]
    fn plans_are_read_and_nonsense_is_refused() {
        for text in ["never", "always", "every=4", "ratio=0.75"] {
            assert_eq!(text.parse::<Resume>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "sometimes",
            "every=1",
            "every=",
            "ratio=1",
            "ratio=0",
            "ratio=2",
            "never=3",
        ] {
            assert!(text.parse::<Resume>().is_err(), "{text}");
        }
    }
}
