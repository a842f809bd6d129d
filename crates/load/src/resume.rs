//! The resumption plan: `never`, `always` or `every=N`.
//!
//! The first handshake of a slot is always full, because it has no session to resume. The slots are staggered so that full
//! handshakes do not occur in waves. The report compares the requested handshakes with the actual ones.

use std::fmt;
use std::str::FromStr;

use becket_stats::units::UnitError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resume {
    Never,
    /// Every handshake except the first of a slot is resumed.
    Always,
    /// One full handshake, then N - 1 resumed ones; N is at least 2.
    Every(u64),
}

impl Resume {
    /// Returns `true` if handshake number `count` of slot number `slot` should be resumed. Both numbers start at 0.
    pub fn resumes(self, slot: u64, count: u64) -> bool {
        let due = match self {
            Self::Never => false,
            Self::Always => true,
            Self::Every(n) => !(slot + count).is_multiple_of(n),
        };
        due && count > 0
    }
}

impl FromStr for Resume {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wrong = "a resumption plan (accepted: never, always, every=N with N >= 2)";
        match text.split_once('=') {
            None if text == "never" => Some(Self::Never),
            None if text == "always" => Some(Self::Always),
            Some(("every", n)) => n.parse().ok().filter(|n| *n >= 2).map(Self::Every),
            _ => None,
        }
        .ok_or_else(|| UnitError::new(text, wrong))
    }
}

impl fmt::Display for Resume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.write_str("never"),
            Self::Always => f.write_str("always"),
            Self::Every(n) => write!(f, "every={n}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_4_makes_one_full_and_three_resumed_staggered_by_slot() {
        let asks = |resume: Resume, slot| -> String {
            let resumed = (0..9).map(|count| resume.resumes(slot, count));
            resumed
                .map(|resumed| if resumed { 'r' } else { 'f' })
                .collect()
        };
        assert_eq!(asks(Resume::Every(4), 0), "frrrfrrrf");
        assert_eq!(asks(Resume::Every(4), 1), "frrfrrrfr");
        assert_eq!(asks(Resume::Never, 7), "fffffffff");
        assert_eq!(asks(Resume::Always, 7), "frrrrrrrr");
    }

    #[test]
    fn plans_are_parsed_and_invalid_ones_rejected() {
        for text in ["never", "always", "every=4"] {
            assert_eq!(text.parse::<Resume>().unwrap().to_string(), text);
        }
        for text in ["", "sometimes", "every=1", "every=", "never=3"] {
            assert!(text.parse::<Resume>().is_err(), "{text}");
        }
    }
}
