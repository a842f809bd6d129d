//! What the tests of `becket-bench` stand on: the built programs, and which peers are here.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// The bench as it was built for the test.
pub(crate) const BENCH: &str = env!("CARGO_BIN_EXE_becket-bench");

/// Builds becket once and returns where it is.
pub(crate) fn becket() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let built = Command::new(cargo)
            .args(["build", "--package", "becket", "--bin", "becket"])
            .args(["--message-format", "json"])
            .stderr(Stdio::inherit())
            .output()
            .expect("cargo runs");
        assert!(built.status.success(), "becket does not build");
        let messages = String::from_utf8_lossy(&built.stdout);
        let program = messages
            .lines()
            .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
            .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
            .next_back();
        program.expect("cargo says where the program is")
    })
}

/// Returns whether a missing program is a failure here.
pub(crate) fn is_ci() -> bool {
    env::var_os("CI").is_some_and(|value| value == "true")
}

/// Returns the peers of this machine beside becket; says which are missing, and fails for it in CI.
pub(crate) fn peers() -> Vec<&'static str> {
    let all = [
        ("hitch", "hitch"),
        ("haproxy", "haproxy"),
        ("nginx", "nginx"),
        ("stunnel", "stunnel4"),
    ];
    let here = all.into_iter().filter(|(name, program)| {
        let found = program_exists(program);
        if !found {
            missing(name);
        }
        found
    });
    here.map(|(name, _)| name).collect()
}

/// Says that something is missing; fails for it in CI.
pub(crate) fn missing(name: &str) {
    assert!(!is_ci(), "{name} is not installed");
    eprintln!("skipped: {name} is not installed");
}

/// Returns whether a program is in the usual places.
pub(crate) fn program_exists(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<PathBuf> = env::split_paths(&path).collect();
    places.push("/usr/sbin".into());
    places.iter().any(|place| place.join(name).is_file())
}

/// Runs the bench to its end.
pub(crate) fn bench(args: &[&str]) -> Output {
    let output = Command::new(BENCH).args(args).stdin(Stdio::null()).output();
    output.expect("the bench runs")
}

/// Returns what a program said on standard error.
pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
