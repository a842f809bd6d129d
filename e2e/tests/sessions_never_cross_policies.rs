//! A session of one policy never resumes under another policy. The tests cover session IDs, tickets and
//! pre-shared keys, across names, listeners and protocol versions. Each test also resumes a session within
//! its policy, so that a failure to resume at all is noticed.

use std::io;

use becket_e2e::{Backend, Becket, Client, Key, Place, REQUEST, Shape, Trust, fresh_address};

const STAFF: &str = r#"
[[policy]]
name = "staff"
client-certificates = "required"
client-ca = "ca.pem"
"#;

/// Connects and sends a request. A TLS 1.3 client learns only from the answer that it was rejected.
fn ask(client: io::Result<Client>) -> io::Result<String> {
    let answer = client?.ask(REQUEST)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_session_does_not_bypass_a_required_client_certificate() {
    let place = Place::new();
    let (public, internal) = (Backend::http("public"), Backend::http("internal"));
    let (twin, staff) = (fresh_address(), fresh_address());
    let shape = Shape::new(public.address)
        .section(&format!(
            r#"
            [[listener]]
            name = "twin"
            bind = ["{twin}"]
            certificates = ["site.pem"]
            policy = "web"
            backend = "app"
            [[listener]]
            name = "staff"
            bind = ["{staff}"]
            certificates = ["site.pem"]
            backend = "internal"
            [[policy]]
            name = "web"
            {STAFF}"#
        ))
        .pool("internal", internal.address);
    let becket = Becket::start(&place, &shape);
    for (kind, trust) in Trust::ways(&place, None) {
        let answer = ask(Client::connect(becket.web, &trust)).unwrap();
        assert!(answer.ends_with("public"));
        assert_eq!(becket.next_access()["handshake"], "full");
        // Control: the same session resumes at the listener that shares the policy.
        ask(Client::connect(twin, &trust)).unwrap();
        assert_eq!(becket.next_access()["handshake"], kind);
        // The listener with the stricter policy uses the same name and certificate.
        let refused = ask(Client::connect(staff, &trust));
        assert!(refused.is_err(), "{kind} crossed: {refused:?}");
        assert_eq!(becket.next_reason(), "client-certificate");
    }
    assert_eq!(internal.served(), 0);
    let metrics = becket.metrics();
    let offers = "becket_resumptions_offered_total";
    let other = metrics.sum(offers, &["outcome=\"other-policy\""]);
    assert_eq!(other as u64, 3, "{}", metrics.0);
    assert_eq!(metrics.sum(offers, &["outcome=\"opened\""]) as u64, 3);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_session_does_not_resume_under_another_server_name() {
    let Some(openssl) = becket_e2e::OpenSsl::find() else {
        return;
    };
    let place = Place::new();
    let (public, internal) = (Backend::http("public"), Backend::http("internal"));
    let shape = Shape::new(public.address)
        .listener(
            "[[listener.route]]\nnames = [\"internal.example.org\"]\n\
             policy = \"staff\"\nbackend = \"internal\"",
        )
        .section(STAFF)
        .pool("internal", internal.address);
    let becket = Becket::start(&place, &shape);
    let session = place.text("session.pem");
    let ways: [&[&str]; 3] = [&["-tls1_3"], &["-tls1_2"], &["-tls1_2", "-no_ticket"]];
    for flags in ways {
        let first = [flags, &["-sess_out", &session]].concat();
        let run = openssl.ask(&place, becket.web, &first);
        assert!(run.stdout.contains("public"), "{}", run.all());
        let other = ["-sess_in", &session, "-servername", "internal.example.org"];
        let run = openssl.ask_unnamed(&place, becket.web, &[flags, &other].concat());
        assert!(!run.stdout.contains("Reused"), "{}", run.all());
        assert!(!run.stdout.contains("200 OK"), "{}", run.all());
    }
    assert_eq!(internal.served(), 0);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_session_does_not_resume_after_its_authority_was_removed() {
    let place = Place::new();
    let internal = Backend::http("internal");
    let policy = STAFF.replace("staff", "web");
    let shape = Shape::new(internal.address).section(&policy);
    let becket = Becket::start(&place, &shape);
    let own = place.authority.issue(&["alice"], Key::Ecdsa);
    let trusts = Trust::ways(&place, Some(&own)).map(|(_, trust)| trust);
    for trust in &trusts {
        for is_full in [true, false] {
            ask(Client::connect(becket.web, trust)).unwrap();
            assert_eq!(becket.next_access()["handshake"] == "full", is_full);
        }
    }
    let stranger = becket_e2e::Authority::new("Another Authority");
    place.write("other.pem", stranger.pem());
    let text = shape.text().replace("ca.pem", "other.pem");
    place.write("becket.toml", &text);
    assert!(becket.reload(), "{}", becket.log());
    for trust in &trusts {
        assert!(ask(Client::connect(becket.web, trust)).is_err());
        assert_eq!(becket.next_reason(), "client-certificate");
    }
    assert_eq!(internal.served(), 6);
}
