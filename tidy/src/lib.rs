//! Helpers for tests of several crates: the programs that they run, and a list of skipped tests.
//!
//! The house rules are this crate's own tests. They run last in `cargo test --workspace`, and one of them lists what all tests
//! of that run have skipped: each leaves a line in a file that bears the number of the process that runs them all.
#![forbid(unsafe_code)]

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, os::unix::process::parent_id, thread};

/// Notes that the test that calls this, or a part of it, is skipped.
///
/// # Panics
/// When `CI` is set: there everything is installed.
#[track_caller]
pub fn skip(why: &str) {
    assert!(
        env::var_os("CI").is_none(),
        "must not be skipped in CI: {why}"
    );
    lacks(why);
}

/// Notes that the calling test, or a part of it, is skipped because the processor lacks an instruction.
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
    // One call, so that lines of tests that run side by side stay whole.
    file.write_all(format!("{}: {why}\n", test.name().unwrap_or("a test")).as_bytes())
}

/// Takes what this run has skipped so far.
pub fn take_skipped() -> Vec<String> {
    let text = fs::read_to_string(list()).unwrap_or_default();
    drop(fs::remove_file(list()));
    text.lines().map(str::to_owned).collect()
}

fn list() -> PathBuf {
    let name = format!("target/skipped/{}", parent_id());
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

/// Finds a program; without it, the test is skipped.
///
/// # Panics
/// When it is not installed and `CI` is set.
#[track_caller]
pub fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    // Servers live in folders that are not on everybody's path.
    let folders = env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    let found = folders
        .map(|folder| folder.join(name))
        .find(|path| path.is_file());
    if found.is_none() {
        skip(&format!("needs {name}"));
    }
    found
}

/// A program of ours, as the sources are now. `BECKET_PROGRAMS` is a folder with programs that are built already;
/// `BECKET_E2E_PROFILE` chooses another profile than `dev`.
///
/// # Panics
/// When it does not build.
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
