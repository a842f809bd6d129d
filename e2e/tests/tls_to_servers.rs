//! TLS to servers: verification of their certificates, client certificates, revocation and resumption.

use std::io::Read;
use std::net::SocketAddr;

use becket_e2e::{
    Becket, Client, Kept, Key, OpenSsl, Place, REQUEST, Shape, Tool, Trust, fresh_address, nginx,
    serve,
};

/// Keys of a backend with TLS.
pub(crate) const TRUSTED: &str = "tls.ca = \"ca.pem\"\ntls.name = \"app.example.org\"";

/// Starts `openssl s_server`, which answers every request with details of the handshake.
pub(crate) fn openssl_server(
    openssl: &OpenSsl,
    place: &Place,
    bundle: &str,
    flags: &[&str],
) -> (Kept, SocketAddr) {
    let at = fresh_address();
    let (listen, bundle) = (at.to_string(), place.text(bundle));
    let fixed = [
        "s_server", "-accept", &listen, "-cert", &bundle, "-key", &bundle, "-www",
    ];
    let command = openssl.0.command([&fixed[..], flags].concat());
    (serve(command, place, "s_server", at), at)
}

/// Starts a server that requires a client certificate; `becket.pem` is an accepted one.
pub(crate) fn asking_server(openssl: &OpenSsl, place: &Place, version: &str) -> (Kept, SocketAddr) {
    place.issue("app.pem", &["app.example.org"], Key::Ecdsa);
    place.issue("becket.pem", &["front.example.org"], Key::Ecdsa);
    let ca = place.text("ca.pem");
    let asks = [
        "-Verify",
        "1",
        "-verify_return_error",
        "-CAfile",
        &ca,
        version,
    ];
    openssl_server(openssl, place, "app.pem", &asks)
}

/// Returns the answer to a request, or the error if the connection did not end cleanly.
fn ask(becket: &Becket, place: &Place) -> Result<String, String> {
    let mut client = Client::connect(becket.web, &Trust::new(place)).unwrap();
    let answer = client.ask(REQUEST).map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[test]
fn tls_connections_to_nginx_work_and_resume_sessions() {
    let Some(tool) = Tool::find("nginx") else {
        return;
    };
    let place = Place::new();
    let at = fresh_address();
    place.issue("app.pem", &["app.example.org"], Key::Ecdsa);
    let app = place.text("app.pem");
    let http = format!(
        "server {{ listen {at} ssl; server_name app.example.org; ssl_certificate {app};
         ssl_certificate_key {app}; ssl_protocols TLSv1.2 TLSv1.3; ssl_session_cache shared:s:1m;
         location / {{ return 200 \"$ssl_protocol $ssl_session_reused $ssl_server_name\"; }} }}"
    );
    let _nginx = nginx(&tool, &place, &http, at);
    for version in ["1.2", "1.3"] {
        let keys = format!("{TRUSTED}\ntls.versions = [\"{version}\"]");
        let becket = Becket::start(
            &place,
            &Shape::new(at).backend(&keys).process("workers = 1"),
        );
        let mut answers = Vec::new();
        for _ in 0..3 {
            let answer = ask(&becket, &place).unwrap();
            answers.push(answer.rsplit("\r\n").next().unwrap_or_default().to_owned());
        }
        let expected = ["", "r", "r"].map(|reused| {
            let reused = if reused.is_empty() { "." } else { reused };
            format!("TLSv{version} {reused} app.example.org")
        });
        assert_eq!(answers, expected);
        let metrics = becket.metrics();
        let count = |kind| metrics.sum("becket_server_handshakes_total", &[kind]);
        assert_eq!(
            (count("kind=\"full\""), count("kind=\"resumed\"")),
            (1.0, 2.0)
        );
        assert_eq!(becket.next_reason(), "finished");
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_server_that_requests_a_certificate_receives_it() {
    let Some(openssl) = OpenSsl::find() else {
        return;
    };
    let place = Place::new();
    for version in ["-tls1_2", "-tls1_3"] {
        let (_server, at) = asking_server(&openssl, &place, version);
        let shown = format!("{TRUSTED}\ntls.client-certificate = \"becket.pem\"");
        let becket = Becket::start(&place, &Shape::new(at).backend(&shown));
        let answer = ask(&becket, &place).unwrap();
        assert!(answer.contains("front.example.org"), "{answer}");
        drop(becket);
        let becket = Becket::start(&place, &Shape::new(at).backend(TRUSTED));
        let mut client = Client::connect(becket.web, &Trust::new(&place)).unwrap();
        let mut answer = Vec::new();
        assert!(client.read_to_end(&mut answer).is_err(), "no clean end");
        drop(client);
        let reason = becket.next_reason();
        // In TLS 1.3 the server rejects the certificate after becket's side of the handshake is complete.
        assert!(
            ["server-tls-error", "server-reset"].contains(&&*reason),
            "{version}: {reason}"
        );
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_server_with_a_revoked_certificate_is_rejected_even_with_a_session() {
    let Some(openssl) = OpenSsl::find() else {
        return;
    };
    let place = Place::new();
    let revoke = |serials: &[u64]| {
        let list = place.authority.revocation_list(serials).pem().unwrap();
        place.write("crl.pem", &list);
    };
    let own = place.authority.issue_numbered(&["app.example.org"], 7);
    own.write(&place.path("app.pem"));
    let (_server, at) = openssl_server(&openssl, &place, "app.pem", &[]);
    for version in ["1.2", "1.3"] {
        revoke(&[8]);
        let keys = format!("{TRUSTED}\ntls.crl = [\"crl.pem\"]\ntls.versions = [\"{version}\"]");
        let shape = Shape::new(at).backend(&keys).process("workers = 1");
        let becket = Becket::start(&place, &shape);
        for _ in 0..2 {
            assert!(ask(&becket, &place).unwrap().contains("s_server"));
            assert_eq!(becket.next_reason(), "finished");
        }
        let resumed = || {
            let metrics = becket.metrics();
            metrics.sum("becket_server_handshakes_total", &["kind=\"resumed\""])
        };
        assert_eq!(resumed(), 1.0);
        revoke(&[8, 7]);
        assert!(becket.reload(), "{}", becket.log());
        ask(&becket, &place).expect_err("a session of the server does not resume");
        assert_eq!(becket.next_reason(), "server-certificate");
        assert_eq!(resumed(), 1.0);
        becket.says("revoked");
        place.write("crl.pem", "no list");
        assert!(!becket.reload());
        becket.says("crl.pem");
    }
}
