//! Large files are sent completely with sendfile(2): without TLS on this machine, and with kernel TLS in a guest.
//!
//! The file system of the test folder must be able to report which pages are in memory. `kernel_tls_keeps_its_promises` calls the part that
//! runs in a guest.

use std::fs::{self, File};
use std::io::{IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;

use becket_e2e::{Becket, Client, Place, Trust, eventually, fresh_address, read_to_end};
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use rustls::ProtocolVersion;

/// Becket that serves a folder with a large and a small file.
pub(crate) struct Site {
    becket: Becket,
    plain: SocketAddr,
    large: File,
}

impl Site {
    pub(crate) fn start(place: &Place, root: &Path, policy: &str) -> Self {
        let [web, plain, admin] = [(); 3].map(|()| fresh_address());
        let large = root.join("large");
        fs::write(root.join("small"), pattern(0..SMALL)).unwrap();
        fs::write(&large, pattern(0..LARGE)).unwrap();
        place.write("becket.toml", &format!(
            "[[listener]]\nname = 'web'\nbind = ['{web}']\ncertificates = ['site.pem']\nbackend = 'site'\n\
             kernel-tls = 'bulk'\npolicy = 'one'\n[[policy]]\nname = 'one'\n{policy}\n\
             [[listener]]\nname = 'plain'\nbind = ['{plain}']\ntls = false\nbackend = 'site'\n\
             [[backend]]\nname = 'site'\n[backend.files]\nroot = '{}'\n\
             [process]\nworkers = 1\npin = false\n[admin]\naddress = '{admin}'\n\
             [log]\nformat = 'json'\nfile = 'becket.log'\naccess = 'access.log'\n",
            root.display()
        ));
        let command = Becket::command(place, &["run", "--config", "becket.toml"]);
        let becket = Becket::spawn(command, place.folder(), web, admin);
        becket.ready();
        let options = File::options().read(true).write(true).open(large);
        let large = options.unwrap();
        Self {
            becket,
            plain,
            large,
        }
    }

    pub(crate) fn count(&self, metric: &str) -> u64 {
        self.becket.metrics().sum(metric, &[]) as u64
    }

    fn sent(&self) -> u64 {
        self.count("becket_sendfile_bytes_total")
    }

    fn cuts(&self) -> u64 {
        let labels = ["reason=\"file-cut\""];
        let metrics = self.becket.metrics();
        metrics.sum("becket_connections_closed_total", &labels) as u64
    }

    /// Requests files, ranges and pipelined files on one connection, and ends it gracefully with `finish`.
    fn visit<C: Read + Write>(mut client: C, finish: impl FnOnce(&mut C)) {
        for range in [0..LARGE, 5..PART, LARGE - 70_000..LARGE, 3..4] {
            ask(&mut client, "large", &range);
            assert_body(&mut client, range);
        }
        ask(&mut client, "small", &(0..SMALL));
        ask(&mut client, "large", &(100..PART));
        assert_body(&mut client, 0..SMALL);
        assert_body(&mut client, 100..PART);
        // A client that has closed its sending side still receives the response and the end.
        ask(&mut client, "large", &(1..PART));
        finish(&mut client);
        assert_body(&mut client, 1..PART);
        let (rest, end) = read_to_end(&mut client);
        end.unwrap();
        assert!(rest.is_empty());
    }

    /// Truncates the file during a download, and checks that the connection is cut.
    fn shrink(&self, mut client: impl Read + Write) {
        let cuts = self.cuts();
        ask(&mut client, "large", &(0..LARGE));
        assert_head(&mut client);
        let mut begin = vec![0; 1 << 20];
        client.read_exact(&mut begin).unwrap();
        assert!(begin == pattern(0..begin.len()), "bytes differ");
        self.large.set_len(1 << 20).unwrap();
        let (rest, end) = read_to_end(&mut client);
        end.unwrap_err();
        assert!(begin.len() + rest.len() < LARGE);
        eventually("the connection is cut", || self.cuts() == cuts + 1);
        self.large.write_all_at(pattern(0..LARGE), 0).unwrap();
    }
}

/// Downloads files in a guest whose kernel takes over TLS, with or without support for key updates.
pub(crate) fn through_the_kernel(site: &Site, trust: &Trust) {
    let connect = || Client::connect(site.becket.web, trust).unwrap();
    let (legs, sent) = (site.count("becket_kernel_tls_legs_total"), site.sent());
    Site::visit(connect(), |client| client.close_notify().unwrap());
    assert_eq!(site.count("becket_kernel_tls_legs_total"), legs + 1);
    assert!(site.sent() - sent > LARGE as u64);
    let mut client = connect();
    let is_tls13 = client.tls.protocol_version() == Some(ProtocolVersion::TLSv1_3);
    if is_tls13 && site.count("becket_kernel_tls_rekeys") == 1 {
        for _ in 0..3 {
            ask(&mut client, "large", &(0..PART));
            client.tls.refresh_traffic_keys().unwrap();
            client.flush().unwrap();
            assert_body(&mut client, 0..PART);
        }
    }
    // Remove the file from the page cache.
    site.large.sync_all().unwrap();
    fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
    let (mut client, range) = (connect(), LARGE - PART..LARGE);
    ask(&mut client, "large", &range);
    assert_body(&mut client, range);
    site.shrink(connect());
}

#[test]
#[ignore = "slow: .ci/run test"]
fn files_without_tls_arrive_completely_from_cache_and_disk() {
    let place = Place::new();
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let site = Site::start(&place, disk.path(), "");
    let connect = || TcpStream::connect(site.plain).unwrap();
    let finish = |client: &mut TcpStream| client.shutdown(Shutdown::Write).unwrap();
    Site::visit(connect(), finish);
    let mut byte = [0];
    let look = &mut [IoSliceMut::new(&mut byte)];
    match preadv2(&site.large, look, 0, ReadWriteFlags::NOWAIT) {
        Err(Errno::OPNOTSUPP) => {
            becket_tidy::lacks("NOT CHECKED: it cannot tell what is in memory")
        }
        _ => assert!(site.sent() > LARGE as u64, "{}", site.sent()),
    }
    let waits = site.count("becket_file_waits_total");
    eventually("a file is read from the disk", || {
        site.large.sync_all().unwrap();
        fadvise(&site.large, 0, None, Advice::DontNeed).unwrap();
        let mut client = connect();
        ask(&mut client, "large", &(0..LARGE));
        assert_body(&mut client, 0..LARGE);
        site.count("becket_file_waits_total") > waits
    });
    site.shrink(connect());
}

fn ask(client: &mut impl Write, name: &str, range: &Range<usize>) {
    let (first, last) = (range.start, range.end - 1);
    let fields = format!("Host: www.example.org\r\nRange: bytes={first}-{last}");
    let request = format!("GET /{name} HTTP/1.1\r\n{fields}\r\n\r\n");
    client.write_all(request.as_bytes()).unwrap();
}

fn assert_head(client: &mut impl Read) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    assert!(head.starts_with(b"HTTP/1.1 206 "), "{head:?}");
}

#[track_caller]
fn assert_body(client: &mut impl Read, range: Range<usize>) {
    assert_head(client);
    let mut body = vec![0; range.len()];
    client.read_exact(&mut body).unwrap();
    assert!(body == pattern(range), "bytes differ");
}

/// Returns bytes that depend on their position.
fn pattern(range: Range<usize>) -> &'static [u8] {
    static PATTERN: OnceLock<Vec<u8>> = OnceLock::new();
    let byte = |at: usize| (at ^ (at >> 8) ^ (at >> 16)) as u8;
    &PATTERN.get_or_init(|| (0..LARGE).map(byte).collect())[range]
}

/// Size of the large file in bytes: more than socket buffers hold.
const LARGE: usize = 16 << 20;
/// Length of a range in bytes for which the kernel takes over TLS.
const PART: usize = 3 << 20;
/// Size of the small file in bytes: too small for sendfile.
const SMALL: usize = 30_000;
