//! Tests of file serving: complete answers in order, slow clients, timeouts, changing files, invalid requests.

use std::fs::{self, File};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{Client, House, pattern};
use crate::script::link::End;
use crate::script::stage::Stage;
use becket_proto::close_reason::CloseReason;
use rustls::version::TLS13;
use tempfile::TempDir;

/// A folder with some files, and a becket that serves it: the first listener with TLS, the second
/// without; the third redirects all plain clients to the first.
pub(crate) struct Site {
    pub(crate) house: House,
    pub(crate) root: TempDir,
}

impl Site {
    fn new() -> Self {
        Self::with("", "")
    }

    /// `keys` are keys of the folder, `more` are other sections.
    pub(crate) fn with(keys: &str, more: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(root.path().join(name), text).unwrap();
        put("index.html", "<p>Welcome");
        put("a.txt", "alpha");
        fs::create_dir(root.path().join("sub")).unwrap();
        put("sub/index.html", "below");
        put("404.html", "<p>Gone");
        fs::create_dir(root.path().join("empty")).unwrap();
        put(".secret", "secret");
        let path = root.path().display();
        let house = House::new(&format!(
            "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:443']\nbackend = 'site'\ncertificates = ['a.pem']\n\
             [[listener]]\nname = 'plain'\nbind = ['127.0.0.1:80']\nbackend = 'site'\ntls = false\n\
             [[listener]]\nname = 'old'\nbind = ['127.0.0.1:81']\nredirect = 'https:8443'\ntls = false\n\
             [[backend]]\nname = 'site'\n[backend.files]\nroot = '{path}'\n{keys}\n{more}"
        ));
        Self { house, root }
    }

    pub(crate) fn put(&self, name: &str, bytes: &[u8]) {
        fs::write(self.root.path().join(name), bytes).unwrap();
    }

    /// Connects a client without TLS that has sent `says`.
    pub(crate) fn plain(&self, listener: usize, says: &[u8]) -> (Stage, End) {
        let mut stage = self.house.stage();
        let mut end = stage.admit(self.house.listener(listener), []);
        stage.settle();
        end.write_all(says).unwrap();
        stage.settle();
        (stage, end)
    }

    /// Connects a TLS client with keys.
    fn secure(&self, capacity: usize) -> (Stage, Client) {
        self.secure_saying(capacity, b"")
    }

    /// As [`Self::secure`]; `said` arrives with the end of the handshake.
    fn secure_saying(&self, capacity: usize, said: &[u8]) -> (Stage, Client) {
        let mut stage = self.house.stage_of(capacity);
        let config = Arc::new(self.house.client(&TLS13));
        let listener = self.house.listener(0);
        let mut client = Client::enter_before(&mut stage, listener, &config, "a.test", []);
        client.say(said);
        client.talk(&mut stage);
        assert!(!client.tls.is_handshaking(), "{:?}", stage.closed());
        (stage, client)
    }

    /// Returns the answer to one request without TLS, whether it is ready at once or comes from a
    /// thread.
    fn get(&self, target: &str, fields: &str) -> Answer {
        self.ask("GET", target, fields)
    }

    fn ask(&self, method: &str, target: &str, fields: &str) -> Answer {
        let request = format!(
            "{method} {target} HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n{fields}\r\n"
        );
        let (mut stage, mut end) = self.plain(1, request.as_bytes());
        let mut got = Vec::new();
        while !end.watch().is_ended() {
            got.extend(end.receive_all());
            stage.settle();
            std::thread::yield_now();
            assert!(!end.watch().is_broken(), "{:?}", stage.closed());
        }
        got.extend(end.receive_all());
        drop(end);
        stage.settle();
        assert_eq!(stage.closed(), Some(CloseReason::Finished));
        Answer::of(&got)
    }
}

/// One answer.
#[derive(Debug)]
pub(crate) struct Answer {
    status: String,
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    #[track_caller]
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        let (head, body) = bytes.split_at(end.expect("a head") + 4);
        let head = String::from_utf8(head.to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().to_owned();
        let body = body.to_vec();
        Self { status, head, body }
    }

    fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value)
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

#[test]
fn files_are_served_with_their_headers() {
    let site = Site::new();
    let answer = site.get("/a.txt", "");
    assert_eq!((answer.status.as_str(), answer.text()), ("200", "alpha"));
    assert_eq!(
        answer.field("Content-Type"),
        Some("text/plain; charset=utf-8")
    );
    assert_eq!(answer.field("Content-Length"), Some("5"));
    assert_eq!(answer.field("Accept-Ranges"), Some("bytes"));
    assert_eq!(answer.field("Connection"), Some("close"));
    assert!(answer.field("Date").is_some() && answer.field("Last-Modified").is_some());
    assert_eq!(
        (
            answer.field("Vary"),
            answer.field("Strict-Transport-Security")
        ),
        (None, None)
    );
    let etag = answer.field("ETag").unwrap().to_owned();
    let head = site.ask("HEAD", "/a.txt", "");
    assert_eq!((head.status.as_str(), head.text()), ("200", ""));
    assert_eq!(head.field("Content-Length"), Some("5"));
    let same = site.get("/a.txt", &format!("If-None-Match: {etag}\r\n"));
    assert_eq!((same.status.as_str(), same.text()), ("304", ""));
    assert_eq!(
        (same.field("ETag"), same.field("Content-Length")),
        (Some(&*etag), None)
    );
    let part = site.get("/a.txt", "Range: bytes=1-2\r\n");
    assert_eq!((part.status.as_str(), part.text()), ("206", "lp"));
    assert_eq!(part.field("Content-Range"), Some("bytes 1-2/5"));
    let none = site.get("/a.txt", "Range: bytes=5-\r\n");
    assert_eq!(
        (none.status.as_str(), none.field("Content-Range")),
        ("416", Some("bytes */5"))
    );
    let other = site.get("/a.txt", "If-Match: \"x\"\r\n");
    assert_eq!(other.status, "412");
}

#[test]
fn folders_have_indexes_and_end_with_a_slash() {
    let site = Site::new();
    for (target, status, text) in [
        ("/", "200", "<p>Welcome"),
        ("/sub/", "200", "below"),
        ("/sub", "301", "301 Moved Permanently\n"),
        ("/empty/", "403", "403 Forbidden\n"),
        ("/a.txt/", "404", "404 Not Found\n"),
        ("/nothing", "404", "404 Not Found\n"),
        ("/nothing/", "404", "404 Not Found\n"),
        ("/.secret", "404", "404 Not Found\n"),
        ("/%2esecret", "404", "404 Not Found\n"),
        ("/../a.txt", "400", "400 Bad Request\n"),
        ("/sub/..%2f..%2fa.txt", "404", "404 Not Found\n"),
    ] {
        let answer = site.get(target, "");
        assert_eq!(
            (answer.status.as_str(), answer.text()),
            (status, text),
            "{target}"
        );
    }
    let moved = site.get("/sub?a=b", "");
    assert_eq!(moved.field("Location"), Some("/sub/?a=b"));
}

#[test]
fn symlinks_are_followed_only_if_enabled_and_only_within_the_folder() {
    for (keys, inside) in [("", "404"), ("symlinks = true", "200")] {
        let site = Site::with(keys, "");
        let link = |to: &str, name: &str| {
            std::os::unix::fs::symlink(to, site.root.path().join(name)).unwrap()
        };
        link("a.txt", "inside");
        link("/etc/passwd", "absolute");
        link("../../../../../../etc/passwd", "outside");
        link("loop", "loop");
        let status = |target| site.get(target, "").status;
        assert_eq!(status("/inside"), inside);
        for target in ["/absolute", "/outside", "/loop"] {
            assert_eq!(status(target), "404", "{target}");
        }
    }
}

#[test]
fn only_regular_files_are_served() {
    let site = Site::new();
    let _socket = std::os::unix::net::UnixListener::bind(site.root.path().join("socket")).unwrap();
    assert_eq!(site.get("/socket", "").status, "404");
}

#[test]
fn keys_configure_compression_headers_and_error_pages() {
    let keys = "precompressed = true\nindex = ['a.txt', 'b.txt']\nhsts = 'max-age=1'\n\
                [[backend.files.cache-control]]\npaths = '/assets/*'\nvalue = 'immutable'\n\
                [[backend.files.cache-control]]\npaths = '*.txt'\nvalue = 'no-cache'\n\
                [[backend.files.error-page]]\nstatus = 404\npath = '404.html'\n\
                [[backend.files.error-page]]\nstatus = 403\npath = 'lost.html'\n";
    let site = Site::with(keys, "");
    site.put("a.txt.br", b"BR");
    site.put("a.txt.gz", b"GZ");
    let plain = site.get("/a.txt", "");
    assert_eq!(
        (plain.text(), plain.field("Cache-Control")),
        ("alpha", Some("no-cache"))
    );
    assert_eq!(plain.field("Vary"), Some("Accept-Encoding"));
    let br = site.get("/a.txt", "Accept-Encoding: gzip, zstd, br\r\n");
    assert_eq!(
        (br.text(), br.field("Content-Encoding")),
        ("BR", Some("br"))
    );
    assert_eq!(br.field("Content-Type"), plain.field("Content-Type"));
    assert_ne!(br.field("ETag"), plain.field("ETag"));
    let gzip = site.get("/", "Accept-Encoding: gzip\r\n");
    assert_eq!(
        (gzip.text(), gzip.field("Content-Encoding")),
        ("GZ", Some("gzip"))
    );
    site.put("alone.txt.gz", b"GZ");
    let alone = site.get("/alone.txt", "Accept-Encoding: gzip\r\n");
    assert_eq!(alone.status, "404", "its plain file is missing");
    let gone = site.get("/nothing", "");
    assert_eq!((gone.status.as_str(), gone.text()), ("404", "<p>Gone"));
    assert_eq!(gone.field("Content-Type"), Some("text/html; charset=utf-8"));
    assert_eq!(
        (gone.field("ETag"), gone.field("Content-Length")),
        (None, Some("7"))
    );
    assert_eq!(site.get("/empty/", "").text(), "403 Forbidden\n");
    let (mut stage, mut client) = site.secure(64 * 1024);
    client.say(b"HEAD /nothing HTTP/1.0\r\n\r\n");
    while !client.closed {
        client.talk(&mut stage);
        std::thread::yield_now();
    }
    let answer = Answer::of(&client.received);
    assert_eq!(answer.field("Strict-Transport-Security"), Some("max-age=1"));
    assert_eq!((answer.text(), client.closed), ("", true));
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let site = Site::new();
    let (mut stage, mut client) = site.secure(64 * 1024);
    let ask = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: a.test\r\n\r\n");
    let targets = ["/a.txt", "/nothing", "/sub/", "/a.txt"];
    let said: String = targets.map(ask).concat();
    client.say(said.as_bytes());
    // A thread may have to look for a missing file.
    let answered = |stage: &Stage| -> u64 {
        let counts = stage.counters.file_requests.iter();
        counts.map(|count| count.value()).sum()
    };
    while answered(&stage) < 4 {
        client.talk(&mut stage);
        std::thread::yield_now();
    }
    client.talk(&mut stage);
    let text = String::from_utf8(client.received).unwrap();
    let bodies: Vec<&str> = text.split("\r\n\r\n").skip(1).collect();
    let begins = ["alpha", "404", "below", "alpha"];
    assert_eq!(bodies.len(), 4, "{text}");
    assert!(
        bodies
            .iter()
            .zip(begins)
            .all(|(body, begin)| body.starts_with(begin)),
        "{text}"
    );
    assert_eq!(stage.closed(), None, "the connection goes on");
}

#[test]
fn a_request_head_may_arrive_one_byte_at_a_time() {
    let site = Site::new();
    let request = b"\r\nGET /a.txt HTTP/1.1\r\nHost: a.test\r\n\r\n";
    let (mut stage, mut end) = site.plain(1, b"");
    for byte in request {
        assert!(end.receive_all().is_empty());
        end.write_all(&[*byte]).unwrap();
        stage.settle();
    }
    assert_eq!(Answer::of(&end.receive_all()).text(), "alpha");
}

#[test]
fn a_slow_client_receives_a_large_file_completely() {
    let site = Site::new();
    let len = 300_000;
    site.put("large", &pattern(0, len));
    for capacity in [700, 64 * 1024] {
        let (mut stage, mut client) = site.secure(capacity);
        client.say(b"GET /large HTTP/1.1\r\nHost: a.test\r\n\r\nGET /a.txt HTTP/1.0\r\n\r\n");
        while !client.closed {
            client.talk(&mut stage);
            std::thread::yield_now();
        }
        let answer = Answer::of(&client.received);
        assert_eq!(answer.field("Content-Length"), Some("300000"));
        assert!(answer.body[..len] == pattern(0, len), "bytes differ");
        assert_eq!(Answer::of(&answer.body[len..]).text(), "alpha");
    }
}

#[test]
fn a_file_changed_while_it_is_sent_arrives_in_its_old_version() {
    let site = Site::new();
    let path = site.root.path().join("large");
    let len = 300_000;
    let change: [&dyn Fn(); 3] = [
        &|| {
            let mut file = File::options().append(true).open(&path).unwrap();
            file.write_all(&[7; 50_000]).unwrap();
        },
        &|| fs::remove_file(&path).unwrap(),
        &|| fs::rename(site.root.path().join("index.html"), &path).unwrap(),
    ];
    for change in change {
        site.put("large", &pattern(0, len));
        let (mut stage, mut client) = site.secure(5000);
        client.say(b"GET /large HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n");
        client.flush();
        stage.settle();
        change();
        while !client.closed {
            client.talk(&mut stage);
            std::thread::yield_now();
        }
        let answer = Answer::of(&client.received);
        assert_eq!(answer.field("Content-Length"), Some("300000"));
        assert!(answer.body == pattern(0, len), "bytes differ");
    }
}

#[test]
fn a_file_that_shrinks_ends_the_connection() {
    let site = Site::new();
    site.put("large", &[7; 500_000]);
    let request = b"GET /large HTTP/1.1\r\nHost: a.test\r\n\r\n";
    let shrink = || {
        let file = File::options()
            .write(true)
            .open(site.root.path().join("large"));
        file.unwrap().set_len(1000).unwrap();
    };
    let (mut stage, mut client) = site.secure(5000);
    client.say(request);
    client.flush();
    stage.settle();
    shrink();
    while stage.closed().is_none() && client.fault.is_none() && !client.end.watch().is_ended() {
        client.talk(&mut stage);
        std::thread::yield_now();
    }
    client.talk(&mut stage);
    assert!(!client.closed, "no close_notify");
    drop(client.end);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::FileCut));
    site.put("large", &[7; 500_000]);
    let (mut stage, mut end) = site.plain(1, request);
    shrink();
    while stage.closed().is_none() {
        end.receive_all();
        stage.settle();
        std::thread::yield_now();
    }
    assert_eq!(stage.closed(), Some(CloseReason::FileCut));
    assert!(end.watch().is_broken(), "a reset");
}

#[test]
fn requests_with_a_body_or_a_long_head_are_rejected() {
    let site = Site::with("", "[limits]\nrequest-head = 600\n");
    let long = "x".repeat(700);
    for (says, status) in [
        (format!("GET /{long}"), "414"),
        (format!("GET / HTTP/1.1\r\nX: {long}"), "431"),
        (format!("GET / HTTP/1.1\r\nX: {long}\r\n\r\n"), "431"),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "400"),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello".to_owned(),
            "413",
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello".to_owned(),
            "405",
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
            "501",
        ),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), "505"),
    ] {
        let (mut stage, mut end) = site.plain(1, says.as_bytes());
        let answer = Answer::of(&end.receive_all());
        assert_eq!(answer.status, status);
        assert_eq!(answer.field("Connection"), Some("close"));
        end.write_all(b"GET /a.txt HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
        stage.settle();
        assert!(
            end.receive_all().is_empty(),
            "nothing behind it is answered"
        );
        drop(end);
        stage.settle();
        assert!(stage.closed().is_some());
    }
    let other = site.ask("POST", "/", "");
    assert_eq!(
        (other.status.as_str(), other.field("Allow")),
        ("405", Some("GET, HEAD"))
    );
}

#[test]
fn invalid_requests_are_rejected_at_the_first_invalid_byte() {
    let site = Site::new();
    for says in [
        // A TLS client.
        &b"\x16\x03\x01\x02\0\x01"[..],
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"GET /\xe4",
    ] {
        let (_stage, mut end) = site.plain(1, says);
        let answer = Answer::of(&end.receive_all());
        assert_eq!(answer.status, "400", "{says:?}");
        assert_eq!(answer.field("Connection"), Some("close"));
    }
}

#[test]
fn a_response_to_head_never_has_a_body() {
    let site = Site::new();
    let long = "x".repeat(9000);
    for says in [
        "HEAD /a.txt HTTP/1.1\r\n\r\n",
        "HEAD /a.txt HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n",
        "HEAD /a.txt HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n",
        "HEAD /a.txt\r\n\r\n",
        &format!("HEAD /{long}"),
    ] {
        let answer = Answer::of(&site.plain(1, says.as_bytes()).1.receive_all());
        assert!(answer.status.starts_with('4'), "{}", answer.head);
        assert_eq!(answer.text(), "", "{}", answer.head);
    }
}

#[test]
fn requests_keep_alive_and_slow_readers_have_their_own_timeouts() {
    let site = Site::new();
    let ask = b"GET /a.txt HTTP/1.1\r\nHost: a.test\r\n\r\n";
    let timeouts = site.house.config.file.timeouts.clone();
    let wait = |stage: &mut Stage, time: Duration| {
        stage.wait(time);
        stage.settle();
    };
    // A client that sends nothing, or only a part of a request, however often.
    let (mut stage, mut end) = site.plain(1, b"");
    wait(&mut stage, timeouts.request / 2);
    end.write_all(b"GET").unwrap();
    stage.settle();
    for _ in 0..3 {
        wait(&mut stage, timeouts.request / 4);
        let _gone = end.write_all(b"x");
        stage.settle();
    }
    assert_eq!(stage.closed(), None);
    wait(&mut stage, timeouts.request / 4);
    assert_eq!(stage.closed(), Some(CloseReason::RequestTimeout));
    // A client that sends a part of a request after its handshake, and no more.
    let (mut stage, mut client) = site.secure_saying(64 * 1024, b"GET");
    assert_eq!(client.tls.tls13_tickets_received(), 0);
    wait(&mut stage, Duration::from_millis(50));
    assert_eq!(client.talk(&mut stage), None);
    assert_eq!(client.tls.tls13_tickets_received(), 2);
    wait(&mut stage, timeouts.request);
    assert!(client.talk(&mut stage).is_none() && !client.closed);
    drop(client);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::RequestTimeout));
    // A client without a further request.
    let (mut stage, mut client) = site.secure(64 * 1024);
    client.say(ask);
    client.talk(&mut stage);
    wait(&mut stage, timeouts.keep_alive - Duration::from_millis(1));
    assert!(client.talk(&mut stage).is_none() && !client.closed);
    wait(&mut stage, Duration::from_millis(1));
    client.talk(&mut stage);
    assert!(client.closed, "close_notify");
    drop(client.end);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::Finished));
    // A client that does not read.
    site.put("large", &[7; 500_000]);
    let (mut stage, end) = site.plain(1, b"GET /large HTTP/1.1\r\nHost: a.test\r\n\r\n");
    wait(&mut stage, timeouts.idle);
    assert_eq!(stage.closed(), Some(CloseReason::IdleTimeout));
    assert!(end.watch().is_broken());
}

#[test]
fn the_request_limit_or_a_drain_ends_the_connection() {
    let site = Site::with("", "[limits]\nrequests = 2\n");
    let ask = b"GET /a.txt HTTP/1.1\r\nHost: a.test\r\n\r\n";
    let (mut stage, mut end) = site.plain(1, ask);
    assert_eq!(Answer::of(&end.receive_all()).field("Connection"), None);
    end.write_all(ask).unwrap();
    stage.settle();
    assert_eq!(
        Answer::of(&end.receive_all()).field("Connection"),
        Some("close")
    );
    assert!(end.watch().is_ended());
    let (mut stage, mut end) = site.plain(1, ask);
    end.receive_all();
    stage.drain();
    end.write_all(ask).unwrap();
    stage.settle();
    assert_eq!(
        Answer::of(&end.receive_all()).field("Connection"),
        Some("close")
    );
    let (mut stage, end) = site.plain(1, ask);
    stage.drain();
    stage.wait(site.house.config.file.timeouts.drain_idle);
    stage.settle();
    drop(end);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::Finished));
}

#[test]
fn a_half_closed_client_receives_complete_answers() {
    use becket_proxy::socket::StreamSocket;
    let site = Site::new();
    let (mut stage, mut end) = site.plain(1, b"GET /a.txt HTTP/1.1\r\nHost: a.test\r\n\r\nGET /a");
    end.finish();
    stage.settle();
    assert_eq!(Answer::of(&end.receive_all()).text(), "alpha");
    drop(end);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::ClientTruncated));
}

#[test]
fn a_plain_http_client_is_redirected_to_https() {
    let site = Site::new();
    let says = b"GET /sub?x HTTP/1.1\r\nHost: a.test:80\r\n\r\nGET / HTTP/1.0\r\n\r\n";
    let (_stage, mut end) = site.plain(2, says);
    let answer = Answer::of(&end.receive_all());
    assert_eq!(answer.status, "301");
    assert_eq!(answer.field("Location"), Some("https://a.test:8443/sub?x"));
    assert!(
        answer.text().ends_with("\r\n\r\n400 Bad Request\n"),
        "{}",
        answer.text()
    );
}
