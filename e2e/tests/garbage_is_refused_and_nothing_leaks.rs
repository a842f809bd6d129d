//! Whatever comes from the network instead of TLS is refused for the right reason, and leaves
//! nothing behind; whatever is TLS, however oddly cut, is served.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};

use becket_e2e::{
    Backend, Becket, Client, PATIENCE, Place, REQUEST, RawRecords, Shape, Tool, Trust, eventually,
    http_get, now, read_head, read_to_end, reset,
};
use fastrand::Rng;
use rustls::version::{TLS12, TLS13};

/// A becket whose clients are accepted before they have said anything.
fn becket(place: &Place, backend: &Backend) -> Becket {
    let shape = Shape::new(backend.address)
        .listener("defer-accept = \"off\"")
        .timeouts("linger = \"500ms\"");
    Becket::start(place, &shape)
}

fn connect(becket: &Becket) -> TcpStream {
    let socket = TcpStream::connect(becket.web).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.set_nodelay(true).unwrap();
    socket
}

/// Sends bytes and FIN; what comes back.
fn send(becket: &Becket, bytes: &[u8]) -> Vec<u8> {
    let mut socket = connect(becket);
    // It may be closed before it has taken everything.
    let _taken = socket
        .write_all(bytes)
        .and_then(|()| socket.shutdown(Shutdown::Write));
    read_to_end(&mut socket).0
}

/// The records of a ClientHello, and the client that sent it.
fn hello(becket: &Becket, trust: &Trust) -> (Vec<u8>, Client) {
    let mut client = Client::begin(becket.web, trust, "www.example.org").unwrap();
    let mut bytes = Vec::new();
    client.tls.write_tls(&mut bytes).unwrap();
    (bytes, client)
}

/// Goes on after the hello was sent by hand.
fn proceed(mut client: Client) -> io::Result<Vec<u8>> {
    while client.tls.is_handshaking() {
        client.tls.complete_io(&mut client.socket)?;
    }
    client.ask(REQUEST)
}

#[track_caller]
fn restored(becket: &Becket, descriptors: usize) {
    becket.idle();
    let metrics = becket.metrics();
    assert_eq!(metrics.closed("internal"), 0, "{}", metrics.0);
    let mut now = 0;
    let is_back = || {
        now = becket.descriptors();
        now <= descriptors
    };
    eventually("descriptors are back", is_back);
    assert!(!becket.log().contains("panicked"), "{}", becket.log());
}

#[test]
fn random_bytes_are_not_tls() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let becket = becket(&place, &backend);
    let baseline = becket.descriptors();
    let began = now();
    for seed in 0..200 {
        let length = [1, 2, 4, 5, 6, 100, 5000, 70_000][seed as usize % 8];
        let mut bytes = vec![0; length];
        Rng::with_seed(seed).fill(&mut bytes);
        let answer = send(&becket, &bytes);
        assert!(
            answer.len() <= 7 || answer.starts_with(b"HTTP/1.1 400"),
            "{answer:?}"
        );
    }
    restored(&becket, baseline);
    let metrics = becket.metrics();
    let reasons = [
        "not-tls",
        "handshake-failed",
        "handshake-aborted",
        "hello-too-large",
    ];
    let known: u64 = reasons.iter().map(|reason| metrics.closed(reason)).sum();
    assert_eq!(known, 200, "{}", metrics.0);
    assert!(metrics.closed("not-tls") > 100);
    assert_eq!(backend.served(), 0);
    // Logged at a bounded rate: ten lines a second and worker.
    becket.says("connection failed");
    let told = becket.log().matches("connection failed").count() as u64;
    let most = 2 * 10 * (began.elapsed().as_secs() + 2);
    assert!(told <= most, "{told} lines of {most}");
}

#[test]
fn plain_http_is_answered_in_clear_text() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let becket = becket(&place, &backend);
    let (status, _) = http_get(becket.web, "/").unwrap();
    assert_eq!(status, 400);
    assert_eq!(becket.next_reason(), "plain-http");
    if let Some(curl) = Tool::find("curl") {
        let url = format!("http://{}/", becket.web);
        let run = curl.run(["-sS", "--noproxy", "*", "-i", "-d", "a=b", &url], "");
        assert!(run.stdout.starts_with("HTTP/1.1 400 "), "{}", run.all());
        assert_eq!(run.code, 0, "{}", run.all());
        assert_eq!(becket.next_reason(), "plain-http");
    }
    becket.says("plain-http");
    assert_eq!(backend.served(), 0);
}

#[test]
fn a_proxy_header_is_not_tls() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let becket = becket(&place, &backend);
    send(&becket, b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n");
    assert_eq!(becket.next_reason(), "not-tls");
}

#[test]
fn a_hello_that_is_cut_short_is_an_aborted_handshake_wherever_it_is_cut() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let becket = becket(&place, &backend);
    let baseline = becket.descriptors();
    let (bytes, client) = hello(&becket, &Trust::new(&place));
    drop(client);
    assert_eq!(becket.next_reason(), "health-check");
    for length in (0..bytes.len()).step_by(7) {
        let answer = send(&becket, &bytes[..length]);
        assert!(answer.is_empty(), "{length}: {answer:?}");
        assert_eq!(becket.metrics().closed("not-tls"), 0);
    }
    restored(&becket, baseline);
    let metrics = becket.metrics();
    assert_eq!(metrics.closed("health-check"), 2, "who said nothing");
    let aborted = metrics.closed("handshake-aborted");
    assert_eq!(aborted as usize, bytes.len().div_ceil(7) - 1);
}

#[test]
fn a_hello_byte_by_byte_or_in_many_records_is_served() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let becket = becket(&place, &backend);
    let trusts = [
        Trust::only(&place, &TLS12),
        Trust::only(&place, &TLS13),
        Trust::post_quantum(&place),
    ];
    for trust in trusts {
        let (bytes, mut client) = hello(&becket, &trust);
        for byte in &bytes {
            client.socket.write_all(&[*byte]).unwrap();
        }
        assert!(proceed(client).unwrap().ends_with(b"well met"));
        assert_eq!(becket.next_reason(), "finished");
        for size in [1, 10, 200] {
            let (bytes, mut client) = hello(&becket, &trust);
            let (header, message) = bytes.split_at(5);
            let records = message.chunks(size).map(|chunk| {
                let length = u16::try_from(chunk.len()).unwrap().to_be_bytes();
                [&header[..3], &length, chunk].concat()
            });
            let records: Vec<u8> = records.flatten().collect();
            client.socket.write_all(&records).unwrap();
            let answer = proceed(client);
            assert!(answer.unwrap().ends_with(b"well met"), "records of {size}");
            assert_eq!(becket.next_reason(), "finished");
        }
    }
}

#[test]
fn a_whole_session_byte_by_byte_is_served() {
    /// Writes one byte at a time.
    struct Drip<'a>(&'a mut TcpStream);
    impl Write for Drip<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.write(&bytes[..bytes.len().min(1)])
        }
        fn flush(&mut self) -> io::Result<()> {
            self.0.flush()
        }
    }
    impl Read for Drip<'_> {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            self.0.read(bytes)
        }
    }
    let place = Place::new();
    let backend = Backend::echo();
    let becket = becket(&place, &backend);
    for version in [&TLS12, &TLS13] {
        let trust = Trust::only(&place, version);
        let mut client = Client::begin(becket.web, &trust, "www.example.org").unwrap();
        let mut drip = Drip(&mut client.socket);
        let mut stream = rustls::Stream::new(&mut client.tls, &mut drip);
        stream.write_all(&[b'x'; 3000]).unwrap();
        let mut echo = [0; 3000];
        stream.read_exact(&mut echo).unwrap();
        assert_eq!(echo, [b'x'; 3000]);
        client.close_notify().unwrap();
        read_to_end(&mut client).1.unwrap();
        drop(client);
        assert_eq!(becket.next_reason(), "finished");
    }
}

#[test]
fn an_oversized_hello_is_refused_before_it_is_whole() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let shape = Shape::new(backend.address).limits("client-hello = \"4KiB\"");
    let becket = Becket::start(&place, &shape);
    let trust = Trust::new(&place);
    let protocols: Vec<String> = (0..40).map(|i| format!("{i:0>200}")).collect();
    let protocols: Vec<&str> = protocols.iter().map(String::as_str).collect();
    let (bytes, mut client) = hello(&becket, &trust.alpn(&protocols));
    assert!(bytes.len() > 8000);
    let _taken = client.socket.write_all(&bytes);
    read_to_end(&mut client.socket).0.len();
    drop(client);
    assert_eq!(becket.next_reason(), "hello-too-large");
    // One that announces sixteen megabytes, and one that just goes on, in honest records.
    for length in [[0xff, 0xff, 0xff], [0, 0xff, 0xf0]] {
        let mut endless = Vec::new();
        for i in 0..15 {
            endless.extend([22, 3, 1, 0x10, 0]);
            let start = if i == 0 {
                [&[1][..], &length].concat()
            } else {
                Vec::new()
            };
            endless.extend(&start);
            endless.extend(vec![3; 4096 - start.len()]);
        }
        send(&becket, &endless);
        assert_eq!(becket.next_reason(), "hello-too-large");
    }
    // And what fits is served.
    let few = &protocols[..10];
    let mut client = Client::connect(becket.web, &trust.alpn(few)).unwrap();
    assert!(client.ask(REQUEST).unwrap().ends_with(b"well met"));
}

#[test]
fn a_reset_at_any_point_leaves_nothing_behind() {
    let place = Place::new();
    let backend = Backend::new(|mut stream| {
        read_head(&mut stream)?;
        stream.write_all(&[b'x'; 2_000_000])
    });
    let becket = becket(&place, &backend);
    let baseline = becket.descriptors();
    for trust in [Trust::only(&place, &TLS12), Trust::only(&place, &TLS13)] {
        reset(connect(&becket));
        for part in [3, 50] {
            let (bytes, mut client) = hello(&becket, &trust);
            client.socket.write_all(&bytes[..part]).unwrap();
            client.reset();
        }
        let (bytes, mut client) = hello(&becket, &trust);
        client.socket.write_all(&bytes).unwrap();
        client.reset();
        let (bytes, mut client) = hello(&becket, &trust);
        client.socket.write_all(&bytes).unwrap();
        client.socket.read_exact(&mut [0; 40]).unwrap();
        client.reset();
        for stage in 0..3 {
            let mut client = Client::connect(becket.web, &trust).unwrap();
            if stage > 0 {
                client.write_all(REQUEST).unwrap();
            }
            if stage > 1 {
                client.read_exact(&mut [0; 50_000]).unwrap();
            }
            client.reset();
        }
    }
    restored(&becket, baseline);
    let metrics = becket.metrics();
    let ended: u64 = ["health-check", "handshake-aborted", "client-reset"]
        .map(|r| metrics.closed(r))
        .iter()
        .sum();
    assert_eq!(ended, 16, "{}", metrics.0);
    assert!(metrics.closed("client-reset") >= 6, "{}", metrics.0);
}

#[test]
fn broken_records_after_the_handshake_end_it_with_an_alert() {
    let place = Place::new();
    let backend = Backend::echo();
    let becket = becket(&place, &backend);
    let baseline = becket.descriptors();
    let forged = [&[23, 3, 3, 0, 64][..], &[7; 64]].concat();
    let oversized = [&[23, 3, 3, 0xff, 0xff][..], &[7; 1000]].concat();
    let strange = [&[99, 3, 3, 0, 10][..], &[7; 10]].concat();
    for version in [&TLS12, &TLS13] {
        for bytes in [&forged, &oversized, &strange] {
            let trust = Trust::only(&place, version);
            let mut client = Client::connect(becket.web, &trust).unwrap();
            client.write_all(b"x").unwrap();
            client.read_exact(&mut [0]).unwrap();
            client.socket.write_all(bytes).unwrap();
            let end = read_to_end(&mut client).1.expect_err("a broken stream");
            assert!(end.to_string().contains("alert"), "{end}");
            drop(client);
            assert_eq!(becket.next_reason(), "client-tls-error");
        }
    }
    restored(&becket, baseline);
}

#[test]
fn a_post_handshake_message_in_two_pieces_is_understood_while_the_server_answers() {
    let place = Place::new();
    let backend = Backend::echo();
    let becket = becket(&place, &backend);
    let trust = Trust::extractable(&place);
    let client = Client::connect(becket.web, &trust).unwrap();
    let mut raw = RawRecords::new(client);
    let mut buffer = [0; 16 * 1024];
    // The echo comes back between the halves of KeyUpdate (RFC 8446, section 4.6.3).
    raw.send(23, b"ping").unwrap();
    raw.send(22, &[24, 0, 0]).unwrap();
    assert!(raw.socket.read(&mut buffer).unwrap() > 0);
    raw.send(22, &[1, 0]).unwrap();
    let _gone = raw.socket.shutdown(Shutdown::Write);
    read_to_end(&mut raw.socket).1.unwrap();
    drop(raw);
    assert_eq!(becket.next_reason(), "client-truncated");
    assert!(!becket.log().contains("panicked"), "{}", becket.log());
    Client::connect(becket.web, &trust).unwrap();
}
