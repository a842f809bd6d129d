//! Parses and formats durations and sizes.

use std::time::Duration;

use crate::error::{ValueError, shortened};

pub(crate) const MILLISECOND: u64 = 1;
pub(crate) const SECOND: u64 = 1000;
pub(crate) const MINUTE: u64 = 60 * SECOND;
pub(crate) const HOUR: u64 = 60 * MINUTE;
pub(crate) const DAY: u64 = 24 * HOUR;
/// Maximum of all durations, so that adding a duration to a clock never overflows.
pub(crate) const YEAR: u64 = 365 * DAY;

const UNITS: [(&str, u64); 5] = [
    ("d", DAY),
    ("h", HOUR),
    ("m", MINUTE),
    ("s", SECOND),
    ("ms", MILLISECOND),
];

/// Parses a duration such as `10s` or `1m30s`: whole numbers with units, largest unit first, each
/// unit at most once.
///
/// # Errors
/// Fails if the text is not a duration.
pub fn duration(text: &str) -> Result<Duration, ValueError> {
    let mut rest = text;
    let mut sum = 0_u64;
    let mut last = u64::MAX;
    while !rest.is_empty() {
        let (count, unit, tail) = step(rest).ok_or("not a duration")?;
        let known = UNITS.iter().find(|(name, _)| *name == unit);
        let millis = match known {
            Some((_, millis)) => *millis,
            None if unit.is_empty() && tail.is_empty() => {
                return Err("a duration without a unit".into());
            }
            None => {
                let unit = shortened(&rest[rest.len() - unit.len() - tail.len()..]);
                return Err(format!("{unit:?} is not a unit of time").into());
            }
        };
        if millis >= last {
            return Err("units out of order".into());
        }
        last = millis;
        let part = count.checked_mul(millis);
        let longer = part.and_then(|part| sum.checked_add(part));
        sum = longer
            .filter(|sum| *sum <= YEAR)
            .ok_or("longer than 365 days")?;
        rest = tail;
    }
    match last {
        u64::MAX => Err("empty".into()),
        _ => Ok(Duration::from_millis(sum)),
    }
}

/// Formats a duration for the configuration file. One day is written `24h`; days are used from
/// `2d`.
pub(crate) fn shown(millis: u64) -> String {
    let mut rest = millis;
    let mut text = String::new();
    for (unit, length) in UNITS {
        let least = if unit == "d" { 2 * length } else { length };
        if rest >= least {
            text += &format!("{}{unit}", rest / length);
            rest %= length;
        }
    }
    if text.is_empty() {
        "0s".to_owned()
    } else {
        text
    }
}

/// Splits `text` into its leading number, the unit, and the text that follows.
fn step(text: &str) -> Option<(u64, &str, &str)> {
    let end = |text: &str, fits: fn(char) -> bool| text.find(|c| !fits(c)).unwrap_or(text.len());
    let (number, rest) = text.split_at(end(text, |c| c.is_ascii_digit()));
    let (unit, tail) = rest.split_at(end(rest, |c| c.is_ascii_alphabetic()));
    Some((number.parse().ok()?, unit, tail))
}

const SIZES: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

pub(crate) fn size(text: &str) -> Result<u64, ValueError> {
    let (count, unit, tail) = step(text).ok_or("not a size")?;
    let known = SIZES.iter().find(|(name, _)| *name == unit);
    let factor = match (unit, known) {
        _ if !tail.is_empty() => return Err("not a size".into()),
        ("" | "B", _) => 1,
        (_, Some((_, factor))) => *factor,
        _ => return Err("an unknown unit of size".into()),
    };
    count.checked_mul(factor).ok_or("too large".into())
}

pub(crate) fn shown_size(bytes: u64) -> String {
    let fits = |(_, factor): &&(&str, u64)| bytes >= *factor && bytes.is_multiple_of(*factor);
    match SIZES.iter().find(fits) {
        Some((unit, factor)) => format!("{}{unit}", bytes / factor),
        None => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_whole_numbers_with_units_in_order() {
        for (text, millis) in [
            ("500ms", 500),
            ("10s", 10_000),
            ("1m30s", 90_000),
            ("24h", 86_400_000),
            ("7d", 604_800_000),
            ("0s", 0),
            ("1h2ms", 3_600_002),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
            assert_eq!(shown(millis), text);
        }
    }

    #[test]
    fn other_durations_are_refused() {
        for text in [
            "",
            "10",
            "s",
            "1.5s",
            "1s1s",
            "1s1m",
            "1 s",
            "-1s",
            "1w",
            "366d",
            "1é",
            "é",
            "99999999999999999999s",
            "18446744073709551615d",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
        let error = duration("2 minutes").unwrap_err().to_string();
        assert_eq!(error, "\" minutes\" is not a unit of time");
    }

    #[test]
    fn sizes_have_binary_units() {
        for (text, bytes) in [
            ("65537", 65_537),
            ("64KiB", 64 << 10),
            ("1MiB", 1 << 20),
            ("2GiB", 2 << 30),
        ] {
            assert_eq!(size(text), Ok(bytes));
            assert_eq!(shown_size(bytes), text);
        }
        for text in [
            "",
            "64KB",
            "64 KiB",
            "KiB",
            "1KiB2",
            "18446744073709551615KiB",
            "-1",
        ] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
