//! Becket and nginx serve the same folder and give equal responses to a table of requests. Each difference has an entry with the
//! section of the RFC that justifies it.
//!
//! Some requests are generated (methods, paths, codings; files, conditions, ranges), and others are written by hand, byte by byte. The test
//! compares the status, the header fields that affect clients, and the bodies of files. It also fails if no request shows a
//! [`Difference`] any more.

mod by_hand;
mod differences;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File, FileTimes};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::time::{Duration, UNIX_EPOCH};

use becket_e2e::{Becket, Kept, PATIENCE, Place, Tool, eventually, fresh_address};

use self::by_hand::{ALIKE, UNLIKE};
use self::differences::{DIFFERENCES, Difference};

#[derive(Clone, Debug, Default)]
struct Request {
    method: &'static str,
    path: String,
    fields: Vec<(&'static str, &'static str)>,
}

impl Request {
    fn new(method: &'static str, path: &str) -> Self {
        Self {
            method,
            path: path.to_owned(),
            fields: Vec::new(),
        }
    }

    fn with(mut self, name: &'static str, value: &'static str) -> Self {
        self.fields.push((name, value));
        self
    }

    fn has(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    fn value(&self, name: &str) -> Option<&str> {
        let mut fields = self.fields.iter();
        fields.find(|field| field.0 == name).map(|field| field.1)
    }

    /// Returns the bytes of the request for a server that uses this entity tag for the file.
    fn text(&self, etag: &str) -> String {
        let Self { method, path, .. } = self;
        let mut text =
            format!("{method} {path} HTTP/1.1\r\nHost: www.example.org\r\nConnection: close\r\n");
        for (name, value) in &self.fields {
            let value = value.replace("ETAG", etag);
            write!(text, "{name}: {value}\r\n").unwrap();
        }
        text + "\r\n"
    }
}

/// Response of a server.
#[derive(Clone, Debug, Default)]
struct Answer {
    /// Status code; `closed` if the server sent nothing.
    status: String,
    fields: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Answer {
    /// Reads a response. `is_bare` means that no body follows regardless of the header.
    fn read(from: &mut impl BufRead, is_bare: bool) -> Self {
        let mut lines = from.by_ref().lines();
        let Some(Ok(status)) = lines.next() else {
            return Self {
                status: "closed".to_owned(),
                ..Self::default()
            };
        };
        let Some(status) = status
            .strip_prefix("HTTP/1.1 ")
            .map(|rest| rest[..3].to_owned())
        else {
            return Self {
                status: "no head".to_owned(),
                ..Self::default()
            };
        };
        let head = lines
            .map_while(Result::ok)
            .take_while(|line| !line.is_empty());
        let fields = head.filter_map(|line| {
            let (name, value) = line.split_once(": ")?;
            Some((name.to_ascii_lowercase(), value.to_owned()))
        });
        let fields: BTreeMap<_, _> = fields.collect();
        let length = fields
            .get("content-length")
            .map_or(0, |text| text.parse().unwrap());
        let has_body = !is_bare && status != "304";
        let mut body = vec![0; if has_body { length } else { 0 }];
        from.read_exact(&mut body).unwrap();
        Self {
            status,
            fields,
            body,
        }
    }

    fn is_file(&self) -> bool {
        matches!(&*self.status, "200" | "206")
    }

    /// Returns a part of the response as a client sees it.
    fn part(&self, what: &str) -> String {
        match what {
            "status" => self.status.clone(),
            // The entity tags of two servers are never equal.
            "etag" => format!(
                "{:?}",
                self.fields.get(what).map(|tag| tag.starts_with("W/"))
            ),
            "body" if !self.is_file() => String::new(),
            "body" => String::from_utf8_lossy(&self.body).into_owned(),
            // Error pages may differ.
            "content-type" | "content-length" | "accept-ranges" if !self.is_file() => String::new(),
            field => self.fields.get(field).cloned().unwrap_or_default(),
        }
    }
}

const PARTS: [&str; 12] = [
    "status",
    "content-type",
    "content-length",
    "content-range",
    "content-encoding",
    "last-modified",
    "etag",
    "location",
    "accept-ranges",
    "vary",
    "allow",
    "body",
];

fn connect(at: SocketAddr) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    BufReader::new(stream)
}

fn ask(at: SocketAddr, text: &[u8]) -> Answer {
    let mut stream = connect(at);
    // The server may close before it has read the whole request.
    stream.get_mut().write_all(text).ok();
    Answer::read(&mut stream, text.starts_with(b"HEAD "))
}

struct Servers {
    becket: SocketAddr,
    nginx: SocketAddr,
    _becket: Becket,
    _nginx: Kept,
    _place: Place,
}

impl Servers {
    fn start(nginx: &Tool) -> Self {
        let place = Place::new();
        tree(&place);
        let [becket, at_nginx, admin] = [(); 3].map(|()| fresh_address());
        place.write(
            "becket.toml",
            &format!(
                "[[listener]]\nname = 'plain'\nbind = ['{becket}']\ntls = false\nbackend = 'site'\n\
                 [[backend]]\nname = 'site'\n[backend.files]\nroot = 'www'\nprecompressed = true\n\
                 [admin]\naddress = '{admin}'\n[log]\nfile = 'becket.log'\n"
            ),
        );
        let command = Becket::command(&place, &["run", "--config", "becket.toml"]);
        let running = Becket::spawn(command, place.folder(), becket, admin);
        running.ready();
        let folder = place.folder().display();
        let configuration = place.write(
            "nginx.conf",
            &format!(
                "daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
                 events {{ }}
                 http {{
                   access_log off; include /etc/nginx/mime.types; default_type application/octet-stream;
                   charset utf-8; charset_types text/plain text/css text/xml application/javascript; absolute_redirect off; if_modified_since before;
                   gzip_static on; gzip_vary on; gzip_http_version 1.0;
                   client_body_temp_path {folder}/a; proxy_temp_path {folder}/b;
                   fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
                   server {{ listen {at_nginx}; root {folder}/www; disable_symlinks on; }}
                 }}\n"
            ),
        );
        let command = nginx.command([
            "-e".as_ref(),
            "stderr".as_ref(),
            "-c".as_ref(),
            configuration.as_os_str(),
        ]);
        let mut command = command;
        let process = Kept(command.spawn().unwrap());
        eventually("nginx listens", || TcpStream::connect(at_nginx).is_ok());
        Self {
            becket,
            nginx: at_nginx,
            _becket: running,
            _nginx: process,
            _place: place,
        }
    }

    /// Returns the parts of the responses that differ.
    fn differ(&self, request: &Request) -> Vec<(&'static str, String, String)> {
        let [becket, nginx] = [self.becket, self.nginx].map(|at| {
            let mut etag = String::new();
            if request
                .fields
                .iter()
                .any(|(_, value)| value.contains("ETAG"))
            {
                let head = Request::new("HEAD", &request.path);
                etag = ask(at, head.text("").as_bytes()).fields["etag"].clone();
            }
            ask(at, request.text(&etag).as_bytes())
        });
        let parts = PARTS.map(|part| (part, becket.part(part), nginx.part(part)));
        let parts = parts.into_iter().filter(|(_, one, other)| one != other);
        // If the statuses differ, all other parts differ as well.
        let count = if becket.status == nginx.status {
            PARTS.len()
        } else {
            1
        };
        parts.take(count).collect()
    }
}

/// Creates the folder. All files have a modification time in 1994.
fn tree(place: &Place) {
    fs::create_dir_all(place.path("www/sub/empty")).unwrap();
    fs::write(place.path("secret"), "secret").unwrap();
    let mut names = vec![
        ("index.html", "<p>Welcome".to_owned()),
        ("a.txt", "0123456789".repeat(10)),
        ("empty.txt", String::new()),
        ("big.bin", "abcdefgh".repeat(40_000)),
        ("sub/index.html", "<p>Below".to_owned()),
        ("sub/a b.txt", "alpha".to_owned()),
        ("style.css", "a{}".repeat(50)),
        ("style.css.gz", "compressed".to_owned()),
        (".hidden", "hidden".to_owned()),
        (".well-known/a.txt", "known".to_owned()),
        ("\u{fc}.txt", "umlaut".to_owned()),
        ("100%.txt", "percent".to_owned()),
        ("a+b&c=d;e.txt", "signs".to_owned()),
        ("README", "read".to_owned()),
    ];
    fs::create_dir(place.path("www/.well-known")).unwrap();
    names.extend(KINDS.map(|name| (name, name.to_owned())));
    for (name, text) in names {
        let mut file = File::create(place.path("www").join(name)).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let modified = UNIX_EPOCH + Duration::from_secs(784_903_526);
        file.set_times(FileTimes::new().set_modified(modified))
            .unwrap();
    }
    symlink("a.txt", place.path("www/link.txt")).unwrap();
    symlink("../secret", place.path("www/outside")).unwrap();
}

const KINDS: [&str; 16] = [
    "k.html", "k.css", "k.js", "k.json", "k.svg", "k.png", "k.jpg", "k.webp", "k.woff2", "k.pdf",
    "k.xml", "k.mp4", "k.wasm", "k.ico", "k.zip", "k.mjs",
];

const METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "BREW",
];

const PATHS: [&str; 36] = [
    "/",
    "/?x=1",
    "/index.html",
    "/a.txt",
    "/a.txt?x=/../y",
    "/%61.txt",
    "/empty.txt",
    "/big.bin",
    "/README",
    "/sub",
    "/sub?x=1",
    "/sub/",
    "/sub/index.html",
    "/sub/a%20b.txt",
    "/sub/empty/",
    "/sub/empty",
    "/%C3%BC.txt",
    "/100%25.txt",
    "/a+b&c=d;e.txt",
    "/nothing",
    "/nothing/",
    "/a.txt/",
    "/a.txt/b",
    "/style.css",
    "/style.css.gz",
    "/.well-known/a.txt",
    "/.hidden",
    "/link.txt",
    "/outside",
    "//a.txt",
    "/sub/../a.txt",
    "/sub/%2e%2e/a.txt",
    "/../secret",
    "/%2e%2e/secret",
    "/sub%2Findex.html",
    "/a.txt%00",
];

const NONE: &[(&str, &str)] = &[];

const CONDITIONS: [&[(&str, &str)]; 18] = [
    &[],
    &[("If-Match", "*")],
    &[("If-Match", "ETAG")],
    &[("If-Match", "\"x\", ETAG")],
    &[("If-Match", "W/ETAG")],
    &[("If-Match", "\"x\"")],
    &[("If-None-Match", "*")],
    &[("If-None-Match", "ETAG")],
    &[("If-None-Match", "W/ETAG")],
    &[("If-None-Match", "\"x\"")],
    &[("If-Modified-Since", SAME)],
    &[("If-Modified-Since", LATER)],
    &[("If-Modified-Since", EARLIER)],
    &[("If-Unmodified-Since", SAME)],
    &[("If-Unmodified-Since", EARLIER)],
    &[("If-Unmodified-Since", "yesterday")],
    &[("If-Match", "*"), ("If-Unmodified-Since", EARLIER)],
    &[("If-None-Match", "ETAG"), ("If-Modified-Since", EARLIER)],
];

const RANGES: [&[(&str, &str)]; 21] = [
    &[],
    &[("Range", "bytes=0-0")],
    &[("Range", "bytes=10-")],
    &[("Range", "bytes=-7")],
    &[("Range", "bytes=-700")],
    &[("Range", "bytes=90-700")],
    &[("Range", "BYTES=0-1")],
    &[("Range", "bytes= 5-6")],
    &[("Range", "bytes=100-")],
    &[("Range", "bytes=-0")],
    &[("Range", "bytes=0-1,3-4")],
    &[("Range", "bytes=2-1")],
    &[("Range", "bytes=a-b")],
    &[("Range", "bytes=")],
    &[("Range", "lines=0-1")],
    &[("Range", "bytes=0-0"), ("If-Range", "ETAG")],
    &[("Range", "bytes=0-0"), ("If-Range", "W/ETAG")],
    &[("Range", "bytes=0-0"), ("If-Range", "\"x\"")],
    &[("Range", "bytes=0-0"), ("If-Range", SAME)],
    &[("Range", "bytes=0-0"), ("If-Range", EARLIER)],
    &[("Range", "bytes=0-0"), ("If-Range", "nonsense")],
];

const CODINGS: [&str; 9] = [
    "gzip",
    "br, gzip",
    "GZIP;q=0.5",
    "gzip;q=0",
    "gzip;q=0.000",
    "identity",
    "*",
    "x-gzip",
    "gzipped",
];

const SAME: &str = "Tue, 15 Nov 1994 12:45:26 GMT";
const EARLIER: &str = "Tue, 15 Nov 1994 12:45:25 GMT";
const LATER: &str = "Tuesday, 15-Nov-94 12:45:27 GMT";

fn requests() -> Vec<Request> {
    let mut all = Vec::new();
    let methods = METHODS.into_iter();
    all.extend(methods.flat_map(|method| PATHS.map(|path| Request::new(method, path))));
    all.extend(KINDS.map(|name| Request::new("HEAD", &format!("/{name}"))));
    for path in ["/a.txt", "/empty.txt"] {
        let gets = CONDITIONS
            .iter()
            .flat_map(|condition| RANGES.map(|range| ("GET", *condition, range)));
        let heads = CONDITIONS
            .iter()
            .chain(&RANGES)
            .map(|fields| ("HEAD", *fields, NONE));
        for (method, condition, range) in gets.chain(heads) {
            let fields = condition.iter().chain(range).copied();
            all.push(Request {
                fields: fields.collect(),
                ..Request::new(method, path)
            });
        }
    }
    for path in ["/style.css", "/a.txt"] {
        for (method, coding) in CODINGS
            .iter()
            .flat_map(|coding| [("GET", coding), ("HEAD", coding)])
        {
            let request = Request::new(method, path).with("Accept-Encoding", coding);
            all.push(request.clone());
            all.push(request.clone().with("If-None-Match", "ETAG"));
            all.push(request.with("Range", "bytes=1-2"));
        }
    }
    all
}

#[test]
#[ignore = "slow: .ci/run test"]
fn generated_requests_have_equal_responses() {
    let Some(nginx) = Tool::find("nginx") else {
        return;
    };
    let servers = Servers::start(&nginx);
    let mut shown = vec![false; DIFFERENCES.len()];
    let mut wrong = String::new();
    for request in requests() {
        for (part, becket, nginx) in servers.differ(&request) {
            let mut known = DIFFERENCES.iter();
            let fits = |one: &Difference| one.in_what.contains(&part) && (one.shown_by)(&request);
            match known.position(fits) {
                Some(at) => shown[at] = true,
                None => {
                    let short = |text: String| text.chars().take(60).collect::<String>();
                    let (becket, nginx) = (short(becket), short(nginx));
                    writeln!(
                        wrong,
                        "{request:?}: {part}: becket {becket:?}, nginx {nginx:?}"
                    )
                    .unwrap();
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differ:\n{wrong}",
        wrong.lines().count()
    );
    for (difference, shown) in DIFFERENCES.iter().zip(shown) {
        assert!(shown, "no difference found: {}", difference.why);
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn requests_written_by_hand_have_equal_responses() {
    let Some(nginx) = Tool::find("nginx") else {
        return;
    };
    let servers = Servers::start(&nginx);
    let mut wrong = String::new();
    let alike = ALIKE.iter().map(|(text, both)| (text, [*both, *both]));
    let unlike = UNLIKE
        .iter()
        .map(|(text, becket, nginx, _)| (text, [*becket, *nginx]));
    for (text, expected) in alike.chain(unlike) {
        let answers = [servers.becket, servers.nginx].map(|at| ask(at, text.as_bytes()).status);
        if answers != expected {
            writeln!(wrong, "{text:?}: {answers:?}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
