//! With `idle-reclaim`, becket closes idle keep-alive connections if clients wait for a slot. Without it, these clients wait.

use std::io::{Read, Write};

use becket_e2e::{Backend, Becket, Client, Place, Shape, Trust, eventually, read_head};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const SLOW: &[u8] = b"GET /slow HTTP/1.1\r\nHost: a.test\r\n\r\n";
const RECLAIMS: &str = "idle-reclaim = \"100ms\"";

/// Starts a server that answers each request except `/slow`, and keeps connections open.
fn server() -> Backend {
    Backend::new(|mut stream| {
        loop {
            if read_head(&mut stream)? != SLOW {
                stream.write_all(ANSWER)?;
            }
        }
    })
}

fn start(place: &Place, server: &Backend, keys: &str) -> Becket {
    let shape = Shape::new(server.address)
        .server_keys("maxconn = 2")
        .backend(&format!("queue-timeout = \"10m\"\n{keys}"))
        .process("workers = 2");
    Becket::start(place, &shape)
}

fn answered(client: &mut Client) {
    let mut answer = [0; ANSWER.len()];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(answer, ANSWER);
}

/// Connects a client and sends a request.
fn come(becket: &Becket, trust: &Trust, request: &[u8]) -> Client {
    let mut client = Client::connect(becket.web, trust).unwrap();
    client.write_all(request).unwrap();
    client
}

fn number(becket: &Becket, name: &str) -> usize {
    becket.metrics().sum(name, &[]) as usize
}

#[test]
fn two_idle_clients_do_not_block_a_third_one() {
    let (place, server) = (Place::new(), server());
    let becket = start(&place, &server, RECLAIMS);
    let trust = Trust::new(&place);
    let mut clients = Vec::new();
    for come_before in 0..6_usize {
        let mut client = come(&becket, &trust, REQUEST);
        answered(&mut client);
        let ended = come_before.saturating_sub(1);
        assert_eq!(number(&becket, "becket_idle_reclaims_total"), ended);
        clients.push(client);
    }
    eventually("idle connections are closed", || {
        becket.metrics().closed("idle-timeout") == 4
    });
}

#[test]
fn the_third_client_waits_without_idle_reclaim() {
    let (place, server) = (Place::new(), server());
    let becket = start(&place, &server, "");
    let trust = Trust::new(&place);
    let mut idle = [(); 2].map(|()| come(&becket, &trust, REQUEST));
    idle.iter_mut().for_each(answered);
    let mut third = come(&becket, &trust, REQUEST);
    eventually("the client waits", || number(&becket, "becket_queue") == 1);
    drop(idle);
    answered(&mut third);
    assert_eq!(number(&becket, "becket_idle_reclaims_total"), 0);
}

#[test]
fn a_connection_with_a_pending_request_is_never_closed() {
    let (place, server) = (Place::new(), server());
    let becket = start(&place, &server, RECLAIMS);
    let trust = Trust::new(&place);
    let mut slow = come(&becket, &trust, SLOW);
    eventually("the client has a slot", || {
        number(&becket, "becket_server_connections") == 1
    });
    // Each client replaces the previous one, although the slow one has been silent for longer.
    let clients = (0..4).map(|_| {
        let mut client = come(&becket, &trust, REQUEST);
        answered(&mut client);
        client
    });
    let _open: Vec<_> = clients.collect();
    assert_eq!(number(&becket, "becket_idle_reclaims_total"), 3);
    slow.write_all(REQUEST).unwrap();
    answered(&mut slow);
}
