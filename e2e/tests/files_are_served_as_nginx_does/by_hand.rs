//! Special requests that are not generated.

/// Requests, with the status that both servers return.
pub(super) const ALIKE: &[(&str, &str)] = &[
    ("GET /a.txt HTTP/1.1\r\nHost: a\r\n\r\n", "200"),
    ("GET /a.txt HTTP/1.0\r\n\r\n", "200"),
    (
        "GET /a.txt HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n",
        "200",
    ),
    ("\r\n\r\nGET /a.txt HTTP/1.1\r\nHost: a\r\n\r\n", "200"),
    ("GET /a.txt HTTP/1.1\nHost: a\n\n", "200"),
    ("GET http://a/a.txt HTTP/1.1\r\nHost: b\r\n\r\n", "200"),
    ("GET http://a HTTP/1.1\r\nHost: b\r\n\r\n", "200"),
    ("GET http://a?x HTTP/1.1\r\nHost: b\r\n\r\n", "200"),
    ("GET http://u@a/a.txt HTTP/1.1\r\nHost: b\r\n\r\n", "400"),
    ("GET a.txt HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    ("GET * HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    ("GET /a.txt HTTP/1.1\r\n\r\n", "400"),
    ("GET /a.txt HTTP/1.1\r\nHost:\r\n\r\n", "400"),
    ("GET /a.txt HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", "400"),
    ("GET /a.txt HTTP/1.1\r\nHost: a b\r\n\r\n", "400"),
    ("GET /a.txt HTTP/1.1\r\nHost: a/b\r\n\r\n", "400"),
    ("GET /a.txt HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", "200"),
    ("GET /a.txt HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n", "400"),
    ("GET /a.txt HTTP/1.1\r\nHost: a\r\nX : y\r\n\r\n", "400"),
    (
        "GET /a.txt HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n",
        "400",
    ),
    ("GET /a.txt HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n", "400"),
    ("GET /a.txt HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n", "400"),
    ("GET /a.txt HTTP/1.1\r\nHost: a\r\nX: \u{e4}\r\n\r\n", "200"),
    ("GET\t/a.txt HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    ("GET /a txt HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    ("GET /a%zz HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    ("GET /a% HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    ("GET /a.txt HTTP/1.2\r\nHost: a\r\n\r\n", "200"),
    ("GET /a.txt HTTP/2.0\r\nHost: a\r\n\r\n", "505"),
    ("GET /a.txt http/1.1\r\nHost: a\r\n\r\n", "400"),
    ("GET\r\n\r\n", "400"),
    ("\0\0\0\0\r\n\r\n", "400"),
    (
        "GET /a.txt HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
        "200",
    ),
    (
        "GET /a.txt HTTP/1.1\r\nHost: a\r\nContent-Length: +4\r\n\r\nbody",
        "400",
    ),
    (
        "GET /a.txt HTTP/1.1\r\nHost: a\r\nContent-Length: 4, 4\r\n\r\nbody",
        "400",
    ),
    (
        "GET /a.txt HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: x\r\n\r\n",
        "501",
    ),
    (
        "GET /a.txt HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n0\r\n\r\n",
        "400",
    ),
    (
        "GET /a.txt HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "400",
    ),
    (
        "POST /a.txt HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody",
        "405",
    ),
    (
        "GET /a.txt HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
        "200",
    ),
];

/// Requests, with the different statuses of becket and nginx and the reason.
pub(super) const UNLIKE: &[(&str, &str, &str, &str)] = &[
    (
        "GET ftp://a/a.txt HTTP/1.1\r\nHost: b\r\n\r\n",
        "400",
        "200",
        "RFC 9110, 7.4: a server rejects a target with a scheme that it does not serve",
    ),
    (
        "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
        "405",
        "400",
        "RFC 9110, 9.3.7: `*` applies to the server itself, which has no options to report",
    ),
    (
        "CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n",
        "405",
        "400",
        "RFC 9110, 9.3.6: the method is known, but not allowed",
    ),
    (
        "get /a.txt HTTP/1.1\r\nHost: a\r\n\r\n",
        "405",
        "400",
        "RFC 9110, 9.1: methods are case-sensitive tokens",
    ),
    (
        "GET /\u{e4} HTTP/1.1\r\nHost: a\r\n\r\n",
        "400",
        "404",
        "RFC 3986, 2: a URI consists of ASCII characters",
    ),
    (
        "GET  /a.txt HTTP/1.1\r\nHost: a\r\n\r\n",
        "400",
        "200",
        "RFC 9112, 3: a single space separates the parts of the request line",
    ),
    (
        "GET /a.txt  HTTP/1.1\r\nHost: a\r\n\r\n",
        "400",
        "200",
        "RFC 9112, 3: a single space separates the parts of the request line",
    ),
    (
        "GET /a.txt#b HTTP/1.1\r\nHost: a\r\n\r\n",
        "400",
        "200",
        "RFC 9110, 7.1: a target has no fragment",
    ),
    (
        "GET /a.txt HTTP/0.9\r\nHost: a\r\n\r\n",
        "505",
        "400",
        "RFC 9110, 15.6.6: the version is not supported",
    ),
    (
        "GET /a.txt HTTP/11\r\nHost: a\r\n\r\n",
        "400",
        "505",
        "RFC 9112, 2.3: a version consists of a digit, a dot and a digit",
    ),
    (
        "GET /a.txt\r\n\r\n",
        "400",
        "no head",
        "RFC 9112, 3: a request line has a version; only HTTP/0.9 had responses without a header",
    ),
    (
        "GET /a.txt HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody",
        "413",
        "200",
        "RFC 9110, 9.3.1: content in a GET request has no meaning, and a server may reject it to prevent smuggling",
    ),
    (
        "GET /a.txt HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
        "200",
        "400",
        "RFC 9112, 6.3: a recipient may accept repeated equal lengths",
    ),
    (
        "GET /a.txt HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "501",
        "200",
        "RFC 9112, 6.1: a server answers 501 to transfer codings that it does not support, and none is needed here",
    ),
    (
        "GET /a.txt HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n",
        "200",
        "100",
        "RFC 9110, 10.1.1: a request without content needs no 100 response",
    ),
    (
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "505",
        "400",
        "RFC 9110, 15.6.6: the version is not supported",
    ),
];
