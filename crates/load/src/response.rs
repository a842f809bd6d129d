//! Reads an HTTP/1 response just far enough to know when it is whole.
//!
//! Bytes go in by [`Response::feed`], in pieces of any size; the end of the stream by
//! [`Response::end`]. A head that comes in one piece is read in place. Length, chunks (RFC 9112, 7.1)
//! and end-of-stream delimit the body (RFC 9112, 6.3). Everything comes from the peer: a head may
//! have 64 KiB, a chunk line 1 KiB, and nothing here panics.

use crate::failure::Failure;

/// The state of one response.
#[derive(Debug)]
pub struct Response {
    state: State,
    /// The head or chunk line so far, when it came in pieces.
    partial: Vec<u8>,
    status: u16,
    keep_alive: bool,
    body: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    Length(u64),
    ChunkLine,
    ChunkData(u64),
    Trailer,
    UntilClose,
    Whole,
}

impl Response {
    /// Makes a response of which nothing has come yet.
    pub fn new() -> Self {
        Self {
            state: State::Head,
            partial: Vec::new(),
            status: 0,
            keep_alive: true,
            body: 0,
        }
    }

    /// Makes one without a head, which ends with the stream.
    pub fn raw() -> Self {
        Self {
            state: State::UntilClose,
            status: 200,
            keep_alive: false,
            ..Self::new()
        }
    }

    /// Starts over for the next response of a connection.
    pub fn restart(&mut self) {
        self.partial.clear();
        self.state = State::Head;
        (self.status, self.keep_alive, self.body) = (0, true, 0);
    }

    /// Returns the status code, 0 before the head is whole.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Returns whether the server lets the connection go on.
    pub fn keep_alive(&self) -> bool {
        self.keep_alive
    }

    /// Returns the bytes of body so far.
    pub fn body(&self) -> u64 {
        self.body
    }

    /// Returns whether the response is whole.
    pub fn is_whole(&self) -> bool {
        self.state == State::Whole
    }

    /// Takes a piece of the stream.
    ///
    /// # Errors
    /// [`Failure::BadResponse`] for what is not HTTP/1, and for bytes after the end.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<(), Failure> {
        while !bytes.is_empty() {
            bytes = match self.state {
                State::Head => self.feed_head(bytes)?,
                State::Length(left) => {
                    let (rest, left) = self.feed_body(bytes, left);
                    self.state = if left == 0 {
                        State::Whole
                    } else {
                        State::Length(left)
                    };
                    rest
                }
                State::ChunkLine => self.feed_chunk_line(bytes)?,
                State::ChunkData(left) => self.feed_chunk(bytes, left),
                State::Trailer => self.feed_trailer(bytes)?,
                State::UntilClose => {
                    self.body += bytes.len() as u64;
                    &[]
                }
                State::Whole => return Err(Failure::BadResponse),
            };
        }
        Ok(())
    }

    /// Takes the end of the stream.
    ///
    /// # Errors
    /// [`Failure::ClosedEarly`] before a head was whole, [`Failure::ShortBody`] within a body.
    pub fn end(&mut self) -> Result<(), Failure> {
        match self.state {
            State::Whole => Ok(()),
            State::UntilClose => {
                self.state = State::Whole;
                Ok(())
            }
            State::Head => Err(Failure::ClosedEarly),
            _ => Err(Failure::ShortBody),
        }
    }

    fn feed_head<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Failure> {
        if self.partial.is_empty() {
            if let Some(end) = head_end(bytes) {
                let (head, rest) = bytes.split_at_checked(end).unwrap_or((bytes, &[]));
                self.read_head(head)?;
                return Ok(rest);
            }
            self.partial.extend_from_slice(bytes);
            return self.check_size(HEAD_LIMIT).map(|()| &[] as &[u8]);
        }
        let before = self.partial.len();
        self.partial.extend_from_slice(bytes);
        let Some(end) = head_end(&self.partial) else {
            return self.check_size(HEAD_LIMIT).map(|()| &[] as &[u8]);
        };
        let partial = std::mem::take(&mut self.partial);
        self.read_head(partial.get(..end).unwrap_or(&partial))?;
        Ok(bytes.get(end.saturating_sub(before)..).unwrap_or(&[]))
    }

    fn check_size(&self, limit: usize) -> Result<(), Failure> {
        if self.partial.len() > limit {
            Err(Failure::BadResponse)
        } else {
            Ok(())
        }
    }

    /// Reads a head that is whole; an informational one is skipped.
    fn read_head(&mut self, head: &[u8]) -> Result<(), Failure> {
        let mut lines = head
            .split(|byte| *byte == b'\n')
            .map(<[u8]>::trim_ascii_end);
        let (http11, status) = lines
            .next()
            .and_then(status_line)
            .ok_or(Failure::BadResponse)?;
        if (100..200).contains(&status) && status != 101 {
            return Ok(());
        }
        self.status = status;
        self.keep_alive = http11;
        let (mut length, mut chunked) = (None, false);
        for line in lines.filter(|line| !line.is_empty()) {
            let colon = line
                .iter()
                .position(|byte| *byte == b':')
                .ok_or(Failure::BadResponse)?;
            let (name, value) = line.split_at_checked(colon).ok_or(Failure::BadResponse)?;
            let value = value.get(1..).unwrap_or(&[]).trim_ascii();
            if name.eq_ignore_ascii_case(b"content-length") {
                length = Some(decimal(value).ok_or(Failure::BadResponse)?);
            } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
                chunked = value.eq_ignore_ascii_case(b"chunked");
            } else if name.eq_ignore_ascii_case(b"connection") {
                self.keep_alive = value.eq_ignore_ascii_case(b"keep-alive")
                    || (http11 && !value.eq_ignore_ascii_case(b"close"));
            }
        }
        self.state = match (status, chunked, length) {
            (204 | 304, ..) | (_, false, Some(0)) => State::Whole,
            (_, true, _) => State::ChunkLine,
            (_, false, Some(length)) => State::Length(length),
            (_, false, None) => State::UntilClose,
        };
        if self.state == State::UntilClose {
            self.keep_alive = false;
        }
        Ok(())
    }

    fn feed_body<'a>(&mut self, bytes: &'a [u8], left: u64) -> (&'a [u8], u64) {
        let taken = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        self.body += taken as u64;
        (bytes.get(taken..).unwrap_or(&[]), left - taken as u64)
    }

    /// A chunk and the line end behind it; `left` counts both.
    fn feed_chunk<'a>(&mut self, bytes: &'a [u8], left: u64) -> &'a [u8] {
        let data = left.saturating_sub(2);
        let (rest, data_left) = self.feed_body(bytes, data);
        let eaten = (bytes.len() - rest.len()) as u64;
        let line_end = (left - eaten - data_left).min(rest.len() as u64);
        let left = left - eaten - line_end;
        self.state = if left == 0 {
            State::ChunkLine
        } else {
            State::ChunkData(left)
        };
        rest.get(line_end as usize..).unwrap_or(&[])
    }

    fn feed_chunk_line<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Failure> {
        let (line, rest) = self.line(bytes)?;
        let Some(line) = line else { return Ok(rest) };
        let digits = line
            .split(|byte| *byte == b';')
            .next()
            .unwrap_or(&[])
            .trim_ascii();
        let size = std::str::from_utf8(digits)
            .ok()
            .and_then(|d| u64::from_str_radix(d, 16).ok());
        self.state = match size.ok_or(Failure::BadResponse)? {
            0 => State::Trailer,
            size => State::ChunkData(size.checked_add(2).ok_or(Failure::BadResponse)?),
        };
        Ok(rest)
    }

    fn feed_trailer<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Failure> {
        let (line, rest) = self.line(bytes)?;
        if line.is_some_and(|line| line.is_empty()) {
            self.state = State::Whole;
        }
        Ok(rest)
    }

    /// Takes bytes up to a line end; returns the line once it is whole, and what follows.
    fn line<'a>(&mut self, bytes: &'a [u8]) -> Result<(Option<Vec<u8>>, &'a [u8]), Failure> {
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
            self.partial.extend_from_slice(bytes);
            return self.check_size(LINE_LIMIT).map(|()| (None, &[] as &[u8]));
        };
        let (line, rest) = bytes.split_at_checked(end + 1).unwrap_or((bytes, &[]));
        let mut whole = std::mem::take(&mut self.partial);
        whole.extend_from_slice(line);
        Ok((Some(whole.trim_ascii_end().to_vec()), rest))
    }
}

impl Default for Response {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the length of the head with the empty line behind it.
fn head_end(bytes: &[u8]) -> Option<usize> {
    bytes
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .map(|at| at + 4)
}

/// Reads `HTTP/1.x NNN`; returns whether x is 1, and the code.
fn status_line(line: &[u8]) -> Option<(bool, u16)> {
    let rest = line.strip_prefix(b"HTTP/1.")?;
    let http11 = match rest.first()? {
        b'1' => true,
        b'0' => false,
        _ => return None,
    };
    let code = decimal(rest.get(1..)?.strip_prefix(b" ")?.get(..3)?)?;
    u16::try_from(code).ok().map(|code| (http11, code))
}

fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// More than any server sends.
const HEAD_LIMIT: usize = 64 * 1024;
/// Chunk sizes with extensions, and trailers.
const LINE_LIMIT: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn in_pieces(text: &[u8], size: usize) -> Result<Response, Failure> {
        let mut response = Response::new();
        for piece in text.chunks(size) {
            response.feed(piece)?;
        }
        response.end()?;
        Ok(response)
    }

    #[test]
    fn bodies_are_delimited_alike_whatever_the_pieces() {
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
                    (response.body(), response.keep_alive()),
                    (body, keep_alive),
                    "{size}"
                );
            }
        }
    }

    #[test]
    fn a_short_body_is_not_whole() {
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
