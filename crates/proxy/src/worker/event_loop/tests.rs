//! Tests a worker on real sockets. The test runs its turns.

mod age;
mod overload;
mod reclaim;
mod retiring;
mod signing;
mod soak;
mod tokens;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};

use becket_config::error::Rejected;
use becket_config::read::read;
use becket_multibuffer::Multibuffer;
use becket_proto::session_table::SessionTable;
use becket_proto::ticket::{Epoch, KeyId, NodeId, SecretId};
use becket_tls::secret::shared::SecretBytes;
use becket_tls::sessions::tickets::{EpochSecret, TicketSecrets};
use mio::Waker;
use rustls::pki_types::UnixTime;

use super::*;
use crate::backend::inbox::{BackendEvent, Inbox};
use crate::memory::{IdleReclaim, MemoryStatus, Shortage};
use crate::worker::bound::BoundListener;
use crate::worker::listing::{Filter, Killing, Listing, ReplySender};
use crate::worker::mailbox::WorkerMessage;
use crate::worker::sweep::SweepCause;
use becket_keys::signing::Offload;
use becket_keys::signing::queue::SigningQueue;
use becket_keys::signing::token::Tokens;
use becket_keys::signing::worker::Room;
use becket_prepare::{Environment, LoadPurpose, prepare};

/// Smaller than the backlog of a listening socket of the standard library.
const MANY: usize = 120;

/// A worker without TLS, its clients, and a server that accepts only when the test does.
struct Scene {
    worker: Worker,
    clients: Vec<TcpStream>,
    server: TcpListener,
}

fn config(server: SocketAddr, listener: &str) -> Arc<Config> {
    let config = config_with(server, listener, Tokens::default());
    config.unwrap_or_else(|all| panic!("{all}"))
}

/// Returns a configuration with keys that may be on tokens.
fn config_with(
    server: SocketAddr,
    listener: &str,
    tokens: Tokens,
) -> Result<Arc<Config>, Rejected> {
    let text = format!(
        "[[listener]]\nname = 'web'\nbind = ['{WEB}']\nbackend = 'app'\n{listener}\n\
         [[backend]]\nname = 'app'\n[[backend.server]]\naddress = '{server}'\n"
    );
    let now = UnixTime::since_unix_epoch(Duration::ZERO);
    let environment = Environment {
        multibuffer: Some(Multibuffer::portable()),
        tokens,
        ..Environment::system(
            Path::new("/"),
            now,
            LoadPurpose::Check,
            becket_keys::files::Files::default(),
        )
    };
    let prepared = prepare(read(&text, &Default::default()), &environment)?;
    Ok(Arc::new(prepared.config))
}

/// Returns a worker that has not accepted yet, and its address.
fn worker(server: &TcpListener, listener: &str) -> (Worker, SocketAddr) {
    let config = config(server.local_addr().unwrap(), listener);
    worker_with(&config, Arc::new(SigningQueue::new(0, None)))
}

/// Returns a worker with this configuration. The test may act as its crypto threads.
fn worker_with(config: &Arc<Config>, signatures: Arc<SigningQueue>) -> (Worker, SocketAddr) {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    let web = socket.local_addr().unwrap();
    let clock = Clock::start();
    let table = || Arc::new(SessionTable::new(Default::default(), Default::default()));
    let mut shared = SharedState::new(1, clock, table(), table());
    shared.signatures = signatures;
    let shared = Arc::new(shared);
    let poll = Poll::new().unwrap();
    let waker = Waker::new(poll.registry(), Token(MAILBOX)).unwrap();
    let start = Start {
        number: 0,
        poll,
        mailbox: Arc::new(Mailbox::new(waker)),
        access: None,
        sockets: vec![BoundListener {
            address: WEB.parse().unwrap(),
            listener: socket,
            inherited: false,
        }],
        common: Common {
            is_parked: false,
            adopted: shared.backends.adopt(config),
            secrets: Arc::new(TicketSecrets {
                rotation: Duration::from_secs(3600),
                node: NodeId(0),
                epochs: vec![EpochSecret {
                    id: KeyId {
                        secret: SecretId(1),
                        epoch: Epoch(1),
                    },
                    secret: SecretBytes::draw().unwrap(),
                }],
            }),
            outboxes: Vec::new(),
            shared,
        },
    };
    (Worker::new(start).unwrap(), web)
}

fn turn(worker: &mut Worker) {
    let mut events = Events::with_capacity(EVENTS);
    let most = worker.timeout();
    let waited = worker.mailbox.wait(&mut worker.poll, &mut events, most);
    waited.unwrap();
    worker.turn(&events, most);
}

/// Returns a scene with all clients connected to the server.
fn scene() -> Scene {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut worker, web) = worker(&server, "tls = false");
    let clients = (0..MANY).map(|_| TcpStream::connect(web).unwrap());
    let clients = clients.collect();
    while worker.shared.backends.by_name("app").unwrap().servers()[0].connections() < MANY as u64 {
        turn(&mut worker);
    }
    Scene {
        worker,
        clients,
        server,
    }
}

/// Returns a worker whose listener has a certificate of `a.test`, with what the worker needs and
/// the certificate.
fn tls_worker(
    kind: &'static rcgen::SignatureAlgorithm,
) -> (
    (Worker, SocketAddr),
    (TcpListener, tempfile::TempDir),
    rcgen::Certificate,
) {
    let folder = tempfile::tempdir().unwrap();
    let key = rcgen::KeyPair::generate_for(kind).unwrap();
    let params = rcgen::CertificateParams::new(["a.test".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let path = folder.path().join("a.pem");
    std::fs::write(&path, certificate.pem() + &key.serialize_pem()).unwrap();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let worker = worker(&server, &format!("certificates = ['{}']", path.display()));
    (worker, (server, folder), certificate)
}

/// Returns clients that sent a ClientHello without resumption, and a worker that has read all of
/// them. Its key is of this kind, and there are no crypto threads.
fn newcomers(
    many: usize,
    kind: &'static rcgen::SignatureAlgorithm,
    before: impl FnOnce(&mut Worker),
) -> (Worker, Vec<TcpStream>, tempfile::TempDir) {
    let ((mut worker, web), (_, folder), _) = tls_worker(kind);
    let hello = include_bytes!("../../../../proto/testdata/client_hello/openssl-tls13.bin");
    let client = || {
        let mut socket = TcpStream::connect(web).unwrap();
        socket.write_all(hello).unwrap();
        socket
    };
    let clients = (0..many).map(|_| client()).collect();
    let end = worker.time() + Duration::from_secs(3600);
    before(&mut worker);
    while worker.counters.accepted.value() < many as u64 {
        worker.accept(Duration::ZERO, end);
    }
    (worker, clients, folder)
}

/// Returns clients that all wait for their signatures.
fn unsigned(many: usize) -> (Worker, Vec<TcpStream>, tempfile::TempDir) {
    let scene = newcomers(many, &rcgen::PKCS_ECDSA_P384_SHA384, |_| {});
    assert_eq!(waiting(&scene.0), many);
    scene
}

/// Returns the number of connections that wait for a signature.
fn waiting(worker: &Worker) -> usize {
    let all = worker.connections.iter();
    all.filter(|(_, entry)| entry.connection.wants_signature().is_some())
        .count()
}

#[test]
fn cheap_signatures_wait_only_behind_other_waiters_or_a_backlog() {
    let kind = &rcgen::PKCS_ECDSA_P256_SHA256;
    let (worker, ..) = newcomers(8, kind, |_| {});
    assert_eq!(waiting(&worker), 0);
    assert!(worker.newcomers.handshakes == 8 && worker.counters.client_bytes_out.value() > 0);
    // A client that waits for a crypto thread does not affect them.
    let elsewhere = |worker: &mut Worker| {
        worker
            .newcomers
            .unsigned
            .push(100, Offload::Always, worker.clocks.now.running)
    };
    assert_eq!(waiting(&newcomers(8, kind, elsewhere).0), 0);
    let somebody = |worker: &mut Worker| {
        worker
            .newcomers
            .unsigned
            .push(100, Offload::Never, worker.clocks.now.running)
    };
    assert_eq!(waiting(&newcomers(8, kind, somebody).0), 8);
    let behind = |worker: &mut Worker| {
        worker
            .acceptors
            .backlog
            .handle_look(Duration::ZERO, 0, false);
        worker.clocks.now.running += Duration::from_secs(1);
    };
    assert_eq!(waiting(&newcomers(8, kind, behind).0), 8);
}

#[test]
fn many_signatures_are_spread_over_several_turns() {
    let (mut worker, _clients, _folder) = unsigned(100);
    let mut turns = 0;
    while waiting(&worker) > 0 {
        assert_eq!(worker.timeout(), Some(Duration::ZERO), "more is to be done");
        turn(&mut worker);
        turns += 1;
    }
    // No processor makes a hundred signatures within a slice.
    assert!(turns > 1);
}

#[test]
fn disconnected_clients_leave_the_queue_and_overdue_clients_are_closed() {
    let (mut worker, mut clients, _folder) = unsigned(8);
    drop(clients.drain(5..));
    while worker.counters.signatures_skipped.value() < 3 {
        turn(&mut worker);
    }
    let closed = |worker: &Worker, reason| worker.counters.closed.of(reason).value();
    assert_eq!(closed(&worker, CloseReason::HandshakeAborted), 3);
    let reset = closed(&worker, CloseReason::Overload);
    let left = waiting(&worker);
    let later = worker.time() + Duration::from_secs(1);
    worker.give_up_overdue(later, Duration::MAX);
    assert_eq!(waiting(&worker), 0);
    assert_eq!(closed(&worker, CloseReason::Overload) - reset, left as u64);
}

/// Repeats a part of some work. Returns how many connections each part has handled.
fn parts(
    worker: &mut Worker,
    is_left: impl Fn(&Worker, &ConnectionEntry) -> bool,
    part: impl Fn(&mut Worker),
) -> Vec<usize> {
    let left = |worker: &Worker| {
        let all = worker.connections.iter();
        all.filter(|(_, entry)| is_left(worker, entry)).count()
    };
    let mut parts = Vec::new();
    while left(worker) > 0 {
        let before = left(worker);
        part(worker);
        parts.push(before - left(worker));
        assert!(parts.len() <= MANY, "{parts:?}");
    }
    assert_eq!(parts.iter().sum::<usize>(), MANY);
    parts
}

#[test]
fn simultaneous_deadlines_are_handled_in_parts() {
    let mut scene = scene();
    scene.worker.clocks.now.running += Duration::from_secs(3600);
    let overdue = |worker: &Worker, entry: &ConnectionEntry| {
        entry.connection.deadline() <= worker.clocks.now.running
    };
    let parts = parts(&mut scene.worker, overdue, |worker| {
        assert_eq!(worker.timeout(), Some(Duration::ZERO), "more is to be done");
        worker.expire();
    });
    assert!(parts.iter().all(|part| *part <= 64), "{parts:?}");
}

#[test]
fn alarms_of_closed_connections_are_removed() {
    let mut scene = scene();
    let worker = &mut scene.worker;
    // Ends their handshake timeouts and starts their idle timeouts.
    worker.clocks.now.running += Duration::from_secs(20);
    worker.expire();
    assert!(worker.served.config.file.timeouts.idle > Duration::from_secs(300));
    let all: Vec<usize> = worker.connections.iter().map(|(index, _)| index).collect();
    for index in all {
        worker.close(index, CloseReason::Finished);
    }
    assert!(worker.alarms.timers.next_deadline().is_some());
    worker.clocks.now.running += Duration::from_secs(60);
    worker.expire();
    assert!(worker.alarms.timers.next_deadline().is_none());
}

#[test]
fn data_queued_before_the_deadline_prevents_an_expiry() {
    let mut scene = scene();
    let (worker, client) = (&mut scene.worker, &mut scene.clients[0]);
    client.write_all(b"x").unwrap();
    while worker.counters.server_traffic().sent == 0 {
        turn(worker);
    }
    client.write_all(b"y").unwrap();
    let mut events = Events::with_capacity(EVENTS);
    while !worker.connections.iter().any(|(_, entry)| entry.queued) {
        worker.poll.poll(&mut events, None).unwrap();
        events
            .iter()
            .for_each(|event| worker.note(event.token().0, event));
    }
    // Simulates that this thread has not run for a day, so every deadline has expired.
    worker.clocks.now.running += Duration::from_secs(86_400);
    for _ in 0..MANY {
        worker.expire();
    }
    assert_eq!(worker.connections.len(), 1);
    let (mut stream, _) = scene.server.accept().unwrap();
    let mut said = [0; 2];
    while stream.read_exact(&mut said).is_err() {
        // This is the socket of another client.
        stream = scene.server.accept().unwrap().0;
    }
    assert_eq!(&said, b"xy");
}

#[test]
fn clients_accepted_after_a_config_message_use_the_new_configuration() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut worker, web) = worker(&server, "tls = false");
    let config = config(
        server.local_addr().unwrap(),
        "tls = false\ndeny = ['127.0.0.1']",
    );
    worker.mailbox.post(WorkerMessage::Config {
        adopted: worker.shared.backends.adopt(&config),
        added: Vec::new(),
        outbox: None,
    });
    let _client = TcpStream::connect(web).unwrap();
    // Runs inside a turn that began earlier.
    let now = worker.time();
    worker.accept(now, now + Duration::from_secs(3600));
    let denied = worker.counters.closed.of(CloseReason::DeniedNetwork);
    assert_eq!(denied.value(), 1);
}

#[test]
fn accepting_pauses_at_the_limit_of_connections_only_if_a_client_waits() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut worker, web) = worker(&server, "tls = false\n[limits]\nconnections = 1");
    let _first = TcpStream::connect(web).unwrap();
    let now = worker.time();
    worker.accept(now, now + Duration::from_secs(3600));
    let pauses = |worker: &Worker| worker.counters.connection_limit_pauses.value();
    assert_eq!((worker.connections.len(), pauses(&worker)), (1, 0));
    let _second = TcpStream::connect(web).unwrap();
    while pauses(&worker) == 0 {
        turn(&mut worker);
    }
    assert_eq!(worker.connections.len(), 1);
}

#[test]
fn connections_of_a_failed_server_are_closed_in_parts() {
    let mut scene = scene();
    let worker = &mut scene.worker;
    let server = Arc::clone(&worker.shared.backends.by_name("app").unwrap().servers()[0]);
    for _ in 0..2 {
        worker
            .mailbox
            .deliver(BackendEvent::Failed(Arc::clone(&server)));
    }
    worker.read_mail();
    let there = |_: &Worker, entry: &ConnectionEntry| entry.connection.is_at(&server);
    let parts = parts(worker, there, |worker| {
        assert_eq!(worker.timeout(), Some(Duration::ZERO), "more is to be done");
        worker.advance_sweeps();
    });
    assert!(parts.iter().all(|part| *part <= 64), "{parts:?}");
}

#[test]
fn a_drain_shortens_the_deadline_of_every_idle_connection() {
    let mut scene = scene();
    let worker = &mut scene.worker;
    worker.mailbox.post(WorkerMessage::Drain([].into()));
    worker.read_mail();
    worker.advance_sweeps();
    assert!(worker.sweeps.is_empty());
    let latest = worker.clocks.now.running + worker.served.config.file.timeouts.drain_idle;
    assert!(
        worker.connections.iter().all(|(_, entry)| {
            entry.connection.deadline() <= latest && entry.alarm_at <= latest
        })
    );
}

/// Configured address of the listener. The socket has another address.
const WEB: &str = "127.0.0.1:443";

fn answered<T: Send + 'static>() -> (ReplySender<T>, Receiver<T>) {
    let (sender, receiver) = channel();
    let send = move |answer| sender.send(answer).unwrap();
    (ReplySender::new(send), receiver)
}

/// Lists all connections that match a filter in pages. Returns the size of each page, and all ids.
fn listed(worker: &Worker, filter: &[(&str, &str)]) -> (Vec<usize>, Vec<String>) {
    let (mut pages, mut ids, mut from) = (Vec::new(), Vec::new(), Some(0));
    while let Some(place) = from {
        let (reply, page) = answered();
        worker.list(Listing {
            filter: meant(filter),
            from: place,
            most: 50,
            reply,
        });
        let page = page.try_recv().unwrap();
        pages.push(page.rows.len());
        ids.extend(page.rows.iter().map(|row| row.id.to_string()));
        from = page.next;
    }
    (pages, ids)
}

fn meant(fields: &[(&str, &str)]) -> Arc<Filter> {
    let mut filter = Filter::default();
    for (field, value) in fields {
        filter.set(field, value).unwrap();
    }
    Arc::new(filter)
}

#[test]
fn each_connection_is_listed_once_across_pages() {
    let scene = scene();
    let (pages, mut ids) = listed(&scene.worker, &[]);
    assert!(pages.iter().all(|rows| *rows <= 50), "{pages:?}");
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), MANY);
    assert_eq!(listed(&scene.worker, &[("id", &ids[7])]).1, [&*ids[7]]);
    for (field, value, expected) in [
        ("backend", "app", MANY),
        ("backend", "other", 0),
        ("client", "127.0.0.0/8", MANY),
        ("client", "192.0.2.1", 0),
        ("listener", "web", MANY),
        ("sni", "a.test", 0),
        ("phase", "queued", 0),
        ("age", "3600", 0),
    ] {
        let found = listed(&scene.worker, &[(field, value)]).1;
        assert_eq!(found.len(), expected, "{field} {value}");
    }
}

#[test]
fn killed_connections_are_closed_in_parts() {
    let mut scene = scene();
    let worker = &mut scene.worker;
    let ids = listed(worker, &[]).1;
    let mut kill = |filter: &[(&str, &str)]| {
        let (reply, count) = answered();
        worker.sweep(SweepCause::Killed(Killing {
            filter: meant(filter),
            count: 0,
            reply,
        }));
        let mut parts = Vec::new();
        loop {
            let before = worker.connections.len();
            worker.advance_sweeps();
            parts.push(before - worker.connections.len());
            if let Ok(count) = count.try_recv() {
                return (count, parts);
            }
        }
    };
    assert_eq!(kill(&[("id", &ids[3])]).0, 1);
    assert_eq!(kill(&[("id", &ids[3])]).0, 0, "its place may be another's");
    let (count, parts) = kill(&[]);
    assert_eq!(count, MANY as u64 - 1);
    assert!(parts.iter().all(|part| *part <= 64), "{parts:?}");
    let closed = &worker.counters.closed;
    assert_eq!(closed.of(CloseReason::Killed).value(), MANY as u64);
}

#[test]
fn idle_reclaim_closes_the_given_share_of_idle_connections() {
    let mut scene = scene();
    let worker = &mut scene.worker;
    let relaying = |worker: &Worker| listed(worker, &[("phase", "relaying")]).1.len();
    while relaying(worker) < MANY {
        turn(worker);
    }
    let end = |worker: &mut Worker, share| {
        let rest = Duration::from_secs(1);
        worker.end_idle(IdleReclaim { rest, share });
        while !worker.sweeps.is_empty() {
            worker.advance_sweeps();
        }
        relaying(worker)
    };
    worker.clocks.now.running = Duration::ZERO;
    assert_eq!(end(worker, 1.0), MANY, "all were in use a moment ago");
    worker.clocks.now.running = worker.time() + Duration::from_secs(10);
    assert_eq!(end(worker, 0.25), MANY - MANY / 4);
    assert_eq!(end(worker, 1.0), 0);
}

#[test]
fn memory_shortage_rejects_new_clients() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut worker, web) = worker(&server, "tls = false");
    let short = |worker: &Worker, shortage| {
        worker.shared.memory.set(MemoryStatus {
            shortage,
            ..Default::default()
        });
    };
    let _served = TcpStream::connect(web).unwrap();
    short(&worker, Shortage::Closing);
    while worker.connections.is_empty() {
        turn(&mut worker);
    }
    short(&worker, Shortage::Refusing);
    let _refused = TcpStream::connect(web).unwrap();
    while worker.counters.closed.of(CloseReason::MemoryLimit).value() == 0 {
        turn(&mut worker);
    }
    assert_eq!(worker.connections.len(), 1);
    assert_eq!(worker.shared.connections(), 1);
}
