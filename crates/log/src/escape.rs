//! Escapes bytes from a peer for logs and pages.
//!
//! Unescaped bytes are dangerous in a log: a line break forges a line, an escape sequence controls
//! the reader's terminal, and a long name fills the disk. All peer bytes are written through
//! [`Escaped`], or through [`shortened`] into a field that the line escapes.
//!
//! Invariants: the output is printable ASCII. It contains at most [`LONGEST`] source bytes, each
//! written with at most four characters, and `...` if the source is longer.

use std::fmt::{self, Display, Write};

/// Writes peer bytes as printable ASCII: a line feed becomes `\x0a`, a backslash `\\`, a double
/// quote `\"`. Bytes after the first [`LONGEST`] become `...`. Does not allocate.
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a> {
    bytes: &'a [u8],
    word: bool,
}

impl<'a> Escaped<'a> {
    pub fn new(bytes: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self {
            bytes: bytes.as_ref(),
            word: false,
        }
    }

    /// Escapes spaces too, so that the result is one field of a line that is split at spaces. An
    /// empty value becomes `""`.
    pub fn word(bytes: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self {
            bytes: bytes.as_ref(),
            word: true,
        }
    }
}

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.word && self.bytes.is_empty() {
            return f.write_str("\"\"");
        }
        for &byte in self.bytes.iter().take(LONGEST) {
            match byte {
                b'\\' | b'"' => {
                    f.write_char('\\')?;
                    f.write_char(char::from(byte))?;
                }
                b' ' if !self.word => f.write_char(' ')?,
                0x21..=0x7e => f.write_char(char::from(byte))?,
                _ => write!(f, "\\x{byte:02x}")?,
            }
        }
        if self.bytes.len() > LONGEST {
            f.write_str("...")?;
        }
        Ok(())
    }
}

/// Returns the first [`LONGEST`] bytes for a field of a log line. The line escapes the field, so
/// this text is not escaped.
pub fn shortened(bytes: &[u8]) -> String {
    let start = bytes.get(..LONGEST).unwrap_or(bytes);
    let rest = if start.len() < bytes.len() { "..." } else { "" };
    String::from_utf8_lossy(start).into_owned() + rest
}

/// Quotes `out[start..]` in JSON style if it is not a plain logfmt value. A plain value is not
/// empty and contains no white space, quote, equals sign or control character.
pub(crate) fn quote(out: &mut String, start: usize) -> fmt::Result {
    let is_special = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '"' | '=');
    if !out[start..].is_empty() && !out[start..].contains(is_special) {
        return Ok(());
    }
    let value = out.split_off(start);
    out.push('"');
    for c in value.chars() {
        if matches!(c, '"' | '\\') {
            out.push('\\');
        }
        put(c, out)?;
    }
    out.write_char('"')
}

pub(crate) fn escape(text: &str, out: &mut String) -> fmt::Result {
    text.chars().try_for_each(|c| put(c, out))
}

fn put(c: char, out: &mut String) -> fmt::Result {
    match c {
        '\n' => out.write_str("\\n"),
        c if c.is_control() => write!(out, "\\u{:04x}", u32::from(c)),
        c => out.write_char(c),
    }
}

/// Maximum number of escaped bytes: the longest server name (RFC 1035, section 2.3.4) and ALPN
/// protocol (RFC 7301, section 3.1).
pub(crate) const LONGEST: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_becomes_printable_ascii() {
        for byte in 0..=u8::MAX {
            for text in [
                Escaped::new(&[byte]).to_string(),
                Escaped::word(&[byte]).to_string(),
            ] {
                let printable = |b: u8| (0x20..0x7f).contains(&b);
                assert!(text.bytes().all(printable), "{byte} as {text:?}");
                assert!(text.len() <= 4);
            }
        }
        assert_eq!(
            Escaped::new("a\r\nb\x1b[2J").to_string(),
            r"a\x0d\x0ab\x1b[2J"
        );
        assert_eq!(Escaped::new(r#"a"b\c"#).to_string(), r#"a\"b\\c"#);
    }

    #[test]
    fn a_word_has_no_space_and_is_never_empty() {
        assert_eq!(Escaped::new("a b").to_string(), "a b");
        assert_eq!(Escaped::word("a b").to_string(), r"a\x20b");
        assert_eq!(Escaped::word("").to_string(), "\"\"");
    }

    #[test]
    fn a_long_value_is_truncated_and_marked() {
        let exact = "x".repeat(LONGEST);
        assert_eq!(shortened(exact.as_bytes()), exact);
        assert_eq!(
            shortened((exact.clone() + "x").as_bytes()),
            exact.clone() + "..."
        );
        assert_eq!(Escaped::new(&exact).to_string(), exact);
        let long = "x".repeat(LONGEST + 1);
        assert_eq!(Escaped::new(&long).to_string(), exact + "...");
    }
}
