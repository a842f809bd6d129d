//! Timestamps of logs and pages: RFC 3339 in UTC with microseconds. This module reads no clock.

use std::fmt::{self, Display};
use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Microseconds since 1970-01-01T00:00:00Z, without leap seconds. The displayed text has a fixed
/// width: `2026-02-28T23:59:59.000001Z`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Returns the timestamp `since_epoch` after the epoch, capped at the end of the year 9999.
    pub fn from_unix(since_epoch: Duration) -> Self {
        let us = u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX);
        Self(us.min(LAST_US))
    }

    pub const fn unix_seconds(self) -> u64 {
        self.0 / MICROS
    }

    /// Returns the time since `earlier`, or zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let moment = OffsetDateTime::parse(&text, &Rfc3339).map_err(D::Error::custom)?;
        let since_epoch = Duration::try_from(moment - OffsetDateTime::UNIX_EPOCH);
        Ok(Self::from_unix(since_epoch.unwrap_or_default()))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let t = OffsetDateTime::UNIX_EPOCH + Duration::from_micros(self.0);
        let (year, month, day) = t.to_calendar_date();
        let (hour, minute, second, micros) = t.to_hms_micro();
        write!(
            f,
            "{year:04}-{:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z",
            u8::from(month)
        )
    }
}

const MICROS: u64 = 1_000_000;
/// Last microsecond of the year 9999.
const LAST_US: u64 = 253_402_300_800 * MICROS - 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn text(unix_seconds: u64) -> String {
        Timestamp::from_unix(Duration::from_secs(unix_seconds)).to_string()
    }

    #[test]
    fn known_timestamps_are_formatted_as_rfc_3339() {
        assert_eq!(text(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(text(951_782_400), "2000-02-29T00:00:00.000000Z");
        assert_eq!(text(1_709_251_199), "2024-02-29T23:59:59.000000Z");
        assert_eq!(text(4_107_542_400), "2100-03-01T00:00:00.000000Z");
        let micros = Timestamp::from_unix(Duration::from_micros(1_234_567_890_000_001));
        assert_eq!(micros.to_string(), "2009-02-13T23:31:30.000001Z");
    }

    #[test]
    fn times_out_of_range_are_capped() {
        assert_eq!(text(u64::MAX), "9999-12-31T23:59:59.999999Z");
    }
}
