//! Compressed variants of a file that a client accepts (RFC 9110, section 12.5.3).

use becket_proto::labelled;

use crate::head::Head;

labelled! {
/// A coding with its name in header fields. Ordered by the size of the files, smallest first.
pub enum Coding {
    /// Brotli (RFC 7932).
    Br = "br",
    /// Zstandard (RFC 8878).
    Zstd = "zstd",
    /// Gzip (RFC 1952).
    Gzip = "gzip",
}
}

impl Coding {
    #[must_use]
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Br => ".br",
            Self::Zstd => ".zst",
            Self::Gzip => ".gz",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Codings(u8);

impl Codings {
    #[must_use]
    pub fn has(self, coding: Coding) -> bool {
        self.0 & 1 << coding as u8 != 0
    }

    fn set(&mut self, coding: Coding, is_in: bool) {
        let bit = 1 << coding as u8;
        self.0 = if is_in { self.0 | bit } else { self.0 & !bit };
    }
}

/// Returns the codings that a client accepts. The result is empty without Accept-Encoding, since
/// the client may not support any coding.
#[must_use]
pub fn accepted(head: &Head<'_>) -> Codings {
    let (mut codings, mut named) = (Codings::default(), Codings::default());
    let mut any = false;
    let values = head.values("accept-encoding");
    for one in values.flat_map(|value| value.split(|byte| *byte == b',')) {
        let mut parts = one.split(|byte| *byte == b';');
        let word = parts.next().unwrap_or_default().trim_ascii();
        let is_taken = !parts.any(is_zero);
        if word == b"*" {
            any = is_taken;
        }
        let word = word.to_ascii_lowercase();
        let word = word.strip_prefix(b"x-").unwrap_or(&word);
        if let Some(coding) = Coding::ALL
            .into_iter()
            .find(|one| one.label().as_bytes() == word)
        {
            codings.set(coding, is_taken);
            named.set(coding, true);
        }
    }
    for coding in Coding::ALL {
        if any && !named.has(coding) {
            codings.set(coding, true);
        }
    }
    codings
}

/// Returns `true` for a weight of zero, which means "not acceptable" (RFC 9110, section 12.4.2).
fn is_zero(parameter: &[u8]) -> bool {
    let parameter = parameter.trim_ascii();
    let weight = parameter
        .strip_prefix(b"q=")
        .or(parameter.strip_prefix(b"Q="));
    weight.is_some_and(|weight| weight.iter().all(|byte| matches!(byte, b'0' | b'.')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head::parse;

    fn taken(value: &str) -> String {
        let head = format!("GET / HTTP/1.1\r\nAccept-Encoding: {value}\r\n\r\n");
        let codings = accepted(&parse(head.as_bytes()).unwrap());
        let taken = Coding::ALL
            .into_iter()
            .filter(|coding| codings.has(*coding));
        taken.map(Coding::label).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_client_accepts_codings_with_a_nonzero_weight() {
        for (value, expected) in [
            ("", ""),
            ("gzip, deflate, br, zstd", "br zstd gzip"),
            ("GZIP;q=0.5, br;q=0", "gzip"),
            ("br ; q=0.000, zstd;q=0.001", "zstd"),
            ("x-gzip", "gzip"),
            ("*", "br zstd gzip"),
            ("*;q=0, gzip", "gzip"),
            ("gzip;q=0, *", "br zstd"),
            ("identity", ""),
            ("gzipped", ""),
        ] {
            assert_eq!(taken(value), expected, "{value}");
        }
    }
}
