//! `maxconn` is an exact limit over all workers, waiting clients are served, and no slot is lost.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

use becket_e2e::{Backend, Becket, Client, Place, Shape, Trust, eventually};

fn number(becket: &Becket, name: &str) -> usize {
    becket.metrics().sum(name, &[]) as usize
}

fn read_all(client: &mut Client) -> io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    client.read_to_end(&mut answer)?;
    Ok(answer)
}

/// Waits until no slot is in use and no client waits.
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
        // Decrement before the end of the stream, because the end frees the slot.
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
    // On a slow machine, clients that waited too long before their handshake were rejected.
    let refused = refused.into_inner();
    assert_eq!(becket.metrics().closed("overload"), refused as u64);
    assert_eq!(server.served(), 300 - refused);
    let most = most.load(SeqCst);
    assert!((1..=3).contains(&most), "{most} at a time");
    at_rest(&becket);
}
