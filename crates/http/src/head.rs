//! The head of a request: its end, its contents, and refusals before any file is looked up.
//!
//! A head is parsed once, when it is complete, so a client that sends it byte by byte costs no more
//! than others. A request with incorrect framing is refused and its connection closed, since the
//! bytes that follow would be read as another request (RFC 9112, section 11.2).

use httparse::{EMPTY_HEADER, Header, parse_headers};

use crate::status::StatusCode;

/// A syntactically valid head; `request` checks its meaning.
#[derive(Clone, Debug)]
pub struct Head<'b> {
    pub method: &'b str,
    /// Target as sent; visible ASCII.
    pub target: &'b str,
    /// `true` for HTTP/1.0. A minor version above 1 is treated as 1.1 (RFC 9110, section 2.5).
    pub is_old: bool,
    fields: Vec<Header<'b>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'b> {
    /// `true` for HEAD, `false` for GET.
    pub head_only: bool,
    /// Path of the target without the query; begins with a slash.
    pub path: &'b str,
    pub query: Option<&'b str>,
    /// Host with an optional port; `None` only in HTTP/1.0 requests.
    pub authority: Option<&'b str>,
    /// `true` if the connection may continue after the response.
    pub persists: bool,
}

impl Request<'_> {
    /// Returns the target with a slash after its path, for a redirect. The path must have no empty segments.
    #[must_use]
    pub fn with_slash(&self) -> String {
        let query = self.query.map(|query| format!("?{query}"));
        format!("{}/{}", self.path, query.unwrap_or_default())
    }

    /// Returns the URL of the target with the scheme `https`, if the request contains a host.
    #[must_use]
    pub fn location(&self, port: u16) -> Option<String> {
        let authority = self.authority?;
        let host = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => host,
            _ => authority,
        };
        let port = (port != 443).then(|| format!(":{port}"));
        let query = self.query.map(|query| format!("?{query}"));
        let (port, query) = (port.unwrap_or_default(), query.unwrap_or_default());
        Some(format!("https://{host}{port}{}{query}", self.path))
    }
}

/// An error response to a head, sent without looking up a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadRefusal {
    pub status: StatusCode,
    /// `true` if the connection may continue after the error response.
    pub persists: bool,
}

impl HeadRefusal {
    #[must_use]
    pub const fn last(status: StatusCode) -> Self {
        let persists = false;
        Self { status, persists }
    }
}

/// Returns the length of the empty lines before a head, which servers ignore (RFC 9112, section 2.2).
#[must_use]
pub fn blank(bytes: &[u8]) -> usize {
    let is_blank = |byte: &&u8| matches!(byte, b'\r' | b'\n');
    bytes.iter().take_while(is_blank).count()
}

/// Returns the length of a complete head at the start of `bytes`. Searches only after the first `searched` bytes, which
/// earlier calls have searched.
#[must_use]
pub fn end(bytes: &[u8], searched: usize) -> Option<usize> {
    let from = searched.saturating_sub(2).min(bytes.len());
    let mut at = from;
    while let Some(found) = bytes[at..].iter().position(|byte| *byte == b'\n') {
        at += found + 1;
        match bytes[at..] {
            [b'\n', ..] => return Some(at + 1),
            [b'\r', b'\n', ..] => return Some(at + 2),
            _ => {}
        }
    }
    None
}

/// Returns the status for a head that is incomplete at the maximum length: 414 if even the first
/// line is incomplete.
#[must_use]
pub fn too_long(bytes: &[u8]) -> StatusCode {
    if bytes.contains(&b'\n') {
        StatusCode::FieldsTooLarge
    } else {
        StatusCode::UriTooLong
    }
}

/// Checks the first line of an incomplete head. Returns `true` once the line is complete. Earlier
/// calls checked the first `searched` bytes.
///
/// # Errors
/// Returns a status if no valid request begins with these bytes.
pub fn check_line(bytes: &[u8], searched: usize) -> Result<bool, StatusCode> {
    let searched = searched.min(bytes.len());
    let is_of_line = |byte: &u8| byte.is_ascii_graphic() || matches!(byte, b' ' | b'\r');
    match bytes[searched..].iter().position(|byte| !is_of_line(byte)) {
        None => Ok(false),
        Some(at) if bytes[searched + at] == b'\n' => {
            parse_line(&bytes[..searched + at]).map(|_| true)
        }
        Some(_) => Err(StatusCode::BadRequest),
    }
}

/// Parses a complete head.
///
/// # Errors
/// Returns the status for an invalid head. The connection must be closed after the response.
pub fn parse(bytes: &[u8]) -> Result<Head<'_>, StatusCode> {
    let mut parts = bytes.splitn(2, |byte| *byte == b'\n');
    let (line, rest) = (parts.next(), parts.next());
    let (method, target, is_old) = parse_line(line.unwrap_or_default())?;
    let rest = rest.unwrap_or_default();
    let lines = rest.iter().filter(|byte| **byte == b'\n').count();
    let mut fields = vec![EMPTY_HEADER; lines];
    let count = match parse_headers(rest, &mut fields) {
        Ok(httparse::Status::Complete((length, found))) if length == rest.len() => found.len(),
        _ => return Err(StatusCode::BadRequest),
    };
    fields.truncate(count);
    Ok(Head {
        method,
        target,
        is_old,
        fields,
    })
}

/// Parses the method, the target and the version; `true` means HTTP/1.0 (RFC 9112, section 3).
fn parse_line(line: &[u8]) -> Result<(&str, &str, bool), StatusCode> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let line = str::from_utf8(line).map_err(|_| StatusCode::BadRequest)?;
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(StatusCode::BadRequest);
    };
    // Characters of a token (RFC 9110, section 5.6.2).
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    // A URI consists of visible ASCII, and its fragment is never sent (RFC 3986, section 2).
    let is_visible = |byte: u8| byte.is_ascii_graphic() && byte != b'#';
    let is_request = !method.is_empty()
        && method.bytes().all(is_token)
        && !target.is_empty()
        && target.bytes().all(is_visible);
    let version = version.strip_prefix("HTTP/").map(str::as_bytes);
    match version.filter(|_| is_request) {
        Some([b'1', b'.', minor @ b'0'..=b'9']) => Ok((method, target, *minor == b'0')),
        // A valid but unsupported version (RFC 9110, section 15.6.6).
        Some([b'0'..=b'9', b'.', b'0'..=b'9']) => Err(StatusCode::VersionNotSupported),
        _ => Err(StatusCode::BadRequest),
    }
}

impl<'b> Head<'b> {
    /// Returns the values of a field, one for each line, without surrounding spaces.
    pub fn values<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'b [u8]> + 's {
        let named = move |field: &&Header<'b>| field.name.eq_ignore_ascii_case(name);
        let fields = self.fields.iter().filter(named);
        fields.map(|field| field.value.trim_ascii())
    }

    /// Returns the value of a field that occurs exactly once, otherwise `None`.
    pub(crate) fn single(&self, name: &str) -> Option<&'b [u8]> {
        let mut values = self.values(name);
        values.next().filter(|_| values.next().is_none())
    }

    fn has(&self, name: &str) -> bool {
        self.values(name).next().is_some()
    }

    /// Converts the head to a request for a file.
    ///
    /// # Errors
    /// Rejects bodies, methods other than GET and HEAD, and ambiguous requests.
    pub fn request(&self) -> Result<Request<'b>, HeadRefusal> {
        let body = self.body()?;
        let host = self.host()?;
        let persists = body.is_none() && self.persists();
        let head_only = match self.method {
            "GET" => false,
            "HEAD" => true,
            _ => {
                let status = StatusCode::MethodNotAllowed;
                return Err(HeadRefusal { status, persists });
            }
        };
        if let Some(status) = body {
            return Err(HeadRefusal::last(status));
        }
        let (named, rest) = split_target(self.target)?;
        let (path, query) = match rest.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (rest, None),
        };
        Ok(Request {
            head_only,
            path: if path.is_empty() { "/" } else { path },
            query,
            // A host in the target takes precedence over the Host field (RFC 9112, section 3.2.2).
            authority: named.or(host),
            persists,
        })
    }

    /// Returns the status that rejects an announced body. Fails if the end of the request is
    /// ambiguous.
    fn body(&self) -> Result<Option<StatusCode>, HeadRefusal> {
        let coded = self.has("transfer-encoding");
        if coded && (self.is_old || self.has("content-length")) {
            // Transfer-Encoding in HTTP/1.0 or next to Content-Length is an error or an attack (RFC
            // 9112, section 6.1).
            return Err(HeadRefusal::last(StatusCode::BadRequest));
        }
        if coded {
            return Ok(Some(StatusCode::NotImplemented));
        }
        let mut body = None;
        for value in self.values("content-length") {
            if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
                return Err(HeadRefusal::last(StatusCode::BadRequest));
            }
            if value.iter().any(|digit| *digit != b'0') {
                body = Some(StatusCode::ContentTooLarge);
            }
        }
        Ok(body)
    }

    /// Returns the host, which only HTTP/1.0 requests may omit. Rejects repeated and invalid hosts
    /// (RFC 9112, section 3.2).
    fn host(&self) -> Result<Option<&'b str>, HeadRefusal> {
        let refused = HeadRefusal::last(StatusCode::BadRequest);
        let mut hosts = self.values("host");
        let host = match (hosts.next(), hosts.next()) {
            (None, _) if self.is_old => return Ok(None),
            (Some(host), None) => std::str::from_utf8(host).map_err(|_| refused)?,
            _ => return Err(refused),
        };
        if is_authority(host) {
            Ok(Some(host))
        } else {
            Err(refused)
        }
    }

    /// Returns `true` if the connection may continue after the response (RFC 9112, section 9.3).
    fn persists(&self) -> bool {
        let says = |option: &str| {
            let values = self.values("connection");
            values
                .flat_map(|value| value.split(|byte| *byte == b','))
                .any(|word| word.trim_ascii().eq_ignore_ascii_case(option.as_bytes()))
        };
        !says("close") && (!self.is_old || says("keep-alive"))
    }
}

/// Splits a target into its authority, if any, and its path with query (RFC 9112, section 3.2).
fn split_target(target: &str) -> Result<(Option<&str>, &str), HeadRefusal> {
    if target.starts_with('/') {
        return Ok((None, target));
    }
    let refused = HeadRefusal::last(StatusCode::BadRequest);
    let (scheme, rest) = target.split_once("://").ok_or(refused)?;
    let is_http = ["http", "https"]
        .iter()
        .any(|one| scheme.eq_ignore_ascii_case(one));
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    if is_http && is_authority(authority) {
        Ok((Some(authority), rest))
    } else {
        Err(refused)
    }
}

/// Returns `true` if `text` is a host with an optional port (RFC 3986, section 3.2). A user name is invalid in `http`
/// (RFC 9110, section 4.2.4).
fn is_authority(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port),
        _ => (text, ""),
    };
    let is_address = |text: &str| {
        let digits = |byte: u8| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.');
        !text.is_empty() && text.bytes().all(digits)
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=".contains(&byte);
    let is_host = match host.strip_prefix('[').map(|rest| rest.strip_suffix(']')) {
        Some(address) => address.is_some_and(is_address),
        None => !host.is_empty() && host.bytes().all(is_name),
    };
    is_host && port.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Asked {
        head_only: bool,
        path: String,
        authority: Option<String>,
        persists: bool,
    }

    fn ask(head: &str) -> Result<Asked, (StatusCode, bool)> {
        let head = head.replace('\n', "\r\n") + "\r\n\r\n";
        assert_eq!(end(head.as_bytes(), 0), Some(head.len()));
        let last = |status| (status, false);
        let parsed = parse(head.as_bytes()).map_err(last)?;
        let request = parsed.request();
        let request = request.map_err(|refusal| (refusal.status, refusal.persists))?;
        Ok(Asked {
            head_only: request.head_only,
            path: request.path.to_owned(),
            authority: request.authority.map(str::to_owned),
            persists: request.persists,
        })
    }

    fn refused(head: &str) -> (StatusCode, bool) {
        ask(head).unwrap_err()
    }

    #[test]
    fn a_request_says_what_where_and_whether_more_follows() {
        let host = || Some("a.test".to_owned());
        for (head, expected) in [
            ("GET / HTTP/1.1\nHost: a.test", (false, "/", host(), true)),
            (
                "HEAD /a?b HTTP/1.1\nhost:a.test\nConnection: x, Close",
                (true, "/a", host(), false),
            ),
            ("GET /a HTTP/1.0", (false, "/a", None, false)),
            (
                "GET /a HTTP/1.0\nConnection: keep-alive",
                (false, "/a", None, true),
            ),
            (
                "GET http://a.test/b HTTP/1.1\nHost: other",
                (false, "/b", host(), true),
            ),
            (
                "GET HTTP://a.test HTTP/1.1\nHost: a.test",
                (false, "/", host(), true),
            ),
            (
                "GET / HTTP/1.1\nHost: a.test\nContent-Length: 0",
                (false, "/", host(), true),
            ),
            ("GET / HTTP/1.2\nHost: a.test", (false, "/", host(), true)),
        ] {
            let it = ask(head).unwrap();
            let found = (it.head_only, it.path.as_str(), it.authority, it.persists);
            assert_eq!(found, expected, "{head}");
        }
    }

    #[test]
    fn ipv6_and_ports_are_hosts_and_users_are_not() {
        for (text, is) in [
            ("a.test", true),
            ("a.test:8443", true),
            ("a.test:", true),
            ("[::1]", true),
            ("[::1]:80", true),
            ("127.0.0.1:1", true),
            ("", false),
            (":80", false),
            ("[::1", false),
            ("[x]", false),
            ("u@a.test", false),
            ("a test", false),
            ("a.test:8x", false),
            ("a/b", false),
            ("a\\b", false),
            ("a:b:c", false),
        ] {
            assert_eq!(is_authority(text), is, "{text}");
        }
    }

    #[test]
    fn invalid_requests_are_rejected_and_close_the_connection() {
        for (head, status) in [
            ("GET / HTTP/1.1", StatusCode::BadRequest),
            ("GET / HTTP/1.1\nHost: a\nHost: a", StatusCode::BadRequest),
            ("GET / HTTP/1.1\nHost: a b", StatusCode::BadRequest),
            ("GET / HTTP/1.1\nHost:", StatusCode::BadRequest),
            ("GET / HTTP/1.1\nHost : a", StatusCode::BadRequest),
            ("GET / HTTP/1.1\nHost: a\n folded", StatusCode::BadRequest),
            ("GET /\nHost: a", StatusCode::BadRequest),
            ("GET /a#b HTTP/1.1\nHost: a", StatusCode::BadRequest),
            ("GET /\u{e9} HTTP/1.1\nHost: a", StatusCode::BadRequest),
            ("GET a HTTP/1.1\nHost: a", StatusCode::BadRequest),
            ("GET * HTTP/1.1\nHost: a", StatusCode::BadRequest),
            ("GET ftp://a/ HTTP/1.1\nHost: a", StatusCode::BadRequest),
            ("GET http://u@a/ HTTP/1.1\nHost: a", StatusCode::BadRequest),
            ("GET / HTTP/2.0\nHost: a", StatusCode::VersionNotSupported),
            ("GET /  HTTP/1.1\nHost: a", StatusCode::BadRequest),
            ("GET /a b HTTP/1.1\nHost: a", StatusCode::BadRequest),
            (" / HTTP/1.1\nHost: a", StatusCode::BadRequest),
            ("G(T / HTTP/1.1\nHost: a", StatusCode::BadRequest),
            ("PRI * HTTP/2.0", StatusCode::VersionNotSupported),
            ("GET / HTTP/1.1x\nHost: a", StatusCode::BadRequest),
            (
                "GET / HTTP/1.1\nHost: a\nContent-Length: 1",
                StatusCode::ContentTooLarge,
            ),
            (
                "GET / HTTP/1.1\nHost: a\nContent-Length: 0\nContent-Length: 7",
                StatusCode::ContentTooLarge,
            ),
            (
                "GET / HTTP/1.1\nHost: a\nContent-Length: -1",
                StatusCode::BadRequest,
            ),
            (
                "GET / HTTP/1.1\nHost: a\nContent-Length: 0, 0",
                StatusCode::BadRequest,
            ),
            (
                "GET / HTTP/1.1\nHost: a\nTransfer-Encoding: chunked",
                StatusCode::NotImplemented,
            ),
            (
                "GET / HTTP/1.0\nTransfer-Encoding: chunked",
                StatusCode::BadRequest,
            ),
            (
                "POST / HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\nContent-Length: 4",
                StatusCode::BadRequest,
            ),
            (
                "POST / HTTP/1.1\nHost: a\nContent-Length: 4",
                StatusCode::MethodNotAllowed,
            ),
            (
                "POST / HTTP/1.1\nHost: a\nTransfer-Encoding: chunked",
                StatusCode::MethodNotAllowed,
            ),
        ] {
            assert_eq!(refused(head), (status, false), "{head}");
        }
    }

    #[test]
    fn other_methods_do_not_end_the_connection() {
        for method in ["POST", "OPTIONS", "TRACE", "get"] {
            let head = format!("{method} / HTTP/1.1\nHost: a");
            assert_eq!(refused(&head), (StatusCode::MethodNotAllowed, true));
        }
    }

    #[test]
    fn a_redirect_keeps_host_path_and_query() {
        let request = |authority, query| Request {
            head_only: false,
            path: "/a",
            query,
            authority,
            persists: true,
        };
        for (authority, query, port, location) in [
            (Some("a.test"), None, 443, Some("https://a.test/a")),
            (
                Some("a.test:80"),
                Some("b=c"),
                443,
                Some("https://a.test/a?b=c"),
            ),
            (
                Some("[::1]:80"),
                Some(""),
                8443,
                Some("https://[::1]:8443/a?"),
            ),
            (Some("[::1]"), None, 443, Some("https://[::1]/a")),
            (None, None, 443, None),
        ] {
            let found = request(authority, query).location(port);
            assert_eq!(found.as_deref(), location);
        }
        assert_eq!(request(None, Some("b")).with_slash(), "/a/?b");
    }

    #[test]
    fn a_head_ends_at_the_first_empty_line_however_it_comes() {
        let head = b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\n\r\n";
        assert_eq!(end(head, 0), Some(27));
        for cut in 0..27 {
            assert_eq!(end(&head[..cut], 0), None);
            assert_eq!(end(head, cut), Some(27), "searched {cut}");
        }
        assert_eq!(end(b"GET / HTTP/1.1\nHost: a\n\nx", 0), Some(24));
        assert_eq!(blank(b"\r\n\n\rGET"), 4);
        assert_eq!(too_long(b"GET /aaaa"), StatusCode::UriTooLong);
        assert_eq!(
            too_long(b"GET / HTTP/1.1\r\naaa"),
            StatusCode::FieldsTooLarge
        );
    }

    #[test]
    fn a_head_may_have_any_number_of_fields() {
        let fields = "\na: b".repeat(10_000);
        assert!(ask(&format!("GET / HTTP/1.1\nHost: a{fields}")).is_ok());
    }

    #[test]
    fn an_invalid_request_line_is_rejected_before_the_head_is_complete() {
        for (bytes, found) in [
            (&b"GET /a HTT"[..], Ok(false)),
            (b"GET /a HTTP/1.1\r\nHos", Ok(true)),
            (b"\x16\x03\x01", Err(StatusCode::BadRequest)),
            (b"EHLO a\r\n", Err(StatusCode::BadRequest)),
            (b"GET / HTTP/3.0\n", Err(StatusCode::VersionNotSupported)),
        ] {
            for searched in 0..=bytes.iter().take_while(|byte| **byte >= b' ').count() {
                assert_eq!(check_line(bytes, searched), found, "{bytes:?}");
            }
        }
    }
}
