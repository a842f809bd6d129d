//! The bytes of a request, made once for the whole run.
//!
//! Three shapes: one that asks the server to close (the last of a connection), one that does not,
//! and an upload, whose body follows from [`RequestBytes::filler`] in pieces.

use std::fmt::Write;

/// What every transaction sends.
#[derive(Clone, Debug, Default)]
pub struct RequestBytes {
    /// RequestHead of a request after which the connection goes on.
    pub keep: Vec<u8>,
    /// RequestHead of a request after which the server closes.
    pub last: Vec<u8>,
    /// Bytes of body that follow the head.
    pub upload: u64,
}

/// What the head is made of.
#[derive(Clone, Debug)]
pub struct RequestHead<'a> {
    /// Path and query.
    pub path: &'a str,
    /// Value of the `Host` header.
    pub authority: &'a str,
    /// HTTP/1.0 instead of 1.1.
    pub http10: bool,
    /// More header lines, without line ends.
    pub headers: &'a [String],
    /// Bytes of body.
    pub upload: u64,
}

impl RequestBytes {
    /// Makes HTTP/1 requests.
    pub fn http(head: &RequestHead<'_>) -> Self {
        Self {
            keep: text(head, false),
            last: text(head, true),
            upload: head.upload,
        }
    }

    /// Makes a request without a head: only the body is sent.
    pub fn raw(upload: u64) -> Self {
        Self {
            upload,
            ..Self::default()
        }
    }

    /// Returns the head to send.
    pub fn head(&self, last: bool) -> &[u8] {
        if last { &self.last } else { &self.keep }
    }

    /// Returns at most 16 KiB of body, of which `left` bytes are still to be sent.
    pub fn filler(left: u64) -> &'static [u8] {
        let length = usize::try_from(left)
            .unwrap_or(usize::MAX)
            .min(FILLER.len());
        FILLER.get(..length).unwrap_or(&FILLER)
    }
}

fn text(head: &RequestHead<'_>, last: bool) -> Vec<u8> {
    let method = if head.upload > 0 { "POST" } else { "GET" };
    let version = if head.http10 { "1.0" } else { "1.1" };
    let mut text = format!(
        "{method} {} HTTP/{version}\r\nHost: {}\r\n",
        head.path, head.authority
    );
    for header in head.headers {
        text.push_str(header);
        text.push_str("\r\n");
    }
    if head.upload > 0 {
        let written = write!(text, "Content-Length: {}\r\n", head.upload);
        debug_assert!(written.is_ok(), "writing to a string does not fail");
    }
    if last {
        text.push_str("Connection: close\r\n");
    } else if head.http10 {
        text.push_str("Connection: keep-alive\r\n");
    }
    text.push_str("\r\n");
    text.into_bytes()
}

/// One full TLS record of plaintext.
static FILLER: [u8; 16 * 1024] = [b'x'; 16 * 1024];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upload_says_its_length_and_the_filler_ends_with_it() {
        let head = RequestHead {
            path: "/",
            authority: "h",
            http10: true,
            headers: &[],
            upload: 20_000,
        };
        let request = RequestBytes::http(&head);
        assert!(request.last.starts_with(b"POST / HTTP/1.0\r\n"));
        assert!(
            String::from_utf8_lossy(&request.keep)
                .contains("Content-Length: 20000\r\nConnection: keep-alive")
        );
        assert_eq!(RequestBytes::filler(20_000).len(), 16 * 1024);
        assert_eq!(RequestBytes::filler(3).len(), 3);
    }
}
