//! A response arrives completely, or the client can detect that it did not: half-close in both directions, slow
//! readers, early responses, resets.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::thread;

use becket_e2e::{
    Backend, Becket, Client, Place, Shape, Trust, eventually, read_head, read_to_end,
};
use rustls::version::{TLS12, TLS13};

fn both(place: &Place) -> [Trust; 2] {
    [Trust::only(place, &TLS12), Trust::only(place, &TLS13)]
}

/// Returns bytes that depend on their position.
fn pattern(length: usize) -> Vec<u8> {
    (0..length)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect()
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_slow_reader_receives_fifty_megabytes_that_becket_does_not_buffer() {
    const LENGTH: usize = 50_000_000;
    let place = Place::new();
    let bytes = Arc::new(pattern(LENGTH));
    let sent = Arc::clone(&bytes);
    let backend = Backend::new(move |mut stream| {
        read_head(&mut stream)?;
        stream.write_all(&sent)
    });
    let becket = Becket::start(&place, &Shape::new(backend.address));
    let mut client = Client::connect(becket.web, &Trust::new(&place)).unwrap();
    let resident = || becket.metrics().sum("process_resident_memory_bytes", &[]);
    let before = resident();
    client.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let sent = || becket.metrics().sum("becket_client_sent_bytes_total", &[]) as u64;
    let mut last = 0;
    eventually("becket stops sending", || {
        let now = sent();
        let is_full = now > 0 && now == last;
        last = now;
        thread::sleep(std::time::Duration::from_millis(20));
        is_full
    });
    // The limit covers the client's window, the kernel's send buffer, and becket's own buffer.
    assert!(last < 1024 * 1024, "not held back: {last}");
    let grown = resident() - before;
    assert!(grown < 10e6, "becket buffers unread data: {grown} bytes");
    let mut answer = vec![0; LENGTH];
    client.read_exact(&mut answer).unwrap();
    assert!(answer == *bytes, "other bytes than were sent");
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    drop(client);
    assert_eq!(becket.next_reason(), "finished");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn the_last_bytes_arrive_from_a_server_that_closes_with_unread_data() {
    let place = Place::new();
    let backend = Backend::new(|mut stream| {
        read_head(&mut stream)?;
        write!(
            stream,
            "HTTP/1.1 413 Too Large\r\nConnection: close\r\n\r\n"
        )?;
        stream.shutdown(Shutdown::Write)
        // The socket is dropped with unread data, so the kernel sends RST after FIN.
    });
    let becket = Becket::start(&place, &Shape::new(backend.address));
    for trust in both(&place) {
        let mut client = Client::connect(becket.web, &trust).unwrap();
        client.write_all(b"POST / HTTP/1.0\r\n\r\n").unwrap();
        // The client continues to send. Becket lingers so that the client can read the response.
        let mut sent = Ok(());
        for _ in 0..20 {
            sent = sent.and_then(|()| client.write_all(&[b'x'; 10_000]));
        }
        let (answer, _end) = read_to_end(&mut client);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(
            answer.starts_with("HTTP/1.1 413"),
            "{answer:?}, sent: {sent:?}"
        );
    }
}
