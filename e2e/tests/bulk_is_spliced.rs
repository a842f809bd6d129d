//! Bulk data without TLS on either side passes through pipes, and arrives completely in both directions.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;

use becket_e2e::{Backend, Becket, Place, Shape, eventually};

/// Returns a byte that depends on its position, also beyond the size of any buffer.
fn byte(at: usize) -> u8 {
    (at ^ (at >> 8) ^ (at >> 16)) as u8
}

fn send(mut to: impl Write, from: usize) -> std::io::Result<()> {
    let piece: Vec<u8> = (from..from + LEN).map(byte).collect();
    to.write_all(&piece)
}

/// Reads to the end, checks all bytes, and returns their number.
fn receive(mut from: impl Read, first: usize) -> usize {
    let (mut buffer, mut at) = (vec![0; 256 * 1024], 0);
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        for got in &buffer[..n] {
            assert_eq!(*got, byte(first + at), "at {at}");
            at += 1;
        }
    }
    at
}

/// Makes an upload and then a download on one connection.
fn exchange(becket: &Becket) {
    let client = TcpStream::connect(becket.web).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            send(&client, 0).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
        });
        assert_eq!(receive(&client, 1), LEN);
    });
    drop(client);
    let line = becket.next_access();
    assert_eq!(line["reason"], "finished");
    for count in [
        "client_bytes_in",
        "client_bytes_out",
        "server_bytes_in",
        "server_bytes_out",
    ] {
        assert_eq!(line[count], LEN, "{count}");
    }
}

fn becket(place: &Place, pipes: &str) -> (Becket, Backend) {
    let backend = Backend::new(|stream| {
        assert_eq!(receive(&stream, 0), LEN);
        send(&stream, 1)
    });
    let shape = Shape::new(backend.address).plain().limits(pipes);
    (Becket::start(place, &shape), backend)
}

#[test]
#[ignore = "slow: .ci/run test"]
fn bulk_without_tls_is_spliced_and_complete() {
    let place = Place::new();
    let (becket, _backend) = becket(&place, "");
    // Splicing does not start if becket happens to be faster than the sender, so try again.
    eventually("bulk is spliced", || {
        exchange(&becket);
        becket.metrics().sum("becket_spliced_bytes_total", &[]) > (1 << 20) as f64
    });
    becket.idle();
    let metrics = becket.metrics();
    assert_eq!(metrics.sum("becket_pipes_in_use", &[]) as u64, 0);
    assert!(becket.status()["totals"]["spliced_bytes"].as_u64() > Some(1 << 20));
}

/// Bytes in each direction.
const LEN: usize = 24 << 20;
