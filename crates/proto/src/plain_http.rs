//! Detects clear-text HTTP requests on a TLS port, and contains the response to them.
//!
//! Looks only at the first bytes and does not parse the request.
//! Source: RFC 9110 section 9, RFC 9112, RFC 9113 section 3.4.

use crate::reader::{Prefix, prefix};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resemblance {
    Undecided,
    /// A method followed by a space, or the HTTP/2 preface.
    Request,
    Other,
}

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

/// Complete response to a clear-text request on a TLS port. The caller must close the connection afterwards.
pub const PLAIN_HTTP_ANSWER: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
    Content-Type: text/plain; charset=utf-8\r\n\
    Content-Length: 81\r\n\
    Connection: close\r\n\
    \r\n\
    This port speaks HTTPS, and a plain HTTP request came. Use https:// to reach it.\n";

/// First bytes of requests: the methods of RFC 9110 (section 9), PATCH (RFC 5789) and HTTP/2's
/// preface.
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
    use super::*;

    #[test]
    fn http_methods_are_distinguished_from_other_protocols() {
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
    fn the_response_to_plain_http_has_the_correct_content_length() {
        let text = std::str::from_utf8(PLAIN_HTTP_ANSWER).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(
            head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())),
            "body has {}",
            body.len()
        );
        assert!(head.starts_with("HTTP/1.1 400 ") && head.ends_with("Connection: close"));
    }
}
