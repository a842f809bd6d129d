//! HTTP statuses that a health check accepts, as a configuration file lists them: `200`, `2xx`,
//! `200-399`.
//!
//! Source: RFC 9110 section 15 (status codes).

use std::fmt;
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    first: u16,
    last: u16,
}

impl Expected {
    pub fn contains(self, status: u16) -> bool {
        (self.first..=self.last).contains(&status)
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.first, self.last) {
            (first, last) if first == last => write!(f, "{first}"),
            (first, last) if first % 100 == 0 && last == first + 99 => {
                write!(f, "{}xx", first / 100)
            }
            (first, last) => write!(f, "{first}-{last}"),
        }
    }
}

/// Neither a status, nor a class (`2xx`), nor a range.
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
    use super::*;

    #[test]
    fn expected_statuses_accept_three_notations() {
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
}
