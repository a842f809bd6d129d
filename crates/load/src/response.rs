//! An HTTP/1 response parser that finds the end of the response.
//!
//! [`Response::feed`] accepts bytes in pieces of any size, and [`Response::end`] marks the end of the stream. A length, chunks
//! (RFC 9112, 7.1) or the end of the stream delimit the body (RFC 9112, 6.3). The input comes from the peer and is not
//! trusted: a response header is limited to 64 KiB and a chunk line to 1 KiB, and nothing here panics.

use crate::failure::Failure;

#[derive(Debug, Default)]
pub struct Response {
    state: ResponseState,
    /// Incomplete response header or chunk line from previous pieces.
    partial: Vec<u8>,
    /// Status code; 0 before the response header is complete.
    pub status: u16,
    pub keep_alive: bool,
    /// Received bytes of the body.
    pub body: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ResponseState {
    #[default]
    Head,
    Length(u64),
    ChunkLine,
    ChunkData(u64),
    Trailer,
    UntilClose,
    Whole,
}

impl Response {
    pub fn is_whole(&self) -> bool {
        self.state == ResponseState::Whole
    }

    /// Parses the next piece of the stream.
    ///
    /// # Errors
    /// [`Failure::BadResponse`] if the bytes are not HTTP/1, or follow the end of the response.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<(), Failure> {
        while !bytes.is_empty() {
            bytes = match self.state {
                ResponseState::Head => self.feed_head(bytes)?,
                ResponseState::Length(left) => {
                    let (rest, left) = self.feed_body(bytes, left);
                    self.state = if left == 0 {
                        ResponseState::Whole
                    } else {
                        ResponseState::Length(left)
                    };
                    rest
                }
                ResponseState::ChunkLine => self.feed_chunk_line(bytes)?,
                ResponseState::ChunkData(left) => self.feed_chunk(bytes, left),
                ResponseState::Trailer => self.feed_trailer(bytes)?,
                ResponseState::UntilClose => {
                    self.body += bytes.len() as u64;
                    &[]
                }
                ResponseState::Whole => return Err(Failure::BadResponse),
            };
        }
        Ok(())
    }

    /// Checks at the end of the stream whether the response is complete.
    ///
    /// # Errors
    /// [`Failure::ClosedEarly`] before the response header is complete, [`Failure::ShortBody`] within the body.
    pub fn end(&mut self) -> Result<(), Failure> {
        match self.state {
            ResponseState::Whole => Ok(()),
            ResponseState::UntilClose => {
                self.state = ResponseState::Whole;
                Ok(())
            }
            ResponseState::Head => Err(Failure::ClosedEarly),
            _ => Err(Failure::ShortBody),
        }
    }

    fn feed_head<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Failure> {
        let before = self.partial.len();
        let piece = bytes.len().min(HEAD_LIMIT.saturating_sub(before));
        let head = [&self.partial, bytes.get(..piece).unwrap_or(&[])].concat();
        match self.read_head(&head)? {
            Some(end) => {
                self.partial.clear();
                Ok(bytes.get(end.saturating_sub(before)..).unwrap_or(&[]))
            }
            None => self.keep(bytes, HEAD_LIMIT),
        }
    }

    /// Appends incomplete input to `partial` and returns the empty remainder. Fails if `partial`
    /// exceeds `limit` bytes.
    fn keep<'a>(&mut self, bytes: &[u8], limit: usize) -> Result<&'a [u8], Failure> {
        self.partial.extend_from_slice(bytes);
        if self.partial.len() > limit {
            return Err(Failure::BadResponse);
        }
        Ok(&[])
    }

    /// Parses a response header. Returns its length when it is complete. Skips informational responses.
    fn read_head(&mut self, bytes: &[u8]) -> Result<Option<usize>, Failure> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS];
        let mut head = httparse::Response::new(&mut headers);
        let end = match head.parse(bytes).map_err(|_| Failure::BadResponse)? {
            httparse::Status::Complete(end) => end,
            httparse::Status::Partial => return Ok(None),
        };
        let (http11, status) = (head.version == Some(1), head.code.unwrap_or(0));
        if (100..200).contains(&status) && status != 101 {
            return Ok(Some(end));
        }
        self.status = status;
        self.keep_alive = http11;
        let (mut length, mut chunked) = (None, false);
        for header in head.headers.iter() {
            let value = header.value.trim_ascii();
            let is = |name: &str| header.name.eq_ignore_ascii_case(name);
            if is("content-length") {
                length = Some(decimal(value).ok_or(Failure::BadResponse)?);
            } else if is("transfer-encoding") {
                chunked = value.eq_ignore_ascii_case(b"chunked");
            } else if is("connection") {
                self.keep_alive = value.eq_ignore_ascii_case(b"keep-alive")
                    || (http11 && !value.eq_ignore_ascii_case(b"close"));
            }
        }
        self.state = match (status, chunked, length) {
            (204 | 304, ..) | (_, false, Some(0)) => ResponseState::Whole,
            (_, true, _) => ResponseState::ChunkLine,
            (_, false, Some(length)) => ResponseState::Length(length),
            (_, false, None) => ResponseState::UntilClose,
        };
        self.keep_alive &= self.state != ResponseState::UntilClose;
        Ok(Some(end))
    }

    fn feed_body<'a>(&mut self, bytes: &'a [u8], left: u64) -> (&'a [u8], u64) {
        let taken = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        self.body += taken as u64;
        (bytes.get(taken..).unwrap_or(&[]), left - taken as u64)
    }

    /// Consumes chunk data and the line end after it. `left` is the number of bytes left in both.
    fn feed_chunk<'a>(&mut self, bytes: &'a [u8], left: u64) -> &'a [u8] {
        let data = left.saturating_sub(2);
        let (rest, data_left) = self.feed_body(bytes, data);
        let eaten = (bytes.len() - rest.len()) as u64;
        let line_end = (left - eaten - data_left).min(rest.len() as u64);
        let left = left - eaten - line_end;
        self.state = if left == 0 {
            ResponseState::ChunkLine
        } else {
            ResponseState::ChunkData(left)
        };
        rest.get(line_end as usize..).unwrap_or(&[])
    }

    fn feed_chunk_line<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Failure> {
        let (line, rest) = self.line(bytes)?;
        let Some(line) = line else { return Ok(rest) };
        self.state = match httparse::parse_chunk_size(&line) {
            Ok(httparse::Status::Complete((_, 0))) => ResponseState::Trailer,
            Ok(httparse::Status::Complete((_, size))) => {
                ResponseState::ChunkData(size.checked_add(2).ok_or(Failure::BadResponse)?)
            }
            _ => return Err(Failure::BadResponse),
        };
        Ok(rest)
    }

    fn feed_trailer<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Failure> {
        let (line, rest) = self.line(bytes)?;
        if line.is_some_and(|line| line.trim_ascii_end().is_empty()) {
            self.state = ResponseState::Whole;
        }
        Ok(rest)
    }

    /// Consumes bytes up to a line end. Returns the line if it is complete, and the remaining bytes.
    fn line<'a>(&mut self, bytes: &'a [u8]) -> Result<(Option<Vec<u8>>, &'a [u8]), Failure> {
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
            return Ok((None, self.keep(bytes, LINE_LIMIT)?));
        };
        let (line, rest) = bytes.split_at_checked(end + 1).unwrap_or((bytes, &[]));
        let mut whole = std::mem::take(&mut self.partial);
        whole.extend_from_slice(line);
        Ok((Some(whole), rest))
    }
}

fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

const HEADERS: usize = 100;
const HEAD_LIMIT: usize = 64 * 1024;
/// Maximum length in bytes of a chunk line or a trailer line.
const LINE_LIMIT: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn in_pieces(text: &[u8], size: usize) -> Result<Response, Failure> {
        let mut response = Response::default();
        for piece in text.chunks(size) {
            response.feed(piece)?;
        }
        response.end()?;
        Ok(response)
    }

    #[test]
    fn body_length_does_not_depend_on_the_pieces() {
        let cases: [(&[u8], u64, bool); 5] = [
            (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 5, true),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nT: v\r\n\r\n", 5, true),
            (b"HTTP/1.0 200 OK\r\n\r\nhello", 5, false),
            (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx", 1, false),
            (b"HTTP/1.1 204 No Content\r\n\r\n", 0, true),
        ];
        for (text, body, keep_alive) in cases {
            for size in 1..=text.len() {
                let response = in_pieces(text, size).unwrap();
                assert_eq!(
                    (response.body, response.keep_alive),
                    (body, keep_alive),
                    "{size}"
                );
            }
        }
    }

    #[test]
    fn a_short_body_is_incomplete() {
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello";
        assert_eq!(in_pieces(text, 7).unwrap_err(), Failure::ShortBody);
        assert_eq!(
            in_pieces(b"HTTP/1.1 20", 3).unwrap_err(),
            Failure::ClosedEarly
        );
    }

    #[test]
    fn malformed_responses_are_failures() {
        let cases: [&[u8]; 6] = [
            b"SSH-2.0-x\r\n\r\n",
            b"HTTP/1.1 abc\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxy",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        ];
        for text in cases {
            assert_eq!(in_pieces(text, 5).unwrap_err(), Failure::BadResponse);
        }
        let endless = vec![b'a'; HEAD_LIMIT + 10];
        assert_eq!(in_pieces(&endless, 4096).unwrap_err(), Failure::BadResponse);
    }
}
