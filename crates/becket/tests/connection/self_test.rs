//! Tests of the handshakes of `becket check`: reports and errors.

use std::sync::Arc;

use becket::check::self_test::{self, TestedHandshake};
use becket_config::error::Report;

use crate::common::{BACKEND, House, house, now};

fn run(house: &House) -> (Vec<TestedHandshake>, Report) {
    let mut report = Report::default();
    let tested = self_test::run(&house.config, now(), &mut report);
    (tested, report)
}

fn with_policy(policy: &str) -> House {
    House::new(&format!(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:443']\nbackend = 'app'\n\
         certificates = ['a.pem']\npolicy = 'p'\n[[policy]]\nname = 'p'\n{policy}\n{BACKEND}"
    ))
}

#[test]
fn every_name_is_tested_with_every_version_and_protocol() {
    let (tested, report) = run(&house("alpn = ['h2', 'http/1.1']"));
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    let lines: Vec<String> = tested.iter().map(ToString::to_string).collect();
    assert_eq!(lines.len(), 3 * (2 + 2), "{lines:#?}");
    for line in [
        "a.test: TLSv1.3 ECDSA TLS_AES_128_GCM_SHA256 x25519 -> app, resumes by psk",
        "*.b.test: TLSv1.2 ECDSA TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 x25519 -> app, resumes by ticket",
    ] {
        assert!(
            lines.iter().any(|found| found == line),
            "{line} in {lines:#?}"
        );
    }
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("*: ") && line.contains("alpn h2"))
    );
}

#[test]
fn the_self_test_skips_passthrough_names() {
    let house = House::new(&format!(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:443']\nbackend = 'app'\n\
         certificates = ['b.pem', 'a.pem']\nalpn = ['h2']\n\
         [[listener.route]]\nnames = ['*.b.test']\nmode = 'passthrough'\n\
         [[listener.route]]\nalpn = ['acme-tls/1']\nmode = 'passthrough'\n{BACKEND}"
    ));
    let (tested, report) = run(&house);
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    let mut names: Vec<&str> = tested.iter().map(|one| one.name.as_str()).collect();
    names.dedup();
    assert_eq!(names, ["a.test", "*"]);
    assert_eq!(tested.len(), 2 * (2 + 1), "{tested:#?}");
}

#[test]
fn the_self_test_ignores_server_tls_and_unresolvable_names() {
    let house = House::new(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:443']\nbackend = 'app'\n\
         certificates = ['a.pem']\n[[backend]]\nname = 'app'\ntls = { verify = 'none' }\n\
         [[backend.server]]\naddress = 'nowhere.invalid:81'\n",
    );
    let (tested, report) = run(&house);
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    assert_eq!(tested.len(), 4);
}

#[test]
fn the_self_test_expects_a_rejection_if_certificates_are_required() {
    let (tested, report) = run(&with_policy(
        "client-certificates = 'required'\nclient-ca = 'ca.pem'",
    ));
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    assert!(
        tested
            .iter()
            .all(|one| one.refused && one.resumes.is_none())
    );
    assert_eq!(tested.len(), 4);
}

#[test]
fn a_version_without_a_suitable_key_is_an_error() {
    let (tested, report) = run(&with_policy(
        "suites = ['TLS_AES_128_GCM_SHA256', 'TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256']",
    ));
    assert!(tested.iter().all(|one| one.version == "TLSv1.3"));
    let errors: Vec<String> = report.errors.iter().map(ToString::to_string).collect();
    assert_eq!(errors.len(), 2, "{errors:?}");
    let expected = "listener[web] = \"a.test\": TLSv1.2 ECDSA: handshake-failed: ";
    assert!(errors[0].starts_with(expected), "{errors:?}");
}

#[test]
fn the_self_test_resumes_by_ticket_or_id_or_not_at_all() {
    let (tested, _) = run(&with_policy("versions = ['1.2']\ntls12-tickets = true"));
    assert!(tested.iter().all(|one| one.resumes == Some("ticket")));
    let mut house = with_policy("versions = ['1.2']\ntls12-tickets = false");
    let (tested, _) = run(&house);
    assert!(tested.iter().all(|one| one.resumes == Some("id")));
    Arc::make_mut(&mut house.config.file).sessions.table_entries = 0;
    let (tested, report) = run(&house);
    assert!(report.errors.is_empty());
    assert!(tested.iter().all(|one| one.resumes.is_none()));
}
