//! Sizes and times with three significant figures, for lines that people read.
//!
//! Units are decimal: each is 1000 times the one before it. `becket_stats` has the binary units of reports.

use std::time::Duration;

/// Formats a size: `6 B`, `1.23 kB`, `45.6 MB`.
pub(crate) fn bytes(count: u64) -> String {
    if count < 1000 {
        return format!("{count} B");
    }
    scaled(count as f64 / 1e3, &["kB", "MB", "GB", "TB", "PB", "EB"])
}

/// Formats a time: `0.312 ms`, `12.3 ms`, `1.50 s`. Zero is `0 ms`, because a worker reads its clock
/// once per turn of its loop.
pub(crate) fn time(time: Duration) -> String {
    if time.is_zero() {
        return "0 ms".to_owned();
    }
    scaled(time.as_secs_f64() * 1e3, &["ms", "s"])
}

/// Uses the first unit in which the value has at most three digits before the point, or the last one. The limits are those of rounding:
/// 0.9995 becomes 1.00.
fn scaled(mut value: f64, units: &[&str]) -> String {
    let mut at = 0;
    while value >= 999.5 && at + 1 < units.len() {
        value /= 1e3;
        at += 1;
    }
    let digits = match value {
        value if value < 0.9995 => 3,
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {}", units[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_figures() {
        for (count, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.00 kB"),
            (12_345, "12.3 kB"),
            (999_499, "999 kB"),
            (999_500, "1.00 MB"),
            (u64::MAX, "18.4 EB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn times_have_three_figures() {
        for (micros, text) in [
            (0, "0 ms"),
            (312, "0.312 ms"),
            (999, "0.999 ms"),
            (1_234, "1.23 ms"),
            (99_960, "100 ms"),
            (999_600, "1.00 s"),
            (3_600_000_000, "3600 s"),
        ] {
            assert_eq!(time(Duration::from_micros(micros)), text);
        }
    }
}
