//! Whatever comes from the network instead of TLS is refused for the right reason, and leaves
//! nothing behind; whatever is TLS, however oddly cut, is served.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use becket_e2e::{
    Backend, Becket, Client, PATIENCE, Place, REQUEST, RawRecords, Shape, Trust, eventually, now,
    read_head, read_to_end, reset,
};
use fastrand::Rng;
use rustls::version::{TLS12, TLS13};

/// A becket whose clients are accepted before they have said anything.
fn becket(place: &Place, backend: &Backend) -> Becket {
    let shape = Shape::new(backend.address)
        .listener("defer-accept = \"0s\"")
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
#[ignore = "slow: .ci/run test"]
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
#[ignore = "slow: .ci/run test"]
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
#[ignore = "slow: .ci/run test"]
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
