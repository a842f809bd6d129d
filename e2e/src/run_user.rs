//! The user `nobody`, for tests that start becket as root.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};

use crate::place::Place;
use becket_tidy::skip;

/// Keys of `[process]` that make becket change to the user `nobody`.
pub const AS_NOBODY: &str = "workers = 2\nuser = \"nobody\"";

/// Returns the ID of the user `nobody`. Records the test as skipped without root or such a user.
pub fn nobody() -> Option<u32> {
    user_id("nobody")
}

/// Returns the ID of a user. Records the test as skipped without root or this user.
pub fn user_id(name: &str) -> Option<u32> {
    if !rustix::process::geteuid().is_root() {
        skip("needs root");
        return None;
    }
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let mut lines = passwd.lines();
    let line = lines.find(|line| line.split(':').next() == Some(name));
    let id = line.and_then(|line| line.split(':').nth(2)?.parse().ok());
    if id.is_none() {
        skip(&format!("needs a user {name}"));
    }
    id
}

/// Makes a user the owner of the place, its key and its configuration.
pub fn give(place: &Place, user: u32) {
    open_to_all(place);
    chown(place.folder(), Some(user), None).expect("root gives the folder");
    for name in ["site.pem", "becket.toml"] {
        if place.path(name).exists() {
            chown(place.path(name), Some(user), None).expect("root gives the file");
        }
    }
}

/// Makes the folder of the place accessible for all users.
pub fn open_to_all(place: &Place) {
    let all = fs::Permissions::from_mode(0o755);
    fs::set_permissions(place.folder(), all).expect("our folder");
}
