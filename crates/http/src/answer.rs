//! The head of a response.

use std::fmt::Write;
use std::ops::Range;

use crate::status::StatusCode;

#[derive(Clone, Debug)]
pub struct Answer<'a> {
    pub status: StatusCode,
    pub date: &'a str,
    /// Complete field lines, including their line ends.
    pub fields: &'a [&'a str],
    /// Content length. In a response to HEAD, the length that GET would return. `None` if the
    /// status forbids a body.
    pub length: Option<u64>,
    /// Content range of the body, and total length of the file in bytes. The range is `None` if the
    /// request cannot be satisfied (416).
    pub range: Option<(Option<Range<u64>>, u64)>,
    pub after: After,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// The connection stays open, which is the default of HTTP/1.1.
    GoesOn,
    /// The connection stays open. The response must state this, because HTTP/1.0 closes by default.
    Stays,
    Ends,
}

impl Answer<'_> {
    pub fn write(&self, out: &mut String) {
        let _whole = self.try_write(out);
    }

    fn try_write(&self, out: &mut String) -> std::fmt::Result {
        let Self { status, date, .. } = self;
        write!(out, "HTTP/1.1 {}\r\nDate: {date}\r\n", status.label())?;
        for line in self.fields {
            out.push_str(line);
        }
        if let Some(length) = self.length {
            write!(out, "Content-Length: {length}\r\n")?;
        }
        match &self.range {
            Some((Some(part), of)) => {
                let (first, last) = (part.start, part.end - 1);
                write!(out, "Content-Range: bytes {first}-{last}/{of}\r\n")?;
            }
            Some((None, of)) => write!(out, "Content-Range: bytes */{of}\r\n")?,
            None => {}
        }
        out.push_str(match self.after {
            After::GoesOn => "\r\n",
            After::Stays => "Connection: keep-alive\r\n\r\n",
            After::Ends => "Connection: close\r\n\r\n",
        });
        Ok(())
    }
}

/// Field line of a response with text.
pub const PLAIN_TEXT: &str = "Content-Type: text/plain; charset=utf-8\r\n";

/// Returns the body of a response without a file: the status code and its reason phrase.
#[must_use]
pub fn note(status: StatusCode) -> String {
    format!("{}\n", status.label())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_written_line_by_line() {
        let answer = Answer {
            status: StatusCode::PartialContent,
            date: "Tue, 15 Nov 1994 12:45:26 GMT",
            fields: &["ETag: \"x\"\r\n"],
            length: Some(2),
            range: Some((Some(3..5), 10)),
            after: After::Ends,
        };
        let mut text = String::new();
        answer.write(&mut text);
        assert_eq!(
            text,
            "HTTP/1.1 206 Partial Content\r\nDate: Tue, 15 Nov 1994 12:45:26 GMT\r\nETag: \"x\"\r\n\
             Content-Length: 2\r\nContent-Range: bytes 3-4/10\r\nConnection: close\r\n\r\n"
        );
        let answer = Answer {
            status: StatusCode::RangeNotSatisfiable,
            range: Some((None, 10)),
            length: None,
            after: After::Stays,
            ..answer
        };
        text.clear();
        answer.write(&mut text);
        assert!(
            text.ends_with("Content-Range: bytes */10\r\nConnection: keep-alive\r\n\r\n"),
            "{text}"
        );
    }
}
