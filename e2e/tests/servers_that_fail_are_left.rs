//! Health: a server that fails its checks is left, comes back by itself, and where none is left clients are
//! refused at once.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use becket_e2e::{
    Backend, Becket, Client, Kept, Place, REQUEST, Shape, Tool, Trust, answer_all, eventually,
    fresh_address, now, read_head, until,
};

const FAST: &str = "interval = \"100ms\"\nfast-interval = \"100ms\"\nrise = 1\nfall = 2";

/// Keys of a backend whose servers are checked.
fn checked(check: &str) -> String {
    format!("[backend.health]\ncheck = {check:?}\n{FAST}\n")
}

/// What the status page says of a server: `on-trial`, `in-service`, `out-of-service`, ...
fn condition(becket: &Becket, server: &str) -> String {
    let status = becket.status();
    let servers = status["backends"][0]["servers"].as_array().unwrap().iter();
    let mut servers = servers.filter(|one| one["name"] == server);
    servers.next().unwrap()["condition"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[track_caller]
fn becomes(becket: &Becket, server: impl ToString, expected: &str) {
    let server = server.to_string();
    eventually(&format!("{server} is {expected}"), || {
        condition(becket, &server) == expected
    });
}

fn ask(becket: &Becket, trust: &Trust) -> io::Result<String> {
    let answer = Client::connect(becket.web, trust)?.ask(REQUEST)?;
    let text = String::from_utf8_lossy(&answer).into_owned();
    let body = text.rsplit("\r\n\r\n").next();
    Ok(body.unwrap_or_default().to_owned())
}

/// Who answers so many clients, each once.
#[track_caller]
fn answers(becket: &Becket, trust: &Trust, clients: usize) -> Vec<String> {
    let mut bodies: Vec<String> = (0..clients).map(|_| ask(becket, trust).unwrap()).collect();
    bodies.sort();
    bodies.dedup();
    bodies
}

fn failures(becket: &Becket) -> u64 {
    becket.metrics().sum("becket_connect_failures_total", &[]) as u64
}

/// A server that says its name, and at `/health` a status that the test may change.
fn with_health(name: &'static str) -> (Backend, Arc<AtomicU16>) {
    let status = Arc::new(AtomicU16::new(200));
    let told = Arc::clone(&status);
    let backend = Backend::new(move |mut stream| {
        let head = read_head(&mut stream)?;
        let (status, body) = if head.starts_with(b"GET /health ") {
            (told.load(SeqCst), "")
        } else {
            (200, name)
        };
        let length = body.len();
        write!(
            stream,
            "HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
    });
    (backend, status)
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_server_with_fast_open_serves_whether_or_not_the_machine_lets_data_go_with_a_syn() {
    let place = Place::new();
    let backend = Backend::http("well met");
    // Nobody is there: refused, with or without data.
    let shape = Shape::new(fresh_address()).server_keys("fast-open = true");
    let shape = shape
        .server(backend.address)
        .server_keys("fast-open = true");
    let becket = Becket::start(&place, &shape.process("workers = 1"));
    let trust = Trust::new(&place);
    assert_eq!(answers(&becket, &trust, 10), ["well met"]);
    assert!(failures(&becket) > 0);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_status_that_is_not_expected_takes_a_server_out_and_a_good_one_brings_it_back() {
    let place = Place::new();
    let ((one, status), (two, _)) = (with_health("one"), with_health("two"));
    let keys = checked("http") + "path = \"/health\"\nexpect = [\"200\"]\n";
    let shape = Shape::new(one.address).server(two.address).backend(&keys);
    let becket = Becket::start(&place, &shape);
    let trust = Trust::new(&place);
    becomes(&becket, one.address, "in-service");
    becomes(&becket, two.address, "in-service");
    assert_eq!(answers(&becket, &trust, 8), ["one", "two"]);
    status.store(503, SeqCst);
    becomes(&becket, one.address, "out-of-service");
    assert_eq!(answers(&becket, &trust, 8), ["two"]);
    status.store(200, SeqCst);
    becomes(&becket, one.address, "in-service");
    assert_eq!(answers(&becket, &trust, 8), ["one", "two"]);
    let said = |text: &str| {
        let log = becket.log();
        log.lines().filter(|line| line.contains(text)).count()
    };
    // Two from their trial, and one that came back.
    eventually("it is said", || said("server in service") == 3);
    assert_eq!(said("server out of service"), 1);
    assert_eq!(said("status 503"), 1);
    let labels = [&*format!("server=\"{}\"", one.address)];
    let metrics = becket.metrics();
    assert_eq!(metrics.sum("becket_server_outages_total", &labels), 1.0);
    assert!(metrics.sum("becket_server_check_failures_total", &labels) >= 2.0);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn connects_that_fail_pause_a_server_where_there_are_no_checks() {
    let place = Place::new();
    let (dead, alive) = (fresh_address(), Backend::http("alive"));
    let keys = "[backend.health]\npassive-failures = 3\npassive-pause = \"500ms\"\n";
    let shape = Shape::new(dead)
        .server(alive.address)
        .backend(keys)
        .process("workers = 1");
    let becket = Becket::start(&place, &shape);
    let trust = Trust::new(&place);
    until("the dead one is left", || {
        assert_eq!(ask(&becket, &trust).unwrap(), "alive");
        (condition(&becket, &dead.to_string()) == "out-of-service").then_some(())
    });
    let _back = Backend::at(dead, |stream| answer_all(stream, "back"));
    until("it is tried again", || {
        (ask(&becket, &trust).unwrap() == "back").then_some(())
    });
    becomes(&becket, dead, "in-service");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_check_says_that_it_speaks_for_itself() {
    let place = Place::new();
    let heads = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&heads);
    let backend = Backend::new(move |mut stream| {
        let mut head = Vec::new();
        stream.read_to_end(&mut head)?;
        kept.lock().unwrap().push(head);
        Ok(())
    });
    let keys = format!("proxy-header = \"v2\"\n{}", checked("connect"));
    let becket = Becket::start(&place, &Shape::new(backend.address).backend(&keys));
    becomes(&becket, backend.address, "in-service");
    let head = until("a check", || heads.lock().unwrap().first().cloned());
    assert_eq!(
        head, b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0",
        "LOCAL, nothing else"
    );
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_tls_check_wants_a_handshake() {
    let place = Place::new();
    // A becket serves as the TLS server; a plain one listens and speaks first.
    let app = Backend::http("behind");
    let inner_place = Place::new();
    let inner = Becket::start(&inner_place, &Shape::new(app.address));
    let plain = Backend::new(|mut stream| {
        stream.write_all(b"220 mail.test ready\r\n")?;
        stream.read_to_end(&mut Vec::new()).map(drop)
    });
    let shape = Shape::new(inner.web)
        .server(plain.address)
        .backend(&checked("tls"));
    let becket = Becket::start(&place, &shape);
    becomes(&becket, inner.web, "in-service");
    becomes(&becket, plain.address, "out-of-service");
    becket.says("tls: ");
}

/// One process, so that killing it ends all of it.
fn nginx(tool: &Tool, place: &Place, at: SocketAddr, name: &str) -> Kept {
    let folder = place.path(name);
    fs::create_dir_all(&folder).unwrap();
    let folder = folder.display();
    let path = place.write(
        &format!("{name}.conf"),
        &format!(
            "daemon off; master_process off; pid {folder}/nginx.pid; error_log stderr;\n\
             events {{}}\nhttp {{ access_log off; client_body_temp_path {folder}/a; \
             proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; \
             scgi_temp_path {folder}/e;\nserver {{ listen {at}; location / {{ return 200 {name}; }}\n\
             location = /health {{ return 204; }} }} }}\n"
        ),
    );
    let log = fs::File::create(place.path(&format!("{name}.log"))).unwrap();
    let mut command = tool.command(["-c".as_ref(), path.as_os_str()]);
    let kept = Kept(command.stderr(log).spawn().unwrap());
    eventually("nginx listens", || TcpStream::connect(at).is_ok());
    kept
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_real_nginx_that_is_killed_is_left_and_found_again() {
    let Some(tool) = Tool::find("nginx") else {
        return;
    };
    let place = Place::new();
    let (one, two) = (fresh_address(), fresh_address());
    let first = nginx(&tool, &place, one, "one");
    let _second = nginx(&tool, &place, two, "two");
    let keys = checked("http") + "path = \"/health\"\nexpect = [\"204\"]\n";
    let becket = Becket::start(&place, &Shape::new(one).server(two).backend(&keys));
    let trust = Trust::new(&place);
    becomes(&becket, one, "in-service");
    becomes(&becket, two, "in-service");
    assert_eq!(answers(&becket, &trust, 8), ["one", "two"]);
    drop(first);
    becomes(&becket, one, "out-of-service");
    let started = now();
    assert_eq!(answers(&becket, &trust, 8), ["two"]);
    let _again = nginx(&tool, &place, one, "one");
    becomes(&becket, one, "in-service");
    assert_eq!(answers(&becket, &trust, 8), ["one", "two"]);
    println!("left and found within {:?}", started.elapsed());
}
