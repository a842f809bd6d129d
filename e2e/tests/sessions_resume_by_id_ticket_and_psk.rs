//! Sessions resume by ID, by ticket and by pre-shared key on every worker until their lifetime ends.

use std::io::Write;

use becket_e2e::{
    Backend, Becket, Client, OpenSsl, Place, REQUEST, Shape, Tool, Trust, eventually,
};
use rustls::version::TLS12;

/// Connects, sends a request and returns the kind of handshake from becket's access log.
#[track_caller]
fn visit(becket: &Becket, trust: &Trust) -> String {
    let mut client = Client::connect(becket.web, trust).expect("a handshake");
    client.ask(REQUEST).expect("an answer");
    drop(client);
    let line = becket.next_access();
    line["handshake"].as_str().expect("a kind").to_owned()
}

#[test]
fn openssl_resumes_in_every_way() {
    let Some(openssl) = OpenSsl::find() else {
        return;
    };
    let place = Place::new();
    let backend = Backend::http("well met");
    let becket = Becket::start(&place, &Shape::new(backend.address));
    let session = place.text("session.pem");
    let ways: [(&str, &[&str]); 3] = [
        ("psk", &["-tls1_3"]),
        ("ticket", &["-tls1_2"]),
        ("id", &["-tls1_2", "-no_ticket"]),
    ];
    for (kind, flags) in ways {
        let first = [flags, &["-sess_out", &session]].concat();
        let run = openssl.ask(&place, becket.web, &first);
        assert!(run.stdout.contains("New, TLS"), "{}", run.all());
        assert_eq!(becket.next_access()["handshake"], "full");
        // Six connections reach both workers, because the kernel spreads them by the client's port.
        for _ in 0..6 {
            let again = [flags, &["-sess_in", &session, "-sess_out", &session]].concat();
            let run = openssl.ask(&place, becket.web, &again);
            assert!(run.stdout.contains("Reused, TLS"), "{}", run.all());
            assert!(run.stdout.contains("well met"), "{}", run.all());
            assert_eq!(becket.next_access()["handshake"], kind);
        }
    }
    let metrics = becket.metrics();
    let resumed = |version| {
        let labels = [version, "kind=\"resumed\""];
        metrics.sum("becket_handshakes_total", &labels) as u64
    };
    assert_eq!(resumed("version=\"1.3\""), 6);
    assert_eq!(resumed("version=\"1.2\""), 12);
    let full = metrics.sum("becket_handshakes_total", &["kind=\"full\""]);
    assert_eq!(full as u64, 3);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn gnutls_resumes() {
    let Some(gnutls) = Tool::find("gnutls-cli") else {
        return;
    };
    let place = Place::new();
    let backend = Backend::http("well met");
    let becket = Becket::start(&place, &Shape::new(backend.address));
    let (host, port) = (becket.web.ip().to_string(), becket.web.port().to_string());
    let ca = place.text("ca.pem");
    for version in ["TLS1.2", "TLS1.3"] {
        let priority = format!("NORMAL:-VERS-ALL:+VERS-{version}");
        let name = [
            "--sni-hostname",
            "www.example.org",
            "--verify-hostname",
            "www.example.org",
        ];
        let flags = [
            "--resume",
            "--waitresumption",
            "--x509cafile",
            &ca,
            "--port",
            &port,
        ];
        let rest = ["--priority", &priority, &host];
        let run = gnutls.run(
            [&flags[..], &name, &rest].concat(),
            "GET / HTTP/1.0\r\n\r\n",
        );
        assert!(
            run.stdout.contains("This is a resumed session"),
            "{}",
            run.all()
        );
    }
    let metrics = becket.metrics();
    let resumed = metrics.sum("becket_handshakes_total", &["kind=\"resumed\""]);
    assert_eq!(resumed as u64, 2);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_session_whose_connection_failed_does_not_resume() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let becket = Becket::start(&place, &Shape::new(backend.address));
    let trust = Trust::only(&place, &TLS12).without_tickets();
    assert_eq!(visit(&becket, &trust), "full");
    assert_eq!(visit(&becket, &trust), "id");
    let mut client = Client::connect(becket.web, &trust).expect("a handshake");
    let resumed = || {
        becket
            .metrics()
            .sum("becket_handshakes_total", &["kind=\"resumed\""])
    };
    eventually("the handshake is complete", || resumed() as u64 == 2);
    // A record of application data with a wrong authentication tag.
    let forged = [&[23, 3, 3, 0, 64], &[0; 64][..]].concat();
    client.socket.write_all(&forged).expect("a socket");
    assert_eq!(becket.next_reason(), "client-tls-error");
    assert_eq!(visit(&becket, &trust), "full");
    let metrics = becket.metrics();
    let unknown = metrics.sum("becket_resumptions_offered_total", &["outcome=\"unknown\""]);
    assert_eq!(unknown as u64, 1);
}
