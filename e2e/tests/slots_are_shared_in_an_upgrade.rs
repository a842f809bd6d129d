//! A server has its `maxconn` from all processes of an upgrade together, whichever of them dies when.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

use rustix::net::RecvFlags;

use becket_e2e::{
    Backend, Becket, Client, Over, Place, Shape, Signal, Trust, eventually, holds_for, until,
};

use crate::upgrades_lose_nothing::{
    TWO_WORKERS, asking, children, install, install_script, signal, start, upgrade,
};

/// A server that greets, and counts whom it has until they leave.
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
            // One whose end has arrived, and whose thread has not seen it yet, is none.
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

    /// Connections that it has had.
    pub(crate) fn served(&self) -> usize {
        self.backend.served()
    }

    #[track_caller]
    pub(crate) fn has(&self, count: usize) {
        eventually(&format!("the server has {count}"), || {
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

/// Has said something, and perhaps waits for a slot.
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
    eventually(&format!("{count} wait"), || {
        becket.metrics().sum("becket_queue", &[]) as usize == count
    });
}

#[test]
#[ignore = "slow: .ci/run test"]
fn what_one_process_has_the_other_has_not_until_it_is_given_back() {
    let place = Place::new();
    let server = Counting::new();
    let becket = start(&place, &server.shape(3));
    let trust = Trust::new(&place);
    let mut old: Vec<Client> = (0..3).map(|_| come(&becket, &trust)).collect();
    old.iter_mut().for_each(|one| greeted(one).unwrap());
    upgrade(&becket);
    let processes = children(&becket);
    assert_eq!(processes.len(), 2, "the first one drains");
    // All slots are the old one's.
    let mut new: Vec<Client> = (0..3).map(|_| come(&becket, &trust)).collect();
    wait(&becket, 3);
    let full = || server.now.load(SeqCst) == 3;
    holds_for(Duration::from_millis(300), "nobody else comes", full);
    // Each that is given back is the new one's.
    drop(old.pop());
    wait(&becket, 2);
    server.has(3);
    // The new one dies with a slot, and those who wait there with it; the next one has what the old one leaves.
    signal(processes[1], Signal::KILL);
    for client in &mut new {
        while client.read(&mut [0; 9]).is_ok_and(|count| count > 0) {}
    }
    server.has(2);
    let mut new: Vec<Client> = until("another serves", || {
        let clients = (0..2).map(|_| Client::connect(becket.web, &trust));
        clients.collect::<io::Result<_>>().ok()
    });
    new.iter_mut()
        .for_each(|one| one.write_all(b"abc").unwrap());
    wait(&becket, 1);
    holds_for(Duration::from_millis(300), "there is one slot", full);
    // The old one dies with what it has: all is free.
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
fn a_successor_that_does_not_come_to_serve_takes_no_slot() {
    let place = Place::new();
    let server = Counting::new();
    let becket = start(&place, &server.shape(2));
    let trust = Trust::new(&place);
    install_script(&place, "exec sleep 1000");
    let asked = asking(&becket);
    let processes = until("there are two", || {
        let children = children(&becket);
        (children.len() == 2).then_some(children)
    });
    let mut clients: Vec<Client> = (0..2).map(|_| come(&becket, &trust)).collect();
    clients.iter_mut().for_each(|one| greeted(one).unwrap());
    signal(processes[1], Signal::KILL);
    assert_eq!(asked.join().unwrap().code, 1);
    drop(clients);
    // Twice, each with what the one before leaves.
    install(&place);
    let mut kept = Vec::new();
    for round in 1..=2 {
        let mut client = come(&becket, &trust);
        greeted(&mut client).unwrap();
        kept.push(client);
        upgrade(&becket);
        assert_eq!(children(&becket).len(), round + 1);
    }
    let mut last = come(&becket, &trust);
    wait(&becket, 1);
    kept.clear();
    greeted(&mut last).unwrap();
    drop(last);
    assert_eq!(server.most.load(SeqCst), 2);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn under_load_it_never_has_more_and_nobody_is_refused() {
    let place = Place::new();
    let server = Counting::new();
    let becket = start(&place, &server.shape(3));
    let trust = Trust::new(&place);
    let (over, [served, refused]) = (AtomicBool::new(false), [0; 2].map(AtomicUsize::new));
    thread::scope(|scope| {
        let _over = Over(&over);
        for _ in 0..8 {
            scope.spawn(|| {
                let _over = Over(&over);
                while !over.load(SeqCst) {
                    let Ok(mut client) = Client::connect(becket.web, &trust) else {
                        refused.fetch_add(1, SeqCst);
                        continue;
                    };
                    client.write_all(b"abc").unwrap();
                    greeted(&mut client).unwrap();
                    served.fetch_add(1, SeqCst);
                }
            });
        }
        let more = || {
            let before = served.load(SeqCst);
            eventually("clients are served", || served.load(SeqCst) > before + 20);
        };
        for _ in 0..4 {
            more();
            upgrade(&becket);
        }
        more();
    });
    server.has(0);
    assert_eq!(server.most.load(SeqCst), 3, "{}", becket.log());
    eventually("those that were replaced have ended", || {
        children(&becket).len() == 1
    });
    // A machine that is slow enough has let some wait for too long, and told them.
    eventually("each that was refused has a line of its own", || {
        let access = becket.access();
        let overload = access.iter().filter(|line| line["reason"] == "overload");
        refused.load(SeqCst) == overload.count()
    });
}

#[test]
#[ignore = "slow: .ci/run test"]
fn connections_in_all_are_limited_over_both() {
    let place = Place::new();
    let server = Counting::new();
    let becket = start(&place, &server.shape(9).limits("connections = 2"));
    let trust = Trust::new(&place);
    let mut old: Vec<Client> = (0..2).map(|_| come(&becket, &trust)).collect();
    old.iter_mut().for_each(|one| greeted(one).unwrap());
    upgrade(&becket);
    let mut next = thread::scope(|scope| {
        let next = scope.spawn(|| come(&becket, &trust));
        holds_for(Duration::from_millis(300), "nobody is let in", || {
            !next.is_finished()
        });
        drop(old.pop());
        next.join().unwrap()
    });
    greeted(&mut next).unwrap();
    assert_eq!(server.most.load(SeqCst), 2);
}
