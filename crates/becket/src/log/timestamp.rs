//! A moment of the calendar as logs and pages write it: RFC 3339 in UTC with microseconds.
//!
//! Owns the conversion from the system clock's count to a date, nothing else: it reads no clock.
//! The calendar is the proleptic Gregorian one, days counted in eras of 400 years.

use std::fmt::{self, Display};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};

/// Microseconds since 1970-01-01T00:00:00Z, without leap seconds. Fixed width when displayed:
/// `2026-02-28T23:59:59.000001Z`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The moment `since_epoch` after the epoch; capped at the end of the year 9999.
    pub fn from_unix(since_epoch: Duration) -> Self {
        let us = u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX);
        Self(us.min(LAST_US))
    }

    /// Whole seconds since the epoch.
    pub const fn unix_seconds(self) -> u64 {
        self.0 / MICROS
    }
}

impl From<SystemTime> for Timestamp {
    /// A clock that is set before the epoch counts as the epoch.
    fn from(time: SystemTime) -> Self {
        Self::from_unix(time.duration_since(UNIX_EPOCH).unwrap_or_default())
    }
}

impl Serialize for Timestamp {
    /// As the text of its `Display`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.unix_seconds();
        let (year, month, day) = civil(seconds / DAY);
        let (hour, minute, second) = (seconds % DAY / 3600, seconds % 3600 / 60, seconds % 60);
        let micros = self.0 % MICROS;
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z"
        )
    }
}

/// Year, month and day of a number of days since the epoch. The year is reckoned from March, so
/// that the leap day comes last and months follow a straight line of 153 days to five.
fn civil(days: u64) -> (u64, u64, u64) {
    // 1970-01-01 is day 719468 of the era that began on 0000-03-01.
    let days = days + 719_468;
    let (era, day_of_era) = (days / ERA_DAYS, days % ERA_DAYS);
    let leap_days = day_of_era / 1_460 - day_of_era / 36_524 + day_of_era / 146_096;
    let year_of_era = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = (from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

const MICROS: u64 = 1_000_000;
/// Seconds in a day.
const DAY: u64 = 24 * 60 * 60;
/// Days in 400 years.
const ERA_DAYS: u64 = 146_097;
/// The last microsecond that has a year of four digits.
const LAST_US: u64 = 253_402_300_800 * MICROS - 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn text(unix_seconds: u64) -> String {
        Timestamp::from_unix(Duration::from_secs(unix_seconds)).to_string()
    }

    #[test]
    fn known_moments_are_written_as_rfc_3339() {
        assert_eq!(text(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(text(951_782_400), "2000-02-29T00:00:00.000000Z");
        assert_eq!(text(1_709_251_199), "2024-02-29T23:59:59.000000Z");
        assert_eq!(text(4_107_542_400), "2100-03-01T00:00:00.000000Z");
        let micros = Timestamp::from_unix(Duration::from_micros(1_234_567_890_000_001));
        assert_eq!(micros.to_string(), "2009-02-13T23:31:30.000001Z");
    }

    #[test]
    fn days_follow_each_other_through_two_centuries() {
        let length = |year: u64, month: u64| match month {
            2 if year.is_multiple_of(4)
                && (!year.is_multiple_of(100) || year.is_multiple_of(400)) =>
            {
                29
            }
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for days in 0..200 * 365 {
            assert_eq!(civil(days), (year, month, day));
            day += 1;
            if day > length(year, month) {
                (month, day) = (month + 1, 1);
            }
            if month > 12 {
                (year, month) = (year + 1, 1);
            }
        }
    }

    #[test]
    fn times_out_of_range_are_capped() {
        assert_eq!(text(u64::MAX), "9999-12-31T23:59:59.999999Z");
        let before = UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(Timestamp::from(before), Timestamp::default());
    }
}
