//! The admin pages show correct figures and resist slow clients.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use becket_e2e::{
    Backend, Becket, Client, Key, OpenSsl, PATIENCE, Place, REQUEST, Shape, Trust, becket_program,
    eventually, finish, http_get,
};
use rustls::version::{TLS12, TLS13};
use serde_json::Value;

#[test]
#[ignore = "slow: .ci/run test"]
fn the_status_command_queries_the_admin_address() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let becket = Becket::start(&place, &Shape::new(backend.address));
    let ask = |arguments: &[&str]| {
        let arguments = [&["status"], arguments].concat();
        let mut command = Command::new(becket_program());
        command.args(arguments).current_dir(place.folder());
        finish(command, "")
    };
    let admin = becket.admin.to_string();
    for place in [["--admin", &admin], ["--config", "becket.toml"]] {
        let page = ask(&place);
        assert_eq!(page.code, 0, "{}", page.all());
        assert!(page.stdout.contains("serving, up"), "{}", page.stdout);
        let web = format!("web on {}\n", becket.web);
        assert!(page.stdout.contains(&web), "{}", page.stdout);
        let json = ask(&[&place[..], &["--json"]].concat());
        let status: Value = serde_json::from_str(&json.stdout).unwrap();
        assert_eq!(status["listeners"], becket.status()["listeners"]);
    }
    drop(becket);
    let gone = ask(&["--admin", &admin]);
    assert_eq!(gone.code, 1, "{}", gone.all());
    assert!(gone.stderr.contains(&admin), "{}", gone.stderr);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn the_status_is_affected_by_failing_clients_but_not_by_scans() {
    let (place, strangers) = (Place::new(), Place::new());
    let backend = Backend::http("well met");
    let becket = Becket::start(&place, &Shape::new(backend.address));
    let status = || {
        let mut command = Command::new(becket_program());
        command.args(["status", "--admin", &becket.admin.to_string(), "--json"]);
        finish(command, "").code
    };
    let failed = || {
        becket.status()["totals"]["handshakes_failed"]
            .as_u64()
            .unwrap()
    };
    // These clients send no TLS, or an unknown name, and trust no authority of becket.
    let trust = Trust::new(&strangers);
    for number in 0..12 {
        let mut scanner = TcpStream::connect(becket.web).unwrap();
        scanner.write_all(b"\x01\x02 what is here?\r\n").unwrap();
        becket_e2e::read_to_end(&mut scanner).0.clear();
        assert!(Client::connect_as(becket.web, &trust, "else.example.net").is_err());
        eventually("both failures are counted", || failed() == 2 * (number + 1));
    }
    assert_eq!(status(), 0);
    for _ in 0..12 {
        assert!(Client::connect_as(becket.web, &trust, "www.example.org").is_err());
    }
    let by_name = || {
        becket
            .metrics()
            .sum("becket_handshakes_failed_by_name_total", &[]) as u64
    };
    eventually("the failures are counted", || by_name() == 12);
    assert_eq!(status(), 3);
    // The reload stands for the correction of the problem.
    assert!(becket.reload());
    assert_eq!(status(), 0);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_certificate_that_expires_in_four_days_makes_the_status_unhealthy() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let soon = becket_e2e::unix_now() + 4 * 86400;
    place
        .authority
        .issue_until(&["www.example.org"], soon)
        .write(&place.path("site.pem"));
    let becket = Becket::start(&place, &Shape::new(backend.address));
    let admin = becket.admin.to_string();
    for flags in [
        &["status", "--admin", &admin][..],
        &["status", "--admin", &admin, "--json"],
    ] {
        let mut command = Command::new(becket_program());
        command.args(flags);
        let found = finish(command, "");
        assert_eq!(found.code, 3, "{}", found.all());
        let problem =
            "problem      certificate of www.example.org at listener web expires in 3 days\n";
        let is_json = flags.contains(&"--json");
        assert_eq!(found.stdout.contains(problem), !is_json, "{}", found.all());
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn every_handshake_byte_and_close_is_counted() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let becket = Becket::start(&place, &Shape::new(backend.address));
    for version in [&TLS12, &TLS13] {
        let trust = Trust::only(&place, version);
        for _ in 0..3 {
            Client::connect(becket.web, &trust)
                .unwrap()
                .ask(REQUEST)
                .unwrap();
        }
    }
    becket.idle();
    let metrics = becket.metrics();
    let sum = |name: &str, labels: &[&str]| metrics.sum(name, labels) as u64;
    assert_eq!(sum("becket_connections_accepted_total", &[]), 6);
    assert_eq!(sum("becket_connections_closed_total", &[]), 6);
    assert_eq!(metrics.closed("finished"), 6);
    for version in ["version=\"1.2\"", "version=\"1.3\""] {
        assert_eq!(
            sum("becket_handshakes_total", &[version, "kind=\"full\""]),
            1
        );
        assert_eq!(
            sum("becket_handshakes_total", &[version, "kind=\"resumed\""]),
            2
        );
    }
    assert_eq!(sum("becket_handshake_seconds_count", &["kind=\"full\""]), 2);
    assert_eq!(
        sum("becket_handshake_seconds_count", &["kind=\"resumed\""]),
        4
    );
    assert_eq!(
        sum("becket_resumptions_offered_total", &["outcome=\"opened\""]),
        4
    );
    assert_eq!(sum("becket_connects_total", &[]), 6);
    let requests = 6 * REQUEST.len() as u64;
    assert_eq!(sum("becket_server_sent_bytes_total", &[]), requests);
    eventually("all connections are logged", || becket.access().len() == 6);
    let lines = becket.access();
    for (field, name) in [
        ("client_bytes_in", "becket_client_received_bytes_total"),
        ("client_bytes_out", "becket_client_sent_bytes_total"),
        ("server_bytes_in", "becket_server_received_bytes_total"),
        ("server_bytes_out", "becket_server_sent_bytes_total"),
    ] {
        let logged: u64 = lines.iter().filter_map(|line| line[field].as_u64()).sum();
        assert_eq!(sum(name, &[]), logged, "{name} and {field}");
    }
    assert_eq!(sum("becket_workers", &[]), 2);
}

#[test]
fn the_metrics_page_is_text_for_prometheus() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let becket = Becket::start(&place, &Shape::new(backend.address));
    let text = becket.metrics().0;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (_, value) = line.rsplit_once(' ').expect("a sample");
        assert!(value.parse::<f64>().is_ok(), "{line}");
    }
    let mut stream = TcpStream::connect(becket.admin).unwrap();
    write!(stream, "GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let head = answer.to_lowercase();
    assert!(
        head.contains("content-type: text/plain; version=0.0.4"),
        "{head}"
    );
}

#[test]
#[ignore = "slow: .ci/run test"]
fn the_status_lists_certificates_policies_and_the_last_reload() {
    let place = Place::new();
    let backend = Backend::http("well met");
    place.issue("rsa.pem", &["www.example.org"], Key::Rsa);
    let shape = Shape::new(backend.address).certificates(r#"["rsa.pem", "site.pem"]"#);
    let becket = Becket::start(&place, &shape);
    let status = becket.status();
    assert_eq!(status["state"], "serving");
    assert_eq!(status["workers"], 2);
    assert_eq!(status["listeners"][0]["bind"][0], becket.web.to_string());
    assert!(status["reload"].is_null());
    let of_name = |name: &str| {
        let all = status["certificates"].as_array().unwrap();
        all.iter().filter(|c| c["name"] == name).count()
    };
    assert_eq!(of_name("www.example.org"), 2, "{status}");
    assert_eq!(of_name("localhost"), 1, "{status}");
    assert!(becket.reload());
    assert!(becket.status()["reload"]["time"].is_string());
    let text = status.to_string();
    assert!(!text.contains("PRIVATE KEY"));
}

#[test]
#[ignore = "slow: .ci/run test"]
fn pages_are_served_while_slow_clients_hold_connections() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let becket = Becket::start(&place, &Shape::new(backend.address));
    let slow: Vec<TcpStream> = (0..40)
        .map(|_| {
            let mut stream = TcpStream::connect(becket.admin).unwrap();
            stream.write_all(b"GET /metr").unwrap();
            stream
        })
        .collect();
    assert!(matches!(http_get(becket.admin, "/"), Ok((200, page)) if page.contains("<")));
    assert!(matches!(http_get(becket.admin, "/nothing"), Ok((404, _))));
    let mut post = TcpStream::connect(becket.admin).unwrap();
    post.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(post, "POST /metrics HTTP/1.0\r\nContent-Length: 0\r\n\r\n").unwrap();
    let mut answer = String::new();
    post.read_to_string(&mut answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.0 405") || answer.starts_with("HTTP/1.1 405"),
        "{answer}"
    );
    drop(slow);
    becket.idle();
}

#[test]
#[ignore = "slow: .ci/run test"]
fn secrets_are_logged_only_with_the_explicit_setting() {
    let Some(openssl) = OpenSsl::find() else {
        return;
    };
    let place = Place::new();
    let backend = Backend::http("well met");
    for (process, expected) in [
        ("workers = 1", false),
        ("workers = 1\nkey-log = true", true),
    ] {
        let shape = Shape::new(backend.address).process(process);
        let keys = place.path("keys.log");
        let becket = Becket::start_as(&place, &shape, |command| {
            command.env("SSLKEYLOGFILE", &keys);
        });
        assert_eq!(openssl.ask(&place, becket.web, &["-tls1_3"]).code, 0);
        becket.next_access();
        let text = place.read("keys.log");
        assert_eq!(text.contains("CLIENT_TRAFFIC_SECRET_0"), expected, "{text}");
        std::fs::remove_file(place.path("access.log")).unwrap();
    }
}
