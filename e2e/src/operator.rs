//! Command-line administration of a running becket.

use std::process::Command;

use crate::place::Place;
use crate::program::becket_program;
use crate::tool::{Finished, finish};

/// Runs `becket` with these arguments and `becket.toml`, in the folder of `place`.
#[track_caller]
pub fn becket(place: &Place, words: &[&str]) -> Finished {
    let mut command = Command::new(becket_program());
    command.args(words).args(["--config", "becket.toml"]);
    command.current_dir(place.folder());
    finish(command, "")
}

/// Runs `becket ctl` with these arguments and `becket.toml`, in the folder of `place`.
#[track_caller]
pub fn ctl(place: &Place, words: &[&str]) -> Finished {
    becket(place, &[&["ctl"], words].concat())
}

/// Runs `becket`, checks that it succeeds, and returns its standard output.
#[track_caller]
pub fn becket_done(place: &Place, words: &[&str]) -> String {
    let found = becket(place, words);
    assert_eq!(found.code, 0, "{words:?}: {}", found.all());
    found.stdout
}

/// Runs `becket ctl`, checks that it succeeds, and returns its standard output.
#[track_caller]
pub fn ctl_done(place: &Place, words: &[&str]) -> String {
    becket_done(place, &[&["ctl"], words].concat())
}
