//! Real servers on separate hosts and their failures: the network is disconnected, the process is
//! killed or stopped. Clients that another server can serve are not refused.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use becket_e2e::{
    Becket, Client, Make, Network, Over, Place, Server, Shape, Signal, Tool, Trust, eventually,
    unix_now,
};
use fastrand::Rng;

use crate::soak::number;

/// Health checks that detect a failed server within seconds. A connect that hangs is aborted earlier. The time-out allows for a busy
/// machine.
const HEALTH: &str = "[backend.health]\ncheck = \"http\"\npath = \"/health\"\ninterval = \"100ms\"\n\
                      fast-interval = \"100ms\"\ntimeout = \"1s\"\nrise = 1\nfall = 2\n";
const NAMES: [&str; 3] = ["one", "two", "three"];
const PORT: u16 = 8080;
const MAXCONN: u32 = 4;

/// A becket on the first host, and servers on the other hosts.
struct Stage<'n> {
    network: &'n Network,
    makes: [Make; 3],
    place: Place,
    trust: Trust,
    servers: [Option<Server>; 3],
}

/// Runs a test on the first host of a network.
fn stage(play: impl FnOnce(Stage<'_>) + Send) {
    let (Some(nginx), Some(haproxy)) = (Tool::find("nginx"), Tool::find("haproxy")) else {
        return;
    };
    let Some(network) = Network::of(1 + NAMES.len()) else {
        return;
    };
    let makes = [
        Make::Nginx(nginx.clone()),
        Make::HaProxy(haproxy),
        Make::Nginx(nginx),
    ];
    play_on(&network, makes, play);
}

fn play_on(network: &Network, makes: [Make; 3], play: impl FnOnce(Stage<'_>) + Send) {
    network.hosts[0].within(|| {
        let place = Place::new();
        let mut stage = Stage {
            network,
            makes,
            trust: Trust::new(&place),
            place,
            servers: [None, None, None],
        };
        for (index, host) in network.hosts.iter().skip(1).enumerate() {
            // The server's address is not the one of the link, so that the link can fail without the address.
            let at = address(index);
            host.ip(&format!("addr add {at}/32 dev lo"));
            let via = host.address;
            network.hosts[0].ip(&format!("route add {at}/32 via {via}"));
            stage.start(index);
        }
        play(stage);
    });
}

/// Returns the address of a server without its port.
fn address(server: usize) -> String {
    format!("10.74.0.{}", server + 1)
}

fn name(server: usize) -> String {
    format!("{}:{PORT}", address(server))
}

impl Stage<'_> {
    fn start(&mut self, server: usize) {
        let at = name(server).parse().unwrap();
        let (make, place) = (&self.makes[server], &self.place);
        let start = || Server::start(make, place, at, NAMES[server], MAXCONN);
        let started = self.network.hosts[server + 1].within(start);
        self.servers[server] = Some(started);
    }

    /// Kills a server. Its kernel then refuses connections immediately.
    fn kill(&mut self, server: usize) {
        self.servers[server] = None;
    }

    fn signal(&self, server: usize, signal: Signal) {
        self.servers[server].as_ref().unwrap().signal(signal);
    }

    fn unplug(&self, server: usize) {
        self.network.unplug(server + 1);
    }

    fn plug(&self, server: usize) {
        self.network.plug(server + 1);
    }

    /// Starts a becket with these servers and waits until all are in service.
    fn becket(&self, servers: &[usize], keys: &str) -> Becket {
        let (first, rest) = servers.split_first().unwrap();
        let maxconn = format!("maxconn = {MAXCONN}");
        let shape = Shape::new(name(*first)).server_keys(&maxconn);
        let shape = rest.iter().fold(shape, |shape, server| {
            shape.server(name(*server)).server_keys(&maxconn)
        });
        let shape = shape
            .backend(&format!("queue-timeout = \"20s\"\n{keys}\n{HEALTH}"))
            .timeouts("connect = \"500ms\"");
        let becket = Becket::start(&self.place, &shape);
        for server in servers {
            becomes(&becket, *server, "in-service");
        }
        becket
    }

    fn ask(&self, becket: &Becket, path: &str) -> io::Result<String> {
        ask(becket, &self.trust, path)
    }

    /// Sends requests of several clients at once, and returns the names of the servers that answered.
    fn crowd(&self, becket: &Becket, clients: usize) -> Vec<io::Result<String>> {
        thread::scope(|scope| {
            let ask = || self.ask(becket, "/");
            let crowd: Vec<_> = (0..clients).map(|_| scope.spawn(ask)).collect();
            joined(crowd)
        })
    }

    /// Checks that a crowd of clients is served completely, and by exactly these servers.
    #[track_caller]
    fn answer(&self, becket: &Becket, servers: &[usize]) {
        let mut answers: Vec<String> = { self.crowd(becket, 12).into_iter() }
            .map(|answer| answer.expect("an answer"))
            .collect();
        answers.sort();
        answers.dedup();
        let mut expected: Vec<&str> = servers.iter().map(|server| NAMES[*server]).collect();
        expected.sort_unstable();
        assert_eq!(answers, expected);
    }
}

fn joined<T>(threads: Vec<ScopedJoinHandle<'_, T>>) -> Vec<T> {
    let threads = threads.into_iter();
    threads.map(|thread| thread.join().unwrap()).collect()
}

/// Sends a request and returns the name of the server that answered. An incomplete or unexpected response is an error.
fn ask(becket: &Becket, trust: &Trust, path: &str) -> io::Result<String> {
    let mut client = Client::connect(becket.web, trust)?;
    let answer = client.ask(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
    let text = String::from_utf8_lossy(&answer);
    let parts = text.split_once("\r\n\r\n").and_then(|(head, body)| {
        let length: usize = head.lines().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            let is_length = key.eq_ignore_ascii_case("content-length");
            is_length.then(|| value.parse().ok())?
        })?;
        (head.contains(" 200 ") && body.len() == length).then(|| body.lines().next())?
    });
    let head = text.lines().next().unwrap_or_default().to_owned();
    parts
        .map(str::to_owned)
        .ok_or_else(|| io::Error::other(format!("{head:?} and {} bytes", text.len())))
}

/// Returns a value in `/status` of a server.
fn of_server(becket: &Becket, server: usize, key: &str) -> serde_json::Value {
    let status = becket.status();
    let servers = status["backends"][0]["servers"].as_array().unwrap().iter();
    let mut servers = servers.filter(|one| one["name"] == name(server));
    servers.next().unwrap()[key].clone()
}

#[track_caller]
fn becomes(becket: &Becket, server: usize, expected: &str) {
    eventually(&format!("{} is {expected}", NAMES[server]), || {
        of_server(becket, server, "condition") == expected
    });
}

/// Waits until every slot is free and no client is connected.
#[track_caller]
fn at_rest(becket: &Becket) {
    becket.idle();
    eventually("every slot is free", || {
        let metrics = becket.metrics();
        let sum = |name| metrics.sum(name, &[]);
        sum("becket_server_connections") == 0.0 && sum("becket_queue") == 0.0
    });
}

/// Returns the servers of connections that ended for this reason.
fn ended_at(becket: &Becket, reason: &str) -> Vec<String> {
    let lines = becket.access().into_iter();
    let ours = lines.filter(|line| line["reason"] == reason);
    ours.map(|line| line["server"].as_str().unwrap_or("nowhere").to_owned())
        .collect()
}

#[test]
#[ignore = "slow: .ci/run test"]
fn an_unplugged_host_is_avoided_and_used_again_after_it_is_plugged_in() {
    stage(|stage| {
        let becket = stage.becket(&[0, 2], "connections-on-failure = \"close\"");
        thread::scope(|scope| {
            let long = || stage.ask(&becket, "/long");
            let there: Vec<_> = (0..6).map(|_| scope.spawn(long)).collect();
            // Health checks use slots, but are not counted as connections.
            eventually("all clients have a server", || {
                [0, 2]
                    .iter()
                    .all(|s| of_server(&becket, *s, "connections").as_u64() >= Some(2))
                    && becket.metrics().sum("becket_server_connects_total", &[]) == 6.0
            });
            let cut_off = of_server(&becket, 0, "connections").as_u64().unwrap() as usize;
            stage.unplug(0);
            // Before the failure is detected, connects hang and are retried on another server.
            for answer in stage.crowd(&becket, 4) {
                assert_eq!(answer.expect("served"), NAMES[2]);
            }
            becomes(&becket, 0, "out-of-service");
            stage.answer(&becket, &[2]);
            let whole = joined(there).into_iter().filter(Result::is_ok).count();
            assert_eq!(
                whole,
                6 - cut_off,
                "clients of the other server are not affected"
            );
            let left = ended_at(&becket, "server-down");
            assert_eq!(left, vec![name(0); cut_off]);
        });
        stage.plug(0);
        becomes(&becket, 0, "in-service");
        stage.answer(&becket, &[0, 2]);
        at_rest(&becket);
    });
}

/// Responses and errors that clients received during an event.
#[derive(Debug, Default)]
struct Tally {
    answers: BTreeMap<String, usize>,
    failures: Vec<String>,
}

impl Stage<'_> {
    /// Runs clients that send requests continuously while `happens` runs.
    fn asking(
        &mut self,
        becket: &Becket,
        clients: usize,
        happens: impl FnOnce(&mut Self),
    ) -> Tally {
        let (over, tally) = (AtomicBool::new(false), Mutex::new(Tally::default()));
        let trust = self.trust.clone();
        thread::scope(|scope| {
            for _ in 0..clients {
                scope.spawn(|| {
                    while !over.load(SeqCst) {
                        let answer = ask(becket, &trust, "/");
                        let mut tally = tally.lock().unwrap();
                        match answer {
                            Ok(name) => *tally.answers.entry(name).or_default() += 1,
                            Err(error) => tally.failures.push(error.to_string()),
                        }
                    }
                });
            }
            let _over = Over(&over);
            happens(self);
        });
        tally.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn random_failures_leak_no_slot_and_no_descriptor() {
    let seed = number("BECKET_FAULTS_SEED", unix_now());
    println!("BECKET_FAULTS_SEED={seed}");
    let mut dice = Rng::with_seed(seed);
    for on_down in ["drain", "close"] {
        stage(|mut stage| {
            let becket = stage.becket(&[0, 1, 2], &format!("connections-on-failure = {on_down:?}"));
            stage.answer(&becket, &[0, 1, 2]);
            at_rest(&becket);
            let descriptors = becket.descriptors();
            let tally = stage.asking(&becket, 20, |stage| {
                for _ in 0..number("BECKET_FAULTS", 8) {
                    stage.suffers(&mut dice);
                }
                for server in [0, 1, 2] {
                    becomes(&becket, server, "in-service");
                }
            });
            println!("{on_down}: {:?}, {:?}", tally.answers, tally.failures);
            assert_eq!(tally.answers.len(), 3);
            at_rest(&becket);
            // A health check may use a slot for a moment.
            for server in [0, 1, 2] {
                eventually("every slot is free", || {
                    of_server(&becket, server, "in_use") == 0
                });
            }
            eventually("descriptors are at the baseline", || {
                becket.descriptors() <= descriptors
            });
            // The effect of the last failure may become visible later.
            eventually("all servers serve", || {
                let crowd = stage.crowd(&becket, 12).into_iter().filter_map(Result::ok);
                crowd.collect::<BTreeSet<_>>().len() == NAMES.len()
            });
            // A client may reach each server during its failure, since becket tries no server twice.
            let metrics = becket.metrics();
            assert_eq!(metrics.closed("no-server") + metrics.closed("internal"), 0);
            // With "close", a server that is unplugged or stopped counts closed connections too late, so its own limit may be
            // exceeded. With "drain" no connection is closed.
            let above = tally.failures.iter().filter(|why| why.contains(" 429 "));
            assert!(on_down == "close" || above.count() == 0, "above maxconn");
        });
    }
}

impl Stage<'_> {
    /// Makes a server fail for a random time, which may be too short to be detected.
    fn suffers(&mut self, dice: &mut Rng) {
        let server = dice.usize(..3);
        let time = Duration::from_millis(dice.u64(50..1050));
        match dice.u8(..3) {
            0 => {
                self.unplug(server);
                thread::sleep(time);
                self.plug(server);
            }
            1 => {
                self.kill(server);
                thread::sleep(time);
                self.start(server);
            }
            _ => {
                self.signal(server, Signal::STOP);
                thread::sleep(time);
                self.signal(server, Signal::CONT);
            }
        }
    }
}
