//! A policy with `client-names` rejects clients whose valid certificate has another name, both in full handshakes and in resumptions of
//! sessions from before the policy changed.

use becket_e2e::{Backend, Becket, Key, OpenSsl, Place, Shape, Trust};

fn policy(names: &str) -> String {
    format!(
        "[[policy]]\nname = \"web\"\nclient-certificates = \"required\"\n\
         client-ca = \"ca.pem\"\nclient-names = {names}"
    )
}

#[test]
#[ignore = "slow: .ci/run test"]
fn clients_with_other_names_are_rejected_also_with_an_older_session() {
    let place = Place::new();
    let backend = Backend::http("inside");
    let names = policy("['dns:*.staff.test', 'cn:bob.test']");
    let shape = Shape::new(backend.address).section(&names);
    let becket = Becket::start(&place, &shape);
    let issue = |name: &str| place.authority.issue(&[name], Key::Ecdsa);
    let alice = Trust::ways(&place, Some(&issue("alice.staff.test")));
    let bob = Trust::ways(&place, Some(&issue("bob.test")));
    for (_, trust) in Trust::ways(&place, Some(&issue("mallory.test"))) {
        assert!(trust.visit(becket.web).is_err());
        assert_eq!(becket.next_reason(), "client-name");
    }
    for (kind, trust) in alice.iter().chain(&bob) {
        trust.visit(becket.web).unwrap();
        assert_eq!(becket.next_access()["handshake"], "full");
        trust.visit(becket.web).unwrap();
        assert_eq!(becket.next_access()["handshake"], *kind);
    }
    let fewer = shape.text().replace("'dns:*.staff.test', ", "");
    place.write("becket.toml", &fewer);
    assert!(becket.reload(), "{}", becket.log());
    let served = backend.served();
    for (kind, trust) in &alice {
        assert!(trust.visit(becket.web).is_err(), "{kind}");
        assert_eq!(becket.next_reason(), "client-name", "{kind}");
    }
    assert_eq!(backend.served(), served);
    for (kind, trust) in &bob {
        trust.visit(becket.web).unwrap();
        assert_eq!(becket.next_access()["handshake"], *kind);
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn openssl_receives_the_alert_access_denied_for_another_name() {
    let Some(openssl) = OpenSsl::find() else {
        return;
    };
    let place = Place::new();
    let backend = Backend::http("inside");
    let shape = Shape::new(backend.address).section(&policy("['dns:alice.test']"));
    let becket = Becket::start(&place, &shape);
    for (name, let_in) in [("alice.test", true), ("mallory.test", false)] {
        let own = place.authority.issue(&[name], Key::Ecdsa);
        let file = own.write(&place.path("own.pem"));
        for version in ["-tls1_2", "-tls1_3"] {
            let flags = [version, "-cert", file.to_str().unwrap()];
            let run = openssl.ask(&place, becket.web, &flags);
            assert_eq!(run.stdout.contains("inside"), let_in, "{}", run.all());
            assert_eq!(
                run.all().contains("alert access denied"),
                !let_in,
                "{}",
                run.all()
            );
        }
    }
}
