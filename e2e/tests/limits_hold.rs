//! Limits on connections, handshakes and file descriptors: they hold, are reported, and connections are accepted again afterwards.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use becket_e2e::{
    Backend, Becket, Client, PATIENCE, Place, REQUEST, Shape, Trust, eventually, fresh_host,
    holds_for, until,
};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::Value;

/// Connects to an echo server and waits for the first echo.
fn talk(becket: &Becket, trust: &Trust) -> Client {
    let mut client = Client::connect(becket.web, trust).unwrap();
    client.write_all(b"x").unwrap();
    client.read_exact(&mut [0]).unwrap();
    client
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_handshake_above_the_limit_is_rejected() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let shape = Shape::new(backend.address)
        .listener("defer-accept = \"0s\"")
        .limits("handshakes = 3")
        .process("workers = 1");
    let becket = Becket::start(&place, &shape);
    let trust = Trust::new(&place);
    // Each client has sent a whole ClientHello and received an answer. It sends nothing more.
    let held: Vec<Client> = (0..3)
        .map(|_| {
            let mut client = Client::begin(becket.web, &trust, "www.example.org").unwrap();
            client.tls.write_tls(&mut client.socket).unwrap();
            client.socket.read_exact(&mut [0]).unwrap();
            client
        })
        .collect();
    assert_eq!(in_flight(&becket), 3);
    assert!(Client::connect(becket.web, &trust).is_err());
    assert_eq!(becket.metrics().closed("handshake-limit"), 1);
    drop(held);
    eventually("no handshakes", || in_flight(&becket) == 0);
    assert!(
        Client::connect(becket.web, &trust)
            .unwrap()
            .ask(REQUEST)
            .is_ok()
    );
}

fn in_flight(becket: &Becket) -> u64 {
    becket.metrics().sum("becket_handshakes_in_flight", &[]) as u64
}

/// Connects clients that send only the first byte of a ClientHello.
fn one_byte_clients(becket: &Becket, number: usize) -> Vec<TcpStream> {
    let one = || {
        let mut socket = TcpStream::connect(becket.web).unwrap();
        socket.write_all(&[22]).unwrap();
        socket
    };
    (0..number).map(|_| one()).collect()
}

#[test]
#[ignore = "slow: .ci/run test"]
fn new_clients_displace_the_oldest_silent_clients() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let shape = Shape::new(backend.address)
        .listener("defer-accept = \"0s\"")
        .limits("handshakes = 20")
        .timeouts("hello = \"1m\"\nhandshake = \"1m\"")
        .process("workers = 1");
    let becket = Becket::start(&place, &shape);
    let mut held = one_byte_clients(&becket, 20);
    eventually("all handshakes are in flight", || in_flight(&becket) == 20);
    let trust = Trust::new(&place);
    for round in 1..=3 {
        let answer = Client::connect(becket.web, &trust).unwrap().ask(REQUEST);
        assert!(answer.unwrap().ends_with(b"well met"));
        let metrics = becket.metrics();
        assert_eq!(metrics.closed("handshake-displaced"), round);
        // A slot is free now, and another silent client takes it.
        held.extend(one_byte_clients(&becket, 1));
        eventually("the limit is reached again", || in_flight(&becket) == 20);
    }
    // The oldest clients have been closed.
    for (at, socket) in held.iter_mut().enumerate() {
        socket.set_nonblocking(true).unwrap();
        let gone = match socket.read(&mut [0]) {
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
            Ok(_) => true,
        };
        assert_eq!(gone, at < 3, "{at}");
    }
    assert_eq!(becket.metrics().closed("handshake-limit"), 0);
    drop(held);
    becket.idle();
}

/// Sets the soft limit on open files of a running becket.
fn limit_descriptors(becket: &Becket, soft: u64) {
    let pid = Pid::from_raw(becket.child().cast_signed());
    let limits = Rlimit {
        current: Some(soft),
        maximum: getrlimit(Resource::Nofile).maximum,
    };
    prlimit(pid, Resource::Nofile, limits).unwrap();
}

#[test]
#[ignore = "slow: .ci/run test"]
fn accepting_pauses_without_busy_waiting_if_descriptors_run_out() {
    let place = Place::new();
    let backend = Backend::echo();
    let shape = Shape::new(backend.address)
        .listener("defer-accept = \"0s\"")
        .process("workers = 1");
    let becket = Becket::start(&place, &shape);
    let trust = Trust::new(&place);
    let kept = talk(&becket, &trust);
    // Allow as many descriptors as are open now, without the one of the admin connection.
    let most = becket.descriptors() as u64 - 1;
    limit_descriptors(&becket, most);
    let clients: Vec<TcpStream> = (0..8)
        .map(|_| TcpStream::connect(becket.web).unwrap())
        .collect();
    until("the pause is logged", || {
        becket
            .log()
            .contains("accepting connections paused")
            .then_some(())
    });
    // Becket has no descriptor left for a status request, so CPU time shows if it spins.
    let before = cpu_ticks(&becket);
    holds_for(Duration::from_secs(1), "becket keeps running", || {
        becket.is_alive()
    });
    let spent = cpu_ticks(&becket) - before;
    assert!(spent < 30, "{spent} of 100 ticks in a second of rest");
    // Connected clients are still served.
    let mut kept = kept;
    kept.write_all(b"y").unwrap();
    kept.read_exact(&mut [0]).unwrap();
    limit_descriptors(&becket, 1000);
    drop(clients);
    talk(&becket, &trust);
    let metrics = becket.metrics();
    assert!(metrics.sum("becket_accept_pauses_total", &[]) >= 1.0);
    assert!(metrics.closed("no-descriptor") >= 1, "{}", metrics.0);
    drop(kept);
    becket.idle();
}

/// Returns user and system time in clock ticks, 100 per second.
fn cpu_ticks(becket: &Becket) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", becket.child())).unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Starts a server that sends a byte to each client and keeps the connections open.
fn keeper() -> SocketAddr {
    let listener = TcpListener::bind((fresh_host(), 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for mut stream in listener.incoming().map_while(Result::ok) {
            stream.write_all(b"x").ok();
            kept.push(stream);
        }
    });
    address
}

/// Starts becket with this limit on open files.
fn with_open_files(place: &Place, shape: &Shape, limit: u32) -> Becket {
    let launcher = format!("ulimit -n {limit} && exec \"$@\"");
    let launcher = ["sh", "-c", &launcher, "sh"].map(str::to_owned);
    Becket::start_by(place, shape, &launcher)
}

#[test]
#[ignore = "slow: .ci/run test"]
fn the_connection_limit_logged_at_the_start_is_reached_with_any_limit_on_open_files() {
    let server = keeper();
    for (limit, least) in [(200, 70), (256, 100), (1024, 450), (1100, 490), (2048, 940)] {
        let place = Place::new();
        let shape = Shape::new(server).plain();
        let becket = with_open_files(&place, &shape, limit);
        becket.says("\"serving\"");
        let log = becket.log();
        let mut lines = log.lines().map(|line| serde_json::from_str(line).unwrap());
        let serving = lines.find(|line: &Value| line["message"] == "serving");
        let fits = serving.unwrap()["connections"].as_u64().unwrap();
        assert!(fits >= least, "{fits} of {limit}");
        let connect = || {
            let client = TcpStream::connect(becket.web).unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            client
        };
        let mut clients = Vec::new();
        for _ in 0..fits {
            let mut client = connect();
            client.read_exact(&mut [0]).unwrap();
            clients.push(client);
        }
        let mut last = connect();
        until("accepting pauses, and only then", || {
            let metrics = becket.metrics();
            assert_eq!(metrics.open(), fits, "{limit}");
            assert_eq!(metrics.sum("becket_accept_pauses_total", &[]) as u64, 0);
            let pauses = metrics.sum("becket_connection_limit_pauses_total", &[]);
            (pauses > 0.0).then_some(())
        });
        // Use RST, because the server would keep a connection that ends with FIN.
        let one = clients.pop().unwrap();
        socket2::SockRef::from(&one)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
        drop(one);
        last.read_exact(&mut [0]).unwrap();
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_limit_on_open_files_that_is_too_low_is_rejected_with_advice() {
    let place = Place::new();
    let shape = Shape::new(keeper()).plain();
    place.write("becket.toml", &shape.text());
    let words = ["-c", "ulimit -n 48 && exec \"$@\"", "sh"];
    let becket = becket_e2e::becket_program().to_string_lossy();
    let run = [&*becket, "run", "--config", "becket.toml"];
    let command = Becket::command_of("sh".as_ref(), &place, &[&words[..], &run].concat());
    let mut becket = Becket::spawn(command, place.folder(), shape.web, shape.admin);
    assert_eq!(becket.ended(), Some(2));
    for part in [
        "limits.connections",
        "48",
        "room for 6 connections",
        "LimitNOFILE",
        "ulimit",
    ] {
        assert!(becket.log().contains(part), "{part}: {}", becket.log());
    }
}
