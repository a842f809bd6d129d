//! Selection of the part of a file to send: the preconditions of a request in their order, then its range.
//!
//! Source: RFC 9110, sections 13.2.2 (order), 13.1 (conditions), 14 (ranges), 8.8.3 (entity tags).

use std::ops::Range;
use std::time::{Duration, UNIX_EPOCH};

use crate::head::Head;

/// Properties of a file that preconditions evaluate.
#[derive(Clone, Copy, Debug)]
pub struct Representation<'a> {
    /// Strong entity tag, including quotes.
    pub etag: &'a str,
    /// Time of the last change, whole seconds since 1970.
    pub modified: u64,
    pub len: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selected {
    Whole,
    /// A nonempty range of bytes.
    Part(Range<u64>),
    /// The file has no byte of the requested range.
    Unsatisfiable,
    /// The client's copy is current.
    NotModified,
    /// The file does not meet the client's precondition.
    PreconditionFailed,
}

/// Selects the part of `file` to send. Ignores ranges for HEAD (`head_only`). `now` is in seconds
/// since 1970.
#[must_use]
pub fn select(head: &Head<'_>, head_only: bool, file: &Representation<'_>, now: u64) -> Selected {
    let holds = match any_tag(head, "if-match", |tag| tag.is_strong_and(file.etag)) {
        Some(holds) => holds,
        None => date(head, "if-unmodified-since").is_none_or(|date| file.modified <= date),
    };
    if !holds {
        return Selected::PreconditionFailed;
    }
    let has = match any_tag(head, "if-none-match", |tag| {
        tag.opaque == file.etag.as_bytes()
    }) {
        Some(has) => has,
        None => date(head, "if-modified-since").is_some_and(|date| file.modified <= date),
    };
    if has {
        return Selected::NotModified;
    }
    match head.single("range") {
        Some(range) if !head_only && may_be_partial(head, file, now) => part(range, file.len),
        _ => Selected::Whole,
    }
}

/// Returns `true` if If-Range permits a partial response: the client's partial copy must match the
/// current file.
fn may_be_partial(head: &Head<'_>, file: &Representation<'_>, now: u64) -> bool {
    let mut values = head.values("if-range");
    let Some(value) = values.next() else {
        return true;
    };
    if values.next().is_some() {
        return false;
    }
    match Tag::first(value) {
        Some((tag, [])) => tag.is_strong_and(file.etag),
        // A date is a strong validator only if the file cannot change again within the same second (RFC 9110, section
        // 8.8.2.2).
        _ => date_of(value) == Some(file.modified) && file.modified < now,
    }
}

/// Returns the date in a field, in seconds since 1970. An invalid or duplicate field is ignored.
fn date(head: &Head<'_>, name: &str) -> Option<u64> {
    date_of(head.single(name)?)
}

fn date_of(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?;
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

/// Formats seconds since 1970 as an HTTP date.
#[must_use]
pub fn date_text(seconds: u64) -> String {
    // Limits the time to the year 9999, the last that an HTTP date can express; file timestamps may
    // be later.
    let time = UNIX_EPOCH + Duration::from_secs(seconds.min(LAST_DATE));
    httpdate::fmt_http_date(time)
}

struct Tag<'v> {
    is_weak: bool,
    opaque: &'v [u8],
}

impl<'v> Tag<'v> {
    /// Splits off the first tag of a value.
    fn first(value: &'v [u8]) -> Option<(Self, &'v [u8])> {
        let (is_weak, rest) = match value.strip_prefix(b"W/") {
            Some(rest) => (true, rest),
            None => (false, value),
        };
        let inner = rest.strip_prefix(b"\"")?;
        let end = inner.iter().position(|byte| *byte == b'"')?;
        let (opaque, rest) = rest.split_at(end + 2);
        Some((Self { is_weak, opaque }, rest.trim_ascii_start()))
    }

    fn is_strong_and(&self, etag: &str) -> bool {
        !self.is_weak && self.opaque == etag.as_bytes()
    }
}

/// Returns `true` if the field `name` is `*` or contains a tag that `fits` accepts. Returns `None`
/// if the head lacks the field.
fn any_tag(head: &Head<'_>, name: &str, fits: impl Fn(&Tag<'_>) -> bool) -> Option<bool> {
    let mut found = None;
    for value in head.values(name) {
        let mut rest = value;
        let mut has = value == b"*";
        while let Some((tag, behind)) = Tag::first(rest) {
            has |= fits(&tag);
            let is_separator = |byte: &u8| matches!(byte, b',' | b' ' | b'\t');
            let skip = behind.iter().take_while(|byte| is_separator(byte)).count();
            rest = &behind[skip..];
        }
        found = Some(found.unwrap_or(false) || has);
    }
    found
}

/// Selects one range of bytes. Several ranges, or invalid ones, select the whole file (RFC 9110,
/// section 14.2).
fn part(value: &[u8], len: u64) -> Selected {
    let (unit, set) = value.split_at(value.len().min(UNIT.len()));
    if !unit.eq_ignore_ascii_case(UNIT) {
        return Selected::Whole;
    }
    let parts = set.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    let mut parts = parts.filter(|part| !part.is_empty());
    let (Some(one), None) = (parts.next(), parts.next()) else {
        return Selected::Whole;
    };
    let Some(dash) = one.iter().position(|byte| *byte == b'-') else {
        return Selected::Whole;
    };
    let range = match (&one[..dash], &one[dash + 1..]) {
        ([], last) => number(last).map(|last| len.saturating_sub(last)..len),
        (first, []) => number(first).map(|first| first..len),
        (first, last) => match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => {
                Some(first..last.saturating_add(1).min(len))
            }
            _ => None,
        },
    };
    match range {
        None => Selected::Whole,
        Some(range) if range.is_empty() => Selected::Unsatisfiable,
        Some(range) => Selected::Part(range),
    }
}

/// Parses a number of any length. Saturates, because no file is that long.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let next = |sum: u64, digit: &u8| {
        sum.saturating_mul(10)
            .saturating_add(u64::from(digit - b'0'))
    };
    Some(digits.iter().fold(0, next))
}

const UNIT: &[u8] = b"bytes=";
/// End of the year 9999, in seconds since 1970.
const LAST_DATE: u64 = 253_402_300_799;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::head::parse;

    /// A file of 100 bytes, changed 1994-11-15T12:45:26Z.
    const FILE: Representation<'_> = Representation {
        etag: "\"a,b\"",
        modified: 784_903_526,
        len: 100,
    };
    const SAME: &str = "Tue, 15 Nov 1994 12:45:26 GMT";
    const EARLIER: &str = "Tue, 15 Nov 1994 12:45:25 GMT";
    const LATER: &str = "Tuesday, 15-Nov-94 12:45:27 GMT";

    fn choose(method: &str, fields: &str, file: &Representation<'_>) -> Selected {
        let head = format!("{method} / HTTP/1.1\r\n{fields}\r\n\r\n").replace("; ", "\r\n");
        let head = parse(head.as_bytes()).unwrap();
        select(&head, method == "HEAD", file, FILE.modified + 1)
    }

    fn get(fields: &str) -> Selected {
        choose("GET", fields, &FILE)
    }

    #[test]
    fn conditions_come_in_their_order() {
        let failed = Selected::PreconditionFailed;
        for (fields, expected) in [
            ("If-Match: *".to_owned(), Selected::Whole),
            ("If-Match: \"a,b\"".to_owned(), Selected::Whole),
            ("If-Match: \"x\", \"a,b\"".to_owned(), Selected::Whole),
            (
                "If-Match: \"x\"; If-Match: \"a,b\"".to_owned(),
                Selected::Whole,
            ),
            ("If-Match: W/\"a,b\"".to_owned(), failed.clone()),
            ("If-Match: \"a\"".to_owned(), failed.clone()),
            ("If-Match: a,b".to_owned(), failed.clone()),
            (format!("If-Unmodified-Since: {SAME}"), Selected::Whole),
            (format!("If-Unmodified-Since: {LATER}"), Selected::Whole),
            (format!("If-Unmodified-Since: {EARLIER}"), failed.clone()),
            ("If-Unmodified-Since: yesterday".to_owned(), Selected::Whole),
            (
                format!("If-Match: *; If-Unmodified-Since: {EARLIER}"),
                Selected::Whole,
            ),
            ("If-None-Match: *".to_owned(), Selected::NotModified),
            ("If-None-Match: W/\"a,b\"".to_owned(), Selected::NotModified),
            (
                "If-None-Match: \"b\",\t\"a,b\"".to_owned(),
                Selected::NotModified,
            ),
            ("If-None-Match: \"b\"".to_owned(), Selected::Whole),
            (format!("If-Modified-Since: {SAME}"), Selected::NotModified),
            (format!("If-Modified-Since: {LATER}"), Selected::NotModified),
            (format!("If-Modified-Since: {EARLIER}"), Selected::Whole),
            (
                format!("If-None-Match: \"b\"; If-Modified-Since: {LATER}"),
                Selected::Whole,
            ),
            ("If-Match: \"x\"; If-None-Match: *".to_owned(), failed),
            (
                "If-None-Match: *; Range: bytes=0-1".to_owned(),
                Selected::NotModified,
            ),
        ] {
            assert_eq!(get(&fields), expected, "{fields}");
        }
    }

    #[test]
    fn a_single_range_gets_a_part_and_all_others_the_whole_file() {
        for (range, expected) in [
            ("bytes=0-0", Selected::Part(0..1)),
            ("BYTES=10-", Selected::Part(10..100)),
            ("bytes=-7", Selected::Part(93..100)),
            ("bytes=-700", Selected::Part(0..100)),
            ("bytes=90-700", Selected::Part(90..100)),
            ("bytes= ,5-6, ", Selected::Part(5..7)),
            ("bytes=0-18446744073709551616000", Selected::Part(0..100)),
            ("bytes=100-", Selected::Unsatisfiable),
            ("bytes=100-200", Selected::Unsatisfiable),
            ("bytes=18446744073709551616000-", Selected::Unsatisfiable),
            ("bytes=-0", Selected::Unsatisfiable),
            ("bytes=0-1,3-4", Selected::Whole),
            ("bytes=2-1", Selected::Whole),
            ("bytes=", Selected::Whole),
            ("bytes=-", Selected::Whole),
            ("bytes=a-b", Selected::Whole),
            ("bytes=1 - 2", Selected::Whole),
            ("lines=0-1", Selected::Whole),
            ("bytes", Selected::Whole),
        ] {
            assert_eq!(get(&format!("Range: {range}")), expected, "{range}");
        }
        assert_eq!(choose("HEAD", "Range: bytes=0-0", &FILE), Selected::Whole);
        assert_eq!(get("Range: bytes=0-0; Range: bytes=0-0"), Selected::Whole);
        let empty = Representation { len: 0, ..FILE };
        for range in ["0-", "0-0", "-1"] {
            let fields = format!("Range: bytes={range}");
            assert_eq!(choose("GET", &fields, &empty), Selected::Unsatisfiable);
        }
    }

    #[test]
    fn a_range_of_a_changed_file_is_answered_with_the_whole_file() {
        let part = Selected::Part(0..1);
        for (condition, expected) in [
            ("\"a,b\"".to_owned(), &part),
            (SAME.to_owned(), &part),
            ("W/\"a,b\"".to_owned(), &Selected::Whole),
            ("\"b\"".to_owned(), &Selected::Whole),
            ("\"a,b\" x".to_owned(), &Selected::Whole),
            (EARLIER.to_owned(), &Selected::Whole),
            (LATER.to_owned(), &Selected::Whole),
            ("nonsense".to_owned(), &Selected::Whole),
        ] {
            let fields = format!("If-Range: {condition}; Range: bytes=0-0");
            assert_eq!(get(&fields), *expected, "{condition}");
        }
        let fresh = Representation {
            modified: FILE.modified + 1,
            ..FILE
        };
        let fields = "If-Range: Tue, 15 Nov 1994 12:45:27 GMT; Range: bytes=0-0";
        assert_eq!(choose("GET", fields, &fresh), Selected::Whole);
    }

    #[test]
    fn a_date_is_written_as_it_is_read() {
        assert_eq!(date_text(FILE.modified), SAME);
        assert_eq!(date_of(SAME.as_bytes()), Some(FILE.modified));
        assert_eq!(date_text(u64::MAX), "Fri, 31 Dec 9999 23:59:59 GMT");
    }

    proptest! {
        #[test]
        fn a_part_is_within_the_file(range in "bytes=[0-9, -]{0,12}", len in 0..50_u64) {
            match part(range.as_bytes(), len) {
                Selected::Part(range) => prop_assert!(range.start < range.end && range.end <= len),
                chosen => prop_assert!(matches!(chosen, Selected::Whole | Selected::Unsatisfiable)),
            }
        }
    }
}
