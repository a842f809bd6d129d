//! Tests of overload detection, and of a worker's behaviour under overload.

use std::thread;

use becket_proto::fresh_queue::{LIMIT, PATIENCE};

use super::*;

#[test]
fn paused_accepting_is_not_counted_as_overload() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut worker, web) = worker(&server, "tls = false");
    worker
        .acceptors
        .backlog
        .handle_look(Duration::ZERO, 0, false);
    let (parked, _said) = channel();
    worker.mailbox.post(WorkerMessage::Park(parked));
    worker.read_mail();
    let client = TcpStream::connect(web).unwrap();
    (&client).write_all(b"x").unwrap();
    let long = LIMIT * 2;
    client.set_read_timeout(Some(long)).unwrap();
    assert!((&client).read(&mut [0]).is_err());
    worker.mailbox.post(WorkerMessage::Accept);
    while worker.counters.accepted.value() == 0 {
        turn(&mut worker);
    }
    let closed = &worker.counters.closed;
    assert_eq!(closed.of(CloseReason::Overload).value(), 0);
}

#[test]
fn a_stalled_worker_is_not_counted_as_overload() {
    let (mut worker, clients, _folder) = unsigned(2);
    worker
        .acceptors
        .backlog
        .handle_look(Duration::ZERO, 0, false);
    let web = clients[0].peer_addr().unwrap();
    let _in_the_kernel = TcpStream::connect(web).unwrap();
    // Blocks the worker, because the worker runs on this thread.
    thread::sleep(LIMIT * 2);
    while worker.counters.accepted.value() < 3 || waiting(&worker) > 0 {
        turn(&mut worker);
    }
    let closed = &worker.counters.closed;
    assert_eq!(closed.of(CloseReason::Overload).value(), 0);
}

#[test]
fn a_silent_token_does_not_shorten_the_backlog() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut worker, _) = worker(&server, "tls = false");
    turn(&mut worker);
    worker
        .newcomers
        .unsigned
        .push(100, Offload::Token, worker.clocks.now.running);
    worker.newcomers.signing = WorkerSigning::new(
        Arc::clone(&worker.shared.signatures),
        1,
        Arc::clone(&worker.mailbox) as Arc<dyn Answers>,
    )
    .with_sessions(0, 1);
    worker.bound_queues(worker.clocks.now.running + LIMIT * 2);
    assert_eq!(worker.counters.backlog_changes.value(), 0);
    assert!(worker.timeout().is_some_and(|sleep| sleep <= TICK));
}

#[test]
fn overload_resets_the_clients_that_cannot_be_served_in_time() {
    let late = |worker: &mut Worker| {
        worker
            .newcomers
            .unsigned
            .push(1000, Offload::Never, Duration::ZERO);
        assert_eq!(worker.newcomers.unsigned.pop_excess(Duration::ZERO), None);
        worker.clocks.now.running = PATIENCE * 2;
    };
    let (worker, mut clients, _folder) = newcomers(40, &rcgen::PKCS_ECDSA_P384_SHA384, late);
    let closed = &worker.counters.closed;
    assert_eq!(closed.of(CloseReason::Overload).value(), 8);
    assert_eq!(waiting(&worker), 32);
    let told = clients.iter_mut().filter_map(|client| {
        client.set_nonblocking(true).unwrap();
        client.read(&mut [0]).err()
    });
    let reset = told.filter(|error| error.kind() == io::ErrorKind::ConnectionReset);
    assert_eq!(reset.count(), 8);
}

#[test]
fn overload_accepts_clients_without_waking_the_worker() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut worker, web) = worker(&server, "tls = false");
    let is_quiet = |worker: &Worker| {
        worker
            .acceptors
            .sockets
            .iter()
            .all(|(_, one)| one.is_quiet())
    };
    let accepted = |worker: &Worker| worker.counters.accepted.value();
    turn(&mut worker);
    assert!(!is_quiet(&worker));
    worker.clocks.now.running += Duration::from_secs(1);
    worker
        .acceptors
        .backlog
        .handle_look(Duration::ZERO, 0, false);
    worker.bound_queues(worker.clocks.now.running);
    assert!(is_quiet(&worker));
    let _first = TcpStream::connect(web).unwrap();
    let mut events = Events::with_capacity(EVENTS);
    let (mailbox, poll) = (&worker.mailbox, &mut worker.poll);
    mailbox
        .wait(poll, &mut events, Some(Duration::ZERO))
        .unwrap();
    assert!(events.is_empty());
    while accepted(&worker) == 0 {
        turn(&mut worker);
    }
    while is_quiet(&worker) {
        turn(&mut worker);
    }
    let _second = TcpStream::connect(web).unwrap();
    while accepted(&worker) == 1 {
        turn(&mut worker);
    }
    assert_eq!(worker.counters.backlog_changes.value(), 2);
}

/// Returns a ClientHello with a key share of X25519MLKEM768. In a real network most of them take two TCP segments.
fn post_quantum_hello() -> Vec<u8> {
    let provider = rustls::crypto::CryptoProvider {
        kx_groups: vec![rustls::crypto::aws_lc_rs::kx_group::X25519MLKEM768],
        ..rustls::crypto::aws_lc_rs::default_provider()
    };
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let name = "a.test".try_into().unwrap();
    let mut client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    hello
}

#[test]
fn a_hello_in_two_parts_is_served_like_any_other_under_overload() {
    let (mut worker, clients, _folder) = unsigned(8);
    let hello = post_quantum_hello();
    let (first, second) = hello.split_at(hello.len() / 2);
    let mut cut = TcpStream::connect(clients[0].peer_addr().unwrap()).unwrap();
    cut.set_nodelay(true).unwrap();
    cut.write_all(first).unwrap();
    let end = worker.time() + Duration::from_secs(3600);
    while worker.counters.accepted.value() < 9 {
        for (_, acceptor) in &mut worker.acceptors.sockets {
            acceptor.ready = true;
        }
        worker.accept(Duration::ZERO, end);
    }
    let index = worker.newcomers.without_hello.first().unwrap();
    let deadline = |worker: &Worker| worker.connections[index].connection.deadline();
    assert_eq!((waiting(&worker), worker.newcomers.handshakes), (8, 9));
    let hello_until = deadline(&worker);
    // The second part arrives when the other clients have waited for so long that the newest client is served first.
    worker.clocks.now.running += PATIENCE + Duration::from_millis(1);
    cut.write_all(second).unwrap();
    let readable = Ready {
        readable: true,
        ..Ready::default()
    };
    while waiting(&worker) < 9 {
        let entry = worker.connections.get_mut(index).unwrap();
        entry.connection.handle_ready(Side::Client, readable);
        worker.advance_newcomer(index);
    }
    assert_eq!(worker.newcomers.without_hello.first(), None);
    assert!(deadline(&worker) > hello_until);
    let now = worker.clocks.now.running;
    let room = worker.newcomers.signing.room();
    // The wait of this client begins with the second part, so it is neither dropped nor overtaken.
    assert_eq!(worker.newcomers.unsigned.pop_excess(now), None);
    assert_eq!(worker.newcomers.unsigned.pop(room, now), Some(index));
    worker.advance(index, Connection::sign);
    let closed = &worker.counters.closed;
    assert_eq!(closed.of(CloseReason::Overload).value(), 0);
    cut.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut record = [0; 5];
    cut.read_exact(&mut record).unwrap();
    assert_eq!(record[0], 22, "a handshake record (RFC 8446, section 5.1)");
}
