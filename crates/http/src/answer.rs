//! The head of an answer.

use std::fmt::Write;
use std::ops::Range;

use crate::status::StatusCode;

/// What an answer says before its body.
#[derive(Clone, Debug)]
pub struct Answer<'a> {
    /// What became of the request.
    pub status: StatusCode,
    /// The date of now.
    pub date: &'a str,
    /// Whole lines of fields, each with its end.
    pub fields: &'a [&'a str],
    /// Bytes of the body, or of what the body of a GET would be; nothing where there can be none.
    pub length: Option<u64>,
    /// Which bytes these are of how many; of none where no byte of the range exists.
    pub range: Option<(Option<Range<u64>>, u64)>,
    /// What becomes of the connection.
    pub after: After,
}

/// What becomes of a connection behind an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// It goes on, as it does in HTTP/1.1 by itself.
    GoesOn,
    /// It goes on, and a client of HTTP/1.0 has to be told.
    Stays,
    /// It ends.
    Ends,
}

impl Answer<'_> {
    /// Writes the head, with the empty line that ends it.
    pub fn write(&self, out: &mut String) {
        // A string takes all that is written to it.
        let _whole = self.try_write(out);
    }

    fn try_write(&self, out: &mut String) -> std::fmt::Result {
        let Self { status, date, .. } = self;
        let (number, reason) = (status.label(), status.reason());
        write!(out, "HTTP/1.1 {number} {reason}\r\nDate: {date}\r\n")?;
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

/// The body of an answer without a file: its status, for a person who sees it.
#[must_use]
pub fn note(status: StatusCode) -> String {
    format!("{} {}\n", status.label(), status.reason())
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
