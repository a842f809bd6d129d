//! Whatever comes at once, those who are there are served, nobody is signed for who has gone, and nothing is left behind.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use becket_e2e::{
    Backend, Becket, Client, Place, REQUEST, Shape, Signal, Trust, eventually, read_head, reset,
};

/// A client that has said its hello and hears nothing yet.
fn hello(becket: &Becket, trust: &Trust) -> Client {
    let mut client = Client::begin(becket.web, trust, "www.example.org").unwrap();
    client.tls.write_tls(&mut client.socket).unwrap();
    client
}

#[test]
fn a_worker_that_was_stopped_wakes_to_many_hellos_and_signs_for_nobody_who_has_gone() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let shape = Shape::new(backend.address)
        .listener("defer-accept = \"off\"")
        .section("[admission]\nhalf-open-per-source = 10000")
        .process("workers = 1");
    let becket = Becket::start(&place, &shape);
    let trust = Trust::new(&place);
    becket.signal(Signal::STOP);
    let mut living = Vec::new();
    for round in 0..60 {
        // Three of five have gone before anybody looks: by a reset, by an end, in the middle of a hello.
        hello(&becket, &trust).reset();
        drop(hello(&becket, &trust));
        let mut half = TcpStream::connect(becket.web).unwrap();
        half.write_all(&[22, 3, 1, 2]).unwrap();
        match round % 2 {
            0 => drop(half),
            _ => reset(half),
        }
        living.extend([hello(&becket, &trust), hello(&becket, &trust)]);
    }
    becket.signal(Signal::CONT);
    let serve = |mut client: Client| {
        thread::spawn(move || {
            let answer = client.ask(REQUEST);
            answer.is_ok_and(|answer| answer.ends_with(b"well met"))
        })
    };
    let all: Vec<_> = living.into_iter().map(serve).collect();
    let served = all
        .into_iter()
        .filter_map(|one| one.join().unwrap().then_some(()));
    let refused = 120 - served.count() as u64;
    becket.idle();
    let metrics = becket.metrics();
    // On a machine that is slow enough some have waited for too long. They were told.
    let overload = metrics.closed("overload");
    let left = metrics.closed("handshake-aborted") + metrics.closed("health-check");
    assert_eq!(left + overload, 180 + refused, "{}", metrics.0);
    let spared = metrics.sum("becket_signatures_spared_total", &[]) as u64;
    assert!(spared > 0 && spared + overload >= 120, "{}", metrics.0);
    // Whoever comes now is served as if nothing had been.
    eventually("a newcomer is served", || {
        Client::connect(becket.web, &trust).is_ok_and(|mut client| client.ask(REQUEST).is_ok())
    });
    becket.idle();
}

#[test]
fn downloads_at_full_speed_keep_no_newcomer_out() {
    let place = Place::new();
    let backend = Backend::new(|mut stream| {
        let head = read_head(&mut stream)?;
        if !head.starts_with(b"GET /endless") {
            return stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nwell met");
        }
        stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n")?;
        loop {
            stream.write_all(&[b'x'; 65536])?;
        }
    });
    let shape = Shape::new(backend.address).process("workers = 1");
    let becket = Becket::start(&place, &shape);
    let trust = Trust::new(&place);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..4 {
            let mut client = Client::connect(becket.web, &trust).unwrap();
            client.write_all(b"GET /endless HTTP/1.0\r\n\r\n").unwrap();
            let over = &over;
            scope.spawn(move || {
                let mut buffer = vec![0; 65536];
                while !over.load(SeqCst) {
                    client.read_exact(&mut buffer).unwrap();
                }
            });
        }
        for _ in 0..50 {
            let answer = Client::connect(becket.web, &trust).unwrap().ask(REQUEST);
            assert!(answer.unwrap().ends_with(b"well met"));
        }
        over.store(true, SeqCst);
    });
    becket.idle();
}
