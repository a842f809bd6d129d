//! An answer arrives whole, or the client can tell that it did not: half-close both ways, slow
//! readers, early answers, resets.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use becket_e2e::{
    Backend, Becket, Client, OpenSsl, PATIENCE, Place, Shape, Trust, eventually, holds_for,
    read_head, read_to_end, reset,
};
use rustls::version::{TLS12, TLS13};

/// Reads to the end, then says how much it was.
fn count_then_answer() -> Backend {
    Backend::new(|mut stream| {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes)?;
        write!(stream, "{} bytes", bytes.len())
    })
}

fn both(place: &Place) -> [Trust; 2] {
    [Trust::only(place, &TLS12), Trust::only(place, &TLS13)]
}

#[test]
fn a_client_that_sent_close_notify_gets_its_answer() {
    let place = Place::new();
    let backend = count_then_answer();
    let becket = Becket::start(&place, &Shape::new(backend.address));
    for trust in both(&place) {
        let mut client = Client::connect(becket.web, &trust).unwrap();
        client.write_all(&[b'x'; 100_000]).unwrap();
        client.close_notify().unwrap();
        let (answer, end) = read_to_end(&mut client);
        end.unwrap();
        assert_eq!(answer, b"100000 bytes");
        drop(client);
        assert_eq!(becket.next_reason(), "finished");
    }
    assert_eq!(
        becket
            .metrics()
            .sum("becket_connections_truncated_total", &[]) as u64,
        0
    );
}

#[test]
fn a_client_that_sent_only_fin_gets_its_answer_and_is_counted() {
    let place = Place::new();
    let backend = count_then_answer();
    let becket = Becket::start(&place, &Shape::new(backend.address));
    for trust in both(&place) {
        let mut client = Client::connect(becket.web, &trust).unwrap();
        client.write_all(&[b'x'; 100_000]).unwrap();
        client.socket.shutdown(Shutdown::Write).unwrap();
        let (answer, end) = read_to_end(&mut client);
        end.unwrap();
        assert_eq!(answer, b"100000 bytes");
        drop(client);
        assert_eq!(becket.next_reason(), "client-truncated");
    }
    assert_eq!(
        becket
            .metrics()
            .sum("becket_connections_truncated_total", &[]) as u64,
        2
    );
}

#[test]
fn a_server_that_has_finished_still_gets_what_the_client_sends() {
    let place = Place::new();
    let (done, total) = channel();
    let done = Mutex::new(done);
    let backend = Backend::new(move |mut stream| {
        stream.write_all(b"go on")?;
        stream.shutdown(Shutdown::Write)?;
        let bytes = io::copy(&mut stream, &mut io::sink())?;
        done.lock().unwrap().send(bytes).ok();
        Ok(())
    });
    let becket = Becket::start(&place, &Shape::new(backend.address));
    for trust in both(&place) {
        let mut client = Client::connect(becket.web, &trust).unwrap();
        let (greeting, end) = read_to_end(&mut client);
        end.unwrap();
        assert_eq!(greeting, b"go on");
        for _ in 0..64 {
            client.write_all(&[b'x'; 16 * 1024]).unwrap();
        }
        client.close_notify().unwrap();
        drop(client);
        assert_eq!(total.recv_timeout(PATIENCE).unwrap(), 1024 * 1024);
        assert_eq!(becket.next_reason(), "finished");
    }
}

/// Bytes that show where they belong.
fn pattern(length: usize) -> Vec<u8> {
    (0..length)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect()
}

#[test]
fn a_slow_reader_gets_fifty_megabytes_and_they_are_kept_elsewhere() {
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
    eventually("the way is full", || {
        let now = sent();
        let is_full = now > 0 && now == last;
        last = now;
        thread::sleep(std::time::Duration::from_millis(20));
        is_full
    });
    // What the client's window takes, what waits in the kernel behind it, and a read of ours.
    assert!(last < 1024 * 1024, "not held back: {last}");
    let grown = resident() - before;
    assert!(
        grown < 10e6,
        "becket holds what nobody reads: {grown} bytes"
    );
    let mut answer = vec![0; LENGTH];
    client.read_exact(&mut answer).unwrap();
    assert!(answer == *bytes, "other bytes than were sent");
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    drop(client);
    assert_eq!(becket.next_reason(), "finished");
}

#[test]
fn fifty_megabytes_go_up_to_a_slow_server() {
    const LENGTH: usize = 50_000_000;
    let place = Place::new();
    let bytes = Arc::new(pattern(LENGTH));
    let expected = Arc::clone(&bytes);
    let (open, gate) = channel::<()>();
    let gate = Mutex::new(gate);
    let backend = Backend::new(move |mut stream| {
        gate.lock().unwrap().recv_timeout(PATIENCE).ok();
        let mut got = Vec::new();
        stream.read_to_end(&mut got)?;
        write!(stream, "{}", got == *expected)
    });
    let becket = Becket::start(&place, &Shape::new(backend.address));
    let mut client = Client::connect(becket.web, &Trust::new(&place)).unwrap();
    let resident = || becket.metrics().sum("process_resident_memory_bytes", &[]);
    let before = resident();
    let writer = thread::spawn(move || {
        client.write_all(&bytes).unwrap();
        client.close_notify().unwrap();
        read_to_end(&mut client)
    });
    let received = || {
        becket
            .metrics()
            .sum("becket_client_received_bytes_total", &[]) as u64
    };
    let mut last = 0;
    eventually("the way is full", || {
        let now = received();
        let is_full = now > 100_000 && now == last;
        last = now;
        thread::sleep(std::time::Duration::from_millis(20));
        is_full
    });
    let grown = resident() - before;
    assert!(
        grown < 10e6,
        "becket holds what nobody reads: {grown} bytes"
    );
    open.send(()).unwrap();
    let (answer, end) = writer.join().unwrap();
    end.unwrap();
    assert_eq!(answer, b"true");
}

#[test]
fn a_server_that_resets_gives_no_clean_end() {
    let place = Place::new();
    let backend = Backend::new(|mut stream| {
        stream.write_all(b"the first half")?;
        // The other half never comes.
        read_head(&mut stream)?;
        reset(stream);
        Ok(())
    });
    let becket = Becket::start(&place, &Shape::new(backend.address));
    for trust in both(&place) {
        let mut client = Client::connect(becket.web, &trust).unwrap();
        let mut first = [0; 14];
        client.read_exact(&mut first).unwrap();
        client.write_all(b"\r\n\r\n").unwrap();
        let (rest, end) = read_to_end(&mut client);
        assert!(end.is_err(), "a reset passed for an end after {rest:?}");
        drop(client);
        assert_eq!(becket.next_reason(), "server-reset");
    }
    if let Some(openssl) = OpenSsl::find() {
        let run = openssl.ask(&place, becket.web, &[]);
        assert!(run.stderr.contains("unexpected eof"), "{}", run.all());
    }
}

/// Reads some of what comes, answers a part, and resets; how much differs from one connection to the next.
fn breaks_off() -> Backend {
    let round = AtomicUsize::new(0);
    Backend::new(move |mut stream| {
        let round = round.fetch_add(1, SeqCst);
        let (takes, says) = (round * 7919 % 150_000, round * 104_729 % 300_000);
        stream.read_exact(&mut vec![0; takes])?;
        stream.write_all(&vec![b'y'; says])?;
        reset(stream);
        Ok(())
    })
}

#[test]
fn a_client_without_tls_is_told_of_a_reset_in_one_direction_or_the_other() {
    let place = Place::new();
    let backend = breaks_off();
    let becket = Becket::start(&place, &Shape::new(backend.address).plain());
    for round in 0..120 {
        let mut client = TcpStream::connect(becket.web).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut upload = client.try_clone().unwrap();
        let sender = thread::spawn(move || {
            upload.write_all(&[b'x'; 200_000])?;
            // Half of them end their upload, and listen on.
            match round % 2 {
                0 => upload.shutdown(Shutdown::Write),
                _ => Ok(()),
            }
        });
        let (_, end) = read_to_end(&mut client);
        let sent = sender.join().unwrap();
        // The kernel tells of a reset once: a send that was told leaves an end to the next receive.
        assert!(end.is_err() || sent.is_err(), "round {round}: a clean end");
        drop(client);
        assert_ne!(becket.next_reason(), "finished");
    }
}

/// Answers after the head of a request, and reads no more of it.
fn early_answer(keep: Arc<Mutex<Vec<TcpStream>>>) -> Backend {
    Backend::new(move |mut stream| {
        read_head(&mut stream)?;
        stream.write_all(&[b'y'; 300_000])?;
        stream.shutdown(Shutdown::Write)?;
        keep.lock().unwrap().push(stream);
        Ok(())
    })
}

#[test]
fn an_early_answer_reaches_a_client_that_is_still_sending() {
    let place = Place::new();
    let backend = early_answer(Arc::default());
    let becket = Becket::start(&place, &Shape::new(backend.address));
    for trust in both(&place) {
        let mut client = Client::connect(becket.web, &trust).unwrap();
        client.write_all(b"POST / HTTP/1.0\r\n\r\n").unwrap();
        // As much as all buffers on the way take, and it stays unread at the server.
        client.write_all(&[b'x'; 200_000]).unwrap();
        let (answer, end) = read_to_end(&mut client);
        end.unwrap();
        assert_eq!(answer.len(), 300_000);
    }
}

#[test]
fn the_last_bytes_survive_a_server_that_closes_with_unread_data() {
    let place = Place::new();
    let backend = Backend::new(|mut stream| {
        read_head(&mut stream)?;
        write!(
            stream,
            "HTTP/1.1 413 Too Large\r\nConnection: close\r\n\r\n"
        )?;
        stream.shutdown(Shutdown::Write)
        // Dropped with unread data in it: the kernel sends a reset after the FIN.
    });
    let becket = Becket::start(&place, &Shape::new(backend.address));
    for trust in both(&place) {
        let mut client = Client::connect(becket.web, &trust).unwrap();
        client.write_all(b"POST / HTTP/1.0\r\n\r\n").unwrap();
        // It keeps sending until it is told; lingering is what lets it hear the answer.
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

#[test]
fn a_client_that_resets_is_known_as_such_and_its_server_is_told() {
    let place = Place::new();
    let (tell, told): (Sender<io::Result<usize>>, _) = channel();
    let tell = Mutex::new(tell);
    let backend = Backend::new(move |mut stream| {
        stream.write_all(b"hello")?;
        let mut rest = Vec::new();
        let end = stream.read_to_end(&mut rest);
        tell.lock().unwrap().send(end).ok();
        Ok(())
    });
    let becket = Becket::start(&place, &Shape::new(backend.address));
    for trust in both(&place) {
        let mut client = Client::connect(becket.web, &trust).unwrap();
        client.read_exact(&mut [0; 5]).unwrap();
        client.reset();
        assert_eq!(becket.next_reason(), "client-reset");
        let end = told.recv_timeout(PATIENCE).unwrap();
        assert!(
            end.is_err(),
            "the server took a broken request for a whole one: {end:?}"
        );
    }
}

#[test]
fn idle_connections_end_unclean_at_their_time_and_half_closed_ones_at_theirs() {
    let place = Place::new();
    let backend = Backend::new(|mut stream| {
        stream.write_all(b"hello")?;
        let mut byte = [0];
        // Waits as long as it is left alone, and never finishes.
        while stream.read(&mut byte)? > 0 {}
        thread::sleep(std::time::Duration::from_secs(5));
        Ok(())
    });
    let timeouts = "idle = \"3s\"\nhalf-closed = \"500ms\"";
    let becket = Becket::start(&place, &Shape::new(backend.address).timeouts(timeouts));
    let trust = Trust::new(&place);
    let mut idle = Client::connect(becket.web, &trust).unwrap();
    idle.read_exact(&mut [0; 5]).unwrap();
    assert!(
        idle.read(&mut [0; 1]).is_err(),
        "a time-out passed for an end"
    );
    assert_eq!(becket.next_reason(), "idle-timeout");
    let mut half = Client::connect(becket.web, &trust).unwrap();
    half.read_exact(&mut [0; 5]).unwrap();
    half.close_notify().unwrap();
    assert!(
        half.read(&mut [0; 1]).is_err(),
        "a time-out passed for an end"
    );
    assert_eq!(becket.next_reason(), "half-closed-timeout");
}

#[test]
fn traffic_in_one_direction_keeps_a_connection_alive() {
    let place = Place::new();
    let backend = Backend::new(|mut stream| {
        for _ in 0..10 {
            stream.write_all(b".")?;
            thread::sleep(std::time::Duration::from_millis(400));
        }
        Ok(())
    });
    let shape = Shape::new(backend.address).timeouts("idle = \"3s\"");
    let becket = Becket::start(&place, &shape);
    let mut client = Client::connect(becket.web, &Trust::new(&place)).unwrap();
    let (dots, end) = read_to_end(&mut client);
    end.unwrap();
    assert_eq!(dots.len(), 10);
    holds_for(std::time::Duration::from_millis(50), "becket lives", || {
        becket.is_alive()
    });
}
