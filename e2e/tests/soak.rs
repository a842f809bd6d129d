//! A soak test: clients misbehave at random while becket reloads; afterwards its resources are at the baseline again.
//!
//! `BECKET_SOAK=200000` is the full length; the default takes seconds. `BECKET_SOAK_SEED` repeats the random
//! choices of a run, but not the scheduling of its threads.

use std::env;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use becket_e2e::{
    Backend, Becket, Client, Key, Place, Shape, Signal, Trust, eventually, reset, unix_now,
};
use fastrand::Rng;
use rustls::version::{TLS12, TLS13};

const THREADS: u64 = 6;
const RELOADS: usize = 3;

/// A server whose behaviour depends on the first byte from the client.
pub(crate) fn moody() -> Backend {
    Backend::new(|mut stream| {
        let mut first = [0];
        stream.read_exact(&mut first)?;
        match first[0] {
            b'r' => reset(stream),
            b'b' => stream.write_all(&vec![b'x'; 300_000])?,
            b'h' => {
                stream.shutdown(Shutdown::Write)?;
                io::copy(&mut stream, &mut io::sink())?;
            }
            b'c' => {}
            _ => {
                let mut from = stream.try_clone()?;
                io::copy(&mut from, &mut stream)?;
            }
        }
        Ok(())
    })
}

/// Opens one connection and misbehaves at random. Errors are expected, so nothing is asserted.
pub(crate) fn misbehave(becket: &Becket, trusts: &[Trust], dice: &mut Rng) -> io::Result<()> {
    let trust = &trusts[dice.usize(..trusts.len())];
    match dice.u8(..10) {
        0 => {
            let mut socket = TcpStream::connect(becket.web)?;
            let length = dice.usize(..3000);
            let noise: Vec<u8> = (0..length).map(|_| dice.u8(..)).collect();
            socket.write_all(&noise)?;
            if dice.bool() {
                reset(socket);
            }
            return Ok(());
        }
        1 => {
            let mut client = Client::begin(becket.web, trust, "www.example.org")?;
            let mut hello = Vec::new();
            client.tls.write_tls(&mut hello)?;
            // Half of the hellos are complete; their client leaves while becket answers.
            let length = dice.usize(..=2 * hello.len()).min(hello.len());
            client.socket.write_all(&hello[..length])?;
            if dice.bool() {
                client.reset();
            }
            return Ok(());
        }
        _ => {}
    }
    let mut client = Client::connect(becket.web, trust)?;
    let mood = [b'r', b'b', b'h', b'c', b'e', b'e'][dice.usize(..6)];
    client.write_all(&[mood; 100])?;
    match dice.u8(..6) {
        0 => client.reset(),
        1 => drop(client.read(&mut [0; 1000])?),
        2 => client.socket.shutdown(Shutdown::Both)?,
        3 => client.socket.write_all(&[23, 3, 3, 0, 30, 1, 2, 3])?,
        _ => {
            client.close_notify()?;
            client.read_to_end(&mut Vec::new())?;
        }
    }
    Ok(())
}

/// Runs with signatures on the event loop, on crypto threads, and in batches.
#[test]
#[ignore = "slow: .ci/run test"]
fn a_soak_leaks_no_resources() {
    soak(Key::Ecdsa, "workers = 2");
    soak(Key::LongEcdsa, "workers = 2");
    soak(Key::Rsa, "workers = 2\nrsa-batch = \"auto\"");
}

fn soak(key: Key, process: &str) {
    let length = number("BECKET_SOAK", 2000) as usize;
    let seed = number("BECKET_SOAK_SEED", unix_now());
    println!("BECKET_SOAK_SEED={seed}");
    let place = Place::new();
    place.issue("site.pem", &["www.example.org"], key);
    let backend = moody();
    let shape = Shape::new(backend.address)
        .process(process)
        .listener("defer-accept = \"0s\"")
        .timeouts("handshake = \"2s\"\nhalf-closed = \"1s\"\nidle = \"5s\"\nlinger = \"500ms\"");
    let becket = Arc::new(Becket::start(&place, &shape));
    let trusts = Arc::new([
        Trust::only(&place, &TLS12),
        Trust::only(&place, &TLS13),
        Trust::only(&place, &TLS12).without_tickets(),
        Trust::post_quantum(&place),
    ]);
    warm(&becket, &*trusts, seed, key);
    let resident = || becket.metrics().sum("process_resident_memory_bytes", &[]);
    let (descriptors, memory) = (becket.descriptors(), resident());

    let done = Arc::<AtomicUsize>::default();
    let threads: Vec<_> = (0..threads(key))
        .map(|i| {
            let (becket, trusts, done) = (becket.clone(), trusts.clone(), done.clone());
            thread::spawn(move || {
                let mut dice = Rng::with_seed(seed.wrapping_add(i + 1));
                while done.fetch_add(1, SeqCst) < length {
                    misbehave(&becket, &*trusts, &mut dice).ok();
                }
            })
        })
        .collect();
    for reload in 1..=RELOADS {
        let due = length * reload / (RELOADS + 1);
        while done.load(SeqCst) < due {
            assert!(becket.is_alive(), "{}", becket.log());
            thread::sleep(Duration::from_millis(10));
        }
        place.issue("site.pem", &["www.example.org"], key);
        assert!(becket.reload(), "{}", becket.log());
    }
    for thread in threads {
        thread.join().unwrap();
    }
    becket.idle();
    eventually("descriptors are at the baseline", || {
        becket.descriptors() <= descriptors
    });
    let metrics = becket.metrics();
    assert_eq!(metrics.closed("internal"), 0, "{}", metrics.0);
    signatures_are_back(&becket, key);
    assert!(!becket.log().contains("panicked"), "{}", becket.log());
    let accepted = metrics.sum("becket_connections_accepted_total", &[]) as usize;
    assert!(accepted > length * 9 / 10, "{accepted} of {length}");
    // Sessions of TLS 1.2 clients stay in the table for five minutes.
    let sessions = metrics.sum("becket_sessions", &[]) * 1024.0;
    let grown = resident() - memory;
    assert!(
        grown < sessions + 8e6,
        "{grown} bytes more than before, {sessions} for sessions"
    );
    let answer = echo(&becket, &trusts[1]).unwrap();
    assert_eq!(answer, b"cho", "the first byte is the mood");
}

/// Number of client threads: eight waiting signatures fill a batch.
fn threads(key: Key) -> u64 {
    match key {
        Key::Rsa => 4 * THREADS,
        _ => THREADS,
    }
}

/// Fills buffers and tables before the measurement, so that they do not count as a leak.
fn warm(becket: &Becket, trusts: &[Trust], seed: u64, key: Key) {
    // On a busy machine too few signatures may wait at once, so the flood is repeated until it fills a batch.
    if key == Key::Rsa && becket.status()["rsa_batches"].is_object() {
        eventually("a batch was made", || {
            flood(becket, &trusts[1]);
            becket.metrics().sum("becket_rsa_batches_total", &[]) > 0.0
        });
    }
    let mut dice = Rng::with_seed(seed);
    for _ in 0..200 {
        misbehave(becket, trusts, &mut dice).ok();
    }
    becket.idle();
}

/// Opens enough connections at once to fill batches of signatures. Every third client has left when becket reads its hello.
fn flood(becket: &Becket, trust: &Trust) {
    becket.queues_are_whole();
    becket.signal(Signal::STOP);
    let begin = |at: usize| {
        let mut client = Client::begin(becket.web, trust, "www.example.org").unwrap();
        client.tls.write_tls(&mut client.socket).unwrap();
        if at.is_multiple_of(3) {
            client.reset();
            return None;
        }
        Some(client)
    };
    let clients: Vec<_> = (0..60).filter_map(begin).collect();
    becket.signal(Signal::CONT);
    for mut client in clients {
        client.ask(b"c").ok();
    }
}

/// Asserts that signatures were made if the key needs them, and that none is in progress.
fn signatures_are_back(becket: &Becket, key: Key) {
    let sum = |name| becket.metrics().sum(name, &[]);
    let has_batches = becket.status()["rsa_batches"].is_object();
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let can = cpus.contains(" avx512f ") && cpus.contains(" avx512ifma ");
    assert_eq!(has_batches, can && key == Key::Rsa);
    assert_eq!(
        sum("becket_signature_seconds_count") > 0.0,
        key == Key::LongEcdsa || has_batches
    );
    assert_eq!(sum("becket_rsa_batches_total") > 0.0, has_batches);
    assert_eq!(sum("becket_rsa_batch_fallbacks_total"), 0.0);
    eventually("no signature is in progress", || {
        sum("becket_signatures_in_flight") == 0.0
    });
}

/// Reads a number from the environment.
pub(crate) fn number(name: &str, default: u64) -> u64 {
    env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// Echoes data through one well-behaved client.
fn echo(becket: &Becket, trust: &Trust) -> io::Result<Vec<u8>> {
    let mut client = Client::connect(becket.web, trust)?;
    client.write_all(b"echo")?;
    client.close_notify()?;
    let mut answer = Vec::new();
    client.read_to_end(&mut answer)?;
    Ok(answer)
}
