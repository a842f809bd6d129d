//! `becket check --connect` verifies that servers are reachable and have the expected certificate, and reports the
//! reason otherwise.

use std::net::TcpListener;

use becket_e2e::{Authority, Backend, Key, OpenSsl, Place, Shape, fresh_address, fresh_host};
use serde_json::Value;

use crate::check_reports::check;
use crate::tls_to_servers::{TRUSTED, asking_server, openssl_server};

/// Returns the exit code of the check and the result for the only server.
#[track_caller]
fn try_server(place: &Place, shape: &Shape) -> (i32, Value) {
    let text = shape.clone().timeouts("connect = \"5s\"").text();
    let table = check(place, &text, &["--connect"]);
    let found = check(place, &text, &["--connect", "--json"]);
    assert_eq!(table.code, found.code, "{}", table.all());
    let json: Value = serde_json::from_str(&found.stdout).unwrap();
    let tried = json["connects"][0].clone();
    // The table shows the same result as JSON.
    let said = match tried["fault"].as_str() {
        Some(fault) => format!("failed: {fault}"),
        None => format!("ok ({} ms", tried["milliseconds"]),
    };
    let part = said.split(['(', ',']).next().unwrap();
    assert!(table.stdout.contains(part), "{said}: {}", table.all());
    (found.code, tried)
}

#[track_caller]
fn fails(place: &Place, shape: &Shape, why: &str) {
    let (code, tried) = try_server(place, shape);
    assert_eq!((code, &tried["outcome"]), (2, &"failed".into()), "{tried}");
    let fault = tried["fault"].as_str().unwrap();
    assert!(fault.contains(why), "{fault}");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_reachable_server_with_the_expected_certificate_is_ok() {
    let Some(openssl) = OpenSsl::find() else {
        return;
    };
    let place = Place::new();
    let plain = Backend::http("well met");
    let (code, tried) = try_server(&place, &Shape::new(plain.address));
    assert_eq!((code, &tried["outcome"]), (0, &"ok".into()), "{tried}");
    assert_eq!(tried["version"], Value::Null);

    place.issue("app.pem", &["app.example.org"], Key::Ecdsa);
    for (flag, version) in [("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")] {
        let (_server, at) = openssl_server(&openssl, &place, "app.pem", &[flag]);
        let (code, tried) = try_server(&place, &Shape::new(at).backend(TRUSTED));
        assert_eq!((code, &tried["outcome"]), (0, &"ok".into()), "{tried}");
        assert_eq!(tried["version"], version);
        let whom = tried["certificate"].as_str().unwrap();
        assert!(whom.contains("app.example.org"), "{whom}");
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_server_with_another_certificate_fails() {
    let Some(openssl) = OpenSsl::find() else {
        return;
    };
    let place = Place::new();
    place.issue("wrong-name.pem", &["other.example.org"], Key::Ecdsa);
    let stranger = Authority::new("somebody else").issue(&["app.example.org"], Key::Ecdsa);
    stranger.write(&place.path("stranger.pem"));
    for (bundle, why) in [
        ("wrong-name.pem", "not valid for name"),
        ("stranger.pem", "unknown issuer"),
    ] {
        let (_server, at) = openssl_server(&openssl, &place, bundle, &[]);
        fails(&place, &Shape::new(at).backend(TRUSTED), why);
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_server_with_too_many_certificates_fails() {
    let Some(openssl) = OpenSsl::find() else {
        return;
    };
    let place = Place::new();
    place.issue("app.pem", &["app.example.org"], Key::Ecdsa);
    let alike: String = (0..9)
        .map(|_| Authority::new("alike").pem().to_owned())
        .collect();
    place.write("alike.pem", &alike);
    let more = ["-cert_chain", &place.text("alike.pem")];
    let (_server, at) = openssl_server(&openssl, &place, "app.pem", &more);
    let shape = Shape::new(at).backend(TRUSTED);
    fails(&place, &shape, "9 intermediate certificates");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_server_that_requires_a_client_certificate_fails_after_its_handshake() {
    let Some(openssl) = OpenSsl::find() else {
        return;
    };
    let place = Place::new();
    for version in ["-tls1_2", "-tls1_3"] {
        let (_server, at) = asking_server(&openssl, &place, version);
        fails(&place, &Shape::new(at).backend(TRUSTED), "alert");
        let shown = Shape::new(at)
            .backend(TRUSTED)
            .backend("tls.client-certificate = \"becket.pem\"");
        assert_eq!(try_server(&place, &shown).0, 0);
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_server_that_refuses_hangs_or_is_unhealthy_fails() {
    let place = Place::new();
    fails(&place, &Shape::new(fresh_address()), "refused");
    let gone = place.text("gone.sock");
    fails(&place, &Shape::new(gone), "No such file");
    // The kernel accepts connections on this socket, but no process answers.
    let silent = TcpListener::bind((fresh_host(), 0)).unwrap();
    let at = silent.local_addr().unwrap();
    assert_eq!(try_server(&place, &Shape::new(at)).0, 0, "TCP asks no more");
    let secure = Shape::new(at).backend(TRUSTED);
    fails(&place, &secure, "no answer within 5s");
    let checked = "health.check = \"http\"\nhealth.timeout = \"300ms\"";
    fails(
        &place,
        &Shape::new(at).backend(checked),
        "health check: no answer",
    );
    let web = Backend::http("well met");
    let picky = "health.check = \"http\"\nhealth.expect = [\"204\"]";
    fails(
        &place,
        &Shape::new(web.address).backend(picky),
        "status 200",
    );
}

#[test]
#[ignore = "slow: .ci/run test"]
fn names_of_peers_are_resolved_and_disabled_servers_are_skipped() {
    let place = Place::new();
    let made = becket_e2e::Becket::command(&place, &["secret", "secret"]);
    assert_eq!(becket_e2e::finish(made, "").code, 0);
    let at = fresh_address();
    let cluster = format!(
        "[cluster]\nsecret = \"secret\"\nnode = 1\nlisten = \"{at}\"\n\
         peers = [\"becket-knows-nobody.invalid:7443\"]"
    );
    let web = Backend::http("well met");
    let shape = Shape::new(web.address)
        .server(fresh_address())
        .server_keys("disabled = true")
        .section(&cluster);
    let found = check(&place, &shape.text(), &["--connect"]);
    assert_eq!(found.code, 2, "{}", found.all());
    let errors = found
        .stdout
        .lines()
        .filter(|line| line.contains(" error: "));
    let errors: Vec<&str> = errors.collect();
    assert_eq!(errors.len(), 1, "{}", found.all());
    assert!(
        errors[0].contains("becket-knows-nobody.invalid"),
        "{errors:?}"
    );
    assert!(found.stdout.contains("skipped, because it is disabled"));
    assert_ne!(check(&place, &shape.text(), &[]).code, 2, "only if asked");
}
