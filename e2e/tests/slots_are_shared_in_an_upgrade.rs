//! All processes of an upgrade together hold at most `maxconn` connections to a server, whichever process dies.
//! `upgrades_under_mixed_load` tests this under load, `processes_of_an_upgrade_are_killed` at each step.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

use rustix::net::RecvFlags;

use becket_e2e::{
    Backend, Becket, Client, Place, Shape, Signal, Trust, eventually, holds_for, until,
};

use crate::upgrades_lose_nothing::{TWO_WORKERS, children, signal, start, upgrade};

/// A server that greets its clients and counts its open connections.
pub(crate) struct Counting {
    backend: Backend,
    now: Arc<AtomicUsize>,
    pub(crate) most: Arc<AtomicUsize>,
}

impl Counting {
    pub(crate) fn new() -> Self {
        let (now, most) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let counts = (Arc::clone(&now), Arc::clone(&most));
        let open = Mutex::new(Vec::<Weak<TcpStream>>::new());
        let backend = Backend::new(move |stream| {
            let (now, most) = &counts;
            now.fetch_add(1, SeqCst);
            let mut all = open.lock().unwrap();
            // A closed connection does not count even if its thread has not read the end of the stream yet.
            let stream = Arc::new(stream);
            all.retain(|one| one.upgrade().is_some_and(|one| is_open(&one)));
            all.push(Arc::downgrade(&stream));
            most.fetch_max(all.len(), SeqCst);
            drop(all);
            let serve = || {
                let mut stream = &*stream;
                stream.read_exact(&mut [0; 3])?;
                stream.write_all(b"here")?;
                stream.read_to_end(&mut Vec::new())
            };
            let served = serve();
            now.fetch_sub(1, SeqCst);
            served.map(drop)
        });
        Self { backend, now, most }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.backend.address
    }

    /// Connections accepted so far.
    pub(crate) fn served(&self) -> usize {
        self.backend.served()
    }

    #[track_caller]
    pub(crate) fn has(&self, count: usize) {
        eventually(&format!("the server has {count} connections"), || {
            self.now.load(SeqCst) == count
        });
    }

    pub(crate) fn shape(&self, maxconn: u32) -> Shape {
        Shape::new(self.backend.address)
            .server_keys(&format!("maxconn = {maxconn}"))
            .backend("queue-timeout = \"10m\"")
            .timeouts("drain = \"10m\"\ndrain-idle = \"10m\"")
            .process(TWO_WORKERS)
    }
}

fn is_open(stream: &TcpStream) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match rustix::net::recv(stream, &mut [0; 1], flags) {
        Ok((count, _)) => count > 0,
        Err(error) => error == rustix::io::Errno::AGAIN,
    }
}

/// Connects and sends three bytes; becket may queue the connection until a slot is free.
pub(crate) fn come(becket: &Becket, trust: &Trust) -> Client {
    let mut client = Client::connect(becket.web, trust).unwrap();
    client.write_all(b"abc").unwrap();
    client
}

pub(crate) fn greeted(client: &mut Client) -> io::Result<()> {
    client.read_exact(&mut [0; 4])
}

#[track_caller]
fn wait(becket: &Becket, count: usize) {
    eventually(&format!("{count} clients wait"), || {
        becket.metrics().sum("becket_queue", &[]) as usize == count
    });
}

#[test]
#[ignore = "slow: .ci/run test"]
fn slots_of_the_old_process_are_free_for_the_new_one_only_after_release() {
    let place = Place::new();
    let server = Counting::new();
    let becket = start(&place, &server.shape(3));
    let trust = Trust::new(&place);
    let mut old: Vec<Client> = (0..3).map(|_| come(&becket, &trust)).collect();
    old.iter_mut().for_each(|one| greeted(one).unwrap());
    upgrade(&becket);
    let processes = children(&becket);
    assert_eq!(processes.len(), 2, "the old process drains");
    // The old process holds all slots.
    let mut new: Vec<Client> = (0..3).map(|_| come(&becket, &trust)).collect();
    wait(&becket, 3);
    let full = || server.now.load(SeqCst) == 3;
    holds_for(Duration::from_millis(300), "no client gets a slot", full);
    // The new process takes each slot that the old one releases.
    drop(old.pop());
    wait(&becket, 2);
    server.has(3);
    // The new process dies with one slot and two queued clients. Its replacement takes the slots that the old process
    // does not use.
    signal(processes[1], Signal::KILL);
    for client in &mut new {
        while client.read(&mut [0; 9]).is_ok_and(|count| count > 0) {}
    }
    server.has(2);
    let mut new: Vec<Client> = until("another process accepts", || {
        let clients = (0..2).map(|_| Client::connect(becket.web, &trust));
        clients.collect::<io::Result<_>>().ok()
    });
    new.iter_mut()
        .for_each(|one| one.write_all(b"abc").unwrap());
    wait(&becket, 1);
    server.has(3);
    holds_for(Duration::from_millis(300), "only one slot is free", full);
    // The death of the old process frees all its slots.
    signal(processes[0], Signal::KILL);
    new.iter_mut().for_each(|one| greeted(one).unwrap());
    new.push(come(&becket, &trust));
    greeted(&mut new[2]).unwrap();
    new.push(come(&becket, &trust));
    wait(&becket, 1);
    drop(new);
    server.has(0);
    assert_eq!(server.most.load(SeqCst), 3);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn the_limit_on_connections_covers_both_processes() {
    let place = Place::new();
    let server = Counting::new();
    let becket = start(&place, &server.shape(9).limits("connections = 2"));
    let trust = Trust::new(&place);
    let mut old: Vec<Client> = (0..2).map(|_| come(&becket, &trust)).collect();
    old.iter_mut().for_each(|one| greeted(one).unwrap());
    upgrade(&becket);
    let mut next = thread::scope(|scope| {
        let next = scope.spawn(|| come(&becket, &trust));
        holds_for(
            Duration::from_millis(300),
            "no connection is accepted",
            || !next.is_finished(),
        );
        drop(old.pop());
        next.join().unwrap()
    });
    greeted(&mut next).unwrap();
    assert_eq!(server.most.load(SeqCst), 2);
}
