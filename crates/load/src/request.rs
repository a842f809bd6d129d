//! The bytes of a request, made once for the whole run: one that asks the server to close (the last of a connection), and one that
//! does not.

/// What every transaction sends.
#[derive(Clone, Debug, Default)]
pub struct RequestBytes {
    /// The connection continues after the response.
    pub keep: Vec<u8>,
    /// The server closes after the response.
    pub last: Vec<u8>,
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
}

impl RequestBytes {
    /// Makes HTTP/1 requests.
    pub fn http(head: &RequestHead<'_>) -> Self {
        Self {
            keep: text(head, false),
            last: text(head, true),
        }
    }

    /// Returns the head to send.
    pub fn head(&self, last: bool) -> &[u8] {
        if last { &self.last } else { &self.keep }
    }
}

fn text(head: &RequestHead<'_>, last: bool) -> Vec<u8> {
    let version = if head.http10 { "1.0" } else { "1.1" };
    let mut text = format!(
        "GET {} HTTP/{version}\r\nHost: {}\r\n",
        head.path, head.authority
    );
    for header in head.headers {
        text.push_str(header);
        text.push_str("\r\n");
    }
    if last {
        text.push_str("Connection: close\r\n");
    } else if head.http10 {
        text.push_str("Connection: keep-alive\r\n");
    }
    text.push_str("\r\n");
    text.into_bytes()
}
