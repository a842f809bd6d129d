//! The server name selects the certificate: exact, wildcard or default. Clients receive ECDSA if they support
//! it, otherwise RSA.

use std::net::TcpListener;

use crate::check_reports::check;
use becket_e2e::{Backend, Becket, Key, OpenSsl, Place, Shape, fresh_host};

/// Creates a place with certificates in a folder, as a pair and as bundles.
fn place() -> Place {
    let place = Place::new();
    std::fs::create_dir(place.path("names")).unwrap();
    place.issue("names/exact.pem", &["exact.example.org"], Key::Ecdsa);
    place.issue("names/wild.pem", &["*.example.org"], Key::Ecdsa);
    place
        .authority
        .issue(&["pair.example.com"], Key::Ecdsa)
        .write_pair(place.folder(), "pair");
    place.issue("rsa.pem", &["default.example.net"], Key::Rsa);
    place.issue("ecdsa.pem", &["default.example.net"], Key::Ecdsa);
    place
}

const CERTIFICATES: &str =
    r#"["names", { chain = "pair.crt", key = "pair.key" }, "rsa.pem", "ecdsa.pem"]"#;

#[test]
#[ignore = "slow: .ci/run test"]
fn a_certificate_of_x509_version_1_is_served_with_a_warning() {
    let Some(openssl) = OpenSsl::find() else {
        return;
    };
    let place = Place::new();
    let [key, csr, crt] = ["old.key", "old.csr", "ca.pem"].map(|name| place.text(name));
    let curve = "ec_paramgen_curve:P-256";
    let kind = [
        "-newkey", "ec", "-pkeyopt", curve, "-nodes", "-keyout", &key,
    ];
    let asked = [
        &["req", "-new", "-subj", "/CN=old.example.org", "-out", &csr],
        &kind[..],
    ];
    let signed = ["x509", "-req", "-in", &csr, "-key", &key, "-out", &crt];
    for command in [&asked.concat()[..], &signed] {
        let run = openssl.0.run(command, "");
        assert_eq!(run.code, 0, "{}", run.all());
    }
    place.write("old.pem", &(place.read("ca.pem") + &place.read("old.key")));
    let shape = Shape::new("127.0.0.1:1").certificates("[\"old.pem\"]");
    let found = check(&place, &shape.text(), &[]);
    assert_eq!(found.code, 0, "{}", found.all());
    assert!(found.stdout.contains("X.509 version 3"), "{}", found.all());
    let becket = Becket::start(&place, &shape);
    let flags = ["-servername", "old.example.org"];
    let run = openssl.ask_unnamed(&place, becket.web, &flags);
    let subject = "subject=CN = old.example.org\n";
    assert!(run.stdout.contains(subject), "{}", run.all());
}

#[test]
#[ignore = "slow: .ci/run test"]
fn clients_receive_ecdsa_if_they_support_it_and_rsa_otherwise() {
    let Some(openssl) = OpenSsl::find() else {
        return;
    };
    let place = place();
    let backend = Backend::http("well met");
    let shape = Shape::new(backend.address).certificates(CERTIFICATES);
    let becket = Becket::start(&place, &shape);
    let rsa = "rsa_pss_rsae_sha256:rsa_pkcs1_sha256";
    let chosen: [(&[&str], &str); 6] = [
        (&["-tls1_3"], "ECDSA"),
        (&["-tls1_3", "-sigalgs", rsa], "RSA-PSS"),
        (
            &[
                "-tls1_3",
                "-sigalgs",
                "rsa_pss_rsae_sha256:ecdsa_secp256r1_sha256",
            ],
            "ECDSA",
        ),
        (&["-tls1_2"], "ECDSA"),
        (&["-tls1_2", "-sigalgs", rsa], "RSA"),
        (
            &["-tls1_2", "-cipher", "ECDHE-RSA-AES128-GCM-SHA256"],
            "RSA",
        ),
    ];
    for (flags, kind) in chosen {
        let named = [&["-servername", "default.example.net"], flags].concat();
        let run = openssl.ask_unnamed(&place, becket.web, &named);
        assert_eq!(run.code, 0, "{flags:?}: {}", run.all());
        let said = format!("Peer signature type: {kind}");
        assert!(run.stdout.contains(&said), "{flags:?}: {}", run.all());
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn chains_are_sent_as_configured_and_every_format_of_key_file_is_read() {
    let Some(openssl) = OpenSsl::find() else {
        return;
    };
    let place = Place::new();
    let key = |arguments: &[&str]| {
        let run = openssl.0.run(arguments, "");
        assert_eq!(run.code, 0, "{}", run.all());
        run.stdout
    };
    let pkcs1 = ["genrsa", "-traditional", "2048"];
    let sec1 = ["ecparam", "-name", "secp384r1", "-genkey", "-noout"];
    let pkcs8 = ["genpkey", "-algorithm", "ed25519"];
    let backend = Backend::http("well met");
    let kinds: [(&str, &[&str]); 3] = [
        ("RSA PRIVATE KEY", &pkcs1),
        ("EC PRIVATE KEY", &sec1),
        ("PRIVATE KEY", &pkcs8),
    ];
    for (header, arguments) in kinds {
        let text = key(arguments);
        assert!(text.contains(&format!("BEGIN {header}")), "{text}");
        place.write("own.key", &text);
        let (own, name) = (place.text("own.key"), "subjectAltName=DNS:www.example.org");
        let made = key(&[
            "req",
            "-x509",
            "-new",
            "-key",
            &own,
            "-subj",
            "/CN=made by openssl",
            "-days",
            "30",
            "-addext",
            name,
        ]);
        place.write("ca.pem", &made);
        place.write("own.pem", &(made + &text));
        let shape = Shape::new(backend.address).certificates(r#"["own.pem"]"#);
        let becket = Becket::start(&place, &shape);
        let run = openssl.ask(&place, becket.web, &[]);
        assert_eq!(run.code, 0, "{}", run.all());
        assert!(run.stdout.contains("CN = made by openssl"), "{}", run.all());
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn the_local_address_selects_the_certificate_without_a_server_name() {
    let Some(openssl) = OpenSsl::find() else {
        return;
    };
    let place = Place::new();
    let [own, other] = [fresh_host(), fresh_host()].map(|host| host.to_string());
    place.issue("address.pem", &[&own], Key::Ecdsa);
    place.issue("default.pem", &["default.example.net"], Key::Ecdsa);
    let backend = Backend::http("well met");
    let mut shape = Shape::new(backend.address);
    let free = TcpListener::bind("0.0.0.0:0").unwrap();
    shape.web = free.local_addr().unwrap();
    drop(free);
    let shape = shape.certificates(r#"["address.pem", "default.pem"]"#);
    let becket = Becket::start(&place, &shape);
    for (host, flags, subject) in [
        (&own, &["-noservername", "-tls1_3"][..], &*own),
        (&own, &["-noservername", "-tls1_2"], &own),
        (
            &own,
            &["-servername", "default.example.net"],
            "default.example.net",
        ),
        (
            &own,
            &["-servername", "unknown.example.net"],
            "default.example.net",
        ),
        (&other, &["-noservername"], "default.example.net"),
    ] {
        let at = format!("{host}:{}", becket.web.port()).parse().unwrap();
        let run = openssl.ask_unnamed(&place, at, flags);
        let subject = format!("subject=CN = {subject}\n");
        assert!(run.stdout.contains(&subject), "{flags:?}: {}", run.all());
        assert!(run.stdout.contains("well met"), "{}", run.all());
    }
    let found = check(&place, &shape.text(), &["--dump"]);
    let listed = format!("name = \"{own}\"");
    assert!(found.stdout.contains(&listed), "{}", found.all());
}
