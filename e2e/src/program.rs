//! The program under test, built once per test run.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

/// The `becket` program, as the sources are now. `BECKET_E2E_PROFILE` chooses another profile than
/// `dev`.
///
/// # Panics
/// When it does not build.
pub fn becket_program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| build("becket"))
}

/// The `becket-load` program, likewise.
///
/// # Panics
/// When it does not build.
pub fn load_program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| build("becket-load"))
}

fn build(program: &str) -> PathBuf {
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
    let program = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .next_back();
    program.expect("cargo says where the program is")
}
