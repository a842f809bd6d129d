//! A policy on trial is evaluated for every client but rejects none. Counters and the access log show the clients that
//! it would reject.

use becket_e2e::{Backend, Becket, OpenSsl, Place, Shape, ctl, ctl_done};
use serde_json::{Value, json};

fn report(place: &Place, words: &[&str]) -> Value {
    let text = ctl_done(place, &[&["policy", "report"], words, &["--json"]].concat());
    serde_json::from_str(&text).unwrap()
}

fn shape(backend: &Backend, trial: &str) -> Shape {
    let policy = format!(
        "[[policy]]\nname = \"web\"\nclient-certificates = \"optional\"\nclient-ca = \"ca.pem\"\n\
         trial = {{ {trial} }}"
    );
    Shape::new(backend.address).section(&policy)
}

#[test]
#[ignore = "slow: .ci/run test"]
fn clients_with_an_old_version_are_served_and_counted() {
    let Some(openssl) = OpenSsl::find() else {
        return;
    };
    let (place, backend) = (Place::new(), Backend::http("well met"));
    let shape = shape(&backend, "versions = [\"1.3\"]");
    let becket = Becket::start(&place, &shape);
    for (version, would_refuse) in [("-tls1_3", Value::Null), ("-tls1_2", "version".into())] {
        let run = openssl.ask(&place, becket.web, &[version]);
        assert!(run.all().contains("well met"), "{}", run.all());
        assert_eq!(becket.next_access()["would_refuse"], would_refuse);
    }
    let counts = report(&place, &["web"])["web"].take();
    assert_eq!(
        (&counts["passed"], &counts["version"]),
        (&json!(1), &json!(1))
    );
    let metrics = becket.metrics();
    for (outcome, count) in [("passed", 1.0), ("version", 1.0), ("group", 0.0)] {
        let label = format!("outcome=\"{outcome}\"");
        let labels = ["policy=\"web\"", &label];
        let sum = metrics.sum("becket_trial_total", &labels);
        assert_eq!(sum, count, "{outcome}");
    }
    let other = ctl(&place, &["policy", "report", "other"]);
    assert_eq!(other.code, 3, "{}", other.all());
    assert!(other.all().contains("accepted: web"), "{}", other.all());
    // A reload that leaves the policy unchanged keeps its counters; another trial starts at zero.
    assert!(becket.reload());
    assert_eq!(report(&place, &[])["web"], counts);
    let other = shape
        .text()
        .replace("versions = [\"1.3\"]", "groups = [\"x25519\"]");
    place.write("becket.toml", &other);
    assert!(becket.reload());
    assert_eq!(report(&place, &[])["web"]["passed"], 0);
}
