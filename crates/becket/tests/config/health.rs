//! `[backend.health]`, sources, and the interval of names.

use std::time::Duration;

use becket_config::backend::Health;
use becket_config::choices::CheckKind;
use becket_proto::health::{Checks, Passive};

use crate::common::{Folder, lines, site};

/// The site with more keys in its backend.
fn text(keys: &str) -> String {
    site("['a.pem']").replace("name = 'app'\n", &format!("name = 'app'\n{keys}\n"))
}

fn folder() -> Folder {
    let folder = Folder::new();
    folder.bundle("a.pem", &["a.test"]);
    folder
}

fn health(keys: &str) -> Health {
    let prepared = folder().prepare(&text(keys));
    let prepared = prepared.unwrap_or_else(|rejected| panic!("{rejected}"));
    prepared.config.backends[0].keys.health.clone()
}

#[test]
fn nobody_looks_after_servers_unless_asked() {
    let health = health("");
    assert_eq!(health.check, CheckKind::None);
    assert_eq!(
        (health.rules().checks, health.rules().passive),
        (None, None)
    );
    assert_eq!(health.rules().slow_start, Duration::ZERO);
}

#[test]
fn keys_become_rules() {
    let health = health(
        "health.check = 'http'\nhealth.interval = '5s'\nhealth.rise = 1\nhealth.slow-start = '30s'\n\
         health.passive-failures = 4\nhealth.path = '/up?x=1'\nhealth.expect = ['204', '3xx']",
    );
    let checks = Checks {
        interval: Duration::from_secs(5),
        fast_interval: Duration::from_secs(1),
        rise: 1,
        fall: 3,
    };
    let passive = Passive {
        failures: 4,
        pause: Duration::from_secs(10),
    };
    assert_eq!(health.rules().checks, Some(checks));
    assert_eq!(health.rules().passive, Some(passive));
    assert_eq!(health.rules().slow_start, Duration::from_secs(30));
    let expects = |status| health.expect.iter().any(|one| one.contains(status));
    assert!(expects(204) && expects(301) && !expects(200));
}

#[test]
fn every_fault_is_reported_with_its_key_path() {
    let keys = "resolve-interval = '10'\nsource = ['127.0.0.1', '192.0.2.1', 'eth0', '127.0.0.1']\n\
         health.interval = '1s'\nhealth.fast-interval = '2s'\nhealth.rise = 0\nhealth.fall = 1001\n\
         health.timeout = '1h'\nhealth.path = 'x y'\nhealth.host = ''\nhealth.expect = ['okay']\n\
         health.slow-start = '1ms'\nhealth.passive-failures = 0\nhealth.passive-pause = 'x'";
    let errors = lines(&folder().prepare(&text(keys)).unwrap_err().errors);
    let expected = [
        "backend[app].resolve-interval = \"10\": a duration without a unit",
        "backend[app].source[1] = \"192.0.2.1\": ",
        "backend[app].source[2] = \"eth0\": not an IP address; accepted: an IP address of this host",
        "backend[app].source[3] = \"127.0.0.1\": listed before",
        "backend[app].health.fast-interval = \"2s\": longer than interval",
        "backend[app].health.rise = 0: not in range; accepted: 1 to 1000",
        "backend[app].health.fall = 1001: not in range",
        "backend[app].health.timeout = \"1h\": not in range",
        "backend[app].health.path = \"x y\": not a path",
        "backend[app].health.host = \"\": not a host",
        "backend[app].health.expect[0] = \"okay\": not a status",
        "backend[app].health.slow-start = \"1ms\": not in range",
        "backend[app].health.passive-failures = 0: not in range",
        "backend[app].health.passive-pause = \"x\": ",
    ];
    for expected in expected {
        let found = errors.iter().any(|error| error.starts_with(expected));
        assert!(found, "{expected} is not in {errors:#?}");
    }
    assert_eq!(errors.len(), expected.len(), "{errors:#?}");
}

#[test]
fn a_path_that_nothing_asks_for_is_a_warning() {
    let prepared = folder().prepare(&text("health.check = 'connect'\nhealth.path = '/up'"));
    let warnings = lines(&prepared.unwrap().warnings);
    let text = "backend[app].health.check = \"connect\": only check = \"http\" asks for a path";
    assert!(
        warnings.iter().any(|warning| warning.starts_with(text)),
        "{warnings:?}"
    );
}
