//! Detects clear-text HTTP requests on a TLS port, and contains the response to them.
//!
//! Looks only at the first bytes and does not parse the request.
//! Source: RFC 9110 section 9, RFC 9112, RFC 9113 section 3.4.

use crate::reader::{Prefix, prefix};

/// Compares the first bytes with those of requests: a method followed by a space, or the HTTP/2 preface.
pub(crate) fn request_start(input: &[u8]) -> Prefix {
    let mut result = Prefix::Differs;
    for token in REQUEST_STARTS {
        match prefix(input, token) {
            Prefix::Whole => return Prefix::Whole,
            Prefix::Partial => result = Prefix::Partial,
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
            ("", Prefix::Partial),
            ("P", Prefix::Partial),
            ("PATCH", Prefix::Partial),
            ("PATCH ", Prefix::Whole),
            ("GET /", Prefix::Whole),
            ("PRI * HTTP/2.0\r\n", Prefix::Whole),
            ("PROXY TCP4", Prefix::Differs),
            ("get /", Prefix::Differs),
            ("SSH-2.0", Prefix::Differs),
        ] {
            assert_eq!(request_start(input.as_bytes()), expected, "{input}");
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
