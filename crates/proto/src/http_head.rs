//! The head of an HTTP/1.x request, as much of it as a terminator and a test backend need.
//!
//! Finds the end of the head in a prefix of a stream and reads method, target, version, framing and persistence.
//! Borrows everything, keeps no state between calls and judges no semantics: this is no HTTP server. It exists for the
//! built-in backends of the demo and the load tool; [`resemblance`] and [`PLAIN_HTTP_ANSWER`] for the clear-text
//! request that comes to a TLS port.
//!
//! Refuses what two parsers could read differently: folded lines, blanks before the colon, two different lengths, a
//! length beside a transfer coding. Lines may end in a bare LF (RFC 9112 2.2 allows it). Source: RFC 9110, RFC 9112.

use crate::reader::{Prefix, prefix};

/// What a prefix of a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan<'a> {
    /// The head goes on; more bytes are needed.
    Incomplete,
    /// A whole head. The input may go on behind it.
    Head(RequestHead<'a>),
    /// No request head. More bytes cannot change that.
    Refused(NotRequest),
}

/// The head of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHead<'a> {
    /// The method, a token such as `GET`.
    pub method: &'a str,
    /// The request target as sent: visible ASCII.
    pub target: &'a str,
    /// The minor version: 0 or 1.
    pub minor_version: u8,
    /// Whether the connection persists after the answer (RFC 9112 9.3).
    pub keep_alive: bool,
    /// What follows the head.
    pub body: Body,
    /// Bytes of the head up to and with the empty line.
    pub len: usize,
}

/// How the body that follows a request's head is framed, RFC 9112 6.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// So many bytes, perhaps none.
    Length(u64),
    /// By the chunked transfer coding.
    Chunked,
}

/// Why bytes are no request head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotRequest {
    /// No end within [`MAX_HEAD_BYTES`].
    TooLong,
    /// A first line other than `METHOD TARGET HTTP/1.x`.
    RequestLine,
    /// A version other than HTTP/1.0 and HTTP/1.1.
    Version,
    /// A line that is no `name: value`.
    Field,
    /// Contradictory or unreadable Content-Length or Transfer-Encoding.
    Framing,
}

/// How the first bytes of a connection compare with an HTTP request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resemblance {
    /// Too few bytes to tell.
    Undecided,
    /// They start with a method and a blank, or with the preface of HTTP/2.
    Request,
    /// They are something else.
    Other,
}

/// Finds and reads the head at the start of `input`.
///
/// Costs one pass over the input; call it again with more when it was incomplete. Never panics.
pub fn scan(input: &[u8]) -> Scan<'_> {
    // RFC 9112 2.2: "SHOULD ignore at least one empty line (CRLF) received prior to the request-line".
    let start = match input {
        [b'\r', b'\n', ..] => 2,
        [b'\n', ..] => 1,
        _ => 0,
    };
    let rest = input.get(start..).unwrap_or_default();
    let Some(len) = head_len(rest)
        .map(|len| start + len)
        .filter(|len| *len <= MAX_HEAD_BYTES)
    else {
        return match input.len() >= MAX_HEAD_BYTES {
            true => Scan::Refused(NotRequest::TooLong),
            false => Scan::Incomplete,
        };
    };
    match read(input.get(start..len).unwrap_or_default(), len) {
        Ok(head) => Scan::Head(head),
        Err(reason) => Scan::Refused(reason),
    }
}

/// Says whether the first bytes of a connection look like an HTTP request in clear text.
pub fn resemblance(input: &[u8]) -> Resemblance {
    let mut result = Resemblance::Other;
    for token in REQUEST_STARTS {
        match prefix(input, token) {
            Prefix::Whole => return Resemblance::Request,
            Prefix::Partial => result = Resemblance::Undecided,
            Prefix::Differs => {}
        }
    }
    result
}

/// Returns the length of the head with its empty line.
fn head_len(input: &[u8]) -> Option<usize> {
    let mut line_start = 0;
    for (at, byte) in input.iter().enumerate().take(MAX_HEAD_BYTES) {
        if *byte != b'\n' {
            continue;
        }
        if matches!(input.get(line_start..at), Some([] | [b'\r'])) && line_start > 0 {
            return Some(at + 1);
        }
        line_start = at + 1;
    }
    None
}

/// Reads a whole head that is `len` bytes long on the wire.
fn read(head: &[u8], len: usize) -> Result<RequestHead<'_>, NotRequest> {
    let mut lines = head
        .split(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let (method, target, minor_version) = request_line(lines.next().unwrap_or_default())?;
    let mut fields = Fields::default();
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = field(line).ok_or(NotRequest::Field)?;
        fields.take(name, value)?;
    }
    Ok(RequestHead {
        method,
        target,
        minor_version,
        keep_alive: !fields.close && (minor_version >= 1 || fields.keep_alive),
        body: fields.body()?,
        len,
    })
}

fn request_line(line: &[u8]) -> Result<(&str, &str, u8), NotRequest> {
    let line = std::str::from_utf8(line).map_err(|_| NotRequest::RequestLine)?;
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(NotRequest::RequestLine);
    };
    let visible = !target.is_empty() && target.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_token(method.as_bytes()) || !visible {
        return Err(NotRequest::RequestLine);
    }
    match version {
        "HTTP/1.0" => Ok((method, target, 0)),
        "HTTP/1.1" => Ok((method, target, 1)),
        _ => Err(NotRequest::Version),
    }
}

/// Splits a field line. RFC 9112 5.1: "No whitespace is allowed between the field name and colon."
fn field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let (name, value) = (line.get(..colon)?, line.get(colon + 1..)?);
    let clean = !value.iter().any(|byte| matches!(byte, b'\r' | b'\0'));
    (is_token(name) && clean).then(|| (name, value.trim_ascii()))
}

fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty()
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
}

/// The fields that decide framing and persistence, while they are gathered.
#[derive(Default)]
struct Fields {
    length: Option<u64>,
    transfer_coding: bool,
    chunked_last: bool,
    close: bool,
    keep_alive: bool,
}

impl Fields {
    fn take(&mut self, name: &[u8], value: &[u8]) -> Result<(), NotRequest> {
        if name.eq_ignore_ascii_case(b"content-length") {
            let length = decimal(value).ok_or(NotRequest::Framing)?;
            if self
                .length
                .replace(length)
                .is_some_and(|earlier| earlier != length)
            {
                return Err(NotRequest::Framing);
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.transfer_coding = true;
            self.chunked_last = list(value)
                .last()
                .is_some_and(|item| item.eq_ignore_ascii_case(b"chunked"));
        } else if name.eq_ignore_ascii_case(b"connection") {
            self.close |= list(value).any(|item| item.eq_ignore_ascii_case(b"close"));
            self.keep_alive |= list(value).any(|item| item.eq_ignore_ascii_case(b"keep-alive"));
        }
        Ok(())
    }

    fn body(&self) -> Result<Body, NotRequest> {
        match (self.transfer_coding, self.chunked_last, self.length) {
            (false, _, length) => Ok(Body::Length(length.unwrap_or(0))),
            (true, true, None) => Ok(Body::Chunked),
            (true, ..) => Err(NotRequest::Framing),
        }
    }
}

fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

fn decimal(value: &[u8]) -> Option<u64> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// The longest head read, in bytes.
pub const MAX_HEAD_BYTES: usize = 16 * 1024;

/// The whole answer, in clear text, to a clear-text request on a TLS port. Close the connection after it.
pub const PLAIN_HTTP_ANSWER: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
    Content-Type: text/plain; charset=utf-8\r\n\
    Content-Length: 81\r\n\
    Connection: close\r\n\
    \r\n\
    This port speaks HTTPS, and a plain HTTP request came. Use https:// to reach it.\n";

/// What tells a request in its first bytes. The methods are those of RFC 9110 9 and PATCH (RFC 5789).
const REQUEST_STARTS: [&[u8]; 10] = [
    b"GET ",
    b"POST ",
    b"HEAD ",
    b"PUT ",
    b"OPTIONS ",
    b"DELETE ",
    b"CONNECT ",
    b"PATCH ",
    b"TRACE ",
    b"PRI * HTTP/2",
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn head(input: &[u8]) -> RequestHead<'_> {
        match scan(input) {
            Scan::Head(head) => head,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_head_is_read_and_measured() {
        let input = b"GET /a?b=c HTTP/1.1\r\nHost: x\r\n\r\nrest";
        let head = head(input);
        assert_eq!(
            (head.method, head.target, head.minor_version),
            ("GET", "/a?b=c", 1)
        );
        assert_eq!((head.keep_alive, head.body), (true, Body::Length(0)));
        assert_eq!(&input[head.len..], b"rest");
    }

    #[test]
    fn bare_line_feeds_and_one_empty_line_in_front_are_accepted() {
        let input = b"\r\nPOST / HTTP/1.0\nContent-Length: 5\n\nhello";
        let head = head(input);
        assert_eq!((head.keep_alive, head.body), (false, Body::Length(5)));
        assert_eq!(&input[head.len..], b"hello");
        assert_eq!(scan(b"\n"), Scan::Incomplete);
        assert_eq!(
            scan(b"\r\n\r\n"),
            Scan::Incomplete,
            "the second empty line may still become a bad request line"
        );
    }

    #[test]
    fn a_cut_head_is_incomplete_wherever_it_is_cut() {
        let input = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        for cut in 0..input.len() {
            assert_eq!(scan(&input[..cut]), Scan::Incomplete, "cut at {cut}");
        }
    }

    #[test]
    fn the_connection_field_decides_persistence() {
        for (version, value, keep_alive) in [
            ("1.1", "close", false),
            ("1.1", "Keep-Alive, CLOSE", false),
            ("1.1", "upgrade", true),
            ("1.0", "upgrade", false),
            ("1.0", "te , keep-alive", true),
        ] {
            let input = format!("GET / HTTP/{version}\r\nconnection:{value}\r\n\r\n");
            assert_eq!(head(input.as_bytes()).keep_alive, keep_alive, "{input}");
        }
    }

    #[test]
    fn framing_that_could_be_read_in_two_ways_is_refused() {
        for fields in [
            "Content-Length: 1\r\nContent-Length: 2",
            "Content-Length: +1",
            "Content-Length: 1, 1",
            "Content-Length:",
            "Content-Length: 18446744073709551616",
            "Content-Length: 1\r\nTransfer-Encoding: chunked",
            "Transfer-Encoding: chunked, gzip",
        ] {
            let input = format!("POST / HTTP/1.1\r\n{fields}\r\n\r\n");
            assert_eq!(
                scan(input.as_bytes()),
                Scan::Refused(NotRequest::Framing),
                "{fields}"
            );
        }
        let chunked = b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, Chunked\r\n\r\n";
        assert_eq!(head(chunked).body, Body::Chunked);
        let twice = b"POST / HTTP/1.1\r\nContent-Length: 7\r\nContent-Length: 7\r\n\r\n";
        assert_eq!(head(twice).body, Body::Length(7));
    }

    #[test]
    fn lines_that_are_no_request_are_refused() {
        for (input, reason) in [
            ("GET /\r\n\r\n", NotRequest::RequestLine),
            ("GET  / HTTP/1.1\r\n\r\n", NotRequest::RequestLine),
            ("GET /\u{7f} HTTP/1.1\r\n\r\n", NotRequest::RequestLine),
            ("G(T / HTTP/1.1\r\n\r\n", NotRequest::RequestLine),
            ("PRI * HTTP/2.0\r\n\r\n", NotRequest::Version),
            ("GET / HTTP/1.1\r\nHost : x\r\n\r\n", NotRequest::Field),
            (
                "GET / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n",
                NotRequest::Field,
            ),
            ("GET / HTTP/1.1\r\nA: b\rc\r\n\r\n", NotRequest::Field),
        ] {
            assert_eq!(scan(input.as_bytes()), Scan::Refused(reason), "{input:?}");
        }
    }

    #[test]
    fn a_head_without_end_is_refused_at_16_kib() {
        let mut input = b"GET / HTTP/1.1\r\nA: ".to_vec();
        input.resize(MAX_HEAD_BYTES - 1, b'a');
        assert_eq!(scan(&input), Scan::Incomplete);
        input.push(b'a');
        assert_eq!(scan(&input), Scan::Refused(NotRequest::TooLong));
    }

    #[test]
    fn methods_are_told_from_other_protocols() {
        for (input, expected) in [
            ("", Resemblance::Undecided),
            ("P", Resemblance::Undecided),
            ("PATCH", Resemblance::Undecided),
            ("PATCH ", Resemblance::Request),
            ("GET /", Resemblance::Request),
            ("PRI * HTTP/2.0\r\n", Resemblance::Request),
            ("PROXY TCP4", Resemblance::Other),
            ("get /", Resemblance::Other),
            ("SSH-2.0", Resemblance::Other),
        ] {
            assert_eq!(resemblance(input.as_bytes()), expected, "{input}");
        }
    }

    #[test]
    fn the_answer_to_plain_http_counts_its_own_body_right() {
        let text = std::str::from_utf8(PLAIN_HTTP_ANSWER).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(
            head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())),
            "body has {}",
            body.len()
        );
        assert!(head.starts_with("HTTP/1.1 400 ") && head.ends_with("Connection: close"));
    }

    proptest! {
        #[test]
        fn a_decision_stays_when_more_bytes_come(input in "[GP ET/HT1.0:\r\na-]{0,80}", cut in 0usize..80) {
            let cut = cut.min(input.len());
            match scan(&input.as_bytes()[..cut]) {
                Scan::Incomplete => {}
                decided => prop_assert_eq!(decided, scan(input.as_bytes())),
            }
        }
    }
}
