//! Shared by the tests of `becket-bench`: the built programs, and the installed peers.
#![allow(dead_code, reason = "each test file uses a part of this module")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// Path of the bench as built for the test.
pub(crate) const BENCH: &str = env!("CARGO_BIN_EXE_becket-bench");

/// Builds becket once and returns its path.
pub(crate) fn becket() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| becket_tidy::build("becket"))
}

/// Returns the installed peers, without becket.
pub(crate) fn peers() -> Vec<&'static str> {
    let mut all = vec!["hitch", "haproxy", "nginx", "stunnel"];
    all.retain(|peer| {
        becket_tidy::find(if *peer == "stunnel" { "stunnel4" } else { peer }).is_some()
    });
    all
}

/// Runs the bench and waits for its exit.
pub(crate) fn bench(args: &[&str]) -> Output {
    let output = Command::new(BENCH).args(args).stdin(Stdio::null()).output();
    output.expect("the bench runs")
}

/// Returns the standard error of a program.
pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
