//! Sets variables for `becket --version`: the commit, and the linked versions of rustls and AWS-LC,
//! from Cargo.lock.
//!
//! The commit is `BECKET_COMMIT`, which packages set, or HEAD of a clone. Without git it is `unknown`.

use std::fs;
use std::path::Path;
use std::process::Command;

fn main() {
    let lock = Path::new("../../Cargo.lock");
    println!("cargo::rerun-if-changed={}", lock.display());
    println!("cargo::rerun-if-env-changed=BECKET_COMMIT");
    let commit = std::env::var("BECKET_COMMIT").ok().or_else(checked_out);
    let commit = commit.as_deref().unwrap_or("unknown");
    println!("cargo::rustc-env=COMMIT={commit}");
    let lock = fs::read_to_string(lock).unwrap_or_default();
    for (crate_name, variable) in [
        ("rustls", "RUSTLS_VERSION"),
        ("aws-lc-sys", "AWS_LC_SYS_VERSION"),
    ] {
        let version = version(&lock, crate_name).unwrap_or("unknown");
        println!("cargo::rustc-env={variable}={version}");
    }
}

/// Returns the commit of the clone, and runs again after a commit or a checkout. `None` if the sources are not a clone, even if they lie
/// within another one.
fn checked_out() -> Option<String> {
    let root = Path::new("../..");
    if !root.join(".git").exists() {
        return None;
    }
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    // Every commit and checkout is in the log of HEAD.
    for name in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", name]).map(|path| root.join(path));
        if let Some(path) = path.filter(|path| path.exists()) {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    Some(commit)
}

/// Returns what git prints in the root of the sources; `None` if it fails or prints nothing.
fn git(arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    let output = command
        .args(["-C", "../.."])
        .args(arguments)
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

fn version<'a>(lock: &'a str, crate_name: &str) -> Option<&'a str> {
    let entry = format!("name = \"{crate_name}\"\nversion = \"");
    let (_, rest) = lock.split_once(&entry)?;
    rest.split('"').next()
}
