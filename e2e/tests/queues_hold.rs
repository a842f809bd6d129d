//! `maxconn` holds exactly over all workers, who waits is served in order, and no slot is lost.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use becket_e2e::{Backend, Becket, Client, Place, Shape, Trust, eventually, holds_for};

/// What one who is served said, and the socket to answer on.
struct Request {
    word: Vec<u8>,
    stream: TcpStream,
}

/// A server that counts whom it serves at a time, and answers when it is told to.
struct Counting {
    backend: Backend,
    /// Those who have said something, in order, with the socket to answer on.
    here: Arc<Mutex<Vec<Request>>>,
}

impl Counting {
    /// Keeps everybody waiting until [`Self::answer`].
    fn new() -> Self {
        let here = Arc::<Mutex<Vec<Request>>>::default();
        let list = Arc::clone(&here);
        let backend = Backend::new(move |mut stream| {
            let mut word = [0; 3];
            stream.read_exact(&mut word)?;
            let word = word.to_vec();
            list.lock().unwrap().push(Request { word, stream });
            Ok(())
        });
        Self { backend, here }
    }

    fn count(&self) -> usize {
        self.here.lock().unwrap().len()
    }

    /// Answers whoever came first, and says who that was.
    fn answer(&self) -> String {
        let mut request = self.here.lock().unwrap().remove(0);
        request.stream.write_all(b"done").unwrap();
        String::from_utf8(request.word).unwrap()
    }
}

/// One server with a limit, two workers.
fn limited(server: &Counting, maxconn: u32) -> Shape {
    Shape::new(server.backend.address).server_keys(&format!("maxconn = {maxconn}"))
}

/// Says a word of three letters once the handshake is complete.
fn visit(becket: &Becket, trust: &Trust, word: &str) -> Client {
    let mut client = Client::connect(becket.web, trust).unwrap();
    client.write_all(word.as_bytes()).unwrap();
    client
}

fn number(becket: &Becket, name: &str) -> usize {
    becket.metrics().sum(name, &[]) as usize
}

fn read_all(client: &mut Client) -> io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    client.read_to_end(&mut answer)?;
    Ok(answer)
}

/// Nothing is in use and nobody waits.
fn at_rest(becket: &Becket) {
    eventually("every slot is free", || {
        number(becket, "becket_queue") == 0 && number(becket, "becket_server_connections") == 0
    });
}

#[test]
fn many_clients_on_two_workers_never_exceed_maxconn() {
    let place = Place::new();
    let (now, most) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let counts = (Arc::clone(&now), Arc::clone(&most));
    let server = Backend::new(move |mut stream| {
        counts
            .1
            .fetch_max(counts.0.fetch_add(1, SeqCst) + 1, SeqCst);
        stream.read_exact(&mut [0; 3])?;
        thread::yield_now();
        // Counted down first: the end is what frees the slot.
        counts.0.fetch_sub(1, SeqCst);
        stream.write_all(b"done")
    });
    let shape = Shape::new(server.address).server_keys("maxconn = 3");
    let becket = Becket::start(&place, &shape);
    let trust = Trust::new(&place);
    let refused = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                for _ in 0..15 {
                    let Ok(mut client) = Client::connect(becket.web, &trust) else {
                        refused.fetch_add(1, SeqCst);
                        continue;
                    };
                    client.write_all(b"abc").unwrap();
                    assert_eq!(read_all(&mut client).unwrap(), b"done");
                }
            });
        }
    });
    // A machine that is slow enough has let some wait for too long before their handshake, and told them.
    let refused = refused.into_inner();
    assert_eq!(becket.metrics().closed("overload"), refused as u64);
    assert_eq!(server.served(), 300 - refused);
    let most = most.load(SeqCst);
    assert!((1..=3).contains(&most), "{most} at a time");
    at_rest(&becket);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_full_server_is_not_even_checked() {
    let place = Place::new();
    let server = Counting::new();
    let shape = limited(&server, 2).section(
        "[backend.health]\ncheck = \"connect\"\ninterval = \"100ms\"\nfast-interval = \"100ms\"",
    );
    let becket = Becket::start(&place, &shape);
    let trust = Trust::new(&place);
    let mut clients: Vec<Client> = (0..2).map(|_| visit(&becket, &trust, "let")).collect();
    eventually("both are served", || server.count() == 2);
    let met = server.backend.served();
    holds_for(Duration::from_secs(1), "nobody else comes", || {
        server.backend.served() == met
    });
    server.answer();
    server.answer();
    for client in &mut clients {
        assert_eq!(read_all(client).unwrap(), b"done");
    }
    drop(clients);
    eventually("it is checked again", || server.backend.served() > met);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn clients_and_servers_that_die_at_any_moment_leave_no_slot_in_use() {
    let place = Place::new();
    // Every third connection is reset, every third is left to the client, the rest are answered.
    let count = AtomicUsize::new(0);
    let server = Backend::new(move |mut stream| {
        let turn = count.fetch_add(1, SeqCst) % 3;
        stream.read_exact(&mut [0; 3])?;
        match turn {
            0 => becket_e2e::reset(stream),
            1 => drop(stream.read_to_end(&mut Vec::new())),
            _ => stream.write_all(b"done")?,
        }
        Ok(())
    });
    let shape = Shape::new(server.address)
        .server_keys("maxconn = 2")
        .backend("queue-length = 6\nqueue-timeout = \"100ms\"")
        .timeouts("half-closed = \"100ms\"");
    let becket = Becket::start(&place, &shape);
    let trust = Trust::new(&place);
    thread::scope(|scope| {
        for n in 0..12_usize {
            let (becket, trust) = (&becket, &trust);
            scope.spawn(move || {
                for round in 0..20 {
                    let Ok(mut client) = Client::connect(becket.web, trust) else {
                        continue;
                    };
                    // Any of these may fail: the other side is as moody.
                    drop(client.write_all(b"abc"));
                    match (n + round) % 4 {
                        0 => client.reset(),
                        1 => drop(client.close_notify()),
                        2 => drop(client),
                        _ => {
                            drop(client.close_notify());
                            drop(read_all(&mut client));
                        }
                    }
                }
            });
        }
    });
    becket.idle();
    at_rest(&becket);
}
