//! Clients that hold or flood the admin address delay neither health checks nor signals.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;

use becket_e2e::{
    Backend, Becket, Over, PATIENCE, Place, Shape, Signal, eventually, http_get, until,
};

fn start(place: &Place) -> Becket {
    let backend = Backend::http("well met");
    Becket::start(place, &Shape::new(backend.address))
}

/// Sends bytes and returns all data until becket closes.
fn exchange(admin: SocketAddr, bytes: &str) -> String {
    let mut stream = TcpStream::connect(admin).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(bytes.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn refused(becket: &Becket, reason: &str) -> u64 {
    let label = format!("reason=\"{reason}\"");
    let name = "becket_admin_refused_total";
    becket.metrics().sum(name, &[&label]) as u64
}

#[test]
#[ignore = "slow: .ci/run test"]
fn silent_connections_do_not_block_a_health_check() {
    let place = Place::new();
    let becket = start(&place);
    for count in [500, 64] {
        let silent: Vec<TcpStream> = (0..count)
            .map(|_| TcpStream::connect(becket.admin).unwrap())
            .collect();
        assert_eq!(http_get(becket.admin, "/healthz").unwrap().0, 200);
        assert_eq!(http_get(becket.admin, "/metrics").unwrap().0, 200);
        // The first connection was closed, either to free a slot or by time-out.
        silent[0].set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!((&silent[0]).read(&mut [0]).unwrap(), 0);
    }
    assert!(refused(&becket, "evicted") > 0);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn an_endless_header_is_cut_off() {
    let place = Place::new();
    let becket = start(&place);
    let mut slow = TcpStream::connect(becket.admin).unwrap();
    slow.write_all(b"GET /metrics HTTP/1.1\r\nX: ").unwrap();
    until("the connection is closed", || slow.write_all(b"x").err());
    eventually("the timeout is counted", || {
        refused(&becket, "timeout") == 1
    });
}

#[test]
#[ignore = "slow: .ci/run test"]
fn each_connection_gets_one_response_and_is_closed() {
    let place = Place::new();
    let becket = start(&place);
    let admin = becket.admin;
    let request =
        format!("GET /healthz HTTP/1.1\r\nHost: {admin}\r\nConnection: keep-alive\r\n\r\n");
    for text in [request.clone(), request.repeat(8)] {
        let answer = exchange(admin, &text);
        assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 1, "{answer}");
        assert!(answer.contains("connection: close\r\n"), "{answer}");
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_foreign_host_header_is_rejected() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let hosts = "hosts = [\"pages.test\"]";
    let becket = Becket::start(&place, &Shape::new(backend.address).admin_keys(hosts));
    let ask = |path: &str, host: &str| {
        let text = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        exchange(becket.admin, &text)
    };
    for path in ["/", "/metrics", "/status"] {
        let answer = ask(path, "rebound.test:80");
        assert!(answer.starts_with("HTTP/1.1 421 "), "{answer}");
        assert!(answer.contains("\"rebound.test:80\""), "{answer}");
        assert!(answer.contains("admin.hosts"), "{answer}");
        for host in ["localhost", "[::1]:1", "pages.test:9443"] {
            let answer = ask(path, host);
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        }
    }
    let absolute = ask("http://rebound.test/status", "localhost");
    assert!(absolute.starts_with("HTTP/1.1 421 "), "{absolute}");
    let health = ask("/healthz", "rebound.test");
    assert!(health.starts_with("HTTP/1.1 200 "), "{health}");
    let old = exchange(becket.admin, "GET /status HTTP/1.0\r\n\r\n");
    assert!(old.starts_with("HTTP/1.0 200 "), "{old}");
    assert_eq!(refused(&becket, "foreign-host"), 4);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_reload_is_not_delayed_by_a_flood_of_page_requests() {
    let place = Place::new();
    let becket = start(&place);
    let (over, pages) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let _over = Over(&over);
        for _ in 0..64 {
            scope.spawn(|| {
                while !over.load(SeqCst) {
                    if http_get(becket.admin, "/metrics").is_ok() {
                        pages.fetch_add(1, SeqCst);
                    }
                }
            });
        }
        until("the flood has started", || {
            (pages.load(SeqCst) > 20).then_some(())
        });
        becket.signal(Signal::HUP);
        until("the reload is done", || {
            becket
                .log()
                .contains("configuration reloaded")
                .then_some(())
        });
    });
}

#[test]
#[ignore = "slow: .ci/run test"]
fn admin_threads_have_a_lower_priority_than_workers() {
    let place = Place::new();
    let becket = start(&place);
    let tasks = fs::read_dir(format!("/proc/{}/task", becket.child())).unwrap();
    let nices = tasks.map(|task| {
        let stat = fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
        let (head, fields) = stat.rsplit_once(')').unwrap();
        let name = head.split_once('(').unwrap().1.to_owned();
        // proc_pid_stat(5): the nice value is field 19, and the first field after the name is number 3.
        let nice: i32 = fields.split_whitespace().nth(16).unwrap().parse().unwrap();
        (name, nice)
    });
    let nices: BTreeMap<String, i32> = nices.collect();
    let worker = nices["becket-0"];
    assert_eq!(nices["admin-http"], worker + 5, "{nices:?}");
    assert_eq!(nices["becket"], worker + 5, "{nices:?}");
}
