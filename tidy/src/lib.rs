//! Functions for tests of several crates: they build programs, find installed ones, and list skipped tests.
//!
//! The project's own rules are tests of this crate. They run last in `cargo test --workspace`, and one of them lists
//! all skipped tests of that run. Each skipped test appends a line to a file, whose name is the process ID of the
//! `cargo` process that runs all tests.
#![forbid(unsafe_code)]

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, os::unix::process::parent_id, thread};

/// Records that the calling test, or a part of it, is skipped.
///
/// # Panics
/// If `CI` is set, because CI must have all programs installed.
#[track_caller]
pub fn skip(why: &str) {
    assert!(
        env::var_os("CI").is_none(),
        "must not be skipped in CI: {why}"
    );
    lacks(why);
}

/// Records that the calling test, or a part of it, is skipped because the processor lacks an instruction.
pub fn lacks(why: &str) {
    println!("skipped: {why}");
    if let Err(error) = note(why) {
        println!("which is not listed: {error}");
    }
}

fn note(why: &str) -> io::Result<()> {
    let path = list();
    fs::create_dir_all(path.parent().unwrap_or(&path))?;
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    let test = thread::current();
    // Write each line with one call, because parallel tests append to the same file.
    file.write_all(format!("{}: {why}\n", test.name().unwrap_or("a test")).as_bytes())
}

/// Returns the tests that this run has skipped so far, and deletes their list.
pub fn take_skipped() -> Vec<String> {
    let text = fs::read_to_string(list()).unwrap_or_default();
    drop(fs::remove_file(list()));
    text.lines().map(str::to_owned).collect()
}

fn list() -> PathBuf {
    let name = format!("target/skipped/{}", parent_id());
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

/// Finds an installed program. If it is missing, records that the test is skipped.
///
/// # Panics
/// If the program is missing and `CI` is set.
#[track_caller]
pub fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    // Servers may be installed in directories that are not in the user's `PATH`.
    let folders = env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    let found = folders
        .map(|folder| folder.join(name))
        .find(|path| path.is_file());
    if found.is_none() {
        skip(&format!("needs {name}"));
    }
    found
}

/// Builds a program of this workspace and returns its path. `BECKET_PROGRAMS` names a directory with programs that are
/// already built. `BECKET_E2E_PROFILE` selects another profile than `dev`.
///
/// # Panics
/// If the build fails.
pub fn build(program: &str) -> PathBuf {
    if let Some(folder) = env::var_os("BECKET_PROGRAMS") {
        return Path::new(&folder).join(program);
    }
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let profile = env::var("BECKET_E2E_PROFILE").unwrap_or_else(|_| "dev".to_owned());
    let built = Command::new(cargo)
        .args(["build", "--package", program, "--bin", program])
        .args(["--profile", &profile, "--message-format", "json"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo runs");
    assert!(built.status.success(), "{program} does not build");
    let messages = String::from_utf8_lossy(&built.stdout);
    let executable = messages.split("\"executable\":\"").skip(1).last();
    let path = executable.and_then(|rest| rest.split('"').next());
    path.expect("cargo says where the program is").into()
}
