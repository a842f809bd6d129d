//! The trial of a policy judges every client and refuses nobody; its report says who would be lost, and goes on until it is another.

use std::io::Write;
use std::net::TcpStream;

use becket_e2e::{Backend, Becket, OpenSsl, Place, Shape, Trust, ctl_done};
use rustls::version::{TLS12, TLS13};
use serde_json::{Value, json};

fn report(place: &Place, words: &[&str]) -> Value {
    let text = ctl_done(place, &[&["policy", "report"], words, &["--json"]].concat());
    serde_json::from_str::<Value>(&text).unwrap()["policies"].take()
}

fn shape(backend: &Backend, trial: &str) -> Shape {
    let policy = format!(
        "[[policy]]\nname = \"web\"\nclient-certificates = \"optional\"\nclient-ca = \"ca.pem\"\n\
         trial = {{ {trial} }}"
    );
    Shape::new(backend.address)
        .admin_keys("socket = \"admin.sock\"")
        .section(&policy)
}

#[test]
fn clients_of_an_old_version_are_served_and_reported() {
    let Some(openssl) = OpenSsl::find() else {
        return;
    };
    let (place, backend) = (Place::new(), Backend::http("well met"));
    let shape = shape(&backend, "versions = [\"1.3\"]");
    let becket = Becket::start(&place, &shape);
    let mut old = Value::Null;
    for version in ["-tls1_3", "-tls1_2", "-tls1_2"] {
        let run = openssl.ask(&place, becket.web, &[version]);
        assert!(run.all().contains("well met"), "{}", run.all());
        old = becket.next_access()["ja4"].take();
    }
    assert!(old.as_str().unwrap().starts_with("t12d"), "{old}");
    let row = |of: Value| json!([{"of": of, "clients": 2, "error": 0}]);
    let expected = json!([{
        "policy": "web", "clients": 3, "passed": 1, "failed": {"version": 2},
        "names": row("www.example.org".into()), "ja4": row(old),
        "networks": row("127.0.0.0/24".into()),
    }]);
    assert_eq!(report(&place, &[]), expected);
    assert_eq!(report(&place, &["web", "--limit", "1"]), expected);
    let metrics = becket.metrics();
    for (outcome, count) in [("passed", 1.0), ("version", 2.0), ("group", 0.0)] {
        let label = format!("outcome=\"{outcome}\"");
        let labels = ["policy=\"web\"", &label];
        assert_eq!(
            metrics.sum("becket_trial_total", &labels),
            count,
            "{outcome}"
        );
    }
    // A client that is not served has nothing to lose.
    let hello = include_bytes!("../../crates/proto/testdata/client_hello/openssl-tls12.bin");
    let mut gone = TcpStream::connect(becket.web).unwrap();
    gone.write_all(hello).unwrap();
    drop(gone);
    assert!(becket.next_access()["handshake"].is_null());
    assert_eq!(report(&place, &[]), expected);
    // A reload that leaves the trial as it is leaves its report, another trial begins anew.
    assert!(becket.reload());
    assert_eq!(report(&place, &[]), expected);
    let other = shape
        .text()
        .replace("versions = [\"1.3\"]", "groups = [\"x25519\"]");
    place.write("becket.toml", &other);
    assert!(becket.reload());
    assert_eq!(report(&place, &[])[0]["clients"], 0);
}

#[test]
fn clients_without_a_certificate_are_known_when_they_are_in() {
    let (place, backend) = (Place::new(), Backend::http("well met"));
    let becket = Becket::start(
        &place,
        &shape(&backend, "client-certificates = \"required\""),
    );
    let alice = place.authority.issue_numbered(&["alice"], 0xabc);
    for own in [None, Some(&alice)] {
        for version in [&TLS12, &TLS13] {
            let trust = Trust::with(&place, &[version], own);
            assert!(trust.visit(becket.web).unwrap().ends_with(b"well met"));
        }
    }
    let report = &report(&place, &["web"])[0];
    assert_eq!(report["passed"], 2, "{report}");
    assert_eq!(report["failed"], json!({"client-certificate": 2}));
    assert_eq!(report["ja4"].as_array().unwrap().len(), 2);
}
