//! Reads an HTTP/1 request just far enough to answer it: the responder's side.
//!
//! Known are `/bytes/N`, `Connection`, `Content-Length` (the body is read and forgotten) and the
//! version. What follows a request in the same piece is kept for the next one. A PROXY header in front
//! of the first request is skipped, for a terminator may be set up to send one.

use becket_proto::proxy_header::{Accept, Decoded, decode};

/// The state of one request.
#[derive(Debug)]
pub struct Inquiry {
    default_body: u64,
    partial: Vec<u8>,
    upload_left: u64,
    in_body: bool,
    wanted: u64,
    close: bool,
    ended: bool,
    /// No byte of a request has come: a PROXY header may.
    fresh: bool,
}

/// What is known after a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InquiryStep {
    /// More must come.
    Partial,
    /// The request is whole.
    Whole,
    /// It is not HTTP/1.
    Malformed,
}

impl Inquiry {
    /// Makes one of which nothing has come; a path that names no size gets `default_body` bytes.
    pub fn new(default_body: u64) -> Self {
        Self {
            default_body,
            partial: Vec::new(),
            upload_left: 0,
            in_body: false,
            wanted: default_body,
            close: false,
            ended: false,
            fresh: true,
        }
    }

    /// Begins the next request of the connection.
    pub fn restart(&mut self) {
        (self.upload_left, self.in_body, self.close) = (0, false, false);
        self.wanted = self.default_body;
    }

    /// Looks whether what was kept is a whole request.
    pub fn resume(&mut self) -> InquiryStep {
        if self.partial.is_empty() {
            InquiryStep::Partial
        } else {
            self.feed(&[])
        }
    }

    /// Takes a piece of the stream.
    pub fn feed(&mut self, bytes: &[u8]) -> InquiryStep {
        if self.in_body {
            return self.feed_body(bytes);
        }
        if self.partial.is_empty() {
            return self.feed_head(bytes);
        }
        let mut all = std::mem::take(&mut self.partial);
        all.extend_from_slice(bytes);
        self.feed_head(&all)
    }

    fn feed_head(&mut self, bytes: &[u8]) -> InquiryStep {
        if self.fresh
            && SIGNATURES
                .iter()
                .any(|signature| bytes.starts_with(signature))
        {
            return match decode(bytes, Accept::Either) {
                Decoded::Incomplete => self.keep(bytes),
                Decoded::Header { len, .. } => {
                    self.fresh = false;
                    self.feed_head(bytes.get(len..).unwrap_or(&[]))
                }
                _ => InquiryStep::Malformed,
            };
        }
        let mut headers = [httparse::EMPTY_HEADER; HEADERS];
        let mut head = httparse::Request::new(&mut headers);
        match head.parse(bytes) {
            Ok(httparse::Status::Partial) => self.keep(bytes),
            Ok(httparse::Status::Complete(end)) if self.read_head(&head).is_some() => {
                (self.in_body, self.fresh) = (true, false);
                self.feed_body(bytes.get(end..).unwrap_or(&[]))
            }
            _ => InquiryStep::Malformed,
        }
    }

    /// Takes the end of the stream.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// Returns whether the stream has ended.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns the bytes of body that are wanted.
    pub fn wanted(&self) -> u64 {
        self.wanted
    }

    /// Returns whether the connection ends with the response.
    pub fn closes(&self) -> bool {
        self.close
    }

    fn keep(&mut self, bytes: &[u8]) -> InquiryStep {
        if bytes.len() > HEAD_LIMIT {
            return InquiryStep::Malformed;
        }
        self.partial.extend_from_slice(bytes);
        InquiryStep::Partial
    }

    fn feed_body(&mut self, bytes: &[u8]) -> InquiryStep {
        let taken = usize::try_from(self.upload_left)
            .unwrap_or(usize::MAX)
            .min(bytes.len());
        self.upload_left -= taken as u64;
        self.partial
            .extend_from_slice(bytes.get(taken..).unwrap_or(&[]));
        if self.upload_left == 0 {
            InquiryStep::Whole
        } else {
            InquiryStep::Partial
        }
    }

    fn read_head(&mut self, head: &httparse::Request<'_, '_>) -> Option<()> {
        self.close = head.version == Some(0);
        if let Some(size) = head.path?.strip_prefix("/bytes/") {
            self.wanted = size.parse().ok()?;
        }
        for header in head.headers.iter() {
            let value = header.value.trim_ascii();
            if header.name.eq_ignore_ascii_case("connection") {
                self.close = value.eq_ignore_ascii_case(b"close")
                    || (self.close && !value.eq_ignore_ascii_case(b"keep-alive"));
            } else if header.name.eq_ignore_ascii_case("content-length") {
                self.upload_left = std::str::from_utf8(value).ok()?.parse().ok()?;
            }
        }
        Some(())
    }
}

/// How a PROXY header begins, of version 1 and 2; no request begins so.
const SIGNATURES: [&[u8]; 2] = [b"PROXY ", b"\r\n\r\n\0"];
/// More header lines than any terminator sends, and more bytes.
const HEADERS: usize = 100;
const HEAD_LIMIT: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_whole_whatever_the_pieces() {
        let text =
            b"POST /bytes/77 HTTP/1.1\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
        for size in 1..=text.len() {
            let mut inquiry = Inquiry::new(1);
            let steps: Vec<InquiryStep> =
                text.chunks(size).map(|piece| inquiry.feed(piece)).collect();
            let (last, before) = steps.split_last().unwrap();
            assert_eq!(*last, InquiryStep::Whole);
            assert!(
                before.iter().all(|step| *step == InquiryStep::Partial),
                "{size}"
            );
            assert_eq!((inquiry.wanted(), inquiry.closes()), (77, true));
        }
    }

    #[test]
    fn versions_close_as_they_should_and_pipelined_requests_are_kept() {
        let mut inquiry = Inquiry::new(9);
        assert_eq!(
            inquiry.feed(b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.0\r\n\r\n"),
            InquiryStep::Whole
        );
        assert!(!inquiry.closes());
        inquiry.restart();
        assert_eq!(inquiry.resume(), InquiryStep::Whole);
        assert!(inquiry.closes());
        assert_eq!(inquiry.wanted(), 9);
    }

    #[test]
    fn a_proxy_header_in_front_is_skipped() {
        let v1 = b"PROXY TCP4 127.0.0.1 127.0.0.1 5 6\r\n".to_vec();
        let v2 = [
            &b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"[..],
            &[127, 0, 0, 1, 127, 0, 0, 1, 0, 5, 0, 6],
        ]
        .concat();
        for header in [v1, v2] {
            let all = [&header[..], b"GET /bytes/3 HTTP/1.0\r\n\r\n"].concat();
            for size in [all.len(), 20] {
                let mut inquiry = Inquiry::new(1);
                let last = all.chunks(size).map(|piece| inquiry.feed(piece)).last();
                assert_eq!((last, inquiry.wanted()), (Some(InquiryStep::Whole), 3));
            }
        }
    }

    #[test]
    fn what_is_not_http_is_malformed() {
        for text in [
            &b"x\r\n\r\n"[..],
            b"GET / HTTP/2\r\n\r\n",
            b"GET /bytes/x HTTP/1.1\r\n\r\n",
            b"\xff\r\n\r\n",
        ] {
            assert_eq!(Inquiry::new(0).feed(text), InquiryStep::Malformed);
        }
        assert_eq!(
            Inquiry::new(0).feed(&vec![b'a'; HEAD_LIMIT + 1]),
            InquiryStep::Malformed
        );
    }
}
