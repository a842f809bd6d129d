//! Client certificates in the modes off, optional and required: valid, missing, foreign and expired ones, in full handshakes
//! and resumptions.

use becket_e2e::{Authority, Backend, Becket, Bundle, Key, OpenSsl, Place, Shape, Trust};
use rustls::SupportedProtocolVersion;
use rustls::version::{TLS12, TLS13};

const VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];

fn policy(mode: &str) -> String {
    format!("[[policy]]\nname = \"web\"\nclient-certificates = \"{mode}\"\nclient-ca = \"ca.pem\"")
}

/// Returns certificates that clients present, and whether they are valid.
fn presented(place: &Place) -> Vec<(Option<Bundle>, bool, &'static str)> {
    let stranger = Authority::new("Another Authority");
    vec![
        (
            Some(place.authority.issue(&["alice"], Key::Ecdsa)),
            true,
            "good",
        ),
        (
            Some(place.authority.issue(&["alice"], Key::Rsa)),
            true,
            "good RSA",
        ),
        (
            Some(stranger.issue(&["mallory"], Key::Ecdsa)),
            false,
            "of a stranger",
        ),
        (
            Some(place.authority.issue_expired(&["alice"])),
            false,
            "expired",
        ),
    ]
}

#[test]
fn only_clients_with_a_valid_certificate_reach_the_backend() {
    let place = Place::new();
    let backend = Backend::http("inside");
    let shape = Shape::new(backend.address).section(&policy("required"));
    let becket = Becket::start(&place, &shape);
    let mut all = presented(&place);
    all.push((None, false, "none"));
    let mut let_in = 0;
    for (own, is_good, what) in &all {
        for version in VERSIONS {
            let answer = Trust::with(&place, &[version], own.as_ref()).visit(becket.web);
            assert_eq!(answer.is_ok(), *is_good, "{what}, {version:?}: {answer:?}");
            let_in += usize::from(*is_good);
            let expected = if *is_good {
                "finished"
            } else {
                "client-certificate"
            };
            assert_eq!(becket.next_reason(), expected, "{what}");
        }
    }
    assert_eq!(backend.served(), let_in);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn openssl_receives_the_accepted_authorities_and_a_specific_alert() {
    let Some(openssl) = OpenSsl::find() else {
        return;
    };
    let place = Place::new();
    let backend = Backend::http("inside");
    let shape = Shape::new(backend.address).section(&policy("required"));
    let becket = Becket::start(&place, &shape);
    place.issue("alice.pem", &["alice"], Key::Ecdsa);
    place
        .authority
        .issue_expired(&["alice"])
        .write(&place.path("expired.pem"));
    let (alice, expired) = (place.text("alice.pem"), place.text("expired.pem"));
    for version in ["-tls1_2", "-tls1_3"] {
        let run = openssl.ask(&place, becket.web, &[version, "-cert", &alice]);
        assert!(run.stdout.contains("inside"), "{}", run.all());
        assert!(
            run.stdout.contains("CN = Becket Test Authority"),
            "{}",
            run.all()
        );
        let run = openssl.ask(&place, becket.web, &[version, "-cert", &expired]);
        assert!(
            run.all().contains("alert certificate expired"),
            "{}",
            run.all()
        );
    }
    let run = openssl.ask(&place, becket.web, &["-tls1_3"]);
    assert!(
        run.all().contains("alert certificate required"),
        "{}",
        run.all()
    );
    becket.says("client-certificate");
    becket.says("issuer CN=Becket Test Authority");
}
