//! With `idle-reclaim`, clients that keep a connection without a request make way for those that wait for a slot; without it they do not.

use std::io::{Read, Write};

use becket_e2e::{Backend, Becket, Client, Place, Shape, Trust, eventually, read_head};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const SLOW: &[u8] = b"GET /slow HTTP/1.1\r\nHost: a.test\r\n\r\n";
const RECLAIMS: &str = "idle-reclaim = \"100ms\"";

/// A server that answers each request but that for `/slow`, and keeps connections.
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

/// A client that has sent this.
fn come(becket: &Becket, trust: &Trust, request: &[u8]) -> Client {
    let mut client = Client::connect(becket.web, trust).unwrap();
    client.write_all(request).unwrap();
    client
}

fn number(becket: &Becket, name: &str) -> usize {
    becket.metrics().sum(name, &[]) as usize
}

#[test]
fn two_idle_clients_lock_out_no_third() {
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
    eventually("their connections end as idle ones", || {
        becket.metrics().closed("idle-timeout") == 4
    });
}

#[test]
fn without_the_key_the_third_waits() {
    let (place, server) = (Place::new(), server());
    let becket = start(&place, &server, "");
    let trust = Trust::new(&place);
    let mut idle = [(); 2].map(|()| come(&becket, &trust, REQUEST));
    idle.iter_mut().for_each(answered);
    let mut third = come(&becket, &trust, REQUEST);
    eventually("it waits", || number(&becket, "becket_queue") == 1);
    drop(idle);
    answered(&mut third);
    assert_eq!(number(&becket, "becket_idle_reclaims_total"), 0);
}

#[test]
fn a_request_without_an_answer_is_never_cut() {
    let (place, server) = (Place::new(), server());
    let becket = start(&place, &server, RECLAIMS);
    let trust = Trust::new(&place);
    let mut slow = come(&becket, &trust, SLOW);
    eventually("it has a slot", || {
        number(&becket, "becket_server_connections") == 1
    });
    // Each one ends the one before it, though the slow one is silent for longer.
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
