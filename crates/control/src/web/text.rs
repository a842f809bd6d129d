//! Text of the status page: escaped strings, numbers with units, and times.

use std::fmt::{self, Display, Write};
use std::time::Duration;

use becket_log::Timestamp;

/// Formats a duration with its two largest units.
pub fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// Formats a number with at most four digits, scaled by a unit prefix.
pub(super) fn short(value: f64) -> String {
    match value {
        10_000_000.0.. => format!("{:.0}M", value / 1e6),
        10_000.0.. => format!("{:.0}k", value / 1e3),
        100.0.. => format!("{value:.0}"),
        _ if value.fract() == 0.0 => format!("{value:.0}"),
        ..1.0 => format!("{value:.2}"),
        _ => format!("{value:.1}"),
    }
}

pub(super) fn micros(us: f64) -> String {
    match us {
        1_000_000.0.. => format!("{} s", short(us / 1e6)),
        1000.0.. => format!("{} ms", short(us / 1e3)),
        _ => format!("{} µs", short(us)),
    }
}

/// Returns the time of day in UTC, such as `12:03:10`.
pub(super) fn clock(unix: u64) -> String {
    let at = Timestamp::from_unix(Duration::from_secs(unix));
    at.to_string().chars().skip(11).take(8).collect()
}

/// Joins the first [`MOST_ITEMS`] items. Appends the number of omitted items, and the `command`
/// that lists them.
pub(super) fn first(items: impl IntoIterator<Item = String>, command: &str) -> String {
    let mut items = items.into_iter();
    let shown: Vec<String> = items.by_ref().take(MOST_ITEMS).collect();
    match items.count() {
        0 => shown.join(", "),
        more => format!("{}, {more} more: {command}", shown.join(", ")),
    }
}

/// Escapes text for HTML. Also escapes control characters, because curl prints pages to a terminal.
pub(super) struct Escape<'a>(pub(super) &'a str);

impl Display for Escape<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|char| match char {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            char if char.is_control() => write!(f, "{}", char.escape_unicode()),
            char => f.write_char(char),
        })
    }
}

const MOST_ITEMS: usize = 8;
