//! Tests of `[backend.health]`, of sources, and of the interval of name lookups.

use crate::common::{Folder, assert_faults, lines, site};

/// The site with these keys in its backend.
fn text(keys: &str) -> String {
    site("['a.pem']").replace("name = 'app'\n", &format!("name = 'app'\n{keys}\n"))
}

fn folder() -> Folder {
    let folder = Folder::new();
    folder.bundle("a.pem", &["a.test"]);
    folder
}

#[test]
fn every_fault_is_reported_with_its_key_path() {
    let keys = "resolve-interval = '10'\nsource = ['127.0.0.1', '192.0.2.1', 'eth0']\n\
         health.fast-interval = '1ms'\nhealth.rise = 0\nhealth.fall = 1001\n\
         health.timeout = '1h'\nhealth.path = 'x y'\nhealth.host = ''\nhealth.expect = ['okay']\n\
         health.slow-start = '1ms'\nhealth.passive-failures = 0\nhealth.passive-pause = 'x'";
    let errors = lines(&folder().prepare(&text(keys)).unwrap_err().errors);
    let expected = [
        "backend[app].resolve-interval = \"10\": a duration without a unit",
        "backend[app].source[1] = \"192.0.2.1\": ",
        "backend[app].source[2] = \"eth0\": not an IP address; accepted: an IP address of this host",
        "backend[app].health.fast-interval = \"1ms\": not in range",
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
    assert_faults(&errors, &expected);
}
