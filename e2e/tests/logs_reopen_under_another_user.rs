//! Logs that root opened before it became another user can be opened again by that user.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};

use becket_e2e::{Backend, Becket, Place, Shape, Signal, Tool, eventually};

const AS_NOBODY: &str = "workers = 2\nuser = \"nobody\"";

/// The ID of the user `nobody`, if we are root and there is one.
fn nobody() -> Option<u32> {
    if !rustix::process::geteuid().is_root() {
        Tool::skip("needs root");
        return None;
    }
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let line = passwd.lines().find(|line| line.starts_with("nobody:"));
    let id = line.and_then(|line| line.split(':').nth(2)?.parse().ok());
    if id.is_none() {
        Tool::skip("needs a user nobody");
    }
    id
}

/// Gives the place to a user.
fn give(place: &Place, user: u32) {
    fs::set_permissions(place.folder(), fs::Permissions::from_mode(0o755)).unwrap();
    chown(place.folder(), Some(user), None).unwrap();
    for name in ["site.pem", "becket.toml"] {
        if place.path(name).exists() {
            chown(place.path(name), Some(user), None).unwrap();
        }
    }
}

#[test]
fn logs_that_root_opened_are_the_users_so_that_they_can_be_opened_again() {
    let Some(user) = nobody() else { return };
    let place = Place::new();
    give(&place, user);
    let backend = Backend::http("well met");
    let becket = Becket::start(&place, &Shape::new(backend.address).process(AS_NOBODY));
    becket.signal(Signal::USR1);
    eventually("it says so", || becket.log().contains("log files reopened"));
    assert!(!becket.log().contains("not reopened"), "{}", becket.log());
}
