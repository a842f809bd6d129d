//! `becket check` and a rejected start report all errors at once, with key path, value and accepted
//! values.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};

use becket_e2e::{AS_NOBODY, Backend, Becket, Finished, Key, Place, Shape, finish, nobody};
use serde_json::Value;

/// Runs `becket check` with this text as `becket.toml`.
#[track_caller]
pub(crate) fn check(place: &Place, text: &str, flags: &[&str]) -> Finished {
    place.write("becket.toml", text);
    let fixed = ["check", "--config", "becket.toml"];
    finish(Becket::command(place, &[&fixed[..], flags].concat()), "")
}

#[test]
fn a_valid_configuration_is_accepted_and_each_name_completes_a_handshake() {
    let place = Place::new();
    let shape = Shape::new("127.0.0.1:1");
    let found = check(&place, &shape.text(), &[]);
    assert_eq!(found.code, 0, "{}", found.all());
    assert!(found.stdout.lines().count() <= 12, "{}", found.all());
    assert!(found.stdout.ends_with("becket.toml: fine\n"));
    let found = check(&place, &shape.text(), &["--dump"]);
    assert!(found.stdout.contains("name = \"web\""), "{}", found.all());
    for name in ["www.example.org", "localhost", "internal.example.org"] {
        for version in ["TLSv1.2", "TLSv1.3"] {
            let line = format!("handshake {name}: {version}");
            assert!(found.stdout.contains(&line), "{}", found.all());
        }
    }
    let found = check(&place, &shape.text(), &["--json"]);
    assert_eq!(found.code, 0, "{}", found.all());
    let json: Value = serde_json::from_str(&found.stdout).unwrap();
    assert_eq!(json["listener"][0]["name"], "web");
    assert_eq!(json["errors"].as_array().map(Vec::len), Some(0));
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_running_becket_and_expiring_certificates_cause_warnings() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let shape = Shape::new(backend.address);
    let becket = Becket::start(&place, &shape);
    let found = check(&place, &shape.text(), &[]);
    assert_eq!(found.code, 0, "{}", found.all());
    assert!(
        found.stdout.contains(&becket.web.to_string()),
        "{}",
        found.all()
    );
    assert!(found.stdout.contains("in use"), "{}", found.all());
    drop(becket);
    place
        .authority
        .issue_expired(&["www.example.org"])
        .write(&place.path("site.pem"));
    let found = check(&place, &shape.text(), &[]);
    assert_eq!(found.code, 0, "{}", found.all());
    assert!(found.stdout.contains("expired"), "{}", found.all());
    let soon = becket_e2e::unix_now() + 3 * 86400;
    place
        .authority
        .issue_until(&["www.example.org"], soon)
        .write(&place.path("site.pem"));
    let found = check(&place, &shape.text(), &["--json", "--strict"]);
    assert_eq!(found.code, 1, "{}", found.all());
    let json: Value = serde_json::from_str(&found.stdout).unwrap();
    assert_eq!(json["warnings"].as_array().map(Vec::len), Some(1), "{json}");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_closed_standard_output_is_not_an_error() {
    let place = Place::new();
    place.write("becket.toml", &Shape::new("127.0.0.1:1").text());
    for flags in [&[][..], &["--json"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let arguments = [&["check", "--config", "becket.toml"], flags].concat();
        let mut command = Becket::command(&place, &arguments);
        let status = command.stdout(writer).status().unwrap();
        assert_eq!(status.code(), Some(0), "{}", place.read("stderr.log"));
    }
}

/// Returns a configuration with an error of each kind, and words that the report must contain.
fn faulty(place: &Place) -> (String, Vec<&'static str>) {
    let (one, two) = (
        place.authority.issue(&["one.example.org"], Key::Ecdsa),
        place.authority.issue(&["two.example.org"], Key::Ecdsa),
    );
    place.write("mixed.pem", &(one.certificate.clone() + &two.key));
    place.write("keyless.pem", &one.certificate);
    place.write("empty.pem", "nothing\n");
    let text = r#"
        [[listener]]
        name = "web"
        bind = ["127.0.0.1:http", "127.0.0.1:99999", "becket-knows-nobody.invalid:1"]
        certificates = ["mixed.pem", "gone.pem", "keyless.pem", "empty.pem"]
        backend = "nowhere"
        colour = "red"
        backlog = "many"
        [[listener]]
        name = "web"
        bind = ["127.0.0.1:0"]
        certificates = ["site.pem"]
        backend = "app"
        alpn-mismatch = "maybe"
        [[policy]]
        name = "odd"
        versions = ["1.1"]
        suites = ["ROT13"]
        client-certificates = "required"
        [[backend]]
        name = "app"
        [[backend.server]]
        address = "127.0.0.1:80"
        [timeouts]
        idle = 10
        [process]
        workers = 0
    "#;
    let expected = vec![
        "listener[web].bind[0]",
        "127.0.0.1:http",
        "127.0.0.1:99999",
        "mixed.pem",
        "gone.pem",
        "keyless.pem",
        "empty.pem",
        "nowhere",
        "colour",
        "backlog",
        "alpn-mismatch",
        "maybe",
        "versions",
        "ROT13",
        "client-ca",
        "becket-knows-nobody.invalid:1",
        "timeouts.idle",
        "process.workers",
    ];
    (text.to_owned(), expected)
}

#[test]
#[ignore = "slow: .ci/run test"]
fn check_and_run_report_all_errors_at_once() {
    let place = Place::new();
    let (text, expected) = faulty(&place);
    let checked = check(&place, &text, &[]);
    let ran = finish(
        Becket::command(&place, &["run", "--config", "becket.toml"]),
        "",
    );
    for (found, code) in [(checked, 2), (ran, 2)] {
        assert_eq!(found.code, code, "{}", found.all());
        let said = found.all();
        for word in &expected {
            assert!(said.contains(word), "{word} is missing in:\n{said}");
        }
        assert!(said.contains("accepted: "), "{said}");
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn log_files_are_not_created() {
    let place = Place::new();
    let shape = Shape::new("127.0.0.1:1");
    let found = check(&place, &shape.text(), &[]);
    assert_eq!(found.code, 0, "{}", found.all());
    assert!(!place.path("becket.log").exists() && !place.path("access.log").exists());
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_log_file_that_root_would_create_is_accepted_except_in_another_users_folder() {
    let Some(_) = nobody() else { return };
    let place = Place::new();
    let text = Shape::new("127.0.0.1:1").process(AS_NOBODY).text();
    place.write("becket.toml", &text);
    let mode = |mode| fs::set_permissions(place.folder(), Permissions::from_mode(mode)).unwrap();
    mode(0o755);
    let found = |text: &str| {
        place.write("becket.toml", text);
        let command = Becket::command(&place, &["check", "--config", "becket.toml"]);
        finish(command, "")
    };
    let fine = found(&text);
    assert_eq!(fine.code, 0, "{}", fine.all());
    assert!(!place.path("access.log").exists());
    // Another user who can write to the folder could make root create a file elsewhere.
    let others = place.path("others");
    fs::create_dir(&others).unwrap();
    chown(&others, Some(12_345), None).unwrap();
    let closed = found(&text.replace("access.log", "others/access.log"));
    assert_eq!(closed.code, 2, "{}", closed.all());
    assert!(closed.all().contains("log.access"), "{}", closed.all());
}
