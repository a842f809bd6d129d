//! In a flood of clients, connected clients are served, nothing is signed for disconnected clients, and all resources are released.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;

use becket_e2e::{
    Backend, Becket, Client, Key, Over, Place, REQUEST, Shape, Signal, Trust, eventually,
    fresh_address, reset,
};

/// Connects and sends only these bytes.
fn says(to: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut socket = TcpStream::connect(to).unwrap();
    socket.write_all(bytes).unwrap();
    socket
}

/// Clients that connected while the worker was stopped.
#[derive(Default)]
struct Flood {
    living: Vec<TcpStream>,
    hellos_of_the_gone: u64,
}

impl Flood {
    /// Adds a client that stays, or one that disconnects early: by RST or FIN, after a whole or a partial ClientHello.
    fn add(&mut self, number: usize, to: SocketAddr, hello: &[u8]) {
        match number % 20 {
            0 => self.living.push(says(to, hello)),
            1..8 => reset(says(to, hello)),
            8..15 => drop(says(to, hello)),
            15..18 => drop(says(to, &hello[..4])),
            _ => reset(says(to, &hello[..4])),
        }
        self.hellos_of_the_gone += u64::from((1..15).contains(&(number % 20)));
    }
}

/// Returns a number of clients that fits into an accept queue with a margin.
fn room_in_a_queue() -> usize {
    let most = fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
    most.trim().parse::<usize>().unwrap().min(4096) * 3 / 5
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_worker_that_wakes_to_ten_thousand_hellos_signs_nothing_for_disconnected_clients() {
    wakes_to_ten_thousand_hellos(Key::Ecdsa);
    // With this key, crypto threads sign.
    wakes_to_ten_thousand_hellos(Key::LongEcdsa);
}

fn wakes_to_ten_thousand_hellos(key: Key) {
    let place = Place::new();
    place.issue("site.pem", &["www.example.org"], key);
    let backend = Backend::http("well met");
    let more: Vec<_> = (0..4).map(|_| fresh_address()).collect();
    let listener = format!(
        "[[listener]]\nname = \"more\"\nbackend = \"app\"\ndefer-accept = \"0s\"\ncertificates = [\"site.pem\"]\nbind = {:?}",
        more.iter().map(ToString::to_string).collect::<Vec<_>>()
    );
    let shape = Shape::new(backend.address)
        .listener("defer-accept = \"0s\"")
        .section("[admission]\nhalf-open-per-source = 20000")
        .section(&listener)
        .process("workers = 1");
    let becket = Becket::start(&place, &shape);
    let trust = Trust::new(&place);
    let descriptors = becket.descriptors();
    let accepted = becket
        .metrics()
        .sum("becket_connections_accepted_total", &[]) as u64;
    let each = room_in_a_queue().min(2_000);
    let mut said = Vec::new();
    let mut first = Client::begin(becket.web, &trust, "www.example.org").unwrap();
    first.tls.write_tls(&mut said).unwrap();

    becket.signal(Signal::STOP);
    first.socket.write_all(&said).unwrap();
    let mut flood = Flood::default();
    for address in more.iter().chain([&becket.web]) {
        (0..each).for_each(|number| flood.add(number, *address, &said));
    }
    becket.signal(Signal::CONT);

    let answered = flood.living.into_iter().filter(|socket| {
        let mut byte = [0];
        let mut socket = socket;
        socket.read(&mut byte).is_ok_and(|read| read == 1)
    });
    let answered = answered.count();
    let served = first.ask(REQUEST).is_ok();
    drop(first);
    let new = || {
        let now = becket.metrics();
        now.sum("becket_connections_accepted_total", &[]) as u64 - accepted
    };
    eventually("all clients are accepted", || new() == 1 + 5 * each as u64);
    becket.idle();
    let (metrics, new) = (becket.metrics(), new());
    // On a slow machine most clients have waited too long and are rejected.
    assert!(answered + usize::from(served) > 0, "{}", metrics.0);
    let overload = metrics.closed("overload");
    let left = metrics.closed("handshake-aborted") + metrics.closed("health-check");
    assert_eq!(left + overload, new - u64::from(served), "{}", metrics.0);
    let spared = metrics.sum("becket_signatures_skipped_total", &[]) as u64;
    assert!(
        spared > 0 && spared + overload >= flood.hellos_of_the_gone,
        "{}",
        metrics.0
    );
    // New clients are served normally afterwards.
    eventually("a new client is served", || {
        Client::connect(becket.web, &trust).is_ok_and(|mut client| client.ask(REQUEST).is_ok())
    });
    becket.idle();
    eventually("descriptors are at the baseline", || {
        becket.descriptors() <= descriptors
    });
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_download_at_full_speed_does_not_delay_small_requests() {
    let backend = Backend::new(|mut stream| {
        let mut asked = [0];
        loop {
            stream.read_exact(&mut asked)?;
            stream.write_all(&[asked[0]; KILOBYTE])?;
            if asked == [b'e'] {
                return endless(stream);
            }
        }
    });
    let place = Place::new();
    let shape = Shape::new(backend.address).process("workers = 1");
    let becket = Becket::start(&place, &shape);
    let trust = Trust::new(&place);
    let ask = |client: &mut Client, what| {
        let mut answer = [0; KILOBYTE];
        client.write_all(&[what]).unwrap();
        client.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [what; KILOBYTE]);
    };
    let connect = || Client::connect(becket.web, &trust).unwrap();
    let (downloaded, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let _over = Over(&over);
        scope.spawn(|| {
            let mut client = connect();
            ask(&mut client, b'e');
            let mut buffer = vec![0; 64 * KILOBYTE];
            while !over.load(SeqCst) {
                client.read_exact(&mut buffer).unwrap();
                downloaded.fetch_add(buffer.len(), SeqCst);
            }
        });
        eventually("the download runs", || downloaded.load(SeqCst) > 1 << 20);
        let mut clients: Vec<_> = (0..200).map(|_| connect()).collect();
        let before = downloaded.load(SeqCst);
        // Make a thousand requests, the last ones from new clients.
        for what in b"abcd" {
            clients.iter_mut().for_each(|client| ask(client, *what));
        }
        (0..200).for_each(|_| ask(&mut connect(), b'z'));
        assert!(
            downloaded.load(SeqCst) > before,
            "the small requests stop the download"
        );
    });
}

fn endless(mut stream: TcpStream) -> io::Result<()> {
    loop {
        stream.write_all(&[b'x'; 64 * KILOBYTE])?;
    }
}

const KILOBYTE: usize = 1024;
