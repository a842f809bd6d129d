//! What the tests of `becket-bench` stand on: the built programs, and which peers are here.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// The bench as it was built for the test.
pub(crate) const BENCH: &str = env!("CARGO_BIN_EXE_becket-bench");

/// Builds becket once and returns where it is.
pub(crate) fn becket() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| becket_tidy::build("becket"))
}

/// Returns the peers of this machine beside becket.
pub(crate) fn peers() -> Vec<&'static str> {
    let mut all = vec!["hitch", "haproxy", "nginx", "stunnel"];
    all.retain(|peer| {
        becket_tidy::find(if *peer == "stunnel" { "stunnel4" } else { peer }).is_some()
    });
    all
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
