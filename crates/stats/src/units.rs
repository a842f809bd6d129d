//! Durations, sizes, rates and ratios in human-readable form.
//!
//! Accepted: `250us`, `10ms`, `1.5s`, `2m`, `1h` (a bare number is seconds); `1024`, `16k`, `16KiB`,
//! `1M`, `1GiB` (all powers of 1024, as in wrk and nginx); `500`, `5k`, `1.2M` for rates (powers of
//! 1000). Formatting uses the unit that leaves one to three digits before the decimal point.

use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {accepted}")]
pub struct UnitError {
    text: String,
    accepted: &'static str,
}

impl UnitError {
    pub fn new(text: &str, accepted: &'static str) -> Self {
        Self {
            text: text.to_owned(),
            accepted,
        }
    }
}

/// Parses a duration such as `10s`, `500ms` or `2m`; a bare number is in seconds.
///
/// # Errors
/// Fails for a negative value, more than a year, or another unit.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let scale = |unit: &str| match unit {
        "us" | "µs" => Some(1e-6),
        "ms" => Some(1e-3),
        "" | "s" => Some(1.0),
        "m" | "min" => Some(60.0),
        "h" => Some(3_600.0),
        _ => None,
    };
    let seconds = scaled(text, scale).filter(|s| *s <= LONGEST_SECONDS);
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| UnitError::new(text, "a duration (accepted: 250us, 10ms, 1.5s, 2m, 1h)"))
}

/// Parses a number of bytes such as `0`, `16k`, `64KiB` or `1G`; the letters are powers of 1024.
///
/// # Errors
/// Fails for a negative value, more than 2^53 bytes, or another unit.
pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    let scale = |unit: &str| match unit.to_ascii_lowercase().as_str() {
        "" | "b" => Some(1.0),
        "k" | "kb" | "kib" => Some(1024.0),
        "m" | "mb" | "mib" => Some(1024.0 * 1024.0),
        "g" | "gb" | "gib" => Some(1024.0 * 1024.0 * 1024.0),
        _ => None,
    };
    let bytes = scaled(text, scale).filter(|b| *b <= EXACT_IN_F64);
    bytes
        .map(|b| b as u64)
        .ok_or_else(|| UnitError::new(text, "a size in bytes (accepted: 1024, 16k, 64KiB, 1M, 1G)"))
}

/// Parses a rate per second such as `500`, `2.5k` or `1M`; the letters are powers of 1000.
///
/// # Errors
/// Fails for zero, a negative value, or anything that is not a number.
pub fn parse_rate(text: &str) -> Result<f64, UnitError> {
    let scale = |unit: &str| match unit {
        "" | "/s" => Some(1.0),
        "k" | "K" => Some(1e3),
        "m" | "M" => Some(1e6),
        _ => None,
    };
    scaled(text, scale)
        .filter(|rate| *rate > 0.0)
        .ok_or_else(|| UnitError::new(text, "a rate per second (accepted: 500, 2.5k, 1M)"))
}

fn scaled(text: &str, scale: impl Fn(&str) -> Option<f64>) -> Option<f64> {
    let text = text.trim();
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let value = number.parse::<f64>().ok()? * scale(unit.trim())?;
    value.is_finite().then_some(value)
}

/// Formats microseconds with a suitable unit: `87.0 us`, `1.24 ms`, `2.00 s`.
pub fn show_us(us: f64) -> String {
    match us {
        us if us < 1_000.0 => format!("{us:.1} us"),
        us if us < 1_000_000.0 => format!("{:.2} ms", us / 1_000.0),
        us => format!("{:.2} s", us / 1_000_000.0),
    }
}

/// Formats a number of bytes in powers of 1024: `312 B`, `1.0 KiB`, `2.5 GiB`.
pub fn show_bytes(bytes: f64) -> String {
    if bytes < 1024.0 {
        return format!("{bytes:.0} B");
    }
    let mut value = bytes / 1024.0;
    for unit in ["KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return format!("{value:.1} {unit}");
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

/// Formats a rate with a suitable number of digits: `7.53/s`, `812/s`, `12 345/s`.
pub fn show_rate(per_second: f64) -> String {
    if per_second < 100.0 {
        format!("{per_second:.2}/s")
    } else {
        format!("{}/s", show_count(per_second.round() as u64))
    }
}

pub fn show_count(count: u64) -> String {
    let digits = count.to_string();
    let mut shown = String::with_capacity(digits.len() + digits.len() / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            shown.push(' ');
        }
        shown.push(digit);
    }
    shown
}

/// Maximum duration: a year, which is longer than any run and within the range of `Duration`.
const LONGEST_SECONDS: f64 = 31_536_000.0;
/// 2^53: an `f64` is exact for every integer up to this number.
const EXACT_IN_F64: f64 = 9_007_199_254_740_992.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_in_every_unit() {
        assert_eq!(parse_duration("250us"), Ok(Duration::from_micros(250)));
        assert_eq!(parse_duration("10ms"), Ok(Duration::from_millis(10)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("3"), Ok(Duration::from_secs(3)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
    }

    #[test]
    fn invalid_values_are_quoted_with_an_accepted_example() {
        for text in ["", "s", "-1s", "1d", "1..2s", "99999999999h"] {
            let error = parse_duration(text).unwrap_err().to_string();
            assert!(
                error.contains(&format!("`{text}`")) && error.contains("10ms"),
                "{error}"
            );
        }
        assert!(parse_size("-4").is_err());
        assert!(parse_rate("0").is_err());
        assert!(parse_rate("fast").is_err());
    }

    #[test]
    fn sizes_are_powers_of_1024_and_rates_of_1000() {
        assert_eq!(parse_size("16k"), Ok(16 * 1024));
        assert_eq!(parse_size("1GiB"), Ok(1024 * 1024 * 1024));
        assert_eq!(parse_size("0"), Ok(0));
        assert_eq!(parse_rate("2.5k"), Ok(2500.0));
    }

    #[test]
    fn numbers_are_shown_with_a_suitable_unit() {
        assert_eq!(show_us(87.04), "87.0 us");
        assert_eq!(show_us(1_240.0), "1.24 ms");
        assert_eq!(show_bytes(312.0), "312 B");
        assert_eq!(show_bytes(2.5 * 1024.0 * 1024.0), "2.5 MiB");
        assert_eq!(show_count(1_234_567), "1 234 567");
        assert_eq!(show_rate(12_345.4), "12 345/s");
    }
}
