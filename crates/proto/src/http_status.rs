//! The first line of an HTTP response, and which statuses are expected: what a health check needs of HTTP.
//!
//! [`scan`] looks at the bytes that have come and answers "incomplete", the status or a refusal, and never changes its
//! mind when more come. It reads no header and no body. [`Expected`] is a set of statuses as people write it: `200`,
//! `2xx`, `200-399`.
//!
//! Source: RFC 9112 section 4 (status line), RFC 9110 section 15 (status codes).

use std::str::FromStr;

/// Bytes of a status line, its end included, that are waited for: the longest that somebody sends is a sentence.
pub const MAX_LINE_BYTES: usize = 512;

/// What the bytes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// More bytes decide.
    Incomplete,
    /// A status line, with this status.
    Status(u16),
    /// No response of HTTP/1.
    NotHttp,
}

/// Looks for a status line at the start of `bytes`.
pub fn scan(bytes: &[u8]) -> Scan {
    let line = bytes.get(..MAX_LINE_BYTES).unwrap_or(bytes);
    for (at, byte) in line.iter().enumerate() {
        if !fits(at, *byte) {
            return Scan::NotHttp;
        }
        if *byte == b'\n' && at >= LEAST {
            return status(line).map_or(Scan::NotHttp, Scan::Status);
        }
    }
    match line.len() < MAX_LINE_BYTES {
        true => Scan::Incomplete,
        false => Scan::NotHttp,
    }
}

/// Whether a byte may stand at this place of a status line.
fn fits(at: usize, byte: u8) -> bool {
    match (at, SHAPE.get(at)) {
        (_, Some(b'?')) => byte.is_ascii_digit(),
        (_, Some(shape)) => byte == *shape,
        // The reason is optional, and so is the space before it.
        (LEAST, None) => matches!(byte, b' ' | b'\r' | b'\n'),
        // A control byte is no part of a reason; bytes of other alphabets are.
        (_, None) => byte >= b' ' || matches!(byte, b'\t' | b'\r' | b'\n'),
    }
}

fn status(line: &[u8]) -> Option<u16> {
    let digits = line.get(LEAST - 3..LEAST)?;
    let status = digits
        .iter()
        .fold(0, |status, digit| status * 10 + u16::from(digit - b'0'));
    (100..=599).contains(&status).then_some(status)
}

/// What a status line begins with; `?` is a digit.
const SHAPE: &[u8] = b"HTTP/1.? ???";
/// The first byte behind the status.
const LEAST: usize = SHAPE.len();

/// A range of statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    first: u16,
    last: u16,
}

impl Expected {
    /// Whether a status is expected.
    pub fn contains(self, status: u16) -> bool {
        (self.first..=self.last).contains(&status)
    }
}

/// The text is no status, no class and no range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a status")]
pub struct NotStatus;

impl FromStr for Expected {
    type Err = NotStatus;

    fn from_str(text: &str) -> Result<Self, NotStatus> {
        let one = |text: &str| {
            let digits = text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit());
            let number = text.parse().ok().filter(|_| digits);
            number
                .filter(|status| (100..=599).contains(status))
                .ok_or(NotStatus)
        };
        if let Some(class) = text.strip_suffix("xx") {
            let first = one(&format!("{class}00"))?;
            return Ok(Self {
                first,
                last: first + 99,
            });
        }
        let (first, last) = match text.split_once('-') {
            Some((first, last)) => (one(first)?, one(last)?),
            None => (one(text)?, one(text)?),
        };
        (first <= last)
            .then_some(Self { first, last })
            .ok_or(NotStatus)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_status_line_tells_its_status() {
        for (text, status) in [
            ("HTTP/1.1 200 OK\r\n", 200),
            ("HTTP/1.0 503 Service Unavailable\r\nServer: x\r\n", 503),
            ("HTTP/1.1 404\n", 404),
            ("HTTP/1.1 204\r\n", 204),
            ("HTTP/1.1 204 \r\n", 204),
            ("HTTP/1.1 200 d\u{e9}j\u{e0} vu\r\n", 200),
        ] {
            assert_eq!(scan(text.as_bytes()), Scan::Status(status), "{text}");
        }
    }

    #[test]
    fn what_is_not_http_is_known_at_its_first_byte() {
        for text in [
            "S",
            "\u{15}\u{3}\u{3}",
            "HTTP/2",
            "HTTP/1.1 2x",
            "HTTP/1.1 2000",
            "HTTP/1.1  200",
        ] {
            assert_eq!(scan(text.as_bytes()), Scan::NotHttp, "{text}");
        }
        assert_eq!(scan(b"HTTP/1.1 099 \r\n"), Scan::NotHttp);
        assert_eq!(scan(b"HTTP/1.1 600 \r\n"), Scan::NotHttp);
        assert_eq!(scan(b"HTTP/1.1 200 a\0"), Scan::NotHttp);
    }

    #[test]
    fn a_line_without_end_is_given_up() {
        let mut line = b"HTTP/1.1 200 ".to_vec();
        line.resize(MAX_LINE_BYTES - 1, b'a');
        assert_eq!(scan(&line), Scan::Incomplete);
        line.push(b'a');
        assert_eq!(scan(&line), Scan::NotHttp);
    }

    #[test]
    fn expected_statuses_have_three_notations() {
        let expected = |text: &str| text.parse::<Expected>().unwrap();
        assert!(expected("200").contains(200) && !expected("200").contains(201));
        assert!(expected("2xx").contains(299) && !expected("2xx").contains(300));
        assert!(expected("200-399").contains(302) && !expected("200-399").contains(400));
        for text in [
            "", "20", "2000", "xx", "6xx", "+20", "399-200", "200-", "2x", "ok",
        ] {
            assert_eq!(text.parse::<Expected>(), Err(NotStatus), "{text}");
        }
    }

    proptest! {
        #[test]
        fn the_answer_does_not_change_as_bytes_come(
            status in 0_u16..1000,
            reason in "[ -~]{0,40}",
            garbage in proptest::collection::vec(any::<u8>(), 0..3),
            at in 0_usize..60,
        ) {
            let mut bytes = format!("HTTP/1.1 {status:03} {reason}\r\nA: b\r\n").into_bytes();
            let at = at.min(bytes.len());
            bytes.splice(at..at, garbage);
            let last = scan(&bytes);
            for end in 0..bytes.len() {
                let early = scan(&bytes[..end]);
                prop_assert!(early == Scan::Incomplete || early == last, "{early:?} became {last:?}");
            }
        }
    }
}
